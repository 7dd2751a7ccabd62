//! The guarantees of ExecuTorch's file formats, one test for each.

use pteron_format::container::Blob;
use pteron_format::ptd::TensorLayout;
use pteron_format::pte::{Builder, Chain, EValue, ExecutionPlan, NamedBlob};
use pteron_format::{ptd, pte};
use pteron_runtime::{
    BytesLoader, DataLoader, FileLoader, Limits, MmapLoader, NamedDataMap, Program, PtdDataMap, PteDataMap,
    Purpose, Unchanged,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The promise for the temporary files of these tests, which nothing else modifies.
fn unchanged() -> Unchanged {
    // SAFETY: no test modifies a file while it is mapped, except the one that truncates it, which then reads no byte of
    // the map.
    unsafe { Unchanged::promise() }
}

/// A program with one method and one named blob.
fn program(blob: Vec<u8>, segment_alignment: u64) -> Vec<u8> {
    let mut builder = Builder { segment_alignment, ..Builder::new() };
    builder.execution_plan.push(ExecutionPlan {
        name: "forward".to_owned(),
        values: vec![EValue::Int(0x0807_0605_0403_0201)],
        outputs: vec![0],
        chains: vec![Chain::default()],
        non_const_buffer_sizes: vec![0],
        ..ExecutionPlan::default()
    });
    builder.named_data.push(NamedBlob { key: "weights".to_owned(), blob: Blob::bytes(blob), alignment: 1 });
    let mut file = Vec::new();
    builder.finish().and_then(|draft| draft.write(&mut file)).expect("it is sound");
    file
}

/// Named data in which two keys have equal bytes.
fn data() -> Vec<u8> {
    let layout = |sizes: &[i32]| TensorLayout {
        scalar_type: 0,
        sizes: sizes.to_vec(),
        dim_order: (0..sizes.len() as u8).collect(),
    };
    let mut builder = ptd::Builder::new();
    builder.tensor("a", layout(&[2, 3]), Blob::bytes(vec![1, 2, 3, 4, 5, 6]));
    builder.tensor("same.as.a", layout(&[6]), Blob::bytes(vec![1, 2, 3, 4, 5, 6]));
    builder.tensor("large", layout(&[1 << 20]), Blob::bytes(vec![7; 1 << 20]));
    let mut file = Vec::new();
    builder.write(&mut file).expect("it is sound");
    file
}

fn load(file: Vec<u8>) -> pteron_runtime::Result<Program> {
    Program::load(Arc::new(BytesLoader::new(file)), &Limits::default())
}

fn load_data(file: Vec<u8>) -> pteron_runtime::Result<PtdDataMap> {
    PtdDataMap::load(Arc::new(BytesLoader::new(file)), &Limits::default())
}

fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(&format!(": {cause}"));
        next = cause.source();
    }
    text
}

