//! Executions private to one thread, until they have to be shared.

use super::ready::Ready;
use super::shared::{Execution, Worker};
use super::state::{LocalState, decrement_ready_counts};
use super::{Origin, panic_error, run_traced};
use crate::body::Body;
use crate::error::ErrorValue;
use crate::frame::{Frame, Site};
use crate::function::FunctionRef;
use crate::limits::KERNELS_BETWEEN_CHECKS;
use crate::request::ExecutionContext;
use crate::stack;
use crate::sync::{Panic, catch_panic};
use crate::value::{Results, Value};
use pteron_trace::Tracer;
use std::sync::Arc;

/// Ends one use of a register that holds a refcounted value, and clears the register after the last.
#[inline(never)]
fn end_use(registers: &mut [Value], uses: &mut [u32], register: u32) {
    let left = &mut uses[register as usize];
    *left = left.saturating_sub(1);
    if *left == 0 {
        registers[register as usize] = Value::Empty;
    }
}

/// Owner of an execution's state: this thread, or all threads that share the execution.
enum StateOwner {
    LocalState(LocalState),
    Shared(Arc<Execution>),
}

/// An execution that this thread started.
struct Run<'a> {
    function: FunctionRef<'a>,
    context: &'a ExecutionContext,
    body: &'a Body,
    /// Whether kernels run in program order, until one has a result that is not available yet.
    in_order: bool,
    home: StateOwner,
}

/// Runs an execution as far as possible on this thread.
pub(super) fn run(
    function: FunctionRef<'_>,
    context: &ExecutionContext,
    body: &Body,
    mut own: LocalState,
    in_order: bool,
    set_result: &mut dyn FnMut(usize, &mut Value),
) {
    if body.nodes.is_empty() {
        // An execution without kernels counts as one kernel.
        context.count_kernels_batched(1);
        return own.deliver_results(body, set_result);
    }
    stack::run_scoped(|| {
        let mut count = 1;
        let reached = match own.shares && own.has_async_arguments(body) {
            true => Progress::Start,
            false => run_schedule(function, context, body, &mut own, in_order, &mut count),
        };
        if let Progress::End = reached {
            context.count_kernels_batched(count);
            return own.deliver_results(body, set_result);
        }
        let mut run = Run { function, context, body, in_order, home: StateOwner::LocalState(own) };
        run.continue_execution(reached, count);
        match &mut run.home {
            StateOwner::LocalState(own) => own.deliver_results(body, set_result),
            StateOwner::Shared(execution) => execution.deliver_results(body, set_result),
        }
    })
}

/// How far an execution got by following its schedule.
enum Progress {
    /// No kernel has run: some arguments are not available.
    Start,
    /// This many kernels have run; next, kernels of other streams become tasks.
    Tasks(usize),
    /// This many kernels have run; a result of the last one, which other kernels use, is not available.
    Unavailable(usize),
    /// All kernels have run.
    End,
}

/// The kernels that one thread runs before it spawns tasks, in order, provided that all results are available.
pub(crate) fn schedule(body: &Body) -> Box<[u32]> {
    let mut waiting = body.counts[body.registers.len()..].to_vec();
    let mut ready = Ready::new(body.root_stream);
    let mut order = Vec::new();
    decrement_ready_counts(&mut waiting, body.initial_dependents(), body, &mut ready);
    while !ready.has_other_streams() || !ready.sort_other_streams(body) {
        let Some(kernel) = ready.pop() else { break };
        order.push(kernel);
        decrement_ready_counts(&mut waiting, body.dependents(&body.nodes[kernel as usize]), body, &mut ready);
    }
    order.into()
}

/// Runs kernels in the order of the schedule, or in program order, without updating ready counts.
#[inline(always)]
fn run_schedule(
    function: FunctionRef<'_>,
    context: &ExecutionContext,
    body: &Body,
    own: &mut LocalState,
    in_order: bool,
    count: &mut u32,
) -> Progress {
    let len = if in_order { body.nodes.len() } else { body.schedule.len() };
    let mut reached = if len == body.nodes.len() { Progress::End } else { Progress::Tasks(len) };
    let Some(site) = body.sites.first() else { return reached };
    let shares = own.shares;
    let (values, uses, _) = own.split_mut();
    let mut step = Step::new(values, uses, shares, site, function, context, body);
    step.frame.in_order = in_order;
    let kernel = |i: usize| if in_order { i as u32 } else { body.schedule[i] };
    let mut i = 0;
    while i < len {
        let ran = catch_panic(|| {
            while i < len && step.run(kernel(i), count) {
                i += 1;
            }
        });
        let available = match ran {
            Ok(()) => i == len,
            Err(panic) => step.finish_panicked(kernel(i), &panic),
        };
        i += 1;
        if !available {
            reached = Progress::Unavailable(i);
            break;
        }
    }
    own.shares = step.frame.shares;
    reached
}

