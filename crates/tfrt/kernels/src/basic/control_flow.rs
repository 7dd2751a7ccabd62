use crate::kernels::RegistryExt;
use pteron_host::{
    AsyncValue, Chain, Effect, ErrorCode, ExecutionContext, Fault, Frame, Function, FunctionRef,
    KernelRegistry, Promise, Results, Value,
};
use std::sync::Mutex;

/// Calls a function with a kernel's arguments from index `from` on, after checking the numbers of arguments and
/// results.
fn call(frame: &mut Frame<'_>, function: FunctionRef<'_>, from: usize) -> Result<(), Fault> {
    check_signature(frame, function, frame.arguments().saturating_sub(from), frame.results())?;
    frame.call(function, from);
    Ok(())
}

/// Fails unless `function` has these numbers of arguments and results.
#[inline]
pub(super) fn check_signature(
    frame: &Frame<'_>,
    function: FunctionRef<'_>,
    arguments: usize,
    results: usize,
) -> Result<(), Fault> {
    if function.arguments() == arguments && function.results() == results {
        return Ok(());
    }
    Err(signature_mismatch(frame, function, arguments, results))
}

#[cold]
fn signature_mismatch(
    frame: &Frame<'_>,
    function: FunctionRef<'_>,
    arguments: usize,
    results: usize,
) -> Fault {
    Fault::invalid(format!(
        "{} calls `{}` with {arguments} arguments for {results} results, but it has {} and {}",
        frame.name(),
        function.name(),
        function.arguments(),
        function.results()
    ))
}

fn if_kernel(frame: &mut Frame<'_>) -> Result<(), Fault> {
    let function = frame.function(if frame.get::<bool>(0)? { 0 } else { 1 })?;
    call(frame, function, 1)
}

fn case_kernel(frame: &mut Frame<'_>) -> Result<(), Fault> {
    let index = frame.get::<i32>(0)?;
    let branches = frame.functions();
    if index < 0 || index as usize >= branches {
        let message = format!("branch_index invalid. branch index: {index} # branches: {branches}");
        return Err(Fault::new(ErrorCode::InvalidArgument, message));
    }
    let function = frame.function(index as usize)?;
    call(frame, function, 1)
}

/// `count` asynchronous values and their promises.
fn new_promises(count: usize) -> (Vec<Promise>, Results) {
    (0..count).map(|_| AsyncValue::new()).map(|(p, v)| (p, Value::Async(v))).unzip()
}

fn resolve_all(promises: Vec<Promise>, values: impl IntoIterator<Item = Value>) {
    promises.into_iter().zip(values).for_each(|(promise, value)| promise.set(value));
}

/// Calls `then` when all values are available.
fn when_all(mut values: impl Iterator<Item = Value> + Send + 'static, then: impl FnOnce() + Send + 'static) {
    loop {
        match values.next() {
            None => return then(),
            Some(Value::Async(value)) if !value.is_available() => {
                return value.and_then(move || when_all(values, then));
            }
            Some(_) => {}
        }
    }
}

/// The state of a running `tfrt.while`.
struct While {
    context: ExecutionContext,
    body: Function,
    promises: Vec<Promise>,
    /// Whether every iteration runs as a separate task.
    tasks: bool,
}

impl While {
    /// Runs iterations until their condition is false or not available yet. `condition`, of the first one, is
    /// available.
    fn run(self, mut condition: Value, mut arguments: Results) {
        loop {
            let error = match condition.settle() {
                Value::Bool(true) => self.context.cancellation_error().cloned(),
                Value::Bool(false) => return resolve_all(self.promises, arguments),
                Value::Error(error) => Some(error),
                other => Some(pteron_host::ErrorValue::new(
                    ErrorCode::InvalidArgument,
                    format!("the condition is {}, expected an i1", other.kind()),
                )),
            };
            if let Some(error) = error {
                // Resolve the results only when the last iteration's results are available, so that no part of the
                // loop is still running.
                let Self { promises, .. } = self;
                let results = vec![Value::Error(error); promises.len()];
                return when_all(arguments.into_iter(), move || resolve_all(promises, results));
            }
            let mut results = if self.tasks {
                self.body.execute_later(&self.context, &arguments)
            } else {
                self.body.execute(&self.context, &arguments)
            };
            condition = results.pop().unwrap_or_default().settle();
            arguments = results;
            if let Value::Async(pending) = &condition {
                let pending = pending.clone();
                let later = pending.clone();
                return pending.and_then(move || {
                    let queue = self.context.host().queue().clone();
                    let go_on = move || self.run(Value::Async(later), arguments);
                    // Continue in a task, so that iterations do not nest on the stack.
                    queue.add_task(Box::new(go_on));
                });
            }
        }
    }
}

