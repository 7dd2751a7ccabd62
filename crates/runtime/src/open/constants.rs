//! Constants of a method. They are read on first access and can be released and read again, so that unpacked weights
//! do not stay in memory beside their packed form.

use crate::convert::from_little_endian;
use crate::limits::memory_limit_error;
use crate::{DataLoader, FreeableBuffer, Program, Purpose, Result, one_line};
use pteron_engine::{Bytes, Constant, Derivation, Identity, SharedBytes, SourceId};
use pteron_operator::Budget;
use pteron_tensor::{AlignedBuffer, ScalarType};
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// The bytes of a constant, possibly read on first access.
///
/// Clones share the bytes that were read. To access the bytes without keeping them in memory, use [`Self::reopen`].
// A clone made before the first access has no bytes yet: it reads through the shared [`Deferred`].
#[derive(Clone, Default)]
pub struct ConstantBytes {
    bytes: OnceLock<FreeableBuffer>,
    deferred: Option<Arc<Deferred>>,
    /// The computation of which the bytes are the folded result, if there is one.
    derivation: Option<Arc<Derivation>>,
}

impl ConstantBytes {
    /// Bytes that are in memory and stay there.
    pub fn in_memory(bytes: FreeableBuffer) -> Self {
        Self { bytes: bytes.into(), deferred: None, derivation: None }
    }

    /// Bytes that were computed from other constants.
    pub(crate) fn from_folded(bytes: FreeableBuffer, derivation: Option<Derivation>) -> Self {
        // A new source: no other constant has these bytes.
        let bytes = bytes.with_source(SourceId::unique(), 0);
        Self { derivation: derivation.map(Arc::new), ..Self::in_memory(bytes) }
    }

    /// Bytes that are read on first access.
    pub(crate) fn from_deferred(source: Arc<Deferred>) -> Self {
        Self { bytes: OnceLock::new(), deferred: Some(source), derivation: None }
    }

    /// `len` bytes of a file from `offset` on, which are read on first access.
    pub fn of_file(file: Arc<dyn DataLoader>, offset: u64, len: usize) -> Self {
        Self::from_deferred(Arc::new(Deferred::new(
            InFile(file, offset),
            len,
            Elements::Blob,
            &Budget::default(),
        )))
    }

    /// The number of bytes. Does not read them.
    pub fn size(&self) -> usize {
        match &self.deferred {
            Some(deferred) => deferred.len,
            None => self.bytes.get().map_or(0, |bytes| bytes.len()),
        }
    }

    /// Whether the bytes can be read again after they were released.
    pub fn can_be_reread(&self) -> bool {
        self.deferred.is_some()
    }

    /// The same bytes at an address that is a multiple of `alignment`, copied if need be: see
    /// [`FreeableBuffer::aligned`]. Bytes that are read on access are aligned then ([`NamedDataMap::constant`](crate::NamedDataMap::constant)).
    ///
    /// # Errors
    /// There is not enough memory for a copy.
    pub fn aligned(
        mut self,
        alignment: usize,
        what: &'static str,
        memory: &Budget,
    ) -> pteron_operator::Result<Self> {
        if self.deferred.is_none()
            && let Some(bytes) = self.bytes.take()
        {
            self.bytes = bytes.aligned(alignment, what, memory)?.into();
        }
        Ok(self)
    }

    /// Reads the bytes now and keeps them.
    ///
    /// # Errors
    /// The bytes cannot be read, or the memory budget is exhausted.
    pub fn read(&self) -> Result<()> {
        if let Some(deferred) = &self.deferred
            && self.bytes.get().is_none()
        {
            let _ = self.bytes.set(deferred.read()?);
        }
        Ok(())
    }

    /// Releases the bytes. They are read again on the next access if they can be; otherwise they are gone.
    pub(crate) fn release(&mut self) {
        if let Some(bytes) = self.bytes.get() {
            bytes.release_pages();
        }
        self.bytes = match self.deferred {
            Some(_) => OnceLock::new(),
            None => FreeableBuffer::default().into(),
        };
    }

