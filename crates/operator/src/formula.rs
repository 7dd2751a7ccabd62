//! Formulas of activations, each written once. In `f64` a formula is the oracle of a kernel's test; as a [`Term`] it is the
//! spelling that the engine recognizes in programs that decompose it; over the compiler's nodes it is the decomposition.
//!
//! The order of operations is part of a formula: `x * clamp(x + 3, 0, 6) / 6` multiplies before it divides.

use crate::expression::{Binary, Expression, Instr, Unary};
use std::f64::consts::{FRAC_2_SQRT_PI, SQRT_2};
use std::ops::{Add, Div, Mul, Neg, Sub};
use std::rc::Rc;

/// The operations of formulas, on numbers or on [`Term`]s.
pub trait Algebra:
    Clone
    + Neg<Output = Self>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Add<f64, Output = Self>
    + Mul<f64, Output = Self>
    + Div<f64, Output = Self>
{
    /// `min(max(self, low), high)`; NaN gives NaN.
    #[must_use]
    fn clamp(self, low: f64, high: f64) -> Self;
    /// The absolute value.
    #[must_use]
    fn abs(self) -> Self;
    /// `max(self, 0)`
    #[must_use]
    fn relu(self) -> Self;
    /// `e^self`
    #[must_use]
    fn exp(self) -> Self;
    /// Hyperbolic tangent.
    #[must_use]
    fn tanh(self) -> Self;
    /// `1 / (1 + e^-self)`
    #[must_use]
    fn sigmoid(self) -> Self;
    /// Error function.
    #[must_use]
    fn erf(self) -> Self;
}

/// An algebra that also has `ln(1 + x)`, accurate for small `x`.
pub trait WithLog1p: Algebra {
    /// `ln(1 + self)`
    #[must_use]
    fn log1p(self) -> Self;
}

/// PyTorch's `hardsigmoid`.
pub fn hardsigmoid<A: Algebra>(x: A) -> A {
    (x + 3.0).clamp(0.0, 6.0) / 6.0
}

/// PyTorch's `hardswish`.
pub fn hardswish<A: Algebra>(x: A) -> A {
    x.clone() * (x + 3.0).clamp(0.0, 6.0) / 6.0
}

/// PyTorch's `silu`.
pub fn silu<A: Algebra>(x: A) -> A {
    x.clone() * x.sigmoid()
}

/// Twice the cumulative distribution function of the standard normal distribution: `1 + erf(x / sqrt 2)`.
fn twice_normal_cdf<A: Algebra>(x: A) -> A {
    (x / SQRT_2).erf() + 1.0
}

/// PyTorch's `gelu`.
pub fn gelu<A: Algebra>(x: A) -> A {
    x.clone() * 0.5 * twice_normal_cdf(x)
}

/// PyTorch's `softsign`.
pub fn softsign<A: Algebra>(x: A) -> A {
    x.clone() / (x.abs() + 1.0)
}

/// PyTorch's `tanhshrink`.
pub fn tanhshrink<A: Algebra>(x: A) -> A {
    x.clone() - x.tanh()
}

/// `ln(1 + e^x)` without overflow: `max(x, 0) + ln(1 + e^-|x|)`.
pub fn softplus<A: WithLog1p>(x: A) -> A {
    let log = (-x.clone().abs()).exp().log1p();
    x.relu() + log
}

/// PyTorch's `mish`.
pub fn mish<A: WithLog1p>(x: A) -> A {
    x.clone() * softplus(x).tanh()
}

/// PyTorch's `log_sigmoid`.
pub fn log_sigmoid<A: WithLog1p>(x: A) -> A {
    -softplus(-x)
}

/// Expressions that programs write out for activations, each with the activation that it computes. They differ in how
/// they divide by a constant (or multiply by its reciprocal) and how they associate products.
pub fn spellings() -> Vec<(Unary, Expression)> {
    /// The two spellings of a division by a constant: `p / n` and `p * (1 / n)`.
    fn divided_by(p: &Term, n: f64) -> [Term; 2] {
        [p.clone() / n, p.clone() * (1.0 / n)]
    }
    let x = Term::input(0);
    let bounded = (x.clone() + 3.0).clamp(0.0, 6.0);
    let mut all: Vec<(Unary, Term)> = Vec::new();
    for hard in divided_by(&bounded, 6.0) {
        all.push((Unary::Hardsigmoid, hard.clone()));
        all.push((Unary::Hardswish, x.clone() * hard));
    }
    all.push((Unary::Hardswish, x.clone() * x.clone().unary(Unary::Hardsigmoid)));
    all.extend(divided_by(&(x.clone() * bounded), 6.0).map(|term| (Unary::Hardswish, term)));
    all.push((Unary::Silu, silu(x.clone())));
    for inner in divided_by(&x, SQRT_2) {
        let twice_normal = inner.erf() + 1.0;
        all.extend(divided_by(&x, 2.0).map(|half| (Unary::Gelu, half * twice_normal.clone())));
        all.push((Unary::Gelu, x.clone() * twice_normal.clone() * 0.5));
        all.push((Unary::Gelu, x.clone() * (twice_normal * 0.5)));
    }
    all.into_iter().map(|(function, term)| (function, term.into())).collect()
}

