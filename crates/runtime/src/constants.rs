//! Constants of a method: read when something looks at them, so that weights that are packed do not lie beside the
//! packed ones, and read again if they are asked for when they were let go.

use crate::limits::over_memory;
use crate::{FreeableBuffer, NamedDataMap, Program, Result, load::from_little_endian};
use graph::{Bytes, Constant, Derivation, SharedBytes};
use operator::Budget;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use tensor::{AlignedBuffer, TensorMeta};

/// A constant. Clones that nobody has looked at read for themselves, from the same [`Deferred`].
#[derive(Clone, Default)]
pub(crate) struct ConstantBytes {
    bytes: OnceLock<FreeableBuffer>,
    deferred: Option<Arc<Deferred>>,
    /// How it was computed, if it was folded.
    derivation: Option<Arc<Derivation>>,
}

impl ConstantBytes {
    /// Bytes that are there and stay.
    pub(crate) fn here(bytes: FreeableBuffer) -> Self {
        Self { bytes: bytes.into(), deferred: None, derivation: None }
    }

    /// Bytes that were computed from other constants.
    pub(crate) fn folded(bytes: FreeableBuffer, derivation: Option<Derivation>) -> Self {
        Self { derivation: derivation.map(Arc::new), ..Self::here(bytes) }
    }

    /// Bytes that are read when they are looked at.
    pub(crate) fn deferred(source: Arc<Deferred>) -> Self {
        Self { bytes: OnceLock::new(), deferred: Some(source), derivation: None }
    }

    /// The number of bytes, which are not read for it.
    pub(crate) fn size(&self) -> usize {
        match &self.deferred {
            Some(deferred) => deferred.len,
            None => self.bytes.get().map_or(0, |bytes| bytes.len()),
        }
    }

    /// Whether bytes that were let go can be had again.
    pub(crate) fn is_read_again(&self) -> bool {
        self.deferred.is_some()
    }

    /// Reads the bytes now.
    pub(crate) fn read(&self) -> Result<()> {
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

    /// The constant for a graph, which holds what it looks at itself.
    pub(crate) fn to_graph(&self) -> Constant {
        Constant::Shared(self.shared())
    }

    fn shared(&self) -> SharedBytes {
        let bytes = if self.is_read_again() { OnceLock::new() } else { self.bytes.clone() };
        let (deferred, derivation) = (self.deferred.clone(), self.derivation.clone());
        Arc::new(InGraph(Self { bytes, deferred, derivation }))
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

/// A constant as a graph has it. The graph lets go of it as soon as it is packed: if it is mapped, its pages go then.
struct InGraph(ConstantBytes);

impl Bytes for InGraph {
    fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn len(&self) -> usize {
        self.0.size()
    }

    /// What is read again may lie where another constant has lain: the deferred one stays where it is.
    fn identity(&self) -> Option<(usize, usize)> {
        Some(match &self.0.deferred {
            Some(deferred) => (Arc::as_ptr(deferred).addr(), deferred.len),
            None => (self.0.as_ptr().addr(), self.0.size()),
        })
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
    meta: TensorMeta,
    len: usize,
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

impl Deferred {
    /// The constant of this type and shape.
    pub(crate) fn new(source: Source, meta: &TensorMeta, budget: &Budget) -> Self {
        let (meta, len, budget) = (meta.clone(), meta.nbytes(), budget.clone());
        Self { source, meta, len, budget, present: Mutex::default() }
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
        Ok(FreeableBuffer::shared(read, 0..self.len))
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
        Ok(aligned(bytes, &self.meta)?.holding(held))
    }
}

/// The elements of a constant as this machine has them. Bytes that are misaligned for their type are copied.
pub(crate) fn aligned(bytes: FreeableBuffer, meta: &TensorMeta) -> Result<FreeableBuffer> {
    let misaligned = bytes.as_ptr().align_offset(meta.dtype().alignment()) != 0;
    if !misaligned && !cfg!(target_endian = "big") {
        return Ok(bytes);
    }
    let mut copy = AlignedBuffer::from_slice(&bytes)?;
    from_little_endian(&mut copy, meta);
    Ok(FreeableBuffer::read(copy))
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
