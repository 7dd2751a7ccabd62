//! Files, and what is no file but can be read: stdin, pipes, devices.

use crate::paths::is_stdin;
use crate::{Error, Result};
use runtime::{BytesLoader, DataLoader};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// Bytes of a stream that are read at most: it has to be kept in memory as a whole.
/// What is more than the memory that is free is not read, either.
pub const STREAM_BYTES: u64 = 4 << 30;

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// Whether a path leads to something that can only be read from front to back: stdin (`-`), a pipe or a
/// device.
pub fn is_stream(path: &Path) -> bool {
    is_stdin(path) || fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir())
}

/// What to call a path in messages.
fn name(path: &Path) -> String {
    if is_stdin(path) { "stdin".to_owned() } else { path.display().to_string() }
}

/// All of a stream, to load from; the beginning of one that is neither text nor of a format that is known.
pub(crate) fn open(path: &Path) -> Result<Arc<dyn DataLoader>> {
    let is_known = |start: &[u8]| format::sniff(start).is_some() || !start.contains(&0);
    Ok(Arc::new(BytesLoader::named(name(path), read_up_to(path, most(), &is_known)?)))
}

/// A file or a stream, to be read from its start.
pub(crate) fn reader(path: &Path) -> Result<Box<dyn Read>> {
    match is_stdin(path) {
        true => Ok(Box::new(io::stdin().lock())),
        false => Ok(Box::new(io::BufReader::new(File::open(path).map_err(Error::read(name(path)))?))),
    }
}

/// Reads until a buffer is full or the file ends; gives the number of bytes read.
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

/// All bytes of a file or a stream, of which [`STREAM_BYTES`] are allowed.
pub fn read(path: &Path) -> Result<Vec<u8>> {
    read_up_to(path, most(), &|_| true)
}

/// Bytes of a stream that there is memory for.
fn most() -> u64 {
    STREAM_BYTES.min(runtime::free_memory().unwrap_or(u64::MAX))
}

/// The text of a file or a stream.
pub fn read_text(path: &Path) -> Result<String> {
    String::from_utf8(read(path)?).map_err(|_| Error::bad_file(name(path), "it is no text"))
}

fn read_up_to(path: &Path, most: u64, is_known: &dyn Fn(&[u8]) -> bool) -> Result<Vec<u8>> {
    let fail = Error::read(name(path));
    let read = match is_stdin(path) {
        true => read_all(&mut io::stdin().lock(), most, is_known),
        false => File::open(path).and_then(|mut file| read_all(&mut file, most, is_known)),
    };
    match read.map_err(fail)? {
        Some(bytes) => Ok(bytes),
        None => Err(Error::bad_file(
            name(path),
            format!(
                "it goes on after {most} bytes, which is more than may be read into memory; \
                 a program or its weights may be larger in a file of their own"
            ),
        )),
    }
}

/// All that a reader gives, or nothing if that is more than `most` bytes. One whose first piece `is_known` refuses
/// is not read on.
fn read_all(
    reader: &mut dyn Read,
    most: u64,
    is_known: &dyn Fn(&[u8]) -> bool,
) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    loop {
        bytes.try_reserve(PIECE)?;
        let read = reader.take(PIECE as u64).read_to_end(&mut bytes)?;
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
    fn streams_have_a_bound() {
        let any = |_: &[u8]| true;
        assert_eq!(read_all(&mut &b"hello"[..], 5, &any).unwrap().unwrap(), b"hello");
        assert!(read_all(&mut &b"hello"[..], 4, &any).unwrap().is_none());
        assert!(read_all(&mut io::repeat(0), 10 << 20, &any).unwrap().is_none());
        let none = |_: &[u8]| false;
        assert_eq!(read_all(&mut io::repeat(0), 10 << 20, &none).unwrap().unwrap().len(), PIECE);
    }

    #[test]
    fn files_are_no_streams() {
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
