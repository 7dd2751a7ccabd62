//! Instructions, resolved: what loading makes of a chain.

use crate::backend::{Delegate, DelegateGraph, GraphRequest};
use crate::value::Id;
use graph::Graph;
use operator::{Kernel, PreparedKernel};
use std::cell::RefCell;
use std::sync::Arc;
use tensor::TensorMeta;

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
    /// A run of kernel calls, lowered together.
    Region(RegionStep),
    /// A call whose results were computed when the method was loaded, and are constants.
    Folded(KernelStep),
}

/// A kernel call with its arguments resolved.
#[derive(Clone)]
pub(crate) struct KernelStep {
    /// Index in the operator table of the plan.
    pub(crate) operator: usize,
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) prepared: Option<Arc<dyn PreparedKernel>>,
    /// What stands at each position of the schema.
    pub(crate) args: Box<[ArgStep]>,
    /// What the call writes, in the order of [`operator::Outs`].
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
    /// The arguments and outs of a call; of a region, those of its first instruction.
    pub(crate) fn operands(&self) -> (&[ArgStep], &[OutStep]) {
        match self {
            Self::Kernel(call) => (&call.args, &call.outs),
            Self::Delegate(call) => (&call.args, &call.outs),
            Self::Region(region) => region.first.operands(),
            Self::Move { .. } | Self::JumpFalse { .. } | Self::Free(_) | Self::Folded(_) => (&[], &[]),
        }
    }

    /// The kernel call that stands here, also where a region stands in its place.
    pub(crate) fn kernel(&self) -> Option<&KernelStep> {
        match self {
            Self::Kernel(call) => Some(call),
            Self::Region(region) => region.first.kernel(),
            _ => None,
        }
    }
}

/// A run of calls that is executed as one. The calls themselves still stand behind it, so that
/// the numbers of instructions stay what they are.
#[derive(Clone)]
pub(crate) struct RegionStep {
    /// Index in the method's table of regions.
    pub(crate) region: usize,
    /// The run's first call, in whose place this stands.
    pub(crate) first: Box<Step>,
    /// The instruction after the last one of the run.
    pub(crate) next: usize,
}

/// Where an argument comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgStep {
    Value(Id),
    /// The argument is this out.
    Out(usize),
}

/// Where an out goes.
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
    /// The tensor, if it is one that the call writes.
    pub(crate) fn tensor(&self) -> Option<Id> {
        if let Self::Tensor(id) = self { Some(*id) } else { None }
    }
}

/// A delegate with its id, for messages and events.
pub(crate) struct DelegateEntry {
    pub(crate) backend: Arc<str>,
    /// Nothing once all that it computes is computed by regions.
    pub(crate) delegate: Option<Box<dyn Delegate>>,
    pub(crate) num_inputs: usize,
    graph: Option<Arc<dyn DelegateGraph>>,
    /// The graph that was asked for last, if there is one for that call.
    last: RefCell<Option<Asked>>,
}

/// What a delegate's graph was asked for, and the answer.
struct Asked {
    inputs: Vec<TensorMeta>,
    outputs: Vec<TensorMeta>,
    graph: Option<Arc<Graph>>,
}

impl DelegateEntry {
    pub(crate) fn new(backend: Arc<str>, delegate: Box<dyn Delegate>) -> Self {
        let (graph, num_inputs) = (delegate.graph(), delegate.num_inputs());
        Self { backend, delegate: Some(delegate), num_inputs, graph, last: RefCell::default() }
    }

    /// Whether it is known as a graph.
    pub(crate) fn is_graph(&self) -> bool {
        self.graph.is_some()
    }

    /// The graph for a call, which is kept until another is asked for.
    pub(crate) fn graph(&self, request: &GraphRequest<'_>) -> Option<Arc<Graph>> {
        let source = self.graph.as_ref()?;
        let mut last = self.last.borrow_mut();
        match &*last {
            Some(asked) if asked.inputs == request.inputs && asked.outputs == request.outputs => {
                asked.graph.clone()
            }
            _ => {
                // A call for which there is no graph fails when it runs, and says then what is wrong.
                let graph = source.graph(request).ok().map(Arc::new);
                let (inputs, outputs) = (request.inputs.to_vec(), request.outputs.to_vec());
                *last = Some(Asked { inputs, outputs, graph: graph.clone() });
                graph
            }
        }
    }

    /// Lets go of the graph that was asked for last.
    pub(crate) fn forget_graph(&self) {
        self.last.take();
    }

    /// Lets go of the payload.
    pub(crate) fn release(&mut self) {
        (self.delegate, self.graph, self.last) = (None, None, RefCell::default());
    }

    /// The same for another instance of the method. `None` if the delegate cannot be forked.
    pub(crate) fn fork(&self) -> Option<Self> {
        let delegate = match &self.delegate {
            Some(delegate) => Some(delegate.fork()?),
            None => None,
        };
        let graph = delegate.as_ref().and_then(|delegate| delegate.graph());
        let (backend, num_inputs) = (Arc::clone(&self.backend), self.num_inputs);
        Some(Self { backend, delegate, num_inputs, graph, last: RefCell::default() })
    }
}

/// A sequence of instructions.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) steps: Vec<Step>,
}
