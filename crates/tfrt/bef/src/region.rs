//! Bounds-checked reads of byte ranges that know their file offset.

use crate::error::{Error, ErrorKind, Result};
use crate::vbr::{self, VbrError};

/// The padding byte.
pub const PAD: u8 = 0xCC;

/// A range of the file's bytes with its file offset. All reads are bounds-checked, little-endian and independent of the
/// bytes' address in memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Region<'a> {
    bytes: &'a [u8],
    start: u64,
    /// Whether values in the region need not be aligned.
    any_alignment: bool,
}

impl<'a> Region<'a> {
    /// `bytes` at absolute file offset `start`.
    #[inline]
    pub(crate) fn new(bytes: &'a [u8], start: u64) -> Self {
        Region { bytes, start, any_alignment: false }
    }

    /// The same bytes as a region in which values need not be aligned.
    pub(crate) fn with_any_alignment(self) -> Self {
        Region { any_alignment: true, ..self }
    }

    pub(crate) fn allows_any_alignment(&self) -> bool {
        self.any_alignment
    }

    /// The bytes of the region.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Absolute file offset of the first byte.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Length in bytes.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The bytes from `offset` (relative to this region) to its end.
    #[inline]
    pub(crate) fn slice_from(&self, offset: u64) -> Result<Region<'a>> {
        match usize::try_from(offset).ok().and_then(|offset| self.bytes.get(offset..)) {
            Some(bytes) => Ok(Region { bytes, start: self.start + offset, ..*self }),
            None => Err(self.past_end_error(offset, 0)),
        }
    }

    /// `len` bytes from `offset` (relative to this region).
    #[inline]
    pub(crate) fn slice(&self, offset: u64, len: u64) -> Result<Region<'a>> {
        // The only place where a size from a file is cast to usize: after the check that it is in bounds.
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.len());
        if !inside {
            return Err(self.past_end_error(offset, len));
        }
        let (offset, len) = (offset as usize, len as usize);
        let bytes = &self.bytes[offset..offset + len];
        Ok(Region { bytes, start: self.start + offset as u64, ..*self })
    }

    /// The error for a read of `len` bytes at `offset`, which is past the region's end.
    #[cold]
    pub(crate) fn past_end_error(&self, offset: u64, len: u64) -> Error {
        Error::new(
            ErrorKind::Truncated,
            self.start.saturating_add(offset.min(self.len())),
            format!("{len} bytes from offset {offset}"),
            format!("no more than the {} bytes that are there", self.len()),
        )
    }

    /// `N` bytes at `offset`.
    #[inline]
    pub(crate) fn array<const N: usize>(&self, offset: u64) -> Result<[u8; N]> {
        let region = self.slice(offset, N as u64)?;
        let mut array = [0; N];
        array.copy_from_slice(region.bytes);
        Ok(array)
    }

    pub(crate) fn u8(&self, offset: u64) -> Result<u8> {
        Ok(self.array::<1>(offset)?[0])
    }

    pub(crate) fn u32(&self, offset: u64) -> Result<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&self, offset: u64) -> Result<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }

    /// A cursor at the first byte.
    #[inline]
    pub(crate) fn cursor(&self) -> Cursor<'a> {
        Cursor { region: *self, at: 0 }
    }
}

