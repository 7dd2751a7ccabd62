//! Diagnostics: errors, warnings, notes and remarks with source locations, printed as compilers print them.

use std::fmt;

use crate::ir::{Location, Text};
use crate::source::Source;

/// The severity of a diagnostic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The input is rejected.
    Error,
    /// The input is accepted, but may not mean what was intended.
    Warning,
    /// Additional information about another diagnostic.
    Note,
    /// Information that was requested.
    Remark,
}

impl Severity {
    /// `error`, `warning`, `note` or `remark`.
    pub fn keyword(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
            Severity::Remark => "remark",
        }
    }
}

/// A position in a source file. Lines and columns count from 1; columns count bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// The file name.
    pub file: String,
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// A message about a source position.
///
/// Displays as `file:line:col: error: message`, then the source line with a caret if the line is known, then the notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The severity.
    pub severity: Severity,
    /// The position to which the diagnostic refers; absent if it is unknown.
    pub place: Option<Place>,
    /// The message, without severity and position.
    pub message: String,
    /// The text of the source line at `place`; absent if it is unknown.
    pub quote: Option<String>,
    /// Notes that add information to this diagnostic.
    pub notes: Vec<Diagnostic>,
}

impl Diagnostic {
    /// An error at a location of a program, without the text of its source line.
    pub fn error_at(location: &Location, message: impl Into<String>) -> Diagnostic {
        let place = location.file_line_col().map(|(file, line, column)| Place {
            file: Text::to_string_lossy(file),
            line,
            column,
        });
        Diagnostic {
            severity: Severity::Error,
            place,
            message: message.into(),
            quote: None,
            notes: Vec::new(),
        }
    }

    /// Adds the source line from `source` to the diagnostic and its notes, where their position is in the file `name`.
    pub fn quoted_from(mut self, name: &str, source: &[u8]) -> Diagnostic {
        if self.quote.is_none()
            && let Some(place) = self.place.as_ref().filter(|p| p.file == name)
        {
            self.quote = Source::new(name, source).line(place.line);
        }
        self.notes = self.notes.into_iter().map(|note| note.quoted_from(name, source)).collect();
        self
    }

    /// Shifts the positions in the file called `name` down by `lines`, for a diagnostic of a text that starts at a
    /// later line of that file.
    pub fn shifted_by_lines(mut self, name: &str, lines: u32) -> Diagnostic {
        if let Some(place) = self.place.as_mut().filter(|p| p.file == name) {
            place.line = place.line.saturating_add(lines);
        }
        self.notes = self.notes.into_iter().map(|note| note.shifted_by_lines(name, lines)).collect();
        self
    }
}

impl Source<'_> {
    /// A diagnostic at a byte offset of the source text, with the text of its line.
    pub(crate) fn diagnostic(
        &self,
        severity: Severity,
        offset: u32,
        message: impl Into<String>,
    ) -> Diagnostic {
        let (line, column) = self.line_col(offset);
        Diagnostic {
            severity,
            place: Some(Place { file: self.name.to_string(), line, column }),
            message: message.into(),
            quote: self.line(line),
            notes: Vec::new(),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{}:{}:{}: ", place.file, place.line, place.column)?,
            None => write!(f, "<unknown>:0: ")?,
        }
        write!(f, "{}: {}", self.severity.keyword(), pteron_text::line(&self.message))?;
        if let (Some(quote), Some(place)) = (&self.quote, &self.place) {
            write!(f, "\n{quote}\n{}^", caret_indent(quote, place.column))?;
        }
        for note in &self.notes {
            write!(f, "\n{note}")?;
        }
        Ok(())
    }
}

/// White space as wide as the part of `quote` before byte column `column`; tabs are kept.
fn caret_indent(quote: &str, column: u32) -> String {
    let before = (column as usize).saturating_sub(1);
    let mut indent: String = quote
        .char_indices()
        .take_while(|(at, _)| *at < before)
        .map(|(_, c)| if c == '\t' { '\t' } else { ' ' })
        .collect();
    if before > quote.len() {
        indent.push_str(&" ".repeat((before - quote.len()).min(8)));
    }
    indent
}

/// Why a text or a program was refused: the diagnostics, the most relevant first. It dereferences to them, displays
/// them one below the other, and propagates with `?`.
#[derive(Clone, Debug, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Diagnostic::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Error(pub Vec<Diagnostic>);

impl std::ops::Deref for Error {
    type Target = [Diagnostic];

    fn deref(&self) -> &[Diagnostic] {
        &self.0
    }
}

impl IntoIterator for Error {
    type Item = Diagnostic;
    type IntoIter = std::vec::IntoIter<Diagnostic>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl From<Vec<Diagnostic>> for Error {
    fn from(diagnostics: Vec<Diagnostic>) -> Self {
        Error(diagnostics)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_line_and_caret() {
        let source = "first\n\tsecond é x\n";
        let place = Place { file: "f.mlir".into(), line: 2, column: 12 };
        let diagnostic = Diagnostic {
            severity: Severity::Error,
            place: Some(place),
            message: "bad".into(),
            quote: None,
            notes: Vec::new(),
        };
        let shown = diagnostic.quoted_from("f.mlir", source.as_bytes()).to_string();
        assert_eq!(shown, "f.mlir:2:12: error: bad\n\tsecond é x\n\t         ^");
    }

    #[test]
    fn a_diagnostic_without_a_position_is_displayed() {
        let shown = Diagnostic::error_at(&Location::Unknown, "lost").to_string();
        assert_eq!(shown, "<unknown>:0: error: lost");
    }
}
