//! Delegates that are graphs.

use super::{BackendError, BackendExecutionContext, Delegate};
use graph::{Executable, Graph};
use operator::{Arg, Budget, Isa, Out};
use std::sync::Arc;
use tensor::{DimOrder, ScalarType, ShapeDynamism, TensorMeta, TensorView, TensorViewMut};

/// Executables that a delegate keeps, for the sizes that it has met last.
const KEPT: usize = 8;

/// For which call of a delegate a graph is wanted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GraphRequest<'a> {
    /// Type, sizes and layout of the inputs that are tensors.
    pub inputs: &'a [TensorMeta],
    /// Type and layout of the outputs. Their sizes are those that they have in the program, or had last.
    pub outputs: &'a [TensorMeta],
    /// Bytes that the nodes may write together.
    pub bytes: usize,
    /// What constants are taken from that the graph computes: see [`Graph::set_budget`].
    pub budget: Budget,
}

impl<'a> GraphRequest<'a> {
    /// A request for a call of these inputs and outputs, whose nodes may write so many bytes.
    pub fn new(inputs: &'a [TensorMeta], outputs: &'a [TensorMeta], bytes: usize) -> Self {
        Self { inputs, outputs, bytes, budget: Budget::default() }
    }

    /// The same, whose computed constants are taken from a budget.
    #[must_use]
    pub fn within(self, budget: &Budget) -> Self {
        Self { budget: budget.clone(), ..self }
    }
}

/// A payload that is known as a graph: what a delegate computes is then no secret to the method around it.
///
/// The runtime takes the nodes into the region of calls that surrounds a call of the delegate, where they are
/// fused with what comes before and behind, share its workspace and its packed weights, and read what others
/// have written without a copy. It asks again for other sizes.
pub trait DelegateGraph: Send + Sync {
    /// How many of a call's arguments, from the first on, are inputs. The rest are outputs, which are tensors.
    ///
    /// Numbers among the inputs are not part of the graph: what it computes from them follows from the sizes of tensors.
    fn num_inputs(&self) -> usize;

    /// What a call computes: a graph of one block and without state, whose inputs have the metas of the request.
    /// Its outputs have the types of the request's, and as many dimensions; their sizes follow from the inputs', and
    /// their layout is any. [`trace::Place::node`] as the [origin](Graph::set_origin) of a node says which of the
    /// payload's it belongs to: listings, profiles and errors name it.
    ///
    /// The same request is answered by the same graph. Weights whose bytes say which they are
    /// ([`Bytes::identity`](graph::Bytes::identity), as those of [`ConstantBytes`](crate::ConstantBytes) do) are packed once
    /// for all that reads them.
    fn graph(&self, request: &GraphRequest<'_>) -> Result<Graph, BackendError>;
}

/// A delegate that is a graph, for [`Backend::init`](super::Backend::init) to answer with. Where it is not taken into
/// a region, it runs by itself.
pub struct GraphDelegate {
    graph: Arc<dyn DelegateGraph>,
    /// The one used last stands last.
    lowered: Vec<Lowered>,
}

struct Lowered {
    inputs: Vec<TensorMeta>,
    outputs: Vec<(ScalarType, DimOrder)>,
    isa: Isa,
    executable: Executable,
}

impl GraphDelegate {
    /// A delegate that computes what a graph says.
    pub fn new(graph: impl DelegateGraph + 'static) -> Self {
        Self { graph: Arc::new(graph), lowered: Vec::new() }
    }

    /// Makes the executable for a call the last.
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
            let graph = self.graph.graph(&request)?;
            let executable =
                Executable::with_packs(graph, ctx.kernels, &mut ctx.packs.clone())?.of_delegate();
            if self.lowered.len() == KEPT {
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

/// An error that names the node of the payload which it comes from, where that is known.
pub(crate) fn at_node(place: trace::Place, error: BackendError) -> BackendError {
    match place.node {
        Some(node) => BackendError::new(format!("node {node}: {error}")),
        None => error,
    }
}
