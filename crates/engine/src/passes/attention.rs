//! Fuses attention, `softmax(q k + mask) v` in the forms that exporters write, into one node that reads queries, keys
//! and values through strided views and writes the heads of a query next to each other.

use crate::graph::{Graph, NodeId, ValueId, argument, constant, meaning, single_user};
use crate::operation::{OpKind, as_op, producer_as};
use crate::ops::attention::Attention;
use crate::ops::cast::Cast;
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::Reshape;
use crate::strided::{View, scale_of};
use pteron_operator::{Binary, Expression, Instr, Meaning, Unary};
use pteron_tensor::{ScalarType, TensorMeta};
use std::sync::Arc;

/// The maximum number of nodes that are followed in a chain: a program may chain any number of reshapes.
const MAX_CHAIN: usize = 64;

/// Rewrites every attention of a graph.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        if !graph.contains(node) || meaning(graph, node) != Some(Meaning::BatchMatMul) {
            continue;
        }
        if let Some(found) = (Matcher { graph }).attention(node) {
            replace(graph, found);
        }
    }
}

/// A matched attention.
struct AttentionMatch {
    spec: Attention,
    inputs: Vec<ValueId>,
    /// The node that computes the result, which the attention replaces.
    last: NodeId,
    /// The nodes whose instructions the attention implements, in order.
    absorbed: Vec<NodeId>,
    /// The `where` node that applies a boolean mask to the scores. An additive mask, the last input, is created from
    /// it.
    select: Option<NodeId>,
}

fn replace(graph: &mut Graph, mut found: AttentionMatch) {
    if let Some(select) = found.select {
        let Some(mask) = additive_mask(graph, found.last, select) else { return };
        found.inputs.push(mask);
    }
    let read = graph.node(found.last).inputs().to_vec();
    for &node in found.absorbed.iter().rev().filter(|&&node| node != found.last) {
        graph.absorb(found.last, node);
    }
    graph.rewrite(found.last, OpKind::arc(found.spec), &found.inputs);
    let producers: Vec<NodeId> = read.iter().filter_map(|&v| graph.producer(v)).collect();
    producers.into_iter().for_each(|node| graph.remove_dead(node));
}

/// Converts a boolean mask to an additive one: zero where it is true, negative infinity where it is false.
fn additive_mask(graph: &mut Graph, before: NodeId, select: NodeId) -> Option<ValueId> {
    let kept = graph.node(select).inputs()[0];
    let sizes = *graph.meta(kept).sizes();
    let (zero, none) = (0.0, f32::NEG_INFINITY);
    if let Some(known) = graph.view(kept) {
        let mask: Vec<f32> = known.bytes().iter().map(|&kept| if kept != 0 { zero } else { none }).collect();
        return constant(graph, &sizes, &mask);
    }
    let operands = [kept, constant(graph, &[], &[zero])?, constant(graph, &[], &[none])?];
    let meta = TensorMeta::contiguous(ScalarType::Float, &sizes).ok()?;
    let kind = Arc::clone(graph.node(select).kind());
    let node = graph.insert_before(before, kind, &operands, [meta]);
    Some(graph.node(node).outputs()[0])
}

/// The operand of the softmax.
struct Scores {
    value: ValueId,
    /// Whether fully masked rows yield zeros.
    safe: bool,
}

/// The computation of scores: `product * factor + mask`, or `where(mask, product * factor, -inf)`, with every result
/// rounded if the program computes in half precision.
struct ScaledScores {
    product: ValueId,
    factor: f32,
    mask: Option<Mask>,
    rounding: Option<Unary>,
}

/// The mask of the scores.
#[derive(Clone, Copy)]
enum Mask {
    /// An additive mask.
    Additive(ValueId),
    /// A boolean mask, the first operand of this `where` node: scores are negative infinity where it is false.
    Boolean(NodeId),
}

