//! Parses sizes as archives write them: as SymPy's `srepr` (`Mul(Integer(2), Symbol('s0', integer=True))`), or infix in
//! older archives (`2*s0`).

use crate::limits::{MAX_EXPRESSION_DEPTH, MAX_EXPRESSION_TERMS};
use pteron_exported::{Size, SymExpr, SymOp};

/// Parses a size. A call of an unknown function becomes an opaque symbol whose name is its text. Expressions have at
/// most [`MAX_EXPRESSION_TERMS`] terms and [`MAX_EXPRESSION_DEPTH`] levels, since what reads them recurses.
pub(crate) fn parse(text: &str) -> Result<Size, String> {
    let mut parser = Parser { text, at: 0, depth: 0, terms: 0 };
    let term = parser.sum()?;
    parser.skip_spaces();
    if parser.at != text.len() {
        return Err(format!("`{}`: unexpected `{}`", shorten(text), shorten(&text[parser.at..])));
    }
    Ok(term.into_expression().simplify())
}

/// Shortens a text for error messages.
fn shorten(text: &str) -> String {
    const LONGEST: usize = 80;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The quotient of an expression and an integer. The division is applied last, after products have been collected.
struct Term {
    over: SymExpr,
    under: i64,
}

impl From<SymExpr> for Term {
    fn from(over: SymExpr) -> Self {
        Self { over, under: 1 }
    }
}

impl Term {
    /// The term as an expression. The floor division is exact wherever PyTorch writes a quotient.
    fn into_expression(self) -> SymExpr {
        match self.under {
            1 => self.over,
            n => SymExpr::Op(SymOp::FloorDiv, vec![self.over, SymExpr::Int(n)]),
        }
    }
}

struct Parser<'t> {
    text: &'t str,
    at: usize,
    depth: usize,
    /// The number of terms read so far.
    terms: usize,
}

impl<'t> Parser<'t> {
    fn skip_spaces(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn eat(&mut self, token: &str) -> bool {
        self.skip_spaces();
        let is_next = self.text[self.at..].starts_with(token);
        if is_next {
            self.at += token.len();
        }
        is_next
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if self.eat(token) { Ok(()) } else { Err(self.error_at(&format!("`{token}`"))) }
    }

    fn error_at(&self, expected: &str) -> String {
        format!("`{}`: expected {expected} at byte {}", shorten(self.text), self.at)
    }

    fn word(&mut self, is_part: impl Fn(char) -> bool) -> &'t str {
        self.skip_spaces();
        let rest = &self.text[self.at..];
        let len = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        self.at += len;
        &rest[..len]
    }

    fn sum(&mut self) -> Result<Term, String> {
        let first = self.product()?;
        let mut rest = Vec::new();
        loop {
            let negative = if self.eat("+") {
                false
            } else if self.eat("-") {
                true
            } else {
                break;
            };
            let Term { over, under } = self.product()?;
            let over = if negative { product(vec![SymExpr::Int(-1), over]) } else { over };
            rest.push(Term { over, under });
        }
        if rest.is_empty() {
            return Ok(first);
        }
        rest.insert(0, first);
        Ok(add(rest))
    }

    fn product(&mut self) -> Result<Term, String> {
        let depth = self.depth;
        let product = self.product_inner();
        self.depth = depth;
        product
    }

    /// Like [`product`](Self::product), but does not restore the nesting depth.
    fn product_inner(&mut self) -> Result<Term, String> {
        let mut value = self.power()?;
        loop {
            if self.eat("//") {
                self.enter_term()?;
                let next = self.power()?.into_expression();
                value = SymExpr::Op(SymOp::FloorDiv, vec![value.into_expression(), next]).into();
            } else if self.text[self.at..].trim_start().starts_with("**") {
                return Ok(value);
            } else if self.eat("*") {
                let next = self.power()?;
                value = multiply(value, next);
            } else if self.eat("/") {
                let SymExpr::Int(n @ 1..) = self.power()?.over else { return Err(self.error_at("a number")) };
                value.under = value.under.saturating_mul(n);
            } else if self.eat("%") {
                self.enter_term()?;
                let next = self.power()?.into_expression();
                value = SymExpr::Op(SymOp::Mod, vec![value.into_expression(), next]).into();
            } else {
                return Ok(value);
            }
        }
    }

