//! Losses, for the evaluation of models that were exported together with their loss.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.cross_entropy_loss", Always, cross_entropy),
    ("aten.nll_loss", NoKernel, nll),
    ("aten.nll_loss2d", NoKernel, nll),
    ("aten.nll_loss_nd", NoKernel, nll),
    ("aten.nll_loss_forward", NoKernel, nll),
    ("aten.nll_loss2d_forward", NoKernel, nll),
    ("aten.mse_loss", NoKernel, mse),
    ("aten.l1_loss", NoKernel, l1),
    ("aten.smooth_l1_loss", NoKernel, smooth_l1),
    ("aten.huber_loss", NoKernel, huber),
    ("aten.kl_div", NoKernel, kl_div),
    ("aten.binary_cross_entropy", NoKernel, binary_cross_entropy),
    ("aten.binary_cross_entropy_with_logits", NoKernel, binary_cross_entropy_with_logits),
    ("aten.soft_margin_loss", NoKernel, soft_margin),
    ("aten.margin_ranking_loss", NoKernel, margin_ranking),
    ("aten.hinge_embedding_loss", NoKernel, hinge_embedding),
    ("aten.cosine_embedding_loss", NoKernel, cosine_embedding),
    ("aten.triplet_margin_loss", NoKernel, triplet_margin),
    ("aten.poisson_nll_loss", NoKernel, poisson_nll),
    ("aten.multi_margin_loss", NoKernel, multi_margin),
];

/// Applies the node's `reduction` to the losses of the elements: none, mean or sum.
fn reduce_loss(cx: &mut Rewriter<'_>, node: &ExportedNode, each: VarId) -> Result<Outcome> {
    let want = cx.result_spec(node)?.dtype;
    let each = cx.cast(each, want);
    let dims: Vec<usize> = (0..cx.spec_of(each).rank()).collect();
    let new = match cx.int(node, "reduction", 1)? {
        0 => each,
        1 if !dims.is_empty() => cx.reduce("aten.mean.dim", each, &dims, false),
        2 if !dims.is_empty() => cx.sum(each, &dims, false),
        _ => each,
    };
    cx.replace_node(node, new)
}

fn input_and_target(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, VarId)> {
    Ok((cx.tensor(node, "self")?, cx.tensor(node, "target")?))
}

fn mse(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, target) = input_and_target(cx, node)?;
    let way = cx.sub(x, target);
    let each = cx.mul(way, way);
    reduce_loss(cx, node, each)
}

fn abs_diff(cx: &mut Rewriter<'_>, a: VarId, b: VarId) -> VarId {
    let way = cx.sub(a, b);
    cx.unary("aten.abs.default", way)
}

fn l1(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, target) = input_and_target(cx, node)?;
    let each = abs_diff(cx, x, target);
    reduce_loss(cx, node, each)
}

/// The smooth L1 loss: quadratic below `beta`, linear above.
fn smooth_l1(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let ((x, target), beta) = (input_and_target(cx, node)?, cx.float(node, "beta", 1.0)?);
    let way = abs_diff(cx, x, target);
    if beta == 0.0 {
        return reduce_loss(cx, node, way);
    }
    let squares = cx.mul(way, way);
    let near = cx.mul(squares, 0.5 / beta);
    let far = cx.sub(way, 0.5 * beta);
    let is_near = cx.compare("aten.lt.Scalar", way, beta);
    let each = cx.choose(is_near, near, far);
    reduce_loss(cx, node, each)
}

fn huber(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let ((x, target), delta) = (input_and_target(cx, node)?, cx.float(node, "delta", 1.0)?);
    let way = abs_diff(cx, x, target);
    let squares = cx.mul(way, way);
    let near = cx.mul(squares, 0.5);
    let less = cx.sub(way, 0.5 * delta);
    let far = cx.mul(less, delta);
    let is_near = cx.compare("aten.le.Scalar", way, delta);
    let each = cx.choose(is_near, near, far);
    reduce_loss(cx, node, each)
}

