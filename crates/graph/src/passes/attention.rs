//! Attention: `softmax(q k + mask) v`, however a program spells it, becomes one node that reads queries,
//! keys and values where they are and writes the heads of a query side by side.

use super::links::Links;
use crate::attention::AttentionStep;
use crate::graph::{Graph, ValueId};
use crate::node::{Attention, Call, Node, Op};
use crate::pointwise::{Instr, Program};
use crate::strided::View;
use kernels::compute::{Binary, Isa, Unary};
use tensor::ScalarType;

const PRODUCT: &str = "aten::bmm.out";

/// Rewrites every attention of a graph.
pub(super) fn run(graph: &mut Graph, isa: Isa) {
    let mut links = Links::of(graph);
    for i in 0..graph.nodes.len() {
        let product = graph.nodes[i].op.as_call().is_some_and(|c| c.name() == PRODUCT);
        let found = product.then(|| Finder { graph, links: &links, isa }.attention(i)).flatten();
        if let Some((at, node)) = found {
            let inputs = graph.nodes[at].inputs.clone();
            links.replace(graph, at, node);
            links.remove_unused(graph, inputs);
        }
    }
    links.finish(graph);
}

/// Nodes that are looked at between two products: a program may chain any number of reshapes.
const LONGEST: usize = 64;

struct Finder<'g> {
    graph: &'g Graph,
    links: &'g Links,
    isa: Isa,
}

/// What a softmax is taken of.
struct Scores {
    value: ValueId,
    /// Whether rows that look at nothing give zeros.
    safe: bool,
}

/// What scores are: `product * factor + mask`, each result rounded where the program computes in half precision.
struct Product {
    product: ValueId,
    factor: f32,
    mask: Option<ValueId>,
    rounding: Option<Unary>,
}

/// What a program rounds its input to, if that is all that it does.
fn rounding(program: &Program) -> Option<Unary> {
    match program.instrs.as_slice() {
        &[Instr::Input(0), Instr::Unary(to @ (Unary::RoundToHalf | Unary::RoundToBfloat16), 0)] => Some(to),
        _ => None,
    }
}

