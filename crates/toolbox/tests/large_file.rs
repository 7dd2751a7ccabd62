//! Inspecting a large program reads only its tables.

use pteron_format::container::HEAD_BYTES;
use pteron_format::pte;
use pteron_runtime::{BackendRegistry, DataLoader, FileLoader, Limits, Purpose};
use pteron_toolbox::inspect::{Report, inspect};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The digit classifier with its constant segment enlarged to fill a sparse file of `size` bytes.
fn large_program(name: &str, size: u64) -> PathBuf {
    let digits = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits/digits.pte");
    let mut bytes = std::fs::read(digits).expect("digits.pte");
    let header = pte::Header::parse(&bytes, bytes.len() as u64).expect("a sound header");
    let old = header.segment_data_size.expect("a header of 32 bytes").to_le_bytes();
    let new = (size - header.segment_base_offset).to_le_bytes();
    // The size occurs in the header and in the table of the only segment.
    let places: Vec<usize> =
        (0..header.program_size as usize - 8).step_by(4).filter(|&i| bytes[i..i + 8] == old).collect();
    assert_eq!(places.len(), 2);
    for i in places {
        bytes[i..i + 8].copy_from_slice(&new);
    }
    let path = std::env::temp_dir().join(format!("pteron-{name}-{}.pte", std::process::id()));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).open(&path).expect("a file");
    file.write_all(&bytes).expect("room for the program");
    file.set_len(size).expect("a sparse file");
    path
}

#[test]
fn inspecting_a_gigabyte_reads_its_tables_only() {
    const SIZE: u64 = 1 << 30;
    let path = large_program("gigabyte", SIZE);
    let loader: Arc<dyn DataLoader> = Arc::new(FileLoader::open(&path).expect("the file opens"));
    // The bytes read to recognise the format are not counted in the report.
    loader.load(0, 4, Purpose::Program).expect("it has four bytes");
    let report = inspect(&loader, &Default::default(), &BackendRegistry::new(), &Limits::default());
    std::fs::remove_file(&path).expect("the file is there");
    let Report::Pte(report) = report.expect("the program is sound") else { panic!("it is a program") };
    assert_eq!(report.bytes, SIZE);
    assert_eq!(report.segments[0].bytes, SIZE - report.segments[0].offset);
    assert!(report.bytes_read < 2_000_000, "{} bytes were read", report.bytes_read);
    let head = HEAD_BYTES as u64;
    assert_eq!(report.bytes_read, head + report.header.unwrap().program_size, "its head, then its tables");
    assert!(loader.bytes_loaded() >= report.bytes_read + 4);
}
