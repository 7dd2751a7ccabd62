//! Elementwise functions over slices, vectorised for each instruction set.

mod scalar;

#[cfg(test)]
mod tests;

pub(crate) use scalar::{exp_nonpositive, log};

use super::isa::Isa;
use super::mat::MatMut;
use super::simd::{Op, Simd, dispatch};
use super::split::{ELEMENTS, map_chunks};
use pteron_pool::Pool;

pub use pteron_operator::{Binary, Unary};

// Errors, in ulp of the exact result; functions not listed are correctly rounded.
//
// | function | error |
// | --- | --- |
// | `Exp`, `Log`, `Hardsigmoid` | 1 |
// | `Rsqrt`, `Sin`, `Cos` | 1.5 |
// | `Tanh`, `Erf`, `Hardswish` | 2 |
// | `Sigmoid` | 3 |
// | `Silu` | 4 |
// | `Gelu`, `GeluTanh` | 4, for negative `x` in ulp of `max(1, |x|)` |
// | `HardswishBySixth` | 2, for negative `x` in ulp of `max(1, |x|)` |

/// `out[i] = op(x[i])`; in parallel on `pool` if there are many elements.
///
/// # Panics
/// If the lengths differ.
pub fn unary(pool: &Pool, isa: Isa, op: Unary, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths of an elementwise function");
    map_chunks(pool, ELEMENTS, out, &|at, out| dispatch(isa, UnaryTo { op, x: &x[at..][..out.len()], out }));
}

/// Applies `op` to each element in place: see [`unary`].
pub fn unary_in_place(pool: &Pool, isa: Isa, op: Unary, x: &mut [f32]) {
    map_chunks(pool, ELEMENTS, x, &|_, x| dispatch(isa, UnaryInPlace { op, x }));
}

/// `out[i] = op(a[i], b[i])`; in parallel on `pool` if there are many elements.
///
/// # Panics
/// If the lengths differ.
pub fn binary(pool: &Pool, isa: Isa, op: Binary, a: &[f32], b: &[f32], out: &mut [f32]) {
    assert_eq!((a.len(), b.len()), (out.len(), out.len()), "lengths of an elementwise function");
    map_chunks(pool, ELEMENTS, out, &|at, out| {
        let n = out.len();
        dispatch(isa, BinaryTo { op, a: &a[at..][..n], b: Operand::Elements(&b[at..][..n]), out });
    });
}

/// `out[i] = op(a[i], b)`, as [`binary`].
///
/// # Panics
/// If the lengths differ.
pub fn binary_scalar(pool: &Pool, isa: Isa, op: Binary, a: &[f32], b: f32, out: &mut [f32]) {
    assert_eq!(a.len(), out.len(), "lengths of an elementwise function");
    map_chunks(pool, ELEMENTS, out, &|at, out| {
        dispatch(isa, BinaryTo { op, a: &a[at..][..out.len()], b: Operand::Scalar(b), out });
    });
}

/// `out[i] = min(max(x[i], low), high)`; NaN stays.
///
/// # Panics
/// If the lengths differ.
pub fn clamp(isa: Isa, (low, high): (f32, f32), x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths of an elementwise function");
    dispatch(isa, Clamp { low, high, x, out });
}

/// `out[i] = a * x[i] + y[i]`, rounded once where the instruction set has fused multiply-add.
///
/// # Panics
/// If the lengths differ.
pub fn scale_add(pool: &Pool, isa: Isa, a: f32, x: &[f32], y: &[f32], out: &mut [f32]) {
    assert_eq!((x.len(), y.len()), (out.len(), out.len()), "lengths of an elementwise function");
    map_chunks(pool, ELEMENTS, out, &|at, out| {
        let n = out.len();
        dispatch(isa, ScaleAdd { a, x: &x[at..][..n], y: &y[at..][..n], out });
    });
}

/// `out[i] = f(x[i])`, for an `f` simple enough for the compiler to vectorize.
///
/// # Panics
/// If the lengths differ.
pub fn map_elements(isa: Isa, x: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
    assert_eq!(x.len(), out.len(), "lengths of an elementwise function");
    dispatch(isa, Each { x, out, f });
}

/// The logarithms that are not variants of [`Unary`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Logarithm {
    /// `log10 x`
    Ten,
    /// `log2 x`
    Two,
    /// `ln(1 + x)`
    OnePlus,
}

/// `out[i]` is the logarithm of `x[i]` that `of` names, within 1 ulp.
///
/// # Panics
/// If the lengths differ.
pub fn logarithm(isa: Isa, of: Logarithm, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths of an elementwise function");
    dispatch(isa, Logarithms { of, x, out });
}

