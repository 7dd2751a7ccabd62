//! Text from a file as it is shown to people: on a terminal, in a message, in a report.
//!
//! A file may hold any text in its names: escape sequences that move the cursor or set the title of a window, line ends that
//! make one name look like two lines of output, marks that reverse the order of what follows, a megabyte of letters. [`text`]
//! shows such a name in one short line whose characters all have a visible form; [`Screen`] is the writer behind which nothing
//! but line ends and tabs acts on a terminal.

use std::fmt::{self, Write as _};
use std::io;

/// The maximum number of columns in which [`text`] shows a name, not counting the size that follows a shortened name.
pub const MAX_COLUMNS: usize = 120;
/// The number of columns, of [`MAX_COLUMNS`], before the ellipsis of a shortened name.
const HEAD: usize = 72;

/// The maximum number of columns in which [`line`] shows a line.
const MAX_LINE: usize = 4000;

/// A name or another short text of a file: escaped, and shortened in its middle to [`MAX_COLUMNS`].
pub fn text(text: &str) -> Shown<'_> {
    Shown { text, columns: MAX_COLUMNS, indent: 0, quoted: false }
}

/// As [`text`], in quotes, with quotes and backslashes escaped.
pub fn quoted(text: &str) -> Shown<'_> {
    Shown { text, columns: MAX_COLUMNS, indent: 0, quoted: true }
}

/// As [`text`], but shortened to at most `columns` columns.
pub fn text_within(text: &str, columns: usize) -> Shown<'_> {
    Shown { text, columns, indent: 0, quoted: false }
}

/// A line of output that contains text of a file, without its line end: escaped, and shortened to a few thousand columns. It
/// keeps its indentation.
pub fn line(text: &str) -> Shown<'_> {
    let indent = text.len() - text.trim_start_matches(' ').len();
    Shown { text, columns: MAX_LINE, indent, quoted: false }
}

/// A message of several lines, each of them shown by [`line()`]. Only a line end that is followed by two spaces ends a
/// line; any other belongs to a name.
pub fn message(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.match_indices("\n  ").map(|(at, _)| at).next() {
        let _ = writeln!(out, "{}", line(&rest[..at]));
        rest = &rest[at + 1..];
    }
    let _ = write!(out, "{}", line(rest));
    out
}

/// Bytes of a file as text in quotes, escaped as by [`quoted`] but shortened at the end; bytes that are not UTF-8 are
/// shown as `\xff`.
pub fn bytes(bytes: &[u8]) -> String {
    // Bytes past this many do not change what is shown, except the number of bytes.
    const ENOUGH: usize = 8 * MAX_COLUMNS;
    let mut out = String::from("\"");
    let mut columns = 0;
    for chunk in bytes[..bytes.len().min(ENOUGH)].utf8_chunks() {
        let valid = chunk.valid().chars().map(|c| Escaped::new(c, true, false).to_string());
        let invalid = chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}"));
        for piece in valid.chain(invalid) {
            columns += piece.len();
            if columns > MAX_COLUMNS {
                let _ = write!(out, "…\" ({} bytes)", bytes.len());
                return out;
            }
            out.push_str(&piece);
        }
    }
    out.push('"');
    out
}

/// Whether a character is shown unescaped: it is a space or visible, and changes nothing around it.
pub fn is_plain(c: char) -> bool {
    match c {
        ' '..='~' => true,
        '\u{7f}'..='\u{9f}' => false,
        // Letters and a symbol that fonts show as nothing.
        '\u{115f}' | '\u{1160}' | '\u{2800}' | '\u{3164}' | '\u{ffa0}' => false,
        _ => c.escape_debug().len() == 1,
    }
}

/// Text of a file that displays on one line; see [`text`].
#[derive(Debug, Clone, Copy)]
pub struct Shown<'t> {
    text: &'t str,
    columns: usize,
    /// The number of leading spaces, which are always shown as they are.
    indent: usize,
    quoted: bool,
}

