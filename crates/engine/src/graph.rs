//! Re-exports from [`pteron_ir`], and queries on graphs.

pub use pteron_ir::{
    Bytes, Call, CallArg, CallOut, Constant, Derivation, Graph, Identity, IntoKind, Kind, Mark, NodeId,
    SharedBytes, SourceId, Type, Value, ValueId,
};

use pteron_operator::{Facts, Meaning};
use pteron_tensor::Tensor;

/// The meaning of a node's call, if the node is a call and its kernel declares one. `None`, too, if the sizes of the
/// result are not those that the call computes: such a call stays a kernel call, which fails when it runs.
pub(crate) fn meaning(graph: &Graph, node: NodeId) -> Option<Meaning> {
    let node = graph.node(node);
    let metas = || node.inputs().iter().map(|&v| graph.meta(v));
    let meaning = node.call()?.meaning(metas())?;
    let declared = graph.meta(*node.outputs().first()?).sizes();
    let computed = node.call()?.result_sizes(metas(), &meaning);
    computed.is_none_or(|sizes| sizes == *declared).then_some(meaning)
}

/// The facts of the operator that a node calls; [`Facts::NONE`] if it is not a call.
pub(crate) fn facts(graph: &Graph, node: NodeId) -> Facts {
    graph.node(node).call().map_or(Facts::NONE, |call| call.kernel.facts())
}

/// The input of a node at a position of the arguments of the node's call.
pub(crate) fn argument(graph: &Graph, node: NodeId, position: usize) -> Option<ValueId> {
    let node = graph.node(node);
    node.inputs().get(node.call()?.input_at(position)?).copied()
}

/// The only user of a value; `None` unless the value is used exactly once.
pub(crate) fn single_user(graph: &Graph, value: ValueId) -> Option<NodeId> {
    if graph.uses(value).len() == 1 { graph.only_user(value) } else { None }
}

/// The node that defines a value; `None` unless the value is used exactly once.
pub(crate) fn single_use_producer(graph: &Graph, value: ValueId) -> Option<NodeId> {
    if graph.uses(value).len() == 1 { graph.producer(value) } else { None }
}

/// Adds an f32 constant with these elements.
pub(crate) fn add_constant(graph: &mut Graph, sizes: &[usize], elements: &[f32]) -> Option<ValueId> {
    graph.computed_constant(Tensor::from_slice(sizes, elements).ok()?).ok()
}
