//! Resolved instructions: the loaded form of a chain.

use crate::backend::{
    BackendError, Delegate, DelegateGraph, GraphRequest, checked_graph, drop_guarded, guarded,
};
use crate::plan::Id;
use pteron_engine::Graph;
use pteron_operator::{Kernel, PreparedKernel};
use pteron_tensor::TensorMeta;
use std::cell::RefCell;
use std::sync::Arc;

/// One instruction.
#[derive(Clone)]
pub(crate) enum Step {
    Kernel(KernelStep),
    Delegate(DelegateStep),
    Move {
        from: Id,
        to: Id,
    },
    JumpFalse {
        condition: Id,
        target: usize,
    },
    Free(Id),
    /// A range of calls that are lowered together.
    Region(RegionStep),
    /// A call that was folded: its results were computed when the method was loaded and are constants.
    Folded(KernelStep),
}

/// A kernel call with its arguments resolved.
#[derive(Clone)]
pub(crate) struct KernelStep {
    /// Index in the operator table of the plan.
    pub(crate) operator: usize,
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) prepared: Option<Arc<dyn PreparedKernel>>,
    /// The arguments, in the order of the schema.
    pub(crate) args: Box<[ArgStep]>,
    /// The outs that the call writes, in the order of [`pteron_operator::Outs`].
    pub(crate) outs: Box<[OutStep]>,
}

/// A delegate call with its arguments resolved.
#[derive(Clone)]
pub(crate) struct DelegateStep {
    /// Index in the delegate table of the plan.
    pub(crate) delegate: usize,
    pub(crate) args: Box<[ArgStep]>,
    pub(crate) outs: Box<[OutStep]>,
}

impl Step {
    /// The arguments and outs of a call. A region gives those of its first call.
    pub(crate) fn operands(&self) -> (&[ArgStep], &[OutStep]) {
        match self {
            Self::Kernel(call) => (&call.args, &call.outs),
            Self::Delegate(call) => (&call.args, &call.outs),
            Self::Region(region) => region.first.operands(),
            Self::Move { .. } | Self::JumpFalse { .. } | Self::Free(_) | Self::Folded(_) => (&[], &[]),
        }
    }

    /// The kernel call of this instruction, even if a region has replaced it.
    pub(crate) fn kernel(&self) -> Option<&KernelStep> {
        match self {
            Self::Kernel(call) => Some(call),
            Self::Region(region) => region.first.kernel(),
            _ => None,
        }
    }
}

/// A range of calls that is executed as one. All calls but the first remain in the chain after it, so that instruction
/// indices do not change.
#[derive(Clone)]
pub(crate) struct RegionStep {
    /// Index in the method's table of regions.
    pub(crate) region: usize,
    /// The first call of the range, which this step replaces.
    pub(crate) first: Box<Step>,
    /// The first instruction after the range.
    pub(crate) next: usize,
}

/// Where an argument comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgStep {
    Value(Id),
    /// The out with this index.
    Out(usize),
}

/// Where an out is written.
#[derive(Debug, Clone)]
pub(crate) enum OutStep {
    Tensor(Id),
    Tensors(Arc<[Id]>),
    Scalar(Id),
    /// The value becomes a view of the tensor `of`.
    View {
        to: Id,
        of: Id,
    },
}

impl OutStep {
    /// The tensor that the call writes, if the out is a single tensor.
    pub(crate) fn tensor(&self) -> Option<Id> {
        if let Self::Tensor(id) = self { Some(*id) } else { None }
    }
}

/// A delegate of the method, with the id of its backend for messages and events.
pub(crate) struct DelegateEntry {
    pub(crate) backend: Arc<str>,
    /// `None` once regions compute everything that it computes.
    pub(crate) delegate: Option<Box<dyn Delegate>>,
    pub(crate) num_inputs: usize,
    graph: Option<Arc<dyn DelegateGraph>>,
    /// The last graph request and its answer.
    last: RefCell<Option<CachedGraph>>,
}

/// A graph request to a delegate, and its answer.
struct CachedGraph {
    inputs: Vec<TensorMeta>,
    outputs: Vec<TensorMeta>,
    graph: Option<Arc<Graph>>,
}

impl DelegateEntry {
    /// Fails if the delegate panics.
    pub(crate) fn new(backend: Arc<str>, delegate: Box<dyn Delegate>) -> Result<Self, BackendError> {
        // Whatever fails, the delegate is dropped with the entry.
        let mut entry =
            Self { backend, delegate: Some(delegate), num_inputs: 0, graph: None, last: RefCell::default() };
        let known = guarded(|| Ok(entry.delegate.as_ref().map(|d| (d.graph(), d.num_inputs()))))?;
        (entry.graph, entry.num_inputs) = known.unwrap_or_default();
        Ok(entry)
    }

    /// Whether the delegate exposes a graph.
    pub(crate) fn is_graph(&self) -> bool {
        self.graph.is_some()
    }

    /// The graph for a call. It is cached until another one is requested.
    pub(crate) fn graph(&self, request: &GraphRequest<'_>) -> Option<Arc<Graph>> {
        let source = self.graph.as_ref()?;
        let mut last = self.last.borrow_mut();
        match &*last {
            Some(cached) if cached.inputs == request.inputs && cached.outputs == request.outputs => {
                cached.graph.clone()
            }
            _ => {
                // If there is no graph for the call, the error is reported when the call is executed.
                let graph = checked_graph(&**source, request).ok().map(Arc::new);
                let (inputs, outputs) = (request.inputs.to_vec(), request.outputs.to_vec());
                *last = Some(CachedGraph { inputs, outputs, graph: graph.clone() });
                graph
            }
        }
    }

    /// Drops the cached graph.
    pub(crate) fn forget_graph(&self) {
        self.last.take();
    }

    /// Drops the delegate with its payload.
    pub(crate) fn release(&mut self) {
        drop_guarded((self.delegate.take(), self.graph.take(), self.last.take()));
    }

    /// Forks the delegate for another instance of the method. `None` if it cannot be forked.
    ///
    /// # Errors
    /// The delegate panics.
    pub(crate) fn fork(&self) -> Result<Option<Self>, BackendError> {
        let backend = Arc::clone(&self.backend);
        match &self.delegate {
            Some(delegate) => match guarded(|| Ok(delegate.fork()))? {
                Some(delegate) => Self::new(backend, delegate).map(Some),
                None => Ok(None),
            },
            None => {
                let (graph, last) = (None, RefCell::default());
                Ok(Some(Self { backend, delegate: None, num_inputs: self.num_inputs, graph, last }))
            }
        }
    }
}

impl Drop for DelegateEntry {
    fn drop(&mut self) {
        self.release();
    }
}

/// A sequence of instructions.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) steps: Vec<Step>,
}
