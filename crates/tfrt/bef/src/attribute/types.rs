//! Data types and attribute types, with their numbers in the format.

use std::fmt;

/// A data type, with the format's number as discriminant: the type of a dense attribute's elements, and the value of
/// a type attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs)] // The names are self-explanatory.
pub enum DType {
    UI8 = 1,
    UI16 = 2,
    UI32 = 3,
    UI64 = 4,
    I1 = 5,
    I8 = 6,
    I16 = 7,
    I32 = 8,
    I64 = 9,
    F32 = 10,
    F64 = 11,
    Complex64 = 12,
    Complex128 = 13,
    F16 = 14,
    BF16 = 15,
    String = 16,
    Resource = 17,
    Variant = 18,
    QUI8 = 19,
    QUI16 = 20,
    QI8 = 21,
    QI16 = 22,
    QI32 = 23,
}

impl DType {
    /// All data types, ordered by number from 1.
    pub const ALL: [DType; 23] = [
        DType::UI8,
        DType::UI16,
        DType::UI32,
        DType::UI64,
        DType::I1,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F32,
        DType::F64,
        DType::Complex64,
        DType::Complex128,
        DType::F16,
        DType::BF16,
        DType::String,
        DType::Resource,
        DType::Variant,
        DType::QUI8,
        DType::QUI16,
        DType::QI8,
        DType::QI16,
        DType::QI32,
    ];

    /// The data type with this number in the format; `None` if the format does not define the number.
    pub fn new(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).wrapping_sub(1)).copied()
    }

    /// The number of the data type in the format.
    pub fn number(self) -> u8 {
        self as u8
    }

    /// Size in bytes of one element in an array or dense attribute; `None` for types that cannot be elements (strings,
    /// resources, variants and quantized types).
    #[inline]
    pub fn element_size(self) -> Option<u64> {
        Some(match self {
            DType::I1 | DType::I8 | DType::UI8 => 1,
            DType::I16 | DType::UI16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::UI32 | DType::F32 => 4,
            DType::I64 | DType::UI64 | DType::F64 | DType::Complex64 => 8,
            DType::Complex128 => 16,
            _ => return None,
        })
    }

    /// Alignment of one element in bytes: its size, or for complex numbers the size of one component.
    #[inline]
    pub fn element_alignment(self) -> Option<u64> {
        Some(match self {
            DType::Complex64 => 4,
            DType::Complex128 => 8,
            other => other.element_size()?,
        })
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The element type of an array attribute: scalars or data types.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// Scalars of this data type, never one whose [`DType::element_size`] is `None`.
    Data(DType),
    /// Data types: one byte each, a [`DType`] number.
    Type,
}

impl ElementType {
    fn new(number: u8) -> Option<Self> {
        match number {
            TYPE => Some(ElementType::Type),
            _ => DType::new(number).filter(|dtype| dtype.element_size().is_some()).map(ElementType::Data),
        }
    }

    /// Size of one element in bytes.
    pub fn size(self) -> u64 {
        match self {
            ElementType::Data(dtype) => dtype.element_size().unwrap_or(1),
            ElementType::Type => 1,
        }
    }

    /// Alignment of one element in bytes.
    pub fn alignment(self) -> u64 {
        match self {
            ElementType::Data(dtype) => dtype.element_alignment().unwrap_or(1),
            ElementType::Type => 1,
        }
    }

    fn number(self) -> u8 {
        match self {
            ElementType::Data(dtype) => dtype.number(),
            ElementType::Type => TYPE,
        }
    }
}

/// The type of an attribute, as recorded in the AttributeTypes section and in the byte before an aggregate's element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttributeType {
    /// A scalar: an integer, floating-point or complex number, or a bool.
    Scalar(DType),
    /// A string: bytes, usually UTF-8, after their length.
    String,
    /// A data type.
    Type,
    /// The name of a function.
    Func,
    /// A shape, ranked or not.
    Shape,
    /// A constant tensor.
    Dense,
    /// A symbol inside a compiled module, with that module's text.
    SymbolRef,
    /// A list of attributes of any types.
    Aggregate,
    /// A list of scalars that share a data type, or a list of data types.
    Array(ElementType),
}

const STRING: u8 = DType::String as u8;
const TYPE: u8 = 25;
const FUNC: u8 = 26;
const SHAPE: u8 = 27;
const DENSE: u8 = 28;
const SYMBOL_REF: u8 = 29;
const AGGREGATE: u8 = 30;
const ARRAY: u8 = 128;

impl AttributeType {
    /// The type that files record for every empty array.
    pub const EMPTY_ARRAY: AttributeType = AttributeType::Array(ElementType::Data(DType::I32));

    /// The attribute type with this number; `None` if the format does not define the number.
    pub fn new(number: u8) -> Option<Self> {
        Some(match number {
            STRING => AttributeType::String,
            TYPE => AttributeType::Type,
            FUNC => AttributeType::Func,
            SHAPE => AttributeType::Shape,
            DENSE => AttributeType::Dense,
            SYMBOL_REF => AttributeType::SymbolRef,
            AGGREGATE => AttributeType::Aggregate,
            ARRAY.. => AttributeType::Array(ElementType::new(number - ARRAY)?),
            _ => match ElementType::new(number)? {
                ElementType::Data(dtype) => AttributeType::Scalar(dtype),
                ElementType::Type => AttributeType::Type,
            },
        })
    }

    /// The number of the attribute type in the format.
    pub fn number(self) -> u8 {
        match self {
            AttributeType::Scalar(dtype) => dtype.number(),
            AttributeType::String => STRING,
            AttributeType::Type => TYPE,
            AttributeType::Func => FUNC,
            AttributeType::Shape => SHAPE,
            AttributeType::Dense => DENSE,
            AttributeType::SymbolRef => SYMBOL_REF,
            AttributeType::Aggregate => AGGREGATE,
            AttributeType::Array(element) => ARRAY | element.number(),
        }
    }
}

impl fmt::Display for AttributeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttributeType::Scalar(dtype) => write!(f, "{dtype}"),
            AttributeType::Array(ElementType::Data(dtype)) => write!(f, "array of {dtype}"),
            AttributeType::Array(ElementType::Type) => f.write_str("array of types"),
            other => f.write_str(match other {
                AttributeType::String => "string",
                AttributeType::Type => "type",
                AttributeType::Func => "func",
                AttributeType::Shape => "shape",
                AttributeType::Dense => "dense",
                AttributeType::SymbolRef => "symbol ref",
                _ => "aggregate",
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_types_are_one_to_one() {
        let known: Vec<u8> =
            (0..=255).filter(|&n| AttributeType::new(n).is_some_and(|t| t.number() == n)).collect();
        let expected: Vec<u8> = (1..=16).chain(25..=30).chain(129..=143).chain([153]).collect();
        assert_eq!(known, expected);
        assert!((0..=255).all(|n| AttributeType::new(n).is_none_or(|t| t.number() == n)));
        assert!((0..=255).all(|n| DType::new(n).is_none_or(|t| t.number() == n)));
        assert_eq!(AttributeType::EMPTY_ARRAY.number(), 136);
    }
}
