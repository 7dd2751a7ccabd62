//! Fuses chains of elementwise nodes into one node: one pass over memory instead of several.

use crate::graph::{Graph, NodeId, ValueId};
use crate::operation::{OpKind, as_op};
use crate::ops::pointwise::Pointwise;
use pteron_operator::{Expression, Instr};
use std::borrow::Cow;

/// The maximum number of instructions of a fused expression. Beyond it, another pass over memory costs less than more
/// registers.
const MAX_INSTRS: usize = 48;

/// Fuses every elementwise node with its producers as long as possible.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        while let Some((joined, producer)) = Elementwise::of(graph, node)
            .and_then(|elementwise| elementwise.with_any_producer(graph, node, MAX_INSTRS))
        {
            let Elementwise { expression, inputs } = joined;
            graph.rewrite(node, OpKind::arc(Pointwise(expression.into_owned())), &inputs);
            graph.absorb(node, producer);
            graph.remove(producer);
        }
    }
}

/// The expression of an elementwise node, and its inputs.
#[derive(Debug, Clone)]
pub(super) struct Elementwise<'g> {
    pub(super) expression: Cow<'g, Expression>,
    pub(super) inputs: Cow<'g, [ValueId]>,
}

impl<'g> Elementwise<'g> {
    /// The expression and inputs of a node, if it is elementwise.
    pub(super) fn of(graph: &'g Graph, node: NodeId) -> Option<Self> {
        let Pointwise(expression) = as_op(graph, node)?;
        let inputs = graph.node(node).inputs();
        Some(Self { expression: Cow::Borrowed(expression), inputs: Cow::Borrowed(inputs) })
    }

    /// Inlines the first producer of an input that is elementwise with the same sizes and layout, is used only by
    /// `node`, and keeps the expression within `longest` instructions. Returns the new expression and the producer.
    pub(super) fn with_any_producer(
        &self,
        graph: &Graph,
        node: NodeId,
        longest: usize,
    ) -> Option<(Elementwise<'static>, NodeId)> {
        self.inputs.iter().enumerate().find_map(|(slot, &v)| {
            let producer = graph.producer(v)?;
            let inner = Elementwise::of(graph, producer)?;
            let own = graph.node(producer).outputs().len() == 1 && self.uses_all(graph, node, v);
            let (from, to) = (graph.meta(v), graph.meta(graph.node(node).outputs()[0]));
            let whole = from.sizes() == to.sizes() && from.dim_order() == to.dim_order();
            let short = self.expression.instrs.len() + inner.expression.instrs.len() <= longest;
            (own && whole && short).then(|| (self.inlined(slot, &inner), producer))
        })
    }

    /// Whether every use of a value is by `node`, or by a producer that is inlined already.
    fn uses_all(&self, graph: &Graph, node: NodeId, v: ValueId) -> bool {
        let own = self.inputs.iter().filter(|u| **u == v).count();
        graph.uses(v).len() == own && graph.only_user(v).is_some_and(|user| user == node)
            || graph.uses(v).len() == 1 && !graph.is_live_out(v)
    }

    /// This expression with `inner` substituted for input `slot`.
    fn inlined(&self, slot: usize, inner: &Elementwise<'_>) -> Elementwise<'static> {
        let value = self.inputs[slot];
        let mut inputs = Vec::new();
        let mut place = |v| match inputs.iter().position(|u| *u == v) {
            Some(i) => i,
            None => {
                inputs.push(v);
                inputs.len() - 1
            }
        };
        let inner_places: Vec<usize> = inner.inputs.iter().map(|&v| place(v)).collect();
        let map: Vec<usize> =
            self.inputs.iter().map(|&v| if v == value { usize::MAX } else { place(v) }).collect();
        // Every use of the value reads the same register.
        let merged = self.expression.instrs.iter().map(|instr| match *instr {
            Instr::Input(n) if self.inputs[n] == value => Instr::Input(slot),
            other => other,
        });
        let merged = Expression { instrs: merged.collect() };
        let expression = merged.substitute(slot, &inner.expression, &inner_places, &map);
        Elementwise { expression: Cow::Owned(expression), inputs: Cow::Owned(inputs) }
    }
}
