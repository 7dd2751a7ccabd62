//! Half precision: what computes in float16 or bfloat16 computes in f32, and every result is rounded to the numbers
//! of its type, in f32, as PyTorch rounds it. Whoever reads a result, a comparison, an index, a sum that cancels,
//! finds what PyTorch has; what overflows is infinite. Nothing is rounded where that changes nothing: what moves,
//! selects or bounds elements gives numbers of the type, and a conversion rounds by itself.
//!
//! Operators that are not known to compute in f32 and to round once stay calls in their own type.
//!
//! All other passes, and the compute core, know f32.

use super::twins::Twins;
use crate::cast::{is_half, widen, widened};
use crate::graph::{Constant, Graph, ValueId};
use crate::node::{Call, CallArg, Node, Op};
use crate::pointwise::Program;
use kernels::compute::Unary;
use operator::Results;
use std::collections::HashSet;
use std::sync::Arc;
use tensor::{ScalarType, bf16, f16};

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

/// Operators, other than those that move elements, whose results are elements of what they read, or numbers of
/// the same magnitude: nothing is left to round.
const EXACT: &[&str] = &[
    "aten::abs.out",
    "aten::amax.out",
    "aten::amin.out",
    "aten::max_pool2d_with_indices.out",
    "aten::maximum.out",
    "aten::minimum.out",
    "aten::neg.out",
    "aten::relu.out",
    "aten::upsample_nearest2d.vec_out",
    "aten::where.self_out",
];

/// The same, if the numbers that a call names are of the type of half precision.
const EXACT_WITH_NUMBERS: &[&str] = &[
    "aten::clamp.out",
    "aten::eq.Scalar_out",
    "aten::full_like.out",
    "aten::hardtanh.out",
    "aten::masked_fill.Scalar_out",
];

/// Operators that compute in f32 and round once.
const ROUNDED: &[&str] = &[
    "aten::_adaptive_avg_pool2d.out",
    "aten::_log_softmax.out",
    "aten::_native_batch_norm_legit_no_training.out",
    "aten::_softmax.out",
    "aten::add.Scalar_out",
    "aten::add.out",
    "aten::addmm.out",
    "aten::avg_pool2d.out",
    "aten::bmm.out",
    "aten::convolution.out",
    "aten::cos.out",
    "aten::div.Scalar_out",
    "aten::div.out",
    "aten::elu.out",
    "aten::erf.out",
    "aten::exp.out",
    "aten::gelu.out",
    "aten::hardsigmoid.out",
    "aten::hardswish.out",
    "aten::leaky_relu.out",
    "aten::linear.out",
    "aten::log.out",
    "aten::mean.out",
    "aten::mm.out",
    "aten::mul.Scalar_out",
    "aten::mul.out",
    "aten::native_group_norm.out",
    "aten::native_layer_norm.out",
    "aten::reciprocal.out",
    "aten::rsqrt.out",
    "aten::sigmoid.out",
    "aten::silu.out",
    "aten::sin.out",
    "aten::sqrt.out",
    "aten::sub.Scalar_out",
    "aten::sub.out",
    "aten::sum.IntList_out",
    "aten::tanh.out",
    "aten::upsample_bilinear2d.vec_out",
];

/// Widens calls, and converts where they meet others.
pub(super) fn run(graph: &mut Graph) {
    if !graph.values.iter().any(|v| is_half(v.meta.dtype())) {
        return;
    }
    let counts = graph.use_counts();
    let mut pass = Pass { twins: Twins::new(graph, Op::Cast), large: HashSet::new(), budget: BUDGET };
    for node in std::mem::take(&mut graph.nodes) {
        match pass.kind(graph, &node, &counts) {
            Some(kind) => pass.widen(graph, node, kind),
            None => pass.twins.keep(node),
        }
    }
    pass.twins.finish(graph);
    cast_once(graph);
}

/// Lets conversions to half precision, which round, read what is not rounded yet.
fn cast_once(graph: &mut Graph) {
    let producers = graph.producers();
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        if !matches!(node.op, Op::Cast) {
            continue;
        }
        let to = rounding(graph.meta(node.outputs[0]).dtype());
        if let Some(p) = producers[node.inputs[0].0]
            && let Op::Pointwise(program) = &graph.nodes[p].op
            && to.is_some_and(|to| *program == Program::unary(to))
        {
            graph.nodes[i].inputs[0] = graph.nodes[p].inputs[0];
        }
    }
    graph.drop_unused_nodes();
}

