//! Fuses attention, `softmax(q k + mask) v` in the forms that exporters write, into one node that reads queries, keys
//! and values through strided views and writes the heads of a query next to each other.

use super::rule::{MAX_CHAIN, Match, Pattern, any, call, node, reshaped, through_chain};
use crate::graph::{Graph, NodeId, ValueId, add_constant, meaning, single_user};
use crate::operation::{OpKind, as_op, producer_as};
use crate::ops::attention::Attention;
use crate::ops::cast::Cast;
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::Reshape;
use crate::strided::{View, scale_of};
use pteron_operator::{Instr, Meaning, Unary};
use pteron_tensor::{ScalarType, TensorMeta};
use smallvec::smallvec;
use std::sync::{Arc, LazyLock};

/// `softmax(q k + mask) v`, where the product of `q` and `k` may be scaled, the mask may be boolean, fully masked rows
/// may yield zeros, and every result may be rounded.
static ATTENTION: LazyLock<Pattern> = LazyLock::new(|| {
    let select = |condition, yes, no| call(|m| *m == Meaning::Where, [condition, yes, no]);
    let scaled = through_chain(is_scaling, node(is_batched_matmul, [any("q"), any("k")]).named("product"))
        .named("scaled");
    let selected = select(any("kept"), scaled.clone(), any("none")).named("masked").such_that(is_masked);
    let added = (scaled.clone() + any("mask")).named("masked");
    let added =
        added.such_that(|graph, matched| have_same_sizes(graph, [matched["scaled"], matched["masked"]]));
    // Rows are fully masked where not any(not (scores == -inf)), or max(scores) == -inf.
    let not = |x| call(|m| *m == Meaning::Not, [x]);
    let is_lowest = |x| call(|m| matches!(m, Meaning::Equals(n) if n.to_f64() == f64::NEG_INFINITY), [x]);
    let tested = reshaped(any("root")).named("tested");
    let any_of = |x| node(|graph, node| applies_to_rows(graph, node, Meaning::Any), [x]);
    let largest_of =
        |x| node(|graph, node| applies_to_rows(graph, node, |dim| Meaning::Amax(smallvec![dim])), [x]);
    let fully_masked = not(any_of(not(is_lowest(tested.clone())))) | is_lowest(largest_of(tested));
    let softmax = |scores| optionally_rounded(node(is_softmax, [scores]));
    let scores = optionally_rounded(selected | added | scaled).named("scores") & reshaped(any("root"));
    let safe = select(fully_masked, any("zeros"), softmax(scores.clone())).named("safe");
    let safe = safe.such_that(|graph, matched| {
        is_zeros(graph, matched["zeros"]) && have_same_sizes(graph, [matched["scores"], matched["tested"]])
    });
    let weights = (softmax(scores) | safe).named("weights");
    let weights = weights.such_that(|graph, matched| single_user(graph, matched["weights"]).is_some());
    node(is_batched_matmul, [reshaped(optionally_rounded(weights)).named("p"), any("v")])
});

/// Matches what `before` matches, with or without a rounding to half precision after it.
fn optionally_rounded(before: Pattern) -> Pattern {
    let to = |f| before.clone().unary(f);
    to(Unary::RoundToHalf) | to(Unary::RoundToBfloat16) | before
}

/// Rewrites every attention of a graph.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        if graph.contains(node) {
            fuse(graph, node);
        }
    }
}