    /// Identifies the bytes by their source; `None` if the source is not known. Does not read the bytes.
    pub fn identity(&self) -> Option<Identity> {
        match &self.deferred {
            Some(deferred) => Some(deferred.identity),
            None => self.bytes.get()?.identity(),
        }
    }

    /// The bytes as a graph constant.
    pub fn to_graph_constant(&self) -> Constant {
        Constant::Shared(self.shared())
    }

    /// Another handle to the constant. If the bytes can be read again, dropping the handle releases the bytes that
    /// it has read.
    #[must_use]
    pub fn reopen(&self) -> Self {
        let bytes = if self.can_be_reread() { OnceLock::new() } else { self.bytes.clone() };
        Self { bytes, deferred: self.deferred.clone(), derivation: self.derivation.clone() }
    }

    /// A constant of a range of the bytes. `None` if the bytes are in memory, or cannot be read in parts.
    fn part(&self, range: Range<usize>) -> Option<Self> {
        match (&self.deferred, self.bytes.get()) {
            (Some(deferred), None) => Some(Self::from_deferred(Arc::new(deferred.part(range)?))),
            _ => None,
        }
    }

    /// A handle to the bytes for a graph, which reads and releases them on its own ([`Self::reopen`]).
    pub fn shared(&self) -> SharedBytes {
        Arc::new(InGraph(self.reopen()))
    }
}

impl Deref for ConstantBytes {
    type Target = [u8];

    /// The bytes, which are read if necessary; empty if they cannot be read: [`Self::read`] gives the error.
    fn deref(&self) -> &[u8] {
        match self.read() {
            Ok(()) => self.bytes.get().map_or(&[], |bytes| bytes),
            Err(_) => &[],
        }
    }
}

impl AsRef<[u8]> for ConstantBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

/// A graph's handle to a constant. The graph drops it as soon as the constant is packed; if the constant is mapped, its
/// pages are released then.
struct InGraph(ConstantBytes);

impl Bytes for InGraph {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn len(&self) -> usize {
        self.0.size()
    }

    fn problem(&self) -> Option<String> {
        self.0.read().err().map(|e| one_line(&e))
    }

    fn identity(&self) -> Option<Identity> {
        self.0.identity()
    }

    fn reopen(&self) -> Option<SharedBytes> {
        Some(self.0.shared())
    }

    fn part(&self, range: Range<usize>) -> Option<SharedBytes> {
        Some(Arc::new(InGraph(self.0.part(range)?)))
    }

    fn derivation(&self) -> Option<&Derivation> {
        self.0.derivation.as_deref()
    }
}

impl Drop for InGraph {
    fn drop(&mut self) {
        if let Some(bytes) = self.0.bytes.get() {
            bytes.release_pages();
        }
    }
}

/// The source of a constant, and a weak reference to its bytes while they are in memory.
pub(crate) struct Deferred {
    source: Box<dyn Source>,
    len: usize,
    identity: Identity,
    elements: Elements,
    /// The memory budget that the bytes are charged to.
    budget: Budget,
    present: Mutex<Weak<FreeableBuffer>>,
}

/// Where a constant is read from.
pub(crate) trait Source: Send + Sync {
    /// The source of the bytes and their offset in it, if that is known.
    fn origin(&self) -> Option<(SourceId, u64)>;

    /// Reads all the bytes. `len` is their number.
    fn read(&self, len: usize) -> Result<FreeableBuffer>;

    /// A source of `len` of the bytes from `start` on. `None` if the bytes cannot be read in parts.
    fn part(&self, start: u64, len: usize) -> Option<Box<dyn Source>>;
}

/// A range of a program file.
pub(crate) struct InProgram(pub(crate) Program, pub(crate) Range<u64>);

impl Source for InProgram {
    fn origin(&self) -> Option<(SourceId, u64)> {
        Some((self.0.source(), self.1.start))
    }

    fn read(&self, _: usize) -> Result<FreeableBuffer> {
        self.0.load_constant(self.1.clone())
    }

