//! Layer norms and RMS norms: rewrites calls, and fuses norms that are decomposed into means, squares and square roots.
//!
//! ```text
//! x ──► mean ──► x - mean = d ─────────────────────────► d * r [* weight [+ bias]]
//!                          └► d² ──► mean ──► + eps ──► rsqrt = r ┘
//! ```
//!
//! An RMS norm has `x` instead of `d`. The variance may be one operator, or one together with the mean; instead of the
//! multiplication by `r` there may be a division by the square root.

use super::join::Elementwise;
use crate::check::layouts_fit;
use crate::graph::{Graph, NodeId, ValueId, argument, meaning, single_user};
use crate::operation::{OpKind, as_op, producer_as};
use crate::ops::global_mean::GlobalMean;
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::Reshape;
use crate::ops::row_norm::RowNorm;
use pteron_ir::User;
use pteron_operator::facts::Dims;
use pteron_operator::{Binary, Expression, Instr, Meaning, Unary};
use pteron_tensor::ScalarType;
use std::sync::Arc;

/// The maximum number of instructions of a reciprocal square root.
const MAX_ROOT_INSTRS: usize = 8;

/// The maximum number of uses of a part's result: two by the square, one by the product, one by another difference.
const MAX_USES: usize = 4;

/// Rewrites all layer norms and RMS norms of a graph.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        if graph.contains(node) && rewrite_call(graph, node).is_none() {
            _ = rewrite_decomposed(graph, node);
        }
    }
}

/// Rewrites a call of a layer norm whose statistics are unused.
fn rewrite_call(graph: &mut Graph, node: NodeId) -> Option<()> {
    let Meaning::LayerNorm { elements, eps } = meaning(graph, node)? else { return None };
    let (x, weight, bias) = (argument(graph, node, 0)?, argument(graph, node, 2), argument(graph, node, 3));
    let (&out, statistics) = graph.node(node).outputs().split_first()?;
    let inputs: Vec<ValueId> = [Some(x), weight, bias].into_iter().flatten().collect();
    let floats = inputs.iter().chain([&out]).all(|&v| graph.meta(v).dtype() == ScalarType::Float);
    let whole = inputs[1..].iter().all(|&v| graph.meta(v).numel() == elements);
    let unused = statistics.iter().all(|&v| !graph.is_used(v));
    if !floats || !whole || !unused || graph.meta(x) != graph.meta(out) || graph.meta(x).numel() == 0 {
        return None;
    }
    let (weight, bias) = (weight.is_some(), bias.is_some());
    let norm = RowNorm { elements, eps: eps as f32, centred: true, weight, bias };
    rewrite(graph, node, norm, &inputs)?;
    graph.truncate_outputs(node, 1);
    Some(())
}

/// A norm that is decomposed into several operators.
struct DecomposedNorm {
    x: ValueId,
    centred: bool,
    eps: f32,
    /// The nodes that compute it, in any order, without the last.
    parts: Vec<NodeId>,
}

/// Rewrites a product or quotient that is the last node of a decomposed norm, together with the weight and bias that
/// follow.
fn rewrite_decomposed(graph: &mut Graph, node: NodeId) -> Option<()> {
    let (f, [a, b]) = binary(graph, node)?;
    let found = match f {
        Binary::Mul => {
            DecomposedNorm::of(graph, a, b, false).or_else(|| DecomposedNorm::of(graph, b, a, false))
        }
        Binary::Div => DecomposedNorm::of(graph, a, b, true),
        _ => None,
    }?;
    let DecomposedNorm { x, centred, eps, mut parts } = found;
    let out = graph.node(node).outputs()[0];
    if graph.meta(x) != graph.meta(out)
        || !parts.iter().all(|&part| is_used_within(graph, part, &parts, node))
    {
        return None;
    }
    let elements = row(graph, x, &parts)?;
    let (mut last, mut inputs) = (node, vec![x]);
    let mut norm = RowNorm { elements, eps, centred, weight: false, bias: false };
    if let Some((next, factor)) = apply_to_rows(graph, last, Binary::Mul, elements) {
        parts.push(last);
        (last, norm.weight) = (next, true);
        inputs.push(factor);
    }
    if let Some((next, term)) = apply_to_rows(graph, last, Binary::Add, elements).filter(|_| centred) {
        parts.push(last);
        (last, norm.bias) = (next, true);
        inputs.push(term);
    }
    rewrite(graph, last, norm, &inputs)?;
    parts.iter().for_each(|&part| graph.absorb(last, part));
    Some(())
}

