//! How far an execution goes before it is refused, so that no program, however hostile, takes all
//! memory or runs for ever.

/// What one request may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Kernels that may run.
    pub kernels: u64,
    /// Function executions that may be under way at the same time: the depth of a recursion, and the
    /// length of the work queue.
    pub executions: usize,
    /// Bytes that values may be asked to hold by one kernel.
    pub value_bytes: u64,
}

impl Limits {
    /// Large enough for honest programs; one that runs for ever is stopped after minutes.
    pub const DEFAULT: Self = Self { kernels: 1 << 33, executions: 1 << 22, value_bytes: 1 << 34 };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Kernels between two looks at a request's kernel limit.
pub(crate) const KERNELS_BETWEEN_CHECKS: u32 = 1024;

/// Bytes of stack that nested executions and continuations may use; deeper ones become tasks. Half
/// of what a thread has by default.
pub(crate) const STACK_BYTES: usize = 1 << 20;

/// Functions, and kernels in them, that are looked at to see whether a function may run in program order. Larger
/// programs are scheduled.
pub(crate) const MOST_ORDERED_FUNCTIONS: usize = 1 << 10;
pub(crate) const MOST_ORDERED_KERNELS: usize = 1 << 16;
