//! A hex view of a BEF file that says what each byte means.

use crate::{Context, Result};
use std::fmt::Write;

/// Bytes shown per line.
const PER_LINE: usize = 8;
/// Number of lines shown of a long span before the rest is elided; a span of one more line is shown whole.
const MAX_LINES: usize = 4;

/// Every byte of a BEF file in hex, with the field it belongs to and what it means. A malformed file is
/// shown up to its first error; the error is the last line.
pub fn labelled_bytes(bytes: &[u8], name: &str) -> Result<String> {
    let mut out = String::new();
    let explained = pteron_bef::File::open(bytes)
        .and_then(|file| file.spans(&mut |span: pteron_bef::Span| write_lines(&mut out, bytes, &span)))
        .context(|| format!("{name} is not a valid BEF file"));
    match explained {
        Err(e) if out.is_empty() => Err(e),
        Err(e) => Ok(out + &format!("{}\n", crate::one_line(&e))),
        Ok(_) => Ok(out),
    }
}

/// Writes the lines of one span.
fn write_lines(out: &mut String, bytes: &[u8], span: &pteron_bef::Span) {
    let start = usize::try_from(span.start).unwrap_or(usize::MAX).min(bytes.len());
    let end = start.saturating_add(usize::try_from(span.len).unwrap_or(usize::MAX)).min(bytes.len());
    let lines = (end - start).div_ceil(PER_LINE);
    for (i, part) in bytes[start..end].chunks(PER_LINE).enumerate() {
        if i == MAX_LINES && lines > MAX_LINES + 1 {
            let left = end - start - MAX_LINES * PER_LINE;
            let _ = writeln!(out, "{:10} {:24} {left} more bytes", "", "...");
            break;
        }
        let hex: Vec<String> = part.iter().map(|b| format!("{b:02x}")).collect();
        let (path, meaning) = if i == 0 { (span.path.as_str(), span.meaning.as_str()) } else { ("", "") };
        let text = format!("{:#010x} {:24} {path:36} {meaning}", start + i * PER_LINE, hex.join(" "));
        let _ = writeln!(out, "{}", text.trim_end());
    }
}
