//! Files as memory. One of the places of this crate that need `unsafe`.

use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Deref;

/// A whole file, mapped to read.
///
/// The bytes are those of the file for as long as nobody changes it: a program that writes to a
/// file while another has it mapped breaks that other, as with every memory map. A file cut short
/// under a map ends the process with a signal. Readers that cannot trust their files' owners read
/// them instead.
pub struct MappedFile(memmap2::Mmap);

impl MappedFile {
    /// Maps `file`.
    pub fn new(file: &File) -> io::Result<Self> {
        // SAFETY: the map is private to this value and only ever read. That the file is not changed
        // while it is mapped is the documented condition of this type.
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
