use crate::container::{HEADER_AT, Head, HeaderField, Magic, SegmentSpace};
use crate::{Error, ErrorKind, FileKind, Result};
use std::ops::Range;

/// The file identifier at byte 4, the only one in use since 2024.
pub const IDENTIFIER: [u8; 4] = *b"ET12";
/// Length in bytes, counted from its magic, of the extended header that current writers produce.
pub const EXTENDED_HEADER_LENGTH: u32 = 32;
/// Length in bytes of the shortest extended header, in files from before release 1.0.
pub const MIN_EXTENDED_HEADER_LENGTH: u32 = 24;

const MAGIC: Magic = Magic { identifier: IDENTIFIER, kind: FileKind::Pte };
/// The magic of the extended header: two letters and a version of two digits.
pub(super) const EXTENDED_MAGIC: [u8; 4] = *b"eh00";
const PROGRAM_SIZE: HeaderField = HeaderField::new("program_size", 16);
const SEGMENT_BASE_OFFSET: HeaderField = HeaderField::new("segment_base_offset", 24);
const SEGMENT_DATA_SIZE: HeaderField = HeaderField::new("segment_data_size", 32);

/// The layout of a `.pte` file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the whole file.
    pub file_len: u64,
    /// Bytes of the flatbuffer from byte 0, with the header.
    pub program_size: u64,
    /// The segment base, a byte offset in the file; 0 if there are no segments.
    pub segment_base_offset: u64,
    /// Bytes of segment data, if the header is long enough to say.
    pub segment_data_size: Option<u64>,
    /// The extended header as stored, if there is one.
    pub extended: Option<ExtendedHeader>,
}

/// The extended header, stored from byte 8 on if the program has segments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExtendedHeader {
    /// The header's length, counted from its magic. Unknown fields at the end of a longer header are ignored.
    pub length: u32,
    /// See [`Header::program_size`].
    pub program_size: u64,
    /// See [`Header::segment_base_offset`].
    pub segment_base_offset: u64,
    /// See [`Header::segment_data_size`].
    pub segment_data_size: Option<u64>,
}

impl Header {
    /// Parses the header from `head`, the first 64 bytes of a file of `file_len` bytes, or all bytes of a shorter file.
    /// `head` may be longer.
    ///
    /// If it succeeds, the program is in bounds of the file, and so is the segment data if its size is known.
    pub fn parse(head: &[u8], file_len: u64) -> Result<Self> {
        let head = Head::new(head, file_len, FileKind::Pte)?;
        head.check_magic(4, MAGIC)?;
        let extended = ExtendedHeader::parse(&head)?;
        let header = match extended {
            None => Self {
                file_len,
                program_size: file_len,
                segment_base_offset: 0,
                segment_data_size: None,
                extended,
            },
            Some(extended) => Self {
                file_len,
                program_size: extended.program_size,
                segment_base_offset: extended.segment_base_offset,
                segment_data_size: extended.segment_data_size,
                extended: Some(extended),
            },
        };
        header.check()?;
        Ok(header)
    }

    fn check(&self) -> Result<()> {
        let least = 8 + self.extended.map_or(0, |extended| u64::from(extended.length));
        if self.program_size < least {
            let expected = format!("at least {least} bytes, the header's own end");
            return Err(PROGRAM_SIZE.invalid_error(expected, self.program_size));
        }
        if self.program_size > self.file_len {
            return Err(self.too_small_error(PROGRAM_SIZE, self.program_size));
        }
        let (base, size) = (self.segment_base_offset, self.segment_data_size);
        if base != 0 && base < self.program_size {
            let expected = format!("0, or a place behind the program's {} bytes", self.program_size);
            return Err(SEGMENT_BASE_OFFSET.invalid_error(expected, base));
        }
        let Some(size) = size.filter(|&size| size > 0) else {
            return Ok(());
        };
        if base == 0 {
            let actual = format!("0 with {size} bytes of segment data");
            return Err(SEGMENT_BASE_OFFSET.invalid_error("where segments start", actual));
        }
        match base.checked_add(size) {
            Some(end) if end <= self.file_len => Ok(()),
            Some(end) => Err(self.too_small_error(SEGMENT_DATA_SIZE, end)),
            None => {
                let actual = format_args!("{size} from byte {base} on");
                Err(SEGMENT_DATA_SIZE.invalid_error("a size that does not overflow", actual))
            }
        }
    }

    fn too_small_error(&self, field: HeaderField, needed: u64) -> Error {
        field.too_small_error(needed, self.file_len).hint("the file is cut off; copy or export it again")
    }

    /// The byte range of the flatbuffer in the file: the input of [`read_program`](super::read_program).
    pub fn program_range(&self) -> Range<u64> {
        0..self.program_size
    }