/// `xlogy(target, target) - target * x`; with `log_target`, `e^target (target - x)`.
fn kl_div(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, target) = input_and_target(cx, node)?;
    let each = match cx.bool(node, "log_target", false)? {
        true => {
            let weight = cx.unary("aten.exp.default", target);
            let way = cx.sub(target, x);
            cx.mul(weight, way)
        }
        false => {
            let log = cx.unary("aten.log.default", target);
            let product = cx.mul(target, log);
            let none = cx.compare("aten.eq.Scalar", target, 0.0);
            let zero = cx.scalar(Scalar::Double(0.0), cx.spec_of(product).dtype)?;
            let entropy = cx.choose(none, zero, product);
            let cross = cx.mul(target, x);
            cx.sub(entropy, cross)
        }
    };
    reduce_loss(cx, node, each)
}

fn weigh_and_reduce(cx: &mut Rewriter<'_>, node: &ExportedNode, each: VarId) -> Result<Outcome> {
    let each = match cx.optional_tensor(node, "weight") {
        Some(weight) => cx.mul(each, weight),
        None => each,
    };
    reduce_loss(cx, node, each)
}

/// The binary cross entropy, with logarithms clamped to at least -100.
fn binary_cross_entropy(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, target) = input_and_target(cx, node)?;
    let bounded_log = |cx: &mut Rewriter<'_>, v: VarId| {
        let log = cx.unary("aten.log.default", v);
        cx.clamp(log, Some(-100.0), None)
    };
    let rest = one_minus(cx, x);
    let (log, log_rest) = (bounded_log(cx, x), bounded_log(cx, rest));
    let less = cx.sub(target, 1.0);
    let negative = cx.mul(less, log_rest);
    let positive = cx.mul(target, log);
    let each = cx.sub(negative, positive);
    weigh_and_reduce(cx, node, each)
}

fn one_minus(cx: &mut Rewriter<'_>, x: VarId) -> VarId {
    let down = cx.unary("aten.neg.default", x);
    cx.add(down, 1.0)
}

/// `log(1 + e^x)` without overflow.
fn softplus(cx: &mut Rewriter<'_>, x: VarId) -> VarId {
    let size = cx.unary("aten.abs.default", x);
    let down = cx.unary("aten.neg.default", size);
    let power = cx.unary("aten.exp.default", down);
    let log = cx.unary("aten.log1p.default", power);
    let positive = cx.unary("aten.relu.default", x);
    cx.add(positive, log)
}

fn binary_cross_entropy_with_logits(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, target) = input_and_target(cx, node)?;
    let rest = one_minus(cx, target);
    let wrong = cx.mul(rest, x);
    let down = cx.unary("aten.neg.default", x);
    let mut log = softplus(cx, down);
    if let Some(weight) = cx.optional_tensor(node, "pos_weight") {
        let less = cx.sub(weight, 1.0);
        let share = cx.mul(less, target);
        let factor = cx.add(share, 1.0);
        log = cx.mul(log, factor);
    }
    let each = cx.add(wrong, log);
    weigh_and_reduce(cx, node, each)
}

fn soft_margin(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, target) = input_and_target(cx, node)?;
    let product = cx.mul(x, target);
    let down = cx.unary("aten.neg.default", product);
    let power = cx.unary("aten.exp.default", down);
    let each = cx.unary("aten.log1p.default", power);
    reduce_loss(cx, node, each)
}

fn margin_ranking(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b, target) = (cx.tensor(node, "input1")?, cx.tensor(node, "input2")?, cx.tensor(node, "target")?);
    let margin = cx.float(node, "margin", 0.0)?;
    let way = cx.sub(b, a);
    let signed = cx.mul(way, target);
    let more = cx.add(signed, margin);
    let each = cx.clamp(more, Some(0.0), None);
    reduce_loss(cx, node, each)
}