/// Why [`Run::run_local_kernels`] returned.
enum Pause {
    /// No kernel is ready.
    Done,
    /// Kernels of other streams are ready.
    Others,
    /// This kernel has run; a result that other kernels use is not available.
    Unavailable(u32),
}

impl Run<'_> {
    /// Moves the execution to the heap, unless it is there already, so that other threads can access it.
    fn move_to_heap(&mut self) -> &Arc<Execution> {
        if let StateOwner::LocalState(own) = &mut self.home {
            let execution = Execution::new(own, self.body, self.function, self.context);
            self.home = StateOwner::Shared(Arc::new(execution));
        }
        match &self.home {
            StateOwner::Shared(execution) => execution,
            StateOwner::LocalState(_) => unreachable!("it was shared just now"),
        }
    }

    /// Continues an execution from where its schedule stopped.
    #[inline(never)]
    fn continue_execution(&mut self, reached: Progress, mut count: u32) {
        let mut ready = Ready::new(self.body.root_stream);
        match reached {
            Progress::Start => self.publish_arguments(&mut ready),
            Progress::Tasks(ran) => self.replay_schedule(ran, ran, &mut ready),
            Progress::Unavailable(ran) if self.in_order => {
                self.replay_in_order(ran, &mut ready);
                self.publish_results(ran as u32 - 1, &mut ready);
            }
            Progress::Unavailable(ran) => {
                self.replay_schedule(ran, ran - 1, &mut ready);
                self.publish_results(self.body.schedule[ran - 1], &mut ready);
            }
            Progress::End => {}
        }
        self.run_ready_kernels(&mut ready, &mut count);
        self.context.count_kernels_batched(count);
    }

    /// Replays the ready queue and the ready counts for the first `ran` kernels of the schedule; only the results of
    /// the first `ended` are counted.
    fn replay_schedule(&mut self, ran: usize, ended: usize, ready: &mut Ready) {
        let body = self.body;
        let StateOwner::LocalState(own) = &mut self.home else { return };
        own.decrement_ready_counts(body.initial_dependents(), body, ready);
        for i in 0..ran {
            if ready.has_other_streams() {
                ready.sort_other_streams(body);
            }
            let kernel = ready.pop();
            debug_assert_eq!(kernel, Some(body.schedule[i]));
            if i < ended {
                own.decrement_ready_counts(
                    body.dependents(&body.nodes[body.schedule[i] as usize]),
                    body,
                    ready,
                );
            }
        }
    }

    /// Updates ready counts as if the first `ran` kernels had run in program order. The results of the last one are not
    /// counted.
    fn replay_in_order(&mut self, ran: usize, ready: &mut Ready) {
        let body = self.body;
        let StateOwner::LocalState(own) = &mut self.home else { return };
        let (_, _, waiting) = own.split_mut();
        let ended = body.nodes[..ran - 1].iter().flat_map(|node| body.dependents(node));
        for &kernel in body.initial_dependents().iter().chain(ended) {
            let count = &mut waiting[kernel as usize];
            *count = count.wrapping_sub(1);
            if *count == 0 && kernel as usize >= ran {
                ready.push(kernel, body);
            }
        }
    }

    /// Publishes the arguments; some may not be available yet.
    #[inline(never)]
    fn publish_arguments(&mut self, ready: &mut Ready) {
        let StateOwner::LocalState(own) = &mut self.home else { return };
        own.decrement_ready_counts(self.body.root_kernels(), self.body, ready);
        let (registers, ..) = own.split_mut();
        let context = self.context;
        let arguments: Results = registers[..self.body.arguments]
            .iter_mut()
            .map(|register| context.relay_value(std::mem::take(register)))
            .collect();
        for (register, argument) in (0u32..).zip(arguments) {
            if self.body.registers[register as usize].uses > 0 {
                self.publish(register, argument, ready);
            }
        }
    }

    /// Sets a register as soon as its value is available, and decrements the ready counts of its users.
    fn publish(&mut self, register: u32, value: Value, ready: &mut Ready) {
        let users = self.body.users(register);
        // If no kernel uses the value, only the caller waits for it, and the execution need not be shared.
        if !users.is_empty() && matches!(&value, Value::Async(v) if !v.is_available()) {
            self.move_to_heap();
        }
        match &mut self.home {
            StateOwner::LocalState(own) => {
                let value = match Origin::setter_of(register, self.function, self.body, self.context.host()) {
                    Some(origin) => origin.check_result(value),
                    None => value.settle(),
                };
                own.shares |= !value.is_plain();
                own.split_mut().0[register as usize] = value;
                own.decrement_ready_counts(users, self.body, ready);
            }
            StateOwner::Shared(execution) => {
                Worker::new(execution, self.body).publish(register, value, ready)
            }
        }
    }

    /// Runs the ready kernels and those that become ready meanwhile.
    fn run_ready_kernels(&mut self, ready: &mut Ready, count: &mut u32) {
        let body = self.body;
        loop {
            if let StateOwner::Shared(execution) = &self.home {
                return Worker::new(execution, body).run_ready_kernels(ready, count);
            }
            match self.run_local_kernels(ready, count) {
                Pause::Done => break,
                Pause::Others => {
                    if ready.sort_other_streams(body) {
                        Worker::new(self.move_to_heap(), body).spawn_tasks(ready);
                    }
                }
                Pause::Unavailable(kernel) => self.publish_results(kernel, ready),
            }
        }
    }

    /// Runs ready kernels directly on the registers.
    fn run_local_kernels(&mut self, ready: &mut Ready, count: &mut u32) -> Pause {
        let body = self.body;
        let (StateOwner::LocalState(own), Some(site)) = (&mut self.home, body.sites.first()) else {
            return Pause::Done;
        };
        let shares = own.shares;
        let (values, uses, waiting) = own.split_mut();
        let mut step = Step::new(values, uses, shares, site, self.function, self.context, body);
        step.frame.in_order = self.in_order;
        let pause = loop {
            if ready.has_other_streams() {
                break Pause::Others;
            }
            let Some(kernel) = ready.pop() else { break Pause::Done };
            let available = match catch_panic(|| step.run(kernel, count)) {
                Ok(available) => available,
                Err(panic) => step.finish_panicked(kernel, &panic),
            };
            if !available {
                break Pause::Unavailable(kernel);
            }
            decrement_ready_counts(waiting, body.dependents(&body.nodes[kernel as usize]), body, ready);
        };
        own.shares = step.frame.shares;
        pause
    }

    /// Publishes the results of a kernel that ran directly on the registers; some results are not available.
    #[inline(never)]
    fn publish_results(&mut self, index: u32, ready: &mut Ready) {
        let body = self.body;
        let node = &body.nodes[index as usize];
        let StateOwner::LocalState(own) = &mut self.home else { return };
        let (_, results) = body.operands(node);
        let (registers, ..) = own.split_mut();
        let values: Results = results.iter().map(|&r| std::mem::take(&mut registers[r as usize])).collect();
        for (&register, value) in results.iter().zip(values) {
            if body.registers[register as usize].uses > 0 {
                self.publish(register, value, ready);
            }
        }
        match &mut self.home {
            StateOwner::LocalState(own) => own.decrement_ready_counts(body.successors(node), body, ready),
            StateOwner::Shared(execution) => Worker::new(execution, body).notify_successors(node, ready),
        }
    }
}

