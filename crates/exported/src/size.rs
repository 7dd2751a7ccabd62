//! Symbolic sizes.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// A size or another integer: known or symbolic.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Size {
    /// A known integer.
    Int(i64),
    /// An expression that is evaluated at run time.
    Sym(Arc<SymExpr>),
}

/// The operation of a symbolic expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SymOp {
    /// The sum of the operands.
    Add,
    /// The product of the operands.
    Mul,
    /// The quotient, rounded down.
    FloorDiv,
    /// The quotient, rounded up.
    CeilDiv,
    /// The remainder of the first operand divided by the second, as Python defines it.
    Mod,
    /// The largest operand.
    Max,
    /// The smallest operand.
    Min,
    /// The first operand to the power of the second.
    Pow,
}

/// A symbolic integer expression.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SymExpr {
    /// A symbol.
    Symbol(Arc<str>),
    /// An integer.
    Int(i64),
    /// An operation.
    Op(SymOp, Vec<SymExpr>),
}

/// Inclusive bounds of an integer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The minimum.
    pub min: i64,
    /// The maximum; [`i64::MAX`] if it is unknown.
    pub max: i64,
}

/// The bounds of each symbol.
pub type Ranges = BTreeMap<Arc<str>, Bounds>;

impl Bounds {
    /// The bounds of a known value.
    pub const fn exactly(value: i64) -> Self {
        Self { min: value, max: value }
    }

    /// The bounds of an unknown size.
    pub const UNKNOWN: Self = Self { min: 0, max: i64::MAX };

    /// The minimum and maximum of `f` over all pairs of bounds: these bound `f` if it is monotonic in each operand.
    fn combine_corners(self, other: Self, f: impl Fn(i128, i128) -> i128) -> Self {
        let ends = |b: Self| [i128::from(b.min), i128::from(b.max)];
        let mut values = Vec::with_capacity(4);
        for a in ends(self) {
            values.extend(ends(other).map(|b| f(a, b)));
        }
        let clamp = |v: i128| v.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
        Self {
            min: values.iter().copied().min().map_or(i64::MIN, clamp),
            max: values.iter().copied().max().map_or(i64::MAX, clamp),
        }
    }
}

impl Size {
    /// The integer, if the size is known.
    pub fn known(&self) -> Option<i64> {
        if let Self::Int(v) = self { Some(*v) } else { None }
    }

    /// A symbol.
    pub fn symbol(name: impl Into<Arc<str>>) -> Self {
        Self::Sym(Arc::new(SymExpr::Symbol(name.into())))
    }

    /// The size as an expression.
    pub fn expr(&self) -> SymExpr {
        match self {
            Self::Int(v) => SymExpr::Int(*v),
            Self::Sym(e) => (**e).clone(),
        }
    }

    /// Applies an operation to two sizes and simplifies the result; known sizes are folded.
    pub fn combine(&self, op: SymOp, other: &Self) -> Self {
        SymExpr::Op(op, vec![self.expr(), other.expr()]).simplify()
    }

    /// The product.
    pub fn mul(&self, other: &Self) -> Self {
        self.combine(SymOp::Mul, other)
    }

    /// The sum.
    pub fn add(&self, other: &Self) -> Self {
        self.combine(SymOp::Add, other)
    }

    /// The size's bounds, derived from those of its symbols.
    pub fn bounds(&self, ranges: &Ranges) -> Bounds {
        match self {
            Self::Int(v) => Bounds::exactly(*v),
            Self::Sym(e) => e.bounds(ranges),
        }
    }
}

/// The greatest exponent of a power that is written as a product of equal factors.
const MAX_FACTORS: i64 = 8;