impl<'g> Finder<'g> {
    fn producer(&self, v: ValueId) -> Option<&'g Node> {
        self.links.producer(v).map(|p| &self.graph.nodes[p])
    }

    fn view(&self, v: ValueId) -> Option<View> {
        View::of(self.graph, &|v| self.producer(v), v)
    }

    fn call(&self, v: ValueId, name: &str) -> Option<(&'g Node, &'g Call)> {
        let node = self.producer(v)?;
        node.op.as_call().filter(|c| c.name() == name).map(|c| (node, c))
    }

    /// The value that a chain of reshapes starts from.
    fn unshaped(&self, mut v: ValueId) -> ValueId {
        for _ in 0..LONGEST {
            let Some(Node { op: Op::Reshape, inputs, .. }) = self.producer(v) else { break };
            v = inputs[0];
        }
        v
    }

    /// What a value is before it is rounded to half precision, if that is how it is computed, and what rounds it.
    fn unrounded(&self, v: ValueId) -> (ValueId, Option<Unary>) {
        match self.producer(v) {
            Some(Node { op: Op::Pointwise(program), inputs, .. }) => match rounding(program) {
                Some(to) => (inputs[0], Some(to)),
                None => (v, None),
            },
            _ => (v, None),
        }
    }

    /// The attention whose last product is node `i`: the node that takes its place, and where.
    fn attention(&self, i: usize) -> Option<(usize, Node)> {
        let last = &self.graph.nodes[i];
        let [p, v] = self.product(last)?;
        let (weights, _) = self.unrounded(self.unshaped(p));
        let scores = self.softmax(weights)?;
        let Product { product, factor, mask, rounding } = self.scores(scores.value)?;
        let [q, k] = self.product(self.producer(product)?)?;
        let view = |v: ValueId| self.view(v);
        let views = [view(q)?, view(k)?, view(v)?];
        let (sizes, flat) = (self.graph.meta(scores.value).sizes(), self.graph.meta(p).sizes());
        let mask = match mask {
            Some(mask) => Some(view(mask)?.expand(sizes)?.reshape(flat)?),
            None => None,
        };
        // In half precision the result is rounded, too.
        let result = last.outputs[0];
        let result = if rounding.is_some() { self.only_user_rounds(result)? } else { result };
        let (items, heads, out) = self.output(result);
        let mut inputs: Vec<ValueId> = views.iter().map(|v| v.root).collect();
        inputs.extend(mask.as_ref().map(|m| m.root));
        let spec = Attention { views, mask, factor, safe: scores.safe, rounding, items, heads };
        AttentionStep::new(&spec, self.isa)?;
        let at = self.links.producer(out)?;
        let node = Node { op: Op::Attention(Box::new(spec)), inputs, outputs: vec![out] };
        Some((at, node))
    }

    /// The operands of a product of batches, of known sizes.
    fn product(&self, node: &Node) -> Option<[ValueId; 2]> {
        let call = node.op.as_call().filter(|c| c.name() == PRODUCT)?;
        let (&[a, b], &[out]) = (node.inputs.as_slice(), node.outputs.as_slice()) else { return None };
        let plain = |v: ValueId| {
            let meta = self.graph.meta(v);
            meta.dtype() == ScalarType::Float && meta.dim_order().is_contiguous() && meta.rank() == 3
        };
        let size = |v: ValueId| self.graph.meta(v).sizes();
        let fits = call.input_at(0) == Some(0)
            && call.input_at(1) == Some(1)
            && [a, b, out].into_iter().all(plain)
            && **size(out) == [size(a)[0], size(a)[1], size(b)[2]]
            && size(a)[0] == size(b)[0]
            && size(a)[2] == size(b)[1]
            && self.graph.meta(out).numel() > 0;
        fits.then_some([a, b])
    }

    /// What a value is the softmax of, along its last dimension.
    fn softmax(&self, v: ValueId) -> Option<Scores> {
        if self.links.count(v) != 1 {
            return None;
        }
        if let Some((node, call)) = self.call(v, "aten::where.self_out") {
            let &[none, zeros, softmax] = node.inputs.as_slice() else { return None };
            let value = self.plain_softmax(softmax)?;
            let tests = call.input_at(0) == Some(0) && call.input_at(2) == Some(2);
            let safe = tests && self.is_zeros(zeros) && self.sees_nothing(none, value);
            return safe.then_some(Scores { value, safe: true });
        }
        Some(Scores { value: self.plain_softmax(v)?, safe: false })
    }

    fn plain_softmax(&self, v: ValueId) -> Option<ValueId> {
        let (v, _) = self.unrounded(v);
        let (node, call) = self.call(v, "aten::_softmax.out")?;
        let x = *node.inputs.first()?;
        let (meta, rank) = (self.graph.meta(x), self.graph.meta(x).rank() as i64);
        let last = call.int(1).is_some_and(|d| d == -1 || d == rank - 1);
        let fits = last && rank > 0 && call.bool(2) != Some(true) && meta == self.graph.meta(v);
        (fits && meta.dtype() == ScalarType::Float && meta.dim_order().is_contiguous()).then_some(x)
    }

    /// Whether a value is nothing but zeros.
    fn is_zeros(&self, v: ValueId) -> bool {
        if let Some(constant) = self.graph.floats(v) {
            return constant.iter().all(|&x| x == 0.0);
        }
        if let Some(Node { op: Op::Cast, inputs, .. }) = self.producer(v) {
            return self.is_zeros(inputs[0]);
        }
        let zero = |c: &Call, position| c.scalar(position).is_some_and(|s| s.to_f64() == 0.0);
        match self.producer(v).and_then(|n| n.op.as_call()) {
            Some(c) if c.name() == "aten::full_like.out" => zero(c, 1),
            Some(c) if c.name() == "aten::full.out" => zero(c, 1),
            Some(c) => c.name() == "aten::zeros_like.out" || c.name() == "aten::zeros.out",
            None => false,
        }
    }

    /// Whether a value says which rows of `scores` are negative infinity throughout, as
    /// `not any(not (scores == -inf))`.
    fn sees_nothing(&self, v: ValueId, scores: ValueId) -> bool {
        let of = |v: ValueId, name: &str| self.call(v, name).map(|(n, c)| (n.inputs[0], c));
        let found = || {
            let (any, _) = of(v, "aten::logical_not.out")?;
            let (some, call) = of(any, "aten::any.out")?;
            let rank = self.graph.meta(scores).rank() as i64;
            let last = call.int(1).is_some_and(|d| d == -1 || d == rank - 1) && call.bool(2) == Some(true);
            let (equal, _) = of(some, "aten::logical_not.out")?;
            let (x, call) = of(equal, "aten::eq.Scalar_out")?;
            let infinite = call.scalar(1).is_some_and(|s| s.to_f64() == f64::NEG_INFINITY);
            let same = self.unshaped(x) == self.unshaped(scores)
                && self.graph.meta(x).sizes() == self.graph.meta(scores).sizes();
            Some(last && infinite && same)
        };
        found() == Some(true)
    }

    /// What scores are computed from.
    fn scores(&self, v: ValueId) -> Option<Product> {
        let (v, mut rounding) = self.unrounded(v);
        let (mut at, mut factor, mut mask) = (v, 1.0, None);
        for _ in 0..LONGEST {
            let node = self.producer(at)?;
            match &node.op {
                Op::Reshape => at = node.inputs[0],
                Op::Pointwise(p) if *p == Program::binary(Binary::Add) && mask.is_none() && at == v => {
                    let (a, b) = (node.inputs[0], *node.inputs.get(1)?);
                    let scaled = |v: ValueId| {
                        self.graph.meta(v).sizes() == self.graph.meta(at).sizes() && self.leads_to_product(v)
                    };
                    let (product, other) = if scaled(a) { (a, b) } else { (b, a) };
                    (at, mask) = (product, Some(other));
                }
                Op::Pointwise(p) => {
                    if let (before, Some(to)) = self.unrounded(at) {
                        (at, rounding) = (before, Some(to));
                        continue;
                    }
                    // Rounded once for each factor: of several, the first product is unknown to the step.
                    if rounding.is_some() && factor != 1.0 {
                        return None;
                    }
                    factor *= match p.instrs.as_slice() {
                        [Instr::Input(0), Instr::Const(c), Instr::Binary(Binary::Mul, 0, 1)] => *c,
                        [Instr::Input(0), Instr::Const(c), Instr::Binary(Binary::Div, 0, 1)] => 1.0 / *c,
                        _ => return None,
                    };
                    at = node.inputs[0];
                }
                Op::Call(_) => {
                    return self.product(node).map(|_| Product { product: at, factor, mask, rounding });
                }
                _ => return None,
            }
        }
        None
    }

    /// The rounded form of a value, if that is all that it is used for.
    fn only_user_rounds(&self, v: ValueId) -> Option<ValueId> {
        let user = self.only_user(v)?;
        (self.unrounded(user).0 == v).then_some(user)
    }

    fn leads_to_product(&self, v: ValueId) -> bool {
        let mut at = v;
        for _ in 0..LONGEST {
            let Some(node) = self.producer(at) else { break };
            match &node.op {
                Op::Reshape => at = node.inputs[0],
                Op::Pointwise(p) if p.inputs() == 1 => at = node.inputs[0],
                _ => return self.product(node).is_some(),
            }
        }
        false
    }

    /// The items and heads of an attention, and the value to write: if all that follows is a
    /// permutation that brings a query's heads together, its result.
    fn output(&self, out: ValueId) -> (usize, usize, ValueId) {
        let sizes = self.graph.meta(out).sizes();
        let (batch, queries, values) = (sizes[0], sizes[1], sizes[2]);
        let mut at = out;
        let mut found = (batch, 1, out);
        for _ in 0..LONGEST {
            let Some(user) = self.only_user(at) else { break };
            at = user;
            let Some(view) = self.view(at) else { break };
            if view.root != out || view.factor != 1.0 || view.offset != 0 {
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
            found = (batch / heads, heads, at);
            break;
        }
        found
    }

    /// The value that the only user of a value computes of it, if that is a view.
    fn only_user(&self, v: ValueId) -> Option<ValueId> {
        let user = &self.graph.nodes[self.links.only_user(v)?];
        (user.inputs[0] == v && user.outputs.len() == 1).then(|| user.outputs[0])
    }
}
