use crate::body::Body;
use crate::dataflow::{panic_error, run_traced};
use crate::error::{Error, ErrorValue, Result};
use crate::frame::Frame;
use crate::function::{Function, FunctionRef};
use crate::request::ExecutionContext;
use crate::sync::catch_panic;
use crate::value::Value;

/// Runs a function's kernels one after another, in program order, on the calling thread and without atomics. If it is
/// reused, later runs allocate nothing.
pub struct Interpreter {
    function: Function,
    registers: Vec<Value>,
}

impl Interpreter {
    /// An interpreter of a function that is not native.
    ///
    /// # Errors
    /// If the function is native or its kernels cannot be decoded.
    pub fn new(function: &Function) -> Result<Self> {
        function.body()?;
        Ok(Self { function: function.clone(), registers: Vec::new() })
    }

    /// The function that is run.
    pub fn function(&self) -> &Function {
        &self.function
    }

    /// Runs the function.
    ///
    /// # Errors
    /// [`Error::WrongArguments`], the first error among the arguments, or the first failure of a kernel; later kernels
    /// do not run.
    pub fn run(
        &mut self,
        context: &ExecutionContext,
        arguments: impl IntoIterator<Item = Value>,
        results: &mut [Value],
    ) -> Result<()> {
        run(self.function.by_ref(), &mut self.registers, context, arguments, results)
    }
}

/// Runs a function on registers that may hold stale values of an earlier run of the same function.
pub(crate) fn run(
    function: FunctionRef<'_>,
    registers: &mut Vec<Value>,
    context: &ExecutionContext,
    arguments: impl IntoIterator<Item = Value>,
    results: &mut [Value],
) -> Result<()> {
    let body = function.body()?;
    registers.resize_with(body.registers.len(), Value::default);
    let mut count = 0;
    for argument in arguments {
        let argument = argument.settle();
        if let Value::Error(error) = argument {
            return Err(Error::Failed(error));
        }
        if let Some(register) = registers[..body.arguments].get_mut(count) {
            *register = argument;
        }
        count += 1;
    }
    if count != body.arguments {
        return Err(Error::WrongArguments {
            function: function.name().to_owned(),
            expected: body.arguments,
            found: count,
        });
    }
    context.count_kernels_batched(body.nodes.len() as u32);
    let mut at = 0;
    let ran = catch_panic(|| {
        if context.host().tracer().is_enabled() {
            run_kernels::<true>(function, body, registers, context, &mut at)
        } else {
            run_kernels::<false>(function, body, registers, context, &mut at)
        }
    });
    let (outcome, shares) = ran.unwrap_or_else(|panic| {
        let site = &body.sites[at as usize];
        (Err(panic_error(&panic, context, function, site)), true)
    });
    if outcome.is_ok() {
        for (i, (&register, result)) in body.results.iter().zip(results).enumerate() {
            let again = body.results[i + 1..].contains(&register);
            let register = &mut registers[register as usize];
            *result = if again { register.clone() } else { std::mem::take(register) };
        }
    }
    // Scalars and chains may stay: dropping them has no effect.
    if shares && (outcome.is_err() || body.results.is_empty()) {
        registers.iter_mut().for_each(Value::release);
    }
    outcome.map_err(Error::Failed)
}

/// The first error among the results of a kernel that just ran; a result that is not set counts as an error.
#[inline]
fn result_error(frame: &Frame<'_>) -> Option<ErrorValue> {
    frame.results.iter().find_map(|&r| match &frame.values[r as usize] {
        Value::Empty => Some(frame.site.missing_result(frame.function, frame.context.host())),
        Value::Error(error) => Some(error.clone()),
        _ => None,
    })
}

/// Runs the kernels, and keeps the index of the running one in `at`. Also returns whether a register has held a
/// refcounted value.
fn run_kernels<const TRACED: bool>(
    function: FunctionRef<'_>,
    body: &Body,
    registers: &mut [Value],
    context: &ExecutionContext,
    at: &mut u32,
) -> (Result<(), ErrorValue>, bool) {
    let shares = registers[..body.arguments].iter().any(|v| !v.is_plain());
    if let Some(error) = context.cancellation_error() {
        return (Err(error.clone()), shares);
    }
    let Some(site) = body.sites.first() else { return (Ok(()), shares) };
    let mut frame = Frame::on_registers(registers, shares, site, function, context);
    for (index, call) in body.plain.iter().enumerate() {
        *at = index as u32;
        if !TRACED && call.run(frame.values) {
            continue;
        }
        let node = &body.nodes[index];
        (frame.arguments, frame.results) = body.operands(node);
        frame.site = &body.sites[index];
        // Cleared, so that results that the kernel does not set can be detected.
        frame.results.iter().for_each(|&r| frame.values[r as usize].put(Value::Empty));
        if TRACED {
            run_traced(context.host().tracer(), function, index as u32, frame.site, || {
                node.kernel.run(&mut frame)
            });
        } else {
            node.kernel.run(&mut frame);
        }
        let failure = frame.error.take().or_else(|| result_error(&frame));
        if let Some(error) = failure {
            frame.error = Some(frame.site.attach_origin(error, function, context.host()));
            break;
        }
        if frame.shares {
            for &register in body.dead_after(node) {
                frame.values[register as usize].release();
            }
        }
    }
    (frame.error.map_or(Ok(()), Err), frame.shares)
}