/// Makes a node a norm, if its operands have the required layouts.
fn rewrite(graph: &mut Graph, node: NodeId, norm: RowNorm, inputs: &[ValueId]) -> Option<()> {
    let (kind, before) = (Arc::clone(graph.node(node).kind()), graph.node(node).inputs().to_vec());
    graph.rewrite(node, OpKind::arc(norm), inputs);
    if layouts_fit(graph, node) {
        return Some(());
    }
    graph.rewrite(node, kind, &before);
    None
}

impl DecomposedNorm {
    /// Matches `d * r`, or `d / r` with the square root itself if `divided`.
    fn of(graph: &Graph, d: ValueId, r: ValueId, divided: bool) -> Option<Self> {
        let mut parts = Vec::new();
        let (variance, eps) = root_of(graph, r, divided, &mut parts)?;
        let statistic = graph.producer(variance)?;
        parts.push(statistic);
        match Statistic::of(graph, statistic)? {
            Statistic { of, dims, variance: false } => {
                let (square, squared) = square(graph, of)?;
                parts.push(square);
                match (centre(graph, d, &dims), centre(graph, squared, &dims)) {
                    (Some(of), Some(same)) if of.x == same.x => {
                        parts.extend([of.parts, same.parts].concat());
                        Some(Self { x: of.x, centred: true, eps, parts })
                    }
                    _ if d == squared => Some(Self { x: d, centred: false, eps, parts }),
                    _ => None,
                }
            }
            Statistic { of, dims, .. } => {
                let centre = centre(graph, d, &dims).filter(|centre| centre.x == of)?;
                let is_variance = graph.node(statistic).outputs().first() == Some(&variance);
                parts.extend(centre.parts);
                is_variance.then_some(Self { x: of, centred: true, eps, parts })
            }
        }
    }
}

/// A node that computes a mean, or a variance and possibly a mean.
struct Statistic {
    of: ValueId,
    dims: Dims,
    variance: bool,
}

impl Statistic {
    fn of(graph: &Graph, node: NodeId) -> Option<Self> {
        if as_op::<GlobalMean>(graph, node).is_some() {
            let of = graph.node(node).inputs()[0];
            return Some(Self { of, dims: (2..graph.meta(of).rank()).collect(), variance: false });
        }
        let (mut dims, variance) = match meaning(graph, node)? {
            Meaning::Mean(dims) => (dims, false),
            Meaning::Variance(dims) => (dims, true),
            _ => return None,
        };
        dims.sort_unstable();
        Some(Self { of: argument(graph, node, 0)?, dims, variance })
    }
}

/// A match of `x - mean(x)`: `x` and the nodes that compute it.
struct Centered {
    x: ValueId,
    parts: [NodeId; 2],
}

fn centre(graph: &Graph, d: ValueId, dims: &Dims) -> Option<Centered> {
    let difference = graph.producer(d)?;
    let (Binary::Sub, [x, mean]) = binary(graph, difference)? else { return None };
    let statistic = graph.producer(mean)?;
    let Statistic { of, dims: over, variance } = Statistic::of(graph, statistic)?;
    let is_mean = graph.node(statistic).outputs().get(usize::from(variance)) == Some(&mean);
    (is_mean && of == x && over == *dims).then_some(Centered { x, parts: [difference, statistic] })
}

/// The node that computes a value as a square, and its operand.
fn square(graph: &Graph, value: ValueId) -> Option<(NodeId, ValueId)> {
    let (node, Pointwise(expression)) = producer_as::<Pointwise>(graph, value)?;
    let inputs = graph.node(node).inputs();
    match expression.instrs[..] {
        [Instr::Input(0), Instr::Unary(Unary::Square, 0)]
        | [Instr::Input(0), Instr::Binary(Binary::Mul, 0, 0)] => Some((node, inputs[0])),
        [Instr::Input(0), Instr::Input(1), Instr::Binary(Binary::Mul, 0, 1)] if inputs[0] == inputs[1] => {
            Some((node, inputs[0]))
        }
        _ => None,
    }
}

/// Matches `1 / sqrt(variance + eps)`, or the square root itself if `divided`. Returns the variance and `eps`, and adds
/// the nodes that compute it to `parts`.
fn root_of(graph: &Graph, r: ValueId, divided: bool, parts: &mut Vec<NodeId>) -> Option<(ValueId, f32)> {
    let node = graph.producer(r)?;
    let mut at = Elementwise::of(graph, node)?;
    parts.push(node);
    while let Some((wider, producer)) = at.with_any_producer(graph, node, MAX_ROOT_INSTRS) {
        at = wider;
        parts.push(producer);
    }
    let numbers: Vec<Option<f32>> = at.inputs.iter().map(|&v| number(graph, v)).collect();
    let slot = numbers.iter().position(Option::is_none)?;
    let others = numbers.iter().enumerate().all(|(i, number)| i == slot || number.is_some());
    let eps = epsilon(&at.expression, divided, |i| numbers[i])?;
    others.then_some((at.inputs[slot], eps))
}

