//! Messages and text on the terminal.

use pteron_toolbox::show::{Escapes, Screen, message};
use std::io::{self, Write};

/// Colours text with terminal escape sequences, or leaves it unchanged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style(bool);

impl Style {
    /// The style of a stream that is `coloured`, or of plain text.
    pub(crate) fn new(coloured: bool) -> Self {
        Self(coloured)
    }

    /// Errors.
    pub(crate) fn error(self, text: &str) -> String {
        self.colour("1;31", text)
    }

    /// Notes and hints.
    pub(crate) fn note(self, text: &str) -> String {
        self.colour("1;36", text)
    }

    /// Success.
    pub(crate) fn success(self, text: &str) -> String {
        self.colour("1;32", text)
    }

    fn colour(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Stdout for text, which may contain text of files: what would act on a terminal is escaped.
pub(crate) fn stdout() -> Screen<io::Stdout> {
    Screen::new(io::stdout(), Escapes::Text)
}

/// As [`stdout`], for stderr.
pub(crate) fn stderr() -> Screen<io::Stderr> {
    Screen::new(io::stderr(), Escapes::Text)
}

/// Writes a message to stderr, and ignores errors.
pub(crate) fn say(text: impl std::fmt::Display) {
    say_after("", &text.to_string());
}

/// Writes lines to stderr, each of which ends where `text` says so.
pub(crate) fn say_lines(text: &str) {
    let _ = writeln!(stderr(), "{text}");
}

/// As [`say`], after a label, which may be coloured.
pub(crate) fn say_after(label: &str, text: &str) {
    let space = if label.is_empty() { "" } else { " " };
    let _ = writeln!(io::stderr(), "{label}{space}{}", message(text));
}