/// What a call is in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// What it reads is rounded, and so is what it gives.
    Exact,
    /// What it gives is to be rounded.
    Rounded,
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
    /// What a call is in f32, if it is to compute in f32.
    fn kind(&mut self, graph: &Graph, node: &Node, counts: &[usize]) -> Option<Kind> {
        let Op::Call(call) = &node.op else { return None };
        let half = |&v: &ValueId| is_half(graph.meta(v).dtype());
        let dtype =
            node.inputs.iter().chain(&node.outputs).find(|v| half(v)).map(|v| graph.meta(*v).dtype())?;
        let name = call.name();
        let moves = MOVES.contains(&name);
        let kind = match name {
            _ if moves || EXACT.contains(&name) => Kind::Exact,
            _ if EXACT_WITH_NUMBERS.contains(&name) => numbers_are_of(call, dtype).then_some(Kind::Exact)?,
            // The exponent is a number of the type.
            "aten::pow.Tensor_Scalar_out" => numbers_are_of(call, dtype).then_some(Kind::Rounded)?,
            _ if ROUNDED.contains(&name) => Kind::Rounded,
            _ => return None,
        };
        let known = call.kernel.results() == Results::Elements
            && call.kernel.dtypes().contains(ScalarType::Float)
            && !names_a_type(call);
        let is_constant = |v: &ValueId| graph.get(*v).constant.is_some();
        // Operands of two types are promoted, and one of f32 says that the result is.
        let same = |v: &ValueId| !half(v) || graph.meta(*v).dtype() == dtype;
        let reads = |v: &ValueId| same(v) && graph.meta(*v).dtype() != ScalarType::Float;
        let writes = |v: &ValueId| {
            same(v) && half(v) || graph.meta(*v).dtype() == ScalarType::Bool || counts[v.0] == 0
        };
        let large = |v: &ValueId| {
            self.large.contains(v) || is_constant(v) && half(v) && graph.meta(*v).nbytes() > LARGEST
        };
        if node.inputs.iter().any(large) {
            if moves {
                self.large.extend(&node.outputs);
            }
            return None;
        }
        let new_constants =
            node.inputs.iter().filter(|v| is_constant(v) && half(v) && self.twins.get(**v).is_none());
        let wide: usize = new_constants.map(|v| 2 * graph.meta(*v).nbytes()).sum();
        let widened = known
            && wide <= self.budget
            && node.inputs.iter().any(half)
            && node.inputs.iter().all(reads)
            && node.outputs.iter().all(writes)
            && (!moves
                || node.inputs.iter().any(|v| self.twins.get(*v).is_some())
                || node.inputs.iter().all(is_constant));
        widened.then_some(kind)
    }

    fn widen(&mut self, graph: &mut Graph, mut node: Node, kind: Kind) {
        if let Op::Call(call) = &mut node.op {
            call.prepared = None;
        }
        for i in 0..node.inputs.len() {
            node.inputs[i] = self.twin(graph, node.inputs[i]);
        }
        let mut rounded = Vec::new();
        for v in &mut node.outputs {
            let dtype = graph.meta(*v).dtype();
            if let Some(to) = rounding(dtype)
                && let Some(meta) = widened(graph.meta(*v))
            {
                self.twins.write(graph, v, meta.clone());
                if kind == Kind::Rounded {
                    let (twin, exact) = (*v, graph.twin(*v, meta));
                    *v = exact;
                    let program = Op::Pointwise(Program::unary(to));
                    rounded.push(Node { op: program, inputs: vec![exact], outputs: vec![twin] });
                }
            } else {
                self.twins.written([&*v]);
            }
        }
        self.twins.push(node);
        rounded.into_iter().for_each(|node| self.twins.push(node));
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

/// Whether the numbers that a call names are of a type of half precision, infinities among them.
fn numbers_are_of(call: &Call, dtype: ScalarType) -> bool {
    let is_of = |number: f64| {
        let rounded = match dtype {
            ScalarType::Half => f16::from_f64(number).to_f64(),
            _ => bf16::from_f64(number).to_f64(),
        };
        rounded == number
    };
    call.args.iter().all(|arg| match arg {
        CallArg::Scalar(number) => is_of(number.to_f64()),
        _ => true,
    })
}

/// The function that rounds to a type of half precision, if it is one.
fn rounding(dtype: ScalarType) -> Option<Unary> {
    match dtype {
        ScalarType::Half => Some(Unary::RoundToHalf),
        ScalarType::BFloat16 => Some(Unary::RoundToBfloat16),
        _ => None,
    }
}
