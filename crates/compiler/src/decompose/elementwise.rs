//! Activations, arithmetic, comparisons and selection.

use super::Table;
use super::When::{Always, NoKernel};
use super::nodes;
use crate::Result;
use crate::clamp::{portable_clamp_args, saturate};
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, VarId};
use pteron_operator::formula;
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.relu6", Always, relu6),
    ("aten.silu", NoKernel, silu),
    ("aten.mish", NoKernel, mish),
    ("aten.hardswish", NoKernel, hardswish),
    ("aten.hardsigmoid", NoKernel, hardsigmoid),
    ("aten.softplus", NoKernel, softplus),
    ("aten.softsign", NoKernel, softsign),
    ("aten.log_sigmoid", NoKernel, log_sigmoid),
    ("aten.tanhshrink", NoKernel, tanhshrink),
    ("aten.hardshrink", NoKernel, hardshrink),
    ("aten.softshrink", NoKernel, softshrink),
    ("aten.threshold", NoKernel, threshold),
    ("aten.selu", NoKernel, selu),
    ("aten.celu", NoKernel, celu),
    ("aten.prelu", NoKernel, prelu),
    ("aten._prelu_kernel", NoKernel, prelu_kernel),
    ("aten.square", NoKernel, square),
    ("aten.rsub", NoKernel, rsub),
    ("aten.addcmul", NoKernel, addc),
    ("aten.addcdiv", NoKernel, addc),
    ("aten.lerp", NoKernel, lerp),
    ("aten.clamp_min", NoKernel, clamp_one_side),
    ("aten.clamp_max", NoKernel, clamp_one_side),
    ("aten.clip", Always, clip),
    ("aten.fix", Always, fix),
    ("aten.exp2", NoKernel, exp2),
    ("aten.erfc", NoKernel, erfc),
    ("aten.frac", NoKernel, frac),
    ("aten.isfinite", NoKernel, isfinite),
    ("aten.sgn", NoKernel, sgn),
    ("aten.xlogy", NoKernel, xlogy),
    ("aten.nan_to_num", NoKernel, nan_to_num),
    ("aten.logaddexp", NoKernel, logaddexp),
    ("aten.__or__", Always, or),
    ("aten.__and__", Always, and),
    ("aten.__xor__", Always, xor),
    ("aten.__lshift__", Always, shift_left),
    ("aten.__rshift__", Always, shift_right),
    ("aten.true_divide", Always, divide),
    ("aten.divide", Always, divide),
    ("aten.multiply", Always, multiply),
    ("aten.subtract", Always, subtract),
    ("aten.greater", Always, greater),
    ("aten.less", Always, less),
    ("aten.absolute", Always, absolute),
    ("aten.negative", Always, negative),
    ("aten.not_equal", Always, not_equal),
    ("aten.masked_fill", NoKernel, masked_fill),
    ("aten.where", NoKernel, select_where),
    ("aten.max", NoKernel, maximum),
    ("aten.min", NoKernel, minimum),
    ("aten.fmax", NoKernel, fmax_or_fmin),
    ("aten.fmin", NoKernel, fmax_or_fmin),
    ("aten.clamp", NoKernel, clamp),
    ("aten.hardtanh", NoKernel, hardtanh),
    ("aten.remainder", NoKernel, remainder),
    ("aten.arctan2", Always, arctan2),
    ("aten.hypot", NoKernel, hypot),
    ("aten.deg2rad", NoKernel, degrees),
    ("aten.rad2deg", NoKernel, degrees),
];

