//! Arenas: the memory that a memory plan divides among tensors by offset. This module needs
//! `unsafe`: a [`Loan`] hands out several views of one arena at a time, after checking that no
//! writable view overlaps another.

use crate::{AlignedBuffer, Error, Result};
use std::ops::Range;

/// The unit, in bytes, in which arenas are copied (a page): units that are all zero are not written in the copy.
const PAGE_BYTES: usize = 4096;

/// A range of bytes of one arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Index of the arena.
    pub arena: usize,
    /// The offset of the first byte in the arena.
    pub offset: usize,
    /// The number of bytes.
    pub len: usize,
}

impl Extent {
    /// Whether the two extents have a byte in common.
    pub fn overlaps(&self, other: &Extent) -> bool {
        self.arena == other.arena
            && self.len > 0
            && other.len > 0
            && self.offset < other.offset.saturating_add(other.len)
            && other.offset < self.offset.saturating_add(self.len)
    }
}

/// A set of arenas; each is one aligned allocation.
#[derive(Debug, Default)]
pub struct Arenas {
    buffers: Vec<AlignedBuffer>,
    lent: Vec<(Extent, bool)>,
}

impl Arenas {
    /// No arenas.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an arena and returns its index.
    pub fn push(&mut self, buffer: AlignedBuffer) -> usize {
        self.buffers.push(buffer);
        self.buffers.len() - 1
    }

    /// A copy of the arenas. Blocks of zeros are not written in the copy, so that pages of zeros take no memory.
    pub fn try_clone(&self) -> Result<Self> {
        let copy = |buffer: &AlignedBuffer| {
            let mut new = AlignedBuffer::zeroed(buffer.len())?;
            for (to, from) in new.chunks_mut(PAGE_BYTES).zip(buffer.chunks(PAGE_BYTES)) {
                if from.iter().any(|&byte| byte != 0) {
                    to.copy_from_slice(from);
                }
            }
            Ok(new)
        };
        Ok(Self { buffers: self.buffers.iter().map(copy).collect::<Result<_>>()?, lent: Vec::new() })
    }

    /// The number of arenas.
    pub fn len(&self) -> usize {
        self.buffers.len()
    }

    /// Whether there is no arena.
    pub fn is_empty(&self) -> bool {
        self.buffers.is_empty()
    }

    /// The arena with this index; `None` if there is none.
    pub fn arena(&self, index: usize) -> Option<&AlignedBuffer> {
        self.buffers.get(index)
    }

    /// The arena with this index, mutable: its bytes can be written, or the arena replaced.
    pub fn arena_mut(&mut self, index: usize) -> Option<&mut AlignedBuffer> {
        self.buffers.get_mut(index)
    }

    /// The bytes of an extent. Fails if it is out of bounds, or there is no such arena.
    pub fn bytes(&self, extent: Extent) -> Result<&[u8]> {
        let arena = self.buffers.get(extent.arena).ok_or_else(|| out_of_arena(extent, 0))?;
        arena.get(range_of(extent)).ok_or_else(|| out_of_arena(extent, arena.len()))
    }

    /// The mutable bytes of an extent. Fails if it is out of bounds, or there is no such arena.
    pub fn bytes_mut(&mut self, extent: Extent) -> Result<&mut [u8]> {
        let arena = self.buffers.get_mut(extent.arena).ok_or_else(|| out_of_arena(extent, 0))?;
        let size = arena.len();
        arena.get_mut(range_of(extent)).ok_or_else(|| out_of_arena(extent, size))
    }

    /// Starts lending views. They live as long as the loan's borrow of the arenas.
    pub fn lend(&mut self) -> Loan<'_> {
        self.lent.clear();
        Loan { buffers: &mut self.buffers, lent: &mut self.lent }
    }
}

/// Hands out views of arenas that are live at the same time. Readable views may overlap each other; a writable view
/// overlaps no other.
pub struct Loan<'a> {
    buffers: &'a mut Vec<AlignedBuffer>,
    lent: &'a mut Vec<(Extent, bool)>,
}

