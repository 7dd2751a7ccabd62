//! An execution that no other thread knows of: plain registers and plain counts.

use super::ready::Ready;
use super::shared::{Execution, Part};
use super::{no_result, traced};
use crate::body::Body;
use crate::context::ExecutionContext;
use crate::error::ErrorValue;
use crate::function::{FunctionRef, Results};
use crate::kernel::{Frame, Site};
use crate::limits::KERNELS_BETWEEN_CHECKS;
use crate::stack;
use crate::value::Value;
use std::cell::RefCell;
use std::sync::Arc;
use trace::Tracer;

/// The state of an execution that no other thread knows of. Its memory is used again by later ones of
/// the same thread.
pub(crate) struct Own {
    memory: Memory,
    /// The number of registers.
    used: usize,
    /// Whether a register may share something.
    shares: bool,
}

#[derive(Default)]
struct Memory {
    /// Without meaning before they are set, and then plain.
    registers: Vec<Value>,
    /// Uses to come of the registers that share something, and then the operands that kernels wait for.
    counts: Vec<u32>,
}

/// Memory that a thread keeps for executions to come.
const SPARES: usize = 64;
/// Registers and kernels of the largest execution whose memory is kept.
const LARGEST_SPARE: usize = 4096;

thread_local! {
    static SPARE: RefCell<Vec<Memory>> = const { RefCell::new(Vec::new()) };
}

impl Own {
    /// An execution with these arguments, as many as its function takes.
    #[inline]
    pub(super) fn new<'v>(body: &Body, arguments: impl Iterator<Item = &'v Value>) -> Self {
        let spare = SPARE.try_with(|spare| spare.borrow_mut().pop());
        let mut memory = spare.ok().flatten().unwrap_or_default();
        let used = body.registers.len();
        if memory.registers.len() < used {
            memory.registers.resize_with(used, Value::default);
        }
        // Of results it is to be seen whether they are set.
        body.results.iter().for_each(|&r| memory.registers[r as usize].put(Value::Empty));
        let mut shares = false;
        for (register, argument) in memory.registers[..body.arguments].iter_mut().zip(arguments) {
            register.put_copy(argument);
            shares |= !argument.is_plain();
        }
        memory.counts.extend_from_slice(&body.counts);
        Self { memory, used, shares }
    }

    /// The registers; uses to come of those that share something; operands that kernels wait for.
    #[inline(always)]
    fn parts(&mut self) -> (&mut [Value], &mut [u32], &mut [u32]) {
        let (uses, waiting) = self.memory.counts.split_at_mut(self.used);
        (&mut self.memory.registers[..self.used], uses, waiting)
    }

    /// Takes everything out: registers with the uses to come of those that share something, and operands
    /// that kernels wait for.
    pub(super) fn take(&mut self) -> (impl Iterator<Item = (Value, u32)>, &[u32]) {
        let (uses, waiting) = self.memory.counts.split_at(self.used);
        let registers = self.memory.registers[..self.used].iter_mut().map(std::mem::take);
        (registers.zip(uses.iter().copied()), waiting)
    }

    /// Whether there are arguments that may not be available.
    fn has_async_arguments(&self, body: &Body) -> bool {
        self.memory.registers[..body.arguments].iter().any(|value| matches!(value, Value::Async(_)))
    }

    /// Whether a register that is returned is set.
    pub(super) fn is_set(&self, register: u32) -> bool {
        !matches!(self.memory.registers[register as usize], Value::Empty)
    }

    /// Counts an operand in for kernels, and makes those ready that wait for no more.
    #[inline(always)]
    fn arrive(&mut self, kernels: &[u32], body: &Body, ready: &mut Ready) {
        let (_, _, waiting) = self.parts();
        arrive(waiting, kernels, body, ready);
    }

    /// Gives the results. Every kernel has run: what waits for something is not only this thread's.
    #[inline(always)]
    fn give(&mut self, body: &Body, give: &mut dyn FnMut(usize, &mut Value)) {
        let (registers, ..) = self.parts();
        for (i, &register) in body.results.iter().enumerate() {
            let again = body.results.len() > 1 && body.results[i + 1..].contains(&register);
            let register = &mut registers[register as usize];
            if !register.is_plain() {
                *register = std::mem::take(register).settle();
            }
            if again {
                give(i, &mut register.clone());
            } else {
                give(i, register);
            }
        }
    }
}

