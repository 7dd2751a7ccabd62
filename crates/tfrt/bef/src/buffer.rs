//! Output buffer of a section: its bytes, the alignment they require, and large payloads kept by reference.

use std::borrow::Cow;
use std::io;

use crate::error::{Error, ErrorKind, Result};
use crate::region::PAD;
use crate::vbr;

/// Payloads of at least this many bytes are kept by reference instead of being copied into the section.
const BORROW_FROM: usize = 1 << 16;

/// The bytes of a section being written.
///
/// Positions are relative to the buffer's start; the code that places the buffer in a file must align it to
/// [`Buffer::alignment`].
#[derive(Debug, Default)]
pub(crate) struct Buffer<'m> {
    done: Vec<Piece<'m>>,
    tail: Vec<u8>,
    tail_start: u64,
    alignment: u64,
}

#[derive(Debug)]
struct Piece<'m> {
    start: u64,
    bytes: Cow<'m, [u8]>,
}

impl<'m> Buffer<'m> {
    pub(crate) fn new() -> Self {
        Buffer { alignment: 1, ..Buffer::default() }
    }

    pub(crate) fn len(&self) -> u64 {
        self.tail_start + self.tail.len() as u64
    }

    /// The largest alignment of anything that was appended.
    pub(crate) fn alignment(&self) -> u64 {
        self.alignment
    }

    pub(crate) fn byte(&mut self, byte: u8) {
        self.tail.push(byte);
    }

    pub(crate) fn vbr(&mut self, value: u64) {
        vbr::encode(value, &mut self.tail);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.tail.extend_from_slice(bytes);
    }

    /// Appends bytes that outlive the buffer; large payloads are kept by reference, not copied.
    pub(crate) fn payload(&mut self, bytes: &'m [u8]) {
        if bytes.len() < BORROW_FROM {
            return self.bytes(bytes);
        }
        self.flush_tail();
        self.done.push(Piece { start: self.tail_start, bytes: bytes.into() });
        self.tail_start += bytes.len() as u64;
    }

    fn flush_tail(&mut self) {
        if !self.tail.is_empty() {
            let bytes = std::mem::take(&mut self.tail);
            let start = self.tail_start;
            self.tail_start += bytes.len() as u64;
            self.done.push(Piece { start, bytes: bytes.into() });
        }
    }

    /// Pads until the buffer's length is a multiple of `alignment`, a power of two.
    pub(crate) fn align(&mut self, alignment: u64) {
        self.align_for(alignment, 0);
    }

    /// Pads until the buffer's length plus `prefix` is a multiple of `alignment`, a power of two.
    pub(crate) fn align_for(&mut self, alignment: u64, prefix: u64) {
        let gap = (self.len() + prefix).wrapping_neg() & (alignment - 1);
        self.tail.resize(self.tail.len() + gap as usize, PAD);
        self.alignment = self.alignment.max(alignment);
    }

    /// Pads to a multiple of 4 bytes, then appends `value` in little-endian order.
    pub(crate) fn u32(&mut self, value: u32) {
        self.align(4);
        self.bytes(&value.to_le_bytes());
    }

    /// Overwrites the bytes from offset `at` on; they must not belong to a payload that is kept by reference.
    pub(crate) fn overwrite(&mut self, at: u64, bytes: &[u8]) {
        let (start, target) = if at >= self.tail_start {
            (self.tail_start, &mut self.tail)
        } else {
            let index = self.done.partition_point(|piece| piece.start <= at) - 1;
            let piece = &mut self.done[index];
            (piece.start, piece.bytes.to_mut())
        };
        let from = (at - start) as usize;
        target[from..from + bytes.len()].copy_from_slice(bytes);
    }

    /// Appends the contents of `other`, after padding to the alignment of `other`.
    pub(crate) fn append(&mut self, other: Buffer<'m>) {
        self.align(other.alignment);
        for piece in other.done {
            match piece.bytes {
                Cow::Borrowed(bytes) => self.payload(bytes),
                Cow::Owned(bytes) => self.bytes(&bytes),
            }
        }
        self.bytes(&other.tail);
    }

    /// Writes the bytes to `sink` in order.
    pub(crate) fn write_to(&self, sink: &mut dyn io::Write) -> Result<()> {
        let pieces = self.done.iter().map(|piece| &*piece.bytes);
        pieces.chain([&*self.tail]).try_for_each(|bytes| write_all(bytes, sink))
    }
}

/// Writes bytes to `sink`.
pub(crate) fn write_all(bytes: &[u8], sink: &mut dyn io::Write) -> Result<()> {
    sink.write_all(bytes).map_err(|error| {
        Error::without_offset(ErrorKind::Io, error.to_string(), "a sink that takes all bytes of the file")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(buffer: &Buffer<'_>) -> Vec<u8> {
        let mut out = Vec::new();
        buffer.write_to(&mut out).unwrap();
        out
    }

    #[test]
    fn large_payloads_are_kept_by_reference_and_earlier_bytes_can_be_overwritten() {
        let large = vec![7u8; BORROW_FROM];
        let mut buffer = Buffer::new();
        buffer.bytes(&[1, 2, 3, 4]);
        buffer.payload(&large);
        buffer.bytes(&[5, 6]);
        buffer.overwrite(1, &[9, 9]);
        buffer.overwrite(buffer.len() - 1, &[8]);
        assert_eq!(buffer.len(), BORROW_FROM as u64 + 6);
        let bytes = all(&buffer);
        assert_eq!(bytes[..5], [1, 9, 9, 4, 7]);
        assert_eq!(bytes[bytes.len() - 3..], [7, 5, 8]);
        assert_eq!(bytes.len() as u64, buffer.len());
    }

    #[test]
    fn padding_is_cc_and_the_largest_alignment_is_kept() {
        let mut buffer = Buffer::new();
        buffer.byte(1);
        buffer.u32(0x0403_0201);
        buffer.align_for(8, 4);
        assert_eq!(all(&buffer), [1, PAD, PAD, PAD, 1, 2, 3, 4, PAD, PAD, PAD, PAD]);
        assert_eq!(buffer.alignment(), 8);
    }
}
