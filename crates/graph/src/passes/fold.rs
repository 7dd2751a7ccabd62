//! Computing what depends on constants alone, once, when a graph is made ready.

use crate::graph::{Constant, Graph, NodeId};
use crate::operation::as_op;
use crate::steps::cast::{self, Cast};
use crate::steps::pointwise::Pointwise;
use kernels::compute;
use operator::{CountedTensor, Instr, KernelContext, Results};
use tensor::{DimOrder, TensorMeta, TensorView, TensorViewMut};

/// Bytes of a computed constant above which the computation stays in the graph.
const LARGEST_CONSTANT: usize = 256 << 20;

/// Computes a node whose inputs are all known, unless a result of the graph is its own. Says whether it did: the
/// node is gone then, and its results are constants.
pub(super) fn fold(graph: &mut Graph, id: NodeId, ctx: &KernelContext<'_>) -> bool {
    let node = graph.node(id);
    // The graph's maker has computed it before, and says with the call how.
    let known = node.outputs().iter().map(|&v| graph.value(v).constant().cloned());
    if let Some(known) = known.collect::<Option<Vec<_>>>().filter(|known| !known.is_empty()) {
        graph.fold(id, known);
        return true;
    }
    let bytes: usize = node.outputs().iter().map(|&v| graph.meta(v).nbytes()).sum();
    if bytes > LARGEST_CONSTANT || node.is_kept() || node.outputs().iter().any(|&v| graph.is_live_out(v)) {
        return false;
    }
    let inputs: Option<Vec<_>> = node.inputs().iter().map(|&v| graph.view(v)).collect();
    let Some(tensors) = inputs.and_then(|inputs| computed(graph, id, &inputs, ctx)) else { return false };
    graph.fold(id, tensors.into_iter().map(Constant::from).collect());
    true
}

fn computed(
    graph: &Graph,
    id: NodeId,
    inputs: &[TensorView<'_>],
    ctx: &KernelContext<'_>,
) -> Option<Vec<CountedTensor>> {
    let outputs = graph.node(id).outputs();
    if graph.node(id).call().is_none() {
        return conversion(graph, id, inputs, ctx).map(|tensor| vec![tensor]);
    }
    let call = graph.node(id).call().filter(|call| call.kernel.results() == Results::Elements)?;
    let zeros = |&v: &_| graph.zeros(graph.meta(v).clone()).ok();
    let mut tensors: Vec<CountedTensor> = outputs.iter().map(zeros).collect::<Option<_>>()?;
    let views: Vec<TensorViewMut<'_>> = tensors.iter_mut().map(|tensor| tensor.view_mut()).collect();
    // A call that fails here fails again when it runs, and says then what is wrong.
    call.execute(ctx, inputs, views).ok()?;
    let same = outputs.iter().zip(&tensors).all(|(&v, t)| graph.meta(v).sizes() == t.sizes());
    same.then_some(tensors)
}

/// A constant that is converted or rounded.
fn conversion(
    graph: &Graph,
    id: NodeId,
    inputs: &[TensorView<'_>],
    ctx: &KernelContext<'_>,
) -> Option<CountedTensor> {
    let (&[x], &[to]) = (inputs, graph.node(id).outputs()) else { return None };
    let mut tensor = graph.zeros(graph.meta(to).clone()).ok()?;
    let mut out = tensor.view_mut();
    if as_op::<Cast>(graph, id).is_some() {
        cast::run(ctx, &x, &mut out).ok()?;
    } else {
        let Pointwise(expression) = as_op(graph, id)?;
        let &[Instr::Input(0), Instr::Unary(f, 0)] = &expression.instrs[..] else { return None };
        compute::unary(ctx.pool(), ctx.isa(), f, x.storage().ok()?, out.storage_mut().ok()?);
    }
    Some(tensor)
}

/// Lets a node read a constant input row-major: what is packed is packed from that.
pub(super) fn make_plain(graph: &mut Graph, node: NodeId, slot: usize) {
    let Some(&value) = graph.node(node).inputs().get(slot) else { return };
    let order = DimOrder::contiguous(graph.meta(value).rank());
    let differs = *graph.meta(value).dim_order() != order;
    let stored = if differs { graph.view(value) } else { None };
    if let Some(plain) = stored.and_then(|stored| plain(graph, &stored, order)) {
        let (meta, origin) = (plain.meta().clone(), graph.value(value).origin());
        let plain = graph.constant(meta, plain.into());
        graph.set_value_origin(plain, origin);
        graph.set_input(node, slot, plain);
    }
}

/// The same elements in another order.
fn plain(graph: &Graph, stored: &TensorView<'_>, order: DimOrder) -> Option<CountedTensor> {
    let mut plain = graph.zeros(TensorMeta::new(stored.dtype(), stored.sizes(), order).ok()?).ok()?;
    stored.relayout(&mut plain.view_mut()).ok()?;
    Some(plain)
}
