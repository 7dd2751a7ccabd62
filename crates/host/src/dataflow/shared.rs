//! An execution that several threads know of: registers in cells, atomic counts.

use super::cells::{Cell, ReadyCount, ResultSlot};
use super::own::Own;
use super::ready::{Kernels, Ready};
use super::{no_result, traced};
use crate::async_value::AsyncValue;
use crate::body::{Body, Node};
use crate::context::ExecutionContext;
use crate::function::{Function, FunctionRef};
use crate::kernel::Frame;
use crate::limits::KERNELS_BETWEEN_CHECKS;
use crate::stack;
use crate::value::Value;
use pool::{Resume, Task};
use smallvec::SmallVec;
use std::sync::Arc;
use trace::Tracer;

/// An execution that several threads know of, alive as long as something of it is to be done.
pub(super) struct Execution {
    registers: SmallVec<[Cell; 8]>,
    ready: SmallVec<[ReadyCount; 8]>,
    results: SmallVec<[ResultSlot; 1]>,
    function: Function,
    context: ExecutionContext,
}

/// A place where an execution goes on is a kernel that is ready, or with this bit a register whose value,
/// which the register holds, has become available. There are fewer than 2^31 of either.
const REGISTER: u64 = 1 << 32;

impl Resume for Execution {
    fn resume(self: Arc<Self>, place: u64) {
        let index = place as u32;
        self.go_on(|part, body| {
            if place & REGISTER == 0 {
                return Ready::with(body.nodes[index as usize].stream, index);
            }
            let mut ready = Ready::new(body.registers[index as usize].stream);
            // SAFETY: `Part::publish` put the value that was waited for and told nobody else.
            let value = unsafe { part.registers[index as usize].take_back() };
            part.put(index, value.settle(), &mut ready);
            ready
        });
    }
}

impl Execution {
    /// Takes over an execution that only this thread knew of.
    pub(super) fn new(
        own: &mut Own,
        body: &Body,
        function: FunctionRef<'_>,
        context: &ExecutionContext,
    ) -> Self {
        let results = body.results.iter().map(|&r| ResultSlot::new(own.is_set(r))).collect();
        let (registers, waiting) = own.take();
        Self {
            results,
            registers: registers.map(|(value, uses)| Cell::new(value, uses)).collect(),
            ready: waiting.iter().map(|&n| ReadyCount::new(n)).collect(),
            function: function.to_function(),
            context: context.for_execution(),
        }
    }

    /// Takes part in the execution with what `begin` finds ready.
    fn go_on(self: &Arc<Self>, begin: impl FnOnce(&Part<'_>, &Body) -> Ready) {
        stack::scope(|| {
            let Some(body) = self.function.by_ref().body_if_read() else { return };
            let part = Part::new(self, body);
            let mut ready = begin(&part, body);
            let mut count = 1;
            part.kernels(&mut ready, &mut count);
            self.context.count_some_kernels(count);
        });
    }

    /// Gives the results, as far as they are there. Called once.
    pub(super) fn give_results(&self, body: &Body, give: &mut dyn FnMut(usize, &mut Value)) {
        for (i, (slot, &register)) in self.results.iter().zip(&body.results).enumerate() {
            let mut later = None;
            // SAFETY: this is called once for each execution, so once for each slot.
            let set = unsafe {
                slot.is_set_or(|| {
                    let (promise, value) = AsyncValue::new();
                    later = Some(value);
                    promise
                })
            };
            match later {
                Some(value) if !set => give(i, &mut Value::Async(value)),
                // SAFETY: the slot has said that the register is set; each result is one of its uses.
                _ => give(i, &mut unsafe { self.registers[register as usize].take_use() }.settle()),
            }
        }
    }
}

/// A thread's part in an execution that others know of.
pub(super) struct Part<'a> {
    execution: &'a Arc<Execution>,
    registers: &'a [Cell],
    ready: &'a [ReadyCount],
    body: &'a Body,
}

impl<'a> Part<'a> {
    #[inline]
    pub(super) fn new(execution: &'a Arc<Execution>, body: &'a Body) -> Self {
        Self { execution, registers: &execution.registers, ready: &execution.ready, body }
    }

    /// Sets a register and counts it in for the kernels that use it.
    fn put(&self, register: u32, value: Value, ready: &mut Ready) {
        // SAFETY: a register is set by one kernel, which runs once, or is an argument (`Body`); its
        // users and the caller are told below.
        unsafe { self.registers[register as usize].put(value) };
        self.is_put(register, ready);
    }

    /// Wakes the waiters of a register that was just set.
    #[inline(always)]
    fn is_put(&self, register: u32, ready: &mut Ready) {
        if self.body.registers[register as usize].returned {
            self.give(register);
        }
        self.arrive(self.body.users(register), ready);
    }

    /// Counts an operand in for kernels, and makes those ready that wait for no more.
    #[inline(always)]
    fn arrive(&self, kernels: &[u32], ready: &mut Ready) {
        for &kernel in kernels {
            if self.ready[kernel as usize].arrive() {
                ready.push(kernel, self.body);
            }
        }
    }

    /// Tells the caller that the register, which is returned, is set.
    #[inline(never)]
    fn give(&self, register: u32) {
        let slots = self.execution.results.iter().zip(&self.body.results);
        for (slot, _) in slots.filter(|(_, r)| **r == register) {
            // SAFETY: the register was put just now, which happens once.
            if let Some(promise) = unsafe { slot.set() } {
                // SAFETY: the register is set, and this result is one of its uses.
                promise.set(unsafe { self.registers[register as usize].take_use() });
            }
        }
    }