/// The element of a constant with one element, whatever its sizes.
fn number(graph: &Graph, value: ValueId) -> Option<f32> {
    let value = match producer_as::<Reshape>(graph, value) {
        Some((reshape, _)) => graph.node(reshape).inputs()[0],
        None => value,
    };
    if let &[number] = graph.floats(value)? { Some(number) } else { None }
}

/// The `eps` of `sqrt(x + eps)` or of its reciprocal; `number` returns the inputs that are constants.
fn epsilon(e: &Expression, is_root: bool, number: impl Fn(usize) -> Option<f32>) -> Option<f32> {
    let at = |i: usize| match e.instrs[i] {
        Instr::Input(input) => number(input).map_or(Instr::Input(0), Instr::Const),
        other => other,
    };
    let of = match (is_root, *e.instrs.last()?) {
        (true, Instr::Unary(Unary::Sqrt, of)) | (false, Instr::Unary(Unary::Rsqrt, of)) => of,
        (false, Instr::Unary(Unary::Reciprocal, root)) => match at(root) {
            Instr::Unary(Unary::Sqrt, of) => of,
            _ => return None,
        },
        (false, Instr::Binary(Binary::Div, one, root)) => match (at(one), at(root)) {
            (Instr::Const(1.0), Instr::Unary(Unary::Sqrt, of)) => of,
            _ => return None,
        },
        _ => return None,
    };
    match at(of) {
        Instr::Input(0) => Some(0.0),
        Instr::Binary(Binary::Add, a, b) => match (at(a), at(b)) {
            (Instr::Input(0), Instr::Const(eps)) | (Instr::Const(eps), Instr::Input(0)) => Some(eps),
            _ => None,
        },
        _ => None,
    }
}

/// The function and operands of a node that is a single binary function.
fn binary(graph: &Graph, node: NodeId) -> Option<(Binary, [ValueId; 2])> {
    let Pointwise(expression) = as_op(graph, node)?;
    let [Instr::Input(0), Instr::Input(1), Instr::Binary(f, a @ 0..=1, b @ 0..=1)] = expression.instrs[..]
    else {
        return None;
    };
    let inputs = graph.node(node).inputs();
    (a != b).then_some((f, [inputs[a], inputs[b]]))
}

/// Whether only the parts of a norm and its last node use the results of a part.
fn is_used_within(graph: &Graph, part: NodeId, parts: &[NodeId], last: NodeId) -> bool {
    let is_within = |used: &pteron_ir::Use| match used.user {
        User::Node(user) => user == last || parts.contains(&user),
        User::Terminator(_) => false,
    };
    graph.node(part).outputs().iter().all(|&v| {
        let uses = graph.uses(v);
        uses.len() <= MAX_USES && uses.iter().all(is_within)
    })
}

/// The number of elements of a row, if the statistics among the parts reduce the last dimensions and keep them with
/// size 1.
fn row(graph: &Graph, x: ValueId, parts: &[NodeId]) -> Option<usize> {
    let sizes = graph.meta(x).sizes();
    let mut elements = None;
    for &part in parts {
        let Some(Statistic { dims, .. }) = Statistic::of(graph, part) else { continue };
        let first = sizes.len().checked_sub(dims.len())?;
        let kept = sizes[..first].iter().copied().chain(dims.iter().map(|_| 1));
        let outputs = graph.node(part).outputs();
        let fits = dims.iter().copied().eq(first..sizes.len())
            && outputs.iter().all(|&v| graph.meta(v).sizes().iter().copied().eq(kept.clone()));
        elements = Some(sizes[first..].iter().product()).filter(|&n: &usize| fits && n > 0);
        elements?;
    }
    elements.filter(|_| graph.meta(x).numel() > 0)
}

/// The only user of a node's result, if it applies `f` to the result and a vector with one element for each element of
/// a row; and the vector.
fn apply_to_rows(graph: &Graph, node: NodeId, f: Binary, elements: usize) -> Option<(NodeId, ValueId)> {
    let out = graph.node(node).outputs()[0];
    let user = single_user(graph, out)?;
    let (g, [a, b]) = binary(graph, user)?;
    let other = if a == out { b } else { a };
    let (meta, sizes) = (graph.meta(other), graph.meta(out).sizes());
    let (mut left, mut aligned) = (elements, true);
    for (&have, &size) in meta.sizes().iter().rev().zip(sizes.iter().rev()) {
        aligned &= have == if left > 1 { size } else { 1 };
        left /= size.max(1);
    }
    let fits = f == g
        && aligned
        && meta.numel() == elements
        && graph.meta(graph.node(user).outputs()[0]) == graph.meta(out);
    fits.then_some((user, other))
}
