//! Messages and text on the terminal.

use pteron_toolbox::show::{Escapes, Screen, message};
use std::io::{self, Write};

/// Colours text with terminal escape sequences, or leaves all text unchanged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style(bool);

impl Style {
    /// A style that colours text if `coloured` is set.
    pub(crate) fn new(coloured: bool) -> Self {
        Self(coloured)
    }

    /// Formats text as an error: bold red.
    pub(crate) fn error(self, text: &str) -> String {
        self.colour("1;31", text)
    }

    /// Formats text as a note or hint: bold cyan.
    pub(crate) fn note(self, text: &str) -> String {
        self.colour("1;36", text)
    }

    /// Formats text as a success: bold green.
    pub(crate) fn success(self, text: &str) -> String {
        self.colour("1;32", text)
    }

    fn colour(self, code: &str, text: &str) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

/// Stdout as a writer that escapes control characters, since text may come from files.
pub(crate) fn stdout() -> Screen<io::Stdout> {
    Screen::new(io::stdout(), Escapes::Text)
}

/// Stderr as a writer that escapes control characters, as [`stdout`] does.
pub(crate) fn stderr() -> Screen<io::Stderr> {
    Screen::new(io::stderr(), Escapes::Text)
}

/// Writes a message to stderr; errors of writing are ignored.
pub(crate) fn say(text: impl std::fmt::Display) {
    say_after("", &text.to_string());
}

/// Writes text of several lines to stderr; errors of writing are ignored.
pub(crate) fn say_lines(text: &str) {
    let _ = writeln!(stderr(), "{text}");
}

/// Writes a message to stderr after a label, which may be coloured.
pub(crate) fn say_after(label: &str, text: &str) {
    let space = if label.is_empty() { "" } else { " " };
    let _ = writeln!(io::stderr(), "{label}{space}{}", message(text));
}