impl Shown<'_> {
    /// What the character at an offset is shown as. Spaces after two others are escaped, so that no run of spaces pushes the
    /// rest of a name to the beginning of the terminal's next line.
    fn escaped_at(&self, at: usize, c: char) -> Escaped {
        Escaped::new(c, self.quoted, c == ' ' && at >= self.indent && self.text[..at].ends_with("  "))
    }

    /// The offsets at which the hidden middle of a shortened text starts and ends; `None` if all of the text is shown.
    fn hidden_range(&self) -> Option<(usize, usize)> {
        let mut columns = 0;
        let mut head_end = 0;
        let head = self.columns * HEAD / MAX_COLUMNS;
        let too_long = self.text.char_indices().any(|(at, c)| {
            columns += self.escaped_at(at, c).columns();
            if columns <= head {
                head_end = at + c.len_utf8();
            }
            columns > self.columns
        });
        if !too_long {
            return None;
        }
        let mut left = self.columns.saturating_sub(head + 1);
        let mut tail = self.text.len();
        for (at, c) in self.text.char_indices().rev() {
            match left.checked_sub(self.escaped_at(at, c).columns()) {
                Some(rest) if at >= head_end => (left, tail) = (rest, at),
                _ => break,
            }
        }
        Some((head_end, tail))
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |f: &mut fmt::Formatter<'_>, start: usize, end: usize| {
            let mut all = self.text[start..end].char_indices();
            all.try_for_each(|(at, c)| self.escaped_at(start + at, c).fmt(f))
        };
        let quote = if self.quoted { "\"" } else { "" };
        f.write_str(quote)?;
        let cut = self.hidden_range();
        match cut {
            None => part(f, 0, self.text.len())?,
            Some((head, tail)) => {
                part(f, 0, head)?;
                f.write_str("…")?;
                part(f, tail, self.text.len())?;
            }
        }
        f.write_str(quote)?;
        if cut.is_some() { write!(f, " ({} bytes)", self.text.len()) } else { Ok(()) }
    }
}

/// A character that is shown as itself (`is_plain`) or as an escape.
struct Escaped {
    c: char,
    is_plain: bool,
}

impl Escaped {
    fn new(c: char, quoted: bool, repeated: bool) -> Self {
        let is_delimiter = quoted && matches!(c, '"' | '\\');
        Self { c, is_plain: is_plain(c) && !is_delimiter && !repeated }
    }

    fn columns(&self) -> usize {
        match self.is_plain {
            true if self.c < '\u{1100}' => 1,
            true => 2,
            false => self.escape().len(),
        }
    }

    fn escape(&self) -> String {
        match self.c {
            '\n' => "\\n".to_owned(),
            '\r' => "\\r".to_owned(),
            '\t' => "\\t".to_owned(),
            c @ ('"' | '\\') => format!("\\{c}"),
            c => c.escape_unicode().to_string(),
        }
    }
}

impl fmt::Display for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_plain { f.write_char(self.c) } else { f.write_str(&self.escape()) }
    }
}

/// How [`Screen`] escapes a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Escapes {
    /// The escapes of names: `\u{1b}`. Line ends and tabs are left as they are.
    Text,
    /// The escapes of JSON, so that JSON stays valid: `\u009b`.
    Json,
}

/// A writer of text to a terminal, a pipe or a file: every character that is not [plain](is_plain) is escaped, except line ends
/// and tabs. Bytes that are not UTF-8 are written as `\xff`.
///
/// Because line ends pass, a name that is written through it as it is can take up several lines: use [`text`] for
/// names.
#[derive(Debug)]
pub struct Screen<W: io::Write> {
    out: W,
    escapes: Escapes,
    /// The first bytes of a UTF-8 character whose other bytes have not been received yet.
    partial: Vec<u8>,
}

impl<W: io::Write> Screen<W> {
    /// A writer that escapes the text that it passes on to `out`.
    pub fn new(out: W, escapes: Escapes) -> Self {
        Self { out, escapes, partial: Vec::new() }
    }

    fn write_text(&mut self, text: &str) -> io::Result<()> {
        let mut rest = text;
        while let Some(at) = rest.find(|c| !(is_plain(c) || matches!(c, '\n' | '\t'))) {
            let (plain, from) = rest.split_at(at);
            self.out.write_all(plain.as_bytes())?;
            let Some(c) = from.chars().next() else { break };
            match self.escapes {
                Escapes::Text => write!(self.out, "{}", Escaped::new(c, false, false))?,
                Escapes::Json => {
                    let mut units = [0; 2];
                    for unit in c.encode_utf16(&mut units) {
                        write!(self.out, "\\u{unit:04x}")?;
                    }
                }
            }
            rest = &from[c.len_utf8()..];
        }
        self.out.write_all(rest.as_bytes())
    }

