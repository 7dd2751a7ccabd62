//! Asynchronous execution: a kernel runs once its operands are available, which a ready count tracks.
//!
//! Kernels of one stream run one after another on the thread that follows the stream; kernels of other streams become
//! tasks of the work queue. No lock is taken. As long as no other thread has access to an execution (it has spawned no
//! task and waits for no value), kernels work on its registers in place and the counts are not atomic ([`state`]); the
//! execution moves to the heap when it has to be shared ([`shared`]).

mod cells;
mod local;
mod order;
mod ready;
mod shared;
mod state;

use crate::async_value::AsyncValue;
use crate::body::{Body, Register};
use crate::context::HostContext;
use crate::error::{ErrorCode, ErrorValue};
use crate::frame::Site;
use crate::function::{Function, FunctionRef};
use crate::kernel::Effect;
use crate::request::ExecutionContext;
use crate::stack;
use crate::sync::{Panic, panic_message};
use crate::value::{Results, Value};
pub(crate) use local::schedule;
use pteron_trace::{Place, SpanKind, Tracer};
pub(crate) use state::LocalState;

#[cfg(all(test, loom))]
pub(crate) use cells::{Cell as ModelCell, ReadyCount as ModelReadyCount, ResultSlot as ModelResultSlot};

/// Prepares an execution of a function; the number of arguments must be the function's.
#[inline]
pub(crate) fn prepare<'v>(body: &Body, arguments: impl Iterator<Item = &'v Value>) -> LocalState {
    LocalState::new(body, arguments)
}

/// Starts a function on this thread. `in_order` runs it in program order, which requires that its execution order is
/// not observable ([`crate::effects`]). Passes each result's index and value to `set_result`, in order, which may take
/// the value.
#[inline]
pub(crate) fn execute(
    function: FunctionRef<'_>,
    context: &ExecutionContext,
    body: &Body,
    prepared: LocalState,
    in_order: bool,
    set_result: &mut dyn FnMut(usize, &mut Value),
) {
    local::run(function, context, body, prepared, in_order, set_result);
}

/// Starts a function as a task of the work queue.
pub(crate) fn execute_later(function: &Function, context: &ExecutionContext, arguments: &[Value]) -> Results {
    let (promises, results): (Vec<_>, Results) = (0..function.results())
        .map(|_| context.new_promise())
        .map(|(promise, value)| (promise, Value::Async(value)))
        .unzip();
    let (function, arguments) = (function.clone(), arguments.to_vec());
    let (counted, charge) = context.begin_execution(size_of_val(&*arguments) + size_of_val(&*results));
    context.host().queue().add_task(Box::new(move || {
        let values = stack::run_scoped(|| function.execute(&counted, &arguments));
        drop(charge);
        promises.into_iter().zip(values).for_each(|(promise, value)| promise.set(value));
    }));
    results
}

/// Runs a kernel and records it as a span.
#[cold]
pub(crate) fn run_traced(
    tracer: Tracer<'_>,
    function: FunctionRef<'_>,
    index: u32,
    site: &Site,
    run: impl FnOnce(),
) {
    let start = tracer.start();
    run();
    let place = Place::instruction(function.index() as u32, index);
    tracer.end(start, SpanKind::Kernel, &site.name, place);
}

/// A kernel call whose results are checked: failures get its name and location, and those that no kernel has reported are passed to the
/// host's diagnostics handler.
#[derive(Clone, Copy)]
struct Origin<'a> {
    function: FunctionRef<'a>,
    body: &'a Body,
    kernel: u32,
    host: &'a HostContext,
}

impl<'a> Origin<'a> {
    /// The kernel call that sets a register; `None` for an argument.
    fn setter_of(
        register: u32,
        function: FunctionRef<'a>,
        body: &'a Body,
        host: &'a HostContext,
    ) -> Option<Self> {
        let kernel = body.registers[register as usize].setter;
        (kernel != Register::ARGUMENT).then_some(Self { function, body, kernel, host })
    }

    fn site(self) -> &'a Site {
        &self.body.sites[self.kernel as usize]
    }

    /// Prepares a result for its register: unwraps an available asynchronous value, and turns a missing value into an
    /// error.
    #[inline(never)]
    fn check_result(self, result: Value) -> Value {
        match result.settle() {
            Value::Empty => Value::Error(self.site().missing_result(self.function, self.host)),
            Value::Error(error) => Value::Error(self.site().attach_origin(error, self.function, self.host)),
            other => other,
        }
    }

    /// Checks a result and returns the value to set its register to; `None` if nobody uses it. A value that is not
    /// available yet is waited for until the request is cancelled.
    fn check_result_for(self, result: Value, register: u32, context: &ExecutionContext) -> Option<Value> {
        if matches!(result, Value::Object(_)) {
            return (self.body.registers[register as usize].uses > 0).then_some(result);
        }
        let result = self.check_result(result);
        if self.body.registers[register as usize].uses == 0 {
            if let Value::Async(pending) = result {
                self.report_when_available(pending);
            }
            return None;
        }
        Some(match context.relay_value(result) {
            Value::Async(pending) if self.body.users(register).is_empty() => {
                Value::Async(self.forward_checked(pending))
            }
            value => value,
        })
    }

    /// The value for the caller of the function, if no kernel waits for `pending`: the same, checked.
    ///
    /// The results of a function that the kernel only calls were checked where they were set.
    fn forward_checked(self, pending: AsyncValue) -> AsyncValue {
        if self.body.nodes[self.kernel as usize].effect == Effect::Call {
            return pending;
        }
        let (promise, checked) = AsyncValue::with_request(pending.request());
        self.run_when_available(pending, move |value| promise.set(value));
        checked
    }

    /// Reports the failure, if any, of a result that nothing uses, once it is available.
    fn report_when_available(self, pending: AsyncValue) {
        self.run_when_available(pending, drop);
    }

    fn run_when_available(self, pending: AsyncValue, done: impl FnOnce(Value) + Send + 'static) {
        let (function, host, kernel, source) =
            (self.function.to_function(), self.host.clone(), self.kernel, pending.clone());
        pending.and_then(move || {
            let function = function.by_ref();
            let value = Value::Async(source).settle();
            done(match function.body_if_read() {
                Some(body) => Origin { function, body, kernel, host: &host }.check_result(value),
                None => value,
            });
        });
    }
}

/// The error of a kernel that panicked.
#[cold]
pub(crate) fn panic_error(
    panic: &Panic,
    context: &ExecutionContext,
    function: FunctionRef<'_>,
    site: &Site,
) -> ErrorValue {
    let message = format!("kernel `{}` panicked: {}", site.name, panic_message(panic));
    site.attach_origin(ErrorValue::new_unreported(ErrorCode::Internal, message), function, context.host())
}
