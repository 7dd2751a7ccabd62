//! Half precision: what computes in float16 or bfloat16 computes in f32, and every result is rounded to the numbers
//! of its type, in f32, as PyTorch rounds it. All that reads a result, a comparison, an index, a sum that cancels,
//! finds what PyTorch has; what overflows is infinite. Nothing is rounded where that changes nothing: what moves,
//! selects or bounds elements gives numbers of the type, and a conversion rounds by itself.
//!
//! Operators that are not known to compute in f32 and to round once stay calls in their own type.
//!
//! All other passes, and the compute core, know f32.

use super::forms::Forms;
use crate::graph::{Call, CallArg, Graph, NodeId, ValueId, facts};
use crate::operation::{Fused, as_op, made_by};
use crate::steps::cast::{Cast, is_half, widen, widened};
use crate::steps::pointwise::Pointwise;
use operator::{Expression, Facts, Results, Rounding, Unary};
use std::collections::HashSet;
use tensor::{Scalar, ScalarType, bf16, f16};

/// Bytes of a constant of half precision up to which it is kept in f32. Larger weights stay as they are, and so do
/// the calls that read them: in f32 they take twice the memory, and the time that it takes to read it.
const LARGEST: usize = 8 << 20;

/// Bytes in f32 of all constants of a graph that are widened: a small file can name the same bytes many times.
const BUDGET: usize = 1 << 30;

/// Widens calls, and converts where they meet others.
pub(super) fn run(graph: &mut Graph) {
    if !graph.values().any(|v| is_half(graph.meta(v).dtype())) {
        return;
    }
    let mut pass = Pass { forms: Forms::new(Fused::kind(Cast)), large: HashSet::new(), budget: BUDGET };
    for node in graph.order() {
        match pass.kind(graph, node) {
            Some(kind) => pass.widen(graph, node, kind),
            None => pass.forms.keep(graph, node),
        }
    }
    pass.forms.finish(graph);
    cast_once(graph);
}

/// Lets conversions to half precision, which round, read what is not rounded yet.
fn cast_once(graph: &mut Graph) {
    for node in graph.order() {
        if as_op::<Cast>(graph, node).is_none() {
            continue;
        }
        let (from, to) = (graph.node(node).inputs()[0], graph.node(node).outputs()[0]);
        let rounds = rounding(graph.meta(to).dtype()).map(Expression::unary);
        if let Some((before, Pointwise(expression))) = made_by(graph, from)
            && rounds.as_ref() == Some(expression)
        {
            let exact = graph.node(before).inputs()[0];
            graph.set_input(node, 0, exact);
        }
    }
}

/// What a call is in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Widened {
    /// What it reads is rounded, and so is what it gives.
    Exact,
    /// What it gives is to be rounded.
    Rounded,
    /// So are the numbers that it names, to this type, before.
    RoundedOfNumbers(ScalarType),
}

struct Pass {
    /// In f32.
    forms: Forms,
    /// Constants that are too large to be widened, and those moved.
    large: HashSet<ValueId>,
    /// What is left of [`BUDGET`].
    budget: usize,
}

impl Pass {
    /// What a call is in f32, if it is to compute in f32.
    fn kind(&mut self, graph: &Graph, node: NodeId) -> Option<Widened> {
        let Facts { moves, rounding, .. } = facts(graph, node);
        let (node, call) = (graph.node(node), graph.node(node).call()?);
        let meta = |v: ValueId| self.forms.meta(graph, v);
        let half = |&v: &ValueId| is_half(meta(v).dtype());
        let dtype = node.inputs().iter().chain(node.outputs()).find(|v| half(v)).map(|&v| meta(v).dtype())?;
        let kind = match rounding {
            Rounding::Exact => Widened::Exact,
            Rounding::ExactWithNumbers => numbers_are_of(call, dtype).then_some(Widened::Exact)?,
            Rounding::OnceWithNumbers => Widened::RoundedOfNumbers(dtype),
            Rounding::Once => Widened::Rounded,
            Rounding::Unknown => return None,
        };
        let known = call.kernel.results() == Results::Elements
            && call.kernel.dtypes().contains(ScalarType::Float)
            && !names_a_type(call);
        let is_constant = |v: &ValueId| graph.is_constant(*v);
        // Operands of two types are promoted: those of others are rounded first, and one of f32 says that the result
        // is. Indices of what is moved are none.
        let fits = |v: &ValueId| [dtype, ScalarType::Bool].contains(&meta(*v).dtype());
        let reads = |v: &ValueId| fits(v) || moves && !meta(*v).dtype().is_floating();
        let writes = |v: &ValueId| fits(v) || !graph.is_used(*v);
        let large =
            |v: &ValueId| self.large.contains(v) || is_constant(v) && half(v) && meta(*v).nbytes() > LARGEST;
        if node.inputs().iter().any(large) {
            if moves {
                self.large.extend(node.outputs());
            }
            return None;
        }
        let new_constants =
            node.inputs().iter().filter(|v| is_constant(v) && half(v) && !self.forms.is_preferred(**v));
        let wide: usize = new_constants.map(|&v| 2 * meta(v).nbytes()).sum();
        let widened = known
            && wide <= self.budget
            && node.inputs().iter().any(half)
            && node.inputs().iter().all(reads)
            && node.outputs().iter().all(writes)
            // On their own, operators that move elements move fewer bytes as they are.
            && (!moves
                || node.inputs().iter().any(|&v| self.forms.is_preferred(v))
                || node.inputs().iter().all(is_constant));
        widened.then_some(kind)
    }

