//! Asynchronous execution: a kernel runs once its operands are available, counted by an atomic.
//!
//! Kernels of one stream run one after another on the thread that follows the stream; others become
//! tasks of the work queue. No lock is taken on the way. As long as no other thread knows of an
//! execution (no task, no waiter for a value), kernels work on its registers in place and are
//! counted without atomic operations ([`own`]); the execution moves to the heap when it has to be shared
//! ([`shared`]).

mod cells;
mod order;
mod own;
mod ready;
mod shared;

use crate::async_value::AsyncValue;
use crate::body::Body;
use crate::context::ExecutionContext;
use crate::error::{ErrorCode, ErrorValue};
use crate::function::{Function, FunctionRef, Results};
use crate::kernel::Site;
use crate::stack;
use crate::value::Value;
pub(crate) use own::{Own, schedule};
use trace::{Place, SpanKind, Tracer};

#[cfg(all(test, loom))]
pub(crate) use cells::{Cell as ModelCell, ReadyCount as ModelReadyCount, ResultSlot as ModelResultSlot};

/// An execution of a function with as many arguments as it takes, to be started.
#[inline]
pub(crate) fn prepare<'v>(body: &Body, arguments: impl Iterator<Item = &'v Value>) -> Own {
    Own::new(body, arguments)
}

/// Starts a function here, in program order if `in_order`: its execution order is not observable
/// ([`crate::effects`]). Its results go to `give`, in order, for it to take them.
#[inline]
pub(crate) fn execute(
    function: FunctionRef<'_>,
    context: &ExecutionContext,
    body: &Body,
    prepared: Own,
    in_order: bool,
    give: &mut dyn FnMut(usize, &mut Value),
) {
    own::run(function, context, body, prepared, in_order, give);
}

/// Starts a function as a task.
pub(crate) fn execute_later(function: &Function, context: &ExecutionContext, arguments: &[Value]) -> Results {
    let (promises, results): (Vec<_>, Results) = (0..function.results())
        .map(|_| AsyncValue::new())
        .map(|(promise, value)| (promise, Value::Async(value)))
        .unzip();
    let (function, arguments) = (function.clone(), arguments.to_vec());
    let counted = context.for_execution();
    context.host().queue().add_task(Box::new(move || {
        let values = stack::scope(|| function.execute(&counted, &arguments));
        promises.into_iter().zip(values).for_each(|(promise, value)| promise.set(value));
    }));
    results
}

/// Runs a kernel and tells the tracer.
#[cold]
pub(crate) fn traced(
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

/// What a kernel gives as a result that it did not set.
#[cold]
fn no_result(kernel: &str) -> Value {
    Value::Error(ErrorValue::new(ErrorCode::Internal, format!("kernel `{kernel}` did not set a result")))
}
