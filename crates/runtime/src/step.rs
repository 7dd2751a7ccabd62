//! Instructions, resolved: what loading makes of a chain.

use crate::backend::Delegate;
use crate::value::Id;
use operator::{Kernel, PreparedKernel};
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

/// A run of kernel calls that is executed as one. The calls themselves still stand behind it, so that
/// the numbers of instructions stay what they are.
#[derive(Clone)]
pub(crate) struct RegionStep {
    /// Index in the method's table of regions.
    pub(crate) region: usize,
    /// The run's first call, in whose place this stands.
    pub(crate) first: Option<Box<KernelStep>>,
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

/// A delegate with its id, for messages and events.
pub(crate) struct DelegateEntry {
    pub(crate) backend: Arc<str>,
    pub(crate) delegate: Box<dyn Delegate>,
}

/// A sequence of instructions.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) steps: Vec<Step>,
}
