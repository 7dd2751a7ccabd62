mod build;

use crate::frame::Site;
use crate::kernel::{Effect, Kernel, PlainKernel, PlainOperands};
use crate::value::Value;
pub(crate) use build::{BodyParts, NodeParts, Order};
use std::sync::Arc;

/// A range of a body's table, which holds all lists of kernel and register indices.
#[derive(Clone, Copy, Default)]
pub(crate) struct Span {
    start: u32,
    len: u32,
}

impl Span {
    /// Appends `items` to `table` and returns their range.
    fn append(table: &mut Vec<u32>, items: impl IntoIterator<Item = u32>) -> Self {
        let start = table.len();
        table.extend(items);
        Self { start: start as u32, len: (table.len() - start) as u32 }
    }

    #[inline(always)]
    pub(crate) fn slice(self, table: &[u32]) -> &[u32] {
        &table[self.start as usize..][..self.len as usize]
    }
}

/// A kernel call of a body.
pub(crate) struct Node {
    pub(crate) kernel: Arc<dyn Kernel>,
    /// The registers of the kernel's arguments, then those of its results.
    operands: Span,
    arguments: u32,
    pub(crate) stream: u32,
    pub(crate) effect: Effect,
    /// Kernels whose ready counts drop when this kernel ends, in this order: users of its results, then `successors`.
    dependents: Span,
    /// Registers that are dead after this kernel, if kernels run in program order.
    dead_after: Span,
    /// Kernels that must run after this one but do not use its results.
    successors: Span,
}

/// A kernel's direct call on the registers, if the kernel supports it ([`Kernel::as_plain_kernel`]).
pub(crate) struct PlainCall {
    kernel: Option<PlainKernel>,
    operands: PlainOperands,
}

impl PlainCall {
    /// Runs the kernel if it takes and returns only scalars and chains. Returns false and changes nothing otherwise.
    #[inline(always)]
    pub(crate) fn run(&self, registers: &mut [Value]) -> bool {
        self.kernel.as_ref().is_some_and(|kernel| kernel.run(registers, &self.operands))
    }
}

/// The executor's static information about a register.
#[derive(Clone, Copy, Default)]
pub(crate) struct Register {
    /// Kernels that use the register, in the order in which they become ready; a kernel is listed once for each use.
    users: Span,
    /// Number of uses of the register; being returned by the function counts as a use.
    pub(crate) uses: u32,
    /// Whether the function returns the register.
    pub(crate) returned: bool,
    /// The stream of the kernel that sets the register.
    pub(crate) stream: u32,
    /// The kernel that sets the register; [`Self::ARGUMENT`] if the register is an argument.
    pub(crate) setter: u32,
}

impl Register {
    /// The setter of an argument: no kernel has this index.
    pub(crate) const ARGUMENT: u32 = u32::MAX;
}

/// The kernels of a function and their def-use edges, checked so that executors can rely on them: every register is
/// an argument or is set by exactly one kernel, and kernels use only registers that arguments or earlier kernels set.
pub(crate) struct Body {
    pub(crate) nodes: Box<[Node]>,
    /// The direct call of each kernel.
    pub(crate) plain: Box<[PlainCall]>,
    pub(crate) sites: Box<[Site]>,
    table: Box<[u32]>,
    pub(crate) registers: Box<[Register]>,
    /// Initial counts: the uses of each register, then the number of operands and predecessors that each kernel waits
    /// for, at least one.
    pub(crate) counts: Box<[u32]>,
    /// Kernels without operands and predecessors.
    root_kernels: Span,
    /// Kernels without operands and predecessors, then the users of the arguments.
    initial_dependents: Span,
    pub(crate) arguments: usize,
    pub(crate) results: Box<[u32]>,
    pub(crate) root_stream: u32,
    /// Kernels in the order in which one thread runs them before it spawns tasks, as long as all results are
    /// available: [`crate::dataflow::schedule`].
    pub(crate) schedule: Box<[u32]>,
}

impl Body {
    /// The argument registers and the result registers of a kernel.
    #[inline(always)]
    pub(crate) fn operands(&self, node: &Node) -> (&[u32], &[u32]) {
        node.operands.slice(&self.table).split_at(node.arguments as usize)
    }

    /// Kernels whose ready counts drop when a kernel ends with all results available: users of the results, then
    /// successors that use none of them.
    #[inline(always)]
    pub(crate) fn dependents(&self, node: &Node) -> &[u32] {
        node.dependents.slice(&self.table)
    }

    /// Kernels whose ready counts drop at the start if all arguments are available: those that wait for nothing, then
    /// the users of the arguments.
    #[inline(always)]
    pub(crate) fn initial_dependents(&self) -> &[u32] {
        self.initial_dependents.slice(&self.table)
    }

    /// Registers that are dead after a kernel, if kernels run in program order.
    #[inline(always)]
    pub(crate) fn dead_after(&self, node: &Node) -> &[u32] {
        node.dead_after.slice(&self.table)
    }

    /// Kernels that must run after a kernel but do not use its results.
    #[inline(always)]
    pub(crate) fn successors(&self, node: &Node) -> &[u32] {
        node.successors.slice(&self.table)
    }

    /// Kernels that use a register.
    #[inline(always)]
    pub(crate) fn users(&self, register: u32) -> &[u32] {
        self.registers[register as usize].users.slice(&self.table)
    }

    /// Kernels without operands and predecessors.
    pub(crate) fn root_kernels(&self) -> &[u32] {
        self.root_kernels.slice(&self.table)
    }
}
