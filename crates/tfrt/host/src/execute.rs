//! Starts functions and waits for them, each as its kind requires.

use crate::async_value::AsyncValue;
use crate::body::Body;
use crate::error::{Error, ErrorCode, ErrorValue, Result};
use crate::frame::Frame;
use crate::function::{Function, FunctionKind, FunctionRef};
use crate::request::ExecutionContext;
use crate::sync::{catch_panic, panic_message};
use crate::value::{Results, Value};
use crate::{dataflow, effects, ordered, stack};

impl Function {
    /// Starts the function and returns its results; some may not be available yet. Kernels that can run at once run on
    /// this thread before this returns; the others become tasks of the work queue. Failures are returned as
    /// [`Value::Error`] results.
    pub fn execute(&self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        self.by_ref().execute(context, arguments)
    }

    /// As [`Self::execute`], for callers that do nothing else with the request until the results are available.
    ///
    /// On a single thread, the kernels then run in program order if their execution order is not observable, that is if
    /// their effects ([`Effect`](crate::Effect)) have the same order in every schedule.
    pub fn execute_alone(&self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        let in_order = context.host().queue().parallelism() == 1 && self.is_ordered();
        self.by_ref().execute_with_order(context, arguments, in_order)
    }

    /// Whether an execution's observable effects have the same order in every schedule: see [`effects`].
    fn is_ordered(&self) -> bool {
        *self.by_ref().entry().ordered.get_or_init(|| effects::is_ordered(self.by_ref()))
    }

    /// As [`Self::execute`], but the whole execution is a task of the work queue.
    pub fn execute_later(&self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        if let Err(error) = self.by_ref().check_arguments(arguments.len()) {
            return self.by_ref().error_results(invalid_argument(&error));
        }
        dataflow::execute_later(self, context, arguments)
    }

    /// Runs the function and waits for its results on this thread, or until the request is cancelled. Kernels may call
    /// this, however many wait at the same time: a thread whose waits use up its stack leaves the rest to another.
    ///
    /// # Errors
    /// The first failure among the results.
    pub fn call(&self, context: &ExecutionContext, arguments: &[Value]) -> Result<Results> {
        self.by_ref().check_arguments(arguments.len())?;
        let results = context.wait(self.execute_alone(context, arguments));
        match results.iter().find_map(Value::as_error) {
            Some(error) => Err(Error::Failed(error.clone())),
            None => Ok(results),
        }
    }
}

impl<'a> FunctionRef<'a> {
    fn check_arguments(self, count: usize) -> Result<()> {
        if count == self.arguments() {
            return Ok(());
        }
        Err(Error::WrongArguments {
            function: self.name().to_owned(),
            expected: self.arguments(),
            found: count,
        })
    }

    /// Executes the function: see [`Function::execute`].
    pub fn execute(self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        self.execute_with_order(context, arguments, false)
    }

    fn execute_with_order(self, context: &ExecutionContext, arguments: &[Value], in_order: bool) -> Results {
        match self.body_if_startable(arguments.len()) {
            Some(body) => {
                let own = dataflow::prepare(body, arguments.iter());
                let mut results = Results::new();
                let set_result = &mut |_, value: &mut Value| results.push(std::mem::take(value));
                dataflow::execute(self, context, body, own, in_order, set_result);
                results
            }
            None => self.execute_slow(context, arguments),
        }
    }

    /// Starts the function with the frame's arguments from index `from` on; its results become the frame's results.
    #[inline]
    pub(crate) fn execute_in_frame(self, frame: &mut Frame<'_>, from: usize) {
        let count = frame.arguments().saturating_sub(from);
        let Some(body) = self.body_if_startable(count) else {
            let arguments = frame.arguments_from(from);
            return frame.set_all(self.execute_slow(frame.context(), &arguments));
        };
        let own = dataflow::prepare(body, frame.argument_values_from(from));
        let context = frame.context();
        let in_order = frame.in_order;
        dataflow::execute(self, context, body, own, in_order, &mut |i, value| frame.set_moved(i, value));
    }