impl<'a> Loan<'a> {
    /// A readable view. Fails if the extent is out of bounds, or overlaps a writable view of this loan.
    pub fn shared(&mut self, extent: Extent) -> Result<&'a [u8]> {
        let start = self.add_view(extent, false)?;
        // SAFETY: `add_view` proved that the range is within the arena's allocation and overlaps no
        // writable view of this loan. The arenas are borrowed mutably for 'a, so only this loan
        // creates views of them, and it creates no other reference to their bytes: nothing moves, frees or
        // invalidates a view before 'a ends.
        Ok(unsafe { std::slice::from_raw_parts(start, extent.len) })
    }

    /// A writable view. Fails if the extent is out of bounds, or overlaps any view of this loan.
    pub fn exclusive(&mut self, extent: Extent) -> Result<&'a mut [u8]> {
        let start = self.add_view(extent, true)?;
        // SAFETY: as in `shared`; moreover no view of this loan, readable or writable, overlaps.
        Ok(unsafe { std::slice::from_raw_parts_mut(start, extent.len) })
    }

    fn add_view(&mut self, extent: Extent, writable: bool) -> Result<*mut u8> {
        let arena = self.buffers.get_mut(extent.arena).ok_or_else(|| out_of_arena(extent, 0))?;
        // `arena.len()` would create a reference to all bytes, which invalidates the writable views lent before.
        let (start, len) = arena.raw_parts();
        if range_of(extent).end > len {
            return Err(out_of_arena(extent, len));
        }
        if self.lent.iter().any(|(e, w)| (writable || *w) && e.overlaps(&extent)) {
            return Err(Error::Overlap { arena: extent.arena, offset: extent.offset });
        }
        self.lent.push((extent, writable));
        // SAFETY: the range is in bounds, so its start is within the allocation or one past its end.
        Ok(unsafe { start.add(extent.offset) })
    }
}

/// The byte range of an extent. If the end overflows it saturates, so that it is out of every arena's bounds.
fn range_of(extent: Extent) -> Range<usize> {
    extent.offset..extent.offset.saturating_add(extent.len)
}

fn out_of_arena(extent: Extent, size: usize) -> Error {
    let Range { start: offset, end } = range_of(extent);
    Error::OutOfArena { arena: extent.arena, offset, end, size }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(offset: usize, len: usize) -> Extent {
        Extent { arena: 0, offset, len }
    }

    #[test]
    fn disjoint_views_may_be_live_together() {
        let mut arenas = Arenas::new();
        arenas.push(AlignedBuffer::zeroed(128).unwrap());
        let mut loan = arenas.lend();
        let a = loan.exclusive(at(0, 16)).unwrap();
        let b = loan.exclusive(at(16, 16)).unwrap();
        let c = loan.shared(at(32, 16)).unwrap();
        let d = loan.shared(at(40, 16)).unwrap();
        a.fill(1);
        b.fill(2);
        assert_eq!((a[0], b[0], c[0], d[15]), (1, 2, 0, 0));
        assert_eq!(arenas.bytes(at(0, 32)).unwrap()[15..17], [1, 2]);
    }

    /// A test for Miri, which reports if lending a view invalidates an earlier view.
    #[test]
    fn a_view_can_be_written_after_another_was_lent() {
        let mut arenas = Arenas::new();
        arenas.push(AlignedBuffer::zeroed(128).unwrap());
        let mut loan = arenas.lend();
        let first = loan.exclusive(at(0, 16)).unwrap();
        first.fill(1);
        let second = loan.exclusive(at(16, 16)).unwrap();
        first.fill(2);
        let third = loan.shared(at(32, 16)).unwrap();
        second.fill(3);
        assert!(loan.shared(at(0, 1)).is_err());
        first.fill(4);
        assert_eq!((first[0], second[0], third[0]), (4, 3, 0));
    }

    #[test]
    fn overlapping_writers_are_refused() {
        let mut arenas = Arenas::new();
        arenas.push(AlignedBuffer::zeroed(128).unwrap());
        let mut loan = arenas.lend();
        let _a = loan.exclusive(at(0, 16)).unwrap();
        assert!(loan.shared(at(8, 16)).is_err());
        assert!(loan.exclusive(at(15, 1)).is_err());
        let _s = loan.shared(at(64, 16)).unwrap();
        assert!(loan.exclusive(at(70, 1)).is_err());
        assert!(loan.exclusive(at(0, 0)).is_ok());
    }

    #[test]
    fn extents_stay_within_their_arena() {
        let mut arenas = Arenas::new();
        arenas.push(AlignedBuffer::zeroed(128).unwrap());
        assert!(arenas.bytes(at(120, 9)).is_err());
        assert!(arenas.bytes(at(usize::MAX, 2)).is_err());
        assert!(arenas.bytes(Extent { arena: 1, offset: 0, len: 0 }).is_err());
        let mut loan = arenas.lend();
        assert!(loan.shared(at(128, 1)).is_err());
        assert!(loan.shared(at(128, 0)).is_ok());
    }
}
