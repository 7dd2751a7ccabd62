//! `dense<...>` attributes: elements kept as little-endian bytes, a splat as its single element.

use super::{FloatKind, ShapedType, Text, Type, canonical_int};

/// A dense elements attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DenseElements {
    /// The container type; its shape is static.
    pub ty: Type,
    /// The elements.
    pub data: DenseData,
}

/// Elements of a dense attribute.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DenseData {
    /// Numbers, [`DenseElements::element_size`] little-endian bytes each; `i1` takes one byte.
    /// One element alone stands for all of them.
    Bytes(Vec<u8>),
    /// Strings; one alone stands for all of them.
    Strings(Vec<Text>),
}

impl DenseElements {
    /// Builds the attribute from all its elements, recognizing a splat.
    pub fn from_bytes(ty: Type, mut bytes: Vec<u8>) -> DenseElements {
        if let Some(size) = ty_shape(&ty).and_then(|s| element_size(&s.element))
            && size > 0
            && bytes.len() > size
            && bytes.chunks_exact(size).all(|e| *e == bytes[..size])
        {
            bytes.truncate(size);
        }
        DenseElements { ty, data: DenseData::Bytes(bytes) }
    }

    /// The shaped type.
    pub fn shaped(&self) -> Option<&ShapedType> {
        ty_shape(&self.ty)
    }

    /// Number of elements that the type asks for.
    pub fn num_elements(&self) -> u64 {
        self.shaped().and_then(ShapedType::num_elements).unwrap_or(0)
    }

    /// Bytes of one element; absent for strings.
    pub fn element_size(&self) -> Option<usize> {
        element_size(&self.shaped()?.element)
    }

    /// Whether one element is stored for all.
    pub fn is_splat(&self) -> bool {
        match &self.data {
            DenseData::Bytes(bytes) => self.element_size() == Some(bytes.len()) && self.num_elements() > 0,
            DenseData::Strings(strings) => strings.len() == 1 && self.num_elements() > 0,
        }
    }
}

fn ty_shape(ty: &Type) -> Option<&ShapedType> {
    match ty {
        Type::Shaped(shaped) => Some(shaped),
        _ => None,
    }
}

/// Bytes of one element of that type in [`DenseData::Bytes`]; absent for what is not a number.
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

/// Reads one integer element back, in the range that [`super::Attribute::Integer`] keeps.
pub(crate) fn read_int(ty: &Type, bytes: &[u8]) -> i128 {
    let mut wide = [0u8; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    canonical_int(ty, i128::from_le_bytes(wide))
}

/// Reads the bits of one floating-point element back.
pub(crate) fn read_bits(bytes: &[u8]) -> u128 {
    let mut wide = [0u8; 16];
    wide[..bytes.len()].copy_from_slice(bytes);
    u128::from_le_bytes(wide)
}