impl Algebra for f64 {
    fn clamp(self, low: f64, high: f64) -> f64 {
        f64::clamp(self, low, high)
    }
    fn abs(self) -> f64 {
        f64::abs(self)
    }
    fn relu(self) -> f64 {
        if self < 0.0 { 0.0 } else { self }
    }
    fn exp(self) -> f64 {
        f64::exp(self)
    }
    fn tanh(self) -> f64 {
        f64::tanh(self)
    }
    fn sigmoid(self) -> f64 {
        1.0 / (1.0 + (-self).exp())
    }
    fn erf(self) -> f64 {
        erf(self)
    }
}

impl WithLog1p for f64 {
    fn log1p(self) -> f64 {
        f64::ln_1p(self)
    }
}

/// The error function, to about 1e-15: its Taylor series for small arguments, otherwise the continued fraction of its
/// complement (Abramowitz and Stegun, 7.1.5 and 7.1.14).
fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a.is_nan() {
        return x;
    }
    if a < 2.5 {
        let (mut term, mut sum, mut n) = (a, a, 0.0);
        while f64::abs(term) > 1e-18 * sum {
            n += 1.0;
            term *= -a * a / n;
            sum += term / (2.0 * n + 1.0);
        }
        return (FRAC_2_SQRT_PI * sum).copysign(x);
    }
    let fraction = (1..=60).rev().fold(a, |below, k| a + f64::from(k) / 2.0 / below);
    (1.0 - (-a * a).exp() * FRAC_2_SQRT_PI / 2.0 / fraction).copysign(x)
}

/// An expression under construction, built with operators: `(Term::input(0) * Term::input(1)).relu()`. It becomes an
/// [`Expression`] whose instructions are the operations in the order in which they are evaluated, operands from left to
/// right.
#[derive(Debug, Clone)]
pub struct Term(Rc<Node>);

#[derive(Debug)]
enum Node {
    Input(usize),
    Const(f32),
    Unary(Unary, Term),
    Clamp(Term, f32, f32),
    Binary(Binary, Term, Term),
}

impl Term {
    /// The element of the input with this index.
    pub fn input(index: usize) -> Self {
        Self(Rc::new(Node::Input(index)))
    }

    /// A constant.
    pub fn number(value: f32) -> Self {
        Self(Rc::new(Node::Const(value)))
    }

    /// A function of the term.
    #[must_use]
    pub fn unary(self, function: Unary) -> Self {
        Self(Rc::new(Node::Unary(function, self)))
    }

    /// A function of this term and another one.
    #[must_use]
    pub fn binary(self, function: Binary, other: Self) -> Self {
        Self(Rc::new(Node::Binary(function, self, other)))
    }

    /// `min(max(self, low), high)`; NaN gives NaN.
    #[must_use]
    pub fn clamp_f32(self, low: f32, high: f32) -> Self {
        Self(Rc::new(Node::Clamp(self, low, high)))
    }

    /// Appends the term's instructions and returns the register of its result. Each input is read once, and each
    /// shared term is computed once.
    fn append_instrs(&self, instrs: &mut Vec<Instr>, registers: &mut Vec<(*const Node, usize)>) -> usize {
        let at = Rc::as_ptr(&self.0);
        if let Some(&(_, register)) = registers.iter().find(|(node, _)| *node == at) {
            return register;
        }
        let instr = match &*self.0 {
            Node::Input(index) => {
                let instr = Instr::Input(*index);
                if let Some(register) = instrs.iter().position(|known| *known == instr) {
                    return register;
                }
                instr
            }
            Node::Const(value) => Instr::Const(*value),
            Node::Unary(function, of) => Instr::Unary(*function, of.append_instrs(instrs, registers)),
            Node::Clamp(of, low, high) => {
                Instr::Clamp { of: of.append_instrs(instrs, registers), low: *low, high: *high }
            }
            Node::Binary(function, a, b) => {
                let a = a.append_instrs(instrs, registers);
                Instr::Binary(*function, a, b.append_instrs(instrs, registers))
            }
        };
        instrs.push(instr);
        registers.push((at, instrs.len() - 1));
        instrs.len() - 1
    }
}

