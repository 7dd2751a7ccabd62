use std::fmt;
use tensor::{Scalar, Tensor};

/// The kind of an [`EValue`], numbered as the reference's `Tag`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Tag {
    /// No value.
    None = 0,
    /// A tensor.
    Tensor = 1,
    /// A string.
    String = 2,
    /// A floating-point number.
    Double = 3,
    /// An integer.
    Int = 4,
    /// A boolean.
    Bool = 5,
    /// Booleans.
    ListBool = 6,
    /// Floating-point numbers.
    ListDouble = 7,
    /// Integers.
    ListInt = 8,
    /// Tensors.
    ListTensor = 9,
    /// Tensors, some absent.
    ListOptionalTensor = 11,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A value that a program takes or gives: what an input or an output of a method can be.
#[derive(Debug, Clone, Default)]
#[expect(clippy::large_enum_variant, reason = "most values are tensors, and they are few")]
pub enum EValue {
    /// No value.
    #[default]
    None,
    /// A tensor with its bytes.
    Tensor(Tensor),
    /// A string.
    String(String),
    /// A floating-point number.
    Double(f64),
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// Booleans.
    ListBool(Vec<bool>),
    /// Floating-point numbers.
    ListDouble(Vec<f64>),
    /// Integers.
    ListInt(Vec<i64>),
    /// Tensors.
    ListTensor(Vec<Tensor>),
    /// Tensors, some absent.
    ListOptionalTensor(Vec<Option<Tensor>>),
}

impl EValue {
    /// The kind of value.
    pub fn tag(&self) -> Tag {
        match self {
            Self::None => Tag::None,
            Self::Tensor(_) => Tag::Tensor,
            Self::String(_) => Tag::String,
            Self::Double(_) => Tag::Double,
            Self::Int(_) => Tag::Int,
            Self::Bool(_) => Tag::Bool,
            Self::ListBool(_) => Tag::ListBool,
            Self::ListDouble(_) => Tag::ListDouble,
            Self::ListInt(_) => Tag::ListInt,
            Self::ListTensor(_) => Tag::ListTensor,
            Self::ListOptionalTensor(_) => Tag::ListOptionalTensor,
        }
    }

    /// The tensor, if it is one.
    pub fn as_tensor(&self) -> Option<&Tensor> {
        if let Self::Tensor(t) = self { Some(t) } else { None }
    }

    /// The number, if it is one.
    pub fn as_scalar(&self) -> Option<Scalar> {
        match *self {
            Self::Int(v) => Some(Scalar::Int(v)),
            Self::Double(v) => Some(Scalar::Double(v)),
            Self::Bool(v) => Some(Scalar::Bool(v)),
            _ => None,
        }
    }
}

impl From<Tensor> for EValue {
    fn from(t: Tensor) -> Self {
        Self::Tensor(t)
    }
}

impl From<i64> for EValue {
    fn from(v: i64) -> Self {
        Self::Int(v)
    }
}

impl From<f64> for EValue {
    fn from(v: f64) -> Self {
        Self::Double(v)
    }
}

impl From<bool> for EValue {
    fn from(v: bool) -> Self {
        Self::Bool(v)
    }
}

impl From<Scalar> for EValue {
    fn from(s: Scalar) -> Self {
        match s {
            Scalar::Int(v) => Self::Int(v),
            Scalar::Double(v) => Self::Double(v),
            Scalar::Bool(v) => Self::Bool(v),
        }
    }
}