impl SymExpr {
    /// A canonical form: constants are folded, sums and products flattened, their integers combined and their terms
    /// sorted, powers are products, and a product is divided by its factors. Two spellings of a sum become equal
    /// expressions.
    pub fn simplify(&self) -> Size {
        let Self::Op(op, args) = self else {
            return match self {
                Self::Int(v) => Size::Int(*v),
                other => Size::Sym(Arc::new(other.clone())),
            };
        };
        let args: Vec<Self> = args.iter().map(|a| a.simplify().expr()).collect();
        match op {
            SymOp::Add | SymOp::Mul | SymOp::Max | SymOp::Min => fold_flattened(*op, args),
            _ => match args.as_slice() {
                [Self::Int(a), Self::Int(b)] => match op.apply(i128::from(*a), i128::from(*b)) {
                    Some(v) => Size::Int(v),
                    None => Size::Sym(Arc::new(Self::Op(*op, args))),
                },
                [a, Self::Int(1)] if matches!(op, SymOp::FloorDiv | SymOp::CeilDiv | SymOp::Pow) => {
                    a.simplify()
                }
                [a, b] if a == b && *op == SymOp::FloorDiv => Size::Int(1),
                [Self::Op(SymOp::Mul, factors), b] if *op == SymOp::FloorDiv && factors.contains(b) => {
                    let mut factors = factors.clone();
                    factors.remove(factors.iter().position(|factor| factor == b).unwrap_or_default());
                    Self::Op(SymOp::Mul, factors).simplify()
                }
                [a, Self::Int(n @ 2..=MAX_FACTORS)] if *op == SymOp::Pow => {
                    Self::Op(SymOp::Mul, (0..*n).map(|_| a.clone()).collect()).simplify()
                }
                _ => Size::Sym(Arc::new(Self::Op(*op, args))),
            },
        }
    }

    /// The expression's bounds, derived from those of its symbols.
    pub fn bounds(&self, ranges: &Ranges) -> Bounds {
        match self {
            Self::Int(v) => Bounds::exactly(*v),
            Self::Symbol(name) => ranges.get(name).copied().unwrap_or(Bounds::UNKNOWN),
            Self::Op(SymOp::Mod, args) => {
                let last = args.last().map_or(Bounds::UNKNOWN, |a| a.bounds(ranges));
                let first = args.first().map_or(Bounds::UNKNOWN, |a| a.bounds(ranges));
                // The remainder has the sign of the divisor.
                let most = if first.min < 0 { i64::MAX } else { first.max };
                let max = last.max.saturating_sub(1).min(most).max(0);
                Bounds { min: last.min.saturating_add(1).min(0), max }
            }
            Self::Op(op, args) => {
                let mut all = args.iter().map(|a| a.bounds(ranges));
                let first = all.next().unwrap_or(Bounds::UNKNOWN);
                all.fold(first, |a, b| {
                    let unbounded = a.max == i64::MAX || b.max == i64::MAX;
                    let joined = a.combine_corners(b, |x, y| op.apply_wide(x, y));
                    match op {
                        SymOp::Add | SymOp::Mul | SymOp::Max | SymOp::Pow if unbounded && joined.max > 0 => {
                            Bounds { max: i64::MAX, ..joined }
                        }
                        _ => joined,
                    }
                })
            }
        }
    }

    /// Calls a function with every occurrence of a symbol.
    pub fn for_each_symbol(&self, visit: &mut impl FnMut(&Arc<str>)) {
        match self {
            Self::Int(_) => {}
            Self::Symbol(name) => visit(name),
            Self::Op(_, args) => args.iter().for_each(|a| a.for_each_symbol(visit)),
        }
    }
}

fn fold_flattened(op: SymOp, args: Vec<SymExpr>) -> Size {
    let mut terms = Vec::new();
    let mut number: Option<i64> = None;
    let mut pending: Vec<SymExpr> = args;
    pending.reverse();
    while let Some(term) = pending.pop() {
        match term {
            SymExpr::Int(v) => match number {
                None => number = Some(v),
                Some(n) => match op.apply(i128::from(n), i128::from(v)) {
                    Some(joined) => number = Some(joined),
                    None => terms.push(SymExpr::Int(v)),
                },
            },
            SymExpr::Op(inner, list) if inner == op => pending.extend(list.into_iter().rev()),
            other => terms.push(other),
        }
    }
    match (op, number) {
        (SymOp::Mul, Some(0)) => return Size::Int(0),
        (SymOp::Mul, Some(1)) | (SymOp::Add, Some(0)) if !terms.is_empty() => number = None,
        _ => {}
    }
    terms.sort_by_cached_key(|t| t.to_string());
    if matches!(op, SymOp::Max | SymOp::Min) {
        terms.dedup();
    }
    if op == SymOp::Add {
        terms = gather_terms(terms);
        // A new factor gives a term another place.
        terms.sort_by_cached_key(|t| t.to_string());
        if terms.is_empty() && number.is_none() {
            return Size::Int(0);
        }
    }
    if let Some(n) = number {
        terms.insert(0, SymExpr::Int(n));
    }
    match terms.as_slice() {
        [SymExpr::Int(v)] => Size::Int(*v),
        [one] => Size::Sym(Arc::new(one.clone())),
        _ => Size::Sym(Arc::new(SymExpr::Op(op, terms))),
    }
}

