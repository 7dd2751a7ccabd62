//! Files as memory. One of the places of this crate that need `unsafe`.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;

/// The promise that files which are mapped stay as they are.
///
/// A map shows the file as it is at the moment: bytes that somebody writes change under references to them, and
/// pages that somebody cuts off end the process with a signal (`SIGBUS`). Nothing that a map can be asked for
/// prevents either, so whoever maps a file promises that it does not happen. Files that others may write to are
/// read instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unchanged(());

impl Unchanged {
    /// Makes the promise.
    ///
    /// # Safety
    ///
    /// Until every map that was made under this promise is gone, nobody writes to a file that was mapped, or makes
    /// it shorter: neither this process nor another. A file that is replaced as a whole, by renaming another to
    /// its name, does not change.
    pub const unsafe fn promise() -> Self {
        Self(())
    }
}

/// A whole file, mapped to read.
pub struct MappedFile(memmap2::Mmap);

impl MappedFile {
    /// Maps `file`, which stays as it is for as long as the map lives.
    pub fn new(file: &File, _: Unchanged) -> io::Result<Self> {
        // SAFETY: the map is private to this value and only ever read, and `Unchanged` says that the file does
        // not change under it.
        unsafe { memmap2::Mmap::map(file) }.map(Self)
    }
}

impl MappedFile {
    /// Lets go of the pages of a range: they take no memory of this process until they are looked at again. What the
    /// system cannot let go stays.
    pub fn give_back(&self, range: std::ops::Range<usize>) {
        #[cfg(unix)]
        {
            let range = range.start.min(self.0.len())..range.end.min(self.0.len());
            if range.is_empty() {
                return;
            }
            // SAFETY: the map is of a file and is never written to, so pages that are dropped hold nothing that the
            // file does not. Who looks at them again finds the file's bytes, which `Unchanged` says are the same.
            let given = unsafe {
                self.0.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            let _ = given;
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

    #[cfg_attr(miri, ignore = "Miri maps no files")]
    #[test]
    fn pages_that_were_given_back_are_found_again() {
        let path = std::env::temp_dir().join(format!("pteron-mapped-{}", std::process::id()));
        let bytes: Vec<u8> = (0..40_000u32).map(|i| (i % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        // SAFETY: the file is this test's own, and is not written to again.
        let map = MappedFile::new(&File::open(&path).unwrap(), unsafe { Unchanged::promise() }).unwrap();
        for range in [0..40_000, 5_000..5_001, 39_999..90_000, 7..7, 50_000..60_000] {
            assert_eq!(*map, bytes[..]);
            map.give_back(range);
        }
        assert_eq!(*map, bytes[..]);
        std::fs::remove_file(path).unwrap();
    }
}