impl Drop for Own {
    #[inline]
    fn drop(&mut self) {
        if self.shares {
            self.memory.registers[..self.used].iter_mut().for_each(Value::release);
        }
        self.memory.counts.clear();
        let memory = std::mem::take(&mut self.memory);
        if memory.counts.capacity() <= LARGEST_SPARE {
            let _ = SPARE.try_with(move |spare| {
                let mut spare = spare.borrow_mut();
                if spare.len() < SPARES {
                    spare.push(memory);
                }
            });
        }
    }
}

/// Counts a use out of a register that shares something.
#[inline(never)]
fn end_use(registers: &mut [Value], uses: &mut [u32], register: u32) {
    let left = &mut uses[register as usize];
    *left = left.saturating_sub(1);
    if *left == 0 {
        registers[register as usize] = Value::Empty;
    }
}

/// Counts an operand in for kernels, and makes those ready that wait for no more.
#[inline(always)]
fn arrive(waiting: &mut [u32], kernels: &[u32], body: &Body, ready: &mut Ready) {
    for &kernel in kernels {
        let count = &mut waiting[kernel as usize];
        *count = count.wrapping_sub(1);
        if *count == 0 {
            ready.push(kernel, body);
        }
    }
}

/// Where the state of an execution stands.
enum Home {
    Own(Own),
    Shared(Arc<Execution>),
}

/// An execution that began on this thread.
struct Run<'a> {
    function: FunctionRef<'a>,
    context: &'a ExecutionContext,
    body: &'a Body,
    /// Whether kernels run in program order as long as all results are available.
    in_order: bool,
    home: Home,
}

/// Runs an execution as far as it goes on this thread.
pub(super) fn run(
    function: FunctionRef<'_>,
    context: &ExecutionContext,
    body: &Body,
    mut own: Own,
    in_order: bool,
    give: &mut dyn FnMut(usize, &mut Value),
) {
    if body.nodes.is_empty() {
        // An execution without kernels counts, too.
        context.count_some_kernels(1);
        return own.give(body, give);
    }
    stack::scope(|| {
        let mut count = 1;
        let reached = match own.shares && own.has_async_arguments(body) {
            true => Reached::Start,
            false => run_schedule(function, context, body, &mut own, in_order, &mut count),
        };
        if let Reached::End = reached {
            context.count_some_kernels(count);
            return own.give(body, give);
        }
        let mut run = Run { function, context, body, in_order, home: Home::Own(own) };
        run.go_on(reached, count);
        match &mut run.home {
            Home::Own(own) => own.give(body, give),
            Home::Shared(execution) => execution.give_results(body, give),
        }
    })
}

/// How far an execution has come that follows its schedule.
enum Reached {
    /// Nowhere: there are arguments that are not available.
    Start,
    /// So many kernels have run, and now others are to become tasks.
    Tasks(usize),
    /// So many kernels have run; of the last, a result that others use is not available.
    Unavailable(usize),
    /// All kernels have run.
    End,
}

/// The kernels that an execution runs before others become tasks, in their order, as long as all results
/// are available.
pub(crate) fn schedule(body: &Body) -> Box<[u32]> {
    let mut waiting = body.counts[body.registers.len()..].to_vec();
    let mut ready = Ready::new(body.root_stream);
    let mut order = Vec::new();
    arrive(&mut waiting, body.begin(), body, &mut ready);
    while !ready.has_others() || !ready.settle_others(body) {
        let Some(kernel) = ready.pop() else { break };
        order.push(kernel);
        arrive(&mut waiting, body.arrivals(&body.nodes[kernel as usize]), body, &mut ready);
    }
    order.into()
}

/// Runs kernels in the order of the schedule, or in program order, without counting operands.
#[inline(always)]
fn run_schedule(
    function: FunctionRef<'_>,
    context: &ExecutionContext,
    body: &Body,
    own: &mut Own,
    in_order: bool,
    count: &mut u32,
) -> Reached {
    let len = if in_order { body.nodes.len() } else { body.schedule.len() };
    let mut reached = if len == body.nodes.len() { Reached::End } else { Reached::Tasks(len) };
    let Some(site) = body.sites.first() else { return reached };
    let shares = own.shares;
    let (values, uses, _) = own.parts();
    let mut step = Step::new(values, uses, shares, site, function, context, body);
    step.frame.in_order = in_order;
    for i in 0..len {
        let kernel = if in_order { i as u32 } else { body.schedule[i] };
        if !step.run(kernel, count) {
            reached = Reached::Unavailable(i + 1);
            break;
        }
    }
    own.shares = step.frame.shares;
    reached
}

/// Why kernels cannot go on as they do.
enum Pause {
    /// None is left.
    Done,
    /// Kernels of other streams are ready.
    Others,
    /// A kernel has run of which a result that others use is not available.
    Unavailable(u32),
}

