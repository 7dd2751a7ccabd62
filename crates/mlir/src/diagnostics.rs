//! Diagnostics: what is wrong, and where, in the form compilers print it.

use std::fmt;

use crate::ir::{Location, Text};

/// How grave a diagnostic is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Severity {
    /// The input is refused.
    Error,
    /// The input is accepted, but may not mean what was intended.
    Warning,
    /// More about another diagnostic.
    Note,
    /// A remark that was asked for.
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

/// A file, a line and a column, the latter two from 1 and the column in bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// File name as recorded.
    pub file: String,
    /// Line.
    pub line: u32,
    /// Column.
    pub column: u32,
}

/// A message about a place.
///
/// Displays as `file:line:col: error: message`, then the source line and a caret where the line is known,
/// then the notes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// How grave it is.
    pub severity: Severity,
    /// Where; absent when the location is unknown.
    pub place: Option<Place>,
    /// What is wrong.
    pub message: String,
    /// The source line of `place`.
    pub quote: Option<String>,
    /// More about it.
    pub notes: Vec<Diagnostic>,
}

impl Diagnostic {
    /// An error at a location of a program, without a quote.
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

    /// Adds the source line from `source`, whose name is `name`, where the place lies in it.
    pub fn quoted_from(mut self, name: &str, source: &[u8]) -> Diagnostic {
        if self.quote.is_none()
            && let Some(place) = self.place.as_ref().filter(|p| p.file == name)
        {
            self.quote = crate::source::Source::new(name, source).line(place.line);
        }
        self.notes = self.notes.into_iter().map(|note| note.quoted_from(name, source)).collect();
        self
    }

    /// The diagnostic of a text that begins `lines` further down in the file called `name`.
    pub fn moved_down(mut self, name: &str, lines: u32) -> Diagnostic {
        if let Some(place) = self.place.as_mut().filter(|p| p.file == name) {
            place.line = place.line.saturating_add(lines);
        }
        self.notes = self.notes.into_iter().map(|note| note.moved_down(name, lines)).collect();
        self
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.place {
            Some(place) => write!(f, "{}:{}:{}: ", place.file, place.line, place.column)?,
            None => write!(f, "<unknown>:0: ")?,
        }
        write!(f, "{}: {}", self.severity.keyword(), self.message)?;
        if let (Some(quote), Some(place)) = (&self.quote, &self.place) {
            write!(f, "\n{quote}\n{}^", caret_indent(quote, place.column))?;
        }
        for note in &self.notes {
            write!(f, "\n{note}")?;
        }
        Ok(())
    }
}

/// White space as wide as the characters before byte column `column`; tabs stay tabs.
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

/// Several diagnostics as one error, for callers that carry errors upward with `?`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(Diagnostic::to_string).collect::<Vec<_>>().join("\n"))]
pub struct Error(pub Vec<Diagnostic>);

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
    fn unknown_places_say_so() {
        let shown = Diagnostic::error_at(&Location::Unknown, "lost").to_string();
        assert_eq!(shown, "<unknown>:0: error: lost");
    }
}
