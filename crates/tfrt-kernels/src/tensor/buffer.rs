use host::{ErrorCode, Fault, Frame};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};

/// A range of memory that tensors share.
#[derive(Clone)]
pub(crate) struct Buffer {
    memory: Arc<Mutex<Vec<u8>>>,
    offset: usize,
    len: usize,
}

/// A lock guard of a buffer's bytes.
pub(crate) struct Bytes<'a> {
    memory: MutexGuard<'a, Vec<u8>>,
    offset: usize,
    len: usize,
}

impl std::ops::Deref for Bytes<'_> {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.memory[self.offset..][..self.len]
    }
}

impl std::ops::DerefMut for Bytes<'_> {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.offset..][..self.len]
    }
}

impl Buffer {
    /// Allocates zeroed memory, up to [`host::Limits::value_bytes`].
    pub(crate) fn new(frame: &Frame<'_>, len: u64) -> Result<Self, Fault> {
        let limit = frame.context().host().limits().value_bytes;
        let refuse = |why: String| Fault::new(ErrorCode::ResourceExhausted, why);
        if len > limit {
            return Err(refuse(format!("{len} bytes of memory: at most {limit} (Limits::value_bytes)")));
        }
        let mut memory = Vec::new();
        let size = usize::try_from(len).ok().filter(|&n| memory.try_reserve_exact(n).is_ok());
        let Some(size) = size else { return Err(refuse(format!("there are no {len} bytes of memory"))) };
        memory.resize(size, 0);
        Ok(Self::from_bytes(memory))
    }

    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Self {
        let len = bytes.len();
        Self { memory: Arc::new(Mutex::new(bytes)), offset: 0, len }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// A subrange of the same memory.
    pub(crate) fn slice(&self, offset: i64, len: i64) -> Option<Self> {
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self {
            memory: Arc::clone(&self.memory),
            offset: self.offset + offset,
            len,
        })
    }

    pub(crate) fn bytes(&self) -> Bytes<'_> {
        let memory = self.memory.lock().unwrap_or_else(|e| e.into_inner());
        Bytes { memory, offset: self.offset, len: self.len }
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = Arc::as_ptr(&self.memory).addr() + self.offset;
        write!(f, "HostBuffer<pointer={address:#x}, size={}>", self.len)
    }
}