impl Run<'_> {
    /// The execution, for other threads to know of.
    fn share(&mut self) -> &Arc<Execution> {
        if let Home::Own(own) = &mut self.home {
            let execution = Execution::new(own, self.body, self.function, self.context);
            self.home = Home::Shared(Arc::new(execution));
        }
        match &self.home {
            Home::Shared(execution) => execution,
            Home::Own(_) => unreachable!("it was shared just now"),
        }
    }

    /// Runs an execution from where its schedule has led.
    #[inline(never)]
    fn go_on(&mut self, reached: Reached, mut count: u32) {
        let mut ready = Ready::new(self.body.root_stream);
        match reached {
            Reached::Start => self.start_on_some(&mut ready),
            Reached::Tasks(ran) => self.catch_up(ran, ran, &mut ready),
            Reached::Unavailable(ran) if self.in_order => {
                self.catch_up_in_order(ran, &mut ready);
                self.publish_results(ran as u32 - 1, &mut ready);
            }
            Reached::Unavailable(ran) => {
                self.catch_up(ran, ran - 1, &mut ready);
                self.publish_results(self.body.schedule[ran - 1], &mut ready);
            }
            Reached::End => {}
        }
        self.kernels(&mut ready, &mut count);
        self.context.count_some_kernels(count);
    }

    /// Counts operands in as if they had been counted while the first kernels of the schedule ran, of which
    /// so many have ended.
    fn catch_up(&mut self, ran: usize, ended: usize, ready: &mut Ready) {
        let body = self.body;
        let Home::Own(own) = &mut self.home else { return };
        own.arrive(body.begin(), body, ready);
        for i in 0..ran {
            if ready.has_others() {
                ready.settle_others(body);
            }
            let kernel = ready.pop();
            debug_assert_eq!(kernel, Some(body.schedule[i]));
            if i < ended {
                own.arrive(body.arrivals(&body.nodes[body.schedule[i] as usize]), body, ready);
            }
        }
    }

    /// Counts operands in as if they had been counted while so many kernels ran in program order. The last one's
    /// results are not counted in.
    fn catch_up_in_order(&mut self, ran: usize, ready: &mut Ready) {
        let body = self.body;
        let Home::Own(own) = &mut self.home else { return };
        let (_, _, waiting) = own.parts();
        let ended = body.nodes[..ran - 1].iter().flat_map(|node| body.arrivals(node));
        for &kernel in body.begin().iter().chain(ended) {
            let count = &mut waiting[kernel as usize];
            *count = count.wrapping_sub(1);
            if *count == 0 && kernel as usize >= ran {
                ready.push(kernel, body);
            }
        }
    }

    /// Publishes the arguments; some may not be available yet.
    #[inline(never)]
    fn start_on_some(&mut self, ready: &mut Ready) {
        let Home::Own(own) = &mut self.home else { return };
        own.arrive(self.body.start(), self.body, ready);
        let (registers, ..) = own.parts();
        let arguments: Results = registers[..self.body.arguments].iter_mut().map(std::mem::take).collect();
        for (register, argument) in (0u32..).zip(arguments) {
            if self.body.registers[register as usize].uses > 0 {
                self.publish(register, argument, ready);
            }
        }
    }

    /// Sets a register when its value is available, and counts it in for the kernels that use it.
    fn publish(&mut self, register: u32, value: Value, ready: &mut Ready) {
        let users = self.body.users(register);
        // A value without users in this function is waited for by the caller alone: no need to share the execution.
        if !users.is_empty() && matches!(&value, Value::Async(v) if !v.is_available()) {
            self.share();
        }
        match &mut self.home {
            Home::Own(own) => {
                let value = value.settle();
                own.shares |= !value.is_plain();
                own.parts().0[register as usize] = value;
                own.arrive(users, self.body, ready);
            }
            Home::Shared(execution) => Part::new(execution, self.body).publish(register, value, ready),
        }
    }

    /// Runs ready kernels and those that they make ready.
    fn kernels(&mut self, ready: &mut Ready, count: &mut u32) {
        let body = self.body;
        loop {
            if let Home::Shared(execution) = &self.home {
                return Part::new(execution, body).kernels(ready, count);
            }
            match self.own_kernels(ready, count) {
                Pause::Done => break,
                Pause::Others => {
                    if ready.settle_others(body) {
                        Part::new(self.share(), body).spawn(ready);
                    }
                }
                Pause::Unavailable(kernel) => self.publish_results(kernel, ready),
            }
        }
    }

    /// Runs kernels on the registers themselves.
    fn own_kernels(&mut self, ready: &mut Ready, count: &mut u32) -> Pause {
        let body = self.body;
        let (Home::Own(own), Some(site)) = (&mut self.home, body.sites.first()) else { return Pause::Done };
        let shares = own.shares;
        let (values, uses, waiting) = own.parts();
        let mut step = Step::new(values, uses, shares, site, self.function, self.context, body);
        step.frame.in_order = self.in_order;
        let pause = loop {
            if ready.has_others() {
                break Pause::Others;
            }
            let Some(kernel) = ready.pop() else { break Pause::Done };
            if !step.run(kernel, count) {
                break Pause::Unavailable(kernel);
            }
            arrive(waiting, body.arrivals(&body.nodes[kernel as usize]), body, ready);
        };
        own.shares = step.frame.shares;
        pause
    }

    /// Publishes the results of a kernel that has run on the registers themselves, of which not all are
    /// available.
    #[inline(never)]
    fn publish_results(&mut self, index: u32, ready: &mut Ready) {
        let body = self.body;
        let node = &body.nodes[index as usize];
        let Home::Own(own) = &mut self.home else { return };
        let (_, results) = body.operands(node);
        let (registers, ..) = own.parts();
        let values: Results = results.iter().map(|&r| std::mem::take(&mut registers[r as usize])).collect();
        for (&register, value) in results.iter().zip(values) {
            if body.registers[register as usize].uses > 0 {
                self.publish(register, value, ready);
            }
        }
        match &mut self.home {
            Home::Own(own) => own.arrive(body.successors(node), body, ready),
            Home::Shared(execution) => Part::new(execution, body).succeed(node, ready),
        }
    }
}