    fn widen(&mut self, graph: &mut Graph, node: NodeId, kind: Widened) {
        if let Some(call) = graph.node(node).call() {
            let mut call = Call { prepared: None, ..call.clone() };
            if let Widened::RoundedOfNumbers(dtype) = kind {
                round_numbers(&mut call, dtype);
            }
            graph.set_kind(node, call);
        }
        for slot in 0..graph.node(node).inputs().len() {
            let v = graph.node(node).inputs()[slot];
            let wide = self.wide(graph, node, v);
            graph.set_input(node, slot, wide);
        }
        for v in graph.node(node).outputs().to_vec() {
            let Some(to) = rounding(graph.meta(v).dtype()) else { continue };
            let Some(meta) = widened(graph.meta(v)) else { continue };
            if kind == Widened::Exact {
                self.forms.write(graph, v, meta);
                continue;
            }
            // Users of the result become users of its rounding.
            let uses = graph.uses(v).to_vec();
            let own = graph.meta(v).clone();
            let round = Fused::kind(Pointwise(Expression::unary(to)));
            let rounds = graph.insert_after(node, round, &[v], [own]);
            let (rounded, origins) = (graph.node(rounds).outputs()[0], graph.node(node).origins().to_vec());
            uses.into_iter().for_each(|used| graph.replace_use(used, rounded));
            graph.set_value_origin(rounded, graph.value(v).origin());
            graph.set_origins(rounds, &origins);
            graph.set_meta(v, meta.clone());
            self.forms.write(graph, rounded, meta);
        }
    }

    /// The value in f32.
    fn wide(&mut self, graph: &mut Graph, node: NodeId, v: ValueId) -> ValueId {
        if let Some(wide) = self.forms.existing(v) {
            return wide;
        }
        let meta = graph.meta(v);
        if !is_half(meta.dtype()) {
            return v;
        }
        let Some(meta) = widened(meta) else { return v };
        match widen(graph, v) {
            Some(wide) => {
                self.budget = self.budget.saturating_sub(wide.bytes().len());
                let wide = graph.constant(meta, wide.into());
                graph.set_value_origin(wide, graph.value(v).origin());
                self.forms.set(v, wide);
                wide
            }
            None => self.forms.preferred(graph, node, v, meta),
        }
    }
}

/// Whether a call says in which type it computes.
fn names_a_type(call: &Call) -> bool {
    let named = call.kernel.schema().args.iter().zip(&call.args);
    named.into_iter().any(|(declared, arg)| &*declared.name == "dtype" && !matches!(arg, CallArg::None))
}

/// A number rounded to a type of half precision.
fn nearest(number: f64, dtype: ScalarType) -> f64 {
    match dtype {
        ScalarType::Half => f16::from_f64(number).to_f64(),
        _ => bf16::from_f64(number).to_f64(),
    }
}

/// Whether the numbers that a call names are of a type of half precision, infinities among them.
fn numbers_are_of(call: &Call, dtype: ScalarType) -> bool {
    call.args.iter().all(|arg| match arg {
        CallArg::Scalar(number) => nearest(number.to_f64(), dtype) == number.to_f64(),
        _ => true,
    })
}

/// Makes the numbers that a call names numbers of a type of half precision.
fn round_numbers(call: &mut Call, dtype: ScalarType) {
    for arg in &mut call.args {
        if let CallArg::Scalar(number) = arg {
            let rounded = nearest(number.to_f64(), dtype);
            if rounded != number.to_f64() {
                *number = Scalar::Double(rounded);
            }
        }
    }
}

/// The function that rounds to a type of half precision, if it is one.
fn rounding(dtype: ScalarType) -> Option<Unary> {
    match dtype {
        ScalarType::Half => Some(Unary::RoundToHalf),
        ScalarType::BFloat16 => Some(Unary::RoundToBfloat16),
        _ => None,
    }
}
