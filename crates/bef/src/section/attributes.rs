//! Section 1, Attributes: values one after another, each at its alignment, referred to by byte offset.
//!
//! Nothing in the section says where a value starts or what it is: kernels hold the offsets, and the
//! AttributeTypes section, where there is one, the types. The families' layouts are in [`crate::attribute`].

use crate::attribute::{self, AttributeRef};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, Result, Within};
use crate::limits::Limits;
use crate::model::AttributeTable;
use crate::region::Region;

/// The attributes of a file.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attributes<'a> {
    region: Region<'a>,
    nesting: u32,
}

impl<'a> Attributes<'a> {
    pub(crate) fn new(region: Region<'a>, limits: &Limits) -> Self {
        Attributes { region, nesting: limits.attributes() }
    }

    /// The attribute at `offset`, as kernels and the AttributeTypes section give it. Nothing is read yet.
    #[inline]
    pub fn at(&self, offset: u64) -> AttributeRef<'a> {
        AttributeRef::new(self.region, offset, self.nesting)
    }

    /// The section's bytes.
    pub fn region(&self) -> Region<'a> {
        self.region
    }
}

/// The section, and the offset of each attribute in it.
pub(crate) fn write<'m>(table: &'m AttributeTable<'_>) -> Result<(Buffer<'m>, Vec<u64>)> {
    let mut out = Buffer::new();
    match table {
        AttributeTable::Typed(values) => {
            let mut offsets = Vec::with_capacity(values.len());
            for (index, value) in values.iter().enumerate() {
                offsets.push(attribute::write(value, &mut out).within(|| format!("attributes[{index}]"))?);
            }
            Ok((out, offsets))
        }
        AttributeTable::Untyped(untyped) => {
            if !untyped.alignment.is_power_of_two() {
                return Err(Error::model(
                    ErrorKind::Value,
                    format!("alignment {}", untyped.alignment),
                    "a power of two",
                ))
                .within(|| "attributes");
            }
            out.align(u64::from(untyped.alignment));
            out.payload(&untyped.bytes);
            Ok((out, untyped.offsets.clone()))
        }
    }
}