    pub(crate) fn segment_space(&self) -> SegmentSpace {
        SegmentSpace {
            base: (self.segment_base_offset != 0).then_some(self.segment_base_offset),
            data_size: self.segment_data_size.filter(|&size| size > 0),
            program_end: self.program_size,
            file_len: self.file_len,
        }
    }
}

impl ExtendedHeader {
    /// Reads the extended header, if there is one.
    fn parse(head: &Head<'_>) -> Result<Option<Self>> {
        let Some(magic) = head.bytes.get(HEADER_AT..HEADER_AT + 4) else {
            return Ok(None);
        };
        if !magic.starts_with(&EXTENDED_MAGIC[..2]) || !magic[2..].iter().all(u8::is_ascii_digit) {
            return Ok(None);
        }
        if magic != EXTENDED_MAGIC {
            return Err(Error::new(
                ErrorKind::Newer,
                "header.magic",
                "`eh00`, the extended header this reader supports",
                format_args!("`{}`", String::from_utf8_lossy(magic)),
            )
            .at(HEADER_AT as u64)
            .hint("the file is of another version of the format; export it again with a release that writes this one"));
        }
        let length = head.header_length(MIN_EXTENDED_HEADER_LENGTH)?;
        let segment_data_size = match length >= EXTENDED_HEADER_LENGTH {
            true => Some(head.read_scalar(SEGMENT_DATA_SIZE)?),
            false => None,
        };
        Ok(Some(Self {
            length,
            program_size: head.read_scalar(PROGRAM_SIZE)?,
            segment_base_offset: head.read_scalar(SEGMENT_BASE_OFFSET)?,
            segment_data_size,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(length: u32, fields: [u64; 3]) -> Vec<u8> {
        let mut bytes = b"\x28\0\0\0ET12eh00".to_vec();
        bytes.extend(length.to_le_bytes());
        fields.iter().for_each(|field| bytes.extend(field.to_le_bytes()));
        bytes.resize(256, 0);
        bytes
    }

    fn parse(bytes: &[u8]) -> Result<Header> {
        Header::parse(&bytes[..bytes.len().min(64)], bytes.len() as u64)
    }

    fn refused(bytes: &[u8]) -> String {
        parse(bytes).unwrap_err().to_string()
    }

    #[test]
    fn headers_of_every_length_are_parsed() {
        let header = parse(&file(32, [96, 128, 128])).unwrap();
        assert_eq!((header.program_size, header.segment_base_offset), (96, 128));
        assert_eq!(header.segment_data_size, Some(128));
        let short = parse(&file(24, [96, 128, 1 << 40])).unwrap();
        assert_eq!(short.segment_data_size, None);
        let between = parse(&file(31, [96, 128, 1 << 40])).unwrap();
        assert_eq!(between.segment_data_size, None);
        let long = parse(&file(80, [96, 128, 128])).unwrap();
        assert_eq!((long.segment_data_size, long.extended.unwrap().length), (Some(128), 80));
        let absent = parse(b"\x10\0\0\0ET12\0\0\0\0\x04\0\x04\0\x04\0\0\0").unwrap();
        assert_eq!((absent.program_size, absent.extended), (20, None));
    }

    #[test]
    fn version_errors_name_the_supported_and_the_found_version() {
        assert_eq!(
            refused(b"\x10\0\0\0ET13........"),
            "identifier: expected `ET12`, the version this reader supports, found `ET13` (at byte 0x4); the file \
             is of another version of the format; export it again with a release that writes this one"
        );
        let mut other = file(32, [96, 128, 128]);
        other[11] = b'1';
        assert!(refused(&other).contains("expected `eh00`"));
        assert!(refused(&other).contains("found `eh01`"));
    }

    #[test]
    fn other_files_are_recognised() {
        assert!(refused(b"\x44\0\0\0FT01FH01").ends_with("this looks like a ptd file"));
        assert!(refused(b"PK\x03\x04........").ends_with("this looks like a zip file"));
        assert_eq!(refused(b""), "expected a .pte file, found an empty file (at byte 0x0)");
        assert!(refused(b"\x10\0\0").contains("found a file of 3 bytes"));
    }

    #[test]
    fn contradictory_sizes_are_rejected() {
        assert!(refused(&file(32, [96, 128, 129])).contains("at least 257 bytes, as the header says"));
        assert!(refused(&file(32, [257, 0, 0])).contains("at least 257 bytes"));
        assert!(refused(&file(32, [39, 128, 0])).contains("at least 40 bytes, the header's own end"));
        assert!(refused(&file(32, [96, 95, 1])).contains("behind the program's 96 bytes"));
        assert!(refused(&file(32, [96, 0, 1])).contains("where segments start"));
        assert!(refused(&file(32, [96, u64::MAX, 1])).contains("does not overflow"));
        assert!(refused(&file(23, [96, 128, 0])).contains("at least 24 bytes"));
        let cut = &file(32, [96, 128, 0])[..20];
        assert!(refused(cut).contains("end of the file at its byte 20"), "{}", refused(cut));
    }
}
