//! Aggregates: base, `u32 n`, `u32 offsets[n]`, then the elements.
//!
//! Offsets count from the aggregate's first byte. The byte before each element is its [`AttributeType`]. Elements
//! come in order and share no bytes, which bounds the work of reading one by its size. An empty aggregate is `u32 0`.

use super::base::{Base, check_aligned, to_u32};
use super::{Attribute, AttributeRef, AttributeType};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::region::{PAD, Region};

/// An aggregate in a file; its elements are decoded on demand.
#[derive(Clone, Copy, Debug)]
pub struct Aggregate<'a> {
    /// All bytes of the aggregate.
    region: Region<'a>,
    count: u32,
    nesting_left: u32,
}

fn prefix_bytes(count: u32) -> u64 {
    Base::SIZE + 4 + 4 * u64::from(count)
}

impl<'a> AttributeRef<'a> {
    /// The aggregate; its elements are decoded on demand. An empty array can be read as an empty aggregate.
    ///
    /// # Errors
    /// When its table is malformed.
    pub fn aggregate(&self) -> Result<Aggregate<'a>> {
        Aggregate::read(self.region, self.offset, self.nesting_left)
    }
}

impl<'a> Aggregate<'a> {
    /// Reads the aggregate at `offset`. Checks its offset table, but not its elements.
    pub(super) fn read(region: Region<'a>, offset: u64, nesting_left: u32) -> Result<Self> {
        let first = region.u32(offset)?;
        check_aligned(region, offset, 4, 0)?;
        if first == 0 {
            return Ok(Aggregate { region: region.slice(offset, 4)?, count: 0, nesting_left });
        }
        if nesting_left == 0 {
            return Err(Error::new(
                ErrorKind::Limit,
                region.start() + offset,
                "one more aggregate inside another",
                "no deeper nesting (Limits::attribute_nesting)",
            ));
        }
        let count = region.u32(offset + Base::SIZE).in_field(|| "count")?;
        region.slice(offset, prefix_bytes(count)).in_field(|| "offsets")?;
        let base = Base::read(region, offset, prefix_bytes(count))?;
        let region = region.slice(offset, u64::from(base.byte_size))?;
        region.slice(0, prefix_bytes(count)).in_field(|| "offsets")?;
        Ok(Aggregate { region, count, nesting_left })
    }

    /// Number of elements.
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The type and the value of element `index`.
    ///
    /// # Errors
    /// If the index or the element's offset is out of range, or the element's type byte is unknown.
    pub fn get(&self, index: u32) -> Result<(AttributeType, AttributeRef<'a>)> {
        self.element(index).in_field(|| format!("elements[{index}]"))
    }

    fn element(&self, index: u32) -> Result<(AttributeType, AttributeRef<'a>)> {
        let start = self.region.start();
        if index >= self.count {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                start,
                format!("element {index}"),
                format!("one below {}", self.count),
            ));
        }
        let entry = Base::SIZE + 4 + 4 * u64::from(index);
        let offset = u64::from(self.region.u32(entry)?);
        if offset <= prefix_bytes(self.count) || offset >= self.region.len() {
            return Err(Error::new(
                ErrorKind::OutOfRange,
                start + entry,
                format!("element offset {offset}"),
                format!("one between {} and {}", prefix_bytes(self.count) + 1, self.region.len()),
            ));
        }
        let number = self.region.u8(offset - 1)?;
        let kind = AttributeType::new(number).ok_or_else(|| {
            Error::new(
                ErrorKind::UnknownTag,
                start + offset - 1,
                format!("attribute type {number}"),
                "a type that an attribute can have",
            )
        })?;
        let nesting_left = self.nesting_left - 1;
        Ok((kind, AttributeRef { region: self.region, offset, nesting_left }))
    }

    /// Passes every element to `visit`, which returns the element's end relative to the aggregate. Checks that the
    /// elements are in order and fill the aggregate. Returns the aggregate's size.
    pub(super) fn walk_elements(
        &self,
        mut visit: impl FnMut(AttributeType, AttributeRef<'a>) -> Result<u64>,
    ) -> Result<u64> {
        if self.count == 0 {
            return Ok(4);
        }
        let mut end = prefix_bytes(self.count);
        for index in 0..self.count {
            let (kind, element) = self.get(index)?;
            if element.offset <= end {
                return Err(Error::new(
                    ErrorKind::Overlap,
                    element.file_offset(),
                    format!("an element at offset {}", element.offset),
                    format!("one past {end}, where what comes before it (and its type byte) ends"),
                ))
                .in_field(|| format!("elements[{index}]"));
            }
            end = visit(kind, element).in_field(|| format!("elements[{index}]"))?;
        }
        if end != self.region.len() {
            return Err(Error::new(
                ErrorKind::Mismatch,
                self.region.start() + 4,
                format!("byte size {}", self.region.len()),
                format!("{end}, where the last element ends"),
            ));
        }
        Ok(end)
    }
}

/// The alignment that an element requires of its aggregate. It is not always the element's own alignment: the reference
/// converter uses 1 for bools and unranked shapes, and 8 for every list.
fn attribute_alignment(value: &Attribute<'_>) -> u64 {
    match value.attribute_type() {
        AttributeType::Scalar(dtype) => dtype.element_alignment().unwrap_or(1),
        AttributeType::Type | AttributeType::SymbolRef => 1,
        AttributeType::String | AttributeType::Func => 4,
        AttributeType::Shape if *value == Attribute::Shape(super::Shape::Unranked) => 1,
        AttributeType::Shape | AttributeType::Dense | AttributeType::Array(_) | AttributeType::Aggregate => 8,
    }
}

/// Appends an aggregate and returns its offset.
pub(super) fn write<'m>(elements: &'m [Attribute<'_>], out: &mut Buffer<'m>) -> Result<u64> {
    if elements.is_empty() {
        out.align(4);
        let offset = out.len();
        out.bytes(&[0; 4]);
        return Ok(offset);
    }
    let count = to_u32(elements.len() as u64, "element count")?;
    let alignment = elements.iter().map(attribute_alignment).fold(4, u64::max) as u8;
    let offset = Base { alignment, element_type: 0, byte_size: 0 }.write(prefix_bytes(count), out);
    out.bytes(&count.to_le_bytes());
    let table = out.len();
    elements.iter().for_each(|_| out.bytes(&[0; 4]));
    for (index, element) in elements.iter().enumerate() {
        // Reserve the type byte. The element may be preceded by padding; the type byte goes directly before the
        // element.
        out.byte(PAD);
        let start = super::write(element, out).in_field(|| format!("elements[{index}]"))?;
        out.overwrite(start - 1, &[element.attribute_type().number()]);
        let relative = to_u32(start - offset, "element offset")?;
        out.overwrite(table + 4 * index as u64, &relative.to_le_bytes());
    }
    let size = to_u32(out.len() - offset, "byte size")?;
    out.overwrite(offset + 4, &size.to_le_bytes());
    Ok(offset)
}
