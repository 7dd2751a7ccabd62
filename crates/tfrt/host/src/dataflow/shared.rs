//! Executions shared by several threads: registers in cells, atomic counts.

use super::cells::{Cell, ReadyCount, ResultSlot};
use super::ready::{Kernels, Ready};
use super::state::LocalState;
use super::{Origin, panic_error, run_traced};
use crate::body::{Body, Node};
use crate::frame::Frame;
use crate::function::{Function, FunctionRef};
use crate::limits::KERNELS_BETWEEN_CHECKS;
use crate::memory::Charge;
use crate::request::ExecutionContext;
use crate::stack;
use crate::sync::catch_panic;
use crate::value::Value;
use pteron_pool::{Resume, Task};
use pteron_trace::Tracer;
use smallvec::SmallVec;
use std::sync::Arc;

/// An execution that several threads share. Tasks and waiters keep it alive until they are done.
pub(super) struct Execution {
    registers: SmallVec<[Cell; 8]>,
    ready: SmallVec<[ReadyCount; 8]>,
    results: SmallVec<[ResultSlot; 1]>,
    function: Function,
    context: ExecutionContext,
    /// The charge to the request for the memory of `registers` and `ready`, returned on drop.
    _charge: Option<Charge>,
}

/// A resume point of an execution is the index of a ready kernel or, with this bit set, of a register whose
/// asynchronous value, stored in the register, has become available. There are at most 2^31 of either.
const REGISTER: u64 = 1 << 32;

impl Resume for Execution {
    fn resume(self: Arc<Self>, resume_point: u64) {
        let index = resume_point as u32;
        self.continue_execution(|part, body| {
            if resume_point & REGISTER == 0 {
                return Ready::from_kernel(body.nodes[index as usize].stream, index);
            }
            let mut ready = Ready::new(body.registers[index as usize].stream);
            // SAFETY: `Worker::publish` put the awaited value and notified nobody else.
            let value = unsafe { part.registers[index as usize].take_back() };
            part.set_register(index, part.checked_value(index, value), &mut ready);
            ready
        });
    }
}

impl Execution {
    /// Moves a thread-private execution to the heap.
    pub(super) fn new(
        own: &mut LocalState,
        body: &Body,
        function: FunctionRef<'_>,
        context: &ExecutionContext,
    ) -> Self {
        let results = body.results.iter().map(|&r| ResultSlot::new(own.is_set(r))).collect();
        let bytes = body.registers.len() * size_of::<Cell>() + body.nodes.len() * size_of::<ReadyCount>();
        let (context, charge) = context.begin_execution(size_of::<Self>() + bytes);
        let (registers, waiting) = own.take_state();
        Self {
            results,
            registers: registers.map(|(value, uses)| Cell::new(value, uses)).collect(),
            ready: waiting.iter().map(|&n| ReadyCount::new(n)).collect(),
            function: function.to_function(),
            context,
            _charge: charge,
        }
    }

    /// Runs the kernels that `begin` returns as ready, and those that become ready meanwhile.
    fn continue_execution(self: &Arc<Self>, begin: impl FnOnce(&Worker<'_>, &Body) -> Ready) {
        stack::run_scoped(|| {
            let Some(body) = self.function.by_ref().body_if_read() else { return };
            let part = Worker::new(self, body);
            let mut ready = begin(&part, body);
            let mut count = 1;
            part.run_ready_kernels(&mut ready, &mut count);
            self.context.count_kernels_batched(count);
        });
    }

    /// Passes the results to `set_result`, as asynchronous values where they are not set yet. Called once.
    pub(super) fn deliver_results(&self, body: &Body, set_result: &mut dyn FnMut(usize, &mut Value)) {
        for (i, (slot, &register)) in self.results.iter().zip(&body.results).enumerate() {
            let mut later = None;
            // SAFETY: this is called once for each execution, so once for each slot.
            let set = unsafe {
                slot.is_set_or_store(|| {
                    let (promise, value) = self.context.new_promise();
                    later = Some(value);
                    promise
                })
            };
            match later {
                Some(value) if !set => set_result(i, &mut Value::Async(value)),
                // SAFETY: the slot reported that the register is set; each result is one of its uses.
                _ => set_result(i, &mut unsafe { self.registers[register as usize].take_use() }.settle()),
            }
        }
    }
}

/// One thread's references to the parts of a shared execution.
pub(super) struct Worker<'a> {
    execution: &'a Arc<Execution>,
    registers: &'a [Cell],
    ready: &'a [ReadyCount],
    body: &'a Body,
}