impl From<Term> for Expression {
    fn from(term: Term) -> Self {
        let mut instrs = Vec::new();
        term.append_instrs(&mut instrs, &mut Vec::new());
        Self { instrs }
    }
}

macro_rules! binary {
    ($($trait:ident $method:ident => $function:ident),*) => { $(
        impl $trait for Term {
            type Output = Self;
            fn $method(self, other: Self) -> Self {
                self.binary(Binary::$function, other)
            }
        }

        impl $trait<f64> for Term {
            type Output = Self;
            fn $method(self, other: f64) -> Self {
                self.binary(Binary::$function, Self::number(other as f32))
            }
        }
    )* };
}

binary!(Add add => Add, Sub sub => Sub, Mul mul => Mul, Div div => Div);

impl Neg for Term {
    type Output = Self;
    fn neg(self) -> Self {
        self.unary(Unary::Neg)
    }
}

impl Algebra for Term {
    fn clamp(self, low: f64, high: f64) -> Self {
        self.clamp_f32(low as f32, high as f32)
    }
    fn abs(self) -> Self {
        self.unary(Unary::Abs)
    }
    fn relu(self) -> Self {
        self.unary(Unary::Relu)
    }
    fn exp(self) -> Self {
        self.unary(Unary::Exp)
    }
    fn tanh(self) -> Self {
        self.unary(Unary::Tanh)
    }
    fn sigmoid(self) -> Self {
        self.unary(Unary::Sigmoid)
    }
    fn erf(self) -> Self {
        self.unary(Unary::Erf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_become_instructions_in_the_order_of_evaluation() {
        let expression: Expression = hardswish(Term::input(0)).into();
        assert_eq!(expression.to_string(), "Div(Mul(x0, Clamp(Add(x0, 3), 0, 6)), 6)");
        let shared = Term::input(1) * Term::input(0);
        let expression: Expression = (shared.clone().exp() + shared).into();
        assert_eq!(
            expression.instrs,
            [
                Instr::Input(1),
                Instr::Input(0),
                Instr::Binary(Binary::Mul, 0, 1),
                Instr::Unary(Unary::Exp, 2),
                Instr::Binary(Binary::Add, 3, 2)
            ]
        );
    }

    #[test]
    fn formulas_have_the_values_of_pytorch() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-15, "{a} is not {b}");
        close(hardsigmoid(1.0), 2.0 / 3.0);
        close(hardswish(-4.0), 0.0);
        close(silu(1.0), 0.731_058_578_630_004_9);
        close(gelu(-0.5), -0.154_268_769_362_993_44);
        close(mish(0.5), 0.375_245_211_304_895_1);
        close(softplus(-2.0), 0.126_928_011_042_972_5);
        close(log_sigmoid(3.0), -0.048_587_351_573_742_06);
        close(softsign(-3.0), -0.75);
        close(tanhshrink(1.0), 0.238_405_844_044_235_15);
        close(erf(0.5), 0.520_499_877_813_046_5);
        close(erf(-3.0), -0.999_977_909_503_001_4);
    }

    #[test]
    fn every_spelling_computes_what_its_formula_does() {
        for (function, expression) in spellings() {
            let formula: fn(f64) -> f64 = match function {
                Unary::Hardsigmoid => hardsigmoid,
                Unary::Hardswish => hardswish,
                Unary::Silu => silu,
                Unary::Gelu => gelu,
                other => panic!("no formula for {other:?}"),
            };
            for x in [-4.0, -1.25, 0.0, 0.5, 7.0] {
                let (computed, expected) = (evaluated(&expression, x), formula(x));
                assert!(
                    (computed - expected).abs() < 1e-6,
                    "{expression} of {x}: {computed}, not {expected}"
                );
            }
        }
    }

    fn evaluated(expression: &Expression, x: f64) -> f64 {
        let mut registers: Vec<f64> = Vec::new();
        for instr in &expression.instrs {
            registers.push(match *instr {
                Instr::Input(_) => x,
                Instr::Const(value) => f64::from(value),
                Instr::Unary(Unary::Sigmoid, a) => registers[a].sigmoid(),
                Instr::Unary(Unary::Erf, a) => erf(registers[a]),
                Instr::Unary(Unary::Hardsigmoid, a) => hardsigmoid(registers[a]),
                Instr::Unary(other, _) => panic!("{other:?}"),
                Instr::Clamp { of, low, high } => registers[of].clamp(f64::from(low), f64::from(high)),
                Instr::Binary(Binary::Add, a, b) => registers[a] + registers[b],
                Instr::Binary(Binary::Mul, a, b) => registers[a] * registers[b],
                Instr::Binary(Binary::Div, a, b) => registers[a] / registers[b],
                Instr::Binary(other, ..) => panic!("{other:?}"),
            });
        }
        *registers.last().expect("a result")
    }
}
