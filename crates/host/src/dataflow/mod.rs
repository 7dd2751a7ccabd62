//! Asynchronous execution: a kernel runs once its operands are available, counted by an atomic.
//!
//! Kernels of one stream run one after another on the thread that follows the stream; others become
//! tasks of the work queue. No lock is taken on the way. As long as no other thread knows of an
//! execution (no task, nobody waiting for a value), kernels work on its registers in place and are
//! counted without atomic operations; the execution moves to the heap when it has to be shared.

mod cells;
mod order;
mod ready;

use crate::async_value::AsyncValue;
use crate::body::{Body, Node};
use crate::context::ExecutionContext;
use crate::error::{ErrorCode, ErrorValue};
use crate::function::{Function, Results, invalid};
use crate::kernel::{Env, Frame, Site};
use crate::limits::KERNELS_BETWEEN_CHECKS;
use crate::stack;
use crate::value::Value;
use cells::{Cell, ReadyCount, ResultSlot};
use ready::{Kernels, Ready};
use smallvec::SmallVec;
use std::sync::Arc;
use trace::{Place, SpanKind, Tracer};

#[cfg(all(test, loom))]
pub(crate) use cells::{Cell as ModelCell, ReadyCount as ModelReadyCount, ResultSlot as ModelResultSlot};

/// Starts a function here.
pub(crate) fn execute(function: &Function, context: &ExecutionContext, arguments: &[Value]) -> Results {
    let body = match function.body() {
        Ok(body) => body,
        Err(error) => return function.all(invalid(&error)),
    };
    stack::scope(|| {
        let mut run = Run { function, context, body, home: Home::Own(Own::new(body)) };
        let mut ready = Ready::new(body.root_stream);
        run.start(arguments, &mut ready);
        run.kernels(ready);
        match &mut run.home {
            Home::Own(own) => own.collect(body),
            Home::Shared(execution) => execution.collect(body),
        }
    })
}

/// Starts a function as a task.
pub(crate) fn execute_later(function: &Function, context: &ExecutionContext, arguments: &[Value]) -> Results {
    let (promises, results): (Vec<_>, Results) = (0..function.results())
        .map(|_| AsyncValue::new())
        .map(|(promise, value)| (promise, Value::Async(value)))
        .unzip();
    let (function, arguments) = (function.clone(), arguments.to_vec());
    let counted = Counted::new(context);
    context.host().queue().add_task(Box::new(move || {
        let values = stack::scope(|| function.execute(&counted.0, &arguments));
        promises.into_iter().zip(values).for_each(|(promise, value)| promise.set(value));
    }));
    results
}

/// A request of which something is under way, counted as such.
struct Counted(ExecutionContext);

impl Counted {
    fn new(context: &ExecutionContext) -> Self {
        context.begin_execution();
        Self(context.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.end_execution();
    }
}

/// The state of an execution that no other thread knows of.
struct Own {
    registers: SmallVec<[Value; 8]>,
    /// Uses to come of the registers that share something, and operands that kernels wait for.
    counts: SmallVec<[u32; 16]>,
}

impl Own {
    #[inline(always)]
    fn new(body: &Body) -> Self {
        let count = body.registers.len();
        let registers = if count <= 8 {
            SmallVec::from_buf_and_len([const { Value::Empty }; 8], count)
        } else {
            std::iter::repeat_with(Value::default).take(count).collect()
        };
        Self { registers, counts: SmallVec::from_slice(&body.counts) }
    }

    /// Counts an operand of a kernel in.
    #[inline(always)]
    fn arrive(&mut self, kernel: u32, body: &Body, ready: &mut Ready) {
        let count = &mut self.counts[body.registers.len() + kernel as usize];
        *count -= 1;
        if *count == 0 {
            ready.push(kernel, body);
        }
    }

    /// Counts a use out of a register that shares something.
    #[inline(never)]
    fn end_use(&mut self, register: u32) {
        let uses = &mut self.counts[register as usize];
        *uses = uses.saturating_sub(1);
        if *uses == 0 {
            self.registers[register as usize] = Value::Empty;
        }
    }