/// Runs kernels of one execution, one after another, on the registers themselves.
struct Step<'a> {
    frame: Frame<'a>,
    /// Uses to come of registers that share something.
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

    /// Runs a kernel. False if a result that others use is not available.
    #[inline(always)]
    fn run(&mut self, kernel: u32, count: &mut u32) -> bool {
        let Self { frame, uses, tracer, body } = self;
        *count += 1;
        if *count >= KERNELS_BETWEEN_CHECKS {
            frame.context.count_kernels(u64::from(std::mem::take(count)));
        }
        let cancelled = frame.context.cancelled();
        if cancelled.is_none() && !tracer.is_enabled() && body.plain[kernel as usize].run(frame.values) {
            return true;
        }
        let node = &body.nodes[kernel as usize];
        (frame.arguments, frame.results) = body.operands(node);
        frame.site = &body.sites[kernel as usize];
        // Whether they are set is to be seen.
        frame.results.iter().for_each(|&r| frame.values[r as usize].put(Value::Empty));
        if let Some(error) = cancelled {
            frame.error = Some(error.clone());
        }
        if frame.shares {
            find_error(frame);
        }
        if frame.error.is_none() {
            if tracer.is_enabled() {
                traced(*tracer, frame.function, kernel, frame.site, || node.kernel.run(frame));
            } else {
                node.kernel.run(frame);
            }
        }
        if frame.error.is_some() {
            fail(frame);
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
            let value = &mut frame.values[register as usize];
            if !value.is_number_or_chain() {
                frame.shares = true;
                available &= settle(value, register, body, frame.site);
            }
        }
        available
    }
}

/// Sees to a result that is neither a number nor a chain. False if others wait for it.
#[inline(never)]
fn settle(value: &mut Value, register: u32, body: &Body, site: &Site) -> bool {
    if body.registers[register as usize].uses == 0 && !matches!(value, Value::Empty) {
        value.release();
        return true;
    }
    *value = match std::mem::take(value) {
        Value::Empty => no_result(&site.name),
        value => value.settle(),
    };
    // A value without users in this function is waited for by the caller alone: no need to share the execution.
    !matches!(value, Value::Async(_)) || body.users(register).is_empty()
}

/// Finds the failure that a kernel does not run for: that of its last argument that is one.
#[inline(never)]
fn find_error(frame: &mut Frame<'_>) {
    let error = |&register: &u32| frame.values[register as usize].as_error();
    if let Some(error) = frame.arguments.iter().rev().find_map(error) {
        frame.error = Some(ErrorValue::clone(error));
    }
}

/// Makes all results the failure of their kernel.
#[cold]
fn fail(frame: &mut Frame<'_>) {
    if let Some(error) = frame.error.take() {
        for &register in frame.results {
            frame.values[register as usize] = Value::Error(error.clone());
        }
    }
}
