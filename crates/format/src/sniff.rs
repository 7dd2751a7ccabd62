use std::fmt;

/// A kind of file, recognized by its first bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileKind {
    /// ExecuTorch program, `ET??` at byte 4.
    Pte,
    /// ExecuTorch FlatTensor, `FT??` at byte 4.
    Ptd,
    /// ExecuTorch bundled program, `BP??` at byte 4.
    Bpte,
    /// ExecuTorch ETDump, `ED??` at byte 8.
    Etdump,
    /// TFRT Binary Executable Format.
    Bef,
    /// XNNPACK delegate payload: `XH??` or `XN??` at byte 4.
    Xnnpack,
    /// Zip archive: a `.pt2`, an `.npz` or an ETRecord.
    Zip,
    /// NumPy array.
    Npy,
    /// Safetensors: a length, then a JSON object.
    Safetensors,
    /// GGUF.
    Gguf,
}

impl FileKind {
    /// The usual file extension, or a short name for the kind.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pte => "pte",
            Self::Ptd => "ptd",
            Self::Bpte => "bpte",
            Self::Etdump => "etdump",
            Self::Bef => "bef",
            Self::Xnnpack => "xnnpack",
            Self::Zip => "zip",
            Self::Npy => "npy",
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
        }
    }

    /// The kind in a sentence: "an ExecuTorch program (.pte)".
    pub const fn description(self) -> &'static str {
        match self {
            Self::Pte => "an ExecuTorch program (.pte)",
            Self::Ptd => "named data (.ptd)",
            Self::Bpte => "a bundled program (.bpte)",
            Self::Etdump => "an ETDump",
            Self::Bef => "a BEF file",
            Self::Xnnpack => "a payload of the XNNPACK backend",
            Self::Zip => "a zip archive",
            Self::Npy => "a NumPy array (.npy)",
            Self::Safetensors => "a safetensors file",
            Self::Gguf => "a .gguf file",
        }
    }
}

impl fmt::Display for FileKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The number of first bytes of a file by which [`sniff`] recognizes every kind.
pub const SNIFFED_BYTES: usize = 64;

/// Recognizes the kind of a file by `head`, its first [`SNIFFED_BYTES`] bytes.
///
/// Only the magic is checked, in any version; whether the file is valid turns out when it is read.
pub fn sniff(head: &[u8]) -> Option<FileKind> {
    let id = |at: usize, letters: &[u8; 2]| {
        head.get(at..at + 4)
            .is_some_and(|id| id.starts_with(letters) && id[2..].iter().all(u8::is_ascii_digit))
    };
    if head.starts_with(&[0x0b, 0xef]) {
        return Some(FileKind::Bef);
    }
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"PK\x05\x06") {
        return Some(FileKind::Zip);
    }
    if head.starts_with(b"\x93NUMPY") {
        return Some(FileKind::Npy);
    }
    if head.starts_with(b"GGUF") {
        return Some(FileKind::Gguf);
    }
    let at_four = [
        (b"ET", FileKind::Pte),
        (b"FT", FileKind::Ptd),
        (b"BP", FileKind::Bpte),
        (b"XH", FileKind::Xnnpack),
        (b"XN", FileKind::Xnnpack),
    ];
    if let Some((_, kind)) = at_four.iter().find(|(letters, _)| id(4, letters)) {
        return Some(*kind);
    }
    if id(8, b"ED") {
        return Some(FileKind::Etdump);
    }
    // A JSON object after its length, which the format limits to 100 MB.
    let length = head.get(..8).map(|b| b.iter().rev().fold(0u64, |n, &b| n << 8 | u64::from(b)));
    if length.is_some_and(|n| (2..=100_000_000).contains(&n)) && head.get(8) == Some(&b'{') {
        return Some(FileKind::Safetensors);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_recognized_by_their_magic() {
        assert_eq!(sniff(b"\x1c\0\0\0ET12\0\0\0\0"), Some(FileKind::Pte));
        assert_eq!(sniff(b"\x1c\0\0\0ET99\0\0\0\0"), Some(FileKind::Pte));
        assert_eq!(sniff(b"\x44\0\0\0FT01FH01"), Some(FileKind::Ptd));
        assert_eq!(sniff(b"\x44\0\0\0BP08...."), Some(FileKind::Bpte));
        assert_eq!(sniff(b"\x44\0\0\0\x10\0\0\0ED00"), Some(FileKind::Etdump));
        assert_eq!(sniff(b"\x0b\xef\0"), Some(FileKind::Bef));
        assert_eq!(sniff(b"\0\0\0\0XH00"), Some(FileKind::Xnnpack));
        assert_eq!(sniff(b"PK\x03\x04...."), Some(FileKind::Zip));
        assert_eq!(sniff(b"\x93NUMPY\x01\0"), Some(FileKind::Npy));
        assert_eq!(sniff(b"\x40\0\0\0\0\0\0\0{\"a\""), Some(FileKind::Safetensors));
        assert_eq!(sniff(b"GGUF\x03\0\0\0"), Some(FileKind::Gguf));
        assert_eq!(sniff(b""), None);
        assert_eq!(sniff(b"ETxx"), None);
        assert_eq!(sniff(b"hello, world, this is text"), None);
    }
}
