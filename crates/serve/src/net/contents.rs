//! Parts of gRPC messages that are checked before they are decoded, or decoded by the type of their tensor.

use super::elements;
use super::messages::Contents;
use crate::budget::Reservation;
use crate::refusal::{Reason, Refusal, Result};
use crate::request::Data;
use bytes::Bytes;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint};
use pteron::{ScalarType, bf16, f16};

/// The maximum number of bytes of a message other than tensor elements: names, shapes, parameters. Decoded, they may
/// take [`DECODED_FACTOR`] times as much memory.
pub(super) const MAX_HEAD: usize = 64 << 10;
const DECODED_FACTOR: usize = 100;
/// Messages of up to this many bytes are not searched for tensor elements: they count as having none.
const SMALL: usize = 512;

/// The field number of the inputs in an inference request.
const INPUTS: u32 = 5;
/// The field number of the raw contents in an inference request.
const RAW_CONTENTS: u32 = 7;
/// The field number of the contents in an input.
const CONTENTS: u32 = 5;

/// The field number of the elements of type `BYTES` in contents.
const FILES: u32 = 8;

/// The memory that a message takes when it is decoded, besides the elements of its tensors, which are not copied. Fails
/// if it has more than [`MAX_HEAD`] bytes that are not elements.
pub(super) fn check_head(message: &Bytes) -> Result<u64> {
    let mut elements = 0;
    if message.len() > SMALL {
        for_each_field(message.clone(), |field, data| {
            match field {
                // Each entry of raw contents is a separate allocation, which counts as 64 bytes.
                RAW_CONTENTS => elements += data.len().saturating_sub(64),
                INPUTS => for_each_field(data, |field, data| {
                    if field == CONTENTS {
                        elements += data.len();
                    }
                    Ok(())
                })?,
                _ => {}
            }
            Ok(())
        })?;
    }
    match message.len() - elements {
        head @ ..=MAX_HEAD => Ok((head * DECODED_FACTOR) as u64),
        _ => Err(Refusal::new(
            Reason::TooLarge,
            format!("the message has more than {MAX_HEAD} bytes that are not elements of tensors"),
        )),
    }
}

/// Calls `each` with the number and contents of every length-delimited field of a message.
fn for_each_field(mut message: Bytes, mut each: impl FnMut(u32, Bytes) -> Result<()>) -> Result<()> {
    let bad = |_| Refusal::invalid("the message cannot be read");
    let short = || Refusal::invalid("the message ends early");
    while !message.is_empty() {
        let (field, kind) = decode_key(&mut message).map_err(bad)?;
        let skipped = match kind {
            WireType::Varint => decode_varint(&mut message).map(|_| 0).map_err(bad)?,
            WireType::ThirtyTwoBit => 4,
            WireType::SixtyFourBit => 8,
            WireType::LengthDelimited => {
                let len = usize::try_from(decode_varint(&mut message).map_err(bad)?).map_err(|_| short())?;
                if len > message.len() {
                    return Err(short());
                }
                each(field, message.split_to(len))?;
                0
            }
            WireType::StartGroup | WireType::EndGroup => {
                return Err(Refusal::invalid("the message has groups, which the protocol does not use"));
            }
        };
        if skipped > message.len() {
            return Err(short());
        }
        let _ = message.split_to(skipped);
    }
    Ok(())
}

/// The elements of a tensor of `BYTES`. Their list is charged to `reservation`.
pub(super) fn files(contents: Bytes, reservation: &mut Reservation) -> Result<Vec<Data>> {
    let mut files: Vec<Data> = Vec::new();
    for_each_field(contents, |field, file| {
        if field == FILES {
            elements::check_count(files.len())?;
            reservation.grow(64)?;
            files.push(Box::new(file));
        }
        Ok(())
    })?;
    Ok(files)
}

/// The elements of a tensor as bytes, taken from that field of its contents that the type prescribes.
pub(super) fn elements(contents: Bytes, dtype: ScalarType) -> Result<Vec<u8>> {
    let c = Contents::decode(contents).map_err(|e| Refusal::invalid(format!("contents: {e}")))?;
    macro_rules! narrow {
        ($list:expr, $type:ty) => {
            collect_bytes($list.into_iter().map(|x| <$type>::try_from(x).ok().map(|x| x.to_le_bytes())))
        };
    }
    let elements = match dtype {
        ScalarType::Bool => Some(c.bools.into_iter().map(u8::from).collect()),
        ScalarType::Char => narrow!(c.ints, i8),
        ScalarType::Short => narrow!(c.ints, i16),
        ScalarType::Int => narrow!(c.ints, i32),
        ScalarType::Long => narrow!(c.int64s, i64),
        ScalarType::Byte => narrow!(c.uints, u8),
        ScalarType::UInt16 => narrow!(c.uints, u16),
        ScalarType::UInt32 => narrow!(c.uints, u32),
        ScalarType::UInt64 => narrow!(c.uint64s, u64),
        ScalarType::Float => narrow!(c.fp32s, f32),
        ScalarType::Double => narrow!(c.fp64s, f64),
        ScalarType::Half => collect_bytes(c.fp32s.into_iter().map(|x| Some(f16::from_f32(x).to_le_bytes()))),
        ScalarType::BFloat16 => {
            collect_bytes(c.fp32s.into_iter().map(|x| Some(bf16::from_f32(x).to_le_bytes())))
        }
        _ => None,
    };
    elements.ok_or_else(|| {
        Refusal::invalid(format!("contents: an element is out of the range of {}", dtype.name()))
    })
}

fn collect_bytes<const N: usize>(elements: impl Iterator<Item = Option<[u8; N]>>) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(elements.size_hint().0 * N);
    for element in elements {
        bytes.extend(element?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::super::messages::{InferRequest, InputTensor};
    use super::*;

    #[test]
    fn many_small_entries_are_refused() {
        let many = InferRequest { inputs: vec![InputTensor::default(); 40_000], ..Default::default() };
        let refusal = check_head(&many.encode_to_vec().into()).unwrap_err();
        assert_eq!(refusal.reason, Reason::TooLarge);
        let raw = InferRequest { raw_input_contents: vec![Bytes::new(); 40_000], ..Default::default() };
        assert!(check_head(&raw.encode_to_vec().into()).is_err());
        let large = Bytes::from(vec![0; 1 << 20]);
        let input = InputTensor { contents: Some(large.clone()), ..Default::default() };
        let large =
            InferRequest { inputs: vec![input], raw_input_contents: vec![large], ..Default::default() };
        let bytes: Bytes = large.encode_to_vec().into();
        assert!(check_head(&bytes).is_ok_and(|decoded| decoded < 100_000));
        for cut in [1, 100, 1 << 20] {
            assert!(check_head(&bytes.slice(..bytes.len() - cut)).is_err());
        }
    }

    #[test]
    fn elements_are_converted_to_the_type_of_the_tensor() {
        let contents = Contents { ints: vec![-1, 300], ..Contents::default() };
        let bytes = || Bytes::from(contents.encode_to_vec());
        assert_eq!(elements(bytes(), ScalarType::Short).unwrap(), [255, 255, 44, 1]);
        assert!(
            elements(bytes(), ScalarType::Char).unwrap_err().message.contains("out of the range of int8")
        );
        assert_eq!(elements(bytes(), ScalarType::Float).unwrap(), [0u8; 0]);
    }
}
