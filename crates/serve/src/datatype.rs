//! The protocol's names of element types.

use pteron::ScalarType;

const NAMES: &[(ScalarType, &str)] = &[
    (ScalarType::Bool, "BOOL"),
    (ScalarType::Byte, "UINT8"),
    (ScalarType::UInt16, "UINT16"),
    (ScalarType::UInt32, "UINT32"),
    (ScalarType::UInt64, "UINT64"),
    (ScalarType::Char, "INT8"),
    (ScalarType::Short, "INT16"),
    (ScalarType::Int, "INT32"),
    (ScalarType::Long, "INT64"),
    (ScalarType::Half, "FP16"),
    (ScalarType::BFloat16, "BF16"),
    (ScalarType::Float, "FP32"),
    (ScalarType::Double, "FP64"),
];

/// The protocol's name of a data type; `None` for complex, quantized and float8 types.
pub fn name(dtype: ScalarType) -> Option<&'static str> {
    NAMES.iter().find(|(own, _)| *own == dtype).map(|(_, name)| *name)
}

/// Parses the protocol's name of a data type; `None` for unknown names and for `BYTES`, since tensors have no strings.
pub fn parse(name: &str) -> Option<ScalarType> {
    NAMES.iter().find(|(_, own)| *own == name).map(|(dtype, _)| *dtype)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_types_map_to_each_other() {
        for (dtype, text) in NAMES {
            assert_eq!((name(*dtype), parse(text)), (Some(*text), Some(*dtype)));
        }
        assert_eq!((parse("BYTES"), parse("fp32"), name(ScalarType::ComplexFloat)), (None, None, None));
    }
}
