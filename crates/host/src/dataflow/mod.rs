//! Asynchronous execution: a kernel runs once its operands are available, which a ready count tracks.
//!
//! Kernels of one stream run one after another on the thread that follows the stream; kernels of other streams become
//! tasks of the work queue. No lock is taken. As long as no other thread has access to an execution (it has spawned no
//! task and waits for no value), kernels work on its registers in place and the counts are not atomic ([`own`]); the
//! execution moves to the heap when it has to be shared ([`shared`]).

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

/// Prepares an execution of a function; the number of arguments must be the function's.
#[inline]
pub(crate) fn prepare<'v>(body: &Body, arguments: impl Iterator<Item = &'v Value>) -> Own {
    Own::new(body, arguments)
}

/// Starts a function on this thread. `in_order` runs it in program order, which requires that its execution order is
/// not observable ([`crate::effects`]). Passes each result's index and value to `set_result`, in order, which may take
/// the value.
#[inline]
pub(crate) fn execute(
    function: FunctionRef<'_>,
    context: &ExecutionContext,
    body: &Body,
    prepared: Own,
    in_order: bool,
    set_result: &mut dyn FnMut(usize, &mut Value),
) {
    own::run(function, context, body, prepared, in_order, set_result);
}

/// Starts a function as a task of the work queue.
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

/// Runs a kernel and records it as a span.
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

/// The error for a result that a kernel did not set.
#[cold]
fn no_result(kernel: &str) -> Value {
    Value::Error(ErrorValue::new(ErrorCode::Internal, format!("kernel `{kernel}` did not set a result")))
}
