//! Little-endian encoding of scalars.

use pteron_tensor::{Scalar, ScalarType, bf16, f16};

/// A scalar encoded as an element of `dtype`; `None` for `ComplexHalf`, quantized and bit types.
pub(crate) fn scalar_bytes(value: Scalar, dtype: ScalarType) -> Option<Vec<u8>> {
    let real = match value {
        Scalar::Int(v) => v as f64,
        Scalar::Double(v) => v,
        Scalar::Bool(v) => f64::from(u8::from(v)),
    };
    let int = match value {
        Scalar::Int(v) => v,
        Scalar::Double(v) => v as i64,
        Scalar::Bool(v) => i64::from(v),
    };
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