impl<'a> Worker<'a> {
    #[inline]
    pub(super) fn new(execution: &'a Arc<Execution>, body: &'a Body) -> Self {
        Self { execution, registers: &execution.registers, ready: &execution.ready, body }
    }

    /// Sets a register and decrements the ready counts of its users.
    fn set_register(&self, register: u32, value: Value, ready: &mut Ready) {
        // SAFETY: a register is an argument or is set by one kernel, which runs once (`Body`); its users and the caller
        // are notified below.
        unsafe { self.registers[register as usize].put(value) };
        self.notify_users(register, ready);
    }

    /// Notifies the caller and the users of a register that was just set.
    #[inline(always)]
    fn notify_users(&self, register: u32, ready: &mut Ready) {
        if self.body.registers[register as usize].returned {
            self.resolve_result(register);
        }
        self.decrement_ready_counts(self.body.users(register), ready);
    }

    /// Decrements the ready counts of `kernels`, and queues those that reach zero.
    #[inline(always)]
    fn decrement_ready_counts(&self, kernels: &[u32], ready: &mut Ready) {
        for &kernel in kernels {
            if self.ready[kernel as usize].arrive() {
                ready.push(kernel, self.body);
            }
        }
    }

    /// Marks the result slots of a returned register as set, and resolves the caller's promises.
    #[inline(never)]
    fn resolve_result(&self, register: u32) {
        let slots = self.execution.results.iter().zip(&self.body.results);
        for (slot, _) in slots.filter(|(_, r)| **r == register) {
            // SAFETY: the register was put just now, which happens once.
            if let Some(promise) = unsafe { slot.mark_set() } {
                // SAFETY: the register is set, and this result is one of its uses.
                promise.set(unsafe { self.registers[register as usize].take_use() });
            }
        }
    }

    /// Sets a register as soon as its value is available, and decrements the ready counts of its users.
    pub(super) fn publish(&self, register: u32, value: Value, ready: &mut Ready) {
        match value {
            // If no kernel uses the value, only the caller waits for it, and the execution need not resume.
            Value::Async(value) if !value.is_available() && !self.body.users(register).is_empty() => {
                // SAFETY: a register is an argument or is set by one kernel, which runs once; nobody is notified before
                // the value has been taken back and is available.
                unsafe { self.registers[register as usize].put(Value::Async(value.clone())) };
                let execution: Arc<dyn Resume> = Arc::clone(self.execution) as _;
                value.run_when_available(Task::resume(execution, REGISTER | u64::from(register)));
            }
            value => self.set_register(register, self.checked_value(register, value), ready),
        }
    }

    /// The value to store in a register: see [`Origin::check_result`].
    fn checked_value(&self, register: u32, value: Value) -> Value {
        let Self { execution, body, .. } = *self;
        match Origin::setter_of(register, execution.function.by_ref(), body, execution.context.host()) {
            Some(origin) => origin.check_result(value),
            None => value.settle(),
        }
    }

    /// Stores a result that is neither a scalar nor a chain.
    #[inline(never)]
    fn store_result(&self, register: u32, kernel: u32, value: Value, ready: &mut Ready) {
        let Self { execution, body, .. } = *self;
        let (function, host) = (execution.function.by_ref(), execution.context.host());
        let origin = Origin { function, body, kernel, host };
        if let Some(value) = origin.check_result_for(value, register, &execution.context) {
            self.publish(register, value, ready);
        }
    }

    /// Decrements the ready counts of a kernel's control successors.
    pub(super) fn notify_successors(&self, node: &Node, ready: &mut Ready) {
        self.decrement_ready_counts(self.body.successors(node), ready);
    }

    /// Spawns a task for each stream, other than this thread's own, that has ready kernels.
    #[inline(never)]
    pub(super) fn spawn_tasks(&self, ready: &mut Ready) {
        let task = |(stream, kernels): (u32, &[u32])| {
            let execution = Arc::clone(self.execution);
            match *kernels {
                [kernel] => Task::resume(execution, kernel.into()),
                _ => {
                    let kernels = Kernels::from_slice(kernels);
                    Task::from(Box::new(move || {
                        execution.continue_execution(|_, _| Ready::from_kernels(stream, kernels))
                    }))
                }
            }
        };
        self.execution.context.host().queue().add_tasks(ready.other_streams(self.body).map(task));
        ready.clear_other_streams();
    }