    fn write_utf8(&mut self, bytes: &[u8], is_end: bool) -> io::Result<()> {
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            self.write_text(chunk.valid())?;
            let invalid = chunk.invalid();
            let may_go_on = !is_end && chunks.peek().is_none() && is_incomplete_char(invalid);
            if may_go_on {
                self.partial = invalid.to_vec();
            } else {
                invalid.iter().try_for_each(|byte| write!(self.out, "\\x{byte:02x}"))?;
            }
        }
        Ok(())
    }

    /// Writes what is left of an incomplete character, and flushes.
    pub fn finish(mut self) -> io::Result<()> {
        let rest = std::mem::take(&mut self.partial);
        self.write_utf8(&rest, true)?;
        self.out.flush()
    }
}

/// Whether these bytes are the beginning of a character of more bytes.
fn is_incomplete_char(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes)
        .is_err_and(|e| !bytes.is_empty() && e.valid_up_to() == 0 && e.error_len().is_none())
}

impl<W: io::Write> io::Write for Screen<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.partial.is_empty() {
            self.write_utf8(bytes, false)?;
        } else {
            let mut all = std::mem::take(&mut self.partial);
            all.extend_from_slice(bytes);
            self.write_utf8(&all, false)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::Write;

    #[test]
    fn names_are_shown_on_one_line() {
        for (name, shown) in [
            ("aten::add.out", "aten::add.out"),
            ("größe 重み", "größe 重み"),
            ("a\x1b[31mb\x07\x7f\u{9b}2J", "a\\u{1b}[31mb\\u{7}\\u{7f}\\u{9b}2J"),
            ("x\nerror: forged\r\t", "x\\nerror: forged\\r\\t"),
            (
                "\u{202e}live\u{2066}\u{2028}\u{feff}\u{200b}",
                "\\u{202e}live\\u{2066}\\u{2028}\\u{feff}\\u{200b}",
            ),
            ("a  b    c", "a  b  \\u{20}\\u{20}c"),
            (r#"a "\" b"#, r#"a "\" b"#),
        ] {
            assert_eq!(text(name).to_string(), shown);
        }
        assert_eq!(quoted("a \"\\\" b\n").to_string(), r#""a \"\\\" b\n""#);
        assert_eq!(bytes(b"a\xff\n\""), r#""a\xff\n\"""#);
    }

    #[test]
    fn lines_keep_their_indentation() {
        assert_eq!(line("    a\nb   c").to_string(), "    a\\nb  \\u{20}c");
        assert_eq!(message("a `x\nerror: y`:\n  b\n    c\n"), "a `x\\nerror: y`:\n  b\n    c\\n");
    }

    #[test]
    fn long_names_are_shortened_in_the_middle() {
        let name = format!("layers.{}.weight", "0.".repeat(500_000));
        let shown = text(&name).to_string();
        assert!(shown.starts_with("layers.0.0.") && shown.ends_with("0..weight (1000014 bytes)"), "{shown}");
        assert!(shown.chars().count() <= MAX_COLUMNS + 16, "{shown}");
        let escapes = "\x1b".repeat(1000);
        assert!(text(&escapes).to_string().len() < MAX_COLUMNS + 20);
        assert_eq!(text(&"x".repeat(MAX_COLUMNS)).to_string().len(), MAX_COLUMNS);
        assert_eq!(text_within("abcdefghij", 5).to_string(), "abc…j (10 bytes)");
        assert!(bytes(&[0xff; 100_000]).ends_with("…\" (100000 bytes)"));
    }

    fn written(escapes: Escapes, pieces: &[&[u8]]) -> String {
        let mut out = Vec::new();
        let mut screen = Screen::new(&mut out, escapes);
        pieces.iter().for_each(|piece| screen.write_all(piece).unwrap());
        screen.finish().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_screen_passes_nothing_on_that_acts() {
        assert_eq!(written(Escapes::Text, &[b"a\n\tb\x1b[0m\r\n"]), "a\n\tb\\u{1b}[0m\\r\n");
        assert_eq!(written(Escapes::Text, &[b"\xc3", b"\xa9\xff", b"\xe9\x87"]), "é\\xff\\xe9\\x87");
        let json = "\"\u{7f}\u{9b}\u{e0001}é\"\n";
        assert_eq!(written(Escapes::Json, &[json.as_bytes()]), "\"\\u007f\\u009b\\udb40\\udc01é\"\n");
    }
}
