//! Constants of a method: read when something looks at them, so that weights that are packed do not lie beside the
//! packed ones, and read again if they are asked for when they were let go.

use crate::limits::over_memory;
use crate::{FreeableBuffer, NamedDataMap, Program, Result, load::from_little_endian, one_line};
use graph::{Bytes, Constant, Derivation, Identity, SharedBytes, SourceId};
use operator::Budget;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use tensor::{AlignedBuffer, ScalarType};

/// The bytes of a constant, which may be read when somebody looks at them.
///
/// Clones share what was read. Who wants to look without keeping the bytes takes [`Self::again`].
// Clones that nobody has looked at read for themselves, from the same [`Deferred`].
#[derive(Clone, Default)]
pub struct ConstantBytes {
    bytes: OnceLock<FreeableBuffer>,
    deferred: Option<Arc<Deferred>>,
    /// How it was computed, if it was folded.
    derivation: Option<Arc<Derivation>>,
}

impl ConstantBytes {
    /// Bytes that are there and stay.
    pub fn here(bytes: FreeableBuffer) -> Self {
        Self { bytes: bytes.into(), deferred: None, derivation: None }
    }

    /// Bytes that were computed from other constants.
    pub(crate) fn folded(bytes: FreeableBuffer, derivation: Option<Derivation>) -> Self {
        // No other has its bytes.
        let bytes = bytes.of_source(SourceId::numbered(), 0);
        Self { derivation: derivation.map(Arc::new), ..Self::here(bytes) }
    }

    /// Bytes that are read when they are looked at.
    pub(crate) fn deferred(source: Arc<Deferred>) -> Self {
        Self { bytes: OnceLock::new(), deferred: Some(source), derivation: None }
    }

    /// The number of bytes, which are not read for it.
    pub fn size(&self) -> usize {
        match &self.deferred {
            Some(deferred) => deferred.len,
            None => self.bytes.get().map_or(0, |bytes| bytes.len()),
        }
    }

    /// Whether bytes that were let go can be had again.
    pub fn is_read_again(&self) -> bool {
        self.deferred.is_some()
    }

    /// The same bytes at a multiple of `alignment`, as [`FreeableBuffer::aligned`] has them; those that are read when they
    /// are looked at lie so already ([`NamedDataMap::constant`]).
    ///
    /// # Errors
    /// There is not enough memory for a copy.
    pub fn aligned(
        mut self,
        alignment: usize,
        what: &'static str,
        memory: &Budget,
    ) -> operator::Result<Self> {
        if self.deferred.is_none()
            && let Some(bytes) = self.bytes.take()
        {
            self.bytes = bytes.aligned(alignment, what, memory)?.into();
        }
        Ok(self)
    }

    /// Reads the bytes now, and keeps them.
    ///
    /// # Errors
    /// They cannot be read, or there is no room for them.
    pub fn read(&self) -> Result<()> {
        if let Some(deferred) = &self.deferred
            && self.bytes.get().is_none()
        {
            let _ = self.bytes.set(deferred.read()?);
        }
        Ok(())
    }

    /// Lets the bytes go, until somebody looks at them.
    pub(crate) fn release(&mut self) {
        if let Some(bytes) = self.bytes.get() {
            bytes.give_back_pages();
        }
        self.bytes = match self.deferred {
            Some(_) => OnceLock::new(),
            None => FreeableBuffer::default().into(),
        };
    }

    /// Which bytes they are, if that is known: they are not read for it.
    pub fn identity(&self) -> Option<Identity> {
        match &self.deferred {
            Some(deferred) => Some(deferred.identity),
            None => self.bytes.get()?.identity(),
        }
    }

    /// The constant for a graph.
    pub fn to_graph(&self) -> Constant {
        Constant::Shared(self.shared())
    }

    /// The same constant, whose bytes are let go with this handle if they can be read again.
    #[must_use]
    pub fn again(&self) -> Self {
        let bytes = if self.is_read_again() { OnceLock::new() } else { self.bytes.clone() };
        Self { bytes, deferred: self.deferred.clone(), derivation: self.derivation.clone() }
    }

    /// The bytes as a graph has them, which holds what it looks at itself.
    pub fn shared(&self) -> SharedBytes {
        Arc::new(InGraph(self.again()))
    }
}

impl Deref for ConstantBytes {
    type Target = [u8];

    /// None if they cannot be read: [`Self::read`] says why. Who looks at them then cannot go on, and does without.
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

/// A constant as a graph has it. The graph lets go of it as soon as it is packed: if it is mapped, its pages go then.
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

    fn again(&self) -> Option<SharedBytes> {
        Some(self.0.shared())
    }

    fn derivation(&self) -> Option<&Derivation> {
        self.0.derivation.as_deref()
    }
}

impl Drop for InGraph {
    fn drop(&mut self) {
        if let Some(bytes) = self.0.bytes.get() {
            bytes.give_back_pages();
        }
    }
}

/// Where a constant is read from, and its bytes for as long as somebody holds them.
pub(crate) struct Deferred {
    source: Source,
    len: usize,
    identity: Identity,
    elements: Elements,
    /// What the bytes are counted in.
    budget: Budget,
    present: Mutex<Weak<FreeableBuffer>>,
}

/// Where a constant is.
pub(crate) enum Source {
    /// Bytes of the program's file.
    Program(Program, Range<u64>),
    /// An entry of data outside of it.
    Named(Arc<dyn NamedDataMap>, String),
}

/// What bytes are the elements of.
#[derive(Clone, Copy)]
pub(crate) enum Elements {
    /// Elements of this type.
    Of(ScalarType),
    /// Of types that their user knows, in the order of the file.
    Blob,
}

/// To how many bytes blobs are aligned, at least.
const BLOB_ALIGNMENT: usize = 16;

impl Deferred {
    /// The constant of these elements.
    pub(crate) fn new(source: Source, len: usize, elements: Elements, budget: &Budget) -> Self {
        let known = match &source {
            Source::Program(program, range) => Some((program.source(), range.start)),
            Source::Named(data, key) => data.source(key),
        };
        let (from, start) = known.unwrap_or_else(|| (SourceId::numbered(), 0));
        let identity = Identity::new(from, start, len);
        Self { source, len, identity, elements, budget: budget.clone(), present: Mutex::default() }
    }

    fn read(&self) -> Result<FreeableBuffer> {
        let mut present = lock(&self.present);
        let read = match present.upgrade() {
            Some(read) => read,
            None => {
                let read = Arc::new(self.read_anew()?);
                *present = Arc::downgrade(&read);
                read
            }
        };
        Ok(FreeableBuffer::part(read, 0..self.len))
    }

    fn read_anew(&self) -> Result<FreeableBuffer> {
        // Taken before the bytes are there, and given back if they are none of this process's own.
        let held = self.budget.take("its constants", self.len).map_err(over_memory)?;
        let bytes = match &self.source {
            Source::Program(program, range) => program.load_constant(range.clone())?,
            Source::Named(data, key) => data.data(key)?,
        };
        if bytes.len() < self.len {
            return Err(tensor::Error::WrongByteCount { expected: self.len, found: bytes.len() }.into());
        }
        Ok(aligned(bytes, self.elements)?.holding(held))
    }
}

/// The elements of a constant as this machine has them. Bytes that are misaligned are copied.
pub(crate) fn aligned(bytes: FreeableBuffer, elements: Elements) -> Result<FreeableBuffer> {
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
    let copy = FreeableBuffer::read(copy);
    Ok(match bytes.origin() {
        Some((source, start)) => copy.of_source(source, start),
        None => copy,
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