fn hinge_embedding(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let ((x, target), margin) = (input_and_target(cx, node)?, cx.float(node, "margin", 1.0)?);
    let dtype = cx.spec_of(x).dtype;
    let down = cx.unary("aten.neg.default", x);
    let short = cx.add(down, margin);
    let hinge = cx.clamp(short, Some(0.0), None);
    let zero = cx.scalar(Scalar::Double(0.0), dtype)?;
    let is_same = cx.compare("aten.eq.Scalar", target, 1);
    let is_other = cx.compare("aten.eq.Scalar", target, -1);
    let far = cx.choose(is_same, zero, hinge);
    let near = cx.choose(is_other, zero, x);
    let each = cx.add(far, near);
    reduce_loss(cx, node, each)
}

fn cosine_embedding(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b, target) = (cx.tensor(node, "input1")?, cx.tensor(node, "input2")?, cx.tensor(node, "target")?);
    let margin = cx.float(node, "margin", 0.0)?;
    let last = cx.spec_of(target).rank();
    let rank = cx.spec_of(a).rank();
    let dim = if last == 0 { rank.saturating_sub(1) } else { 1 };
    let length = |cx: &mut Rewriter<'_>, v: VarId| {
        let squares = cx.mul(v, v);
        let sum = cx.sum(squares, &[dim], false);
        cx.add(sum, 1e-12)
    };
    let product = cx.mul(a, b);
    let product = cx.sum(product, &[dim], false);
    let (la, lb) = (length(cx, a), length(cx, b));
    let lengths = cx.mul(la, lb);
    let lengths = cx.unary("aten.sqrt.default", lengths);
    let cosine = cx.div(product, lengths);
    let apart = one_minus(cx, cosine);
    let near = cx.sub(cosine, margin);
    let near = cx.clamp(near, Some(0.0), None);
    let dtype = cx.spec_of(cosine).dtype;
    let zero = cx.scalar(Scalar::Double(0.0), dtype)?;
    let is_same = cx.compare("aten.eq.Scalar", target, 1);
    let is_other = cx.compare("aten.eq.Scalar", target, -1);
    let positive = cx.choose(is_same, apart, zero);
    let negative = cx.choose(is_other, near, zero);
    let each = cx.add(positive, negative);
    reduce_loss(cx, node, each)
}

/// The p-norm of `a - b + eps` over the last dimension.
pub(super) fn distance(cx: &mut Rewriter<'_>, a: VarId, b: VarId, (p, eps, keep): (f64, f64, bool)) -> VarId {
    let way = cx.sub(a, b);
    let way = cx.add(way, eps);
    let last = cx.spec_of(way).rank().saturating_sub(1);
    super::reduce::vector_norm(cx, way, p, &[last], keep)
}

fn triplet_margin(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let [anchor, positive, negative] = ["anchor", "positive", "negative"].map(|name| cx.tensor(node, name));
    let (anchor, positive, negative) = (anchor?, positive?, negative?);
    let kind = (cx.float(node, "p", 2.0)?, cx.float(node, "eps", 1e-6)?, false);
    let near = distance(cx, anchor, positive, kind);
    let mut far = distance(cx, anchor, negative, kind);
    if cx.bool(node, "swap", false)? {
        let other = distance(cx, positive, negative, kind);
        far = cx.binary("aten.minimum.default", far, other);
    }
    let way = cx.sub(near, far);
    let margin = cx.float(node, "margin", 1.0)?;
    let more = cx.add(way, margin);
    let each = cx.clamp(more, Some(0.0), None);
    reduce_loss(cx, node, each)
}

