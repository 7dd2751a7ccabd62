//! Section 8, AttributeTypes: `VBR count`, then `VBR offset, VBR type` each, in the order of section 1.
//!
//! Optional. In the published grammar the type is one byte, but it is a VBR: array types take two bytes.

use crate::attribute::AttributeType;
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::model::Module;
use crate::region::{Cursor, Region};

/// Offset and type of each top-level attribute, in ascending order of offsets.
#[derive(Clone, Debug, Default)]
pub struct AttributeTypes {
    entries: Vec<(u64, AttributeType)>,
}

impl AttributeTypes {
    pub(crate) fn read(region: Region<'_>) -> Result<Self> {
        let mut cursor = region.cursor();
        let mut entries: Vec<(u64, AttributeType)> = Vec::new();
        let mut read = || {
            let count = cursor.count("attributes", 2)?;
            entries.reserve_exact(count as usize);
            for index in 0..count {
                let last = entries.last().map(|&(offset, _)| offset);
                entries.push(read_entry(&mut cursor, last).in_field(|| format!("[{index}]"))?);
            }
            cursor.finish()
        };
        read().in_field(|| "attribute_types")?;
        Ok(AttributeTypes { entries })
    }

    /// All attributes, in ascending order of offsets.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (u64, AttributeType)> + '_ {
        self.entries.iter().copied()
    }

    /// Number of attributes.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Index of the attribute that starts at `offset`.
    pub fn position(&self, offset: u64) -> Option<usize> {
        self.entries.binary_search_by_key(&offset, |&(offset, _)| offset).ok()
    }

    /// As [`position`](Self::position), but tries `hint` and the next index first: kernels tend to use attributes in
    /// the order in which they are stored.
    pub(crate) fn position_near(&self, offset: u64, hint: usize) -> Option<usize> {
        let near = |index: &usize| self.entries.get(*index).is_some_and(|&(start, _)| start == offset);
        Some(hint).filter(near).or(Some(hint + 1).filter(near)).or_else(|| self.position(offset))
    }

    /// The type of the attribute that starts at `offset`.
    pub fn get(&self, offset: u64) -> Option<AttributeType> {
        self.position(offset).map(|index| self.entries[index].1)
    }
}

fn read_entry(cursor: &mut Cursor<'_>, last: Option<u64>) -> Result<(u64, AttributeType)> {
    let at = cursor.offset();
    let offset = cursor.vbr().in_field(|| "offset")?;
    if last.is_some_and(|last| offset <= last) {
        return Err(Error::new(
            ErrorKind::Overlap,
            at,
            format!("offset {offset}"),
            "offsets that rise: attributes are listed in the order they are stored",
        ));
    }
    let at = cursor.offset();
    let number = cursor.vbr().in_field(|| "type")?;
    let kind = u8::try_from(number).ok().and_then(AttributeType::new).ok_or_else(|| {
        Error::new(
            ErrorKind::UnknownTag,
            at,
            format!("attribute type {number}"),
            "a type that an attribute can have",
        )
    })?;
    Ok((offset, kind))
}

/// Writes the AttributeTypes section; `offsets` are those of the attributes in the Attributes section.
pub(crate) fn write(module: &Module<'_>, offsets: &[u64]) -> Result<Buffer<'static>> {
    let mut out = Buffer::new();
    if module.attributes.untyped().is_some() {
        return Err(Error::without_offset(
            ErrorKind::Mismatch,
            "attributes whose types are not known",
            "values, or a module without optional sections",
        ))
        .in_field(|| "attributes");
    }
    let values = module.attributes.values();
    out.vbr(values.len() as u64);
    for (value, &offset) in values.iter().zip(offsets) {
        out.vbr(offset);
        out.vbr(u64::from(value.attribute_type().number()));
    }
    Ok(out)
}
