//! An execution that no other thread knows of: plain registers and plain counts.

use super::ready::Ready;
use super::shared::{Execution, Part};
use super::{no_result, traced};
use crate::body::Body;
use crate::context::ExecutionContext;
use crate::error::ErrorValue;
use crate::function::{FunctionRef, Results};
use crate::kernel::{Env, Frame, Site};
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
    home: Home,
}

/// Runs an execution as far as it goes on this thread.
pub(super) fn run(
    function: FunctionRef<'_>,
    context: &ExecutionContext,
    body: &Body,
    mut own: Own,
    give: &mut dyn FnMut(usize, &mut Value),
) {
    if body.nodes.is_empty() {
        // An execution without kernels counts, too.
        context.count_some_kernels(1);
        return own.give(body, give);
    }
    stack::scope(|| {
        let mut run = Run { function, context, body, home: Home::Own(own) };
        let mut ready = Ready::new(body.root_stream);
        run.start(&mut ready);
        run.kernels(&mut ready);
        match &mut run.home {
            Home::Own(own) => own.give(body, give),
            Home::Shared(execution) => execution.give_results(body, give),
        }
    })
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

    /// Makes the kernels ready that the arguments allow.
    #[inline(always)]
    fn start(&mut self, ready: &mut Ready) {
        let body = self.body;
        let Home::Own(own) = &mut self.home else { return };
        let is_async = |value: &Value| matches!(value, Value::Async(_));
        if own.shares && own.memory.registers[..body.arguments].iter().any(is_async) {
            own.arrive(body.start(), body, ready);
            self.start_on_some(ready);
        } else {
            own.arrive(body.begin(), body, ready);
        }
    }

    /// Publishes the arguments, of which some may not be available.
    #[inline(never)]
    fn start_on_some(&mut self, ready: &mut Ready) {
        let Home::Own(own) = &mut self.home else { return };
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
        // If nobody but the caller waits for it, the caller can do so as well as we.
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
    fn kernels(&mut self, ready: &mut Ready) {
        let body = self.body;
        let tracer = self.context.host().tracer();
        let mut count = 1;
        loop {
            if let Home::Shared(execution) = &self.home {
                Part::new(execution, body).kernels(ready, &mut count);
                break;
            }
            match self.own_kernels(tracer, ready, &mut count) {
                Pause::Done => break,
                Pause::Others => {
                    if ready.settle_others(body) {
                        Part::new(self.share(), body).spawn(ready);
                    }
                }
                Pause::Unavailable(kernel) => self.publish_results(kernel, ready),
            }
        }
        self.context.count_some_kernels(count);
    }

    /// Runs kernels on the registers themselves.
    #[inline(always)]
    fn own_kernels(&mut self, tracer: Tracer<'_>, ready: &mut Ready, count: &mut u32) -> Pause {
        let Self { function, context, body, home } = self;
        let body = *body;
        let (Home::Own(own), Some(site)) = (home, body.sites.first()) else { return Pause::Done };
        let shares = own.shares;
        let (registers, uses, waiting) = own.parts();
        let traces = tracer.is_enabled();
        let mut frame = Frame {
            values: registers,
            arguments: &[],
            results: &[],
            owned: false,
            shares,
            site,
            function: *function,
            context,
            env: Env::None,
            error: None,
        };
        let pause = loop {
            if ready.has_others() {
                break Pause::Others;
            }
            let Some(index) = ready.pop() else { break Pause::Done };
            let node = &body.nodes[index as usize];
            (frame.arguments, frame.results) = body.operands(node);
            frame.site = &body.sites[index as usize];
            // Whether they are set is to be seen.
            frame.results.iter().for_each(|&r| frame.values[r as usize].put(Value::Empty));
            if let Some(error) = context.cancelled() {
                frame.error = Some(error.clone());
            }
            if frame.shares {
                find_error(&mut frame);
            }
            if frame.error.is_none() {
                if traces {
                    traced(tracer, *function, index, frame.site, || node.kernel.run(&mut frame));
                } else {
                    node.kernel.run(&mut frame);
                }
            }
            *count += 1;
            if *count >= KERNELS_BETWEEN_CHECKS {
                context.count_kernels(u64::from(std::mem::take(count)));
            }
            if frame.error.is_some() {
                fail(&mut frame);
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
            if !available {
                break Pause::Unavailable(index);
            }
            arrive(waiting, body.arrivals(node), body, ready);
        };
        own.shares = frame.shares;
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
    // If nobody but the caller waits for it, the caller can do so as well as we.
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