    /// A power, or the negative of one: as in Python, `-s0**2` is `-(s0**2)`.
    fn power(&mut self) -> Result<Term, String> {
        if self.eat("-") {
            let depth = self.depth;
            self.enter_term()?;
            let power = self.power()?;
            self.depth = depth;
            return Ok(multiply(SymExpr::Int(-1).into(), power));
        }
        let base = self.primary()?;
        if self.eat("**") {
            self.enter_term()?;
            let power = self.power()?.into_expression();
            return Ok(SymExpr::Op(SymOp::Pow, vec![base.into_expression(), power]).into());
        }
        Ok(base)
    }

    fn primary(&mut self) -> Result<Term, String> {
        self.terms += 1;
        if self.terms > MAX_EXPRESSION_TERMS {
            return Err(format!("a size of more than {MAX_EXPRESSION_TERMS} terms"));
        }
        let depth = self.depth;
        self.enter_term()?;
        let term = self.primary_inner();
        self.depth = depth;
        term
    }

    fn enter_term(&mut self) -> Result<(), String> {
        self.depth += 1;
        match self.depth > MAX_EXPRESSION_DEPTH {
            true => Err(format!("a size of more than {MAX_EXPRESSION_DEPTH} nested terms")),
            false => Ok(()),
        }
    }

    fn primary_inner(&mut self) -> Result<Term, String> {
        if self.eat("(") {
            let inner = self.sum()?;
            self.expect(")")?;
            return Ok(inner);
        }
        let digits = self.word(|c| c.is_ascii_digit());
        if !digits.is_empty() {
            return digits
                .parse()
                .map(|v| SymExpr::Int(v).into())
                .map_err(|_| self.error_at("a smaller number"));
        }
        let start = self.at;
        let name = self.word(|c| c.is_alphanumeric() || c == '_' || c == '.');
        if name.is_empty() {
            return Err(self.error_at("a term"));
        }
        if !self.eat("(") {
            return Ok(SymExpr::Symbol(name.into()).into());
        }
        if name == "Symbol" {
            let quote = if self.eat("'") { '\'' } else { '"' };
            if quote == '"' {
                self.expect("\"")?;
            }
            let symbol = self.word(|c| c != quote);
            self.at += quote.len_utf8().min(self.text.len() - self.at);
            while !self.eat(")") {
                self.expect(",")?;
                self.word(|c| !matches!(c, ',' | ')'));
            }
            return Ok(SymExpr::Symbol(symbol.into()).into());
        }
        let mut args = Vec::new();
        while !self.eat(")") {
            if !args.is_empty() {
                self.expect(",")?;
            }
            args.push(self.sum()?);
        }
        let call_text = &self.text[start..self.at];
        Ok(call(name, args).unwrap_or_else(|| SymExpr::Symbol(call_text.trim().into()).into()))
    }
}

fn product(list: Vec<SymExpr>) -> SymExpr {
    SymExpr::Op(SymOp::Mul, list)
}