/// Combines the terms of a sum that differ only in their integer factor: `s + 2*s` becomes `3*s`.
fn gather_terms(terms: Vec<SymExpr>) -> Vec<SymExpr> {
    let mut gathered: Vec<(SymExpr, i64)> = Vec::with_capacity(terms.len());
    for term in terms {
        let (rest, factor) = match term {
            SymExpr::Op(SymOp::Mul, mut list) if matches!(list.first(), Some(SymExpr::Int(_))) => {
                let SymExpr::Int(factor) = list.remove(0) else { continue };
                let rest = if list.len() == 1 { list.remove(0) } else { SymExpr::Op(SymOp::Mul, list) };
                (rest, factor)
            }
            other => (other, 1),
        };
        match gathered.iter_mut().find(|(r, _)| *r == rest) {
            Some((_, f)) => *f = f.saturating_add(factor),
            None => gathered.push((rest, factor)),
        }
    }
    let scaled = |(rest, factor): (SymExpr, i64)| match (factor, rest) {
        (0, _) => None,
        (1, rest) => Some(rest),
        (f, SymExpr::Op(SymOp::Mul, mut list)) => {
            list.insert(0, SymExpr::Int(f));
            Some(SymExpr::Op(SymOp::Mul, list))
        }
        (f, rest) => Some(SymExpr::Op(SymOp::Mul, vec![SymExpr::Int(f), rest])),
    };
    gathered.into_iter().filter_map(scaled).collect()
}

impl SymOp {
    /// The result for two integers. `None` if it is undefined (a division by zero, a negative exponent) or overflows.
    pub fn apply(self, a: i128, b: i128) -> Option<i64> {
        if matches!(self, Self::FloorDiv | Self::CeilDiv | Self::Mod) && b == 0 || self == Self::Pow && b < 0
        {
            return None;
        }
        i64::try_from(self.apply_wide(a, b)).ok()
    }

    /// Applies the operation with saturation. A division by zero counts as a division by 1: that bounds the quotients
    /// of all larger divisors.
    fn apply_wide(self, a: i128, b: i128) -> i128 {
        let floor = |a: i128, b: i128| a.div_euclid(b);
        match self {
            Self::Add => a.saturating_add(b),
            Self::Mul => a.saturating_mul(b),
            Self::FloorDiv if b == 0 => a,
            Self::FloorDiv if b > 0 => floor(a, b),
            Self::FloorDiv => floor(-a, -b),
            Self::CeilDiv if b == 0 => a,
            Self::CeilDiv if b > 0 => -floor(-a, b),
            Self::CeilDiv => -floor(a, -b),
            Self::Mod if b == 0 => 0,
            Self::Mod => a - b * if b > 0 { floor(a, b) } else { floor(-a, -b) },
            Self::Max => a.max(b),
            Self::Min => a.min(b),
            Self::Pow => {
                // Any base other than -1, 0 and 1 leaves 64 bits with these powers, too.
                let power = if b > 64 { 64 + b % 2 } else { b.max(0) };
                a.checked_pow(u32::try_from(power).unwrap_or(0)).unwrap_or(i128::MAX)
            }
        }
    }

    fn symbol(self) -> &'static str {
        match self {
            Self::Add => " + ",
            Self::Mul => "*",
            Self::FloorDiv => "//",
            Self::Mod => " % ",
            Self::Pow => "**",
            Self::CeilDiv => "ceildiv",
            Self::Max => "max",
            Self::Min => "min",
        }
    }
}

