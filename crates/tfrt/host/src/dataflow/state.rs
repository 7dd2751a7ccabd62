//! The state of an execution private to one thread: plain registers and non-atomic counts.

use super::ready::Ready;
use crate::body::Body;
use crate::value::Value;
use std::cell::RefCell;

/// The state of an execution that only its own thread can access. The thread reuses the memory for later executions.
pub(crate) struct LocalState {
    memory: Memory,
    /// Number of registers of the function; `memory` may hold more.
    used: usize,
    /// Whether a register may hold a refcounted value: an object, an asynchronous value or an error.
    pub(super) shares: bool,
}

#[derive(Default)]
struct Memory {
    /// The registers. One that has not been set yet may hold a scalar or chain of an earlier execution.
    registers: Vec<Value>,
    /// Remaining uses of each register (maintained for refcounted values), then the number of operands that each kernel
    /// still waits for.
    counts: Vec<u32>,
}

/// Maximum number of buffers that a thread keeps for later executions.
const MAX_SPARES: usize = 64;
/// Executions with more registers plus kernels than this do not keep their memory for later ones.
const MAX_SPARE_LEN: usize = 4096;

thread_local! {
    static SPARE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

impl LocalState {
    /// An execution with these arguments; their number must be the function's.
    #[inline]
    pub(super) fn new<'v>(body: &Body, arguments: impl Iterator<Item = &'v Value>) -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        let mut memory = spare.ok().flatten().unwrap_or_default();
        let used = body.registers.len();
        if memory.registers.len() < used {
            memory.registers.resize_with(used, Value::default);
        }
        // Cleared, so that `is_set` can tell which results have been set.
        body.results.iter().for_each(|&r| memory.registers[r as usize].put(Value::Empty));
        let mut shares = false;
        for (register, argument) in memory.registers[..body.arguments].iter_mut().zip(arguments) {
            register.put_copy(argument);
            shares |= !argument.is_plain();
        }
        memory.counts.extend_from_slice(&body.counts);
        Self { memory, used, shares }
    }

    /// The registers, their remaining uses, and the number of operands that each kernel waits for.
    #[inline(always)]
    pub(super) fn split_mut(&mut self) -> (&mut [Value], &mut [u32], &mut [u32]) {
        let (uses, waiting) = self.memory.counts.split_at_mut(self.used);
        (&mut self.memory.registers[..self.used], uses, waiting)
    }

    /// Takes everything out: the registers with their remaining uses, and the number of operands that each kernel waits
    /// for.
    pub(super) fn take_state(&mut self) -> (impl Iterator<Item = (Value, u32)>, &[u32]) {
        let (uses, waiting) = self.memory.counts.split_at(self.used);
        let registers = self.memory.registers[..self.used].iter_mut().map(std::mem::take);
        (registers.zip(uses.iter().copied()), waiting)
    }

    /// Whether an argument is asynchronous, so perhaps not available.
    #[inline]
    pub(super) fn has_async_arguments(&self, body: &Body) -> bool {
        self.memory.registers[..body.arguments].iter().any(|value| matches!(value, Value::Async(_)))
    }

    /// Whether a register that the function returns is set.
    pub(super) fn is_set(&self, register: u32) -> bool {
        !matches!(self.memory.registers[register as usize], Value::Empty)
    }

    /// Decrements the ready counts of `kernels`, and queues those that reach zero.
    #[inline(always)]
    pub(super) fn decrement_ready_counts(&mut self, kernels: &[u32], body: &Body, ready: &mut Ready) {
        let (_, _, waiting) = self.split_mut();
        decrement_ready_counts(waiting, kernels, body, ready);
    }

    /// Passes the results to `set_result`. Requires that every kernel has run.
    #[inline(always)]
    pub(super) fn deliver_results(&mut self, body: &Body, set_result: &mut dyn FnMut(usize, &mut Value)) {
        let (registers, ..) = self.split_mut();
        for (i, &register) in body.results.iter().enumerate() {
            let again = body.results.len() > 1 && body.results[i + 1..].contains(&register);
            let register = &mut registers[register as usize];
            if !register.is_plain() {
                *register = std::mem::take(register).settle();
            }
            if again {
                set_result(i, &mut register.clone());
            } else {
                set_result(i, register);
            }
        }
    }
}

impl Drop for LocalState {
    #[inline]
    fn drop(&mut self) {
        if self.shares {
            self.memory.registers[..self.used].iter_mut().for_each(Value::release);
        }
        self.memory.counts.clear();
        let memory = std::mem::take(&mut self.memory);
        if memory.counts.capacity() <= MAX_SPARE_LEN {
            let _ = SPARE.try_with(move |spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < MAX_SPARES {
                    spare.push(memory);
                }
            });
        }
    }
}

/// Decrements the ready counts of `kernels`, and queues those that reach zero.
#[inline(always)]
pub(super) fn decrement_ready_counts(waiting: &mut [u32], kernels: &[u32], body: &Body, ready: &mut Ready) {
    for &kernel in kernels {
        let count = &mut waiting[kernel as usize];
        *count = count.wrapping_sub(1);
        if *count == 0 {
            ready.push(kernel, body);
        }
    }
}
