//! Reads files and streams: stdin, pipes, devices.

use crate::paths::is_stdin;
use crate::{Error, Result};
use pteron_runtime::{BytesLoader, DataLoader};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// The maximum number of bytes read from a stream, which is kept in memory as a whole.
/// The limit is lower if less memory is free.
pub const STREAM_BYTES: u64 = 4 << 30;

/// Bytes read at a time.
const CHUNK: usize = 1 << 20;

/// Whether a path is a stream, which can only be read sequentially: stdin (`-`), a pipe or a
/// device.
pub fn is_stream(path: &Path) -> bool {
    is_stdin(path) || fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

/// The name of a path in messages.
fn shown_name(path: &Path) -> String {
    if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() }
}

/// Reads a stream into a loader. If the first chunk is of no known format and has a zero byte, only that chunk is read.
pub(crate) fn open(path: &Path) -> Result<Arc<dyn DataLoader>> {
    let is_known = |start: &[u8]| pteron_format::sniff(start).is_some() || !start.contains(&0);
    Ok(Arc::new(BytesLoader::named(shown_name(path), read_up_to(path, max_bytes(), &is_known)?)))
}

/// Opens a file or stream for sequential reading.
pub(crate) fn reader(path: &Path) -> Result<Box<dyn Read>> {
    match is_stdin(path) {
        true => Ok(Box::new(io::stdin().lock())),
        false => Ok(Box::new(io::BufReader::new(File::open(path).map_err(Error::read(shown_name(path)))?))),
    }
}

/// Reads until the buffer is full or the file ends; returns the number of bytes read.
pub(crate) fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read(&mut buffer[read..]) {
            Ok(0) => break,
            Ok(n) => read += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(read)
}

/// Reads a whole file or stream.
///
/// # Errors
/// If it cannot be read, or is larger than [`STREAM_BYTES`] or the free memory.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    read_up_to(path, max_bytes(), &|_| true)
}

/// The maximum number of bytes to read: [`STREAM_BYTES`], or the free memory if that is less.
fn max_bytes() -> u64 {
    STREAM_BYTES.min(pteron_runtime::free_memory().unwrap_or(u64::MAX))
}

/// Reads the text of a file or stream. Fails if it is not UTF-8.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|_| Error::bad_file(shown_name(path), "it is no text"))
}

fn read_up_to(path: &Path, most: u64, is_known: &dyn Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
    let fail = Error::read(shown_name(path));
    let read = match is_stdin(path) {
        true => read_all(&mut io::stdin().lock(), most, is_known),
        false => File::open(path).and_then(|mut file| read_all(&mut file, most, is_known)),
    };
    match read.map_err(fail)? {
        Some(bytes) => Ok(bytes),
        None => Err(Error::bad_file(
            shown_name(path),
            format!(
                "it goes on after {most} bytes, which is more than may be read into memory; \
                 a program or its weights may be larger in a file of their own"
            ),
        )),
    }
}

/// Reads to the end; `None` if there are more than `most` bytes. If `is_known` rejects the first chunk, returns only that
/// chunk.
fn read_all(
    reader: &mut dyn Read,
    most: u64,
    is_known: &dyn Fn(&[u8]) -> bool,
) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    loop {
        bytes.try_reserve(CHUNK)?;
        let read = reader.take(CHUNK as u64).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > most {
            return Ok(None);
        }
        if read == 0 || (bytes.len() == read && !is_known(&bytes)) {
            return Ok(Some(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_read_up_to_a_limit() {
        let any = |_: &[u8]| true;
        assert_eq!(read_all(&mut &b"hello"[..], 5, &any).unwrap().unwrap(), b"hello");
        assert!(read_all(&mut &b"hello"[..], 4, &any).unwrap().is_none());
        assert!(read_all(&mut io::repeat(0), 10 << 20, &any).unwrap().is_none());
        let none = |_: &[u8]| false;
        assert_eq!(read_all(&mut io::repeat(0), 10 << 20, &none).unwrap().unwrap().len(), CHUNK);
    }

    #[test]
    fn files_are_distinguished_from_streams() {
        assert!(is_stream(Path::new("-")));
        assert!(!is_stream(&std::env::temp_dir()));
        assert!(!is_stream(Path::new("no/such/file")));
        assert!(!is_stream(&std::env::current_exe().unwrap()));
        let e = read(Path::new("no/such/file")).unwrap_err().to_string();
        assert_eq!(e, "cannot read no/such/file");
        if cfg!(unix) {
            assert!(is_stream(Path::new("/dev/null")));
            let e = read_up_to(Path::new("/dev/zero"), 1 << 21, &|_| true).unwrap_err().to_string();
            assert!(e.starts_with("/dev/zero: it goes on after 2097152 bytes"), "{e}");
        }
    }
}
