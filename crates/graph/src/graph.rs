//! What this crate uses of [`ir`], and what it asks of graphs beside.

pub use ir::{
    Bytes, Call, CallArg, CallOut, Constant, Derivation, Graph, Identity, IntoKind, Kind, Mark, NodeId,
    SharedBytes, SourceId, Type, Value, ValueId,
};

use operator::{Facts, Meaning};
use tensor::Tensor;

/// What the call of a node means, if it is a call and something is known of it.
pub(crate) fn meaning(graph: &Graph, node: NodeId) -> Option<Meaning> {
    let node = graph.node(node);
    node.call()?.meaning(node.inputs().iter().map(|&v| graph.meta(v)))
}

/// What is known of the operator that a node calls.
pub(crate) fn facts(graph: &Graph, node: NodeId) -> Facts {
    graph.node(node).call().map_or(Facts::NONE, |call| call.kernel.facts())
}

/// The input of a node that stands at a position of its call's arguments.
pub(crate) fn argument(graph: &Graph, node: NodeId, position: usize) -> Option<ValueId> {
    let node = graph.node(node);
    node.inputs().get(node.call()?.input_at(position)?).copied()
}

/// The node that alone uses a value, and uses it once.
pub(crate) fn single_user(graph: &Graph, value: ValueId) -> Option<NodeId> {
    if graph.uses(value).len() == 1 { graph.only_user(value) } else { None }
}

/// The node that defines a value for one user alone.
pub(crate) fn own_producer(graph: &Graph, value: ValueId) -> Option<NodeId> {
    if graph.uses(value).len() == 1 { graph.producer(value) } else { None }
}

/// Adds a constant of these elements.
pub(crate) fn constant(graph: &mut Graph, sizes: &[usize], elements: &[f32]) -> Option<ValueId> {
    graph.computed(Tensor::from_slice(sizes, elements).ok()?).ok()
}