/// The sum of terms. Several quotients are added before they are divided, since only their sum may be an integer.
fn add(terms: Vec<Term>) -> Term {
    let (quotients, mut list): (Vec<Term>, Vec<Term>) = terms.into_iter().partition(|term| term.under != 1);
    let under =
        quotients.iter().try_fold(1, |all: i64, term| all.checked_mul(term.under / gcd(all, term.under)));
    match under {
        Some(under) if quotients.len() > 1 => {
            let scaled = |term: Term| match under / term.under {
                1 => term.over,
                factor => product(vec![SymExpr::Int(factor), term.over]),
            };
            let over = SymExpr::Op(SymOp::Add, quotients.into_iter().map(scaled).collect());
            list.push(Term { over, under });
        }
        _ => list.splice(0..0, quotients).for_each(drop),
    }
    match list.len() {
        1 => list.remove(0),
        _ => SymExpr::Op(SymOp::Add, list.into_iter().map(Term::into_expression).collect()).into(),
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn multiply(a: Term, b: Term) -> Term {
    let under = a.under.saturating_mul(b.under);
    let over = match a.over {
        SymExpr::Op(SymOp::Mul, mut factors) => {
            factors.push(b.over);
            product(factors)
        }
        first => product(vec![first, b.over]),
    };
    Term { over, under }
}

/// Applies a function of SymPy or PyTorch by its name; `None` for unknown ones.
fn call(name: &str, args: Vec<Term>) -> Option<Term> {
    let op = match name.rsplit('.').next().unwrap_or(name) {
        "Integer" | "Identity" | "TruncToInt" if args.len() == 1 => {
            return args.into_iter().next();
        }
        "NegativeOne" => return Some(SymExpr::Int(-1).into()),
        "One" => return Some(SymExpr::Int(1).into()),
        "Zero" => return Some(SymExpr::Int(0).into()),
        "Rational" => {
            let [SymExpr::Int(p), SymExpr::Int(q)] = [&args.first()?.over, &args.get(1)?.over] else {
                return None;
            };
            return Some(Term { over: SymExpr::Int(*p), under: (*q).max(1) });
        }
        "Mul" => return args.into_iter().reduce(multiply),
        "Add" if !args.is_empty() => return Some(add(args)),
        "FloorDiv" | "CleanDiv" => SymOp::FloorDiv,
        "CeilDiv" => SymOp::CeilDiv,
        "Mod" | "PythonMod" => SymOp::Mod,
        "Max" => SymOp::Max,
        "Min" => SymOp::Min,
        "Pow" | "PowByNatural" => SymOp::Pow,
        _ => return None,
    };
    if args.is_empty() {
        return None;
    }
    let args: Vec<SymExpr> = args.into_iter().map(|a| a.into_expression()).collect();
    Some(SymExpr::Op(op, args).into())
}

#[cfg(test)]
mod tests {
    use super::parse;

    fn read(text: &str) -> String {
        parse(text).map_or_else(|e| format!("! {e}"), |s| s.to_string())
    }

    #[test]
    fn both_spellings_are_read() {
        let s = "Symbol('s77', positive=True, integer=True)";
        assert_eq!(read(s), "s77");
        assert_eq!(read(&format!("Mul(Integer(2), {s})")), read("2*s77"));
        assert_eq!(read(&format!("Add(FloorDiv({s}, Integer(2)), Integer(2))")), "2 + (s77//2)");
        assert_eq!(read("((s77 - 1)//2) + 1"), "1 + ((-1 + s77)//2)");
        assert_eq!(read(&format!("Mul(Rational(1, 2), {s})")), "s77//2");
        assert_eq!(read("Add(Integer(-1), Integer(4))"), "3");
        assert_eq!(read(&format!("Pow({s}, Integer(2))")), "s77*s77");
        assert_eq!(read("Max(1, u0)"), "max(1, u0)");
    }

    #[test]
    fn a_minus_negates_a_power() {
        assert_eq!(read("-s0**2"), "-1*s0*s0");
        assert_eq!(read("-s0**2 + 8"), read("8 - s0**2"));
        assert_eq!(read("(-s0)**2"), "s0*s0");
        assert_eq!(read("2**-s0"), "2**(-1*s0)");
        assert_eq!(read("2**3**2"), "512");
        assert_eq!(read("2*-s0"), "-2*s0");
        assert!(read("s0/-2").starts_with('!'));
        assert!(read(&"-".repeat(50_000)).contains("nested"));
    }

    #[test]
    fn quotients_are_added_before_they_are_divided() {
        assert_eq!(read("s0**2/2 + s0/2"), "(s0 + s0*s0)//2");
        assert_eq!(read("Add(Mul(Rational(1, 2), s0), Rational(1, 2), t)"), "((1 + s0)//2) + t");
        assert_eq!(read("s0/2 - s1/3"), "(-2*s1 + 3*s0)//6");
        assert_eq!(read("s0/2 + 3"), "3 + (s0//2)");
    }

    #[test]
    fn unknown_functions_become_symbols() {
        assert_eq!(read("Strange(Integer(1), s0)"), "Strange(Integer(1), s0)");
    }

    #[test]
    fn malformed_sizes_are_reported_with_their_position() {
        assert!(read("Add(").starts_with('!'));
        assert!(read("2 2").contains("unexpected"));
        assert!(read(&"(".repeat(5000)).contains("nested"));
        for (join, part) in
            [(" + ", "terms"), ("*", "terms"), ("//", "nested"), (" % ", "nested"), ("/", "!")]
        {
            let error = read(&vec!["s0"; 14_000].join(join));
            assert!(error.starts_with('!') && error.contains(part) && error.len() < 300, "{error}");
        }
        assert!(read(&format!("Mul({})", vec!["s0"; 14_000].join(", "))).contains("terms"));
        assert_eq!(read(&vec!["s0"; 1000].join(" + ")), "1000*s0");
        assert!(read("99999999999999999999").starts_with('!'));
    }
}
