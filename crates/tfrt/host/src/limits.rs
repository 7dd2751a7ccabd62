//! Resource limits of an execution, so that no program, however hostile, uses up all memory or runs for ever.

/// The resources that one request may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of kernels that the request runs.
    pub kernels: u64,
    /// Maximum number of function executions under way at the same time. It bounds the depth of recursion and the
    /// length of the work queue.
    pub executions: usize,
    /// Maximum size in bytes of one value (buffer, string or tensor of strings) that a kernel creates.
    pub value_bytes: u64,
    /// Maximum memory in bytes of all values that live at the same time
    /// ([`ExecutionContext::charge`](crate::ExecutionContext::charge)), and of the executions under way.
    pub memory: u64,
}

impl Limits {
    /// The default: enough for legitimate programs, while an endless program is stopped after minutes.
    pub const DEFAULT: Self =
        Self { kernels: 1 << 33, executions: 1 << 22, value_bytes: 1 << 34, memory: u64::MAX };
}

impl Default for Limits {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// Number of kernels between two checks of a request's kernel limit.
pub(crate) const KERNELS_BETWEEN_CHECKS: u32 = 1024;

/// Stack bytes that nested executions and continuations may use; deeper ones become tasks. Half of a thread's
/// default stack.
pub(crate) const STACK_BYTES: usize = 1 << 20;

/// Stack size in bytes of a nested thread, which continues the work of a thread whose stack is full
/// ([`crate::nested`]).
pub(crate) const NESTED_THREAD_BYTES: usize = 8 << 20;

/// Stack bytes that executions and continuations may use on a nested thread, in place of [`STACK_BYTES`].
pub(crate) const NESTED_STACK_BYTES: usize = NESTED_THREAD_BYTES / 4 * 3;

/// Maximum number of functions, and of kernels in them, that are analysed to decide whether a function may run in
/// program order. Larger programs run as dataflow.
pub(crate) const MAX_ORDERED_FUNCTIONS: usize = 1 << 10;
pub(crate) const MAX_ORDERED_KERNELS: usize = 1 << 16;