    /// The results. Every kernel has run: what waits for something is not only this thread's.
    fn collect(&mut self, body: &Body) -> Results {
        let take = |(i, &register): (usize, &u32)| {
            let again = body.results[i + 1..].contains(&register);
            let register = &mut self.registers[register as usize];
            if again { register.clone() } else { std::mem::take(register) }.settle()
        };
        body.results.iter().enumerate().map(take).collect()
    }
}

/// An execution that several threads know of, alive as long as something of it is to be done.
struct Execution {
    registers: Box<[Cell]>,
    ready: Box<[ReadyCount]>,
    results: SmallVec<[ResultSlot; 2]>,
    function: Function,
    context: Counted,
}

impl Execution {
    fn new(own: Own, body: &Body, function: &Function, context: &ExecutionContext) -> Self {
        let is_set = |register: &u32| !matches!(own.registers[*register as usize], Value::Empty);
        let results = body.results.iter().map(|r| ResultSlot::new(is_set(r))).collect();
        let (uses, ready) = own.counts.split_at(body.registers.len());
        Self {
            results,
            ready: ready.iter().map(|&n| ReadyCount::new(n)).collect(),
            registers: own.registers.into_iter().zip(uses).map(|(v, &n)| Cell::new(v, n)).collect(),
            function: function.clone(),
            context: Counted::new(context),
        }
    }

    /// Takes part in the execution with what `begin` finds ready.
    fn go_on(self: Arc<Self>, begin: impl FnOnce(&mut Run<'_>) -> Ready) {
        stack::scope(|| {
            let Ok(body) = self.function.body() else { return };
            let home = Home::Shared(Arc::clone(&self));
            let mut run = Run { function: &self.function, context: &self.context.0, body, home };
            let ready = begin(&mut run);
            run.kernels(ready);
        });
    }

    /// Sets a register and counts it in for the kernels that use it.
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
    fn give(&self, body: &Body, register: u32) {
        for (slot, _) in self.results.iter().zip(&body.results).filter(|(_, r)| **r == register) {
            // SAFETY: the register was put just now, which happens once.
            if let Some(promise) = unsafe { slot.set() } {
                // SAFETY: the register is set, and this result is one of its uses.
                promise.set(unsafe { self.registers[register as usize].take_use() });
            }
        }
    }

    /// The results, as far as they are there. Called once.
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
}

/// Where the state of an execution stands.
#[expect(clippy::large_enum_variant, reason = "what is not shared is not to be allocated")]
enum Home {
    Own(Own),
    Shared(Arc<Execution>),
}

/// A thread's part in an execution.
struct Run<'a> {
    function: &'a Function,
    context: &'a ExecutionContext,
    body: &'a Body,
    home: Home,
}

impl Run<'_> {
    /// The execution, for other threads to know of.
    fn share(&mut self) -> Arc<Execution> {
        if let Home::Own(own) = &mut self.home {
            let nothing = Own { registers: SmallVec::new(), counts: SmallVec::new() };
            let own = std::mem::replace(own, nothing);
            let execution = Execution::new(own, self.body, self.function, self.context);
            self.home = Home::Shared(Arc::new(execution));
        }
        match &self.home {
            Home::Shared(execution) => Arc::clone(execution),
            Home::Own(_) => unreachable!("it was shared just now"),
        }
    }

    /// Sets the arguments.
    #[inline(always)]
    fn start(&mut self, arguments: &[Value], ready: &mut Ready) {
        let body = self.body;
        if let Home::Own(own) = &mut self.home {
            body.start().iter().for_each(|&kernel| own.arrive(kernel, body, ready));
        }
        for (register, argument) in (0u32..).zip(arguments) {
            if body.registers[register as usize].uses > 0 {
                self.publish(register, argument.clone(), ready);
            }
        }
    }

