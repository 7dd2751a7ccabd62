//! Sizes computed from those of the inputs.

use std::fmt;

/// A size, or another integer of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// A known integer.
    Int(i64),
    /// An expression, by its index in [`Payload::expressions`](super::Payload::expressions).
    Expression(usize),
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(v) => write!(f, "{v}"),
            Self::Expression(index) => write!(f, "?{index}"),
        }
    }
}

impl Number {
    /// Parses a number from its `Display` form. Expression indices must be below `expressions`.
    pub(crate) fn parse(text: &str, expressions: usize) -> Option<Self> {
        match text.strip_prefix('?') {
            Some(index) => index.parse().ok().filter(|index| *index < expressions).map(Self::Expression),
            None => text.parse().ok().map(Self::Int),
        }
    }
}