/// Takes `(condition, arguments...)`: calls the function repeatedly on its own results while the condition, its last
/// result, is true.
fn while_kernel(frame: &mut Frame<'_>) -> Result<Results, Fault> {
    let condition = frame.argument(0).clone();
    let tasks = frame.attributes() > 0 && frame.attribute::<i64>(0)? > 1;
    let body = frame.function(0)?;
    let count = frame.results();
    check_signature(frame, body, count, count + 1)?;
    if frame.arguments() != count + 1 {
        return Err(Fault::invalid(format!("{} arguments for {count} results", frame.arguments())));
    }
    let (promises, values) = new_promises(count);
    let state = While { context: frame.context().clone(), body: body.to_function(), promises, tasks };
    state.run(condition, frame.arguments_from(1));
    Ok(values)
}

/// Number of iterations between two checks whether the first result is available.
const BLOCK: i32 = 32;

/// The state of a running `tfrt.repeat`.
struct Repeat {
    context: ExecutionContext,
    body: Function,
    promises: Vec<Promise>,
    count: i32,
}

impl Repeat {
    fn run(self, mut next: i32, mut arguments: Results) {
        while next < self.count {
            if let Some(error) = self.context.cancellation_error() {
                let results = vec![Value::Error(error.clone()); self.promises.len()];
                return resolve_all(self.promises, results);
            }
            arguments = self.body.execute(&self.context, &arguments);
            next += 1;
            if next % BLOCK == 0
                && let Some(Value::Async(pending)) = arguments.first()
                && !pending.is_available()
            {
                return pending.clone().and_then(move || self.run(next, arguments));
            }
        }
        resolve_all(self.promises, arguments);
    }
}

/// Takes `(count, arguments...)`: calls the function `count` times, each time on the results of the previous call.
fn repeat_kernel(frame: &mut Frame<'_>) -> Result<Results, Fault> {
    let count = frame.get::<i32>(0)?;
    let body = frame.function(0)?;
    let results = frame.results();
    check_signature(frame, body, results, results)?;
    if frame.arguments() != results + 1 {
        return Err(Fault::invalid(format!("{} arguments for {results} results", frame.arguments())));
    }
    let (promises, values) = new_promises(results);
    let state = Repeat { context: frame.context().clone(), body: body.to_function(), promises, count };
    state.run(0, frame.arguments_from(1));
    Ok(values)
}

/// The results of the function of a `tfrt.once`, which is called once per request.
struct Once {
    promises: Mutex<Option<Vec<Promise>>>,
    values: Results,
}

fn once_kernel(frame: &mut Frame<'_>) -> Result<Results, Fault> {
    let function = frame.function(0)?;
    check_signature(frame, function, frame.arguments(), frame.results())?;
    let name = format!("tfrt.once @{}", function.name());
    let once = frame.context().resource(&name, || {
        let (promises, values) = new_promises(function.results());
        Once { promises: Mutex::new(Some(promises)), values }
    });
    let once = once.ok_or_else(|| Fault::invalid(format!("the resource `{name}` is taken")))?;
    let promises = once.promises.lock().unwrap_or_else(|e| e.into_inner()).take();
    if let Some(promises) = promises {
        resolve_all(promises, function.execute(frame.context(), &frame.arguments_from(0)));
    }
    Ok(once.values.clone())
}

/// Takes `(chain, value)` and returns `value`, so that uses of the result are ordered after the chain.
fn alias_kernel(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    match frame.arguments() {
        2 => Ok(frame.take_argument(1)),
        n => Err(Fault::invalid(format!("{n} arguments: a chain and a value expected"))),
    }
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_pure("tfrt.new.chain", || Chain);
    registry.add_pure("tfrt.merge.chains", || Chain);
    registry.add_immediate("tfrt.alias.value", alias_kernel);
    registry.add_fallible_with("tfrt.call", Effect::Call, |frame: &mut Frame<'_>| {
        let function = frame.function(0)?;
        call(frame, function, 0)
    });
    registry.add_fallible_with("tfrt.if", Effect::Call, if_kernel);
    registry.add_fallible_with("tfrt.cond", Effect::Call, if_kernel);
    registry.add_fallible("tfrt.case", case_kernel);
    registry.add_fallible_with("tfrt.while", Effect::Loop, while_kernel);
    registry.add_fallible_with("tfrt.repeat.i32", Effect::Loop, repeat_kernel);
    registry.add_fallible("tfrt.once", once_kernel);
}