/// A read position in a [`Region`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Cursor<'a> {
    region: Region<'a>,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// Absolute file offset of the next byte.
    #[inline]
    pub(crate) fn offset(&self) -> u64 {
        self.region.start + self.at as u64
    }

    /// Position relative to the region.
    #[inline]
    pub(crate) fn position(&self) -> u64 {
        self.at as u64
    }

    /// Bytes not read yet.
    #[inline]
    pub(crate) fn remaining(&self) -> u64 {
        (self.region.bytes.len() - self.at) as u64
    }

    #[inline]
    pub(crate) fn vbr(&mut self) -> Result<u64> {
        match vbr::decode(self.region.bytes.get(self.at..).unwrap_or_default()) {
            Ok((value, len)) => {
                self.at += len;
                Ok(value)
            }
            Err(why) => Err(self.vbr_error(why)),
        }
    }

    #[cold]
    fn vbr_error(&self, why: VbrError) -> Error {
        match why {
            VbrError::Truncated => Error::new(
                ErrorKind::Truncated,
                self.region.start + self.region.len(),
                "the end of the section inside an integer",
                "a last byte with bit 7 clear",
            ),
            VbrError::Overflow => Error::new(
                ErrorKind::VbrOverflow,
                self.offset(),
                "an integer of 65 bits or more",
                "at most 64 bits",
            ),
        }
    }

    /// Reads a VBR integer that must fit 32 bits, because the readers' tables use 32-bit indices.
    #[inline]
    pub(crate) fn vbr32(&mut self, what: &str) -> Result<u32> {
        let offset = self.offset();
        let value = self.vbr()?;
        u32::try_from(value).map_err(|_| wider_than_32_bits_error(what, value, offset))
    }

    /// Reads a count of entries of at least `min_bytes` bytes each. Fails if the remaining bytes cannot hold that many,
    /// so that callers can allocate for the count.
    #[inline]
    pub(crate) fn count(&mut self, what: &str, min_bytes: u64) -> Result<u64> {
        let offset = self.offset();
        let count = self.vbr()?;
        if count > self.remaining() / min_bytes.max(1) {
            return Err(self.excessive_count(what, count, offset));
        }
        Ok(count)
    }

    #[cold]
    fn excessive_count(&self, what: &str, count: u64, offset: u64) -> Error {
        Error::new(
            ErrorKind::Truncated,
            offset,
            format!("a count of {count} {what}"),
            format!("no more than the {} bytes that follow can hold", self.remaining()),
        )
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8> {
        let Some(&value) = self.region.bytes.get(self.at) else {
            return Err(self.region.past_end_error(self.position(), 1));
        };
        self.at += 1;
        Ok(value)
    }

    /// The next `len` bytes.
    #[inline]
    pub(crate) fn take(&mut self, len: u64) -> Result<Region<'a>> {
        let region = self.region.slice(self.position(), len)?;
        self.at += region.bytes.len();
        Ok(region)
    }

    /// Skips `0xCC` bytes until the absolute file offset is a multiple of `alignment`, a power of two.
    #[inline]
    pub(crate) fn align(&mut self, alignment: u64) -> Result<()> {
        match self.offset().wrapping_neg() & (alignment - 1) {
            0 => Ok(()),
            gap => self.check_padding(gap, alignment),
        }
    }

    fn check_padding(&mut self, gap: u64, alignment: u64) -> Result<()> {
        let padding = self.take(gap)?;
        match padding.bytes.iter().position(|&byte| byte != PAD) {
            None => Ok(()),
            Some(index) => Err(Error::new(
                ErrorKind::Padding,
                padding.start + index as u64,
                format!("{:#04x}", padding.bytes[index]),
                format!("0xCC up to a multiple of {alignment}"),
            )),
        }
    }

    /// Fails if bytes are left that have not been read.
    #[inline]
    pub(crate) fn finish(&self) -> Result<()> {
        if self.remaining() == 0 { Ok(()) } else { Err(self.trailing_bytes()) }
    }

    #[cold]
    fn trailing_bytes(&self) -> Error {
        Error::new(
            ErrorKind::TrailingBytes,
            self.offset(),
            format!("{} more bytes", self.remaining()),
            "the end of the section after its last entry",
        )
    }
}

#[cold]
fn wider_than_32_bits_error(what: &str, value: u64, offset: u64) -> Error {
    Error::new(
        ErrorKind::VbrOverflow,
        offset,
        format!("{what} {value}"),
        "at most 4294967295: kernels refer to it by 32-bit words",
    )
}