    /// Runs the ready kernels and those that become ready meanwhile.
    pub(super) fn run_ready_kernels(&self, ready: &mut Ready, count: &mut u32) {
        let mut values = Operands::new();
        let context = &self.execution.context;
        let tracer = context.host().tracer();
        loop {
            if ready.has_other_streams() && ready.sort_other_streams(self.body) {
                self.spawn_tasks(ready);
            }
            let Some(kernel) = ready.pop() else { break };
            self.run_kernel(kernel, &mut values, tracer, ready);
            *count += 1;
            if *count >= KERNELS_BETWEEN_CHECKS {
                context.count_kernels(u64::from(std::mem::take(count)));
            }
        }
    }

    /// Runs one ready kernel on arguments taken from the registers, then stores its results in the registers.
    #[inline(always)]
    fn run_kernel(&self, index: u32, values: &mut Operands, tracer: Tracer<'_>, ready: &mut Ready) {
        let Self { execution, registers, body, .. } = *self;
        let (node, site) = (&body.nodes[index as usize], &body.sites[index as usize]);
        let (arguments, results) = body.operands(node);
        let (values, indices) = values.slots(arguments.len() + results.len());
        let context = &execution.context;
        let mut error = context.cancellation_error().cloned();
        for (&register, value) in arguments.iter().zip(&mut *values) {
            // SAFETY: the kernel's ready count reached zero, which happens once, so all its arguments are set;
            // each is one of the register's uses.
            unsafe { registers[register as usize].take_use_into(value) };
            if let Value::Error(e) = value {
                error = Some(e.clone());
            }
        }
        let (argument_indices, result_indices) = indices.split_at(arguments.len());
        values[arguments.len()..].iter_mut().for_each(|result| result.put(Value::Empty));
        if error.is_none() {
            let function = execution.function.by_ref();
            let mut frame = Frame {
                values,
                arguments: argument_indices,
                results: result_indices,
                owned: true,
                shares: false,
                site,
                function,
                context,
                in_order: false,
                error: None,
            };
            let ran = catch_panic(|| {
                if tracer.is_enabled() {
                    run_traced(tracer, function, index, site, || node.kernel.run(&mut frame));
                } else {
                    node.kernel.run(&mut frame);
                }
            });
            error = match ran {
                Ok(()) => frame.error,
                Err(panic) => Some(panic_error(&panic, context, function, site)),
            };
        }
        let (argument_values, result_values) = values.split_at_mut(arguments.len());
        argument_values.iter_mut().for_each(Value::release);
        if let Some(error) = error {
            result_values.fill(Value::Error(error));
        }
        for (&register, value) in results.iter().zip(result_values) {
            if !value.is_scalar_or_chain() {
                self.store_result(register, index, std::mem::take(value), ready);
            } else if body.registers[register as usize].uses > 0 {
                // SAFETY: a register is set by one kernel, which runs once.
                unsafe { registers[register as usize].put_copy(value) };
                self.notify_users(register, ready);
            }
        }
        self.notify_successors(node, ready);
    }
}

/// Operand buffer of one kernel at a time: arguments, then results.
struct Operands {
    few: [Value; 4],
    many: Vec<Value>,
    /// `0, 1, 2, …` for kernels with more operands than [`IDENTITY`] has.
    indices: Vec<u32>,
}

impl Operands {
    fn new() -> Self {
        Self { few: [const { Value::Empty }; 4], many: Vec::new(), indices: Vec::new() }
    }

    /// Space for `count` operands, and their indices `0..count`.
    #[inline(always)]
    fn slots(&mut self, count: usize) -> (&mut [Value], &[u32]) {
        if count <= self.few.len() {
            return (&mut self.few[..count], &IDENTITY[..count]);
        }
        if self.many.len() < count {
            self.many.resize_with(count, Value::default);
        }
        if count > IDENTITY.len() && self.indices.len() < count {
            self.indices = (0..count as u32).collect();
        }
        let indices = IDENTITY.get(..count).unwrap_or_else(|| &self.indices[..count]);
        (&mut self.many[..count], indices)
    }
}

/// Operand indices of kernels with few operands: `IDENTITY[i] == i`.
const IDENTITY: [u32; 64] = {
    let mut all = [0; 64];
    let mut i = 0;
    while i < all.len() {
        all[i] = i as u32;
        i += 1;
    }
    all
};
