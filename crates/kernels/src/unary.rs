//! Elementwise functions of one tensor.

use crate::support::map::{Input, elementwise, map, map_as, map_bool, map_float};
use operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result};
use tensor::ScalarType;

macro_rules! row {
    ($name:literal, $dtypes:ident, $f:ident) => {
        Operator::new(
            concat!("aten::", $name, "(Tensor self, *, Tensor(a!) out) -> Tensor(a!)"),
            DtypeSet::$dtypes,
            $f,
        )
        .in_place(&[0])
    };
}

pub(crate) const OPERATORS: &[Operator] = &[
    row!("abs.out", ALL, abs),
    row!("neg.out", ALL, neg),
    row!("acos.out", REAL_BOOL, acos),
    row!("acosh.out", REAL_BOOL, acosh),
    row!("asin.out", REAL_BOOL, asin),
    row!("asinh.out", REAL_BOOL, asinh),
    row!("atan.out", REAL_BOOL, atan),
    row!("atanh.out", REAL_BOOL, atanh),
    row!("cos.out", REAL_BOOL, cos),
    row!("cosh.out", REAL_BOOL, cosh),
    row!("sin.out", REAL_BOOL, sin),
    row!("sinh.out", REAL_BOOL, sinh),
    row!("tan.out", REAL_BOOL, tan),
    row!("tanh.out", REAL_BOOL, tanh),
    row!("exp.out", REAL_BOOL, exp),
    row!("exp2.out", REAL_BOOL, exp2),
    row!("expm1.out", REAL_BOOL, expm1),
    row!("log.out", REAL_BOOL, log),
    row!("log10.out", REAL_BOOL, log10),
    row!("log1p.out", REAL_BOOL, log1p),
    row!("log2.out", REAL_BOOL, log2),
    row!("sqrt.out", REAL_BOOL, sqrt),
    row!("rsqrt.out", REAL_BOOL, rsqrt),
    row!("reciprocal.out", REAL_BOOL, reciprocal),
    row!("sigmoid.out", REAL_BOOL, sigmoid),
    row!("ceil.out", REAL, ceil),
    row!("floor.out", REAL, floor),
    row!("round.out", REAL, round),
    row!("trunc.out", REAL, trunc),
    row!("frac.out", FLOATING, frac),
    row!("square.out", REAL_BOOL, square),
    row!("sign.out", REAL_BOOL, sign),
    row!("relu.out", REAL, relu),
    row!("isinf.out", ALL, isinf),
    row!("isnan.out", ALL, isnan),
    row!("logical_not.out", ALL, logical_not),
    row!("bitwise_not.out", INTEGRAL, bitwise_not),
];

/// The absolute value; of a complex number, its modulus.
fn abs(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = args.meta(0)?.dtype();
    map_as(
        ctx,
        args,
        outs,
        [Input::Arg(0)],
        dtype,
        dtype.to_real(),
        &elementwise!(float | x | x.abs(), int | x | x.wrapping_abs(), complex | z | F::new(z.norm(), 0.0)),
    )
}

/// The negative; integers wrap.
fn neg(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let input = [Input::Arg(0)];
    map(ctx, args, outs, input, &elementwise!(float | x | -x, int | x | x.wrapping_neg(), complex | z | -z))
}