impl From<i64> for Size {
    fn from(v: i64) -> Self {
        Self::Int(v)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(v) => write!(f, "{v}"),
            Self::Sym(e) => write!(f, "{e}"),
        }
    }
}

impl fmt::Display for SymExpr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Symbol(name) => f.write_str(name),
            Self::Int(v) => write!(f, "{v}"),
            Self::Op(op @ (SymOp::Max | SymOp::Min | SymOp::CeilDiv), args) => {
                write!(f, "{}(", op.symbol())?;
                for (i, arg) in args.iter().enumerate() {
                    write!(f, "{}{arg}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str(")")
            }
            Self::Op(op, args) => {
                for (i, arg) in args.iter().enumerate() {
                    f.write_str(if i > 0 { op.symbol() } else { "" })?;
                    match arg {
                        Self::Op(inner, _) if *inner != SymOp::Mul || *op != SymOp::Add => {
                            write!(f, "({arg})")?
                        }
                        // As in Python, `-2**n` is the negative of a power.
                        Self::Int(v) if *v < 0 && *op == SymOp::Pow => write!(f, "({arg})")?,
                        _ => write!(f, "{arg}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s() -> Size {
        Size::symbol("s0")
    }

    fn ranges() -> Ranges {
        Ranges::from([("s0".into(), Bounds { min: 4, max: 16 })])
    }

    #[test]
    fn sums_and_products_have_a_canonical_form() {
        let a = s().mul(&3.into()).add(&2.into());
        let b = Size::Int(2).add(&Size::Int(3).mul(&s()));
        assert_eq!(a, b);
        assert_eq!(a.to_string(), "2 + 3*s0");
        assert_eq!(s().add(&s()).to_string(), "2*s0");
        assert_eq!(s().add(&s().mul(&(-1).into())), Size::Int(0));
        assert_eq!(s().mul(&1.into()), s());
        assert_eq!(Size::Int(6).combine(SymOp::FloorDiv, &4.into()), Size::Int(1));
        let square = s().combine(SymOp::Pow, &2.into());
        assert_eq!(square, s().mul(&s()));
        assert_eq!(square.combine(SymOp::FloorDiv, &s()), s());
        assert_eq!(s().mul(&6.into()).combine(SymOp::FloorDiv, &6.into()), s());
        let t = Size::symbol("t");
        let twice = t.mul(&2.into()).add(&s());
        assert_eq!(t.add(&s()).add(&t), twice);
        assert_eq!(twice.expr().simplify(), twice);
    }

    #[test]
    fn powers_keep_their_sign() {
        assert_eq!(SymOp::Pow.apply(-1, 65), Some(-1));
        assert_eq!(SymOp::Pow.apply(-1, 1 << 40), Some(1));
        assert_eq!((SymOp::Pow.apply(-2, 65), SymOp::Pow.apply(2, 64)), (None, None));
        assert_eq!((SymOp::Pow.apply(-2, 63), SymOp::Pow.apply(0, 99)), (Some(i64::MIN), Some(0)));
        assert_eq!(Size::Int(-2).combine(SymOp::Pow, &s()).to_string(), "(-2)**s0");
    }

    #[test]
    fn bounds_follow_from_symbol_ranges() {
        let bound = |size: &Size| {
            let b = size.bounds(&ranges());
            (b.min, b.max)
        };
        assert_eq!(bound(&s().mul(&3.into()).add(&2.into())), (14, 50));
        assert_eq!(bound(&s().combine(SymOp::Mod, &3.into()).add(&4.into())), (4, 6));
        assert_eq!(bound(&s().combine(SymOp::Mod, &(-3).into())), (-2, 0));
        assert_eq!(bound(&s().mul(&(-1).into()).combine(SymOp::Mod, &100.into())), (0, 99));
        assert_eq!(bound(&s().combine(SymOp::FloorDiv, &2.into())), (2, 8));
        assert_eq!(bound(&Size::symbol("u0").mul(&3.into())), (0, i64::MAX));
        assert_eq!(bound(&Size::symbol("u0").combine(SymOp::Min, &3.into())), (0, 3));
    }
}
