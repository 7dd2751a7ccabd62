//! Elementwise functions of one tensor.

use crate::compute;
use crate::support::dtype::{C64, float_type};
use crate::support::map::{Fns, Input, elementwise, map, map_as, map_bool, map_float};
use crate::support::meaning::{clamp_between_meaning, unary_meaning};
use crate::support::special::{erf, erfc};
use pteron_operator::{Arg, Args, DtypeSet, KernelContext, Meaning, Operator, Outs, Result, Rounding, Unary};
use pteron_tensor::{Complex, ScalarType};
use std::f64::consts::{LN_2, LN_10, PI};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new("aten::abs.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, abs)
        .in_place(&["self"])
        .rounding(Rounding::Exact)
        .means(|_| unary_meaning(Unary::Abs)),
    Operator::new("aten::neg.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, neg)
        .in_place(&["self"])
        .rounding(Rounding::Exact)
        .means(|_| unary_meaning(Unary::Neg)),
    Operator::new(
        "aten::acos.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        acos,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::acosh.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        acosh,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::asin.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        asin,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::asinh.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        asinh,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::atan.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        atan,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::atanh.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        atanh,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::cos.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        cos,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Cos)),
    Operator::new(
        "aten::cosh.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        cosh,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::sin.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        sin,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Sin)),
    Operator::new(
        "aten::sinh.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        sinh,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::tan.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        tan,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::tanh.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        tanh,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Tanh)),
    Operator::new(
        "aten::exp.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        exp,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Exp)),
    Operator::new(
        "aten::exp2.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        exp2,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::expm1.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        expm1,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::log.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        log,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Log)),
    Operator::new(
        "aten::log10.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        log10,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::log1p.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        log1p,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::log2.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        log2,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::sqrt.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        sqrt,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Sqrt)),
    Operator::new(
        "aten::rsqrt.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        rsqrt,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Rsqrt)),
    Operator::new(
        "aten::reciprocal.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        reciprocal,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Reciprocal)),
    Operator::new(
        "aten::sigmoid.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        sigmoid,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Sigmoid)),
    Operator::new("aten::ceil.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::REAL, ceil)
        .in_place(&["self"]),
    Operator::new("aten::floor.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::REAL, floor)
        .in_place(&["self"]),
    Operator::new("aten::round.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::REAL, round)
        .in_place(&["self"]),
    Operator::new("aten::trunc.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::REAL, trunc)
        .in_place(&["self"]),
    Operator::new("aten::frac.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::FLOATING, frac)
        .in_place(&["self"]),
    Operator::new(
        "aten::square.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        square,
    )
    .in_place(&["self"]),
    Operator::new("aten::sign.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::REAL_BOOL, sign)
        .in_place(&["self"]),
    Operator::new("aten::sgn.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, sgn)
        .in_place(&["self"]),
    Operator::new(
        "aten::signbit.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        signbit,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::sinc.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL_COMPLEX,
        sinc,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::erfinv.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        erfinv_of,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::deg2rad.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        deg2rad,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::rad2deg.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        rad2deg,
    )
    .in_place(&["self"]),
    Operator::new("aten::angle.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, angle)
        .in_place(&["self"]),
    Operator::new("aten::relu.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::REAL, relu)
        .in_place(&["self"])
        .rounding(Rounding::Exact)
        .means(|_| clamp_between_meaning(0.0, f64::INFINITY)),
    Operator::new(
        "aten::isposinf.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        isposinf,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::isneginf.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        isneginf,
    )
    .in_place(&["self"]),
    Operator::new("aten::isinf.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, isinf)
        .in_place(&["self"]),
    Operator::new("aten::isnan.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, isnan)
        .in_place(&["self"]),
    Operator::new(
        "aten::logical_not.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        logical_not,
    )
    .in_place(&["self"])
    .means(|_| Some(Meaning::Not)),
    Operator::new(
        "aten::bitwise_not.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        bitwise_not,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::round.decimals_out(Tensor self, *, int decimals, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        round_decimals,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::nan_to_num.out(Tensor self, float? nan=None, float? posinf=None, float? neginf=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        nan_to_num,
    )
    .in_place(&["self"]),
];

/// The absolute value; for a complex number, its modulus.
fn abs(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = args.meta("self")?.dtype();
    if dtype == ScalarType::ComplexFloat && write_moduli(ctx, args, outs)? {
        return Ok(());
    }
    map_as(
        ctx,
        args,
        outs,
        [Input::Arg(0)],
        dtype,
        dtype.to_real(),
        &elementwise! {
            float(x) => x.abs();
            int(x) => x.wrapping_abs();
            complex(z) => F::new(z.norm(), 0.0);
        },
    )
}

/// The moduli of complex64 numbers, without the conversion to complex128. Returns `false`, and computes nothing, if
/// `self` is in place or the out has another type or layout.
fn write_moduli(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<bool> {
    /// The number of complex numbers in a thread's work item; `GRAIN` is the fewest items worth waking a thread for.
    const CHUNK: usize = 1 << 12;
    const GRAIN: usize = 8;
    let Arg::Tensor(x) = args.get("self") else { return Ok(false) };
    let out = outs.tensor(0)?;
    if out.dtype() != ScalarType::Float || out.rank() != x.rank() {
        return Ok(false);
    }
    out.resize(x.sizes())?;
    if !x.dim_order().same_layout(out.dim_order(), x.sizes()) {
        return Ok(false);
    }
    let isa = crate::support::isa(ctx);
    let parts: &[f32] = bytemuck::cast_slice(x.storage::<Complex<f32>>()?);
    ctx.pool().parallel_chunks_mut(out.storage_mut::<f32>()?, CHUNK, GRAIN, &|i, out| {
        compute::moduli(isa, &parts[2 * CHUNK * i..][..2 * out.len()], out);
    });
    Ok(true)
}

/// The negation; integers wrap.
fn neg(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let input = [Input::Arg(0)];
    map(
        ctx,
        args,
        outs,
        input,
        &elementwise! {
            float(x) => -x;
            int(x) => x.wrapping_neg();
            complex(z) => -z;
        },
    )
}

/// Functions whose results are always floating-point: integers and bool are computed as float32.
/// For f32, a function with a name in brackets uses the compute core's function of that name.
macro_rules! float_functions {
    ($($(#[$doc:meta])* $name:ident $([$core:ident])? = |$x:ident| $f:expr $(, complex |$z:ident| $c:expr)?;)*) => { $(
        $(#[$doc])*
        fn $name(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            let fns = elementwise! { float($x) => $f $(; complex($z) => $c)? };
            $(
                let core = core_function(ctx, compute::Unary::$core);
                let fns = Fns { f32: Some(&core), ..fns };
            )?
            map_float(ctx, args, outs, [Input::Arg(0)], &fns)
        }
    )* };
}

/// A block function that calls the compute core's `op` on one thread, because blocks are small.
pub(crate) fn core_function(
    ctx: &KernelContext<'_>,
    op: compute::Unary,
) -> impl Fn([&[f32]; 1], &mut [f32]) + Sync + use<> {
    let isa = crate::support::isa(ctx);
    move |[x], out| compute::unary(pteron_pool::Pool::alone(), isa, op, x, out)
}

float_functions! {
    acos = |x| x.acos(), complex |z| z.acos();
    acosh = |x| acosh_of(x as f64) as F, complex |z| z.acosh();
    asin = |x| x.asin(), complex |z| z.asin();
    asinh = |x| asinh_of(x as f64) as F, complex |z| z.asinh();
    atan = |x| x.atan(), complex |z| z.atan();
    atanh = |x| atanh_of(x as f64) as F, complex |z| z.atanh();
    cos[Cos] = |x| x.cos(), complex |z| z.cos();
    cosh = |x| x.cosh(), complex |z| z.cosh();
    sin[Sin] = |x| x.sin(), complex |z| z.sin();
    sinh = |x| x.sinh(), complex |z| z.sinh();
    tan = |x| x.tan(), complex |z| complex_tan(z);
    tanh[Tanh] = |x| x.tanh(), complex |z| complex_tanh(z);
    exp[Exp] = |x| x.exp(), complex |z| z.exp();
    exp2 = |x| x.exp2(), complex |z| (z * LN_2).exp();
    expm1 = |x| x.exp_m1(), complex |z| complex_expm1(z);
    log[Log] = |x| x.ln(), complex |z| z.ln();
    sqrt[Sqrt] = |x| x.sqrt(), complex |z| z.sqrt();
    rsqrt[Rsqrt] = |x| 1.0 / x.sqrt(), complex |z| z.sqrt().inv();
    reciprocal[Reciprocal] = |x| 1.0 / x, complex |z| z.inv();
    sigmoid[Sigmoid] = |x| 1.0 / (1.0 + (-x).exp()), complex |z| ((-z).exp() + 1.0).inv();
    /// `sin(pi x) / (pi x)`
    sinc = |x| if x == 0.0 { 1.0 } else { (x * PI as F).sin() / (x * PI as F) },
        complex |z| if z == F::default() { F::new(1.0, 0.0) } else { (z * PI).sin() / (z * PI) };
    erfinv_of = |x| erfinv(x as f64) as F;
    deg2rad = |x| x * (PI / 180.0) as F;
    rad2deg = |x| x * (180.0 / PI) as F;
}

/// Operators for the logarithms of the compute core that are not a [`compute::Unary`].
macro_rules! logarithms {
    ($($name:ident[$core:ident] = |$x:ident| $f:expr, complex |$z:ident| $c:expr;)*) => { $(
        fn $name(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            let isa = crate::support::isa(ctx);
            let block = |[x]: [&[f32]; 1], out: &mut [f32]| {
                compute::logarithm(isa, compute::Logarithm::$core, x, out);
            };
            let fns = Fns { f32: Some(&block), ..elementwise! { float($x) => $f; complex($z) => $c } };
            map_float(ctx, args, outs, [Input::Arg(0)], &fns)
        }
    )* };
}

logarithms! {
    log10[Ten] = |x| x.log10(), complex |z| z.ln() / LN_10;
    log1p[OnePlus] = |x| x.ln_1p(), complex |z| complex_log1p(z);
    log2[Two] = |x| x.log2(), complex |z| z.ln() / LN_2;
}

/// The hyperbolic tangent; far from the imaginary axis, where the formula would overflow, it is ±1.
fn complex_tanh(z: C64) -> C64 {
    if z.re.abs() > 20.0 && z.im.is_finite() { C64::new(z.re.signum(), 0.0) } else { z.tanh() }
}

/// `tan(z) = -i tanh(iz)`
fn complex_tan(z: C64) -> C64 {
    let turned = complex_tanh(C64::new(-z.im, z.re));
    C64::new(turned.im, -turned.re)
}

/// `e^z - 1` without cancellation near zero.
fn complex_expm1(z: C64) -> C64 {
    let half = (z.im / 2.0).sin();
    C64::new(z.re.exp_m1() * z.im.cos() - 2.0 * half * half, z.re.exp() * z.im.sin())
}

/// `log(1 + z)` without cancellation near zero.
fn complex_log1p(z: C64) -> C64 {
    let sum = z + 1.0;
    let size = match z.norm() < 0.5 {
        true => (z.re * 2.0 + z.norm_sqr()).ln_1p() / 2.0,
        false => sum.norm().ln(),
    };
    C64::new(size, sum.arg())
}

/// The inverse error function: an initial estimate from logarithms, refined by Halley's method.
fn erfinv(y: f64) -> f64 {
    if y.abs() >= 1.0 {
        return if y.abs() == 1.0 { y / 0.0 } else { f64::NAN };
    }
    let log = (-y * y).ln_1p();
    let a = 2.0 / (PI * 0.147) + log / 2.0;
    let start = ((a * a - log / 0.147).sqrt() - a).max(0.0).sqrt().copysign(y);
    (0..3).fold(start, |x, _| {
        // For large `|y|`, the complementary error function is more accurate.
        let miss = match y {
            0.5.. => (1.0 - y) - erfc(x),
            ..-0.5 => erfc(-x) - (1.0 + y),
            _ => erf(x) - y,
        };
        let step = miss / (2.0 / PI.sqrt() * (-x * x).exp());
        x - step / (1.0 + x * step)
    })
}

/// `acosh` by formulas that neither cancel near one nor overflow; NaN below one.
fn acosh_of(x: f64) -> f64 {
    if x < 1.0 {
        return f64::NAN;
    }
    if x > 1e8 { x.ln() + LN_2 } else { (x - 1.0 + ((x - 1.0) * (x + 1.0)).sqrt()).ln_1p() }
}

/// `asinh`, an odd function, by formulas that neither cancel near zero nor overflow.
fn asinh_of(x: f64) -> f64 {
    let a = x.abs();
    let y = if a > 1e8 { a.ln() + LN_2 } else { (a + a * a / (1.0 + (a * a + 1.0).sqrt())).ln_1p() };
    y.copysign(x)
}

/// `atanh`, an odd function; NaN for absolute values above one.
fn atanh_of(x: f64) -> f64 {
    let a = x.abs();
    (0.5 * (2.0 * a / (1.0 - a)).ln_1p()).copysign(x)
}

/// Rounding functions, which leave integers as they are.
macro_rules! rounding_functions {
    ($($(#[$doc:meta])* $name:ident = |$x:ident| $f:expr;)*) => { $(
        $(#[$doc])*
        fn $name(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            let isa = crate::support::isa(ctx);
            let block = |[x]: [&[f32]; 1], out: &mut [f32]| compute::map_elements(isa, x, out, |$x| $f);
            let fns = Fns { f32: Some(&block), ..elementwise! { float($x) => $f; int(x) => x } };
            map(ctx, args, outs, [Input::Arg(0)], &fns)
        }
    )* };
}

rounding_functions! {
    ceil = |x| x.ceil();
    floor = |x| x.floor();
    /// Rounds to the nearest integer, ties to even.
    round = |x| x.round_ties_even();
    trunc = |x| x.trunc();
}

/// The fractional part, `x - trunc(x)`.
fn frac(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    map(ctx, args, outs, [Input::Arg(0)], &elementwise! { float(x) => x - x.trunc() })
}

fn square(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(x) => x * x; int(x) => x.wrapping_mul(x); complex(z) => z * z };
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// The sign of each element: -1, 0 or 1; 0 for NaN.
fn sign(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(x) => ((x > 0.0) as i8 - (x < 0.0) as i8) as F; int(x) => x.signum() };
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// Like [`sign`]; a nonzero complex number becomes the number of modulus one with the same angle.
fn sgn(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! {
        float(x) => ((x > 0.0) as i8 - (x < 0.0) as i8) as F;
        int(x) => x.signum();
        complex(z) => if z == F::default() { z } else { z / z.norm() };
    };
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// Whether the sign bit of each element is set; true for -0.
fn signbit(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(x) => x.is_sign_negative() as u8 as F; int(x) => (x < 0) as i64 };
    map_bool(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// The angle of a complex number; 0 for a real number, or pi for a negative one, or NaN for NaN.
fn angle(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = float_type(args.meta("self")?.dtype());
    let fns = elementwise! {
        float(x) => if x.is_nan() {
                x
            } else if x < 0.0 {
                PI as F
            } else {
                0.0
            };
        complex(z) => F::new(z.im.atan2(z.re), 0.0);
    };
    map_as(ctx, args, outs, [Input::Arg(0)], dtype, dtype.to_real(), &fns)
}

/// Rounds to `decimals` decimal places, ties to even; negative `decimals` round to tens, hundreds, ...
fn round_decimals(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let decimals = args.int("decimals")?;
    let power = 10f64.powi(decimals.unsigned_abs().min(400) as i32);
    let fns = elementwise! {
        float(x) => match decimals {
                0 => x.round_ties_even(),
                1.. => (x * power as F).round_ties_even() / power as F,
                _ => (x / power as F).round_ties_even() * power as F,
            };
    };
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// Replaces NaN and the infinities: by default with zero and the type's largest and smallest finite values.
fn nan_to_num(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let most = match args.meta("self")?.dtype() {
        ScalarType::Half => 65504.0,
        ScalarType::BFloat16 => f32::from_bits(0x7f7f_0000) as f64,
        ScalarType::Float => f32::MAX as f64,
        _ => f64::MAX,
    };
    let nan = args.optional_double("nan")?.unwrap_or(0.0);
    let (high, low) =
        (args.optional_double("posinf")?.unwrap_or(most), args.optional_double("neginf")?.unwrap_or(-most));
    let fns = elementwise! {
        float(x) => match x {
                x if x.is_nan() => nan as F,
                F::INFINITY => high as F,
                F::NEG_INFINITY => low as F,
                x => x,
            };
        int(x) => x;
    };
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

fn isposinf(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(x) => (x == F::INFINITY) as u8 as F; int(_x) => 0 };
    map_bool(ctx, args, outs, [Input::Arg(0)], &fns)
}

fn isneginf(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(x) => (x == F::NEG_INFINITY) as u8 as F; int(_x) => 0 };
    map_bool(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// `max(x, 0)`; NaN stays.
fn relu(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(x) => if x < 0.0 { 0.0 } else { x }; int(x) => x.max(0) };
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

fn isinf(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! {
        float(x) => x.is_infinite() as u8 as F;
        int(_x) => 0;
        complex(z) => F::new((z.re.is_infinite() || z.im.is_infinite()) as u8 as f64, 0.0);
    };
    map_bool(ctx, args, outs, [Input::Arg(0)], &fns)
}

fn isnan(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! {
        float(x) => x.is_nan() as u8 as F;
        int(_x) => 0;
        complex(z) => F::new((z.re.is_nan() || z.im.is_nan()) as u8 as f64, 0.0);
    };
    map_bool(ctx, args, outs, [Input::Arg(0)], &fns)
}

fn logical_not(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! {
        float(x) => (x == 0.0) as u8 as F;
        int(x) => (x == 0) as i64;
        complex(z) => F::new((z == F::default()) as u8 as f64, 0.0);
    };
    map_bool(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// The bitwise complement; for bool, the logical negation.
fn bitwise_not(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    match args.meta("self")?.dtype() {
        ScalarType::Bool => logical_not(ctx, args, outs),
        _ => map(ctx, args, outs, [Input::Arg(0)], &elementwise! { int(x) => !x }),
    }
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, t};
    use pteron_operator::{Arg, Generator, KernelContext, Out, Outs, Scratch};
    use pteron_tensor::ScalarType::{Bool, Byte, ComplexFloat, Float, Half, Int};
    use pteron_tensor::{Complex, Tensor, f16};

    fn near(t: &Tensor, want: &[f32]) {
        let got = t.storage::<f32>().unwrap();
        let same =
            |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6 * b.abs() || a == b || (a.is_nan() && b.is_nan());
        assert!(got.len() == want.len() && got.iter().zip(want).all(same), "{got:?} {want:?}");
    }

    fn of(name: &str, x: &[f32]) -> Tensor {
        call(name, &[a(&t(&[x.len()], x))], out(Float, &[x.len()])).unwrap()
    }

    #[test]
    fn hyperbolic_inverses_keep_their_precision() {
        const INF: f32 = f32::INFINITY;
        near(
            &of("aten::acosh.out", &[1.0, 1.000_1, 1e30, 0.5, -1e30, INF]),
            &[0.0, 0.014_143_191, 69.770_7, f32::NAN, f32::NAN, INF],
        );
        near(&of("aten::asinh.out", &[1e-7, -1e-7, -1e30, -0.0, INF]), &[1e-7, -1e-7, -69.770_7, -0.0, INF]);
        near(&of("aten::atanh.out", &[1e-7, -0.5, 1.0, 2.0]), &[1e-7, -0.549_306_15, INF, f32::NAN]);
        near(&of("aten::sigmoid.out", &[-200.0, 0.0, 200.0]), &[0.0, 0.5, 1.0]);
        near(&of("aten::round.out", &[0.5, 1.5, -2.5]), &[0.0, 2.0, -2.0]);
        near(&of("aten::sign.out", &[-3.0, 0.0, f32::NAN]), &[-1.0, 0.0, 0.0]);
        near(&of("aten::relu.out", &[-3.0, 2.0, f32::NAN]), &[0.0, 2.0, f32::NAN]);
    }

    #[test]
    fn functions_of_every_type() {
        let n = t(&[2], &[i32::MIN, 4]);
        let r = call("aten::abs.out", &[a(&n)], out(Int, &[2])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[i32::MIN, 4]);
        near(&call("aten::sqrt.out", &[a(&n)], out(Float, &[2])).unwrap(), &[f32::NAN, 2.0]);
        assert!(call("aten::sqrt.out", &[a(&n)], out(Int, &[2])).is_err());
        let r = call("aten::floor.out", &[a(&t(&[1], &[i32::MAX]))], out(Int, &[1])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[i32::MAX]);
        let z = t(&[1], &[Complex::new(3f32, -4.0)]);
        near(&call("aten::abs.out", &[a(&z)], out(Float, &[1])).unwrap(), &[5.0]);
        let inf = f32::INFINITY;
        let parts = [Complex::new(3e30, 4e30), Complex::new(-inf, f32::NAN), Complex::new(f32::NAN, 1.0)];
        let parts = t(&[3], &parts);
        near(&call("aten::abs.out", &[a(&parts)], out(Float, &[3])).unwrap(), &[5e30, inf, f32::NAN]);
        let r = call("aten::neg.out", &[a(&z)], out(ComplexFloat, &[1])).unwrap();
        assert_eq!(r.storage::<Complex<f32>>().unwrap(), &[Complex::new(-3.0, 4.0)]);
        let r = call("aten::bitwise_not.out", &[a(&t(&[1], &[5u8]))], out(Byte, &[1])).unwrap();
        assert_eq!(r.bytes(), &[250]);
        let r = call(
            "aten::bitwise_not.out",
            &[a(&t(&[1], &[pteron_tensor::Bool::from(true)]))],
            out(Bool, &[1]),
        )
        .unwrap();
        assert_eq!(r.bytes(), &[0]);
        let r = call("aten::isnan.out", &[a(&t(&[2], &[f16::NAN, f16::INFINITY]))], out(Bool, &[2])).unwrap();
        assert_eq!(r.bytes(), &[1, 0]);
        let h = call("aten::exp.out", &[a(&t(&[1], &[f16::from_f32(1.0)]))], out(Half, &[1])).unwrap();
        assert_eq!(h.storage::<f16>().unwrap()[0], f16::from_f32(std::f32::consts::E));
    }

    #[test]
    fn angles_signs_and_inverse_functions() {
        const INF: f32 = f32::INFINITY;
        near(
            &of("aten::erfinv.out", &[0.5, -0.999, 1.0, 1.5, 1e-6]),
            &[0.476_936_28, -2.326_756_2, INF, f32::NAN, 8.862_269e-7],
        );
        near(&of("aten::sinc.out", &[0.0, 0.5]), &[1.0, std::f32::consts::FRAC_2_PI]);
        near(&of("aten::sgn.out", &[-2.0, f32::NAN]), &[-1.0, 0.0]);
        near(&of("aten::angle.out", &[-2.0, 0.0, f32::NAN]), &[std::f32::consts::PI, 0.0, f32::NAN]);
        near(&of("aten::nan_to_num.out", &[f32::NAN, INF, -INF, 1.0]), &[0.0, f32::MAX, f32::MIN, 1.0]);
        let r = call("aten::nan_to_num.out", &[a(&t(&[1], &[f16::INFINITY]))], out(Half, &[1])).unwrap();
        assert_eq!(r.storage::<f16>().unwrap(), &[f16::MAX]);
        let x = t(&[3], &[-0.0f32, 2.345, 250.0]);
        let r = call("aten::signbit.out", &[a(&x)], out(Bool, &[3])).unwrap();
        assert_eq!(r.bytes(), &[1, 0, 0]);
        near(
            &call("aten::round.decimals_out", &[a(&x), Arg::Int(1)], out(Float, &[3])).unwrap(),
            &[-0.0, 2.3, 250.0],
        );
        near(
            &call("aten::round.decimals_out", &[a(&x), Arg::Int(-2)], out(Float, &[3])).unwrap(),
            &[-0.0, 0.0, 200.0],
        );
        let z = t(&[1], &[Complex::new(0f32, 2.0)]);
        near(&call("aten::angle.out", &[a(&z)], out(Float, &[1])).unwrap(), &[std::f32::consts::FRAC_PI_2]);
    }

    #[test]
    fn an_argument_may_be_the_out() {
        let kernel = crate::registry().get("aten::neg.out").unwrap();
        let (pool, scratch, generator) =
            (pteron_pool::Pool::serial(), Scratch::new(1 << 20), Generator::new(0));
        let ctx = KernelContext::new(&pool, &scratch, &generator);
        let run = |meta: &Tensor, mut out: Tensor| {
            let args = smallvec::smallvec![Arg::InPlace { out: 0, meta: meta.meta() }, Arg::Out(0)];
            let args = pteron_operator::Args::new(kernel.schema(), args);
            let mut outs = Outs::new(smallvec::smallvec![Out::Tensor(out.view_mut())]);
            kernel.execute(&ctx, &args, &mut outs).unwrap();
            drop(outs);
            out
        };
        let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
        let negated: Vec<f32> = x.iter().map(|v| -v).collect();
        let same = t(&[1000], &x);
        assert_eq!(run(&same, same.clone()).storage::<f32>().unwrap(), negated);
        // An argument of another type or layout is copied before the out is written.
        let ints: Vec<i32> = (0..1000).collect();
        let ints = t(&[1000], &ints);
        let shared = Tensor::from_bytes(same.meta().clone(), ints.bytes()).unwrap();
        assert_eq!(run(&ints, shared).storage::<f32>().unwrap(), negated);
        let columns = pteron_tensor::DimOrder::new(&[1, 0]).unwrap();
        let rows = t(&[10, 100], &x);
        let turned = rows.to_dim_order(columns).unwrap();
        let out = Tensor::from_bytes(rows.meta().clone(), turned.bytes()).unwrap();
        assert_eq!(run(&turned, out).storage::<f32>().unwrap(), negated);
    }
}
