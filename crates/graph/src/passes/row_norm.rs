//! Norms of rows, layer norm and RMS norm: calls become nodes, and so does what programs spell out with means,
//! squares and square roots.
//!
//! ```text
//! x ──► mean ──► x - mean = d ─────────────────────────► d * r [* weight [+ bias]]
//!                          └► d² ──► mean ──► + eps ──► rsqrt = r ┘
//! ```
//!
//! An RMS norm has `x` in the place of `d`. The variance may be one operator, and so may it and the mean; the square
//! root may divide.

use super::join::Elementwise;
use crate::graph::{Graph, NodeId, ValueId, argument, meaning, single_user};
use crate::layouts::fit;
use crate::operation::{Fused, as_op, made_by};
use crate::steps::global_mean::GlobalMean;
use crate::steps::pointwise::Pointwise;
use crate::steps::relayout::Reshape;
use crate::steps::row_norm::RowNorm;
use ir::User;
use operator::facts::Dims;
use operator::{Binary, Expression, Instr, Meaning, Unary};
use std::sync::Arc;
use tensor::ScalarType;

/// Instructions of the longest spelling of a reciprocal square root.
const LONGEST: usize = 8;

/// Uses of a part's result, at most: by the square, twice, the product, and another difference.
const MOST_USES: usize = 4;

/// Rewrites the norms of rows of a graph.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        if graph.contains(node) && called(graph, node).is_none() {
            _ = spelled(graph, node);
        }
    }
}

/// Rewrites a call of a layer norm whose statistics have no user.
fn called(graph: &mut Graph, node: NodeId) -> Option<()> {
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

/// A norm that is spelled out.
struct Spelled {
    x: ValueId,
    centred: bool,
    eps: f32,
    /// What is computed for it, in any order.
    parts: Vec<NodeId>,
}

/// Rewrites a product, or a quotient, that is the last of a norm, with the weight and the bias behind it.
fn spelled(graph: &mut Graph, node: NodeId) -> Option<()> {
    let (f, [a, b]) = binary(graph, node)?;
    let found = match f {
        Binary::Mul => Spelled::of(graph, a, b, false).or_else(|| Spelled::of(graph, b, a, false)),
        Binary::Div => Spelled::of(graph, a, b, true),
        _ => None,
    }?;
    let Spelled { x, centred, eps, mut parts } = found;
    let out = graph.node(node).outputs()[0];
    if graph.meta(x) != graph.meta(out)
        || !parts.iter().all(|&part| is_used_within(graph, part, &parts, node))
    {
        return None;
    }
    let elements = row(graph, x, &parts)?;
    let (mut last, mut inputs) = (node, vec![x]);
    let mut norm = RowNorm { elements, eps, centred, weight: false, bias: false };
    if let Some((next, factor)) = applied(graph, last, Binary::Mul, elements) {
        parts.push(last);
        (last, norm.weight) = (next, true);
        inputs.push(factor);
    }
    if let Some((next, term)) = applied(graph, last, Binary::Add, elements).filter(|_| centred) {
        parts.push(last);
        (last, norm.bias) = (next, true);
        inputs.push(term);
    }
    rewrite(graph, last, norm, &inputs)?;
    parts.iter().for_each(|&part| graph.absorb(last, part));
    Some(())
}

/// Makes a node a norm, if its operands lie as that needs them.
fn rewrite(graph: &mut Graph, node: NodeId, norm: RowNorm, inputs: &[ValueId]) -> Option<()> {
    let (kind, before) = (Arc::clone(graph.node(node).kind()), graph.node(node).inputs().to_vec());
    graph.rewrite(node, Fused::kind(norm), inputs);
    if fit(graph, node) {
        return Some(());
    }
    graph.rewrite(node, kind, &before);
    None
}

impl Spelled {
    /// Of `d * r`, or of `d / s` where the quotient is divided by the root itself.
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

/// A mean, or a variance and maybe a mean.
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

/// What `x - mean(x)` is of, and the nodes that compute it.
struct Centre {
    x: ValueId,
    parts: [NodeId; 2],
}

fn centre(graph: &Graph, d: ValueId, dims: &Dims) -> Option<Centre> {
    let difference = graph.producer(d)?;
    let (Binary::Sub, [x, mean]) = binary(graph, difference)? else { return None };
    let statistic = graph.producer(mean)?;
    let Statistic { of, dims: over, variance } = Statistic::of(graph, statistic)?;
    let is_mean = graph.node(statistic).outputs().get(usize::from(variance)) == Some(&mean);
    (is_mean && of == x && over == *dims).then_some(Centre { x, parts: [difference, statistic] })
}

/// What a value is the square of, and the node.
fn square(graph: &Graph, value: ValueId) -> Option<(NodeId, ValueId)> {
    let (node, Pointwise(expression)) = made_by::<Pointwise>(graph, value)?;
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

/// Of `1 / sqrt(variance + eps)`, or of the root itself if something is divided by it: the variance and `eps`. `parts`
/// becomes what computes it, of the variance.
fn root_of(graph: &Graph, r: ValueId, divided: bool, parts: &mut Vec<NodeId>) -> Option<(ValueId, f32)> {
    let node = graph.producer(r)?;
    let mut at = Elementwise::of(graph, node)?;
    parts.push(node);
    while let Some((wider, producer)) = at.with_any_producer(graph, node, LONGEST) {
        at = wider;
        parts.push(producer);
    }
    let numbers: Vec<Option<f32>> = at.inputs.iter().map(|&v| number(graph, v)).collect();
    let slot = numbers.iter().position(Option::is_none)?;
    let others = numbers.iter().enumerate().all(|(i, number)| i == slot || number.is_some());
    let eps = epsilon(&at.expression, divided, |i| numbers[i])?;
    others.then_some((at.inputs[slot], eps))
}

/// The element of a constant that has but one, under whatever sizes.
fn number(graph: &Graph, value: ValueId) -> Option<f32> {
    let value = match made_by::<Reshape>(graph, value) {
        Some((reshape, _)) => graph.node(reshape).inputs()[0],
        None => value,
    };
    if let &[number] = graph.floats(value)? { Some(number) } else { None }
}

/// `eps` of `sqrt(x + eps)`, or of its reciprocal, where `number` gives inputs that are constants.
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

/// What a node does with two operands, if it is one function of them.
fn binary(graph: &Graph, node: NodeId) -> Option<(Binary, [ValueId; 2])> {
    let Pointwise(expression) = as_op(graph, node)?;
    let [Instr::Input(0), Instr::Input(1), Instr::Binary(f, a @ 0..=1, b @ 0..=1)] = expression.instrs[..]
    else {
        return None;
    };
    let inputs = graph.node(node).inputs();
    (a != b).then_some((f, [inputs[a], inputs[b]]))
}

/// Whether nothing but a norm's parts, and its last node, reads what a part computes.
fn is_used_within(graph: &Graph, part: NodeId, parts: &[NodeId], last: NodeId) -> bool {
    let is_within = |used: &ir::Use| match used.user {
        User::Node(user) => user == last || parts.contains(&user),
        User::Terminator(_) => false,
    };
    graph.node(part).outputs().iter().all(|&v| {
        let uses = graph.uses(v);
        uses.len() <= MOST_USES && uses.iter().all(is_within)
    })
}

/// The elements of a row, if what the statistics among the parts are of are the last dimensions, which stay with size 1.
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

/// The node that alone reads a node's result and does this with it and a vector of one element for each of a row.
fn applied(graph: &Graph, node: NodeId, f: Binary, elements: usize) -> Option<(NodeId, ValueId)> {
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
