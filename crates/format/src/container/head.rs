use crate::flatbuffer::Scalar;
use crate::{Error, ErrorKind, FileKind, Result, sniff};

/// Number of leading bytes of a file from which its header can be read; a file may be shorter.
pub const HEAD_BYTES: usize = 64;

/// `at` rounded up to a multiple of `alignment`; `None` if that overflows or `alignment` is zero.
pub fn align_up(at: u64, alignment: u64) -> Option<u64> {
    at.checked_next_multiple_of(alignment)
}

/// The four bytes of a flatbuffer's file identifier: two letters and a version of two digits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Magic {
    /// The bytes expected at byte 4, or at byte 8 of a size-prefixed buffer.
    pub(crate) identifier: [u8; 4],
    /// The format that they identify.
    pub(crate) kind: FileKind,
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
        let Some(found) = self.bytes.get(at..at + 4) else {
            return Err(Error::new(
                ErrorKind::Truncated,
                "",
                format!("a .{} file, which has its identifier at byte {at}", magic.kind),
                format_args!("a file of {} bytes", self.file_len),
            )
            .at(self.bytes.len() as u64)
            .hint("the file is cut off; copy or export it again"));
        };
        if found == magic.identifier {
            return Ok(());
        }
        let wanted = String::from_utf8_lossy(&magic.identifier).into_owned();
        if found.starts_with(&magic.identifier[..2]) && found[2..].iter().all(u8::is_ascii_digit) {
            return Err(Error::new(
                ErrorKind::Newer,
                "identifier",
                format!("`{wanted}`, the version this reader supports"),
                format_args!("`{}`", String::from_utf8_lossy(found)),
            )
            .at(at as u64)
            .hint("the file is of another version of the format; export it again with a release that writes this one"));
        }
        let error = Error::new(
            ErrorKind::NotThisFormat,
            "identifier",
            format!("`{wanted}` of a .{} file", magic.kind),
            format_args!("`{}`", found.escape_ascii()),
        )
        .at(at as u64);
        Err(match sniff(self.bytes) {
            Some(kind) if kind != magic.kind => error.hint(format!("this looks like a {kind} file")),
            _ => error,
        })
    }

    /// The number at byte `at`; `name` is the header field that it belongs to.
    pub(crate) fn number<S: Scalar>(&self, at: usize, name: &'static str) -> Result<S> {
        self.bytes.get(at..at + S::SIZE).map(S::from_le_slice).ok_or_else(|| {
            Error::new(
                ErrorKind::Truncated,
                format!("header.{name}"),
                format!("{} bytes", S::SIZE),
                format_args!("the end of the file at its byte {}", self.file_len),
            )
            .at(at as u64)
            .hint("the file is cut off; copy or export it again")
        })
    }
}
