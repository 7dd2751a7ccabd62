use crate::{ScalarType, bf16, f16};
use std::fmt;

/// A scalar that is not in a tensor: PyTorch's `Scalar`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scalar {
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// A boolean.
    Bool(bool),
}

impl Scalar {
    /// The scalar's type for type promotion: Long, Double or Bool.
    pub const fn dtype(self) -> ScalarType {
        match self {
            Self::Int(_) => ScalarType::Long,
            Self::Double(_) => ScalarType::Double,
            Self::Bool(_) => ScalarType::Bool,
        }
    }

    /// The value as a double; integers beyond 2^53 are rounded.
    pub const fn to_f64(self) -> f64 {
        match self {
            Self::Int(v) => v as f64,
            Self::Double(v) => v,
            Self::Bool(v) => v as u8 as f64,
        }
    }

    /// The value as an integer; doubles are truncated and saturate, NaN becomes 0.
    pub const fn to_i64(self) -> i64 {
        match self {
            Self::Int(v) => v,
            Self::Double(v) => v as i64,
            Self::Bool(v) => v as i64,
        }
    }

    /// Whether the value is nonzero; true for NaN.
    pub fn to_bool(self) -> bool {
        match self {
            Self::Int(v) => v != 0,
            Self::Double(v) => v != 0.0,
            Self::Bool(v) => v,
        }
    }

    /// The little-endian bytes of this value as an element of `dtype`; `None` for `ComplexHalf`, float8, quantized and
    /// bit types.
    pub fn to_le_bytes_as(self, dtype: ScalarType) -> Option<Vec<u8>> {
        let (real, int) = (self.to_f64(), self.to_i64());
        Some(match dtype {
            ScalarType::Bool => vec![u8::from(real != 0.0)],
            ScalarType::Byte | ScalarType::Char => vec![int as u8],
            ScalarType::Short | ScalarType::UInt16 => (int as u16).to_le_bytes().to_vec(),
            ScalarType::Int | ScalarType::UInt32 => (int as u32).to_le_bytes().to_vec(),
            ScalarType::Long | ScalarType::UInt64 => int.to_le_bytes().to_vec(),
            ScalarType::Half => f16::from_f64(real).to_le_bytes().to_vec(),
            ScalarType::BFloat16 => bf16::from_f64(real).to_le_bytes().to_vec(),
            ScalarType::Float => (real as f32).to_le_bytes().to_vec(),
            ScalarType::Double => real.to_le_bytes().to_vec(),
            ScalarType::ComplexFloat => [(real as f32).to_le_bytes(), [0; 4]].concat(),
            ScalarType::ComplexDouble => [real.to_le_bytes(), [0; 8]].concat(),
            _ => return None,
        })
    }

    /// Whether the scalar is a floating-point number.
    pub const fn is_floating(self) -> bool {
        matches!(self, Self::Double(_))
    }
}

impl fmt::Display for Scalar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(v) => v.fmt(f),
            Self::Double(v) => v.fmt(f),
            Self::Bool(v) => v.fmt(f),
        }
    }
}

impl From<i64> for Scalar {
    fn from(v: i64) -> Self {
        Self::Int(v)
    }
}

impl From<f64> for Scalar {
    fn from(v: f64) -> Self {
        Self::Double(v)
    }
}

impl From<bool> for Scalar {
    fn from(v: bool) -> Self {
        Self::Bool(v)
    }
}