    fn part(&self, start: u64, len: usize) -> Option<Box<dyn Source>> {
        let start = self.1.start.checked_add(start)?;
        Some(Box::new(Self(self.0.clone(), start..start.checked_add(len as u64)?)))
    }
}

/// The bytes of any file from an offset on.
struct InFile(Arc<dyn DataLoader>, u64);

impl Source for InFile {
    fn origin(&self) -> Option<(SourceId, u64)> {
        self.0.source().map(|source| (source, self.1))
    }

    fn read(&self, len: usize) -> Result<FreeableBuffer> {
        self.0.load(self.1, len as u64, Purpose::Constant)
    }

    fn part(&self, start: u64, _: usize) -> Option<Box<dyn Source>> {
        Some(Box::new(Self(Arc::clone(&self.0), self.1.checked_add(start)?)))
    }
}

/// The element type of constant bytes.
#[derive(Clone, Copy)]
pub(crate) enum Elements {
    /// Elements of this scalar type.
    Of(ScalarType),
    /// Opaque bytes, kept in file byte order.
    Blob,
}

/// Minimum alignment of blobs in bytes.
const BLOB_ALIGNMENT: usize = 16;

impl Deferred {
    /// A constant of `len` bytes that has not been read.
    pub(crate) fn new(
        source: impl Source + 'static,
        len: usize,
        elements: Elements,
        budget: &Budget,
    ) -> Self {
        Self::from_source(Box::new(source), len, elements, budget)
    }

    fn from_source(source: Box<dyn Source>, len: usize, elements: Elements, budget: &Budget) -> Self {
        let (from, start) = source.origin().unwrap_or_else(|| (SourceId::unique(), 0));
        let identity = Identity::new(from, start, len);
        Self { source, len, identity, elements, budget: budget.clone(), present: Mutex::default() }
    }

    /// A constant of a range of the bytes. `None` if the bytes are in memory, or cannot be read in parts.
    fn part(&self, range: Range<usize>) -> Option<Self> {
        let is_within = range.start <= range.end && range.end <= self.len;
        if !is_within || lock(&self.present).strong_count() > 0 {
            return None;
        }
        let source = self.source.part(range.start as u64, range.len())?;
        Some(Self::from_source(source, range.len(), self.elements, &self.budget))
    }

    fn read(&self) -> Result<FreeableBuffer> {
        let mut present = lock(&self.present);
        let read = match present.upgrade() {
            Some(read) => read,
            None => {
                let read = Arc::new(self.read_source()?);
                *present = Arc::downgrade(&read);
                read
            }
        };
        Ok(FreeableBuffer::part_of(read, 0..self.len))
    }

    fn read_source(&self) -> Result<FreeableBuffer> {
        // Charged before the bytes are read, and refunded by `with_reservation` if they take no memory of their own.
        let reservation = self.budget.take("its constants", self.len).map_err(memory_limit_error)?;
        let bytes = self.source.read(self.len)?;
        if bytes.len() < self.len {
            return Err(
                pteron_tensor::Error::WrongByteCount { expected: self.len, found: bytes.len() }.into()
            );
        }
        Ok(align_elements(bytes, self.elements)?.with_reservation(reservation))
    }
}

/// Converts bytes to aligned elements in the host's byte order. Copies the bytes only if that is necessary.
pub(crate) fn align_elements(bytes: FreeableBuffer, elements: Elements) -> Result<FreeableBuffer> {
    let alignment = match elements {
        Elements::Of(dtype) => dtype.alignment(),
        Elements::Blob => BLOB_ALIGNMENT,
    };
    let foreign = cfg!(target_endian = "big") && matches!(elements, Elements::Of(_));
    if bytes.as_ptr().align_offset(alignment) == 0 && !foreign {
        return Ok(bytes);
    }
    let mut copy = AlignedBuffer::from_slice(&bytes)?;
    if let Elements::Of(dtype) = elements {
        from_little_endian(&mut copy, dtype);
    }
    let copy = FreeableBuffer::owned(copy);
    Ok(match bytes.origin() {
        Some((source, start)) => copy.with_source(source, start),
        None => copy,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
