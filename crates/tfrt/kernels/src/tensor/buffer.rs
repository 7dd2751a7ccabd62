use pteron_host::{Charge, ErrorCode, Fault, Frame, ProgramBytes};
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

/// A range of memory that tensors share. It is charged to the request, unless it lies in the program's file.
#[derive(Clone)]
pub(crate) struct Buffer {
    /// The current contents. A write replaces them if [`Bytes`] still refer to them.
    memory: Arc<Mutex<Arc<Memory>>>,
    offset: usize,
    len: usize,
}

enum Memory {
    Own {
        bytes: Vec<u8>,
        _charge: Charge,
    },
    /// The bytes of an attribute, borrowed from the program's file.
    Program(ProgramBytes),
}

impl Deref for Memory {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Own { bytes, .. } => bytes,
            Self::Program(bytes) => bytes,
        }
    }
}

/// The bytes of a buffer as they are now; later writes do not change them.
pub(crate) struct Bytes {
    memory: Arc<Memory>,
    offset: usize,
    len: usize,
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.offset..][..self.len]
    }
}

fn resource_exhausted(why: String) -> Fault {
    Fault::new(ErrorCode::ResourceExhausted, why)
}

/// Charges `len` bytes to the request and reserves a vector of that capacity.
fn reserve(frame: &Frame<'_>, len: u64) -> Result<(Vec<u8>, Charge), Fault> {
    let limit = frame.context().host().limits().value_bytes;
    if len > limit {
        return Err(resource_exhausted(format!(
            "{len} bytes of memory: at most {limit}, the limit of a value (Limits::value_bytes)"
        )));
    }
    let charge = frame.context().charge(len)?;
    let mut memory = Vec::new();
    match usize::try_from(len).ok().filter(|&n| memory.try_reserve_exact(n).is_ok()) {
        Some(_) => Ok((memory, charge)),
        None => Err(resource_exhausted(format!("there are no {len} bytes of memory"))),
    }
}

impl Buffer {
    /// Allocates zeroed memory, up to [`pteron_host::Limits::value_bytes`] and [`pteron_host::Limits::memory`].
    pub(crate) fn new(frame: &Frame<'_>, len: u64) -> Result<Self, Fault> {
        let (mut bytes, _charge) = reserve(frame, len)?;
        bytes.resize(len as usize, 0);
        Ok(Self::from_memory(Memory::Own { bytes, _charge }))
    }

    /// A buffer of an attribute's bytes: borrowed if they lie in the program's file, copied otherwise.
    pub(crate) fn from_attribute_bytes(frame: &Frame<'_>, bytes: &[u8]) -> Result<Self, Fault> {
        if let Some(bytes) = frame.program_bytes(bytes) {
            return Ok(Self::from_memory(Memory::Program(bytes)));
        }
        let (mut copy, _charge) = reserve(frame, bytes.len() as u64)?;
        copy.extend_from_slice(bytes);
        Ok(Self::from_memory(Memory::Own { bytes: copy, _charge }))
    }

    fn from_memory(memory: Memory) -> Self {
        let len = memory.len();
        Self { memory: Arc::new(Mutex::new(Arc::new(memory))), offset: 0, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The part of the buffer from `offset` on with `len` bytes, which shares the memory; `None` if it is out of
    /// bounds.
    pub(crate) fn slice(&self, offset: i64, len: i64) -> Option<Self> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self {
            memory: Arc::clone(&self.memory),
            offset: self.offset + offset,
            len,
        })
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Memory>> {
        self.memory.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes { memory: Arc::clone(&self.lock()), offset: self.offset, len: self.len }
    }

    /// Changes the bytes. Memory that a [`Bytes`] refers to, or that lies in the program's file, is copied first.
    pub(crate) fn write(&self, frame: &Frame<'_>, change: impl FnOnce(&mut [u8])) -> Result<(), Fault> {
        let mut memory = self.lock();
        change(&mut own_bytes(frame, &mut memory)?[self.offset..][..self.len]);
        Ok(())
    }
}

/// The bytes of memory that nothing else refers to; other memory is copied first.
fn own_bytes<'m>(frame: &Frame<'_>, memory: &'m mut Arc<Memory>) -> Result<&'m mut [u8], Fault> {
    if !matches!(Arc::get_mut(memory), Some(Memory::Own { .. })) {
        let (mut bytes, _charge) = reserve(frame, memory.len() as u64)?;
        bytes.extend_from_slice(memory);
        *memory = Arc::new(Memory::Own { bytes, _charge });
    }
    match Arc::get_mut(memory) {
        Some(Memory::Own { bytes, .. }) => Ok(bytes),
        _ => unreachable!("memory that was just made is shared by nobody"),
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostBuffer<pointer={:p}, size={}>", self.bytes().as_ptr(), self.len)
    }
}
