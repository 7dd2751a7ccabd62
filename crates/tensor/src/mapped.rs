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
