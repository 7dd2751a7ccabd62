//! Scalars and data types: the value at its natural alignment, little-endian.

use super::base::check_aligned;
use super::{Attribute, DType};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, Result};
use crate::region::Region;

/// A complex number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Complex<T> {
    /// Real part.
    pub re: T,
    /// Imaginary part.
    pub im: T,
}

/// `N` bytes at `offset`, which must be a multiple of `alignment` in the file.
#[inline]
pub(super) fn bytes<const N: usize>(region: Region<'_>, offset: u64, alignment: u64) -> Result<[u8; N]> {
    let array = region.array::<N>(offset)?;
    check_aligned(region, offset, alignment, 0)?;
    Ok(array)
}

pub(super) fn bool(region: Region<'_>, offset: u64) -> Result<bool> {
    let value = region.u8(offset)?;
    check_bool(value, region.start() + offset)?;
    Ok(value == 1)
}

fn check_bool(value: u8, at: u64) -> Result<()> {
    match value {
        0 | 1 => Ok(()),
        _ => Err(Error::new(ErrorKind::Value, at, format!("bool {value}"), "0 or 1")),
    }
}

/// Fails unless every byte is 0 or 1.
pub(super) fn check_bools(elements: Region<'_>) -> Result<()> {
    // One pass that the compiler can vectorize; only if it fails, a second pass finds the offending byte.
    if elements.bytes().iter().fold(0, |all, &byte| all | byte) <= 1 {
        return Ok(());
    }
    elements.bytes().iter().zip(elements.start()..).try_for_each(|(&byte, at)| check_bool(byte, at))
}

/// The data type whose number is the byte at `offset`.
pub(super) fn dtype(region: Region<'_>, offset: u64) -> Result<DType> {
    let number = region.u8(offset)?;
    DType::new(number).ok_or_else(|| {
        Error::new(ErrorKind::UnknownTag, region.start() + offset, format!("data type {number}"), "1 to 23")
    })
}

pub(super) fn complex64(region: Region<'_>, offset: u64) -> Result<Complex<u32>> {
    let [re @ .., a, b, c, d] = bytes::<8>(region, offset, 4)?;
    Ok(Complex { re: u32::from_le_bytes(re), im: u32::from_le_bytes([a, b, c, d]) })
}

pub(super) fn complex128(region: Region<'_>, offset: u64) -> Result<Complex<u64>> {
    let value = Complex { re: region.u64(offset)?, im: region.u64(offset + 8)? };
    check_aligned(region, offset, 8, 0)?;
    Ok(value)
}

/// Decodes a scalar of type `dtype` from little-endian bytes. Returns `None` if the type has no scalars or the number
/// of bytes is wrong.
pub(super) fn from_le_bytes(dtype: DType, bytes: &[u8]) -> Option<Attribute<'static>> {
    macro_rules! number {
        ($variant:ident, $type:ty) => {
            Attribute::$variant(<$type>::from_le_bytes(bytes.try_into().ok()?))
        };
    }
    macro_rules! complex {
        ($variant:ident, $type:ty) => {{
            let (re, im) = bytes.split_at_checked(size_of::<$type>())?;
            let part = |bytes: &[u8]| Some(<$type>::from_le_bytes(bytes.try_into().ok()?));
            Attribute::$variant(Complex { re: part(re)?, im: part(im)? })
        }};
    }
    Some(match dtype {
        DType::UI8 => number!(UI8, u8),
        DType::UI16 => number!(UI16, u16),
        DType::UI32 => number!(UI32, u32),
        DType::UI64 => number!(UI64, u64),
        DType::I1 => {
            let &[byte] = bytes else { return None };
            Attribute::I1(byte != 0)
        }
        DType::I8 => number!(I8, i8),
        DType::I16 => number!(I16, i16),
        DType::I32 => number!(I32, i32),
        DType::I64 => number!(I64, i64),
        DType::F16 => number!(F16, u16),
        DType::BF16 => number!(BF16, u16),
        DType::F32 => number!(F32, u32),
        DType::F64 => number!(F64, u64),
        DType::Complex64 => complex!(Complex64, u32),
        DType::Complex128 => complex!(Complex128, u64),
        DType::String
        | DType::Resource
        | DType::Variant
        | DType::QUI8
        | DType::QUI16
        | DType::QI8
        | DType::QI16
        | DType::QI32 => return None,
    })
}

