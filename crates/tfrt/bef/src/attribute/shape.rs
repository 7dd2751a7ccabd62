//! Shapes: base, `u32 rank`, `i64 dims[rank]`, with the dims aligned to 8. An unranked shape is `u32 0`.

use super::base::{Base, check_aligned, to_u32};
use crate::buffer::Buffer;
use crate::error::{InField, Result};
use crate::region::Region;

/// The shape of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Shape {
    /// The rank is unknown.
    Unranked,
    /// Sizes in elements; -1 is an unknown size.
    Ranked(Vec<i64>),
}

impl Shape {
    /// The sizes, if the rank is known.
    pub fn dims(&self) -> Option<&[i64]> {
        match self {
            Shape::Unranked => None,
            Shape::Ranked(dims) => Some(dims),
        }
    }
}

const PREFIX: u64 = Base::SIZE + 4;

/// Reads `rank` sizes at `offset`.
pub(super) fn read_dims(region: Region<'_>, offset: u64, rank: u64) -> Result<Vec<i64>> {
    let bytes = region.slice(offset, rank * 8).in_field(|| "dims")?.bytes();
    Ok(bytes.as_chunks::<8>().0.iter().map(|&dim| i64::from_le_bytes(dim)).collect())
}

pub(super) fn write_dims(dims: &[i64], out: &mut Buffer<'_>) {
    dims.iter().for_each(|dim| out.bytes(&dim.to_le_bytes()));
}

/// Reads the shape at `offset`. Also returns the offset of its end.
pub(super) fn read(region: Region<'_>, offset: u64) -> Result<(Shape, u64)> {
    let first = region.u32(offset)?;
    check_aligned(region, offset, 4, 0)?;
    if first == 0 {
        return Ok((Shape::Unranked, offset + 4));
    }
    let base = Base::read(region, offset, PREFIX)?;
    let rank = u64::from(region.u32(offset + Base::SIZE).in_field(|| "rank")?);
    base.expect_size(region, offset, PREFIX + 8 * rank)?;
    check_aligned(region, offset, 8, PREFIX)?;
    let dims = read_dims(region, offset + PREFIX, rank)?;
    Ok((Shape::Ranked(dims), offset + PREFIX + 8 * rank))
}

/// Appends a shape and returns its offset.
pub(super) fn write(shape: &Shape, out: &mut Buffer<'_>) -> Result<u64> {
    let Shape::Ranked(dims) = shape else {
        out.align(4);
        let offset = out.len();
        out.bytes(&[0; 4]);
        return Ok(offset);
    };
    let rank = to_u32(dims.len() as u64, "rank")?;
    let byte_size = to_u32(PREFIX + 8 * u64::from(rank), "byte size")?;
    let offset = Base { alignment: 8, element_type: 0, byte_size }.write(PREFIX, out);
    out.bytes(&rank.to_le_bytes());
    write_dims(dims, out);
    Ok(offset)
}