    /// Sets a register when its value is available, and counts it in for the kernels that use it.
    pub(super) fn publish(&self, register: u32, value: Value, ready: &mut Ready) {
        match value {
            // A value without users in this function is waited for by the caller alone: no need to share the execution.
            Value::Async(value) if !value.is_available() && !self.body.users(register).is_empty() => {
                // SAFETY: a register is set by one kernel, which runs once, or is an argument; nobody is
                // told before the value, taken back, is available.
                unsafe { self.registers[register as usize].put(Value::Async(value.clone())) };
                let execution: Arc<dyn Resume> = Arc::clone(self.execution) as _;
                value.run_when_available(Task::resume(execution, REGISTER | u64::from(register)));
            }
            value => self.put(register, value.settle(), ready),
        }
    }

    /// Counts a kernel that has run in for those that wait for it.
    pub(super) fn succeed(&self, node: &Node, ready: &mut Ready) {
        self.arrive(self.body.successors(node), ready);
    }

    /// Makes tasks of the ready kernels of other streams, one for each stream.
    #[inline(never)]
    pub(super) fn spawn(&self, ready: &mut Ready) {
        let task = |(stream, kernels): (u32, &[u32])| {
            let execution = Arc::clone(self.execution);
            match *kernels {
                [kernel] => Task::resume(execution, kernel.into()),
                _ => {
                    let kernels = Kernels::from_slice(kernels);
                    Task::from(Box::new(move || execution.go_on(|_, _| Ready::of(stream, kernels))))
                }
            }
        };
        self.execution.context.host().queue().add_tasks(ready.others(self.body).map(task));
        ready.clear_others();
    }

    /// Runs ready kernels and those that they make ready.
    pub(super) fn kernels(&self, ready: &mut Ready, count: &mut u32) {
        let mut values = Operands::new();
        let context = &self.execution.context;
        let tracer = context.host().tracer();
        loop {
            if ready.has_others() && ready.settle_others(self.body) {
                self.spawn(ready);
            }
            let Some(kernel) = ready.pop() else { break };
            self.kernel(kernel, &mut values, tracer, ready);
            *count += 1;
            if *count >= KERNELS_BETWEEN_CHECKS {
                context.count_kernels(u64::from(std::mem::take(count)));
            }
        }
    }

    /// Runs one kernel that is ready, on operands taken from the registers.
    #[inline(always)]
    fn kernel(&self, index: u32, values: &mut Operands, tracer: Tracer<'_>, ready: &mut Ready) {
        let Self { execution, registers, body, .. } = *self;
        let (node, site) = (&body.nodes[index as usize], &body.sites[index as usize]);
        let (arguments, results) = body.operands(node);
        let (values, numbers) = values.of(arguments.len() + results.len());
        let context = &execution.context;
        let mut error = context.cancelled().cloned();
        for (&register, value) in arguments.iter().zip(&mut *values) {
            // SAFETY: the kernel's ready count has said, once, that all its arguments are set; each is
            // one of the register's uses.
            unsafe { registers[register as usize].take_use_into(value) };
            if let Value::Error(e) = value {
                error = Some(e.clone());
            }
        }
        let (given, taken) = numbers.split_at(arguments.len());
        values[arguments.len()..].iter_mut().for_each(|result| result.put(Value::Empty));
        if error.is_none() {
            let function = execution.function.by_ref();
            let mut frame = Frame {
                values,
                arguments: given,
                results: taken,
                owned: true,
                shares: false,
                site,
                function,
                context,
                in_order: false,
                error: None,
            };
            if tracer.is_enabled() {
                traced(tracer, function, index, site, || node.kernel.run(&mut frame));
            } else {
                node.kernel.run(&mut frame);
            }
            error = frame.error;
        }
        let (given, taken) = values.split_at_mut(arguments.len());
        given.iter_mut().for_each(Value::release);
        if let Some(error) = error {
            taken.fill(Value::Error(error));
        }
        for (&register, value) in results.iter().zip(taken) {
            if body.registers[register as usize].uses == 0 {
                value.put(Value::Empty);
            } else if value.is_number_or_chain() {
                // SAFETY: a register is set by one kernel, which runs once.
                unsafe { registers[register as usize].put_copy(value) };
                self.is_put(register, ready);
            } else {
                let value = std::mem::take(value);
                let value = if matches!(value, Value::Empty) { no_result(&site.name) } else { value };
                self.publish(register, value, ready);
            }
        }
        self.succeed(node, ready);
    }
}

/// Room for the operands of one kernel at a time: arguments, then results.
struct Operands {
    few: [Value; 4],
    many: Vec<Value>,
    /// Numbers of operands, where they are many.
    numbers: Vec<u32>,
}

impl Operands {
    fn new() -> Self {
        Self { few: [const { Value::Empty }; 4], many: Vec::new(), numbers: Vec::new() }
    }

    /// Room for so many operands, and their numbers.
    #[inline(always)]
    fn of(&mut self, count: usize) -> (&mut [Value], &[u32]) {
        if count <= self.few.len() {
            return (&mut self.few[..count], &FIRST[..count]);
        }
        if self.many.len() < count {
            self.many.resize_with(count, Value::default);
        }
        if count > FIRST.len() && self.numbers.len() < count {
            self.numbers = (0..count as u32).collect();
        }
        let numbers = FIRST.get(..count).unwrap_or_else(|| &self.numbers[..count]);
        (&mut self.many[..count], numbers)
    }
}

/// Numbers of the operands of kernels that do not have many.
const FIRST: [u32; 64] = {
    let mut all = [0; 64];
    let mut i = 0;
    while i < all.len() {
        all[i] = i as u32;
        i += 1;
    }
    all
};
