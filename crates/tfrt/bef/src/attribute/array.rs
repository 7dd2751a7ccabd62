//! Arrays of fixed-width elements: `u32 count`, then the elements.
//!
//! The count is aligned to 4; if the elements have alignment 8, it is 4 bytes before a multiple of 8. An empty array is
//! just its count.

use std::borrow::Cow;

use super::base::{check_aligned, to_u32};
use super::{Attribute, DType, ElementType, scalar};
use crate::buffer::Buffer;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::region::Region;

/// The elements of an array attribute, as little-endian bytes: scalars of one data type, or type attributes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Array<'a> {
    element_type: ElementType,
    bytes: Cow<'a, [u8]>,
}

macro_rules! elements {
    ($($from:ident, $to:ident, $type:ty, $dtypes:pat, $dtype:ident, $name:literal;)*) => {$(
        #[doc = concat!("An array of ", $name, ".")]
        pub fn $from(values: &[$type]) -> Array<'static> {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            Array { element_type: ElementType::Data(DType::$dtype), bytes: bytes.into() }
        }

        #[doc = concat!("The elements, if they are ", $name, ".")]
        pub fn $to(&self) -> Option<impl ExactSizeIterator<Item = $type> + '_> {
            const SIZE: usize = size_of::<$type>();
            let ElementType::Data($dtypes) = self.element_type else { return None };
            Some(self.bytes.as_chunks::<SIZE>().0.iter().map(|&chunk| <$type>::from_le_bytes(chunk)))
        }
    )*};
}

impl<'a> Array<'a> {
    /// An empty array. The format records every empty array as one of `i32`, whatever its element type was.
    pub fn empty() -> Array<'static> {
        Array { element_type: ElementType::Data(DType::I32), bytes: Cow::Borrowed(&[]) }
    }

    /// An array from little-endian bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Mismatch`] if the length is not a multiple of the element size, [`ErrorKind::Value`] if an element
    /// is invalid (a bool other than 0 and 1) or the data type cannot be an element type, [`ErrorKind::UnknownTag`] if
    /// an element names no data type.
    pub fn from_bytes(element_type: ElementType, bytes: impl Into<Cow<'a, [u8]>>) -> Result<Self> {
        let bytes = bytes.into();
        if let ElementType::Data(dtype) = element_type
            && dtype.element_size().is_none()
        {
            return Err(Error::without_offset(
                ErrorKind::Value,
                format!("an array of {dtype}"),
                "numbers or types",
            ));
        }
        if !(bytes.len() as u64).is_multiple_of(element_type.size()) {
            return Err(Error::without_offset(
                ErrorKind::Mismatch,
                format!("{} bytes", bytes.len()),
                format!("a multiple of {}", element_type.size()),
            ));
        }
        check_elements(element_type, Region::new(&bytes, 0))?;
        Ok(Array { element_type, bytes })
    }

    /// An array of data types.
    pub fn from_types(types: &[DType]) -> Array<'static> {
        let bytes: Vec<u8> = types.iter().map(|dtype| dtype.number()).collect();
        Array { element_type: ElementType::Type, bytes: bytes.into() }
    }

    /// An array of bools.
    pub fn from_bools(values: &[bool]) -> Array<'static> {
        let bytes: Vec<u8> = values.iter().map(|&value| u8::from(value)).collect();
        Array { element_type: ElementType::Data(DType::I1), bytes: bytes.into() }
    }

    /// The type of the elements.
    pub fn element_type(&self) -> ElementType {
        self.element_type
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.bytes.len() as u64 / self.element_type.size()
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The elements as little-endian bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements as attributes, in order.
    pub fn elements(&self) -> impl Iterator<Item = Attribute<'static>> + '_ {
        let size = usize::try_from(self.element_type.size()).unwrap_or(usize::MAX);
        self.bytes.chunks_exact(size).filter_map(|bytes| match self.element_type {
            ElementType::Data(dtype) => scalar::from_le_bytes(dtype, bytes),
            ElementType::Type => bytes.first().and_then(|&number| DType::new(number)).map(Attribute::Type),
        })
    }

    /// The elements, if they are data types.
    pub fn types(&self) -> Option<impl ExactSizeIterator<Item = DType> + '_> {
        let types = self.element_type == ElementType::Type;
        types.then(|| self.bytes.iter().map(|&number| DType::new(number).unwrap_or(DType::I32)))
    }

    /// The elements, if they are bools.
    pub fn bools(&self) -> Option<impl ExactSizeIterator<Item = bool> + '_> {
        let bools = self.element_type == ElementType::Data(DType::I1);
        bools.then(|| self.bytes.iter().map(|&byte| byte == 1))
    }

    elements! {
        from_u8s, u8s, u8, DType::UI8, UI8, "`u8`";
        from_u16s, u16s, u16, DType::UI16, UI16, "`u16`";
        from_u32s, u32s, u32, DType::UI32, UI32, "`u32`";
        from_u64s, u64s, u64, DType::UI64, UI64, "`u64`";
        from_i8s, i8s, i8, DType::I8, I8, "`i8`";
        from_i16s, i16s, i16, DType::I16, I16, "`i16`";
        from_i32s, i32s, i32, DType::I32, I32, "`i32`";
        from_i64s, i64s, i64, DType::I64, I64, "`i64`";
        from_f32s, f32s, f32, DType::F32, F32, "`f32`";
        from_f64s, f64s, f64, DType::F64, F64, "`f64`";
        from_f16_bits, f16_bits, u16, DType::F16, F16, "`f16`, as raw bits";
        from_bf16_bits, bf16_bits, u16, DType::BF16, BF16, "`bf16`, as raw bits";
    }

    /// The array with its bytes owned: copied if they are borrowed from a file.
    pub fn into_owned(self) -> Array<'static> {
        Array { element_type: self.element_type, bytes: Cow::Owned(self.bytes.into_owned()) }
    }
}

fn check_elements(element_type: ElementType, elements: Region<'_>) -> Result<()> {
    match element_type {
        ElementType::Data(DType::I1) => scalar::check_bools(elements),
        ElementType::Type => {
            (0..elements.len()).try_for_each(|index| scalar::dtype(elements, index).map(drop))
        }
        ElementType::Data(_) => Ok(()),
    }
}

/// Reads the array at `offset`. Also returns the offset of its end.
pub(super) fn read(region: Region<'_>, offset: u64, element_type: ElementType) -> Result<(Array<'_>, u64)> {
    let count = u64::from(region.u32(offset).in_field(|| "count")?);
    let alignment = if count == 0 { 1 } else { element_type.alignment() };
    check_aligned(region, offset, 4, 0)?;
    check_aligned(region, offset, alignment, 4)?;
    let size = count * element_type.size();
    let elements = region.slice(offset + 4, size)?;
    check_elements(element_type, elements)?;
    Ok((Array { element_type, bytes: elements.bytes().into() }, offset + 4 + size))
}

/// Appends an array and returns its offset.
pub(super) fn write<'m>(array: &'m Array<'_>, out: &mut Buffer<'m>) -> Result<u64> {
    let count = to_u32(array.len(), "element count")?;
    match array.element_type.alignment() {
        alignment if alignment > 4 && count > 0 => out.align_for(alignment, 4),
        _ => out.align(4),
    }
    let offset = out.len();
    out.bytes(&count.to_le_bytes());
    out.payload(&array.bytes);
    Ok(offset)
}
