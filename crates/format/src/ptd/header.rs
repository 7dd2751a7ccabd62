use crate::container::{HEADER_AT, Head, HeaderField, Magic, SegmentSpace};
use crate::{Error, FileKind, Result};
use std::ops::Range;

/// The file identifier at byte 4.
pub const IDENTIFIER: [u8; 4] = *b"FT01";
/// Length of the header that current writers produce, counted from its magic; also the minimum length.
pub const HEADER_LENGTH: u32 = 40;

const MAGIC: Magic = Magic { identifier: IDENTIFIER, kind: FileKind::Ptd };
pub(super) const HEADER_MAGIC: Magic = Magic { identifier: *b"FH01", kind: FileKind::Ptd };
const FLATBUFFER_OFFSET: HeaderField = HeaderField::new("flatbuffer_offset", 16);
const FLATBUFFER_SIZE: HeaderField = HeaderField::new("flatbuffer_size", 24);
const SEGMENT_BASE_OFFSET: HeaderField = HeaderField::new("segment_base_offset", 32);
const SEGMENT_DATA_SIZE: HeaderField = HeaderField::new("segment_data_size", 40);

/// The layout of a `.ptd` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the whole file.
    pub file_len: u64,
    /// Length of the header, counted from its magic. Unknown fields at the end of a longer header are ignored.
    pub length: u32,
    /// Bytes of the header with its padding: the number of bytes by which the header shifts the flatbuffer.
    pub flatbuffer_offset: u64,
    /// Bytes of the flatbuffer, without the header.
    pub flatbuffer_size: u64,
    /// Bytes of the tables from byte 0, with the header: the sum of `flatbuffer_offset` and `flatbuffer_size`.
    pub tables_size: u64,
    /// The segment base, a byte offset in the file.
    pub segment_base_offset: u64,
    /// Bytes of segment data.
    pub segment_data_size: u64,
}

impl Header {
    /// Parses the header from `head`, the first 64 bytes of a file of `file_len` bytes, or all bytes of a shorter file.
    /// `head` may be longer.
    ///
    /// If it succeeds, the tables and the segment data are in bounds of the file.
    pub fn parse(head: &[u8], file_len: u64) -> Result<Self> {
        let head = Head::new(head, file_len, FileKind::Ptd)?;
        head.check_magic(4, MAGIC)?;
        head.check_magic(HEADER_AT, HEADER_MAGIC).map_err(|error| error.within("header"))?;
        let length = head.header_length(HEADER_LENGTH)?;
        let (flatbuffer_offset, flatbuffer_size): (u64, u64) =
            (head.read_scalar(FLATBUFFER_OFFSET)?, head.read_scalar(FLATBUFFER_SIZE)?);
        let header = Self {
            file_len,
            length,
            flatbuffer_offset,
            flatbuffer_size,
            tables_size: flatbuffer_offset.checked_add(flatbuffer_size).ok_or_else(|| {
                let actual = format!("{flatbuffer_size} from {flatbuffer_offset} on");
                FLATBUFFER_SIZE.invalid_error("a size that does not overflow", actual)
            })?,
            segment_base_offset: head.read_scalar(SEGMENT_BASE_OFFSET)?,
            segment_data_size: head.read_scalar(SEGMENT_DATA_SIZE)?,
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<()> {
        let too_small = |field: HeaderField, needed| -> Error {
            field.too_small_error(needed, self.file_len).hint("the file is cut off; copy or write it again")
        };
        if self.flatbuffer_offset < u64::from(self.length) {
            let expected = format!("at least {}, the header's length", self.length);
            return Err(FLATBUFFER_OFFSET.invalid_error(expected, self.flatbuffer_offset));
        }
        if self.flatbuffer_size < 8 {
            return Err(FLATBUFFER_SIZE.invalid_error("at least 8 bytes", self.flatbuffer_size));
        }
        if self.tables_size > self.file_len {
            return Err(too_small(FLATBUFFER_SIZE, self.tables_size));
        }
        let (base, size) = (self.segment_base_offset, self.segment_data_size);
        if size == 0 {
            return Ok(());
        }
        if base < self.tables_size {
            let expected = format!("a place behind the tables' {} bytes", self.tables_size);
            return Err(SEGMENT_BASE_OFFSET.invalid_error(expected, base));
        }
        match base.checked_add(size) {
            Some(end) if end <= self.file_len => Ok(()),
            Some(end) => Err(too_small(SEGMENT_DATA_SIZE, end)),
            None => Err(SEGMENT_DATA_SIZE.invalid_error("a size that does not overflow", size)),
        }
    }

    /// The byte range of the tables in the file: the input of [`read_flat_tensor`](super::read_flat_tensor).
    pub fn tables_range(&self) -> Range<u64> {
        0..self.tables_size
    }

    pub(crate) fn segment_space(&self) -> SegmentSpace {
        SegmentSpace {
            base: (self.segment_data_size > 0).then_some(self.segment_base_offset),
            data_size: Some(self.segment_data_size),
            program_end: self.tables_size,
            file_len: self.file_len,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(length: u32, fields: [u64; 4]) -> Vec<u8> {
        let mut bytes = b"\x44\0\0\0FT01FH01".to_vec();
        bytes.extend(length.to_le_bytes());
        fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.resize(512, 0);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Header> {
        Header::parse(&bytes[..bytes.len().min(64)], bytes.len() as u64)
    }

    fn refused(bytes: &[u8]) -> String {
        parse(bytes).unwrap_err().to_string()
    }

    #[test]
    fn headers_of_all_writers_are_parsed() {
        let python = parse(&file(40, [48, 200, 256, 256])).unwrap();
        assert_eq!(python.tables_range(), 0..248);
        let cpp = parse(&file(40, [40, 200, 240, 1])).unwrap();
        assert_eq!(cpp.tables_range(), 0..240);
        let longer = parse(&file(64, [64, 200, 264, 0])).unwrap();
        assert_eq!(longer.tables_range(), 0..264);
    }

    #[test]
    fn malformed_headers_are_rejected() {
        assert!(refused(b"\x44\0\0\0FT02FH01").contains("expected `FT01`"));
        assert!(refused(b"\x44\0\0\0FT01FH02").starts_with("header.identifier: expected `FH01`"));
        assert!(refused(b"\x44\0\0\0FT01........").contains("header.identifier"));
        assert!(refused(b"\x44\0\0\0ET12........").ends_with("this looks like a pte file"));
        assert!(refused(&file(39, [48, 200, 256, 256])).contains("at least 40 bytes"));
        assert!(refused(&file(40, [39, 200, 256, 256])).contains("the header's length"));
        assert!(refused(&file(40, [48, 7, 256, 256])).contains("at least 8 bytes"));
        assert!(refused(&file(40, [48, u64::MAX, 256, 256])).contains("does not overflow"));
        assert!(refused(&file(40, [48, 465, 256, 0])).contains("at least 513 bytes"));
        assert!(refused(&file(40, [48, 200, 256, 257])).contains("at least 513 bytes"));
        assert!(refused(&file(40, [48, 200, 247, 1])).contains("behind the tables' 248 bytes"));
        assert!(refused(&file(40, [48, 200, 256, u64::MAX])).contains("does not overflow"));
        assert!(refused(&file(40, [48, 200, 256, 256])[..30]).contains("end of the file at its byte 30"));
    }
}