/// Rewrites the attention that ends with this node, the product of weights and values.
fn fuse(graph: &mut Graph, node: NodeId) -> Option<()> {
    let matched = ATTENTION.find(graph, node)?;
    let (scores, product) = (matched["scores"], matched["product"]);
    let (factor, rounding) = scaling_factor(graph, matched["scaled"], product, rounding(graph, scores))?;
    let views =
        [View::of(graph, matched["q"])?, View::of(graph, matched["k"])?, View::of(graph, matched["v"])?];
    let condition = matched.value("kept");
    let mask = match (condition, matched.value("mask")) {
        (Some(condition), _) => Some(View::row_major(graph.meta(condition).sizes())),
        (None, Some(mask)) => Some(View::of(graph, mask)?),
        (None, None) => None,
    };
    let mask = match mask {
        Some(mask) => {
            Some(mask.expand(graph.meta(scores).sizes())?.reshape(graph.meta(matched["p"]).sizes())?)
        }
        None => None,
    };
    // In half precision, the result is rounded, too.
    let result = graph.node(node).outputs()[0];
    let result = if rounding.is_some() { rounded_by_only_user(graph, result)? } else { result };
    let (items, heads, out) = output_of_attention(graph, result);
    let mut inputs: Vec<ValueId> = views.iter().filter_map(|v| v.root).collect();
    inputs.extend(mask.as_ref().and_then(|m| m.root));
    let safe = matched.value("safe").is_some();
    let spec = Attention { views, mask, factor, safe, rounding, items, heads };
    spec.head_sizes()?;
    let (first, softmax) = (graph.producer(product)?, graph.producer(matched["weights"])?);
    let last = graph.producer(out)?;
    if let Some(condition) = condition {
        let select = graph.producer(matched["masked"])?;
        inputs.push(convert_to_additive_mask(graph, last, select, condition)?);
    }
    let read = graph.node(last).inputs().to_vec();
    for other in [node, softmax, first].into_iter().filter(|&other| other != last) {
        graph.absorb(last, other);
    }
    graph.rewrite(last, OpKind::arc(spec), &inputs);
    let producers: Vec<NodeId> = read.iter().filter_map(|&v| graph.producer(v)).collect();
    producers.into_iter().for_each(|node| graph.remove_dead(node));
    Some(())
}

/// Converts the boolean mask of a `where` node to an additive one: zero where it is true, negative infinity where it is
/// false.
fn convert_to_additive_mask(
    graph: &mut Graph,
    before: NodeId,
    select: NodeId,
    condition: ValueId,
) -> Option<ValueId> {
    let sizes = *graph.meta(condition).sizes();
    let (zero, none) = (0.0, f32::NEG_INFINITY);
    if let Some(known) = graph.view(condition) {
        let mask: Vec<f32> =
            known.bytes().iter().map(|&is_kept| if is_kept != 0 { zero } else { none }).collect();
        return add_constant(graph, &sizes, &mask);
    }
    let operands = [condition, add_constant(graph, &[], &[zero])?, add_constant(graph, &[], &[none])?];
    let meta = TensorMeta::contiguous(ScalarType::Float, &sizes).ok()?;
    let kind = Arc::clone(graph.node(select).kind());
    let node = graph.insert_before(before, kind, &operands, [meta]);
    Some(graph.node(node).outputs()[0])
}

/// The rounding to half precision that a value results from, if the elementwise node that defines it does nothing else.
fn rounding(graph: &Graph, v: ValueId) -> Option<Unary> {
    let (_, Pointwise(expression)) = producer_as(graph, v)?;
    match expression.instrs.as_slice() {
        &[Instr::Input(0), Instr::Unary(to @ (Unary::RoundToHalf | Unary::RoundToBfloat16), 0)] => Some(to),
        _ => None,
    }
}

/// Whether a node is a batched matrix multiplication whose sizes match.
fn is_batched_matmul(graph: &Graph, node: NodeId) -> bool {
    let (&[a, b], &[out]) = (graph.node(node).inputs(), graph.node(node).outputs()) else { return false };
    let size = |v: ValueId| graph.meta(v).sizes();
    meaning(graph, node) == Some(Meaning::BatchMatMul)
        && [a, b, out].into_iter().all(|v| is_row_major(graph, v) && graph.meta(v).rank() == 3)
        && **size(out) == [size(a)[0], size(a)[1], size(b)[2]]
        && size(a)[0] == size(b)[0]
        && size(a)[2] == size(b)[1]
        && graph.meta(out).numel() > 0
}

/// Whether a node is a softmax along the last dimension.
fn is_softmax(graph: &Graph, node: NodeId) -> bool {
    let (&[x], &[out]) = (graph.node(node).inputs(), graph.node(node).outputs()) else { return false };
    applies_to_rows(graph, node, Meaning::Softmax)
        && graph.meta(x) == graph.meta(out)
        && is_row_major(graph, x)
}

/// Whether a node has this meaning along the last dimension of its operand.
fn applies_to_rows(graph: &Graph, node: NodeId, along: fn(usize) -> Meaning) -> bool {
    let rank = graph.node(node).inputs().first().map_or(0, |&x| graph.meta(x).rank());
    rank > 0 && meaning(graph, node) == Some(along(rank - 1))
}

