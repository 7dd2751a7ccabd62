//! Integers computed from symbols: expressions in postfix form, which need no nesting and no recursion. Files store them as
//! text.

use super::{Size, SymExpr, SymOp};
use smallvec::SmallVec;
use std::fmt::{self, Write};
use std::sync::Arc;

/// The maximum number of tokens of an expression.
const MAX_TOKENS: usize = 1024;

/// The names of operations in files.
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

/// An expression of numbered symbols: postfix tokens, evaluated with a stack.
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
    /// The integer, if the expression is a single integer.
    pub fn int(&self) -> Option<i64> {
        if let [Token::Int(v)] = self.tokens[..] { Some(v) } else { None }
    }

    /// The symbol, if the expression is a single symbol.
    pub fn symbol(&self) -> Option<usize> {
        if let [Token::Symbol(symbol)] = self.tokens[..] { Some(symbol) } else { None }
    }

    /// The number of each symbol in the expression, once for each occurrence.
    pub fn symbols(&self) -> impl Iterator<Item = usize> + '_ {
        self.tokens.iter().filter_map(|token| if let Token::Symbol(s) = token { Some(*s) } else { None })
    }

    /// Whether the expression has no operations other than sums and products.
    pub fn is_polynomial(&self) -> bool {
        !self.tokens.iter().any(|t| matches!(t, Token::Op(op) if !matches!(op, SymOp::Add | SymOp::Mul)))
    }

    /// Converts a size; `symbol` assigns indices to symbols.
    ///
    /// # Errors
    /// The size has more terms than an expression may have.
    pub fn from_size(size: &SymExpr, symbol: &mut impl FnMut(&Arc<str>) -> usize) -> Result<Self, String> {
        let mut tokens = Vec::new();
        push(size, symbol, &mut tokens);
        if tokens.len() > MAX_TOKENS {
            return Err(format!("a size has {} terms, and at most {MAX_TOKENS} can be stored", tokens.len()));
        }
        Ok(Self { tokens })
    }

    /// Parses the `Display` form. Symbol indices must be below `symbols`.
    ///
    /// # Errors
    /// The text is not a single expression of known terms.
    pub fn parse(text: &str, symbols: usize) -> Result<Self, String> {
        let (mut tokens, mut depth) = (Vec::new(), 0usize);
        for word in text.split(' ') {
            let token =
                parse_token(word).ok_or_else(|| format!("the size `{text}`: unknown term `{word}`"))?;
            depth = match token {
                Token::Op(_) => depth.checked_sub(1).filter(|depth| *depth > 0).unwrap_or(usize::MAX),
                Token::Symbol(s) if s >= symbols => {
                    return Err(format!("the size `{text}` refers to symbol {s}, and there are {symbols}"));
                }
                Token::Int(_) | Token::Symbol(_) => depth.saturating_add(1),
            };
            tokens.push(token);
            if depth == usize::MAX || tokens.len() > MAX_TOKENS {
                return Err(format!("the size `{text}` lacks operands or has more than {MAX_TOKENS} terms"));
            }
        }
        match depth {
            1 => Ok(Self { tokens }),
            _ => Err(format!("the size `{text}` has {depth} results")),
        }
    }

    /// Evaluates the expression. `None` if a symbol has no value, or if an operation is undefined or overflows: see
    /// `SymOp::apply`.
    pub fn evaluate(&self, symbol: impl Fn(usize) -> Option<i64>) -> Option<i64> {
        let mut stack: SmallVec<[i64; 8]> = SmallVec::new();
        for token in &self.tokens {
            let value = match *token {
                Token::Int(v) => v,
                Token::Symbol(s) => symbol(s)?,
                Token::Op(op) => {
                    let (b, a) = (stack.pop()?, stack.pop()?);
                    op.apply(a.into(), b.into())?
                }
            };
            stack.push(value);
        }
        stack.pop()
    }

    /// The expression as a size of named symbols.
    pub fn size(&self, name: impl Fn(usize) -> Arc<str>) -> Size {
        let mut stack: Vec<Size> = Vec::new();
        for token in &self.tokens {
            let size = match *token {
                Token::Int(v) => Size::Int(v),
                Token::Symbol(s) => Size::symbol(name(s)),
                Token::Op(op) => match (stack.pop(), stack.pop()) {
                    (Some(b), Some(a)) => a.combine(op, &b),
                    _ => break,
                },
            };
            stack.push(size);
        }
        stack.pop().unwrap_or(Size::Int(0))
    }
}

fn push(size: &SymExpr, symbol: &mut impl FnMut(&Arc<str>) -> usize, tokens: &mut Vec<Token>) {
    match size {
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

fn parse_token(word: &str) -> Option<Token> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_round_trip_and_evaluate() {
        let symbol = |name: &str| SymExpr::Symbol(name.into());
        let sum = SymExpr::Op(SymOp::Add, vec![symbol("a"), SymExpr::Int(3), symbol("b")]);
        let half = SymExpr::Op(SymOp::FloorDiv, vec![sum, SymExpr::Int(2)]);
        let expression = Expression::from_size(&half, &mut |name| usize::from(&**name == "b")).unwrap();
        assert_eq!(expression.to_string(), "s0 3 add s1 add 2 floordiv");
        assert_eq!(Expression::parse("s0 3 add s1 add 2 floordiv", 2).unwrap(), expression);
        assert_eq!(expression.evaluate(|s| [Some(4), Some(8)][s]), Some(7));
        assert_eq!(expression.evaluate(|s| [Some(4), None][s]), None);
        assert_eq!(expression.size(|s| ["a", "b"][s].into()), half.simplify());
        assert_eq!(Expression::parse("s0 0 mod", 1).unwrap().evaluate(|_| Some(1)), None);
        for wrong in ["", "add", "1 add", "1 2", "s1", "1 2 add add", "x", "1  2 add"] {
            assert!(Expression::parse(wrong, 1).is_err(), "`{wrong}`");
        }
    }
}