    /// Sets a register when its value is available, and counts it in for the kernels that use it.
    #[inline(always)]
    fn publish(&mut self, register: u32, value: Value, ready: &mut Ready) {
        match value {
            Value::Async(value) => self.publish_async(register, value, ready),
            value => self.put(register, value, ready),
        }
    }

    #[inline(never)]
    fn publish_async(&mut self, register: u32, value: AsyncValue, ready: &mut Ready) {
        // If nobody but the caller waits for it, the caller can do so as well as we.
        if value.is_available() || self.body.users(register).is_empty() {
            return self.put(register, Value::Async(value).settle(), ready);
        }
        let (execution, stream, source) = (self.share(), ready.stream, value.clone());
        value.and_then(move || {
            execution.go_on(|run| {
                let mut ready = Ready::new(stream);
                run.put(register, Value::Async(source).settle(), &mut ready);
                ready
            });
        });
    }

    #[inline(always)]
    fn put(&mut self, register: u32, value: Value, ready: &mut Ready) {
        let body = self.body;
        match &mut self.home {
            Home::Shared(execution) => execution.put(body, register, value, ready),
            Home::Own(own) => {
                own.registers[register as usize] = value;
                body.users(register).iter().for_each(|&kernel| own.arrive(kernel, body, ready));
            }
        }
    }

    /// Makes a task of ready kernels of one stream.
    fn spawn(&mut self, stream: u32, kernels: Kernels) {
        let execution = self.share();
        self.context.host().queue().add_task(Box::new(move || {
            execution.go_on(|_| Ready::of(stream, kernels));
        }));
    }

    /// Runs ready kernels and those that they make ready.
    fn kernels(&mut self, mut ready: Ready) {
        let body = self.body;
        let mut values = Operands::new();
        let tracer = self.context.host().tracer();
        // An execution without kernels counts, too.
        let mut count = 1;
        loop {
            if ready.has_others() {
                ready.settle_others(body, |stream, kernels| self.spawn(stream, kernels));
            }
            let Some(kernel) = ready.pop() else { break };
            if matches!(self.home, Home::Own(_)) {
                self.own_kernel(kernel, tracer, &mut ready);
            } else {
                self.shared_kernel(kernel, &mut values, tracer, &mut ready);
            }
            count += 1;
            if count >= KERNELS_BETWEEN_CHECKS {
                self.context.count_kernels(u64::from(std::mem::take(&mut count)));
            }
        }
        self.context.count_some_kernels(count);
    }

    /// Runs one kernel that is ready on the registers themselves.
    #[inline(always)]
    fn own_kernel(&mut self, index: u32, tracer: Tracer<'_>, ready: &mut Ready) {
        let Self { function, context, body, home } = self;
        let (body, Home::Own(own)) = (*body, home) else { return };
        let (node, site) = (&body.nodes[index as usize], &body.sites[index as usize]);
        let operands = body.operands(node);
        let (arguments, results) = operands.split_at(node.arguments as usize);
        let mut error = context.cancelled().cloned();
        let mut shares = false;
        for &register in arguments {
            let value = &own.registers[register as usize];
            shares |= !value.is_plain();
            if let Value::Error(e) = value {
                error = Some(e.clone());
            }
        }
        if error.is_none() {
            let mut frame = Frame {
                values: &mut own.registers,
                operands,
                arguments: arguments.len(),
                owned: false,
                shares: false,
                site,
                function,
                context,
                env: Env::None,
                error: None,
            };
            if tracer.is_enabled() {
                traced(tracer, function, index, site, || node.kernel.run(&mut frame));
            } else {
                node.kernel.run(&mut frame);
            }
            error = frame.error;
        }
        if shares {
            for &register in arguments {
                if !own.registers[register as usize].is_plain() {
                    own.end_use(register);
                }
            }
        }
        for (i, &register) in results.iter().enumerate() {
            let value = &mut own.registers[register as usize];
            if let Some(error) = &error {
                *value = Value::Error(error.clone());
            }
            match value {
                Value::Empty => *value = no_result(&site.name),
                Value::Async(_) => return self.publish_all(index, i, ready),
                _ => {}
            }
            if body.registers[register as usize].uses == 0 {
                value.release();
            }
            body.users(register).iter().for_each(|&kernel| own.arrive(kernel, body, ready));
        }
        body.successors(node).iter().for_each(|&kernel| own.arrive(kernel, body, ready));
    }