fn is_row_major(graph: &Graph, v: ValueId) -> bool {
    graph.meta(v).dtype() == ScalarType::Float && graph.meta(v).dim_order().is_contiguous()
}

/// Whether all elements of a value are zero.
fn is_zeros(graph: &Graph, v: ValueId) -> bool {
    if let Some(constant) = graph.floats(v) {
        return constant.iter().all(|&x| x == 0.0);
    }
    let uncast = producer_as::<Cast>(graph, v).map_or(v, |(cast, _)| graph.node(cast).inputs()[0]);
    let filled = graph.producer(uncast).and_then(|node| meaning(graph, node));
    matches!(filled, Some(Meaning::Fill(number)) if number.to_f64() == 0.0)
}

/// Whether a `where` selects between scores and negative infinity by a boolean mask.
fn is_masked(graph: &Graph, matched: &Match) -> bool {
    let mask = graph.meta(matched["kept"]);
    mask.dtype() == ScalarType::Bool
        && mask.dim_order().is_contiguous()
        && mask.numel() > 0
        && have_same_sizes(graph, [matched["scaled"], matched["masked"]])
        && graph.floats(matched["none"]).is_some_and(|none| none.iter().all(|&n| n == f32::NEG_INFINITY))
}

fn have_same_sizes(graph: &Graph, [a, b]: [ValueId; 2]) -> bool {
    graph.meta(a).sizes() == graph.meta(b).sizes()
}

/// Whether a node reshapes, rounds or scales.
fn is_scaling(graph: &Graph, node: NodeId) -> bool {
    as_op::<Reshape>(graph, node).is_some()
        || graph.node(node).outputs().first().is_some_and(|&v| rounding(graph, v).is_some())
        || as_op(graph, node).is_some_and(|Pointwise(expression)| scale_of(expression).is_some())
}

/// The factor by which the nodes after `product`, up to `scaled`, multiply, and their rounding to half precision.
fn scaling_factor(
    graph: &Graph,
    scaled: ValueId,
    product: ValueId,
    mut rounded: Option<Unary>,
) -> Option<(f32, Option<Unary>)> {
    let (mut at, mut factor) = (scaled, 1.0);
    while at != product {
        let node = graph.producer(at)?;
        if let Some(to) = rounding(graph, at) {
            rounded = Some(to);
        } else if let Some(Pointwise(expression)) = as_op(graph, node) {
            // Each factor has its own rounding, and the step supports only one factor.
            (rounded.is_none() || factor == 1.0).then_some(())?;
            factor *= scale_of(expression)?;
        }
        at = *graph.node(node).inputs().first()?;
    }
    Some((factor, rounded))
}

/// The result of rounding a value to half precision; `None` if the value has any other use.
fn rounded_by_only_user(graph: &Graph, v: ValueId) -> Option<ValueId> {
    result_of_only_user(graph, v).filter(|&user| rounding(graph, user).is_some())
}

/// The items and heads of an attention, and the value to write: the result of a permutation that moves the heads of a
/// query together, if only view operations lie between `out` and it; otherwise `out`, with a single head.
fn output_of_attention(graph: &Graph, out: ValueId) -> (usize, usize, ValueId) {
    let sizes = graph.meta(out).sizes();
    let (batch, queries, values) = (sizes[0], sizes[1], sizes[2]);
    let mut at = out;
    for _ in 0..MAX_CHAIN {
        let Some(user) = result_of_only_user(graph, at) else { break };
        at = user;
        let Some(view) = View::of(graph, at) else { break };
        if view.root != Some(out) || view.factor != 1.0 || view.offset != 0 {
            break;
        }
        let parts = view.parts();
        let heads = match *parts.as_slice() {
            [(t, d), (h, td), (v, 1)]
                if (t, v, td) == (queries, values, queries * values) && d == values && h == batch =>
            {
                h
            }
            [(_, htd), (t, d), (h, td), (v, 1)]
                if (t, v, td) == (queries, values, queries * values) && d == values && htd == h * td =>
            {
                h
            }
            _ => continue,
        };
        return (batch / heads, heads, at);
    }
    (batch, 1, out)
}

/// The only output of the only user of a value; `None` unless the user has the value as its first input.
fn result_of_only_user(graph: &Graph, v: ValueId) -> Option<ValueId> {
    let user = graph.node(single_user(graph, v)?);
    (user.inputs()[0] == v && user.outputs().len() == 1).then(|| user.outputs()[0])
}
