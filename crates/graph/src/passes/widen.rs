//! Half precision: what computes in float16 or bfloat16 computes in f32, and results are rounded where something
//! else reads them. PyTorch rounds after every operator; here intermediate values keep more digits. What is rounded
//! by a call that a program makes for that, a conversion, is rounded. What leads to integers, such as the places of
//! the largest elements, is left alone: a digit more decides between elements that are equal once they are rounded.
//!
//! All other passes, and the compute core, know f32.

use super::twins::Twins;
use crate::cast::{is_half, widen, widened};
use crate::graph::{Constant, Graph, ValueId};
use crate::node::{Call, CallArg, Node, Op};
use operator::Results;
use std::collections::HashSet;
use std::sync::Arc;
use tensor::ScalarType;

/// Bytes of a constant of half precision up to which it is kept in f32. Larger weights stay as they are, and so do
/// the calls that read them: in f32 they take twice the memory, and the time that it takes to read it.
const LARGEST: usize = 8 << 20;

/// Bytes in f32 of all constants of a graph that are widened: a small file can name the same bytes many times.
const BUDGET: usize = 1 << 30;

/// Operators that move elements and change none. They are widened along with what they read: on their own they
/// move fewer bytes as they are.
const MOVES: &[&str] = &[
    "aten::alias_copy.out",
    "aten::as_strided_copy.out",
    "aten::cat.out",
    "aten::clone.out",
    "aten::constant_pad_nd.out",
    "aten::detach_copy.out",
    "aten::expand_copy.out",
    "aten::flip.out",
    "aten::lift_fresh_copy.out",
    "aten::permute_copy.out",
    "aten::pixel_shuffle.out",
    "aten::pixel_unshuffle.out",
    "aten::repeat.out",
    "aten::select_copy.int_out",
    "aten::slice_copy.Tensor_out",
    "aten::split_copy.Tensor_out",
    "aten::split_with_sizes_copy.out",
    "aten::squeeze_copy.dim_out",
    "aten::squeeze_copy.dims_out",
    "aten::stack.out",
    "aten::t_copy.out",
    "aten::transpose_copy.int_out",
    "aten::unbind_copy.int_out",
    "aten::unsqueeze_copy.out",
    "aten::view_copy.out",
    "dim_order_ops::_clone_dim_order.out",
];

/// Operators that look elements up in a table, which is not to be widened for a few of its rows.
const LOOKUPS: &[&str] =
    &["aten::embedding.out", "aten::gather.out", "aten::index.Tensor_out", "aten::index_select.out"];

/// Operators whose results depend on how elements are stored.
const BITS: &[&str] = &["aten::view_copy.dtype_out", "aten::view_as_real_copy.out"];

/// Widens calls, and converts where they meet others.
pub(super) fn run(graph: &mut Graph) {
    if !graph.values.iter().any(|v| is_half(v.meta.dtype())) {
        return;
    }
    let counts = graph.use_counts();
    let exact = leads_to_integers(graph, &counts);
    let mut pass = Pass { twins: Twins::new(graph, Op::Cast), large: HashSet::new(), budget: BUDGET };
    for node in std::mem::take(&mut graph.nodes) {
        let is_exact = node.outputs.iter().any(|v| exact.contains(v));
        if !is_exact && pass.is_widened(graph, &node, &counts) {
            pass.widen(graph, node);
        } else {
            pass.twins.keep(node);
        }
    }
    pass.twins.finish(graph);
}

/// The values of half precision of which integers are computed that are used.
fn leads_to_integers(graph: &Graph, counts: &[usize]) -> HashSet<ValueId> {
    let mut found = HashSet::new();
    for node in graph.nodes.iter().rev() {
        let leads = node.outputs.iter().any(|v| {
            let dtype = graph.meta(*v).dtype();
            let is_integer = !dtype.is_floating() && dtype != ScalarType::Bool && counts[v.0] > 0;
            is_integer || found.contains(v)
        });
        if leads {
            found.extend(node.inputs.iter().filter(|v| is_half(graph.meta(**v).dtype())));
        }
    }
    found
}

struct Pass {
    /// In f32.
    twins: Twins,
    /// Constants that are too large to be widened, and those moved.
    large: HashSet<ValueId>,
    /// What is left of [`BUDGET`].
    budget: usize,
}

impl Pass {
    fn is_widened(&mut self, graph: &Graph, node: &Node, counts: &[usize]) -> bool {
        let Op::Call(call) = &node.op else { return false };
        let name = call.name();
        let moves = MOVES.contains(&name);
        let known = (name.starts_with("aten::") || name.starts_with("dim_order_ops::"))
            && call.kernel.results() == Results::Elements
            && call.kernel.dtypes().contains(ScalarType::Float)
            && !LOOKUPS.contains(&name)
            && !BITS.contains(&name)
            && !names_a_type(call);
        let half = |&v: &ValueId| is_half(graph.meta(v).dtype());
        let is_constant = |v: &ValueId| graph.get(*v).constant.is_some();
        let fits = |v: &ValueId| {
            let dtype = graph.meta(*v).dtype();
            half(v) || dtype == ScalarType::Float || counts[v.0] == 0
        };
        let large = |v: &ValueId| {
            self.large.contains(v) || is_constant(v) && half(v) && graph.meta(*v).nbytes() > LARGEST
        };
        if node.inputs.iter().any(large) {
            if moves {
                self.large.extend(&node.outputs);
            }
            return false;
        }
        let new_constants =
            node.inputs.iter().filter(|v| is_constant(v) && half(v) && self.twins.get(**v).is_none());
        let wide: usize = new_constants.map(|v| 2 * graph.meta(*v).nbytes()).sum();
        known
            && wide <= self.budget
            && node.inputs.iter().any(half)
            && node.outputs.iter().all(fits)
            && (!moves
                || node.inputs.iter().any(|v| self.twins.get(*v).is_some())
                || node.inputs.iter().all(is_constant))
    }

    fn widen(&mut self, graph: &mut Graph, mut node: Node) {
        if let Op::Call(call) = &mut node.op {
            call.prepared = None;
        }
        for i in 0..node.inputs.len() {
            node.inputs[i] = self.twin(graph, node.inputs[i]);
        }
        for v in &mut node.outputs {
            if is_half(graph.meta(*v).dtype())
                && let Some(meta) = widened(graph.meta(*v))
            {
                self.twins.write(graph, v, meta);
            } else {
                self.twins.written([&*v]);
            }
        }
        self.twins.push(node);
    }

    /// The value in f32.
    fn twin(&mut self, graph: &mut Graph, v: ValueId) -> ValueId {
        let meta = graph.meta(v);
        if !is_half(meta.dtype()) {
            return v;
        }
        if let Some(twin) = self.twins.get(v) {
            return twin;
        }
        let Some(meta) = widened(meta) else { return v };
        match graph.get(v).view().as_ref().and_then(widen) {
            Some(wide) => {
                self.budget = self.budget.saturating_sub(wide.bytes().len());
                let twin = graph.constant(meta, Constant::Computed(Arc::new(wide)));
                self.twins.set(v, twin);
                twin
            }
            None => self.twins.convert(graph, v, meta),
        }
    }
}

/// Whether a call says in which type it computes.
fn names_a_type(call: &Call) -> bool {
    let named = call.kernel.schema().args.iter().zip(&call.args);
    named.into_iter().any(|(declared, arg)| &*declared.name == "dtype" && !matches!(arg, CallArg::None))
}
