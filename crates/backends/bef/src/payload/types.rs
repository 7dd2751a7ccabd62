//! The types of registers: `!pteron.tensor<float32, 1, 3, ?0, ?0, order 0231>`, `!pteron.number`.

use super::{Number, Type};
use crate::error::{Error, Result};
use pteron_tensor::{DimOrder, ScalarType};
use std::fmt::{self, Write};

const TENSOR: &str = "!pteron.tensor<";
const NUMBER: &str = "!pteron.number";
const ORDER: &str = "order ";

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Tensor { dtype, sizes, dim_order } = self else { return f.write_str(NUMBER) };
        write!(f, "{TENSOR}{dtype}")?;
        sizes.iter().try_for_each(|size| write!(f, ", {size}"))?;
        if !dim_order.is_contiguous() {
            write!(f, ", {ORDER}")?;
            dim_order
                .iter()
                .try_for_each(|dim| f.write_char(char::from_digit(u32::from(*dim), 36).unwrap_or('?')))?;
        }
        f.write_char('>')
    }
}

impl Type {
    /// Parses a type from its `Display` form. Expression indices must be below `expressions`.
    pub(super) fn parse(text: &str, expressions: usize) -> Result<Self> {
        if text == NUMBER {
            return Ok(Self::Number);
        }
        parse(text, expressions).ok_or_else(|| {
            Error::new(format!(
                "the type `{text}` is malformed: expected `{NUMBER}` or `{TENSOR}TYPE, SIZE.., {ORDER}DIMENSIONS>`; \
                 a size is an integer or one of the {expressions} expressions, from `?0` on"
            ))
        })
    }
}

fn parse(text: &str, expressions: usize) -> Option<Type> {
    let mut parts = text.strip_prefix(TENSOR)?.strip_suffix('>')?.split(", ");
    let dtype = ScalarType::parse(parts.next()?)?;
    let (mut sizes, mut order) = (Vec::new(), None);
    for part in parts {
        match part.strip_prefix(ORDER) {
            _ if order.is_some() => return None,
            Some(dims) => {
                let dims = dims.chars().map(|c| c.to_digit(36)?.try_into().ok());
                order = Some(DimOrder::new(&dims.collect::<Option<Vec<u8>>>()?).ok()?);
            }
            None => {
                let size = Number::parse(part, expressions)?;
                sizes.push(Some(size).filter(|size| !matches!(size, Number::Int(..0)))?);
            }
        }
        if sizes.len() > pteron_tensor::MAX_RANK {
            return None;
        }
    }
    let dim_order = order.unwrap_or_else(|| DimOrder::contiguous(sizes.len()));
    (dim_order.len() == sizes.len()).then_some(Type::Tensor { dtype, sizes, dim_order })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_round_trip() {
        for text in [
            "!pteron.tensor<float32>",
            "!pteron.tensor<bool, 0>",
            "!pteron.tensor<int64, 1, 3, ?1, 5, order 0231>",
            "!pteron.number",
        ] {
            assert_eq!(Type::parse(text, 2).unwrap().to_string(), text);
        }
        for wrong in [
            "f32",
            "!pteron.tensor<float31>",
            "!pteron.tensor<float32, ?2>",
            "!pteron.tensor<float32, -1>",
            "!pteron.tensor<float32, 1, 2, order 00>",
            "!pteron.tensor<float32, 1, 2, order 0>",
            "!pteron.tensor<float32, order 0, 1>",
            "!pteron.tensor<float32, 1",
        ] {
            assert!(Type::parse(wrong, 2).is_err(), "{wrong}");
        }
    }
}