pub(super) fn self_operand(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<VarId> {
    match cx.optional_tensor(node, "self") {
        Some(x) => Ok(x),
        None => cx.tensor(node, "input"),
    }
}

/// Rewrites a call to another operator name with the same overload.
pub(super) fn rename_operator(cx: &mut Rewriter<'_>, node: &ExportedNode, target: &str) -> Result<Outcome> {
    let overload = node.target.rsplit_once('.').map_or("default", |(_, o)| o);
    let mut same = node.clone();
    same.target = format!("{target}.{overload}").into();
    cx.push_node(same);
    Ok(Outcome::Replaced)
}

macro_rules! renames {
    ($($rule:ident => $target:literal;)*) => {
        $(fn $rule(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
            rename_operator(cx, node, $target)
        })*
    };
}

renames! {
    or => "aten.bitwise_or";
    and => "aten.bitwise_and";
    xor => "aten.bitwise_xor";
    shift_left => "aten.bitwise_left_shift";
    shift_right => "aten.bitwise_right_shift";
    divide => "aten.div";
    multiply => "aten.mul";
    subtract => "aten.sub";
    greater => "aten.gt";
    less => "aten.lt";
    absolute => "aten.abs";
    negative => "aten.neg";
    not_equal => "aten.ne";
    clip => "aten.clamp";
    arctan2 => "aten.atan2";
    fix => "aten.trunc";
}

fn relu6(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    let args = vec![
        ("self", Argument::Var(x)),
        ("min_val", Argument::Float(0.0)),
        ("max_val", Argument::Float(6.0)),
    ];
    Ok(cx.retarget(node, "aten.hardtanh.default", args))
}

/// Computes an activation that is decomposed into several operators in f32 if the input has half precision, as
/// PyTorch's kernel does, and in the type of the result if the input has integers.
fn compute_widened(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    f: impl FnOnce(&mut Rewriter<'_>, VarId) -> Result<VarId>,
) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    let dtype = cx.spec(node, x)?.dtype;
    let is_half = matches!(dtype, ScalarType::Half | ScalarType::BFloat16);
    let want = cx.result_spec(node)?.dtype;
    let wide = match is_half {
        true => cx.cast(x, ScalarType::Float),
        false => cx.cast(x, want),
    };
    let y = f(cx, wide)?;
    let new = cx.cast(y, want);
    cx.replace_node(node, new)
}

/// Defines rules that replace an activation by the nodes of its formula.
macro_rules! formulas {
    ($($name:ident),*) => { $(
        fn $name(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
            compute_widened(cx, node, |cx, x| Ok(nodes::apply(cx, x, formula::$name)))
        }
    )* };
}

formulas!(silu, mish, hardswish, hardsigmoid, softsign, log_sigmoid, tanhshrink);

fn softplus(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (beta, threshold) = (cx.float(node, "beta", 1.0)?, cx.float(node, "threshold", 20.0)?);
    compute_widened(cx, node, |cx, x| {
        let scaled = if beta == 1.0 { x } else { cx.binary("aten.mul.Tensor", x, beta) };
        let log = nodes::apply(cx, scaled, formula::softplus);
        let soft = if beta == 1.0 { log } else { cx.binary("aten.div.Tensor", log, beta) };
        let linear = cx.compare("aten.gt.Scalar", scaled, threshold);
        Ok(cx.choose(linear, x, soft))
    })
}

fn zero_like(cx: &mut Rewriter<'_>, x: VarId) -> Result<VarId> {
    let dtype = cx.spec_of(x).dtype;
    cx.scalar(Scalar::Double(0.0), dtype)
}

fn hardshrink(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    let lambda = cx.float(node, "lambd", 0.5)?;
    let size = cx.unary("aten.abs.default", x);
    let inside = cx.compare("aten.le.Scalar", size, lambda);
    let zero = zero_like(cx, x)?;
    let new = cx.choose(inside, zero, x);
    cx.replace_node(node, new)
}

fn softshrink(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    let lambda = cx.float(node, "lambd", 0.5)?;
    let bounded = cx.clamp(x, Some(-lambda), Some(lambda));
    let new = cx.binary("aten.sub.Tensor", x, bounded);
    cx.replace_node(node, new)
}

fn threshold(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    let (threshold, value) = (cx.float(node, "threshold", 0.0)?, cx.float(node, "value", 0.0)?);
    let dtype = cx.spec(node, x)?.dtype;
    let below = cx.compare("aten.le.Scalar", x, threshold);
    let value = cx.scalar(Scalar::Double(value), dtype)?;
    let new = cx.choose(below, value, x);
    cx.replace_node(node, new)
}

fn elu(cx: &mut Rewriter<'_>, x: VarId, (alpha, scale, input_scale): (f64, f64, f64)) -> VarId {
    let spec = cx.spec_of(x);
    let args = vec![
        ("self", Argument::Var(x)),
        ("alpha", Argument::Float(alpha)),
        ("scale", Argument::Float(scale)),
        ("input_scale", Argument::Float(input_scale)),
    ];
    cx.emit("aten.elu.default", args, spec)
}

fn selu(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    let new = elu(cx, x, (1.673_263_242_354_377_2, 1.050_700_987_355_480_5, 1.0));
    cx.replace_node(node, new)
}

fn celu(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, alpha) = (self_operand(cx, node)?, cx.float(node, "alpha", 1.0)?);
    let new = elu(cx, x, (alpha, 1.0, 1.0 / alpha));
    cx.replace_node(node, new)
}

