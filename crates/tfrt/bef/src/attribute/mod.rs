//! Attribute values, one file per kind of attribute: its in-memory form, its reader and its writer.
//!
//! | file | attributes | bytes |
//! | --- | --- | --- |
//! | [`scalar`] | integer, float, complex, bool, type | the value at its natural alignment |
//! | [`string`] | string, func | `u32 length`, bytes |
//! | [`mod@array`] | array | `u32 count`, elements |
//! | [`shape`] | shape | 8-byte base, `u32 rank`, `i64 dims[rank]`; unranked is `u32 0` |
//! | [`dense`] | dense | 8-byte base, offset, count, rank, dims, elements |
//! | [`aggregate`] | aggregate | 8-byte base, `u32 n`, `u32 offsets[n]`, elements each behind its type byte |
//! | [`symbol_ref`] | symbol ref | VBR lengths, names, module text, NUL |
//!
//! Alignment refers to the absolute file offset, never to an address: the bytes may be anywhere in memory.

pub mod aggregate;
pub mod array;
mod base;
pub mod dense;
mod display;
mod reference;
pub mod scalar;
pub mod shape;
pub mod string;
pub mod symbol_ref;
mod types;

use std::borrow::Cow;

use crate::buffer::Buffer;
use crate::error::Result;

pub use aggregate::Aggregate;
pub use array::Array;
pub use dense::Dense;
pub use reference::AttributeRef;
pub use scalar::Complex;
pub use shape::Shape;
pub use symbol_ref::SymbolRef;
pub use types::{AttributeType, DType, ElementType};