struct Logarithms<'a> {
    of: Logarithm,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Op for Logarithms<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let each = self.out.iter_mut().zip(self.x);
        match self.of {
            Logarithm::Ten => each.for_each(|(out, &x)| *out = scalar::log10(s, x)),
            Logarithm::Two => each.for_each(|(out, &x)| *out = scalar::log2(s, x)),
            Logarithm::OnePlus => each.for_each(|(out, &x)| *out = scalar::log1p(s, x)),
        }
    }
}

/// The moduli of complex numbers, given as pairs of real and imaginary part; computed in f64, so that no square
/// overflows, and rounded once. Infinite if a part is, even if the other is NaN.
///
/// # Panics
/// If there are not two parts for each result.
pub fn moduli(isa: Isa, parts: &[f32], out: &mut [f32]) {
    assert_eq!(parts.len(), 2 * out.len(), "the parts of complex numbers");
    dispatch(isa, Moduli { parts, out });
}

struct Moduli<'a> {
    parts: &'a [f32],
    out: &'a mut [f32],
}

impl Op for Moduli<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (out, z) in self.out.iter_mut().zip(self.parts.chunks_exact(2)) {
            let (re, im) = (f64::from(z[0]), f64::from(z[1]));
            let infinite = z[0].abs() == f32::INFINITY || z[1].abs() == f32::INFINITY;
            *out = if infinite { f32::INFINITY } else { (re * re + im * im).sqrt() as f32 };
        }
    }
}

struct Each<'a, F> {
    x: &'a [f32],
    out: &'a mut [f32],
    f: F,
}

impl<F: Fn(f32) -> f32> Op for Each<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.out.iter_mut().zip(self.x).for_each(|(out, &x)| *out = (self.f)(x));
    }
}

/// A function of one element, and the bounds to which the result is clamped; `None` if it is not clamped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Function {
    pub(crate) op: Unary,
    pub(crate) bounds: Option<(f32, f32)>,
}

/// Clamps `x` to `bounds`; NaN stays, and the upper bound wins if the lower one is above it.
#[inline(always)]
pub(crate) fn clamp_to_bounds(x: f32, bounds: Option<(f32, f32)>) -> f32 {
    let Some((low, high)) = bounds else { return x };
    // NaN fails both comparisons and stays.
    let x = if x < low { low } else { x };
    if x > high { high } else { x }
}

/// Applies a function to each of a few elements in place, on this thread.
pub(crate) fn activate(isa: Isa, function: Function, x: &mut [f32]) {
    dispatch(isa, Activate { function, x });
}

/// Applies a function in place to each element of a matrix whose rows are contiguous, on this thread.
///
/// # Panics
/// If they are not contiguous.
pub(crate) fn activate_rows(isa: Isa, function: Function, x: MatMut<'_>) {
    dispatch(isa, ActivateRows { function, x: x.into_one_row() });
}

/// Applies `op` to one element, with the baseline instructions.
pub(crate) fn unary_scalar(op: Unary, x: f32) -> f32 {
    let mut y = [x];
    dispatch(Isa::portable(), UnaryInPlace { op, x: &mut y });
    y[0]
}

/// Calls a macro with the body of the function `op`.
macro_rules! with_unary {
    ($s:ident, $op:expr, $apply:ident) => {
        match $op {
            Unary::Neg => $apply!(|x: f32| -x),
            Unary::Abs => $apply!(|x: f32| x.abs()),
            Unary::Relu => $apply!(|x: f32| if x < 0.0 { 0.0 } else { x }),
            Unary::Reciprocal => $apply!(|x: f32| 1.0 / x),
            Unary::Sqrt => $apply!(|x: f32| x.sqrt()),
            Unary::Rsqrt => $apply!(|x: f32| 1.0 / x.sqrt()),
            Unary::Square => $apply!(|x: f32| x * x),
            Unary::Exp => $apply!(|x| scalar::exp($s, x)),
            Unary::Log => $apply!(|x| scalar::log($s, x)),
            Unary::Sin => $apply!(|x| scalar::sin($s, x), f32::sin),
            Unary::Cos => $apply!(|x| scalar::cos($s, x), f32::cos),
            Unary::Tanh => $apply!(|x| scalar::tanh($s, x)),
            Unary::Sigmoid => $apply!(|x| scalar::sigmoid($s, x)),
            Unary::Silu => $apply!(|x| scalar::silu($s, x)),
            Unary::Erf => $apply!(|x| scalar::erf($s, x)),
            Unary::Gelu => $apply!(|x| scalar::gelu($s, x)),
            Unary::GeluTanh => $apply!(|x| scalar::gelu_tanh($s, x)),
            Unary::Hardsigmoid => $apply!(|x| scalar::hardsigmoid(x)),
            Unary::Hardswish => $apply!(|x| scalar::hardswish(x)),
            Unary::HardswishBySixth => $apply!(|x| scalar::hardswish_by_sixth($s, x)),
            Unary::RoundToHalf => $apply!(|x| scalar::round_to_half(x)),
            Unary::RoundToBfloat16 => $apply!(|x| scalar::round_to_bfloat16(x)),
        }
    };
}

