//! A position in a line of a listing.

use crate::{Size, SymExpr, SymOp};
use std::sync::Arc;

type Result<T> = std::result::Result<T, String>;

/// The maximum nesting depth of a size.
const MAX_NESTING: usize = 64;

/// The binary operators of sizes. An operator that is a prefix of another comes after it.
const OPERATORS: [(&str, SymOp); 4] =
    [("**", SymOp::Pow), ("*", SymOp::Mul), ("//", SymOp::FloorDiv), (" % ", SymOp::Mod)];
/// The operators of sizes that are written as functions.
const FUNCTIONS: [(&str, SymOp); 3] =
    [("ceildiv(", SymOp::CeilDiv), ("max(", SymOp::Max), ("min(", SymOp::Min)];

/// The rest of a line.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'t>(&'t str);

impl<'t> Cursor<'t> {
    pub(super) fn new(line: &'t str) -> Self {
        Self(line)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn starts_with(&self, text: &str) -> bool {
        self.0.starts_with(text)
    }

    /// Advances past `text` if it is next. Returns whether it is.
    pub(super) fn eat(&mut self, text: &str) -> bool {
        let rest = self.0.strip_prefix(text);
        self.0 = rest.unwrap_or(self.0);
        rest.is_some()
    }

    /// Advances past `text`, which must be next.
    pub(super) fn expect(&mut self, text: &str) -> Result<()> {
        if self.eat(text) { Ok(()) } else { Err(self.expected_error(&format!("`{}`", text.trim()))) }
    }

    /// Checks that nothing is left.
    pub(super) fn expect_end(&self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(self.expected_error("the end of the line")) }
    }

    /// The error message that `expected` was expected at the cursor, with the text found there.
    pub(super) fn expected_error(&self, expected: &str) -> String {
        match self.0 {
            "" => format!("expected {expected}, found the end of the line"),
            rest => format!("expected {expected}, found `{rest}`"),
        }
    }

    fn take_bytes(&mut self, at: usize) -> &'t str {
        let (before, rest) = self.0.split_at(at);
        self.0 = rest;
        before
    }

    /// Takes the text before the next `mark`, and advances past the mark.
    pub(super) fn take_until(&mut self, mark: char) -> Option<&'t str> {
        let at = self.0.find(mark)?;
        let before = self.take_bytes(at);
        self.0 = &self.0[mark.len_utf8()..];
        Some(before)
    }

    /// Takes the text before the next character of `marks`, or all of it if none follows.
    pub(super) fn take_until_any(&mut self, marks: &[char]) -> &'t str {
        self.take_bytes(self.0.find(marks).unwrap_or(self.0.len()))
    }

    /// Takes letters, digits and underscores.
    pub(super) fn word(&mut self) -> &'t str {
        let ends = |c: char| !c.is_alphanumeric() && c != '_';
        self.take_bytes(self.0.find(ends).unwrap_or(self.0.len()))
    }

    /// Takes the name in `name=`; empty if an argument without a name is next.
    pub(super) fn keyword(&mut self) -> &'t str {
        let mut ahead = *self;
        let name = ahead.word();
        if name.is_empty() || !ahead.eat("=") {
            return "";
        }
        *self = ahead;
        name
    }

    /// Takes the name in `%name`.
    pub(super) fn name(&mut self) -> Result<&'t str> {
        self.expect("%")?;
        match self.take_until_any(&[':', ',', ')', ']', ' ']) {
            "" => Err(self.expected_error("a name")),
            name => Ok(name),
        }
    }

    /// Takes a string in quotes, with the escapes `\n`, `\t`, `\"`, `\\` and `\'`.
    pub(super) fn string(&mut self) -> Result<String> {
        self.expect("\"")?;
        let mut text = String::new();
        let mut chars = self.0.char_indices();
        while let Some((at, c)) = chars.next() {
            match c {
                '"' => {
                    self.0 = &self.0[at + 1..];
                    return Ok(text);
                }
                '\\' => text.push(match chars.next() {
                    Some((_, 'n')) => '\n',
                    Some((_, 't')) => '\t',
                    Some((_, c @ ('"' | '\\' | '\''))) => c,
                    _ => return Err("an escape that is not known".to_owned()),
                }),
                _ => text.push(c),
            }
        }
        Err("a string without an end".to_owned())
    }

    /// Parses a size: an integer or an expression of symbols.
    pub(super) fn size(&mut self) -> Result<Size> {
        Ok(match self.sum(MAX_NESTING)? {
            SymExpr::Int(v) => Size::Int(v),
            expr => Size::Sym(Arc::new(expr)),
        })
    }

    fn sum(&mut self, nesting: usize) -> Result<SymExpr> {
        let mut terms = vec![self.term(nesting)?];
        while self.eat(" + ") {
            terms.push(self.term(nesting)?);
        }
        Ok(if terms.len() == 1 { terms.remove(0) } else { SymExpr::Op(SymOp::Add, terms) })
    }

    fn term(&mut self, nesting: usize) -> Result<SymExpr> {
        let is_negative = self.starts_with("-");
        let mut args = vec![self.atom(nesting)?];
        let Some(&(symbol, op)) = OPERATORS.iter().find(|(symbol, _)| self.starts_with(symbol)) else {
            return Ok(args.remove(0));
        };
        while self.eat(symbol) {
            args.push(self.atom(nesting)?);
        }
        // As in Python, `-2**n` is the negative of a power; the base -2 is in parentheses.
        if let (true, SymOp::Pow, SymExpr::Int(base)) = (is_negative, op, &mut args[0]) {
            *base = base.checked_neg().ok_or("a size that is too large")?;
            return Ok(SymExpr::Op(SymOp::Mul, vec![SymExpr::Int(-1), SymExpr::Op(op, args)]));
        }
        Ok(SymExpr::Op(op, args))
    }

    fn atom(&mut self, nesting: usize) -> Result<SymExpr> {
        let nesting = nesting.checked_sub(1).ok_or("a size that is nested too deep")?;
        if let Some(&(_, op)) = FUNCTIONS.iter().find(|(name, _)| self.eat(name)) {
            let mut args = vec![self.sum(nesting)?];
            while self.eat(", ") {
                args.push(self.sum(nesting)?);
            }
            self.expect(")")?;
            return Ok(SymExpr::Op(op, args));
        }
        if self.eat("(") {
            let inner = self.sum(nesting)?;
            self.expect(")")?;
            return Ok(inner);
        }
        let sign = if self.eat("-") { "-" } else { "" };
        match self.word() {
            "" => Err(self.expected_error("a size")),
            word if word.starts_with(|c: char| c.is_ascii_digit()) => {
                let int = format!("{sign}{word}").parse();
                int.map(SymExpr::Int).map_err(|_| format!("`{sign}{word}` is no size"))
            }
            symbol if sign.is_empty() => Ok(SymExpr::Symbol(symbol.into())),
            symbol => Err(format!("`-{symbol}` is no size")),
        }
    }
}
