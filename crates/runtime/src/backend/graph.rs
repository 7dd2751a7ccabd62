//! Delegates that expose what they compute as a graph.

use super::{BackendExecutionContext, Delegate, guarded};
use crate::BackendError;
use pteron_engine::{Executable, Graph};
use pteron_ir::Live;
use pteron_operator::{Arg, Budget, Isa, Out};
use pteron_tensor::{DimOrder, ScalarType, ShapeDynamism, TensorMeta, TensorView, TensorViewMut};
use std::sync::Arc;

/// Executables that a delegate caches, one for each of the most recently used combinations of sizes.
const MAX_CACHED: usize = 8;

/// The call of a delegate for which a graph is requested.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GraphRequest<'a> {
    /// Type, sizes and layout of the tensor inputs.
    pub inputs: &'a [TensorMeta],
    /// Type and layout of the outputs. Their sizes are the ones in the program, or those of the last execution.
    pub outputs: &'a [TensorMeta],
    /// Maximum number of bytes that all nodes together may write.
    pub bytes: usize,
    /// The memory budget for constants that the graph computes: see [`Graph::set_budget`].
    pub budget: Budget,
}

impl<'a> GraphRequest<'a> {
    /// A request for a call with these inputs and outputs, whose nodes may write at most `bytes` bytes.
    pub fn new(inputs: &'a [TensorMeta], outputs: &'a [TensorMeta], bytes: usize) -> Self {
        Self { inputs, outputs, bytes, budget: Budget::default() }
    }

    /// Charges the constants that the graph computes to `budget`.
    #[must_use]
    pub fn within(self, budget: &Budget) -> Self {
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

/// A delegate defined by a graph, which [`Backend::init`](super::Backend::init) can return. A call that is not inlined
/// into a region runs the graph on its own.
pub struct GraphDelegate {
    graph: Arc<dyn DelegateGraph>,
    /// Cached executables, the most recently used last.
    lowered: Vec<Lowered>,
}

struct Lowered {
    inputs: Vec<TensorMeta>,
    outputs: Vec<(ScalarType, DimOrder)>,
    isa: Isa,
    executable: Executable,
}

impl GraphDelegate {
    /// A delegate that computes this graph.
    pub fn new(graph: impl DelegateGraph + 'static) -> Self {
        Self { graph: Arc::new(graph), lowered: Vec::new() }
    }

    /// The executable for a call, from the cache or newly lowered.
    fn lower(
        &mut self,
        ctx: &BackendExecutionContext<'_>,
        inputs: Vec<TensorMeta>,
        outputs: &[TensorMeta],
    ) -> Result<&mut Executable, BackendError> {
        let order: Vec<_> = outputs.iter().map(|meta| (meta.dtype(), *meta.dim_order())).collect();
        let isa = ctx.isa();
        let is_known = |known: &Lowered| known.isa == isa && known.inputs == inputs && known.outputs == order;
        if let Some(at) = self.lowered.iter().position(is_known) {
            self.lowered[at..].rotate_left(1);
        } else {
            let request = GraphRequest::new(&inputs, outputs, ctx.bytes_left()).within(ctx.packs.budget());
            let graph = checked_graph(&*self.graph, &request)?;
            let executable =
                Executable::with_packs(graph, ctx.kernels, &mut ctx.packs.clone())?.of_delegate();
            if self.lowered.len() == MAX_CACHED {
                self.lowered.remove(0);
            }
            self.lowered.push(Lowered { inputs, outputs: order, isa, executable });
        }
        let last = self.lowered.last_mut().map(|lowered| &mut lowered.executable);
        last.ok_or_else(|| BackendError::new("nothing was lowered"))
    }
}

impl Delegate for GraphDelegate {
    fn fork(&self) -> Option<Box<dyn Delegate>> {
        let lowered = self.lowered.iter().map(|known| {
            let executable = known.executable.fork().ok()?;
            Some(Lowered {
                inputs: known.inputs.clone(),
                outputs: known.outputs.clone(),
                isa: known.isa,
                executable,
            })
        });
        Some(Box::new(Self { graph: Arc::clone(&self.graph), lowered: lowered.collect::<Option<_>>()? }))
    }

    fn num_inputs(&self) -> usize {
        self.graph.num_inputs()
    }

    fn graph(&self) -> Option<Arc<dyn DelegateGraph>> {
        Some(Arc::clone(&self.graph))
    }

    fn execute(
        &mut self,
        ctx: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        let inputs = inputs.iter().enumerate().filter_map(|(i, arg)| match arg {
            Arg::Tensor(view) => Some(Ok(*view)),
            Arg::Int(_) | Arg::Double(_) | Arg::Bool(_) => None,
            _ => Some(Err(BackendError::new(format!("input {i} is no tensor")))),
        });
        let inputs: Vec<TensorView<'_>> = inputs.collect::<Result<_, _>>()?;
        let outputs = outputs.iter_mut().enumerate().map(|(i, out)| match out {
            Out::Tensor(view) => Ok(view.reborrow()),
            _ => Err(BackendError::new(format!("output {i} is no tensor"))),
        });
        let mut outputs: Vec<TensorViewMut<'_>> = outputs.collect::<Result<_, _>>()?;
        let fixed = |meta: &TensorMeta| meta.clone().with_dynamism(ShapeDynamism::Static);
        let given = inputs.iter().map(|view| fixed(view.meta())).collect();
        let taken: Vec<_> = outputs.iter().map(|view| fixed(view.meta())).collect();
        let executable = self.lower(ctx, given, &taken)?;
        let ran = executable.run(ctx.kernels, ctx.tracer(), &inputs, &mut outputs);
        ran.map_err(|e| at_node(executable.failed_at(), e.into()))
    }
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
        return refuse(format!("its inputs are {}, the call's are {}", list(inputs), list(request.inputs)));
    }
    let outputs: Vec<&TensorMeta> = graph.outputs().iter().map(|&v| graph.meta(v)).collect();
    let alike = |(a, b): (&&TensorMeta, &TensorMeta)| a.dtype() == b.dtype() && a.rank() == b.rank();
    if outputs.len() != request.outputs.len() || !outputs.iter().zip(request.outputs).all(alike) {
        return refuse(format!(
            "its outputs are {}, the call's are {}",
            list(outputs),
            list(request.outputs)
        ));
    }
    Ok(graph)
}

/// Metas as a list for an error.
fn list<'m>(metas: impl IntoIterator<Item = &'m TensorMeta>) -> String {
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