/// Runs kernels of one execution, one after another, directly on the registers.
struct Step<'a> {
    frame: Frame<'a>,
    /// Remaining uses of the registers; maintained for refcounted values.
    uses: &'a mut [u32],
    tracer: Tracer<'a>,
    body: &'a Body,
}

impl<'a> Step<'a> {
    #[inline(always)]
    fn new(
        values: &'a mut [Value],
        uses: &'a mut [u32],
        shares: bool,
        site: &'a Site,
        function: FunctionRef<'a>,
        context: &'a ExecutionContext,
        body: &'a Body,
    ) -> Self {
        let frame = Frame::on_registers(values, shares, site, function, context);
        Self { frame, uses, tracer: context.host().tracer(), body }
    }

    /// Runs a kernel. Returns false if a result that other kernels use is not available.
    #[inline(always)]
    fn run(&mut self, kernel: u32, count: &mut u32) -> bool {
        let Self { frame, tracer, body, .. } = self;
        *count += 1;
        if *count >= KERNELS_BETWEEN_CHECKS {
            frame.context.count_kernels(u64::from(std::mem::take(count)));
        }
        let cancelled = frame.context.cancellation_error();
        if cancelled.is_none() && !tracer.is_enabled() && body.plain[kernel as usize].run(frame.values) {
            return true;
        }
        begin_kernel(frame, body, kernel);
        if let Some(error) = cancelled {
            frame.error = Some(error.clone());
        }
        if frame.shares {
            take_argument_error(frame);
        }
        if frame.error.is_none() {
            let node = &body.nodes[kernel as usize];
            if tracer.is_enabled() {
                run_traced(*tracer, frame.function, kernel, frame.site, || node.kernel.run(frame));
            } else {
                node.kernel.run(frame);
            }
        }
        self.finish_kernel(kernel)
    }