/// Functions whose results are floating-point whatever the input: integers and bool count as float32.
macro_rules! float_functions {
    ($($(#[$doc:meta])* $name:ident = |$x:ident| $f:expr;)*) => { $(
        $(#[$doc])*
        fn $name(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            map_float(ctx, args, outs, [Input::Arg(0)], &elementwise!(float |$x| $f))
        }
    )* };
}

float_functions! {
    acos = |x| x.acos();
    acosh = |x| acosh_of(x as f64) as F;
    asin = |x| x.asin();
    asinh = |x| asinh_of(x as f64) as F;
    atan = |x| x.atan();
    atanh = |x| atanh_of(x as f64) as F;
    cos = |x| x.cos();
    cosh = |x| x.cosh();
    sin = |x| x.sin();
    sinh = |x| x.sinh();
    tan = |x| x.tan();
    tanh = |x| x.tanh();
    exp = |x| x.exp();
    exp2 = |x| x.exp2();
    expm1 = |x| x.exp_m1();
    log = |x| x.ln();
    log10 = |x| x.log10();
    log1p = |x| x.ln_1p();
    log2 = |x| x.log2();
    sqrt = |x| x.sqrt();
    rsqrt = |x| 1.0 / x.sqrt();
    reciprocal = |x| 1.0 / x;
    sigmoid = |x| 1.0 / (1.0 + (-x).exp());
}

/// `acosh` by logarithms that neither cancel near one nor overflow.
fn acosh_of(x: f64) -> f64 {
    if x > 1e8 { x.ln() + std::f64::consts::LN_2 } else { (x - 1.0 + ((x - 1.0) * (x + 1.0)).sqrt()).ln_1p() }
}

/// `asinh`, odd, by logarithms that neither cancel near zero nor overflow.
fn asinh_of(x: f64) -> f64 {
    let a = x.abs();
    let y = if a > 1e8 {
        a.ln() + std::f64::consts::LN_2
    } else {
        (a + a * a / (1.0 + (a * a + 1.0).sqrt())).ln_1p()
    };
    y.copysign(x)
}

/// `atanh`, odd, NaN beyond one.
fn atanh_of(x: f64) -> f64 {
    let a = x.abs();
    (0.5 * (2.0 * a / (1.0 - a)).ln_1p()).copysign(x)
}

/// Functions that leave integers as they are.
macro_rules! rounding_functions {
    ($($(#[$doc:meta])* $name:ident = |$x:ident| $f:expr;)*) => { $(
        $(#[$doc])*
        fn $name(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            map(ctx, args, outs, [Input::Arg(0)], &elementwise!(float |$x| $f, int |x| x))
        }
    )* };
}

rounding_functions! {
    ceil = |x| x.ceil();
    floor = |x| x.floor();
    /// To the nearest whole number, halves to the even one.
    round = |x| x.round_ties_even();
    trunc = |x| x.trunc();
}

/// What truncation takes away.
fn frac(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    map(ctx, args, outs, [Input::Arg(0)], &elementwise!(float | x | x - x.trunc()))
}

fn square(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    map(ctx, args, outs, [Input::Arg(0)], &elementwise!(float | x | x * x, int | x | x.wrapping_mul(x)))
}

/// -1, 0 or 1; of NaN, 0.
fn sign(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise!(float | x | ((x > 0.0) as i8 - (x < 0.0) as i8) as F, int | x | x.signum());
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// The greater of zero and the input; NaN stays.
fn relu(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise!(float | x | if x < 0.0 { 0.0 } else { x }, int | x | x.max(0));
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

fn isinf(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise!(
        float | x | x.is_infinite() as u8 as F,
        int | _x | 0,
        complex | z | F::new((z.re.is_infinite() || z.im.is_infinite()) as u8 as f64, 0.0)
    );
    map_bool(ctx, args, outs, [Input::Arg(0)], &fns)
}

fn isnan(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise!(
        float | x | x.is_nan() as u8 as F,
        int | _x | 0,
        complex | z | F::new((z.re.is_nan() || z.im.is_nan()) as u8 as f64, 0.0)
    );
    map_bool(ctx, args, outs, [Input::Arg(0)], &fns)
}

fn logical_not(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise!(
        float | x | (x == 0.0) as u8 as F,
        int | x | (x == 0) as i64,
        complex | z | F::new((z == F::default()) as u8 as f64, 0.0)
    );
    map_bool(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// The complement of every bit; of bool, the other value.
fn bitwise_not(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    match args.meta(0)?.dtype() {
        ScalarType::Bool => logical_not(ctx, args, outs),
        _ => map(ctx, args, outs, [Input::Arg(0)], &elementwise!(int | x | !x)),
    }
}
