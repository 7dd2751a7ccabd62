//! Half precision: calls in float16 or bfloat16 compute in f32, and every result is rounded, in f32, to a value that
//! the half-precision type represents, as PyTorch rounds it. So comparisons, indices and cancelling sums see the
//! values that they see in PyTorch, and overflow yields infinity. Roundings without an effect are omitted: operators
//! that move, select or clamp elements yield representable values, and a conversion to half precision rounds by
//! itself.
//!
//! Operators that are not known to compute in f32 and to round once stay calls in their own type.
//!
//! All other passes, and the compute core, support only f32.

use super::converted::ConvertedValues;
use crate::graph::{Call, CallArg, Graph, NodeId, ValueId, facts};
use crate::operation::{OpKind, as_op, producer_as};
use crate::ops::cast::{Cast, is_half, widen_constant, widened_meta};
use crate::ops::pointwise::Pointwise;
use pteron_operator::{Expression, Facts, Results, Rounding, Unary};
use pteron_tensor::{Scalar, ScalarType, bf16, f16};
use std::collections::HashSet;

/// The maximum size in bytes of a half-precision constant that is widened. Larger weights stay in half precision, and
/// so do the calls that read them: in f32 they would take twice the memory and bandwidth.
const MAX_WIDENED: usize = 8 << 20;

/// The limit in bytes (in f32) for all widened constants of a graph: a small file can refer to the same bytes many
/// times.
const BUDGET: usize = 1 << 30;

/// Widens calls, and inserts conversions between widened and other nodes.
pub(super) fn run(graph: &mut Graph) {
    if !graph.values().any(|v| is_half(graph.meta(v).dtype())) {
        return;
    }
    let mut pass =
        Pass { converted: ConvertedValues::new(OpKind::arc(Cast)), large: HashSet::new(), budget: BUDGET };
    for node in graph.order() {
        match pass.widening_of(graph, node) {
            Some(kind) => pass.widen(graph, node, kind),
            None => pass.converted.keep_original(graph, node),
        }
    }
    pass.converted.finish(graph);
    remove_double_rounding(graph);
}

/// Removes roundings before conversions to half precision, which round themselves.
fn remove_double_rounding(graph: &mut Graph) {
    for node in graph.order() {
        if as_op::<Cast>(graph, node).is_none() {
            continue;
        }
        let (from, to) = (graph.node(node).inputs()[0], graph.node(node).outputs()[0]);
        let rounds = rounding_function(graph.meta(to).dtype()).map(Expression::unary);
        if let Some((before, Pointwise(expression))) = producer_as(graph, from)
            && rounds.as_ref() == Some(expression)
        {
            let exact = graph.node(before).inputs()[0];
            graph.set_input(node, 0, exact);
        }
    }
}

/// How a call is widened to f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Widened {
    /// If the operands are rounded, the results of the call need no rounding.
    Exact,
    /// The results of the call must be rounded.
    Rounded,
    /// The results of the call must be rounded, and its scalar arguments rounded to this type before the call.
    RoundedWithScalars(ScalarType),
}

struct Pass {
    /// The values that are available in f32.
    converted: ConvertedValues,
    /// Constants that are too large to be widened, and the results of calls that only move those constants' elements.
    large: HashSet<ValueId>,
    /// The remainder of [`BUDGET`], in bytes.
    budget: usize,
}

impl Pass {
    /// How a node is widened to f32; `None` if it keeps computing in its own type.
    fn widening_of(&mut self, graph: &Graph, node: NodeId) -> Option<Widened> {
        let Facts { moves, rounding, .. } = facts(graph, node);
        let (node, call) = (graph.node(node), graph.node(node).call()?);
        let meta = |v: ValueId| self.converted.original_meta(graph, v);
        let half = |&v: &ValueId| is_half(meta(v).dtype());
        let dtype = node.inputs().iter().chain(node.outputs()).find(|v| half(v)).map(|&v| meta(v).dtype())?;
        let kind = match rounding {
            Rounding::Exact => Widened::Exact,
            Rounding::ExactWithNumbers => scalars_are_exact(call, dtype).then_some(Widened::Exact)?,
            Rounding::OnceWithNumbers => Widened::RoundedWithScalars(dtype),
            Rounding::Once => Widened::Rounded,
            Rounding::Unknown => return None,
        };
        let known = call.kernel.results() == Results::Elements
            && call.kernel.dtypes().contains(ScalarType::Float)
            && !has_dtype(call);
        let is_constant = |v: &ValueId| graph.is_constant(*v);
        // Calls with operands of several types stay: type promotion would round or widen some of them first. Integer
        // operands of calls that move elements, such as indices, are allowed.
        let fits = |v: &ValueId| [dtype, ScalarType::Bool].contains(&meta(*v).dtype());
        let reads = |v: &ValueId| fits(v) || moves && !meta(*v).dtype().is_floating();
        let writes = |v: &ValueId| fits(v) || !graph.is_used(*v);
        let large = |v: &ValueId| {
            self.large.contains(v) || is_constant(v) && half(v) && meta(*v).nbytes() > MAX_WIDENED
        };
        if node.inputs().iter().any(large) {
            if moves {
                self.large.extend(node.outputs());
            }
            return None;
        }
        let new_constants =
            node.inputs().iter().filter(|v| is_constant(v) && half(v) && !self.converted.is_preferred(**v));
        let wide: usize = new_constants.map(|&v| 2 * meta(v).nbytes()).sum();
        let widened = known
            && wide <= self.budget
            && node.inputs().iter().any(half)
            && node.inputs().iter().all(reads)
            && node.outputs().iter().all(writes)
            // Without widened operands, a call that moves elements is cheaper in half precision.
            && (!moves
                || node.inputs().iter().any(|&v| self.converted.is_preferred(v))
                || node.inputs().iter().all(is_constant));
        widened.then_some(kind)
    }