    /// Publishes results of a kernel that has run on the registers themselves, from number `from` on,
    /// of which some may not be available.
    #[inline(never)]
    fn publish_all(&mut self, index: u32, from: usize, ready: &mut Ready) {
        let body = self.body;
        let (node, site) = (&body.nodes[index as usize], &body.sites[index as usize]);
        let results = &body.operands(node)[node.arguments as usize + from..];
        let Home::Own(own) = &mut self.home else { return };
        let values: Results =
            results.iter().map(|&r| std::mem::take(&mut own.registers[r as usize])).collect();
        self.publish_results(&site.name, results, values, ready);
        self.succeed(node, ready);
    }

    fn publish_results(
        &mut self,
        kernel: &str,
        registers: &[u32],
        values: impl IntoIterator<Item = Value>,
        ready: &mut Ready,
    ) {
        for (&register, value) in registers.iter().zip(values) {
            if self.body.registers[register as usize].uses > 0 {
                let value = if matches!(value, Value::Empty) { no_result(kernel) } else { value };
                self.publish(register, value, ready);
            }
        }
    }

    /// Counts a kernel that has run in for those that wait for it.
    fn succeed(&mut self, node: &Node, ready: &mut Ready) {
        let body = self.body;
        for &successor in body.successors(node) {
            match &mut self.home {
                Home::Own(own) => own.arrive(successor, body, ready),
                Home::Shared(execution) if execution.ready[successor as usize].arrive() => {
                    ready.push(successor, body);
                }
                Home::Shared(_) => {}
            }
        }
    }

    /// Runs one kernel that is ready, on operands taken from the registers.
    fn shared_kernel(&mut self, index: u32, values: &mut Operands, tracer: Tracer<'_>, ready: &mut Ready) {
        let (body, Home::Shared(execution)) = (self.body, &self.home) else { return };
        let (node, site) = (&body.nodes[index as usize], &body.sites[index as usize]);
        let operands = body.operands(node);
        let (arguments, results) = operands.split_at(node.arguments as usize);
        let (values, numbers) = values.of(operands.len());
        let mut error = self.context.cancelled().cloned();
        for (&register, value) in arguments.iter().zip(&mut *values) {
            // SAFETY: the kernel's ready count has said, once, that all its arguments are set; each is
            // one of the register's uses.
            *value = unsafe { execution.registers[register as usize].take_use() };
            if let Value::Error(e) = value {
                error = Some(e.clone());
            }
        }
        let given = arguments.len();
        values[given..].iter_mut().for_each(|result| *result = Value::Empty);
        if error.is_none() {
            let mut frame = Frame {
                values,
                operands: numbers,
                arguments: given,
                owned: true,
                shares: false,
                site,
                function: self.function,
                context: self.context,
                env: Env::None,
                error: None,
            };
            if tracer.is_enabled() {
                traced(tracer, self.function, index, site, || node.kernel.run(&mut frame));
            } else {
                node.kernel.run(&mut frame);
            }
            error = frame.error;
        }
        values[..given].iter_mut().for_each(Value::release);
        if let Some(error) = error {
            values[given..].fill(Value::Error(error));
        }
        self.publish_results(&site.name, results, values[given..].iter_mut().map(std::mem::take), ready);
        self.succeed(node, ready);
    }
}

#[cold]
fn traced(tracer: Tracer<'_>, function: &Function, index: u32, site: &Site, run: impl FnOnce()) {
    let start = tracer.start();
    run();
    let place = Place::instruction(function.index() as u32, index);
    tracer.end(start, SpanKind::Kernel, &site.name, place);
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

#[cold]
fn no_result(kernel: &str) -> Value {
    Value::Error(ErrorValue::new(ErrorCode::Internal, format!("kernel `{kernel}` did not set a result")))
}
