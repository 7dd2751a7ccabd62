//! The bytes of a program's file, and ranges of them with shared ownership. The `unsafe` code here: the opened file
//! borrows the bytes that it is stored with.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// The bytes of a file, with shared ownership: a buffer, a memory map, or a static slice.
pub type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// An opened file, and the bytes that it borrows.
pub(crate) struct ProgramFile {
    /// Borrows from `_owner` in spite of `'static`: [`Self::file`] shortens the lifetime to that of `self`.
    file: pteron_bef::File<'static>,
    _owner: Bytes,
}

impl ProgramFile {
    /// Opens a file without verifying it.
    pub(crate) fn open(owner: &Bytes) -> pteron_bef::Result<Self> {
        let bytes: &[u8] = (**owner).as_ref();
        // SAFETY: the slice borrows from what `owner` points to, which its reference count keeps in place, alive and
        // unchanged as long as `_owner`: it can be borrowed mutably only by the last owner. `file` is not used after
        // `_owner`, and both are private to this type.
        let bytes: &'static [u8] = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
        Ok(Self { file: pteron_bef::File::open(bytes)?, _owner: Arc::clone(owner) })
    }

    pub(crate) fn file(&self) -> &pteron_bef::File<'_> {
        &self.file
    }

    /// The file with the lifetime `'static`, which is longer than its real one.
    ///
    /// What is read from it must be stored beside `self`, and given out only for as long as `self` lives.
    pub(crate) fn static_file(&self) -> &pteron_bef::File<'static> {
        &self.file
    }

    /// The size of the file in bytes.
    pub(crate) fn len(&self) -> u64 {
        self.file.bytes().len() as u64
    }

    /// The position of `bytes`, a slice of the file's memory, in the file; `None` if it is not such a slice.
    fn range_of(&self, bytes: &[u8]) -> Option<Range<usize>> {
        let start = bytes.as_ptr().addr().checked_sub(self.file.bytes().as_ptr().addr())?;
        let range = start..start.checked_add(bytes.len())?;
        self.file.bytes().get(range.clone()).map(|_| range)
    }
}

/// A range of a program's file, which keeps the file open, for attributes that outlive the kernel call that read them.
#[derive(Clone)]
pub struct ProgramBytes {
    file: Arc<ProgramFile>,
    range: Range<usize>,
}

impl ProgramBytes {
    /// The range of `bytes`, a slice of the file's memory; `None` if it is not such a slice.
    pub(crate) fn new(file: &Arc<ProgramFile>, bytes: &[u8]) -> Option<Self> {
        let range = file.range_of(bytes)?;
        Some(Self { file: Arc::clone(file), range })
    }
}

impl Deref for ProgramBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.file.file().bytes().get(self.range.clone()).unwrap_or(&[])
    }
}

impl AsRef<[u8]> for ProgramBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for ProgramBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProgramBytes({:?})", self.range)
    }
}
