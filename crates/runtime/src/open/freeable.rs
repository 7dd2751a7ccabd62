use pteron_engine::{Identity, SourceId};
use pteron_operator::{Budget, Reservation};
use pteron_tensor::{AlignedBuffer, MappedFile};
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes loaded by a [`DataLoader`](crate::DataLoader). Clones share the bytes, which are released when the last clone
/// is dropped or freed.
#[derive(Clone, Default)]
pub struct FreeableBuffer {
    owner: Owner,
    range: Range<usize>,
    /// The source of the bytes and their offset in it, if known.
    origin: Option<(SourceId, u64)>,
}

#[derive(Clone, Default)]
enum Owner {
    #[default]
    Freed,
    Read(Arc<AlignedBuffer>),
    Mapped(Arc<MappedFile>),
    Shared(Arc<dyn AsRef<[u8]> + Send + Sync>),
    Part(Arc<FreeableBuffer>),
}

impl FreeableBuffer {
    /// A buffer that owns bytes in memory.
    pub fn owned(buffer: AlignedBuffer) -> Self {
        let range = 0..buffer.len();
        Self { owner: Owner::Read(Arc::new(buffer)), range, origin: None }
    }

    /// A buffer with a copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> crate::Result<Self> {
        Ok(Self::owned(AlignedBuffer::from_slice(bytes)?))
    }

    /// A range of a mapped file. The range must be in bounds.
    pub(crate) fn of_mapped(file: Arc<MappedFile>, range: Range<usize>) -> Self {
        Self { owner: Owner::Mapped(file), range, origin: None }
    }

    /// A range of bytes with shared ownership. The range must be in bounds.
    pub(crate) fn of_shared(bytes: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Self {
        Self { owner: Owner::Shared(bytes), range, origin: None }
    }

    /// A range of a buffer. The entire buffer stays in memory, and charged to its budget, while the range is used.
    pub(crate) fn part_of(parent: Arc<FreeableBuffer>, range: Range<usize>) -> Self {
        let origin = parent.origin_from(range.start);
        Self { owner: Owner::Part(parent), range, origin }
    }

    /// Records that these are the bytes at offset `start` of `source`. Data derived from them can then be shared with
    /// all users of the same source.
    #[must_use]
    pub fn with_source(self, source: SourceId, start: u64) -> Self {
        Self { origin: Some((source, start)), ..self }
    }

    /// Identifies the bytes by source, offset and length, if the source is known.
    pub fn identity(&self) -> Option<Identity> {
        self.origin.map(|(source, start)| Identity::new(source, start, self.len()))
    }

    /// The source of the bytes and their offset in it, if known.
    pub(crate) fn origin(&self) -> Option<(SourceId, u64)> {
        self.origin
    }

    fn origin_from(&self, start: usize) -> Option<(SourceId, u64)> {
        self.origin.map(|(source, at)| (source, at.saturating_add(start as u64)))
    }

    /// A part of these bytes, without a copy. `None` if `range` is out of bounds.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        self.get(range.clone())?;
        let start = self.range.start;
        let origin = self.origin_from(range.start);
        Some(Self { owner: self.owner.clone(), range: start + range.start..start + range.end, origin })
    }

    /// Ties a budget reservation to the bytes: it is released with the last clone. For bytes that take no memory of
    /// their own, it is released at once.
    pub fn with_reservation(self, reservation: Reservation) -> Self {
        if !self.takes_memory() {
            return self;
        }
        let (range, origin) = (0..self.len(), self.origin);
        Self {
            origin,
            ..Self::of_shared(Arc::new(Counted { bytes: self, _reservation: reservation }), range)
        }
    }

    /// The same bytes at an address that is a multiple of `alignment`, a power of two. If they are misaligned, this makes a
    /// copy, charged to `memory` while it lives; `what` names its purpose in the error message.
    ///
    /// # Errors
    /// There is not enough memory for the copy.
    pub fn aligned(
        self,
        alignment: usize,
        what: &'static str,
        memory: &Budget,
    ) -> pteron_operator::Result<Self> {
        if self.as_ptr().addr().is_multiple_of(alignment) || self.is_empty() {
            return Ok(self);
        }
        let reservation = memory.take(what, self.len())?;
        let padded = self.len().saturating_add(alignment.saturating_sub(pteron_tensor::ALIGNMENT));
        let mut buffer = AlignedBuffer::zeroed(padded)?;
        let start = buffer.as_ptr().align_offset(alignment);
        let range = start..start.saturating_add(self.len());
        let place = buffer.get_mut(range.clone()).ok_or(pteron_tensor::Error::OutOfMemory(padded))?;
        place.copy_from_slice(&self);
        let copy =
            Self { owner: Owner::Read(Arc::new(buffer)), range, origin: None }.with_reservation(reservation);
        Ok(Self { origin: self.origin, ..copy })
    }

    /// Releases the pages of a memory map that hold these bytes; the next access reads them again. Does nothing for
    /// bytes that are not mapped.
    pub(crate) fn release_pages(&self) {
        self.release_pages_of(0..self.len());
    }

    fn release_pages_of(&self, part: Range<usize>) {
        let part = self.range.start + part.start..self.range.start + part.end;
        match &self.owner {
            Owner::Mapped(file) => file.give_back(part),
            Owner::Part(parent) => parent.release_pages_of(part),
            Owner::Freed | Owner::Read(_) | Owner::Shared(_) => {}
        }
    }

    /// Whether the bytes take memory of their own. `false` for mapped bytes and for bytes that another owner keeps in
    /// memory anyway.
    pub(crate) fn takes_memory(&self) -> bool {
        match &self.owner {
            Owner::Read(_) => true,
            Owner::Part(parent) => parent.takes_memory(),
            Owner::Freed | Owner::Mapped(_) | Owner::Shared(_) => false,
        }
    }

    /// Releases the bytes. The buffer is empty afterwards.
    pub fn free(&mut self) {
        *self = Self::default();
    }
}

/// Bytes, and the reservation by which they are charged to a budget.
struct Counted {
    bytes: FreeableBuffer,
    _reservation: Reservation,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Deref for FreeableBuffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let all: &[u8] = match &self.owner {
            Owner::Freed => &[],
            Owner::Read(b) => b,
            Owner::Mapped(m) => m,
            Owner::Shared(s) => (**s).as_ref(),
            Owner::Part(parent) => parent,
        };
        all.get(self.range.clone()).unwrap_or(&[])
    }
}

impl AsRef<[u8]> for FreeableBuffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for FreeableBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FreeableBuffer({} bytes)", self.len())
    }
}
