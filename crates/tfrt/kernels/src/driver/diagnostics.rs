//! Reports errors in the format of the reference's diagnostics, except those that the source expects.

use super::expected::{Expected, Kind, expected_diagnostics};
use pteron_host::SourceLocation;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::Mutex;

/// Maximum size in bytes of a source file that is read for its expected diagnostics.
const MAX_SOURCE: u64 = 1 << 28;

/// Prints reported errors, except those that comments in their source files expect.
pub(super) struct Diagnostics(Mutex<State>);

struct State {
    out: Box<dyn Write + Send>,
    /// Source files that errors refer to; `None` for those that cannot be read.
    sources: BTreeMap<String, Option<Source>>,
    /// Number of errors that were not expected.
    unexpected: usize,
}

struct Source {
    text: String,
    expected: Vec<Expected>,
}

impl Diagnostics {
    pub(super) fn new(out: impl Write + Send + 'static) -> Self {
        Self(Mutex::new(State { out: Box::new(out), sources: BTreeMap::new(), unexpected: 0 }))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Prints an error, unless a comment in its source file expects it.
    pub(super) fn report(&self, location: Option<&SourceLocation>, message: &str) {
        // A failure to write has nowhere to be reported.
        let _ = self.state().report(location, message);
    }

    /// Number of errors so far that were not expected.
    pub(super) fn unexpected_count(&self) -> usize {
        self.state().unexpected
    }

    /// Whether exactly the expected errors have occurred, considering the source files that errors refer to. Reports
    /// the missing ones.
    pub(super) fn report_missing_errors(&self) -> bool {
        let mut state = self.state();
        let State { out, sources, unexpected } = &mut *state;
        let mut passed = *unexpected == 0;
        for (file, source) in std::mem::take(sources) {
            let Some(source) = source else { continue };
            for missing in source.expected.iter().filter(|e| !e.matched) {
                let what = missing.kind.name();
                let message = format!("expected {what} \"{}\" was not produced", missing.text);
                let width = missing.text.chars().count();
                let _ = write_error(out, &file, Some(&source.text), missing.at, &message, width);
                passed = false;
            }
        }
        let _ = out.flush();
        passed
    }
}

impl State {
    fn report(&mut self, location: Option<&SourceLocation>, message: &str) -> io::Result<()> {
        let message = format!("runtime error: {message}");
        let Some(SourceLocation::FileLineCol { file, line, column }) = location else {
            self.unexpected += 1;
            let place = location.map(|other| format!("loc(\"{}\"): ", escape(&other.to_string())));
            writeln!(
                self.out,
                "<unknown>:0: error: {}unexpected error: {message}",
                place.unwrap_or_default()
            )?;
            return self.out.flush();
        };
        let source = self.sources.entry(file.clone().into_owned()).or_insert_with(|| read_source(file));
        let expected = source.as_mut().map_or(&mut [][..], |s| &mut s.expected);
        let mut here = expected.iter_mut().filter(|e| e.line == *line && e.matches(&message));
        let mut near = None;
        if let Some(matching) = here.find(|e| {
            near = near.or(Some((e.at, e.kind)));
            e.kind == Kind::Error
        }) {
            matching.matched = true;
            return Ok(());
        }
        self.unexpected += 1;
        let text = source.as_ref().map(|s| s.text.as_str());
        match near {
            Some((at, kind)) => {
                let message = format!("'error' diagnostic emitted when expecting a '{}'", kind.name());
                write_error(&mut self.out, file, text, at, &message, 0)?;
            }
            None => {
                let message = format!("unexpected error: {message}");
                write_error(&mut self.out, file, text, (*line, *column), &message, 0)?;
            }
        }
        self.out.flush()
    }
}

fn read_source(file: &str) -> Option<Source> {
    let size = std::fs::metadata(file).ok().filter(std::fs::Metadata::is_file)?.len();
    if size > MAX_SOURCE {
        return None;
    }
    let text = String::from_utf8_lossy(&std::fs::read(file).ok()?).into_owned();
    let expected = expected_diagnostics(&text);
    Some(Source { text, expected })
}

/// Writes a message with its location and, if the source is available, the line and below it a caret followed by tildes
/// that mark `width` columns.
fn write_error(
    out: &mut dyn Write,
    file: &str,
    source: Option<&str>,
    (line, column): (u64, u64),
    message: &str,
    width: usize,
) -> io::Result<()> {
    writeln!(out, "{file}:{line}:{column}: error: {message}")?;
    let index = |n: u64| n.checked_sub(1).and_then(|n| usize::try_from(n).ok());
    let (Some(row), Some(start)) = (index(line), index(column)) else { return Ok(()) };
    let Some(text) = source.and_then(|s| s.split('\n').nth(row)) else { return Ok(()) };
    let text = text.trim_end_matches('\r');
    if start > text.len() {
        return Ok(());
    }
    let mut shown = String::new();
    let mut marks = String::new();
    for (i, c) in text.chars().enumerate() {
        // A tab advances to the next multiple of 8 columns.
        let columns = if c == '\t' { 8 - shown.chars().count() % 8 } else { 1 };
        shown.extend(std::iter::repeat_n(if c == '\t' { ' ' } else { c }, columns));
        let mark = match i.checked_sub(start) {
            Some(0) => '^',
            Some(n) if n < width => '~',
            _ => ' ',
        };
        marks.extend(std::iter::repeat_n(mark, columns));
    }
    if start >= text.chars().count() {
        marks.push('^');
    }
    writeln!(out, "{shown}")?;
    // Columns count bytes, so the marks would be misplaced in a line that is not ASCII.
    if text.is_ascii() { writeln!(out, "{}", marks.trim_end()) } else { Ok(()) }
}

/// Text escaped as in MLIR's string literals.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for &byte in text.as_bytes() {
        match byte {
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' if byte != b'"' => out.push(byte.into()),
            _ => out.push_str(&format!("\\{byte:02X}")),
        }
    }
    out
}