/// Reshapes the weights so that they broadcast along the channels, dimension 1.
fn prelu(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, weight) = (self_operand(cx, node)?, cx.tensor(node, "weight")?);
    let (spec, w) = (cx.spec(node, x)?, cx.spec(node, weight)?);
    let mut sizes = vec![1.into(); spec.rank().max(1)];
    if w.rank() == 1 && spec.rank() > 1 {
        sizes[1] = w.sizes[0].clone();
    }
    let weight = match (spec.rank(), w.rank()) {
        (0, _) => cx.view(node, weight, Vec::new())?,
        (1, 1) => weight,
        _ => cx.view(node, weight, sizes)?,
    };
    replace_with_prelu(cx, node, x, weight)
}

fn prelu_kernel(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, weight) = (self_operand(cx, node)?, cx.tensor(node, "weight")?);
    replace_with_prelu(cx, node, x, weight)
}

fn replace_with_prelu(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    weight: VarId,
) -> Result<Outcome> {
    let positive = cx.compare("aten.gt.Scalar", x, 0.0);
    let scaled = cx.binary("aten.mul.Tensor", weight, x);
    let new = cx.choose(positive, x, scaled);
    cx.replace_node(node, new)
}

fn square(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, want) = (self_operand(cx, node)?, cx.result_spec(node)?.dtype);
    let x = cx.cast(x, want);
    let new = cx.mul(x, x);
    cx.replace_node(node, new)
}

/// `other - alpha * self`.
fn rsub(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, alpha) = (self_operand(cx, node)?, node.arg("alpha").cloned().unwrap_or(Argument::Int(1)));
    match node.arg("other") {
        Some(&Argument::Var(other)) => {
            let args = vec![("self", Argument::Var(other)), ("other", Argument::Var(x)), ("alpha", alpha)];
            Ok(cx.retarget(node, "aten.sub.Tensor", args))
        }
        Some(Argument::Int(v)) => {
            let (v, want) = (*v, cx.result_spec(node)?.dtype);
            let down = cx.unary("aten.neg.default", x);
            let scaled = if alpha == Argument::Int(1) { down } else { scale(cx, down, &alpha) };
            let sum = cx.binary("aten.add.Tensor", scaled, v);
            let new = cx.cast(sum, want);
            cx.replace_node(node, new)
        }
        Some(Argument::Float(v)) => {
            let (v, want) = (*v, cx.result_spec(node)?.dtype);
            let x = cx.cast(x, want);
            let down = cx.unary("aten.neg.default", x);
            let scaled = if alpha == Argument::Int(1) { down } else { scale(cx, down, &alpha) };
            let new = cx.binary("aten.add.Tensor", scaled, v);
            cx.replace_node(node, new)
        }
        _ => cx.fail(node, "it has no `other`"),
    }
}

fn scale(cx: &mut Rewriter<'_>, x: VarId, by: &Argument) -> VarId {
    let spec = cx.spec_of(x);
    cx.emit("aten.mul.Tensor", vec![("self", Argument::Var(x)), ("other", by.clone())], spec)
}

