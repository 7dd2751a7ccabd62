//! Weights larger than memory: nothing holds more than a chunk of them. The files are sparse.
//! This test binary is a separate process, so that its peak memory is that of these tests.

use pteron_format::container::Blob;
use pteron_format::ptd::{Builder, TensorLayout};
use pteron_runtime::{DataLoader, FileLoader, Limits, NamedDataMap, PtdDataMap};
use pteron_toolbox::file::Progress;
use pteron_toolbox::merge::{MergeOptions, merge};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::sync::Arc;

const GIB: u64 = 1 << 30;

/// Writes zeros as holes.
struct Sparse(File);

impl Write for Sparse {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match bytes.iter().all(|&byte| byte == 0) {
            true => _ = self.0.seek(SeekFrom::Current(bytes.len() as i64))?,
            false => self.0.write_all(bytes)?,
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// Counts the bytes written.
struct Count(u64);

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn zeros(len: u64) -> Blob<'static> {
    Blob::stream(len, move |out| {
        let piece = vec![0; 1 << 20];
        let mut left = len;
        while left > 0 {
            let now = left.min(piece.len() as u64);
            out.write_all(&piece[..now as usize])?;
            left -= now;
        }
        Ok(())
    })
}

/// A builder of `count` tensors of about `bytes` bytes in total, all of different lengths.
fn tensors(prefix: &str, count: u64, bytes: u64) -> Builder<'static> {
    let mut builder = Builder::new();
    for index in 0..count {
        let len = bytes / count - index - u64::from(prefix.as_bytes()[0]) * 64;
        let layout = TensorLayout { scalar_type: 0, sizes: vec![len as i32], dim_order: vec![0] };
        builder.tensor(format!("{prefix}.{index}"), layout, zeros(len));
    }
    builder
}

/// A sparse file, removed when it is dropped.
struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str, builder: Builder<'static>) -> Self {
        let path = std::env::temp_dir().join(format!("pteron-{name}-{}.ptd", std::process::id()));
        let file = File::create(&path).expect("a temporary file");
        let temporary = Self(path);
        let mut out = Sparse(file);
        let header = builder.write(&mut out).expect("it is written");
        out.0.set_len(header.file_len).expect("a sparse file");
        temporary
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The peak memory of this process in bytes; `None` if the system does not report it.
fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
}

fn assert_peak_below(bytes: u64) {
    match peak_memory() {
        Some(peak) => assert!(peak < bytes, "{peak} bytes of memory were used"),
        None => eprintln!("this system does not tell how much memory was used"),
    }
}

#[test]
fn a_layout_is_read_without_the_data() {
    let file = Temporary::new("layout", tensors("a", 8, 4 * GIB));
    let loader: Arc<dyn DataLoader> = Arc::new(FileLoader::open(&file.0).expect("it opens"));
    assert!(loader.size() > 4 * GIB - (1 << 20));
    let data = PtdDataMap::load(Arc::clone(&loader), &Limits::default()).expect("it is sound");
    let layout = data.tensor_layout("a.7").expect("it is there").expect("it is a tensor");
    assert!(layout.nbytes() as u64 > GIB / 4);
    assert!(loader.bytes_loaded() < 1_000_000, "{} bytes were read", loader.bytes_loaded());
}

#[test]
fn two_files_of_two_gigabytes_are_merged_in_little_memory() {
    let (one, other) =
        (Temporary::new("one", tensors("a", 4, 2 * GIB)), Temporary::new("other", tensors("b", 4, 2 * GIB)));
    let files = [&one, &other].map(|file| PtdDataMap::open(&file.0).expect("it is sound"));
    let merged =
        merge(&files, &MergeOptions { share: true, ..MergeOptions::default() }, &Progress::default())
            .expect("they agree");
    assert_eq!(merged.entries, 8);
    let mut count = Count(0);
    merged.data.write_to(&mut count).expect("it is written");
    assert_eq!(count.0, merged.bytes_after);
    assert!(count.0 > 4 * GIB - (1 << 20));
    assert_peak_below(300_000_000);
}

#[test]
fn twenty_gigabytes_are_written_in_constant_memory() {
    let mut count = Count(0);
    let header = tensors("a", 20, 20 * GIB).write(&mut count).expect("it is written");
    assert_eq!(count.0, header.file_len);
    assert!(count.0 > 20 * GIB - (1 << 20));
    assert_peak_below(300_000_000);
}
