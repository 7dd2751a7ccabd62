//! Tensors of `BYTES`: pictures as inputs, and classes as outputs. Each element is preceded by its length, four bytes,
//! little-endian.

use crate::budget::Reservation;
use crate::refusal::{Refusal, Result};
use crate::request::{Data, PictureInput};
use bytes::Bytes;

/// The protocol's name of the type.
pub(super) const BYTES: &str = "BYTES";

/// The maximum number of pictures of an input.
pub(super) const MAX_PICTURES: usize = 1024;

/// An input that is given as pictures, one for each of the `count` elements of its shape.
pub(super) fn to_picture_input(name: String, count: usize, files: Vec<Data>) -> Result<PictureInput> {
    match files.len() == count && count > 0 {
        true => Ok(PictureInput { name, files }),
        false => Err(Refusal::invalid(format!("{} elements, the shape has {count}", files.len()))),
    }
}

/// The elements of a tensor of `BYTES`. Their list is charged to `reservation`.
pub(super) fn split(mut raw: Bytes, reservation: &mut Reservation) -> Result<Vec<Data>> {
    let mut elements: Vec<Data> = Vec::new();
    while !raw.is_empty() {
        check_count(elements.len())?;
        let len = raw.get(..4).and_then(|head| Some(u32::from_le_bytes(head.try_into().ok()?)));
        let end = len.and_then(|len| usize::try_from(len).ok()?.checked_add(4));
        let Some(end) = end.filter(|&end| end <= raw.len()) else {
            return Err(Refusal::invalid("an element of BYTES, its length in 4 bytes before it, ends early"));
        };
        reservation.grow(64)?;
        elements.push(Box::new(raw.split_to(end).slice(4..)));
    }
    Ok(elements)
}

/// The elements of a tensor of `BYTES` that are given as texts of Base64. They are charged to `reservation`.
pub(super) fn decode_texts<'a>(
    texts: impl Iterator<Item = &'a str>,
    reservation: &mut Reservation,
) -> Result<Vec<Data>> {
    let mut elements: Vec<Data> = Vec::new();
    for text in texts {
        check_count(elements.len())?;
        reservation.grow(64 + text.len() as u64)?;
        let bytes = decode_base64(text.as_bytes());
        elements.push(Box::new(bytes.ok_or_else(|| {
            Refusal::invalid("an element of BYTES in JSON is a picture in Base64; this is no Base64")
        })?));
    }
    Ok(elements)
}

/// Fails if an input that has `len` pictures may have no more.
pub(super) fn check_count(len: usize) -> Result<()> {
    match len < MAX_PICTURES {
        true => Ok(()),
        false => Err(Refusal::invalid(format!("an input has at most {MAX_PICTURES} pictures"))),
    }
}

/// Decodes Base64 of the standard alphabet, with or without padding.
fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let padding = text.iter().rev().take(2).take_while(|&&c| c == b'=').count();
    let (text, is_whole) = (&text[..text.len() - padding], text.len().is_multiple_of(4));
    if (padding > 0 && !is_whole) || text.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.chunks(4) {
        let mut bits = 0u32;
        for &c in group {
            let value = match c {
                b'A'..=b'Z' => c - b'A',
                b'a'..=b'z' => c - b'a' + 26,
                b'0'..=b'9' => c - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        bits <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&bits.to_be_bytes()[1..group.len()]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use crate::refusal::Reason;

    #[test]
    fn base64_is_decoded() {
        for (text, bytes) in [
            ("", &b""[..]),
            ("Zg==", b"f"),
            ("Zm8=", b"fo"),
            ("Zm8", b"fo"),
            ("Zm9v", b"foo"),
            ("Zm9vYmFy", b"foobar"),
            ("+/8=", &[0xfb, 0xff]),
        ] {
            assert_eq!(decode_base64(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for text in ["Z", "Zg=", "====", "Z===", "Zm9v\n", "Zm-_", "=Zm9", "Zm9vYmFy="] {
            assert_eq!(decode_base64(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn elements_are_split_by_their_lengths() {
        let mut reservation = Reservation::empty(&Budget::new(1 << 20));
        let mut of = |bytes: &'static [u8]| split(Bytes::from_static(bytes), &mut reservation);
        let elements = of(&[1, 0, 0, 0, 7, 0, 0, 0, 0, 2, 0, 0, 0, 8, 9]).unwrap();
        let elements: Vec<&[u8]> = elements.iter().map(|data| (**data).as_ref()).collect();
        assert_eq!(elements, [&[7][..], &[], &[8, 9]]);
        for bytes in [&[1, 0, 0][..], &[1, 0, 0, 0], &[255, 255, 255, 255, 1]] {
            assert_eq!(of(bytes).map(drop).unwrap_err().reason, Reason::Invalid);
        }
        let many = Bytes::from(vec![0; 4 * (MAX_PICTURES + 1)]);
        assert!(split(many, &mut reservation).map(drop).unwrap_err().message.contains("at most 1024"));
    }
}