/// `self + value * tensor1 (* or /) tensor2`.
fn addc(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b) = (cx.tensor(node, "tensor1")?, cx.tensor(node, "tensor2")?);
    let target = if node.target.starts_with("aten.addcmul") { "aten.mul.Tensor" } else { "aten.div.Tensor" };
    let term = cx.binary(target, a, b);
    let value = node.arg("value").cloned().unwrap_or(Argument::Int(1));
    let args = vec![
        ("self", Argument::Var(self_operand(cx, node)?)),
        ("other", Argument::Var(term)),
        ("alpha", value),
    ];
    Ok(cx.retarget(node, "aten.add.Tensor", args))
}

/// `self + weight * (end - self)`.
fn lerp(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, end) = (self_operand(cx, node)?, cx.tensor(node, "end")?);
    let way = cx.binary("aten.sub.Tensor", end, x);
    let part = match node.arg("weight") {
        Some(&Argument::Var(w)) => cx.binary("aten.mul.Tensor", way, w),
        Some(weight) => {
            let weight = weight.clone();
            scale(cx, way, &weight)
        }
        None => return cx.fail(node, "it has no `weight`"),
    };
    let new = cx.binary("aten.add.Tensor", x, part);
    cx.replace_node(node, new)
}

fn clamp_one_side(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let is_min = node.target.starts_with("aten.clamp_min");
    let name = if is_min { "min" } else { "max" };
    let x = Argument::Var(self_operand(cx, node)?);
    let Some(bound) = node.arg(name).cloned() else { return cx.fail(node, "it has no bound") };
    if bound.var().is_some_and(|v| cx.program.spec(v).is_some()) {
        let target = if is_min { "aten.maximum.default" } else { "aten.minimum.default" };
        return Ok(cx.retarget(node, target, vec![("self", x), ("other", bound)]));
    }
    Ok(cx.retarget(node, "aten.clamp.default", vec![("self", x), (name, bound)]))
}

fn exp2(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    compute_widened(cx, node, |cx, x| {
        let scaled = cx.binary("aten.mul.Tensor", x, std::f64::consts::LN_2);
        Ok(cx.unary("aten.exp.default", scaled))
    })
}

fn erfc(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    compute_widened(cx, node, |cx, x| {
        let erf = cx.unary("aten.erf.default", x);
        let down = cx.unary("aten.neg.default", erf);
        Ok(cx.binary("aten.add.Tensor", down, 1.0))
    })
}

fn frac(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    let truncated = cx.unary("aten.trunc.default", x);
    let new = cx.binary("aten.sub.Tensor", x, truncated);
    cx.replace_node(node, new)
}

/// `|x| < inf`, which is false for NaN.
fn isfinite(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    if !cx.spec(node, x)?.dtype.is_floating() {
        let sizes = cx.result_spec(node)?.sizes;
        let new = cx.full(node, sizes, Argument::Bool(true), ScalarType::Bool)?;
        return cx.replace_node(node, new);
    }
    let size = cx.unary("aten.abs.default", x);
    let new = cx.compare("aten.lt.Scalar", size, f64::INFINITY);
    cx.replace_node(node, new)
}

fn sgn(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    Ok(cx.retarget(node, "aten.sign.default", vec![("self", Argument::Var(x))]))
}

/// `x log(y)`, which is zero where `x` is, unless `y` is NaN. One of the operands may be a scalar.
fn xlogy(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let dtype = cx.result_spec(node)?.dtype;
    let mut operand = |name: &str| match node.arg(name) {
        Some(Argument::Var(v)) => Ok(cx.cast(*v, dtype)),
        Some(Argument::Int(v)) => cx.scalar(Scalar::Int(*v), dtype),
        Some(Argument::Float(v)) => cx.scalar(Scalar::Double(*v), dtype),
        Some(Argument::Bool(v)) => cx.scalar(Scalar::Bool(*v), dtype),
        _ => cx.fail(node, format!("`{name}` is no number that is known")),
    };
    let (x, y) = (operand("self")?, operand("other")?);
    let log = cx.unary("aten.log.default", y);
    let product = cx.binary("aten.mul.Tensor", x, log);
    let none = cx.compare("aten.eq.Scalar", x, 0.0);
    let defined = cx.compare("aten.eq.Tensor", y, y);
    let zero = cx.binary("aten.logical_and.default", none, defined);
    let nothing = zero_like(cx, product)?;
    let new = cx.choose(zero, nothing, product);
    cx.replace_node(node, new)
}