fn poisson_nll(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, target) = (cx.tensor(node, "input")?, cx.tensor(node, "target")?);
    let eps = cx.float(node, "eps", 1e-8)?;
    let mut each = if cx.bool(node, "log_input", true)? {
        let rate = cx.unary("aten.exp.default", x);
        let product = cx.mul(target, x);
        cx.sub(rate, product)
    } else {
        let more = cx.add(x, eps);
        let log = cx.unary("aten.log.default", more);
        let product = cx.mul(target, log);
        cx.sub(x, product)
    };
    if cx.bool(node, "full", false)? {
        let log = cx.unary("aten.log.default", target);
        let product = cx.mul(target, log);
        let less = cx.sub(product, target);
        let circle = cx.mul(target, std::f64::consts::TAU);
        let half = cx.unary("aten.log.default", circle);
        let half = cx.mul(half, 0.5);
        let stirling = cx.add(less, half);
        let small = cx.compare("aten.le.Scalar", target, 1.0);
        let zero = cx.scalar(Scalar::Double(0.0), cx.spec_of(stirling).dtype)?;
        let term = cx.choose(small, zero, stirling);
        each = cx.add(each, term);
    }
    reduce_loss(cx, node, each)
}

/// The hinge loss of each class against the target class.
fn multi_margin(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, target) = input_and_target(cx, node)?;
    let x = if cx.spec_of(x).rank() == 0 { cx.view(node, x, vec![Size::Int(1)])? } else { x };
    let spec = cx.spec_of(x);
    let last = spec.rank() - 1;
    let (p, margin) = (cx.float(node, "p", 1.0)?, cx.float(node, "margin", 1.0)?);
    let mut column = spec.sizes.clone();
    column[last] = Size::Int(1);
    let target = cx.view(node, target, column)?;
    let right = cx.gather(x, last, target);
    let way = cx.sub(x, right);
    let more = cx.add(way, margin);
    let mut each = cx.clamp(more, Some(0.0), None);
    if p != 1.0 {
        each = cx.mul(each, each);
    }
    if let Some(weight) = cx.optional_tensor(node, "weight") {
        let sizes = cx.spec_of(target).sizes;
        let flat = cx.view(node, target, vec![cx.spec_of(target).numel()])?;
        let weights = cx.index_select(weight, 0, flat);
        let weights = cx.view(node, weights, sizes)?;
        each = cx.mul(each, weights);
    }
    let classes = cx.arange(node, &spec.sizes[last], ScalarType::Long)?;
    let is_right = cx.compare("aten.eq.Tensor", target, classes);
    let zero = cx.scalar(Scalar::Double(0.0), spec.dtype)?;
    let each = cx.choose(is_right, zero, each);
    let each = cx.reduce("aten.mean.dim", each, &[last], false);
    reduce_loss(cx, node, each)
}

/// Target classes and their weights; ignored targets have weight 0.
struct Targets {
    /// Class indices, all in bounds; the dimension of the classes has size 1.
    index: VarId,
    weights: VarId,
    is_ignored: VarId,
}

fn class_dim(spec: &TensorSpec) -> usize {
    usize::from(spec.rank() > 1)
}

fn class_targets(cx: &mut Rewriter<'_>, node: &ExportedNode, spec: &TensorSpec) -> Result<Targets> {
    let target = cx.tensor(node, "target")?;
    let ignored = cx.int(node, "ignore_index", -100)?;
    let dim = class_dim(spec);
    let mut sizes = spec.sizes.clone();
    sizes[dim] = Size::Int(1);
    let target = cx.cast(target, ScalarType::Long);
    let target = cx.view(node, target, sizes.clone())?;
    let is_ignored = cx.compare("aten.eq.Scalar", target, ignored);
    let first = cx.scalar(Scalar::Int(0), ScalarType::Long)?;
    let index = cx.choose(is_ignored, first, target);
    let weights = match cx.optional_tensor(node, "weight") {
        Some(weight) => {
            let flat = cx.view(node, index, vec![cx.spec_of(index).numel()])?;
            let chosen = cx.index_select(weight, 0, flat);
            cx.view(node, chosen, sizes)?
        }
        None => cx.full(node, sizes, Argument::Float(1.0), spec.dtype)?,
    };
    let zero = cx.scalar(Scalar::Double(0.0), spec.dtype)?;
    let weights = cx.choose(is_ignored, zero, weights);
    Ok(Targets { index, weights, is_ignored })
}

