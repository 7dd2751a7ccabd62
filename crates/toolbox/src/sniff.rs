//! What a file is, by its first bytes.

use std::fmt;

/// The formats that the verbs know apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Format {
    /// An ExecuTorch program.
    Pte,
    /// FlatTensor: named tensors and blobs outside a program.
    Ptd,
    /// A program bundled with test cases.
    BundledProgram,
    /// What a run left for a profiler.
    EtDump,
    /// TFRT's Binary Executable Format.
    Bef,
    /// MLIR text, which has no magic: any text that is no other format.
    Text,
    /// A zip archive, as `.pt2` and `.npz` are.
    Zip,
    /// An array of NumPy.
    Npy,
    /// A PNG or JPEG image.
    Image,
    /// No bytes at all.
    Empty,
    /// None of these.
    Unknown,
}

/// Bytes that [`Format::sniff`] looks at.
pub const SNIFF_BYTES: usize = 64;

impl Format {
    /// Judges by the first [`SNIFF_BYTES`] bytes of a file, or all if it has fewer.
    pub fn sniff(head: &[u8]) -> Self {
        let identifier = head.get(4..8).unwrap_or(&[]);
        match identifier {
            [b'E', b'T', a, b] if a.is_ascii_digit() && b.is_ascii_digit() => return Self::Pte,
            [b'F', b'T', a, b] if a.is_ascii_digit() && b.is_ascii_digit() => return Self::Ptd,
            b"BP08" => return Self::BundledProgram,
            b"ED00" => return Self::EtDump,
            _ if head.get(8..12) == Some(b"ED00") => return Self::EtDump,
            _ => {}
        }
        match head {
            [] => Self::Empty,
            [0x0b, 0xef, ..] => Self::Bef,
            [b'P', b'K', 3, 4, ..] => Self::Zip,
            [0x93, b'N', b'U', b'M', b'P', b'Y', ..] => Self::Npy,
            [0x89, b'P', b'N', b'G', ..] | [0xff, 0xd8, 0xff, ..] => Self::Image,
            _ if is_text(head) => Self::Text,
            _ => Self::Unknown,
        }
    }
}

/// UTF-8 without control characters, but for a character cut at the end.
fn is_text(head: &[u8]) -> bool {
    let text = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() => std::str::from_utf8(&head[..e.valid_up_to()]).unwrap_or("\0"),
        Err(_) => return false,
    };
    text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t'))
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pte => "an ExecuTorch program (.pte)",
            Self::Ptd => "a FlatTensor file (.ptd)",
            Self::BundledProgram => "a bundled program (.bpte)",
            Self::EtDump => "an ETDump",
            Self::Bef => "a BEF file",
            Self::Text => "text",
            Self::Zip => "a zip archive",
            Self::Npy => "a NumPy array (.npy)",
            Self::Image => "an image",
            Self::Empty => "an empty file",
            Self::Unknown => "of no format that pteron knows",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_magic() {
        assert_eq!(Format::sniff(b"\x20\0\0\0ET12eh00"), Format::Pte);
        assert_eq!(Format::sniff(b"\x20\0\0\0FT01FH01"), Format::Ptd);
        assert_eq!(Format::sniff(b"\x20\0\0\0BP08"), Format::BundledProgram);
        assert_eq!(Format::sniff(b"\x20\0\0\0\x04\0\0\0ED00"), Format::EtDump);
        assert_eq!(Format::sniff(&[0x0b, 0xef, 0]), Format::Bef);
        assert_eq!(Format::sniff(b"\x93NUMPY\x01\0"), Format::Npy);
        assert_eq!(Format::sniff(b"\x89PNG\r\n"), Format::Image);
        assert_eq!(Format::sniff(b"func @main() {\n"), Format::Text);
        assert_eq!(Format::sniff(&[]), Format::Empty);
        assert_eq!(Format::sniff(&[1, 2, 3]), Format::Unknown);
    }
}