fn nan_to_num(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    let dtype = cx.spec(node, x)?.dtype;
    let most = match dtype {
        ScalarType::Half => 65504.0,
        ScalarType::BFloat16 => 3.389_531_389_251_535_5e38,
        ScalarType::Float => f64::from(f32::MAX),
        ScalarType::Double => f64::MAX,
        _ => return cx.replace_node(node, x),
    };
    let nan = cx.float(node, "nan", 0.0)?;
    let (high, low) = (cx.float(node, "posinf", most)?, cx.float(node, "neginf", -most)?);
    let mut value = x;
    for (test, replacement) in [(f64::INFINITY, high), (f64::NEG_INFINITY, low)] {
        let matches = cx.compare("aten.eq.Scalar", x, test);
        let number = cx.scalar(Scalar::Double(replacement), dtype)?;
        value = cx.choose(matches, number, value);
    }
    let is_nan = cx.compare("aten.ne.Tensor", x, x);
    let number = cx.scalar(Scalar::Double(nan), dtype)?;
    let new = cx.choose(is_nan, number, value);
    cx.replace_node(node, new)
}

fn logaddexp(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, y) = (self_operand(cx, node)?, cx.tensor(node, "other")?);
    let new = super::scan::log_add_exp(cx, x, y)?;
    cx.replace_node(node, new)
}

fn masked_fill(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, mask) = (self_operand(cx, node)?, cx.tensor(node, "mask")?);
    let dtype = cx.spec(node, x)?.dtype;
    let value = match node.arg("value") {
        Some(&Argument::Var(v)) if cx.program.spec(v).is_some() => cx.cast(v, dtype),
        Some(Argument::Float(v)) => cx.scalar(Scalar::Double(*v), dtype)?,
        Some(Argument::Int(v)) => cx.scalar(Scalar::Int(*v), dtype)?,
        Some(Argument::Bool(v)) => cx.scalar(Scalar::Bool(*v), dtype)?,
        _ => return cx.fail(node, "its value is not known"),
    };
    let new = cx.choose(mask, value, x);
    cx.replace_node(node, new)
}

/// `where` with scalar operands, or with tensors of different types.
fn select_where(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if node.arg("self").is_none() {
        return super::dynamic::coordinates(cx, node);
    }
    let (Some(condition), Some(a), Some(b)) =
        (cx.optional_tensor(node, "condition"), node.arg("self").cloned(), node.arg("other").cloned())
    else {
        return Ok(Outcome::Kept);
    };
    let dtype = cx.result_spec(node)?.dtype;
    let has_type =
        |arg: &Argument| arg.var().and_then(|v| cx.program.spec(v)).is_some_and(|s| s.dtype == dtype);
    if has_type(&a) && has_type(&b) {
        return Ok(Outcome::Kept);
    }
    let mut tensor = |arg: Argument| match arg {
        Argument::Var(v) => Ok(cx.cast(v, dtype)),
        Argument::Float(v) => cx.scalar(Scalar::Double(v), dtype),
        Argument::Int(v) => cx.scalar(Scalar::Int(v), dtype),
        Argument::Bool(v) => cx.scalar(Scalar::Bool(v), dtype),
        _ => cx.fail(node, "it chooses among what is no number"),
    };
    let (a, b) = (tensor(a)?, tensor(b)?);
    let new = cx.choose(condition, a, b);
    cx.replace_node(node, new)
}

fn maximum_or_minimum(cx: &mut Rewriter<'_>, node: &ExportedNode, target: &'static str) -> Result<Outcome> {
    let (x, Some(other)) = (self_operand(cx, node)?, cx.optional_tensor(node, "other")) else {
        return Ok(Outcome::Kept);
    };
    let args = vec![("self", Argument::Var(x)), ("other", Argument::Var(other))];
    Ok(cx.retarget(node, target, args))
}

