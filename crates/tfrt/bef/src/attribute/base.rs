//! The 8-byte base of shapes, dense attributes and aggregates, and the alignment check that all attributes share.

use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::region::Region;

/// `u8 alignment, u8 element_type, u16 prefix_size, u32 byte_size`.
///
/// `byte_size` counts from the base's first byte to the end of the attribute. `prefix_size` is the number of bytes
/// before the aligned payload, modulo 2^16.
pub(super) struct Base {
    pub(super) alignment: u8,
    pub(super) element_type: u8,
    pub(super) byte_size: u32,
}

impl Base {
    pub(super) const SIZE: u64 = 8;

    /// Reads a base. Checks that the attribute is inside `region`, that its prefix is `prefix` bytes long, and that the
    /// payload after the prefix is aligned.
    pub(super) fn read(region: Region<'_>, offset: u64, prefix: u64) -> Result<Self> {
        let [alignment, element_type, low, high, size @ ..] = region.array::<8>(offset)?;
        let base = Base { alignment, element_type, byte_size: u32::from_le_bytes(size) };
        let at = region.start() + offset;
        if !alignment.is_power_of_two() || alignment > 8 {
            return Err(Error::new(ErrorKind::Value, at, format!("alignment {alignment}"), "1, 2, 4 or 8"));
        }
        let prefix_size = u16::from_le_bytes([low, high]);
        if prefix_size != prefix as u16 {
            return Err(Error::new(
                ErrorKind::Mismatch,
                at + 2,
                format!("prefix size {prefix_size}"),
                format!("{} (modulo 2^16), by its counts", prefix as u16),
            ));
        }
        check_aligned(region, offset, u64::from(alignment), prefix)?;
        region.slice(offset, u64::from(base.byte_size)).in_field(|| "byte_size")?;
        Ok(base)
    }

    /// Fails unless the attribute is `size` bytes long.
    pub(super) fn expect_size(&self, region: Region<'_>, offset: u64, size: u64) -> Result<()> {
        if u64::from(self.byte_size) == size {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Mismatch,
            region.start() + offset + 4,
            format!("byte size {}", self.byte_size),
            format!("{size}, by its counts"),
        ))
    }

    /// Appends the base, padded so that the payload after `prefix` bytes is aligned, and returns the attribute's
    /// offset.
    pub(super) fn write(&self, prefix: u64, out: &mut Buffer<'_>) -> u64 {
        out.align_for(u64::from(self.alignment), prefix);
        let offset = out.len();
        let [low, high] = (prefix as u16).to_le_bytes();
        out.bytes(&[self.alignment, self.element_type, low, high]);
        out.bytes(&self.byte_size.to_le_bytes());
        offset
    }
}

/// Fails unless the byte that is `prefix` bytes after `offset` has a file offset that is a multiple of `alignment`. Always succeeds in a
/// region whose values need not be aligned.
#[inline]
pub(super) fn check_aligned(region: Region<'_>, offset: u64, alignment: u64, prefix: u64) -> Result<()> {
    let at = region.start() + offset;
    if (at + prefix).is_multiple_of(alignment) || region.allows_any_alignment() {
        return Ok(());
    }
    Err(misaligned_error(at, alignment, prefix))
}

#[cold]
fn misaligned_error(at: u64, alignment: u64, prefix: u64) -> Error {
    let expected = match prefix {
        0 => format!("a multiple of {alignment}"),
        _ => format!("{prefix} bytes before a multiple of {alignment}"),
    };
    Error::new(ErrorKind::Misaligned, at, format!("file offset {at}"), expected)
}

/// Converts a count or size, described by `what`, to the 32 bits that the format stores; fails if it is larger.
pub(super) fn to_u32(value: u64, what: &str) -> Result<u32> {
    u32::try_from(value).map_err(|_| {
        Error::without_offset(
            ErrorKind::Unaddressable,
            format!("{what} {value}"),
            "at most 4294967295: attributes store it in 32 bits",
        )
    })
}
