use pteron_format::{Error, ErrorKind, Result};
use std::ops::Range;

/// Minimum length of the header in bytes; a header may be longer.
const LENGTH: usize = 30;

/// The byte ranges of a payload's parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// The flatbuffer with values and nodes.
    pub flatbuffer: Range<u64>,
    /// The constants, after the flatbuffer.
    pub constants: Range<u64>,
}

impl Header {
    /// Reads the header. `None` if the payload has no header and consists of the flatbuffer only.
    pub(super) fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        if bytes.get(4..8) != Some(b"XH00") {
            return Ok(None);
        }
        let Some(head) = bytes.get(..LENGTH) else {
            let expected = format!("a payload of at least {LENGTH} bytes, as its header has");
            return Err(
                Error::new(ErrorKind::Truncated, "header", expected, bytes.len()).at(bytes.len() as u64)
            );
        };
        let number =
            |at: usize, len: usize| head[at..at + len].iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b));
        let length = number(8, 2);
        if length < LENGTH as u64 {
            let expected = format!("at least {LENGTH} bytes");
            return Err(Error::new(ErrorKind::Invalid, "header.length", expected, length).at(8));
        }
        let part = |name: &str, at: u64, start: u64, size: u64| {
            let end = start.checked_add(size).filter(|end| *end <= bytes.len() as u64);
            end.map(|end| start..end).ok_or_else(|| {
                let expected = format!("a part of the payload of {} bytes", bytes.len());
                let actual = format!("{size} bytes from {start} on");
                Error::new(ErrorKind::Invalid, format!("header.{name}"), expected, actual).at(at)
            })
        };
        let flatbuffer = part("flatbuffer_offset", 10, number(10, 4), number(14, 4))?;
        let constants = part("constant_data_offset", 18, number(18, 4), number(22, 8))?;
        if flatbuffer.end - flatbuffer.start < 8 {
            let actual = flatbuffer.end - flatbuffer.start;
            return Err(
                Error::new(ErrorKind::Invalid, "header.flatbuffer_size", "at least 8 bytes", actual).at(14)
            );
        }
        if flatbuffer.start < length {
            let expected = format!("a place behind the header of {length} bytes");
            let actual = flatbuffer.start;
            return Err(Error::new(ErrorKind::Invalid, "header.flatbuffer_offset", expected, actual).at(10));
        }
        if constants.start < flatbuffer.end {
            let expected = format!("a place behind the flatbuffer, which ends at byte {}", flatbuffer.end);
            let actual = constants.start;
            return Err(
                Error::new(ErrorKind::Invalid, "header.constant_data_offset", expected, actual).at(18)
            );
        }
        Ok(Some(Self { flatbuffer, constants }))
    }
}
