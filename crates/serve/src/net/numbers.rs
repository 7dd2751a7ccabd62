//! Tensor elements as JSON.

use crate::buffer::Buffer;
use crate::refusal::{Reason, Refusal, Result};
use crate::request::OutputTensor;
use pteron::{ScalarType, bf16, f16};
use serde::de::{DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};
use std::fmt;

/// Parses JSON numbers, in arrays of any nesting, to the bytes of a tensor with `count` elements.
pub(super) fn read(text: &str, dtype: ScalarType, count: usize) -> Result<Vec<u8>> {
    let mut elements = Elements { dtype, left: count, bytes: Vec::with_capacity(count * dtype.size()) };
    let mut json = serde_json::Deserializer::from_str(text);
    let read = (&mut elements).deserialize(&mut json).and_then(|()| json.end());
    read.map_err(|e| Refusal::invalid(format!("data: {e}")))?;
    match elements.left {
        0 => Ok(elements.bytes),
        left => Err(Refusal::invalid(format!("data: {} elements, the shape has {count}", count - left))),
    }
}

struct Elements {
    dtype: ScalarType,
    left: usize,
    bytes: Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for &mut Elements {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl Elements {
    fn push<E: Error>(&mut self, bytes: &[u8]) -> Result<(), E> {
        self.left = self.left.checked_sub(1).ok_or_else(|| E::custom("more elements than the shape has"))?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    fn push_integer<E: Error>(&mut self, value: i128) -> Result<(), E> {
        macro_rules! push {
            ($type:ty) => {
                match <$type>::try_from(value) {
                    Ok(value) => self.push(&value.to_le_bytes()),
                    Err(_) => Err(E::custom(format!("{value} is out of the range of {}", self.dtype.name()))),
                }
            };
        }
        match self.dtype {
            ScalarType::Bool if value == 0 || value == 1 => self.push(&[u8::from(value == 1)]),
            ScalarType::Byte => push!(u8),
            ScalarType::UInt16 => push!(u16),
            ScalarType::UInt32 => push!(u32),
            ScalarType::UInt64 => push!(u64),
            ScalarType::Char => push!(i8),
            ScalarType::Short => push!(i16),
            ScalarType::Int => push!(i32),
            ScalarType::Long => push!(i64),
            _ => self.push_float(value as f64),
        }
    }

    fn push_float<E: Error>(&mut self, value: f64) -> Result<(), E> {
        // Do not print hundreds of digits.
        let shown = |value: f64| if value.abs() < 1e16 { value.to_string() } else { format!("{value:e}") };
        let outside = || E::custom(format!("{} is no {}", shown(value), self.dtype.name()));
        match self.dtype {
            ScalarType::Double => self.push(&value.to_le_bytes()),
            ScalarType::Float if (value as f32).is_finite() => self.push(&(value as f32).to_le_bytes()),
            ScalarType::Half if f16::from_f64(value).is_finite() => {
                self.push(&f16::from_f64(value).to_le_bytes())
            }
            ScalarType::BFloat16 if bf16::from_f64(value).is_finite() => {
                self.push(&bf16::from_f64(value).to_le_bytes())
            }
            _ => Err(outside()),
        }
    }
}

impl<'de> Visitor<'de> for &mut Elements {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of {}", self.dtype.name())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while list.next_element_seed(&mut *self)?.is_some() {}
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        match self.dtype {
            ScalarType::Bool => self.push(&[u8::from(value)]),
            _ => Err(E::custom(format!("{value} is no {}", self.dtype.name()))),
        }
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<(), E> {
        self.push_integer(i128::from(value))
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<(), E> {
        self.push_integer(i128::from(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<(), E> {
        self.push_float(value)
    }
}

/// Writes the elements of a tensor as a flat list.
///
/// # Errors
/// An element is infinite or NaN, which JSON cannot represent; or the budget is exceeded.
pub(super) fn write(out: &mut Buffer, tensor: &OutputTensor) -> Result<()> {
    macro_rules! list {
        ($type:ty) => {{
            let elements = tensor.data.chunks_exact(size_of::<$type>());
            write_list(out, elements.map(|b| <$type>::from_le_bytes(b.try_into().unwrap_or_default())))
        }};
        ($type:ty as $wider:ident) => {{
            let elements = tensor.data.chunks_exact(size_of::<$type>());
            let number = |b: &[u8]| <$type>::from_le_bytes(b.try_into().unwrap_or_default()).$wider();
            write_floats(out, tensor, elements.map(number))
        }};
    }
    match tensor.dtype {
        ScalarType::Bool => write_list(out, tensor.data.iter().map(|&byte| byte != 0)),
        ScalarType::Byte => list!(u8),
        ScalarType::UInt16 => list!(u16),
        ScalarType::UInt32 => list!(u32),
        ScalarType::UInt64 => list!(u64),
        ScalarType::Char => list!(i8),
        ScalarType::Short => list!(i16),
        ScalarType::Int => list!(i32),
        ScalarType::Long => list!(i64),
        ScalarType::Half => list!(f16 as to_f32),
        ScalarType::BFloat16 => list!(bf16 as to_f32),
        ScalarType::Float => list!(f32 as clone),
        ScalarType::Double => list!(f64 as clone),
        _ => Err(Refusal::new(Reason::Failed, "the protocol has no such type")),
    }
}

fn write_floats<T: serde::Serialize + Into<f64> + Copy>(
    out: &mut Buffer,
    tensor: &OutputTensor,
    elements: impl Iterator<Item = T> + Clone,
) -> Result<()> {
    if elements.clone().any(|x| !x.into().is_finite()) {
        return Err(Refusal::new(
            Reason::Failed,
            format!(
                "output `{}` has elements that are infinite or NaN, which JSON cannot represent: ask for it as binary data",
                tensor.name
            ),
        ));
    }
    write_list(out, elements)
}

fn write_list<T: serde::Serialize>(out: &mut Buffer, elements: impl Iterator<Item = T>) -> Result<()> {
    out.push(b"[")?;
    for (i, element) in elements.enumerate() {
        if i > 0 {
            out.push(b",")?;
        }
        out.write_json(&element)?;
    }
    out.push(b"]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::{Budget, Reservation};

    fn unlimited() -> Buffer {
        Buffer::new(Reservation::empty(&Budget::new(u64::MAX)))
    }

    fn round_trip(dtype: ScalarType, text: &str, count: usize) -> Result<String> {
        let data = read(text, dtype, count)?;
        let tensor = OutputTensor { name: "y".to_owned(), dtype, shape: vec![count], data };
        let mut out = unlimited();
        write(&mut out, &tensor)?;
        Ok(String::from_utf8(out.finish()?.0).unwrap())
    }

    #[test]
    fn elements_of_every_type_round_trip() {
        for (dtype, text) in [
            (ScalarType::Bool, "[true,false]"),
            (ScalarType::Byte, "[0,255]"),
            (ScalarType::UInt16, "[0,65535]"),
            (ScalarType::UInt32, "[0,4294967295]"),
            (ScalarType::UInt64, "[0,18446744073709551615]"),
            (ScalarType::Char, "[-128,127]"),
            (ScalarType::Short, "[-32768,32767]"),
            (ScalarType::Int, "[-2147483648,2147483647]"),
            (ScalarType::Long, "[-9223372036854775808,9223372036854775807]"),
            (ScalarType::Half, "[0.5,-65504.0]"),
            (ScalarType::BFloat16, "[0.5,-2.0]"),
            (ScalarType::Float, "[0.1,-3.4028235e+38]"),
            (ScalarType::Double, "[0.1,-1e+300]"),
        ] {
            assert_eq!(round_trip(dtype, text, 2).unwrap(), text);
        }
        assert_eq!(round_trip(ScalarType::Int, "[[[1], [2]], [[3], [4]]]", 4).unwrap(), "[1,2,3,4]");
        assert_eq!(round_trip(ScalarType::Float, "[]", 0).unwrap(), "[]");
    }

    #[test]
    fn elements_out_of_range_or_of_another_type_are_refused() {
        for (dtype, text, message) in [
            (ScalarType::Byte, "[256]", "256 is out of the range of uint8"),
            (ScalarType::Byte, "[-1]", "-1 is out of the range of uint8"),
            (ScalarType::Byte, "[1.5]", "1.5 is no uint8"),
            (ScalarType::Bool, "[2]", "2 is no bool"),
            (ScalarType::Float, "[1e39]", "is no float32"),
            (ScalarType::Half, "[65520]", "is no float16"),
            (ScalarType::Float, "[true]", "true is no float32"),
            (ScalarType::Float, "[\"1\"]", "expected a list of float32"),
            (ScalarType::Float, "[1, 2]", "more elements than the shape has"),
            (ScalarType::Float, "[]", "0 elements, the shape has 1"),
            (ScalarType::Float, "[1", "EOF"),
        ] {
            let refusal = read(text, dtype, 1).unwrap_err();
            assert!(refusal.message.contains(message), "{text}: {refusal}");
        }
        let deep = "[".repeat(100_000);
        assert!(read(&deep, ScalarType::Float, 1).unwrap_err().message.contains("recursion limit"));
        let data = f32::NAN.to_le_bytes().to_vec();
        let tensor = OutputTensor { name: "y".to_owned(), dtype: ScalarType::Float, shape: vec![1], data };
        assert!(write(&mut unlimited(), &tensor).unwrap_err().message.contains("ask for it as binary data"));
    }
}