    fn widen(&mut self, graph: &mut Graph, node: NodeId, kind: Widened) {
        if let Some(call) = graph.node(node).call() {
            let mut call = Call { prepared: None, ..call.clone() };
            if let Widened::RoundedWithScalars(dtype) = kind {
                round_scalars(&mut call, dtype);
            }
            graph.set_kind(node, call);
        }
        for slot in 0..graph.node(node).inputs().len() {
            let v = graph.node(node).inputs()[slot];
            let wide = self.value_in_f32(graph, node, v);
            graph.set_input(node, slot, wide);
        }
        for v in graph.node(node).outputs().to_vec() {
            let Some(to) = rounding_function(graph.meta(v).dtype()) else { continue };
            let Some(meta) = widened_meta(graph.meta(v)) else { continue };
            if kind == Widened::Exact {
                self.converted.change_to_preferred(graph, v, meta);
                continue;
            }
            // Inserts a rounding between the result and its users.
            let uses = graph.uses(v).to_vec();
            let own = graph.meta(v).clone();
            let round = OpKind::arc(Pointwise(Expression::unary(to)));
            let rounds = graph.insert_after(node, round, &[v], [own]);
            let (rounded, origins) = (graph.node(rounds).outputs()[0], graph.node(node).origins().to_vec());
            uses.into_iter().for_each(|used| graph.replace_use(used, rounded));
            graph.set_value_origin(rounded, graph.value(v).origin());
            graph.set_origins(rounds, &origins);
            graph.set_meta(v, meta.clone());
            self.converted.change_to_preferred(graph, rounded, meta);
        }
    }

    /// The value `v` in f32: a constant is widened; for any other half-precision value, a conversion is inserted
    /// before `node`.
    fn value_in_f32(&mut self, graph: &mut Graph, node: NodeId, v: ValueId) -> ValueId {
        if let Some(wide) = self.converted.existing_preferred(v) {
            return wide;
        }
        let meta = graph.meta(v);
        if !is_half(meta.dtype()) {
            return v;
        }
        let Some(meta) = widened_meta(meta) else { return v };
        match widen_constant(graph, v) {
            Some(wide) => {
                self.budget = self.budget.saturating_sub(wide.bytes().len());
                let wide = graph.constant(meta, wide.into());
                graph.set_value_origin(wide, graph.value(v).origin());
                self.converted.set_preferred(v, wide);
                wide
            }
            None => self.converted.preferred_form(graph, node, v, meta),
        }
    }
}

/// Whether a call has a `dtype` argument, which selects the type in which it computes.
fn has_dtype(call: &Call) -> bool {
    let named = call.kernel.schema().args.iter().zip(&call.args);
    named.into_iter().any(|(declared, arg)| &*declared.name == "dtype" && !matches!(arg, CallArg::None))
}

/// A scalar rounded to a half-precision type.
fn round_scalar(number: f64, dtype: ScalarType) -> f64 {
    match dtype {
        ScalarType::Half => f16::from_f64(number).to_f64(),
        _ => bf16::from_f64(number).to_f64(),
    }
}

/// Whether a half-precision type represents all scalar arguments of a call exactly, infinities included.
fn scalars_are_exact(call: &Call, dtype: ScalarType) -> bool {
    call.args.iter().all(|arg| match arg {
        CallArg::Scalar(number) => round_scalar(number.to_f64(), dtype) == number.to_f64(),
        _ => true,
    })
}

/// Rounds the scalar arguments of a call to a half-precision type.
fn round_scalars(call: &mut Call, dtype: ScalarType) {
    for arg in &mut call.args {
        if let CallArg::Scalar(number) = arg {
            let rounded = round_scalar(number.to_f64(), dtype);
            if rounded != number.to_f64() {
                *number = Scalar::Double(rounded);
            }
        }
    }
}

/// The function that rounds f32 to a half-precision type; `None` for other types.
fn rounding_function(dtype: ScalarType) -> Option<Unary> {
    match dtype {
        ScalarType::Half => Some(Unary::RoundToHalf),
        ScalarType::BFloat16 => Some(Unary::RoundToBfloat16),
        _ => None,
    }
}