/// The rounding to half precision that an expression applies to its input, if it computes nothing else.
fn rounding(expression: &Expression) -> Option<Unary> {
    match expression.instrs.as_slice() {
        &[Instr::Input(0), Instr::Unary(to @ (Unary::RoundToHalf | Unary::RoundToBfloat16), 0)] => Some(to),
        _ => None,
    }
}

struct Matcher<'g> {
    graph: &'g Graph,
}

impl<'g> Matcher<'g> {
    /// The first input of the node that defines a value.
    fn first_operand(&self, v: ValueId) -> Option<ValueId> {
        self.graph.node(self.graph.producer(v)?).inputs().first().copied()
    }

    fn expression(&self, v: ValueId) -> Option<&'g Expression> {
        producer_as::<Pointwise>(self.graph, v).map(|(_, p)| &p.0)
    }

    fn is_reshape(&self, v: ValueId) -> bool {
        producer_as::<Reshape>(self.graph, v).is_some()
    }

    /// The meaning of the call that defines a value, and the call's argument 0.
    fn meaning(&self, v: ValueId) -> Option<(Meaning, ValueId)> {
        let node = self.graph.producer(v)?;
        Some((meaning(self.graph, node)?, argument(self.graph, node, 0)?))
    }

    /// The value before a chain of reshapes.
    fn skip_reshapes(&self, mut v: ValueId) -> ValueId {
        for _ in 0..MAX_CHAIN {
            match self.first_operand(v).filter(|_| self.is_reshape(v)) {
                Some(before) => v = before,
                None => break,
            }
        }
        v
    }

    /// The value before it was rounded to half precision and the rounding; the value itself and `None` if it was not.
    fn skip_rounding(&self, v: ValueId) -> (ValueId, Option<Unary>) {
        let to = self.expression(v).and_then(rounding);
        match self.first_operand(v).filter(|_| to.is_some()) {
            Some(before) => (before, to),
            None => (v, None),
        }
    }

    /// The attention whose second product is this node.
    fn attention(&self, last: NodeId) -> Option<AttentionMatch> {
        let graph = self.graph;
        let [p, v] = self.product(last)?;
        let (weights, _) = self.skip_rounding(self.skip_reshapes(p));
        let scores = self.softmax(weights)?;
        let ScaledScores { product, factor, mask, rounding } = self.scores(scores.value)?;
        let first = graph.producer(product)?;
        let [q, k] = self.product(first)?;
        let views = [View::of(graph, q)?, View::of(graph, k)?, View::of(graph, v)?];
        let (sizes, flat) = (graph.meta(scores.value).sizes(), graph.meta(p).sizes());
        let (mask, select) = match mask {
            Some(Mask::Additive(mask)) => (Some(View::of(graph, mask)?), None),
            Some(Mask::Boolean(node)) => {
                let kept = graph.meta(graph.node(node).inputs()[0]);
                (Some(View::row_major(kept.sizes())), Some(node))
            }
            None => (None, None),
        };
        let mask = match mask {
            Some(mask) => Some(mask.expand(sizes)?.reshape(flat)?),
            None => None,
        };
        // In half precision, the result is rounded, too.
        let result = graph.node(last).outputs()[0];
        let result = if rounding.is_some() { self.only_user_rounds(result)? } else { result };
        let (items, heads, out) = self.output(result);
        let mut inputs: Vec<ValueId> = views.iter().filter_map(|v| v.root).collect();
        inputs.extend(mask.as_ref().and_then(|m| m.root));
        let spec = Attention { views, mask, factor, safe: scores.safe, rounding, items, heads };
        spec.head_sizes()?;
        let softmax = graph.producer(weights)?;
        let absorbed = vec![first, softmax, last];
        Some(AttentionMatch { spec, inputs, last: graph.producer(out)?, absorbed, select })
    }

    /// The operands of a batched matrix multiplication whose sizes match.
    fn product(&self, node: NodeId) -> Option<[ValueId; 2]> {
        let graph = self.graph;
        (meaning(graph, node)? == Meaning::BatchMatMul).then_some(())?;
        let (&[a, b], &[out]) = (graph.node(node).inputs(), graph.node(node).outputs()) else { return None };
        let plain = |v: ValueId| {
            let meta = graph.meta(v);
            meta.dtype() == ScalarType::Float && meta.dim_order().is_contiguous() && meta.rank() == 3
        };
        let size = |v: ValueId| graph.meta(v).sizes();
        let fits = argument(graph, node, 0) == Some(a)
            && argument(graph, node, 1) == Some(b)
            && [a, b, out].into_iter().all(plain)
            && **size(out) == [size(a)[0], size(a)[1], size(b)[2]]
            && size(a)[0] == size(b)[0]
            && size(a)[2] == size(b)[1]
            && graph.meta(out).numel() > 0;
        fits.then_some([a, b])
    }

    /// The scores of which a value is the softmax along the last dimension.
    fn softmax(&self, v: ValueId) -> Option<Scores> {
        single_user(self.graph, v)?;
        let node = self.graph.producer(v)?;
        if meaning(self.graph, node) == Some(Meaning::Where) {
            let &[none, zeros, softmax] = self.graph.node(node).inputs() else { return None };
            let value = self.plain_softmax(softmax)?;
            let safe = self.is_zeros(zeros) && self.is_fully_masked(none, value);
            return safe.then_some(Scores { value, safe: true });
        }
        Some(Scores { value: self.plain_softmax(v)?, safe: false })
    }

    fn plain_softmax(&self, v: ValueId) -> Option<ValueId> {
        let (v, _) = self.skip_rounding(v);
        let (Meaning::Softmax(dim), x) = self.meaning(v)? else { return None };
        let meta = self.graph.meta(x);
        let fits = dim + 1 == meta.rank() && meta == self.graph.meta(v);
        (fits && meta.dtype() == ScalarType::Float && meta.dim_order().is_contiguous()).then_some(x)
    }

    /// Whether all elements of a value are zero.
    fn is_zeros(&self, v: ValueId) -> bool {
        if let Some(constant) = self.graph.floats(v) {
            return constant.iter().all(|&x| x == 0.0);
        }
        let Some(node) = self.graph.producer(v) else { return false };
        if as_op::<Cast>(self.graph, node).is_some() {
            let before = self.graph.node(node).inputs()[0];
            return self.graph.producer(before).is_some_and(|node| self.fills_zeros(node));
        }
        self.fills_zeros(node)
    }

    fn fills_zeros(&self, node: NodeId) -> bool {
        matches!(meaning(self.graph, node), Some(Meaning::Fill(number)) if number.to_f64() == 0.0)
    }

    /// Whether a value is the mask of the rows of `scores` that are all negative infinity:
    /// `not any(not (scores == -inf))` or `max(scores) == -inf`.
    fn is_fully_masked(&self, v: ValueId, scores: ValueId) -> bool {
        let last = self.graph.meta(scores).rank().saturating_sub(1);
        let lowest = |m: &Meaning| matches!(m, Meaning::Equals(n) if n.to_f64() == f64::NEG_INFINITY);
        let largest = |m: &Meaning| matches!(m, Meaning::Amax(dims) if dims[..] == [last]);
        let spellings: [&[&dyn Fn(&Meaning) -> bool]; 2] = [
            &[&|m| *m == Meaning::Not, &|m| *m == Meaning::Any(last), &|m| *m == Meaning::Not, &lowest],
            &[&lowest, &largest],
        ];
        spellings.into_iter().any(|spelling| {
            let x = spelling.iter().try_fold(v, |v, step| {
                let (meaning, before) = self.meaning(v)?;
                step(&meaning).then_some(before)
            });
            x.is_some_and(|x| {
                self.skip_reshapes(x) == self.skip_reshapes(scores)
                    && self.graph.meta(x).sizes() == self.graph.meta(scores).sizes()
            })
        })
    }

    /// Matches the computation of scores.
    fn scores(&self, v: ValueId) -> Option<ScaledScores> {
        let (v, mut rounding) = self.skip_rounding(v);
        let (mut at, mut factor, mut mask) = (v, 1.0, None);
        for _ in 0..MAX_CHAIN {
            let node = self.graph.producer(at)?;
            if let Some(kept) = self.masked_operand(node).filter(|_| mask.is_none() && at == v) {
                (at, mask) = (kept, Some(Mask::Boolean(node)));
                continue;
            }
            if self.graph.node(node).call().is_some() {
                return self.product(node).map(|_| ScaledScores { product: at, factor, mask, rounding });
            }
            if self.is_reshape(at) {
                at = self.first_operand(at)?;
                continue;
            }
            let expression = self.expression(at)?;
            if *expression == Expression::binary(Binary::Add) && mask.is_none() && at == v {
                let &[a, b] = self.graph.node(node).inputs() else { return None };
                let scaled = |v: ValueId| {
                    self.graph.meta(v).sizes() == self.graph.meta(at).sizes() && self.leads_to_product(v)
                };
                let (product, other) = if scaled(a) { (a, b) } else { (b, a) };
                (at, mask) = (product, Some(Mask::Additive(other)));
            } else if let (before, Some(to)) = self.skip_rounding(at) {
                (at, rounding) = (before, Some(to));
            } else if rounding.is_some() && factor != 1.0 {
                // Each factor has its own rounding, and the step supports only one factor.
                return None;
            } else {
                factor *= scale_of(expression)?;
                at = self.first_operand(at)?;
            }
        }
        None
    }

    /// The operand `x` of `where(mask, x, -inf)`, if a node is that.
    fn masked_operand(&self, node: NodeId) -> Option<ValueId> {
        let graph = self.graph;
        let (&[kept, x, none], &[out]) = (graph.node(node).inputs(), graph.node(node).outputs()) else {
            return None;
        };
        let mask = graph.meta(kept);
        let fits = meaning(graph, node)? == Meaning::Where
            && mask.dtype() == ScalarType::Bool
            && mask.dim_order().is_contiguous()
            && mask.numel() > 0
            && graph.meta(x).sizes() == graph.meta(out).sizes()
            && graph.floats(none)?.iter().all(|&n| n == f32::NEG_INFINITY);
        fits.then_some(x)
    }

    /// The rounding of a value to half precision, if that is its only use.
    fn only_user_rounds(&self, v: ValueId) -> Option<ValueId> {
        let user = self.only_user(v)?;
        (self.skip_rounding(user).0 == v).then_some(user)
    }

    fn leads_to_product(&self, v: ValueId) -> bool {
        let mut at = v;
        for _ in 0..MAX_CHAIN {
            let Some(node) = self.graph.producer(at) else { return false };
            if !self.is_reshape(at) && self.expression(at).is_none_or(|e| e.inputs() != 1) {
                return self.product(node).is_some();
            }
            at = self.graph.node(node).inputs()[0];
        }
        false
    }

    /// The items and heads of an attention, and the value to write: the result of a permutation that moves the heads
    /// of a query together, if only view operations up to it follow.
    fn output(&self, out: ValueId) -> (usize, usize, ValueId) {
        let sizes = self.graph.meta(out).sizes();
        let (batch, queries, values) = (sizes[0], sizes[1], sizes[2]);
        let mut at = out;
        for _ in 0..MAX_CHAIN {
            let Some(user) = self.only_user(at) else { break };
            at = user;
            let Some(view) = View::of(self.graph, at) else { break };
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

    /// The result of the only user of a value, if the value is its first input and it has one output.
    fn only_user(&self, v: ValueId) -> Option<ValueId> {
        let user = self.graph.node(single_user(self.graph, v)?);
        (user.inputs()[0] == v && user.outputs().len() == 1).then(|| user.outputs()[0])
    }
}
