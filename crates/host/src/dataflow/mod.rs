//! Asynchronous execution: a kernel runs once its operands are available, counted by an atomic.
//!
//! Kernels of one stream run one after another on the thread that follows the stream; others become
//! tasks of the work queue. No lock is taken on the way.

mod cells;
mod order;
mod ready;

use crate::async_value::AsyncValue;
use crate::body::Body;
use crate::context::ExecutionContext;
use crate::error::{ErrorCode, ErrorValue};
use crate::function::{Function, Results, invalid};
use crate::kernel::{Env, Frame};
use crate::limits::KERNELS_BETWEEN_CHECKS;
use crate::stack;
use crate::value::Value;
use cells::{Cell, ReadyCount, ResultSlot};
use ready::{Kernels, Ready};
use smallvec::SmallVec;
use std::sync::Arc;
use trace::{Place, SpanKind};

#[cfg(loom)]
pub(crate) use cells::{Cell as ModelCell, ReadyCount as ModelReadyCount, ResultSlot as ModelResultSlot};

pub(crate) type Arguments = SmallVec<[Value; 4]>;

/// Starts a function here.
pub(crate) fn execute(function: &Function, context: &ExecutionContext, arguments: Arguments) -> Results {
    let body = match function.body() {
        Ok(body) => body,
        Err(error) => return function.all(invalid(&error)),
    };
    if let Err(error) = context.begin_execution() {
        return function.all(error);
    }
    let execution = Arc::new(Execution::new(function, body, context));
    stack::scope(|| {
        execution.start(body, arguments);
        execution.collect(body)
    })
}

/// Starts a function as a task.
pub(crate) fn execute_later(
    function: &Function,
    context: &ExecutionContext,
    arguments: Arguments,
) -> Results {
    let (promises, results): (Vec<_>, Results) = (0..function.results())
        .map(|_| AsyncValue::new())
        .map(|(promise, value)| (promise, Value::Async(value)))
        .unzip();
    let (function, inner) = (function.clone(), context.clone());
    context.host().queue().add_task(Box::new(move || {
        let values = stack::scope(|| function.execute(&inner, &arguments));
        promises.into_iter().zip(values).for_each(|(promise, value)| promise.set(value));
    }));
    results
}

/// One execution of a function, alive as long as something of it is to be done.
struct Execution {
    function: Function,
    context: ExecutionContext,
    registers: SmallVec<[Cell; 8]>,
    ready: SmallVec<[ReadyCount; 8]>,
    results: SmallVec<[ResultSlot; 2]>,
}

impl Execution {
    fn new(function: &Function, body: &Body, context: &ExecutionContext) -> Self {
        Self {
            function: function.clone(),
            context: context.clone(),
            registers: body.registers.iter().map(|r| Cell::new(r.uses)).collect(),
            ready: body.ready.iter().map(|&n| ReadyCount::new(n)).collect(),
            results: body.results.iter().map(|_| ResultSlot::new()).collect(),
        }
    }

    /// Sets the arguments and runs what is ready.
    fn start(self: &Arc<Self>, body: &Body, arguments: Arguments) {
        let mut ready = Ready::new(body.root_stream);
        for &kernel in body.start() {
            if self.ready[kernel as usize].arrive() {
                ready.push(kernel, body);
            }
        }
        for (register, argument) in (0u32..).zip(arguments) {
            if body.registers[register as usize].uses > 0 {
                self.publish(body, register, argument, &mut ready);
            }
        }
        self.run(body, ready);
    }

