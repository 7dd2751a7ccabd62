//! Delegates that run a graph.

use super::graph::{DelegateGraph, GraphRequest, at_node, checked_graph};
use super::{BackendExecutionContext, Delegate};
use crate::BackendError;
use pteron_engine::Executable;
use pteron_operator::{Arg, Isa, Out};
use pteron_tensor::{DimOrder, ScalarType, ShapeDynamism, TensorMeta, TensorView, TensorViewMut};
use std::sync::Arc;

/// Maximum number of executables that a delegate caches, one for each combination of input metas, output types and
/// layouts, and instruction set.
const MAX_CACHED: usize = 8;

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
    fn executable_for(
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
            let request =
                GraphRequest::new(&inputs, outputs, ctx.bytes_left()).with_budget(ctx.packs.budget());
            let graph = checked_graph(&*self.graph, &request)?;
            let executable =
                Executable::with_packs(graph, ctx.kernels, &mut ctx.packs.clone())?.traced_as_delegate();
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
        let input_metas = inputs.iter().map(|view| fixed(view.meta())).collect();
        let output_metas: Vec<_> = outputs.iter().map(|view| fixed(view.meta())).collect();
        let executable = self.executable_for(ctx, input_metas, &output_metas)?;
        let ran = executable.run(ctx.kernels, ctx.tracer(), &inputs, &mut outputs);
        ran.map_err(|e| at_node(executable.failed_at(), e.into()))
    }
}
