use crate::flatbuffer::Scalar;
use crate::{Error, ErrorKind, FileKind, Result, sniff};
use std::borrow::Cow;
use std::fmt::Display;

/// Number of leading bytes of a file from which its header can be read; a file may be shorter.
pub const HEAD_BYTES: usize = 64;

/// The byte offset of the extended header: it follows the flatbuffer's root offset and identifier.
pub(crate) const HEADER_AT: usize = 8;

/// `at` rounded up to a multiple of `alignment`; `None` if that overflows or `alignment` is zero.
pub fn align_up(at: u64, alignment: u64) -> Option<u64> {
    at.checked_next_multiple_of(alignment)
}

/// The four bytes of a flatbuffer's file identifier: two letters and a version of two digits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Magic {
    /// The bytes expected at byte 4, or at byte 8 of a size-prefixed buffer.
    pub(crate) identifier: [u8; 4],
    /// The format that has this identifier.
    pub(crate) kind: FileKind,
}

/// A field of a header.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeaderField {
    pub(crate) name: &'static str,
    /// The field's byte offset in the file.
    pub(crate) at: usize,
}

/// The length of an extended header, counted from its magic.
const LENGTH: HeaderField = HeaderField { name: "length", at: HEADER_AT + 4 };

impl HeaderField {
    pub(crate) const fn new(name: &'static str, at: usize) -> Self {
        Self { name, at }
    }

    fn error(self, kind: ErrorKind, expected: impl Into<Cow<'static, str>>, found: impl Display) -> Error {
        Error::new(kind, format!("header.{}", self.name), expected, found).at(self.at as u64)
    }

    #[cold]
    pub(crate) fn invalid_error(self, expected: impl Into<Cow<'static, str>>, found: impl Display) -> Error {
        self.error(ErrorKind::Invalid, expected, found)
    }

    /// The error that the file is shorter than the `needed` bytes that the field declares.
    #[cold]
    pub(crate) fn too_small_error(self, needed: u64, file_len: u64) -> Error {
        let expected = format!("a file of at least {needed} bytes, as the header says");
        self.error(ErrorKind::Truncated, expected, format_args!("one of {file_len}"))
    }
}

/// Writes an extended header of `length` bytes into the space that [`insert_header_space`](super::insert_header_space)
/// made. A header too short for the last fields is written without them.
pub(crate) fn write_header(tables: &mut [u8], magic: [u8; 4], length: u32, fields: &[u64]) -> Result<()> {
    let mut header = magic.to_vec();
    header.extend(length.to_le_bytes());
    fields.iter().for_each(|field| header.extend(field.to_le_bytes()));
    header.truncate(length as usize / 8 * 8);
    let place = tables.get_mut(HEADER_AT..HEADER_AT + header.len());
    let place = place.ok_or_else(|| Error::new(ErrorKind::Invalid, "header", "room for it", "none"))?;
    place.copy_from_slice(&header);
    Ok(())
}

/// The first bytes of a file, from which header fields are read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Head<'a> {
    pub(crate) bytes: &'a [u8],
    pub(crate) file_len: u64,
}

impl<'a> Head<'a> {
    /// Takes the first bytes of a file: `HEAD_BYTES` of them, or all of a shorter file.
    pub(crate) fn new(head: &'a [u8], file_len: u64, kind: FileKind) -> Result<Self> {
        if file_len == 0 {
            return Err(
                Error::new(ErrorKind::Truncated, "", format!("a .{kind} file"), "an empty file").at(0)
            );
        }
        let needed = file_len.min(HEAD_BYTES as u64);
        if (head.len() as u64) < needed {
            return Err(Error::new(
                ErrorKind::Truncated,
                "",
                format!("the first {needed} bytes of the file"),
                format_args!("{} of them", head.len()),
            )
            .at(head.len() as u64));
        }
        Ok(Self { bytes: head, file_len })
    }

    /// Checks the identifier at byte `at`.
    pub(crate) fn check_magic(&self, at: usize, magic: Magic) -> Result<()> {
        let Some(identifier) = self.bytes.get(at..at + 4) else {
            return Err(Error::new(
                ErrorKind::Truncated,
                "",
                format!("a .{} file, which has its identifier at byte {at}", magic.kind),
                format_args!("a file of {} bytes", self.file_len),
            )
            .at(self.bytes.len() as u64)
            .hint("the file is cut off; copy or export it again"));
        };
        if identifier == magic.identifier {
            return Ok(());
        }
        let wanted = String::from_utf8_lossy(&magic.identifier).into_owned();
        if identifier.starts_with(&magic.identifier[..2]) && identifier[2..].iter().all(u8::is_ascii_digit) {
            return Err(Error::new(
                ErrorKind::Newer,
                "identifier",
                format!("`{wanted}`, the version this reader supports"),
                format_args!("`{}`", String::from_utf8_lossy(identifier)),
            )
            .at(at as u64)
            .hint("the file is of another version of the format; export it again with a release that writes this one"));
        }
        let error = Error::new(
            ErrorKind::NotThisFormat,
            "identifier",
            format!("`{wanted}` of a .{} file", magic.kind),
            format_args!("`{}`", identifier.escape_ascii()),
        )
        .at(at as u64);
        Err(match sniff(self.bytes) {
            Some(kind) if kind != magic.kind => error.hint(format!("this looks like a {kind} file")),
            _ => error,
        })
    }

    /// Reads the scalar in a field.
    pub(crate) fn read_scalar<S: Scalar>(&self, field: HeaderField) -> Result<S> {
        self.bytes.get(field.at..field.at + S::SIZE).map(S::from_le_slice).ok_or_else(|| {
            let actual = format_args!("the end of the file at its byte {}", self.file_len);
            let error = field.error(ErrorKind::Truncated, format!("{} bytes", S::SIZE), actual);
            error.hint("the file is cut off; copy or export it again")
        })
    }

    /// Reads the length of the extended header; fails if it is below `least` bytes.
    pub(crate) fn header_length(&self, least: u32) -> Result<u32> {
        match self.read_scalar(LENGTH)? {
            length if length < least => Err(LENGTH.invalid_error(format!("at least {least} bytes"), length)),
            length => Ok(length),
        }
    }
}
