//! Resolved instructions: the loaded form of a chain.

use super::value::Id;
use pteron_operator::{Kernel, PreparedKernel};
use std::sync::Arc;

/// One instruction.
#[derive(Clone)]
pub(crate) enum Instr {
    Kernel(KernelCall),
    Delegate(DelegateCall),
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
    Region(RegionCall),
    /// A call that was folded: its results were computed when the method was loaded and are constants.
    Folded(KernelCall),
}

/// A kernel call with its arguments resolved.
#[derive(Clone)]
pub(crate) struct KernelCall {
    /// The index of the called operator in the plan's operator table.
    pub(crate) operator: usize,
    pub(crate) kernel: Arc<dyn Kernel>,
    pub(crate) prepared: Option<Arc<dyn PreparedKernel>>,
    /// The arguments, in the order of the schema.
    pub(crate) args: Box<[ArgRef]>,
    /// The outs that the call writes, in the order of [`pteron_operator::Outs`].
    pub(crate) outs: Box<[OutRef]>,
}

/// A delegate call with its arguments resolved.
#[derive(Clone)]
pub(crate) struct DelegateCall {
    /// The index of the called delegate in the plan's delegate table.
    pub(crate) delegate: usize,
    pub(crate) args: Box<[ArgRef]>,
    pub(crate) outs: Box<[OutRef]>,
}

impl Instr {
    /// The arguments and outs of a kernel or delegate call. A region gives those of its first call.
    pub(crate) fn operands(&self) -> (&[ArgRef], &[OutRef]) {
        match self {
            Self::Kernel(call) => (&call.args, &call.outs),
            Self::Delegate(call) => (&call.args, &call.outs),
            Self::Region(region) => region.first.operands(),
            Self::Move { .. } | Self::JumpFalse { .. } | Self::Free(_) | Self::Folded(_) => (&[], &[]),
        }
    }

    /// The instruction's kernel call; of a region, its first call if that is a kernel call.
    pub(crate) fn kernel(&self) -> Option<&KernelCall> {
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
pub(crate) struct RegionCall {
    /// The index of the region in the method's table of regions.
    pub(crate) region: usize,
    /// The first call of the range, which this instruction replaces.
    pub(crate) first: Box<Instr>,
    /// The first instruction after the range.
    pub(crate) next: usize,
}

/// Where an argument comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ArgRef {
    Value(Id),
    /// The call's out with this index.
    Out(usize),
}

/// Where an out is written.
#[derive(Debug, Clone)]
pub(crate) enum OutRef {
    Tensor(Id),
    Tensors(Arc<[Id]>),
    Scalar(Id),
    /// The value `to` becomes a view of the tensor `of`.
    View {
        to: Id,
        of: Id,
    },
}

impl OutRef {
    /// The tensor that the call writes, if the out is a single tensor.
    pub(crate) fn tensor(&self) -> Option<Id> {
        if let Self::Tensor(id) = self { Some(*id) } else { None }
    }
}

/// A sequence of instructions.
#[derive(Clone)]
pub(crate) struct Chain {
    pub(crate) instrs: Vec<Instr>,
}
