//! Recognises the format of a file by its first bytes.

use crate::{Error, Result};
use pteron_format::{FileKind, SNIFFED_BYTES};
use pteron_runtime::{DataLoader, Purpose};

/// The format of a loader's file; `None` if its magic is unknown.
pub fn file_kind(loader: &dyn DataLoader) -> Result<Option<FileKind>> {
    let head = loader.load(0, loader.size().min(SNIFFED_BYTES as u64), Purpose::Program)?;
    Ok(pteron_format::sniff(&head))
}

/// The error for a file of a format that `verb` does not take. `kind` is the format, if it is known.
pub fn wrong_format(
    loader: &dyn DataLoader,
    kind: Option<FileKind>,
    verb: &'static str,
    expected: &'static str,
) -> Error {
    let format = match kind {
        _ if loader.size() == 0 => "empty",
        None => {
            return Error::WrongFormat {
                file: loader.name().to_owned(),
                found: describe_unknown(loader),
                verb,
                expected,
            };
        }
        Some(FileKind::Bef) if cfg!(not(feature = "bef")) => {
            "a BEF file, which this build cannot read: it leaves out the feature `bef`"
        }
        Some(kind) => kind.description(),
    };
    Error::WrongFormat { file: loader.name().to_owned(), found: format.to_owned(), verb, expected }
}

/// Describes a file without a known magic.
fn describe_unknown(loader: &dyn DataLoader) -> String {
    let head = loader.load(0, loader.size().min(SNIFFED_BYTES as u64), Purpose::Program);
    let head: &[u8] = head.as_deref().unwrap_or(&[]);
    let is_webp = head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP");
    if is_webp || head.starts_with(b"\x89PNG") || head.starts_with(b"\xff\xd8\xff") {
        return "an image".to_owned();
    }
    if std::str::from_utf8(head).is_ok_and(|t| t.chars().all(|c| !c.is_control() || "\n\r\t".contains(c))) {
        return "text".to_owned();
    }
    let first: Vec<String> = head.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("of no format that pteron knows (its first bytes are {})", first.join(" "))
}