    /// Sets the results of a kernel that panicked to an error. Returns false if a needed result is not available.
    #[cold]
    #[inline(never)]
    fn finish_panicked(&mut self, kernel: u32, panic: &Panic) -> bool {
        let frame = &mut self.frame;
        begin_kernel(frame, self.body, kernel);
        frame.error = Some(panic_error(panic, frame.context, frame.function, frame.site));
        self.finish_kernel(kernel)
    }

    /// Ends the uses of the kernel's arguments and settles its results. Returns false if a needed result is not
    /// available.
    #[inline(always)]
    fn finish_kernel(&mut self, kernel: u32) -> bool {
        let Self { frame, uses, body, .. } = self;
        if frame.error.is_some() {
            fail_results(frame);
        }
        if frame.shares {
            for &register in frame.arguments {
                if !frame.values[register as usize].is_plain() {
                    end_use(frame.values, uses, register);
                }
            }
        }
        let mut available = true;
        for &register in frame.results {
            if !frame.values[register as usize].is_scalar_or_chain() {
                available &= settle_result(frame, kernel, register, body);
            }
        }
        available
    }
}

/// Points the frame at a kernel's operands.
#[inline(always)]
fn begin_kernel<'a>(frame: &mut Frame<'a>, body: &'a Body, kernel: u32) {
    (frame.arguments, frame.results) = body.operands(&body.nodes[kernel as usize]);
    frame.site = &body.sites[kernel as usize];
    // Cleared, so that results that the kernel does not set can be detected.
    frame.results.iter().for_each(|&r| frame.values[r as usize].put(Value::Empty));
}

/// Finishes a result that is neither a scalar nor a chain: checks it and releases it if it is unused. Returns false if
/// other kernels have to wait for it.
#[inline(never)]
fn settle_result(frame: &mut Frame<'_>, kernel: u32, register: u32, body: &Body) -> bool {
    frame.shares = true;
    let value = std::mem::take(&mut frame.values[register as usize]);
    let origin = Origin { function: frame.function, body, kernel, host: frame.context.host() };
    let Some(value) = origin.check_result_for(value, register, frame.context) else { return true };
    // If no kernel uses the value, only the caller waits for it, and the execution need not be shared.
    let available = !matches!(value, Value::Async(_)) || body.users(register).is_empty();
    frame.values[register as usize] = value;
    available
}

/// If arguments are errors, sets the kernel's error to that of the last such argument, so that the kernel does not run.
#[inline(never)]
fn take_argument_error(frame: &mut Frame<'_>) {
    let error = |&register: &u32| frame.values[register as usize].as_error();
    if let Some(error) = frame.arguments.iter().rev().find_map(error) {
        frame.error = Some(ErrorValue::clone(error));
    }
}

/// Sets all results to the error that their kernel failed with.
#[cold]
fn fail_results(frame: &mut Frame<'_>) {
    if let Some(error) = frame.error.take() {
        let error = frame.site.attach_origin(error, frame.function, frame.context.host());
        for &register in frame.results {
            frame.values[register as usize] = Value::Error(error.clone());
        }
    }
}