/// The value of an attribute. Text and payloads borrow from the file that they were read from.
///
/// Floating-point values are stored as raw bits, so that attributes compare, hash and round-trip exactly: convert them
/// with [`f32::from_bits`]. `Display` shows the numeric value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The scalar variants are named after their types.
pub enum Attribute<'a> {
    UI8(u8),
    UI16(u16),
    UI32(u32),
    UI64(u64),
    /// A bool: one byte, 0 or 1.
    I1(bool),
    I8(i8),
    I16(i16),
    I32(i32),
    I64(i64),
    /// An `f16`, as raw bits.
    F16(u16),
    /// A `bf16`, as raw bits.
    BF16(u16),
    /// An `f32`, as raw bits.
    F32(u32),
    /// An `f64`, as raw bits.
    F64(u64),
    /// Two `f32`, as raw bits.
    Complex64(Complex<u32>),
    /// Two `f64`, as raw bits.
    Complex128(Complex<u64>),
    /// The bytes of a string, usually UTF-8.
    String(Cow<'a, [u8]>),
    /// A data type.
    Type(DType),
    /// A function's name, as bytes.
    Func(Cow<'a, [u8]>),
    Shape(Shape),
    Dense(Dense<'a>),
    Array(Array<'a>),
    /// Attributes of any types. The reference converter stores a list whose elements have one fixed-width type as an
    /// [`Attribute::Array`], and an empty list as [`Array::empty`]; this crate does not enforce it.
    Aggregate(Vec<Attribute<'a>>),
    SymbolRef(Box<SymbolRef<'a>>),
}

impl<'a> Attribute<'a> {
    /// The type of this attribute.
    pub fn attribute_type(&self) -> AttributeType {
        use AttributeType::Scalar;
        match self {
            Attribute::UI8(_) => Scalar(DType::UI8),
            Attribute::UI16(_) => Scalar(DType::UI16),
            Attribute::UI32(_) => Scalar(DType::UI32),
            Attribute::UI64(_) => Scalar(DType::UI64),
            Attribute::I1(_) => Scalar(DType::I1),
            Attribute::I8(_) => Scalar(DType::I8),
            Attribute::I16(_) => Scalar(DType::I16),
            Attribute::I32(_) => Scalar(DType::I32),
            Attribute::I64(_) => Scalar(DType::I64),
            Attribute::F16(_) => Scalar(DType::F16),
            Attribute::BF16(_) => Scalar(DType::BF16),
            Attribute::F32(_) => Scalar(DType::F32),
            Attribute::F64(_) => Scalar(DType::F64),
            Attribute::Complex64(_) => Scalar(DType::Complex64),
            Attribute::Complex128(_) => Scalar(DType::Complex128),
            Attribute::String(_) => AttributeType::String,
            Attribute::Type(_) => AttributeType::Type,
            Attribute::Func(_) => AttributeType::Func,
            Attribute::Shape(_) => AttributeType::Shape,
            Attribute::Dense(_) => AttributeType::Dense,
            Attribute::Array(array) => AttributeType::Array(array.element_type()),
            Attribute::Aggregate(_) => AttributeType::Aggregate,
            Attribute::SymbolRef(_) => AttributeType::SymbolRef,
        }
    }

    /// A string attribute.
    pub fn string(text: impl Into<Cow<'a, str>>) -> Self {
        Attribute::String(match text.into() {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        })
    }

    /// An `f32` attribute.
    pub fn f32(value: f32) -> Self {
        Attribute::F32(value.to_bits())
    }

    /// An `f64` attribute.
    pub fn f64(value: f64) -> Self {
        Attribute::F64(value.to_bits())
    }

    /// The attribute with its bytes owned: copied if they are borrowed from a file.
    pub fn into_owned(self) -> Attribute<'static> {
        let owned = |bytes: Cow<'a, [u8]>| Cow::Owned(bytes.into_owned());
        match self {
            Attribute::UI8(v) => Attribute::UI8(v),
            Attribute::UI16(v) => Attribute::UI16(v),
            Attribute::UI32(v) => Attribute::UI32(v),
            Attribute::UI64(v) => Attribute::UI64(v),
            Attribute::I1(v) => Attribute::I1(v),
            Attribute::I8(v) => Attribute::I8(v),
            Attribute::I16(v) => Attribute::I16(v),
            Attribute::I32(v) => Attribute::I32(v),
            Attribute::I64(v) => Attribute::I64(v),
            Attribute::F16(v) => Attribute::F16(v),
            Attribute::BF16(v) => Attribute::BF16(v),
            Attribute::F32(v) => Attribute::F32(v),
            Attribute::F64(v) => Attribute::F64(v),
            Attribute::Complex64(v) => Attribute::Complex64(v),
            Attribute::Complex128(v) => Attribute::Complex128(v),
            Attribute::String(v) => Attribute::String(owned(v)),
            Attribute::Type(v) => Attribute::Type(v),
            Attribute::Func(v) => Attribute::Func(owned(v)),
            Attribute::Shape(v) => Attribute::Shape(v),
            Attribute::Dense(v) => Attribute::Dense(v.into_owned()),
            Attribute::Array(v) => Attribute::Array(v.into_owned()),
            Attribute::Aggregate(v) => {
                Attribute::Aggregate(v.into_iter().map(Attribute::into_owned).collect())
            }
            Attribute::SymbolRef(v) => Attribute::SymbolRef(Box::new(v.into_owned())),
        }
    }
}

macro_rules! from_values {
    ($($type:ty, $value:ident => $attribute:expr;)*) => {$(
        impl From<$type> for Attribute<'_> {
            fn from($value: $type) -> Self {
                $attribute
            }
        }
    )*};
}

from_values! {
    bool, value => Attribute::I1(value);
    i8, value => Attribute::I8(value);
    i16, value => Attribute::I16(value);
    i32, value => Attribute::I32(value);
    i64, value => Attribute::I64(value);
    u8, value => Attribute::UI8(value);
    u16, value => Attribute::UI16(value);
    u32, value => Attribute::UI32(value);
    u64, value => Attribute::UI64(value);
    f32, value => Attribute::F32(value.to_bits());
    f64, value => Attribute::F64(value.to_bits());
    String, value => Attribute::string(value);
    DType, value => Attribute::Type(value);
    Shape, value => Attribute::Shape(value);
}

impl<'a> From<&'a str> for Attribute<'a> {
    fn from(value: &'a str) -> Self {
        Attribute::string(value)
    }
}

impl<'a> From<Array<'a>> for Attribute<'a> {
    fn from(value: Array<'a>) -> Self {
        Attribute::Array(value)
    }
}

impl<'a> From<Dense<'a>> for Attribute<'a> {
    fn from(value: Dense<'a>) -> Self {
        Attribute::Dense(value)
    }
}

/// Appends an attribute at its alignment and returns its offset.
pub(crate) fn write<'m>(value: &'m Attribute<'_>, out: &mut Buffer<'m>) -> Result<u64> {
    match value {
        Attribute::String(bytes) | Attribute::Func(bytes) => string::write(bytes, out),
        Attribute::Shape(shape) => shape::write(shape, out),
        Attribute::Dense(dense) => dense::write(dense, out),
        Attribute::Array(array) => array::write(array, out),
        Attribute::Aggregate(elements) => aggregate::write(elements, out),
        Attribute::SymbolRef(symbol) => Ok(symbol_ref::write(symbol, out)),
        scalar => Ok(scalar::write(scalar, out)),
    }
}
