//! Section 1, Attributes: values one after another, each at its alignment, referred to by byte offset.
//!
//! The section records neither where a value starts nor its type: kernels hold the offsets, and the optional
//! AttributeTypes section holds the types. [`crate::attribute`] describes the layouts.

use crate::attribute::{self, AttributeRef};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::limits::Limits;
use crate::model::{AttributeTable, UntypedAttributes};
use crate::region::Region;

/// The attributes of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'a> {
    region: Region<'a>,
    nesting: u32,
}

impl<'a> Attributes<'a> {
    pub(crate) fn new(region: Region<'a>, limits: &Limits) -> Self {
        Attributes { region, nesting: limits.effective_attribute_nesting() }
    }

    /// The attribute at an `offset` from a kernel or the AttributeTypes section. Nothing is read yet.
    #[inline]
    pub fn at(&self, offset: u64) -> AttributeRef<'a> {
        AttributeRef::new(self.region, offset, self.nesting)
    }

    /// The section's bytes.
    pub fn region(&self) -> Region<'a> {
        self.region
    }
}

/// Writes the Attributes section. Also returns the offset of each attribute in it.
pub(crate) fn write<'m>(table: &'m AttributeTable<'_>) -> Result<(Buffer<'m>, Vec<u64>)> {
    let mut out = Buffer::new();
    let mut offsets = Vec::with_capacity(table.len());
    if let Some(untyped) = table.untyped() {
        write_untyped(untyped, &mut out).in_field(|| "attributes")?;
        offsets.extend_from_slice(&untyped.offsets);
    }
    for value in table.values() {
        offsets
            .push(attribute::write(value, &mut out).in_field(|| format!("attributes[{}]", offsets.len()))?);
    }
    Ok((out, offsets))
}

fn write_untyped<'m>(untyped: &'m UntypedAttributes<'_>, out: &mut Buffer<'m>) -> Result<()> {
    if !untyped.alignment.is_power_of_two() {
        let actual = format!("alignment {}", untyped.alignment);
        return Err(Error::without_offset(ErrorKind::Value, actual, "a power of two"));
    }
    let len = untyped.bytes.len() as u64;
    if let Some(index) = untyped.offsets.iter().position(|&offset| offset >= len) {
        let actual = format!("offset {}", untyped.offsets[index]);
        let expected = format!("one below {len}, the size of the bytes");
        return Err(Error::without_offset(ErrorKind::OutOfRange, actual, expected))
            .in_field(|| format!("[{index}]"));
    }
    out.align(u64::from(untyped.alignment));
    out.payload(&untyped.bytes);
    Ok(())
}