fn maximum(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    maximum_or_minimum(cx, node, "aten.maximum.default")
}

fn minimum(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    maximum_or_minimum(cx, node, "aten.minimum.default")
}

/// Like `maximum` or `minimum`, but a NaN loses against a number.
fn fmax_or_fmin(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, y, want) = (self_operand(cx, node)?, cx.tensor(node, "other")?, cx.result_spec(node)?);
    let target = match node.target.starts_with("aten.fmax") {
        true => "aten.maximum.default",
        false => "aten.minimum.default",
    };
    let (x, y) = (cx.cast(x, want.dtype), cx.cast(y, want.dtype));
    let mut new = cx.binary(target, x, y);
    if want.dtype.is_floating() {
        let (x_is_nan, y_is_nan) = (cx.nan_mask(x), cx.nan_mask(y));
        let of_x = cx.choose(y_is_nan, x, new);
        new = cx.choose(x_is_nan, y, of_x);
    }
    cx.replace_node(node, new)
}

/// `x - floor(x / y) y` for integers.
fn remainder(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (want, other) = (cx.result_spec(node)?, node.arg("other").cloned());
    let x = match node.arg("self") {
        Some(&Argument::Int(v)) => cx.scalar(Scalar::Int(v), want.dtype)?,
        Some(&Argument::Bool(v)) => cx.scalar(Scalar::Bool(v), want.dtype)?,
        _ => {
            let x = cx.tensor(node, "self")?;
            cx.cast(x, want.dtype)
        }
    };
    let (y, [divide, multiply]) = match (cx.optional_tensor(node, "other"), other) {
        (Some(y), _) => (Argument::Var(cx.cast(y, want.dtype)), ["aten.div.Tensor_mode", "aten.mul.Tensor"]),
        (None, Some(number)) => (number, ["aten.div.Scalar_mode", "aten.mul.Scalar"]),
        (None, None) => return cx.fail(node, "it has no divisor"),
    };
    let floor = Argument::Str("floor".into());
    let args = vec![("self", Argument::Var(x)), ("other", y.clone()), ("rounding_mode", floor)];
    let quotient = cx.emit(divide, args, want.clone());
    let multiple = cx.emit(multiply, vec![("self", Argument::Var(quotient)), ("other", y)], want);
    let new = cx.sub(x, multiple);
    cx.replace_node(node, new)
}

/// Bounds outside an integer type's range have no effect. If the lower bound is above the upper, the upper wins.
fn clamp(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let mut fresh = node.clone();
    fresh.args = portable_clamp_args(cx.program, node);
    if fresh.args == node.args {
        return Ok(Outcome::Kept);
    }
    cx.push_node(fresh);
    Ok(Outcome::Replaced)
}

/// Clamps integers to bounds that are cast to their type.
fn hardtanh(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = self_operand(cx, node)?;
    let dtype = cx.spec(node, x)?.dtype;
    if !dtype.is_integral() {
        return Ok(Outcome::Kept);
    }
    let (low, high) = (cx.float(node, "min_val", -1.0)?, cx.float(node, "max_val", 1.0)?);
    let bound = |value: f64| Argument::Int(saturate(value as i64, dtype));
    let args = vec![("self", Argument::Var(x)), ("min", bound(low)), ("max", bound(high))];
    Ok(cx.retarget(node, "aten.clamp.default", args))
}

fn hypot(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, y) = (self_operand(cx, node)?, cx.tensor(node, "other")?);
    let a = cx.binary("aten.mul.Tensor", x, x);
    let b = cx.binary("aten.mul.Tensor", y, y);
    let sum = cx.binary("aten.add.Tensor", a, b);
    let new = cx.unary("aten.sqrt.default", sum);
    cx.replace_node(node, new)
}

fn degrees(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let factor: f64 =
        if node.target.starts_with("aten.deg2rad") { 1f64.to_radians() } else { 1f64.to_degrees() };
    let x = self_operand(cx, node)?;
    let new = cx.binary("aten.mul.Tensor", x, factor);
    cx.replace_node(node, new)
}
