//! `dense<...>` attributes: elements kept as little-endian bytes, a splat as its single element.

use super::{FloatKind, ShapedType, Text, Type, canonical_int};

/// A dense elements attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DenseElements {
    /// The type of the tensor or vector; its shape is static.
    pub ty: Type,
    /// The elements.
    pub data: DenseData,
}

/// Elements of a dense attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DenseData {
    /// Numeric elements, [`DenseElements::element_size`] little-endian bytes each; `i1` takes one byte. A splat has a
    /// single element.
    Bytes(Vec<u8>),
    /// Strings. A splat has a single element.
    Strings(Vec<Text>),
}

impl DenseElements {
    /// Builds the attribute from all elements as bytes; stores a single element if all are equal (a splat).
    pub fn from_bytes(ty: Type, mut bytes: Vec<u8>) -> DenseElements {
        if let Some(size) = as_shaped(&ty).and_then(|s| element_size(&s.element))
            && size > 0
            && bytes.len() > size
            && bytes.chunks_exact(size).all(|e| *e == bytes[..size])
        {
            bytes.truncate(size);
        }
        DenseElements { ty, data: DenseData::Bytes(bytes) }
    }

    /// The type of the tensor or vector; absent if the type is not shaped.
    pub fn shaped_type(&self) -> Option<&ShapedType> {
        as_shaped(&self.ty)
    }

    /// Number of elements in the shape, also for a splat.
    pub fn num_elements(&self) -> u64 {
        self.shaped_type().and_then(ShapedType::num_elements).unwrap_or(0)
    }

    /// Size in bytes of one element in [`DenseData::Bytes`]; absent for elements that are not numeric.
    pub fn element_size(&self) -> Option<usize> {
        element_size(&self.shaped_type()?.element)
    }

    /// Whether this is a splat: a single element is stored, and stands for all.
    pub fn is_splat(&self) -> bool {
        match &self.data {
            DenseData::Bytes(bytes) => self.element_size() == Some(bytes.len()) && self.num_elements() > 0,
            DenseData::Strings(strings) => strings.len() == 1 && self.num_elements() > 0,
        }
    }
}

fn as_shaped(ty: &Type) -> Option<&ShapedType> {
    match ty {
        Type::Shaped(shaped) => Some(shaped),
        _ => None,
    }
}

/// Size in bytes of one element of this type in [`DenseData::Bytes`]; absent for types that are not numeric.
pub(crate) fn element_size(ty: &Type) -> Option<usize> {
    match ty {
        Type::Integer { width, .. } if *width <= 128 => {
            Some((*width as usize).div_ceil(8).next_power_of_two())
        }
        Type::Index => Some(8),
        Type::Float(FloatKind::F80) => Some(16),
        Type::Float(kind) => Some(kind.width() as usize / 8),
        Type::Complex(element) => element_size(element).map(|n| 2 * n),
        _ => None,
    }
}

/// Decodes one little-endian integer element, normalized as in [`super::Attribute::Integer`].
pub(crate) fn read_int(ty: &Type, bytes: &[u8]) -> i128 {
    let mut wide = [0u8; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    canonical_int(ty, i128::from_le_bytes(wide))
}

/// Decodes one little-endian floating-point element to its bits.
pub(crate) fn read_bits(bytes: &[u8]) -> u128 {
    let mut wide = [0u8; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(wide)
}
