//! Dense tensors: base, `u32 element_offset, u32 element_count, u32 rank, i64 dims[rank]`, elements.
//!
//! The dims and the elements are aligned to 8. A bool takes one byte; splats are stored expanded.

use std::borrow::Cow;

use super::base::{Base, check_aligned, to_u32};
use super::{Attribute, DType, scalar, shape};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::region::Region;

/// A constant tensor, as the file's little-endian bytes in row-major order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dense<'a> {
    dtype: DType,
    dims: Vec<i64>,
    bytes: Cow<'a, [u8]>,
}

impl<'a> Dense<'a> {
    /// A tensor with these sizes and elements of `dtype`.
    ///
    /// # Errors
    /// If the dtype has no fixed width, a size is negative, a bool is not 0 or 1, or the length of `bytes` does not
    /// match the sizes.
    pub fn new(dtype: DType, dims: Vec<i64>, bytes: impl Into<Cow<'a, [u8]>>) -> Result<Self> {
        let bytes = bytes.into();
        let expected = byte_len(dtype, &dims).ok_or_else(|| {
            Error::without_offset(
                ErrorKind::Value,
                format!("dims {dims:?} of {dtype}"),
                "sizes from 0 of a number type",
            )
        })?;
        if bytes.len() as u64 != expected {
            return Err(Error::without_offset(
                ErrorKind::Mismatch,
                format!("{} bytes of elements", bytes.len()),
                format!("{expected} for dims {dims:?} of {dtype}"),
            ));
        }
        if dtype == DType::I1 {
            scalar::check_bools(Region::new(&bytes, 0))?;
        }
        Ok(Dense { dtype, dims, bytes })
    }

    /// Type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes, in elements; none is negative.
    pub fn dims(&self) -> &[i64] {
        &self.dims
    }

    /// Number of elements.
    pub fn element_count(&self) -> u64 {
        element_count_of(&self.dims).unwrap_or_default()
    }

    /// The elements, little-endian, row-major.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements as attributes, in row-major order.
    pub fn elements(&self) -> impl Iterator<Item = Attribute<'static>> + '_ {
        let size = self.dtype.element_size().and_then(|size| usize::try_from(size).ok()).unwrap_or(1);
        self.bytes.chunks_exact(size).filter_map(|bytes| scalar::from_le_bytes(self.dtype, bytes))
    }

    /// The elements' bytes, borrowed from the file if the tensor was read from one.
    pub fn into_bytes(self) -> Cow<'a, [u8]> {
        self.bytes
    }

    /// The tensor with its bytes owned: copied if they are borrowed from a file.
    pub fn into_owned(self) -> Dense<'static> {
        Dense { dtype: self.dtype, dims: self.dims, bytes: Cow::Owned(self.bytes.into_owned()) }
    }
}

/// The number of elements of a tensor of these sizes; `None` for negative sizes and overflow.
fn element_count_of(dims: &[i64]) -> Option<u64> {
    // A zero anywhere makes the tensor empty, however large the other sizes are.
    if dims.iter().any(|&dim| dim < 0) {
        return None;
    }
    if dims.contains(&0) {
        return Some(0);
    }
    dims.iter().try_fold(1u64, |count, &dim| count.checked_mul(dim as u64))
}

fn byte_len(dtype: DType, dims: &[i64]) -> Option<u64> {
    element_count_of(dims)?.checked_mul(dtype.element_size()?)
}

const FIXED: u64 = Base::SIZE + 12;

/// Reads the tensor at `offset`. Also returns the offset of its end.
pub(super) fn read(region: Region<'_>, offset: u64) -> Result<(Dense<'_>, u64)> {
    let at = region.start() + offset;
    let mismatch = |field: u64, actual: String, expected: String| {
        Error::new(ErrorKind::Mismatch, at + field, actual, expected)
    };
    let rank = u64::from(region.u32(offset + 16).in_field(|| "rank")?);
    let element_offset = FIXED + 8 * rank;
    let dims = shape::read_dims(region, offset + FIXED, rank)?;
    let base = Base::read(region, offset, element_offset)?;
    check_aligned(region, offset, 8, element_offset)?;
    let dtype = scalar::dtype(region, offset + 1).in_field(|| "element_type")?;
    let found_offset = region.u32(offset + 8)?;
    if u64::from(found_offset) != element_offset {
        return Err(mismatch(
            8,
            format!("element offset {found_offset}"),
            format!("{element_offset} for rank {rank}"),
        ));
    }
    let size = byte_len(dtype, &dims).ok_or_else(|| {
        Error::new(
            ErrorKind::Value,
            at + FIXED,
            format!("dims {dims:?} of {dtype}"),
            "sizes from 0, of a number type, that multiply to less than 2^64 bytes",
        )
    })?;
    let found_count = region.u32(offset + 12)?;
    if Some(u64::from(found_count)) != element_count_of(&dims) {
        return Err(mismatch(
            12,
            format!("{found_count} elements"),
            format!("as many as dims {dims:?} hold"),
        ));
    }
    base.expect_size(region, offset, element_offset.saturating_add(size))?;
    let elements = region.slice(offset + element_offset, size)?;
    if dtype == DType::I1 {
        scalar::check_bools(elements)?;
    }
    let end = offset + element_offset + size;
    Ok((Dense { dtype, dims, bytes: elements.bytes().into() }, end))
}

/// Appends a tensor and returns its offset.
pub(super) fn write<'m>(dense: &'m Dense<'_>, out: &mut Buffer<'m>) -> Result<u64> {
    let rank = to_u32(dense.dims.len() as u64, "rank")?;
    let element_offset = to_u32(FIXED + 8 * u64::from(rank), "element offset")?;
    let element_count = to_u32(dense.element_count(), "element count")?;
    let byte_size = to_u32(u64::from(element_offset) + dense.bytes.len() as u64, "byte size")?;
    let base = Base { alignment: 8, element_type: dense.dtype.number(), byte_size };
    let offset = base.write(u64::from(element_offset), out);
    for word in [element_offset, element_count, rank] {
        out.bytes(&word.to_le_bytes());
    }
    shape::write_dims(&dense.dims, out);
    out.payload(&dense.bytes);
    Ok(offset)
}
