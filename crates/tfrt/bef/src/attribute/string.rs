//! Strings and function names: `u32 length` at a multiple of 4, then the bytes, without a NUL.

use super::base::{check_aligned, to_u32};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::region::Region;

/// The bytes of the string at `offset`, as a region.
pub(super) fn read(region: Region<'_>, offset: u64) -> Result<Region<'_>> {
    let length = region.u32(offset).in_field(|| "length")?;
    check_aligned(region, offset, 4, 0)?;
    region.slice(offset + 4, u64::from(length))
}

/// The string's bytes as UTF-8 text.
pub(super) fn text(bytes: Region<'_>) -> Result<&str> {
    std::str::from_utf8(bytes.bytes()).map_err(|error| {
        Error::new(
            ErrorKind::String,
            bytes.start() + error.valid_up_to() as u64,
            "bytes that are not UTF-8",
            "text; read it as bytes if it is something else",
        )
    })
}

/// Appends a string and returns its offset.
pub(super) fn write<'m>(bytes: &'m [u8], out: &mut Buffer<'m>) -> Result<u64> {
    let length = to_u32(bytes.len() as u64, "string length")?;
    out.align(4);
    let offset = out.len();
    out.bytes(&length.to_le_bytes());
    out.payload(bytes);
    Ok(offset)
}