    /// The kernels, if the function is asynchronous, takes this number of arguments, and the stack is not too deep to
    /// start it here.
    #[inline(always)]
    fn body_if_startable(self, arguments: usize) -> Option<&'a Body> {
        let entry = self.entry();
        if arguments != entry.arguments as usize || entry.kind != FunctionKind::Async || stack::is_deep() {
            return None;
        }
        self.body_if_read().or_else(|| self.read_body().ok())
    }

    /// Executes a function that is not asynchronous, that is nested too deeply, or that cannot be executed.
    #[inline(never)]
    fn execute_slow(self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        // Counted even if no kernel runs: the call may be in an endless loop.
        context.count_kernels_batched(1);
        if let Err(error) = self.check_arguments(arguments.len()) {
            return self.error_results(invalid_argument(&error));
        }
        match self.kind() {
            FunctionKind::Native => self.execute_native(context, arguments),
            FunctionKind::Sync => self.execute_sync(context, arguments),
            FunctionKind::Async => match self.body() {
                Ok(_) => dataflow::execute_later(&self.to_function(), context, arguments),
                Err(error) => self.error_results(invalid_argument(&error)),
            },
        }
    }

    fn execute_native(self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        if let Some(pending) = arguments.iter().find_map(as_unavailable) {
            return self.execute_native_when(pending.clone(), context, arguments);
        }
        let arguments: Results = arguments.iter().map(|v| v.clone().settle()).collect();
        let mut results: Results = (0..self.results()).map(|_| Value::Empty).collect();
        if let Some(error) = arguments.iter().rev().find_map(Value::as_error) {
            results.fill(Value::Error(error.clone()));
        } else if let Some(native) = &self.entry().native
            && let Err(panic) = catch_panic(|| native(context, &arguments, &mut results))
        {
            results.fill(self.native_failure(&format!("panicked: {}", panic_message(&panic))));
        }
        for result in results.iter_mut().filter(|r| matches!(r, Value::Empty)) {
            *result = self.native_failure("gave no result");
        }
        results.into_iter().map(|value| context.relay_value(value)).collect()
    }

    /// The error for a native function that cannot be called or misbehaves; the kernel that calls it reports the error.
    fn native_failure(self, problem: &str) -> Value {
        let message = format!("native function `{}` {problem}", self.name());
        Value::Error(ErrorValue::new_unreported(ErrorCode::Internal, message))
    }

    /// Calls a native function as soon as `pending`, one of its arguments, is available. Returns asynchronous results.
    fn execute_native_when(
        self,
        pending: AsyncValue,
        context: &ExecutionContext,
        arguments: &[Value],
    ) -> Results {
        let (promises, results): (Vec<_>, Results) = (0..self.results())
            .map(|_| context.new_promise())
            .map(|(promise, value)| (promise, Value::Async(value)))
            .unzip();
        let pending = context.relay_value(Value::Async(pending));
        let (function, context, arguments) = (self.to_function(), context.clone(), arguments.to_vec());
        let resolve = move || {
            let values = match context.cancellation_error() {
                Some(error) => function.by_ref().error_results(error.clone()),
                None => function.by_ref().execute_native(&context, &arguments),
            };
            promises.into_iter().zip(values).for_each(|(promise, value)| promise.set(value));
        };
        match pending {
            Value::Async(pending) => pending.and_then(resolve),
            _ => resolve(),
        }
        results
    }

    fn execute_sync(self, context: &ExecutionContext, arguments: &[Value]) -> Results {
        let mut results: Results = (0..self.results()).map(|_| Value::Empty).collect();
        if stack::is_deep() {
            let message = "synchronous functions call each other too deeply: the limit of the stack";
            return self.error_results(ErrorValue::new_unreported(ErrorCode::ResourceExhausted, message));
        }
        let outcome = stack::run_scoped(|| {
            let arguments = arguments.iter().cloned();
            ordered::run(self, &mut Vec::new(), context, arguments, &mut results)
        });
        match outcome {
            Ok(()) => results,
            Err(Error::Failed(error)) => self.error_results(error),
            Err(error) => self.error_results(invalid_argument(&error)),
        }
    }

    /// One value for each of the function's results; each is `error`.
    pub(crate) fn error_results(self, error: ErrorValue) -> Results {
        (0..self.results()).map(|_| Value::Error(error.clone())).collect()
    }
}

/// The asynchronous value that `value` holds, if it is not resolved yet.
fn as_unavailable(value: &Value) -> Option<&AsyncValue> {
    if let Value::Async(value) = value { Some(value).filter(|v| !v.is_available()) } else { None }
}

pub(crate) fn invalid_argument(error: &Error) -> ErrorValue {
    ErrorValue::new_unreported(ErrorCode::InvalidArgument, error.to_string())
}
