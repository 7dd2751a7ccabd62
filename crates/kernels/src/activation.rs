//! Activations, clamping, `where`, `addcmul`, `addcdiv` and `lerp`.

use crate::compute::map_elements;
use crate::support::dtype::Compute;
use crate::support::map::{
    Fns, Input, elementwise, expect_out, map, map_as, map_float, promote, round_to_type,
};
use crate::support::meaning::{clamp_between_meaning, unary_meaning};
use crate::support::special::{erf, erfc};
use crate::unary::core_function;
use pteron_operator::formula::Term;
use pteron_operator::{
    Args, Binary, DtypeSet, Error, KernelContext, Meaning, Operator, Outs, Result, Rounding, Unary, ensure,
};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new("aten::erf.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::REAL_BOOL, erf_tensor)
        .in_place(&["self"])
        .rounding(Rounding::Once)
        .means(|_| unary_meaning(Unary::Erf)),
    Operator::new(
        "aten::erfc.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        erfc_tensor,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::gelu.out(Tensor self, *, str approximate='none', Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        gelu,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(gelu_meaning),
    Operator::new("aten::silu.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::FLOATING, silu)
        .in_place(&["self"])
        .rounding(Rounding::Once)
        .means(|_| unary_meaning(Unary::Silu)),
    Operator::new("aten::mish.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::FLOATING, mish)
        .in_place(&["self"]),
    Operator::new(
        "aten::hardsigmoid.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        hardsigmoid,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Hardsigmoid)),
    Operator::new(
        "aten::hardswish.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        hardswish,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(|_| unary_meaning(Unary::Hardswish)),
    Operator::new(
        "aten::softplus.out(Tensor self, Scalar beta=1, Scalar threshold=20, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        softplus,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::log_sigmoid.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        log_sigmoid,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::elu.out(Tensor self, Scalar alpha=1, Scalar scale=1, Scalar input_scale=1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        elu,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once),
    Operator::new(
        "aten::celu.out(Tensor self, Scalar alpha=1.0, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        celu,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::hardshrink.out(Tensor self, Scalar lambd=0.5, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        hardshrink,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::softshrink.out(Tensor self, Scalar lambd=0.5, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        softshrink,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::leaky_relu.out(Tensor self, Scalar negative_slope=0.01, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        leaky_relu,
    )
    .in_place(&["self"])
    .rounding(Rounding::Once)
    .means(leaky_relu_meaning),
    Operator::new(
        "aten::logit.out(Tensor self, float? eps=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        logit,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::hardtanh.out(Tensor self, Scalar min_val=-1, Scalar max_val=1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL,
        hardtanh,
    )
    .in_place(&["self"])
    .rounding(Rounding::ExactWithNumbers)
    .means(hardtanh_meaning),
    Operator::new(
        "aten::clamp.out(Tensor self, Scalar? min=None, Scalar? max=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        clamp,
    )
    .in_place(&["self"])
    .rounding(Rounding::ExactWithNumbers)
    .means(clamp_meaning),
    Operator::new(
        "aten::clamp_min.out(Tensor self, Scalar min, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        clamp_min,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::clamp_max.out(Tensor self, Scalar max, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        clamp_max,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::clamp_min.Tensor_out(Tensor self, Tensor min, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        clamp_min_tensor,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::clamp_max.Tensor_out(Tensor self, Tensor max, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        clamp_max_tensor,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::clamp.Tensor_out(Tensor self, Tensor? min=None, Tensor? max=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        clamp_tensor,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::threshold.out(Tensor self, Scalar threshold, Scalar value, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL,
        threshold,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::where.self_out(Tensor condition, Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        where_self,
    )
    .rounding(Rounding::Exact)
    .means(|_| Some(Meaning::Where))
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::addcmul.out(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        addcmul,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::addcdiv.out(Tensor self, Tensor tensor1, Tensor tensor2, *, Scalar value=1, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        addcdiv,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::lerp.Scalar_out(Tensor self, Tensor end, Scalar weight, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        lerp,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::lerp.Tensor_out(Tensor self, Tensor end, Tensor weight, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        lerp,
    )
    .in_place(&["self"]),
];

fn gelu_meaning(args: &Args<'_>) -> Option<Meaning> {
    unary_meaning(if args.str("approximate").is_ok_and(|s| s == "tanh") {
        Unary::GeluTanh
    } else {
        Unary::Gelu
    })
}

/// `max(x, slope x)` for slopes in `(0, 1]`, otherwise `max(x, 0) + slope min(x, 0)`; `None` for a slope that is not
/// finite.
fn leaky_relu_meaning(args: &Args<'_>) -> Option<Meaning> {
    let slope = args.scalar("negative_slope").ok()?.to_f64() as f32;
    let x = Term::input(0);
    let term = if slope > 0.0 && slope <= 1.0 {
        x.clone().binary(Binary::Maximum, x * Term::number(slope))
    } else {
        x.clone().clamp_f32(0.0, f32::INFINITY) + x.clamp_f32(f32::NEG_INFINITY, 0.0) * Term::number(slope)
    };
    slope.is_finite().then(|| Meaning::Elementwise(term.into()))
}

fn hardtanh_meaning(args: &Args<'_>) -> Option<Meaning> {
    clamp_between_meaning(args.scalar("min_val").ok()?.to_f64(), args.scalar("max_val").ok()?.to_f64())
}

fn clamp_meaning(args: &Args<'_>) -> Option<Meaning> {
    // The kernel rejects a call without bounds.
    if args.is_none("min") && args.is_none("max") {
        return None;
    }
    let bound = |i: usize, absent: f64| Some(args.optional_scalar(i).ok()?.map_or(absent, |s| s.to_f64()));
    clamp_between_meaning(bound(1, f64::NEG_INFINITY)?, bound(2, f64::INFINITY)?)
}

/// Functions of floating-point tensors, with scalar arguments in braces. For f32, a function with a name in brackets
/// uses the compute core's [`Unary`] of that name.
macro_rules! float_functions {
    ($($(#[$doc:meta])* $name:ident $([$core:ident])? $({ $($var:ident = $at:literal),+ })? = |$x:ident| $f:expr;)*) => { $(
        $(#[$doc])*
        fn $name(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            $($(let $var = args.scalar($at)?.to_f64();)+)?
            let fns = elementwise! { float($x) => $f };
            $(
                let core = core_function(ctx, Unary::$core);
                let fns = Fns { f32: Some(&core), ..fns };
            )?
            map(ctx, args, outs, [Input::Arg(0)], &fns)
        }
    )* };
}

float_functions! {
    /// `x * sigmoid(x)`
    silu[Silu] = |x| x / (1.0 + (-x).exp());
    /// `x * tanh(log(1 + exp(x)))`
    mish = |x| x * if x > 20.0 { 1.0 } else { x.exp().ln_1p().tanh() };
    /// `clamp(x + 3, 0, 6) / 6`
    hardsigmoid[Hardsigmoid] = |x| clamp_value(x + 3.0, 0.0, 6.0) / 6.0;
    /// `x * clamp(x + 3, 0, 6) / 6`
    hardswish[Hardswish] = |x| x * clamp_value(x + 3.0, 0.0, 6.0) / 6.0;
    /// `log(1 + exp(beta x)) / beta`, and `x` where `beta x` is above the threshold.
    softplus { beta = 1, threshold = 2 } = |x| {
        let b = beta as F;
        if x * b > threshold as F { x } else { (x * b).exp().ln_1p() / b }
    };
    log_sigmoid = |x| x.min(0.0) - (-x.abs()).exp().ln_1p();
    /// `scale * x` for `x >= 0`, `scale * alpha * (exp(input_scale x) - 1)` for `x < 0`.
    elu { alpha = 1, scale = 2, input_scale = 3 } = |x| if x < 0.0 {
        scale as F * alpha as F * (x * input_scale as F).exp_m1()
    } else {
        scale as F * x
    };
    /// `max(x, 0) + min(alpha (exp(x / alpha) - 1), 0)`. The division is a multiplication by the reciprocal, as in
    /// PyTorch: the difference in rounding is visible where the exponential is large.
    celu { alpha = 1 } = |x| if x < 0.0 { alpha as F * (x * (1.0 / alpha) as F).exp_m1() } else { x };
}

/// `x` for `x > 0`, otherwise `slope x`.
fn leaky_relu(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (slope, isa) = (args.scalar("negative_slope")?.to_f64(), crate::support::isa(ctx));
    let block = |[x]: [&[f32]; 1], out: &mut [f32]| {
        map_elements(isa, x, out, |x| if x > 0.0 { x } else { x * slope as f32 });
    };
    let fns = elementwise! { float(x) => if x > 0.0 { x } else { x * slope as F } };
    map(ctx, args, outs, [Input::Arg(0)], &Fns { f32: Some(&block), ..fns })
}

/// Zero in `-lambd..=lambd`, otherwise `x`; `lambd` is rounded to the tensor's type.
fn hardshrink(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let lambd = round_to_type(args.scalar("lambd")?.to_f64(), args.meta("self")?.dtype());
    let fns = elementwise! { float(x) => if x >= -lambd as F && x <= lambd as F { 0.0 } else { x } };
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// Moves `x` by `lambd` toward zero, at most to zero; `lambd` is rounded to the tensor's type.
fn softshrink(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let lambd = round_to_type(args.scalar("lambd")?.to_f64(), args.meta("self")?.dtype());
    let fns = elementwise! {
        float(x) => match x {
                x if x > lambd as F => x - lambd as F,
                x if x < -lambd as F => x + lambd as F,
                x => x * 0.0,
            };
    };
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// `x` clamped to `min..=max`. NaN stays NaN; a NaN bound gives NaN.
#[inline]
#[expect(clippy::neg_cmp_op_on_partial_ord, clippy::eq_op, reason = "a NaN bound must win, and be kept")]
fn clamp_value<T: Compute + PartialOrd>(x: T, min: T, max: T) -> T {
    if x != x {
        return x;
    }
    let x = if !(x >= min) { min } else { x };
    if x > max || max != max { max } else { x }
}

fn erf_tensor(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let core = core_function(ctx, Unary::Erf);
    let fns = Fns { f32: Some(&core), ..elementwise! { float(x) => erf(x as f64) as F } };
    map_float(ctx, args, outs, [Input::Arg(0)], &fns)
}

fn erfc_tensor(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    map_float(ctx, args, outs, [Input::Arg(0)], &elementwise! { float(x) => erfc(x as f64) as F })
}

/// `x * P(X <= x)` for a standard normal X, or its approximation by `tanh`. For negative infinity the former gives
/// zero, as PyTorch's vectorised loop does, the latter NaN.
fn gelu(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_PI};
    let input = [Input::Arg(0)];
    match args.str("approximate")? {
        "none" => {
            let core = core_function(ctx, Unary::Gelu);
            let block = |[x]: [&[f32]; 1], out: &mut [f32]| {
                core([x], out);
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = if x == f32::NEG_INFINITY { -0.0 } else { *out };
                }
            };
            let fns = elementwise! {
                float(x) => {
                    let p = 0.5 * erfc(-(x as f64) * FRAC_1_SQRT_2);
                    if p == 0.0 { -0.0 } else { (x as f64 * p) as F }
                };
            };
            map(ctx, args, outs, input, &Fns { f32: Some(&block), ..fns })
        }
        "tanh" => {
            let k = FRAC_2_PI.sqrt();
            let core = core_function(ctx, Unary::GeluTanh);
            let fns =
                elementwise! { float(x) => 0.5 * x * (1.0 + (k as F * (x + 0.044715 * x * x * x)).tanh()) };
            map(ctx, args, outs, input, &Fns { f32: Some(&core), ..fns })
        }
        other => Err(Error::invalid(format!("approximate: {other:?} is not `none` or `tanh`"))),
    }
}

/// `log(x / (1 - x))`, after a clamp to `eps` and `1 - eps` if eps is given.
fn logit(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    // The bounds are rounded to the tensor's type: in half precision the upper one may become 1.
    let dtype = args.meta("self")?.dtype();
    let of = |x: f64| round_to_type(x, dtype);
    let (low, high) = match args.optional_double("eps")? {
        Some(eps) => (of(eps), of(1.0 - of(eps))),
        None => (f64::NEG_INFINITY, f64::INFINITY),
    };
    let fns = elementwise! {
        float(x) => {
            let x = clamp_value(x, low as F, high as F);
            (x / (1.0 - x)).ln()
        };
    };
    map_float(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// Clamps argument 0 to bounds, each of which may be absent. If `promoted`, the bounds take part in type promotion.
fn clamp_to(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    [min, max]: [Option<pteron_tensor::Scalar>; 2],
    promoted: bool,
) -> Result<()> {
    let mut dtype = args.meta("self")?.dtype();
    for bound in [min, max].into_iter().flatten().filter(|_| promoted) {
        let with = promote(args, &[Input::Arg(0), Input::Scalar(bound)])?;
        dtype = dtype.promote(with).unwrap_or(with);
    }
    let (a, b) = (min.map_or(f64::NEG_INFINITY, |s| s.to_f64()), max.map_or(f64::INFINITY, |s| s.to_f64()));
    let (i, j) = (min.map_or(i64::MIN, |s| s.to_i64()), max.map_or(i64::MAX, |s| s.to_i64()));
    let isa = crate::support::isa(ctx);
    let block =
        |[x]: [&[f32]; 1], out: &mut [f32]| map_elements(isa, x, out, |x| clamp_value(x, a as f32, b as f32));
    let fns = elementwise! { float(x) => clamp_value(x, a as F, b as F); int(x) => x.max(i).min(j) };
    map_as(ctx, args, outs, [Input::Arg(0)], dtype, dtype, &Fns { f32: Some(&block), ..fns })
}

fn hardtanh(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    clamp_to(ctx, args, outs, [Some(args.scalar("min_val")?), Some(args.scalar("max_val")?)], false)
}

/// Clamps each element to at least `min` and at most `max`; `max` wins if `min > max`.
fn clamp(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let bounds = [args.optional_scalar("min")?, args.optional_scalar("max")?];
    ensure!(bounds.iter().any(|b| b.is_some()), "min and max are both absent");
    clamp_to(ctx, args, outs, bounds, true)
}

fn clamp_min(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    clamp_to(ctx, args, outs, [Some(args.scalar("min")?), None], true)
}

fn clamp_max(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    clamp_to(ctx, args, outs, [None, Some(args.scalar("max")?)], true)
}

fn clamp_min_tensor(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(x, a) => clamp_value(x, a, F::INFINITY); int(x, a) => x.max(a) };
    map(ctx, args, outs, [Input::Arg(0), Input::Arg(1)], &fns)
}

fn clamp_max_tensor(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! { float(x, b) => clamp_value(x, F::NEG_INFINITY, b); int(x, b) => x.min(b) };
    map(ctx, args, outs, [Input::Arg(0), Input::Arg(1)], &fns)
}

fn clamp_tensor(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, min, max) = (Input::Arg(0), Input::Arg(1), Input::Arg(2));
    match (args.is_none("min"), args.is_none("max")) {
        (true, true) => Err(Error::invalid("min and max are both absent")),
        (false, true) => {
            let fns = elementwise! { float(x, a) => clamp_value(x, a, F::INFINITY); int(x, a) => x.max(a) };
            map(ctx, args, outs, [x, min], &fns)
        }
        (true, false) => {
            let fns =
                elementwise! { float(x, b) => clamp_value(x, F::NEG_INFINITY, b); int(x, b) => x.min(b) };
            map(ctx, args, outs, [x, max], &fns)
        }
        (false, false) => {
            let fns =
                elementwise! { float(x, a, b) => clamp_value(x, a, b); int(x, a, b) => x.max(a).min(b) };
            map(ctx, args, outs, [x, min, max], &fns)
        }
    }
}

/// `value` where `x` is at most the threshold, otherwise `x`; NaN stays.
fn threshold(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (t, v) = (args.scalar("threshold")?, args.scalar("value")?);
    let (tf, vf, ti, vi) = (t.to_f64(), v.to_f64(), t.to_i64(), v.to_i64());
    let fns = elementwise! {
        float(x) => if x <= tf as F { vf as F } else { x };
        int(x) => if x <= ti { vi } else { x };
    };
    map(ctx, args, outs, [Input::Arg(0)], &fns)
}

/// `self` where the condition is true, otherwise `other`.
fn where_self(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dtype = promote(args, &[Input::Arg(1), Input::Arg(2)])?;
    expect_out(dtype, outs.tensor(0)?.dtype())?;
    let fns = elementwise! {
        real(c, a, b) => if c.is_true() { a } else { b };
        complex(c, a, b) => if c.is_true() { a } else { b };
    };
    map_as(ctx, args, outs, [0, 1, 2].map(Input::Arg), dtype, dtype, &fns)
}

/// `self + value * tensor1 * tensor2`
fn addcmul(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let value = args.scalar("value")?;
    let (v, i) = (value.to_f64(), value.to_i64());
    let fns = elementwise! {
        float(x, a, b) => x + v as F * a * b;
        int(x, a, b) => x.wrapping_add(i.wrapping_mul(a).wrapping_mul(b));
        complex(x, a, b) => x + a * b * v;
    };
    map(ctx, args, outs, [0, 1, 2].map(Input::Arg), &fns)
}

/// `self + value * tensor1 / tensor2`
fn addcdiv(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let v = args.scalar("value")?.to_f64();
    let fns = elementwise! { float(x, a, b) => x + v as F * a / b; complex(x, a, b) => x + a * v / b };
    map(ctx, args, outs, [0, 1, 2].map(Input::Arg), &fns)
}

/// `self + weight * (end - self)`, computed from the nearer endpoint.
fn lerp(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! {
        float(a, b, w) => if w.abs() < 0.5 { a + w * (b - a) } else { b - (b - a) * (1.0 - w) };
    };
    map(ctx, args, outs, [Input::Arg(0), Input::Arg(1), Input::of_arg(args, 2)?], &fns)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, out, s, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{BFloat16, Byte, Float, Half, Int, Long};
    use pteron_tensor::{Bool, Tensor};

    fn near(t: &Tensor, want: &[f32]) {
        let got = t.storage::<f32>().unwrap();
        let same = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5 || a == b || (a.is_nan() && b.is_nan());
        assert!(got.len() == want.len() && got.iter().zip(want).all(same), "{got:?} {want:?}");
    }

    fn go<'a>(name: &str, x: &'a Tensor, args: &[Arg<'a>]) -> Tensor {
        let all: Vec<_> = [a(x)].into_iter().chain(args.iter().cloned()).collect();
        call(name, &all, out(Float, x.sizes())).unwrap()
    }

    /// 0.1 is less than the bfloat16 nearest to it.
    #[test]
    fn shrink_bounds_are_rounded_to_the_type() {
        let x = t(&[1], &[pteron_tensor::bf16::from_f32(0.1)]);
        for name in ["aten::softshrink.out", "aten::hardshrink.out"] {
            let r = call(name, &[a(&x), Arg::Double(0.1)], out(BFloat16, &[1])).unwrap();
            assert_eq!(r.storage::<pteron_tensor::bf16>().unwrap()[0].to_f32(), 0.0, "{name}");
        }
    }

    #[test]
    fn activations_of_finite_and_special_values() {
        let x = t(&[4], &[-1f32, 0.5, f32::NEG_INFINITY, f32::NAN]);
        near(&go("aten::gelu.out", &x, &[]), &[-0.158_655_25, 0.345_731_23, 0.0, f32::NAN]);
        near(&go("aten::gelu.out", &x, &[Arg::Str("tanh")]), &[-0.158_808, 0.345_714, f32::NAN, f32::NAN]);
        near(&go("aten::erf.out", &x, &[]), &[-0.842_700_8, 0.520_499_9, -1.0, f32::NAN]);
        near(&go("aten::elu.out", &x, &[]), &[-0.632_120_55, 0.5, -1.0, f32::NAN]);
        near(&go("aten::leaky_relu.out", &x, &[]), &[-0.01, 0.5, f32::NEG_INFINITY, f32::NAN]);
        near(&go("aten::hardswish.out", &x, &[]), &[-0.333_333_34, 0.291_666_67, f32::NAN, f32::NAN]);
        near(&go("aten::hardtanh.out", &x, &[int(0), Arg::Double(0.25)]), &[0.0, 0.25, 0.0, f32::NAN]);
        assert!(call("aten::gelu.out", &[a(&x), Arg::Str("x")], out(Float, &[4])).is_err());
    }

    /// With a negative `alpha` the results grow exponentially.
    #[test]
    fn celu_multiplies_by_the_reciprocal() {
        let y = go("aten::celu.out", &t(&[1], &[-131.5f32]), &[Arg::Double(-1.5)]);
        let expected = -1.5 * (-131.5 * (1.0 / -1.5) as f32).exp_m1();
        assert_eq!(y.storage::<f32>().unwrap(), &[expected]);
        assert_ne!(expected, -1.5 * (-131.5f32 / -1.5).exp_m1());
    }

    /// The results for zeros have the signs that PyTorch gives them.
    #[test]
    fn activations_of_zeros_have_the_right_sign() {
        let x = t(&[2], &[0.0f32, -0.0]);
        let number = Arg::Double;
        let cases: &[(&str, &[Arg<'_>], [bool; 2])] = &[
            ("elu", &[number(2.0), number(3.0), number(-1.5)], [false, true]),
            ("celu", &[number(-1.5)], [false, true]),
            ("leaky_relu", &[number(-0.5)], [true, false]),
            ("hardshrink", &[], [false, false]),
            ("silu", &[], [false, true]),
            ("hardswish", &[], [false, true]),
            ("gelu", &[], [false, true]),
            ("mish", &[], [false, true]),
            ("relu", &[], [false, true]),
        ];
        for (name, args, negative) in cases {
            let y = go(&format!("aten::{name}.out"), &x, args);
            let signs = y.storage::<f32>().unwrap().iter().map(|y| y.is_sign_negative());
            assert!(signs.eq(*negative), "{name}: {y:?}");
        }
    }

    #[test]
    fn clamps_promote_bounds_and_propagate_nan() {
        let x = t(&[3], &[1i32, 5, 9]);
        let r = call("aten::clamp.out", &[a(&x), int(2), Arg::None], out(Int, &[3])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[2, 5, 9]);
        let r = call("aten::clamp.out", &[a(&x), Arg::Double(1.5), int(6)], out(Float, &[3])).unwrap();
        near(&r, &[1.5, 5.0, 6.0]);
        let r = call("aten::clamp.out", &[a(&t(&[2], &[0u8, 200])), int(-1), int(1000)], out(Byte, &[2]))
            .unwrap();
        assert_eq!(r.storage::<u8>().unwrap(), &[0, 200]);
        let high = t(&[1], &[4i64]);
        let (nan, y) = (t(&[2], &[f32::NAN, 0.0]), t(&[2], &[1.0f32, 1.0]));
        for (name, args) in [
            ("aten::clamp.Tensor_out", vec![a(&y), a(&nan), Arg::None]),
            ("aten::clamp.Tensor_out", vec![a(&y), a(&nan), a(&y)]),
            ("aten::clamp.Tensor_out", vec![a(&y), Arg::None, a(&nan)]),
            ("aten::clamp_min.Tensor_out", vec![a(&y), a(&nan)]),
            ("aten::clamp_max.Tensor_out", vec![a(&y), a(&nan)]),
        ] {
            let r = call(name, &args, out(Float, &[2])).unwrap();
            let r = r.as_slice::<f32>().unwrap();
            assert!(r[0].is_nan() && !r[1].is_nan(), "{name}: {r:?}");
        }
        for (name, args) in [
            ("aten::clamp.out", vec![a(&y), Arg::Double(f64::NAN), Arg::None]),
            ("aten::clamp.out", vec![a(&y), Arg::Double(f64::NAN), int(3)]),
            ("aten::clamp.out", vec![a(&y), Arg::None, Arg::Double(f64::NAN)]),
            ("aten::clamp_min.out", vec![a(&y), Arg::Double(f64::NAN)]),
            ("aten::clamp_max.out", vec![a(&y), Arg::Double(f64::NAN)]),
            ("aten::hardtanh.out", vec![a(&y), Arg::Double(f64::NAN), int(3)]),
        ] {
            let r = call(name, &args, out(Float, &[2])).unwrap();
            assert!(r.as_slice::<f32>().unwrap().iter().all(|x| x.is_nan()), "{name}");
        }
        let r = call("aten::clamp.Tensor_out", &[a(&x), Arg::None, a(&high)], out(Long, &[3])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[1, 4, 4]);
        assert!(call("aten::clamp.out", &[a(&x)], out(Int, &[3])).is_err());
    }

    #[test]
    fn where_broadcasts_and_promotes() {
        let c = t(&[2, 1], &[Bool::from(true), false.into()]);
        let (x, y) = (t(&[2], &[1f32, f32::NAN]), s(pteron_tensor::f16::from_f32(7.0)));
        let r = call("aten::where.self_out", &[a(&c), a(&x), a(&y)], out(Float, &[2, 2])).unwrap();
        near(&r, &[1.0, f32::NAN, 7.0, 7.0]);
        let (i, big) = (t(&[1], &[i64::MAX]), t(&[1], &[i64::MAX - 1]));
        let r =
            call("aten::where.self_out", &[a(&t(&[1], &[2u8])), a(&i), a(&big)], out(Long, &[1])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[i64::MAX]);
        let r = call("aten::lerp.Scalar_out", &[a(&x), a(&x), Arg::Double(0.3)], out(Half, &[2]));
        assert_eq!(r.unwrap().storage::<pteron_tensor::f16>().unwrap()[0].to_f32(), 1.0);
    }
}