    /// The results, as far as they are there.
    fn collect(&self, body: &Body) -> Results {
        let collect = |(slot, &register): (&ResultSlot, &u32)| {
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
                Some(value) if !set => Value::Async(value),
                // SAFETY: the slot has said that the register is set; each result is one of its uses.
                _ => unsafe { self.registers[register as usize].take_use() }.settle(),
            }
        };
        self.results.iter().zip(&body.results).map(collect).collect()
    }

    /// Sets a register when its value is available, and counts it in for the kernels that use it.
    fn publish(self: &Arc<Self>, body: &Body, register: u32, value: Value, ready: &mut Ready) {
        match value.settle() {
            Value::Async(value) if !body.users(register).is_empty() => {
                let (this, stream, source) = (Arc::clone(self), ready.stream, value.clone());
                value.and_then(move || this.resume(register, Value::Async(source), stream));
            }
            // Nobody but the caller waits for it, who can do so as well as we.
            value => self.put(body, register, value, ready),
        }
    }

    fn put(&self, body: &Body, register: u32, value: Value, ready: &mut Ready) {
        // SAFETY: a register is set by one kernel, which runs once, or is an argument (`Body`); its
        // users and the caller are told below.
        unsafe { self.registers[register as usize].put(value) };
        if body.registers[register as usize].returned {
            self.give(body, register);
        }
        for &kernel in body.users(register) {
            if self.ready[kernel as usize].arrive() {
                ready.push(kernel, body);
            }
        }
    }

    /// Tells the caller that the register, which is returned, is set.
    #[inline(never)]
    fn give(&self, body: &Body, register: u32) {
        for (slot, _) in self.results.iter().zip(&body.results).filter(|(_, r)| **r == register) {
            // SAFETY: the register was put just now, which happens once.
            if let Some(promise) = unsafe { slot.set() } {
                // SAFETY: the register is set, and this result is one of its uses.
                promise.set(unsafe { self.registers[register as usize].take_use() });
            }
        }
    }

    /// Goes on with an asynchronous value that has become available.
    fn resume(self: &Arc<Self>, register: u32, value: Value, stream: u32) {
        let Ok(body) = self.function.body() else { return };
        let mut ready = Ready::new(stream);
        self.put(body, register, value.settle(), &mut ready);
        self.run(body, ready);
    }

    /// Runs ready kernels and those that they make ready.
    fn run(self: &Arc<Self>, body: &Body, mut ready: Ready) {
        let mut values = SmallVec::<[Value; 8]>::new();
        // An execution without kernels counts, too.
        let mut count = 1;
        while let Some(kernel) = ready.pop(body, |stream, kernels| self.spawn(stream, kernels)) {
            self.run_kernel(body, kernel, &mut values, &mut ready);
            count += 1;
            if count >= KERNELS_BETWEEN_CHECKS {
                self.context.count_kernels(u64::from(std::mem::take(&mut count)));
            }
        }
        self.context.count_kernels(u64::from(count));
    }

    /// Makes a task of ready kernels of one stream.
    fn spawn(self: &Arc<Self>, stream: u32, kernels: Kernels) {
        let this = Arc::clone(self);
        self.context.host().queue().add_task(Box::new(move || {
            stack::scope(|| {
                if let Ok(body) = this.function.body() {
                    this.run(body, Ready::of(stream, kernels));
                }
            });
        }));
    }

    /// Runs one kernel that is ready. `values` is empty, and is so again afterwards.
    fn run_kernel(
        self: &Arc<Self>,
        body: &Body,
        kernel: u32,
        values: &mut SmallVec<[Value; 8]>,
        ready: &mut Ready,
    ) {
        let (node, site) = (&body.nodes[kernel as usize], &body.sites[kernel as usize]);
        let operands = body.operands(node);
        let (arguments, results) = operands.split_at(node.arguments as usize);
        let mut error = self.context.cancelled().cloned();
        for &register in arguments {
            // SAFETY: the kernel's ready count has said, once, that all its arguments are set; each is
            // one of the register's uses.
            let value = unsafe { self.registers[register as usize].take_use() };
            if let Value::Error(e) = &value {
                error = Some(e.clone());
            }
            values.push(value);
        }
        values.resize_with(operands.len(), Value::default);
        if error.is_none() {
            error = self.call(kernel, node, site, values);
        }
        let given = values.len() - results.len();
        values[..given].iter_mut().for_each(|argument| *argument = Value::Empty);
        for (&register, value) in results.iter().zip(&mut values[given..]) {
            let value = match &error {
                Some(error) => Value::Error(error.clone()),
                None => std::mem::take(value),
            };
            if body.registers[register as usize].uses == 0 {
                continue;
            }
            let value = if matches!(value, Value::Empty) { no_result(&site.name) } else { value };
            self.publish(body, register, value, ready);
        }
        values.clear();
        for &successor in body.successors(node) {
            if self.ready[successor as usize].arrive() {
                ready.push(successor, body);
            }
        }
    }

    /// Calls a kernel's implementation on a frame of its own.
    #[inline(always)]
    fn call(
        &self,
        index: u32,
        node: &crate::body::Node,
        site: &crate::kernel::Site,
        values: &mut [Value],
    ) -> Option<ErrorValue> {
        const FIRST: [u32; 64] = {
            let mut all = [0; 64];
            let mut i = 0;
            while i < all.len() {
                all[i] = i as u32;
                i += 1;
            }
            all
        };
        let many: Vec<u32>;
        let operands = match FIRST.get(..values.len()) {
            Some(few) => few,
            None => {
                many = (0..values.len() as u32).collect();
                &many
            }
        };
        let mut frame = Frame {
            values,
            operands,
            arguments: node.arguments as usize,
            owned: true,
            site,
            function: &self.function,
            context: &self.context,
            env: Env::None,
            error: None,
        };
        let tracer = self.context.host().tracer();
        let start = tracer.start();
        node.kernel.run(&mut frame);
        let error = frame.error.take();
        if start.is_some() {
            let place = Place::instruction(self.function.index() as u32, index);
            tracer.end(start, SpanKind::Kernel, &site.name, place);
        }
        error
    }
}

#[cold]
fn no_result(kernel: &str) -> Value {
    Value::Error(ErrorValue::new(ErrorCode::Internal, format!("kernel `{kernel}` did not set a result")))
}

impl Drop for Execution {
    fn drop(&mut self) {
        self.context.end_execution();
    }
}
