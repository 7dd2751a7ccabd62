//! Sparse files of several gigabytes.

use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

/// A temporary file, deleted on drop.
pub(crate) struct Scratch {
    pub(crate) path: PathBuf,
    pub(crate) file: File,
}

impl Scratch {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
        Scratch { path, file }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A sink that skips large writes, which contain only zeros, and so leaves holes in the file.
pub(crate) struct Holes<'f>(pub(crate) &'f mut File);

impl Write for Holes<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() < 1 << 20 {
            return self.0.write(bytes);
        }
        self.0.seek(SeekFrom::Current(bytes.len() as i64))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}