struct UnaryTo<'a> {
    op: Unary,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Op for UnaryTo<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (x, out) = (self.x, self.out);
        macro_rules! apply {
            ($f:expr $(, $exact:expr)?) => {{
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = $f(x);
                }
                $(for (out, &x) in out.iter_mut().zip(x) {
                    if x.abs() > scalar::TRIG_LIMIT {
                        *out = $exact(x);
                    }
                })?
            }};
        }
        with_unary!(s, self.op, apply);
    }
}

struct UnaryInPlace<'a> {
    op: Unary,
    x: &'a mut [f32],
}

impl Op for UnaryInPlace<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let xs = self.x;
        macro_rules! apply {
            ($f:expr) => {
                for x in xs.iter_mut() {
                    *x = $f(*x);
                }
            };
            ($f:expr, $exact:expr) => {
                for x in xs.iter_mut() {
                    *x = if x.abs() > scalar::TRIG_LIMIT { $exact(*x) } else { $f(*x) };
                }
            };
        }
        with_unary!(s, self.op, apply);
    }
}

/// The loop of [`activate`]: applies a function to a few elements.
struct Activate<'a> {
    function: Function,
    x: &'a mut [f32],
}

impl Op for Activate<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Function { op, bounds } = self.function;
        UnaryInPlace { op, x: &mut *self.x }.run(s);
        if bounds.is_some() {
            self.x.iter_mut().for_each(|x| *x = clamp_to_bounds(*x, bounds));
        }
    }
}

/// The loop of [`activate_rows`].
struct ActivateRows<'a> {
    function: Function,
    x: MatMut<'a>,
}

impl Op for ActivateRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let (Function { op, bounds }, rows) = (self.function, self.x.rows());
        // The loop over the rows is within the choice of the function, whose constants are then loaded once.
        macro_rules! each {
            (|$x:ident| $y:expr) => {
                for i in 0..rows {
                    for $x in self.x.row(i).expect("contiguous rows") {
                        *$x = $y;
                    }
                }
            };
        }
        macro_rules! apply {
            ($f:expr) => {
                each!(|x| $f(*x))
            };
            ($f:expr, $exact:expr) => {
                each!(|x| if x.abs() > scalar::TRIG_LIMIT { $exact(*x) } else { $f(*x) })
            };
        }
        with_unary!(s, op, apply);
        if bounds.is_some() {
            each!(|x| clamp_to_bounds(*x, bounds));
        }
    }
}

#[derive(Clone, Copy)]
enum Operand<'a> {
    Elements(&'a [f32]),
    Scalar(f32),
}

struct BinaryTo<'a> {
    op: Binary,
    a: &'a [f32],
    b: Operand<'a>,
    out: &'a mut [f32],
}

impl Op for BinaryTo<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (a, out) = (self.a, self.out);
        macro_rules! apply {
            ($f:expr) => {
                match self.b {
                    Operand::Elements(b) => {
                        for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
                            *out = $f(a, b);
                        }
                    }
                    Operand::Scalar(b) => {
                        for (out, &a) in out.iter_mut().zip(a) {
                            *out = $f(a, b);
                        }
                    }
                }
            };
        }
        match self.op {
            Binary::Add => apply!(|a: f32, b: f32| a + b),
            Binary::Sub => apply!(|a: f32, b: f32| a - b),
            Binary::Mul => apply!(|a: f32, b: f32| a * b),
            Binary::Div => apply!(|a: f32, b: f32| a / b),
            Binary::Maximum => apply!(|a: f32, b: f32| if a > b || a.is_nan() { a } else { b }),
            Binary::Minimum => apply!(|a: f32, b: f32| if a < b || a.is_nan() { a } else { b }),
        }
    }
}

struct Clamp<'a> {
    low: f32,
    high: f32,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Op for Clamp<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        for (out, &x) in self.out.iter_mut().zip(self.x) {
            *out = clamp_to_bounds(x, Some((self.low, self.high)));
        }
    }
}

struct ScaleAdd<'a> {
    a: f32,
    x: &'a [f32],
    y: &'a [f32],
    out: &'a mut [f32],
}

impl Op for ScaleAdd<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for ((out, &x), &y) in self.out.iter_mut().zip(self.x).zip(self.y) {
            *out = s.mul_add_scalar(self.a, x, y);
        }
    }
}
