//! Memory-mapped files. This module needs `unsafe`.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;

/// A promise that mapped files do not change.
///
/// A memory map always shows the current contents of the file: if the file is written, bytes change under references to
/// them; if it is truncated, reading the lost pages kills the process with a signal (`SIGBUS`). No mapping option
/// prevents either, so whoever maps a file must promise that it does not happen. Read a file instead if others may
/// write to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unchanged(());

impl Unchanged {
    /// Makes the promise.
    ///
    /// # Safety
    ///
    /// Until every map created with this promise is dropped, neither this process nor another writes to a mapped file
    /// or truncates it. Replacing a file as a whole, by renaming another file to its name, is allowed: the mapped file
    /// does not change.
    pub const unsafe fn promise() -> Self {
        Self(())
    }
}

/// A whole file, mapped read-only.
pub struct MappedFile(memmap2::Mmap);

impl MappedFile {
    /// Maps `file`, which must not change while the map lives.
    pub fn new(file: &File, _: Unchanged) -> io::Result<Self> {
        // SAFETY: the map is owned by this value and only ever read, and `Unchanged` promises that the file does
        // not change while it is mapped.
        unsafe { memmap2::Mmap::map(file) }.map(Self)
    }
}

impl MappedFile {
    /// Releases the pages of a range (`MADV_DONTNEED`): they take no memory of this process until they are read again.
    /// If the system cannot release them, they stay.
    pub fn give_back(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        {
            let range = range.start.min(self.0.len())..range.end.min(self.0.len());
            if range.is_empty() {
                return;
            }
            // SAFETY: the map is backed by a file and never written to, so dropped pages hold nothing that the
            // file does not. Reading them again gives the file's bytes, which `Unchanged` promises are the same.
            let advice = unsafe {
                self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            let _ = advice;
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

impl Deref for MappedFile {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for MappedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MappedFile({} bytes)", self.0.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg_attr(miri, ignore = "Miri cannot map files")]
    #[test]
    fn released_pages_are_read_again_from_the_file() {
        let path = std::env::temp_dir().join(format!("pteron-mapped-{}", std::process::id()));
        let bytes: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        // SAFETY: only this test uses the file, and it does not write to it again.
        let map = MappedFile::new(&File::open(&path).unwrap(), unsafe { Unchanged::promise() }).unwrap();
        for range in [0..40_000, 5_000..5_001, 39_999..90_000, 7..7, 50_000..60_000] {
            assert_eq!(*map, bytes[..]);
            map.give_back(range);
        }
        assert_eq!(*map, bytes[..]);
        std::fs::remove_file(path).unwrap();
    }
}