/// A file that is removed when it is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("pteron-promise-{name}-{}", std::process::id()));
        std::fs::write(&path, bytes).expect("room for a file");
        Self(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The resident set size of this process in bytes. `None` if the system does not report it.
fn memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

#[test]
fn opening_a_program_reads_only_its_header_and_tables() {
    let file = Temporary::new("range", &program(vec![9; 1 << 20], 128));
    let loader: Arc<dyn DataLoader> = Arc::new(FileLoader::open(&file.0).unwrap());
    let opened = Program::load(Arc::clone(&loader), &Limits::default()).unwrap();
    assert_eq!(loader.bytes_loaded(), 64 + opened.header().program_size);
    assert!(loader.bytes_loaded() < 4096 && loader.size() > 1 << 20);
}

#[test]
fn freeing_a_segment_returns_its_memory() {
    const SIZE: usize = 256 << 20;
    let file = Temporary::new("freed", &program(vec![9; SIZE], 128));
    let opened = Program::open(&file.0).unwrap();
    let Some(before) = memory() else {
        return eprintln!("this system does not report memory use");
    };
    let range = opened.tables().named_data("weights").unwrap();
    let mut segment = opened.load_range(range, Purpose::Named).unwrap();
    assert_eq!((segment.len(), segment[SIZE - 1]), (SIZE, 9));
    let used = memory().unwrap();
    segment.free();
    let after = memory().unwrap();
    assert!(used > before + SIZE as u64 * 9 / 10, "{before} before, {used} with the segment");
    assert!(after < used - SIZE as u64 * 9 / 10, "{used} with the segment, {after} when it was freed");
}

#[test]
fn a_mapped_file_serves_ranges_until_it_is_truncated() {
    let file = Temporary::new("mapped", b"hello");
    let mapped = MmapLoader::open(&file.0, unchanged()).unwrap();
    assert_eq!((mapped.size(), &*mapped.load(1, 3, Purpose::Program).unwrap()), (5, &b"ell"[..]));
    assert!(mapped.load(3, 3, Purpose::Program).is_err());
    let mut target = [0; 2];
    mapped.load_into(3, &mut target, Purpose::Constant).unwrap();
    assert_eq!((&target, mapped.bytes_loaded()), (b"lo", 5));
    std::fs::File::options().write(true).open(&file.0).unwrap().set_len(2).unwrap();
    let e = mapped.load(3, 2, Purpose::Constant).unwrap_err();
    assert_eq!(e.to_string(), format!("cannot use the map of {}", file.0.display()));
    let why = std::error::Error::source(&e).unwrap().to_string();
    assert_eq!(why, "it had 5 bytes when it was mapped, and has 2 now");
}

#[test]
fn segments_are_mapped_at_any_alignment() {
    let blob: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
    for alignment in [1, 16, 128, 4096, 16384, 65536, 1 << 21] {
        let file = Temporary::new(&format!("aligned-{alignment}"), &program(blob.clone(), alignment));
        let mapped = MmapLoader::open(&file.0, unchanged()).unwrap();
        let opened = Program::load(Arc::new(mapped), &Limits::default()).unwrap();
        let range = opened.tables().named_data("weights").unwrap();
        assert!(range.start.is_multiple_of(alignment));
        let data = PteDataMap::new(opened).data("weights").unwrap();
        assert_eq!(*data, blob[..]);
        if alignment >= 16 {
            assert!(data.as_ptr().addr().is_multiple_of(alignment.min(4096) as usize));
        }
    }
}

#[test]
fn longer_headers_with_unknown_fields_are_accepted() {
    let mut file = program(vec![5; 40], 128);
    assert_eq!(file[12..16], 32u32.to_le_bytes());
    // Sixteen bytes of fields from a later version.
    file.splice(40..40, [0xee; 16]);
    let add = |file: &mut [u8], at: usize| {
        let mut number = [0; 8];
        number.copy_from_slice(&file[at..at + 8]);
        file[at..at + 8].copy_from_slice(&(u64::from_le_bytes(number) + 16).to_le_bytes());
    };
    file[12..16].copy_from_slice(&48u32.to_le_bytes());
    file[0] += 16;
    add(&mut file, 16);
    add(&mut file, 24);
    let opened = load(file).unwrap();
    assert_eq!(opened.header().extended.unwrap().length, 48);
    assert_eq!(*PteDataMap::new(opened).data("weights").unwrap(), [5; 40]);

    let mut file = data();
    file.splice(48..48, [0xee; 16]);
    file[12..16].copy_from_slice(&56u32.to_le_bytes());
    file[0] += 16;
    add(&mut file, 16);
    add(&mut file, 32);
    let opened = load_data(file).unwrap();
    assert_eq!((opened.header().length, &*opened.data("a").unwrap()), (56, &[1, 2, 3, 4, 5, 6][..]));
}

#[test]
fn unknown_versions_are_refused_and_both_versions_named() {
    for (at, digits, known, actual) in [(6, b"13", "`ET12`", "`ET13`"), (10, b"01", "`eh00`", "`eh01`")] {
        let mut file = program(vec![1], 128);
        file[at..at + 2].copy_from_slice(digits);
        let error = causes(&load(file).unwrap_err());
        assert!(error.contains(known) && error.contains(actual), "{error}");
    }
    for (at, digits, known, actual) in [(6, b"02", "`FT01`", "`FT02`"), (10, b"99", "`FH01`", "`FH99`")] {
        let mut file = data();
        file[at..at + 2].copy_from_slice(digits);
        let error = causes(&load_data(file).err().unwrap());
        assert!(error.contains(known) && error.contains(actual), "{error}");
    }
}

#[test]
fn entries_with_equal_bytes_share_one_segment() {
    let opened = load_data(data()).unwrap();
    let segment = |key: &str| opened.tables().get(key).unwrap().segment_index;
    assert_eq!(segment("a"), segment("same.as.a"));
    assert_eq!(opened.tables().segments.len(), 2);
    let sizes = |key: &str| opened.tensor_layout(key).unwrap().unwrap().sizes().to_vec();
    assert_eq!((sizes("a"), sizes("same.as.a")), (vec![2, 3], vec![6]));
    assert_eq!(*opened.data("a").unwrap(), *opened.data("same.as.a").unwrap());
}

#[test]
fn a_layout_is_available_without_reading_the_bytes() {
    let file = Temporary::new("layout", &data());
    let opened = PtdDataMap::open(&file.0).unwrap();
    assert_eq!(opened.tensor_layout("large").unwrap().unwrap().nbytes(), 1 << 20);
    assert_eq!(opened.loader().bytes_loaded(), 64 + opened.header().tables_size);
    assert!(opened.loader().bytes_loaded() < 4096);
}

#[test]
fn integers_are_little_endian() {
    let file = program(vec![1], 128);
    let header = pte::Header::parse(&file, file.len() as u64).unwrap();
    assert_eq!(file[8..12], *b"eh00");
    assert_eq!(file[12..16], [32, 0, 0, 0]);
    for (at, value) in [(16, header.program_size), (24, header.segment_base_offset), (32, 1)] {
        let bytes: Vec<u8> = (0..8).map(|byte| (value >> (8 * byte)) as u8).collect();
        assert_eq!(file[at..at + 8], bytes);
    }
    assert!(file.windows(8).any(|bytes| bytes == [1, 2, 3, 4, 5, 6, 7, 8]), "the int of the program");
}

/// No code of the format crate depends on the host's byte order.
#[test]
fn formats_convert_integers_explicitly() {
    let mut checked = 0;
    let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("../format/src")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("the sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a source");
            for word in ["_ne_bytes", "bytemuck", "transmute", "target_endian"] {
                assert!(!text.contains(word), "{} uses {word}", path.display());
            }
            checked += 1;
        }
    }
    assert!(checked > 20, "{checked}");
}
