//! The graphs that delegates expose.

use super::guard::guarded;
use crate::BackendError;
use pteron_engine::Graph;
use pteron_ir::Live;
use pteron_operator::Budget;
use pteron_tensor::TensorMeta;

/// The call of a delegate for which a graph is requested.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GraphRequest<'a> {
    /// Type, sizes and layout of the tensor inputs.
    pub inputs: &'a [TensorMeta],
    /// Type, sizes and layout of the tensor outputs. The sizes are those in the program, or those of the last execution.
    pub outputs: &'a [TensorMeta],
    /// Maximum number of bytes that all nodes together may write.
    pub bytes: usize,
    /// The memory budget for constants that the graph computes: see [`Graph::set_budget`].
    pub budget: Budget,
}

impl<'a> GraphRequest<'a> {
    /// A request for a call with these inputs and outputs. The graph's nodes may write at most `bytes` bytes.
    pub fn new(inputs: &'a [TensorMeta], outputs: &'a [TensorMeta], bytes: usize) -> Self {
        Self { inputs, outputs, bytes, budget: Budget::default() }
    }

    /// Charges the constants that the graph computes to `budget`.
    #[must_use]
    pub fn with_budget(self, budget: &Budget) -> Self {
        Self { budget: budget.clone(), ..self }
    }
}

/// A payload that the backend can express as a graph, so that it is transparent to the surrounding method.
///
/// The runtime inlines the nodes into the region around the delegate call. There they fuse with the nodes before and
/// after them, share the region's workspace and packed weights, and read the results of other nodes without a copy.
/// The runtime requests another graph when the sizes change.
pub trait DelegateGraph: Send + Sync {
    /// The number of leading arguments of a call that are inputs. The remaining arguments are output tensors.
    ///
    /// Scalar inputs are not part of the graph: anything computed from them must follow from the tensor sizes.
    fn num_inputs(&self) -> usize;

    /// The graph that a call computes. It has one block and no state, and its inputs have the metas of the request.
    /// Its outputs have the types and ranks of the request's outputs; their sizes follow from the input sizes, and
    /// their layout is free. The [origin](Graph::set_origin) of each node gives its payload node in
    /// [`pteron_trace::Place::node`], for listings, profiles and errors.
    ///
    /// Equal requests must give the same graph. Weights with a known identity
    /// ([`Bytes::identity`](pteron_engine::Bytes::identity), which [`ConstantBytes`](crate::ConstantBytes) provides) are packed
    /// once for all their readers.
    fn graph(&self, request: &GraphRequest<'_>) -> Result<Graph, BackendError>;
}

/// The graph for a request, checked against the contract of [`DelegateGraph::graph`], since the code that runs it relies on
/// that.
pub(crate) fn checked_graph(
    source: &dyn DelegateGraph,
    request: &GraphRequest<'_>,
) -> Result<Graph, BackendError> {
    let graph = guarded(|| source.graph(request))?;
    let refuse = |problem: String| Err(BackendError::new(format!("the graph of the delegate: {problem}")));
    if let Err(problem) = graph.verify() {
        return refuse(problem.to_string());
    }
    let is_output = |live: &Live| matches!(live, Live::Output);
    let has_state = (0..graph.inputs().len()).any(|input| graph.state_of_input(input).is_some());
    if graph.num_blocks() != 1 || has_state || !graph.results().iter().all(is_output) {
        return refuse("it has several blocks or state".to_owned());
    }
    let same = |a: &TensorMeta, b: &TensorMeta| a.dtype() == b.dtype() && a.sizes() == b.sizes();
    let inputs: Vec<&TensorMeta> = graph.inputs().iter().map(|&v| graph.meta(v)).collect();
    if inputs.len() != request.inputs.len() || !inputs.iter().zip(request.inputs).all(|(a, b)| same(a, b)) {
        return refuse(format!(
            "its inputs are {}, the call's are {}",
            list_metas(inputs),
            list_metas(request.inputs)
        ));
    }
    let outputs: Vec<&TensorMeta> = graph.outputs().iter().map(|&v| graph.meta(v)).collect();
    let alike = |(a, b): (&&TensorMeta, &TensorMeta)| a.dtype() == b.dtype() && a.rank() == b.rank();
    if outputs.len() != request.outputs.len() || !outputs.iter().zip(request.outputs).all(alike) {
        return refuse(format!(
            "its outputs are {}, the call's are {}",
            list_metas(outputs),
            list_metas(request.outputs)
        ));
    }
    Ok(graph)
}

/// Metas as a list for an error.
fn list_metas<'m>(metas: impl IntoIterator<Item = &'m TensorMeta>) -> String {
    let list: Vec<String> = metas.into_iter().map(TensorMeta::to_string).collect();
    format!("[{}]", list.join(", "))
}

/// Prefixes an error with the payload node that it comes from, if that is known.
pub(crate) fn at_node(place: pteron_trace::Place, error: BackendError) -> BackendError {
    match place.node {
        Some(node) => BackendError::new(format!("node {node}: {error}")),
        None => error,
    }
}
