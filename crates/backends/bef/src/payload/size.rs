//! Sizes computed from those of the inputs: expressions in postfix form, which need no nesting and no recursion.

use crate::error::{Error, Result, fail};
#[cfg(feature = "compile")]
use ir::exported::SymExpr;
use ir::exported::SymOp;
use std::fmt::{self, Write};
#[cfg(feature = "compile")]
use std::sync::Arc;

/// The maximum number of tokens of an expression.
const MAX_TOKENS: usize = 1024;

/// The names of operations in payloads.
const OPS: [(&str, SymOp); 8] = [
    ("add", SymOp::Add),
    ("mul", SymOp::Mul),
    ("floordiv", SymOp::FloorDiv),
    ("ceildiv", SymOp::CeilDiv),
    ("mod", SymOp::Mod),
    ("max", SymOp::Max),
    ("min", SymOp::Min),
    ("pow", SymOp::Pow),
];

/// A size, or another integer of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Number {
    /// A known integer.
    Int(i64),
    /// An expression, by its index in [`Payload::expressions`](super::Payload::expressions).
    Expression(usize),
}

/// An expression of symbols: postfix tokens, evaluated with a stack.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Expression {
    tokens: Vec<Token>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Token {
    Int(i64),
    Symbol(usize),
    /// An operation on the two topmost values of the stack.
    Op(SymOp),
}

impl Expression {
    /// The symbol, if the expression is a single symbol.
    pub fn symbol(&self) -> Option<usize> {
        if let [Token::Symbol(symbol)] = self.tokens[..] { Some(symbol) } else { None }
    }

    /// The symbols that it contains.
    pub fn symbols(&self) -> impl Iterator<Item = usize> + '_ {
        self.tokens.iter().filter_map(|token| if let Token::Symbol(s) = token { Some(*s) } else { None })
    }

    /// Converts an expression; `symbol` assigns indices to symbols.
    #[cfg(feature = "compile")]
    pub(crate) fn of(expression: &SymExpr, symbol: &mut impl FnMut(&Arc<str>) -> usize) -> Result<Self> {
        let mut tokens = Vec::new();
        push(expression, symbol, &mut tokens);
        if tokens.len() > MAX_TOKENS {
            return fail(format!(
                "a size has {} terms, and payloads support at most {MAX_TOKENS}",
                tokens.len()
            ));
        }
        Ok(Self { tokens })
    }

    /// Parses the `Display` form. Symbol indices must be below `symbols`.
    pub(crate) fn parse(text: &str, symbols: usize) -> Result<Self> {
        let (mut tokens, mut depth) = (Vec::new(), 0usize);
        for word in text.split(' ') {
            let token =
                token(word).ok_or_else(|| Error::new(format!("the size `{text}`: unknown term `{word}`")))?;
            depth = match token {
                Token::Op(_) => depth.checked_sub(1).filter(|depth| *depth > 0).unwrap_or(usize::MAX),
                Token::Symbol(s) if s >= symbols => {
                    return fail(format!("the size `{text}` refers to symbol {s}, and there are {symbols}"));
                }
                Token::Int(_) | Token::Symbol(_) => depth.saturating_add(1),
            };
            tokens.push(token);
            if depth == usize::MAX || tokens.len() > MAX_TOKENS {
                return fail(format!("the size `{text}` lacks operands or has more than {MAX_TOKENS} terms"));
            }
        }
        match depth {
            1 => Ok(Self { tokens }),
            _ => fail(format!("the size `{text}` has {depth} results")),
        }
    }

    /// Evaluates the expression.
    ///
    /// # Errors
    /// A symbol has no value, a division by zero, or an overflow.
    pub(crate) fn value(&self, symbols: &[Option<i64>]) -> Result<i64> {
        let mut stack: Vec<i64> = Vec::new();
        for token in &self.tokens {
            let value = match *token {
                Token::Int(v) => Some(v),
                Token::Symbol(s) => symbols.get(s).copied().flatten(),
                Token::Op(op) => {
                    let (b, a) = (stack.pop(), stack.pop());
                    a.zip(b).and_then(|(a, b)| op.apply(a.into(), b.into()))
                }
            };
            stack.push(value.ok_or_else(|| Error::new(format!("the size `{self}` has no value")))?);
        }
        stack.pop().ok_or_else(|| Error::new("a size has no terms"))
    }
}

#[cfg(feature = "compile")]
fn push(expression: &SymExpr, symbol: &mut impl FnMut(&Arc<str>) -> usize, tokens: &mut Vec<Token>) {
    match expression {
        SymExpr::Int(v) => tokens.push(Token::Int(*v)),
        SymExpr::Symbol(name) => tokens.push(Token::Symbol(symbol(name))),
        SymExpr::Op(op, args) => {
            for (i, arg) in args.iter().enumerate() {
                push(arg, symbol, tokens);
                if i > 0 {
                    tokens.push(Token::Op(*op));
                }
            }
        }
    }
}

fn token(word: &str) -> Option<Token> {
    if let Some((_, op)) = OPS.iter().find(|(name, _)| *name == word) {
        return Some(Token::Op(*op));
    }
    match word.strip_prefix('s') {
        Some(symbol) => symbol.parse().ok().map(Token::Symbol),
        None => word.parse().ok().map(Token::Int),
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, token) in self.tokens.iter().enumerate() {
            if i > 0 {
                f.write_char(' ')?;
            }
            match token {
                Token::Int(v) => write!(f, "{v}")?,
                Token::Symbol(s) => write!(f, "s{s}")?,
                Token::Op(op) => {
                    f.write_str(OPS.iter().find(|(_, other)| other == op).map_or("?", |(name, _)| name))?;
                }
            }
        }
        Ok(())
    }
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
    /// Parses the `Display` form. Expression indices must be below `expressions`.
    pub(crate) fn parse(text: &str, expressions: usize) -> Option<Self> {
        match text.strip_prefix('?') {
            Some(index) => index.parse().ok().filter(|index| *index < expressions).map(Self::Expression),
            None => text.parse().ok().map(Self::Int),
        }
    }
}

#[cfg(all(test, feature = "compile"))]
mod tests {
    use super::*;

    #[test]
    fn expressions_round_trip_and_evaluate() {
        let symbol = |name: &str| SymExpr::Symbol(name.into());
        let sum = SymExpr::Op(SymOp::Add, vec![symbol("a"), SymExpr::Int(3), symbol("b")]);
        let half = SymExpr::Op(SymOp::FloorDiv, vec![sum, SymExpr::Int(2)]);
        let expression = Expression::of(&half, &mut |name| usize::from(&**name == "b")).unwrap();
        assert_eq!(expression.to_string(), "s0 3 add s1 add 2 floordiv");
        assert_eq!(Expression::parse("s0 3 add s1 add 2 floordiv", 2).unwrap(), expression);
        assert_eq!(expression.value(&[Some(4), Some(8)]).unwrap(), 7);
        assert!(expression.value(&[Some(4), None]).unwrap_err().to_string().contains("has no value"));
        assert!(Expression::parse("s0 0 mod", 1).unwrap().value(&[Some(1)]).is_err());
        for wrong in ["", "add", "1 add", "1 2", "s1", "1 2 add add", "x", "1  2 add"] {
            assert!(Expression::parse(wrong, 1).is_err(), "`{wrong}`");
        }
    }
}