/// Reduces losses that were multiplied by `weights`: to their weighted mean, to their sum, or not at all.
fn reduce_weighted(cx: &mut Rewriter<'_>, node: &ExportedNode, each: VarId, weights: VarId) -> Result<VarId> {
    let dims: Vec<usize> = (0..cx.spec_of(each).rank()).collect();
    Ok(match cx.int(node, "reduction", 1)? {
        0 => {
            let want = cx.result_spec(node)?.sizes;
            cx.view(node, each, want)?
        }
        2 => cx.sum(each, &dims, false),
        _ => {
            let (sum, weight) = (cx.sum(each, &dims, false), cx.sum(weights, &dims, false));
            cx.div(sum, weight)
        }
    })
}

/// The negative log-probabilities of the target classes.
fn nll(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    if spec.rank() == 0 {
        return cx.fail(node, "it has no classes");
    }
    let targets = class_targets(cx, node, &spec)?;
    let each = nll_of_targets(cx, x, &targets)?;
    let new = reduce_weighted(cx, node, each, targets.weights)?;
    if let Some(&total) = node.outputs.get(1) {
        let dims: Vec<usize> = (0..spec.rank()).collect();
        let weight = cx.sum(targets.weights, &dims, false);
        cx.replace(total, weight);
    }
    cx.replace_node(node, new)
}

/// The weighted losses of the targets; 0 for ignored ones, also where the class in their place is impossible.
fn nll_of_targets(cx: &mut Rewriter<'_>, logs: VarId, targets: &Targets) -> Result<VarId> {
    let spec = cx.spec_of(logs);
    let chosen = cx.gather(logs, class_dim(&spec), targets.index);
    let zero = cx.scalar(Scalar::Double(0.0), spec.dtype)?;
    let chosen = cx.choose(targets.is_ignored, zero, chosen);
    let down = cx.unary("aten.neg.default", chosen);
    Ok(cx.mul(down, targets.weights))
}

fn cross_entropy(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, target) = input_and_target(cx, node)?;
    let (spec, smoothing) = (cx.spec(node, x)?, cx.float(node, "label_smoothing", 0.0)?);
    if spec.rank() == 0 {
        return cx.fail(node, "it has no classes");
    }
    let dim = class_dim(&spec);
    let Some(classes) = spec.sizes[dim].known().filter(|&c| c > 0) else {
        return cx.fail(node, "the number of its classes is not known");
    };
    let args = vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::Int(dim as i64)),
        ("half_to_float", Argument::Bool(false)),
    ];
    let logs =
        cx.emit("aten._log_softmax.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes.clone()));
    let mut by_class = vec![Size::Int(1); spec.rank()];
    by_class[dim] = Size::Int(classes);
    let weight = match cx.optional_tensor(node, "weight") {
        Some(weight) => Some(cx.view(node, weight, by_class)?),
        None => None,
    };
    let weigh = |cx: &mut Rewriter<'_>, v: VarId| match weight {
        Some(weight) => cx.mul(v, weight),
        None => v,
    };
    if cx.spec_of(target).dtype.is_floating() {
        let scaled = cx.mul(target, 1.0 - smoothing);
        let share = cx.add(scaled, smoothing / classes as f64);
        let product = cx.mul(logs, share);
        let product = weigh(cx, product);
        let down = cx.unary("aten.neg.default", product);
        let each = cx.sum(down, &[dim], false);
        return reduce_loss(cx, node, each);
    }
    let targets = class_targets(cx, node, &spec)?;
    let mut each = nll_of_targets(cx, logs, &targets)?;
    if smoothing > 0.0 {
        let smooth = weigh(cx, logs);
        let smooth = cx.sum(smooth, &[dim], true);
        let zero = cx.scalar(Scalar::Double(0.0), spec.dtype)?;
        let smooth = cx.choose(targets.is_ignored, zero, smooth);
        let smooth = cx.mul(smooth, -smoothing / classes as f64);
        let sharp = cx.mul(each, 1.0 - smoothing);
        each = cx.add(sharp, smooth);
    }
    let new = reduce_weighted(cx, node, each, targets.weights)?;
    cx.replace_node(node, new)
}