/// Reads the scalar of type `dtype` at `offset`. Also returns the offset of its end.
pub(super) fn read(region: Region<'_>, offset: u64, dtype: DType) -> Result<(Attribute<'static>, u64)> {
    let no_scalar = || {
        Error::new(
            ErrorKind::UnknownTag,
            region.start() + offset,
            format!("an attribute of type {dtype}"),
            "a type that an attribute can have",
        )
    };
    let (size, alignment) = dtype.element_size().zip(dtype.element_alignment()).ok_or_else(no_scalar)?;
    let bytes = region.slice(offset, size)?;
    check_aligned(region, offset, alignment, 0)?;
    if dtype == DType::I1 {
        bool(region, offset)?;
    }
    let value = from_le_bytes(dtype, bytes.bytes()).ok_or_else(no_scalar)?;
    Ok((value, offset + size))
}

/// Checks the scalar of type `dtype` at `offset` and returns the offset of its end.
#[inline]
pub(super) fn check(region: Region<'_>, offset: u64, dtype: DType) -> Result<u64> {
    // Every bit pattern is valid, so only bounds and alignment need checks.
    if let (Some(size), Some(alignment)) = (dtype.element_size(), dtype.element_alignment())
        && dtype != DType::I1
        && region.len() - offset.min(region.len()) >= size
        && (region.start() + offset) & (alignment - 1) == 0
    {
        return Ok(offset + size);
    }
    read(region, offset, dtype).map(|(_, end)| end)
}

fn append_aligned<const N: usize>(bytes: [u8; N], alignment: u64, out: &mut Buffer<'_>) -> u64 {
    out.align(alignment);
    let offset = out.len();
    out.bytes(&bytes);
    offset
}

/// Appends a scalar or a type and returns its offset. Other attributes have their own writers; nothing is written for
/// them here.
pub(super) fn write(value: &Attribute<'_>, out: &mut Buffer<'_>) -> u64 {
    match value {
        Attribute::UI8(v) => append_aligned([*v], 1, out),
        Attribute::I8(v) => append_aligned(v.to_le_bytes(), 1, out),
        Attribute::I1(v) => append_aligned([u8::from(*v)], 1, out),
        Attribute::Type(v) => append_aligned([v.number()], 1, out),
        Attribute::UI16(v) | Attribute::F16(v) | Attribute::BF16(v) => {
            append_aligned(v.to_le_bytes(), 2, out)
        }
        Attribute::I16(v) => append_aligned(v.to_le_bytes(), 2, out),
        Attribute::UI32(v) | Attribute::F32(v) => append_aligned(v.to_le_bytes(), 4, out),
        Attribute::I32(v) => append_aligned(v.to_le_bytes(), 4, out),
        Attribute::UI64(v) | Attribute::F64(v) => append_aligned(v.to_le_bytes(), 8, out),
        Attribute::I64(v) => append_aligned(v.to_le_bytes(), 8, out),
        Attribute::Complex64(v) => {
            let offset = append_aligned(v.re.to_le_bytes(), 4, out);
            out.bytes(&v.im.to_le_bytes());
            offset
        }
        Attribute::Complex128(v) => {
            let offset = append_aligned(v.re.to_le_bytes(), 8, out);
            out.bytes(&v.im.to_le_bytes());
            offset
        }
        Attribute::String(_)
        | Attribute::Func(_)
        | Attribute::Shape(_)
        | Attribute::Dense(_)
        | Attribute::Array(_)
        | Attribute::Aggregate(_)
        | Attribute::SymbolRef(_) => out.len(),
    }
}
