use crate::kernels::{RegistryExt, Text, out};
use pteron_host::{AsyncValue, Chain, Fault, Frame, KernelRegistry, Results, Value};
use std::time::Duration;

/// Delay of the kernels that copy with a delay: long enough to affect the order of execution.
const DELAY: Duration = Duration::from_millis(2);

/// Returns the first argument, asynchronously.
fn copy(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let value = frame.take_argument(0);
    Ok(frame.context().enqueue(move || value))
}

fn copy_with_delay(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let value = frame.take_argument(0);
    Ok(frame.context().enqueue(move || {
        pteron_clock::sleep(DELAY);
        value
    }))
}

/// Executes a function as a task of the work queue.
fn do_async(frame: &mut Frame<'_>) -> Result<Results, Fault> {
    let function = frame.function(0)?;
    if (function.arguments(), function.results()) != (frame.arguments(), frame.results()) {
        return Err(Fault::invalid("the function has other arguments or results than the call"));
    }
    Ok(function.to_function().execute_later(frame.context(), &frame.arguments_from(0)))
}

/// Sleeps on a thread for blocking tasks. Returns an asynchronous value that resolves to `value` afterwards.
fn sleep(frame: &Frame<'_>, value: Value) -> Result<Value, Fault> {
    let microseconds = frame.get::<i32>(0)?;
    let context = frame.context().clone();
    let (promise, result) = AsyncValue::new();
    let task = move || {
        pteron_clock::sleep(Duration::from_micros(microseconds.max(0) as u64));
        context.host().print(|out| {
            writeln!(out, "Slept for {microseconds} microseconds")?;
            out.flush()
        });
        promise.set(value);
    };
    frame
        .context()
        .host()
        .queue()
        .add_blocking_task(Box::new(task), true)
        .map_err(|_| "Failed to enqueue blocking work. Maximum number of pending blocking tasks reached.")?;
    Ok(Value::Async(result))
}

/// Returns a chain. Kernels run only when all arguments are available, so the chain comes after them.
fn as_chain(_: &mut Frame<'_>) -> Result<Chain, Fault> {
    Ok(Chain)
}

/// Returns zero or an error, asynchronously.
fn report_later(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let (input, reporter) = (frame.get::<i32>(0)?, frame.reporter());
    Ok(frame.context().enqueue(move || match input {
        0 => Value::I32(0),
        _ => Value::Error(reporter.report("something bad happened asynchronously")),
    }))
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("tfrt_test.async_add.i32", |frame: &mut Frame<'_>| {
        let (a, b) = (frame.get::<i32>(0)?, frame.get::<i32>(1)?);
        Ok(frame.context().enqueue(move || Value::I32(a.wrapping_add(b))))
    });
    registry.add_fallible("tfrt_test.async_constant.i1", |frame: &mut Frame<'_>| {
        let value = frame.attribute::<bool>(0)?;
        Ok(frame.context().enqueue(move || Value::Bool(value)))
    });
    registry.add_fallible("tfrt_test.async_constant.i32", |frame: &mut Frame<'_>| {
        let value = frame.attribute::<i32>(0)?;
        Ok(frame.context().enqueue(move || Value::I32(value)))
    });
    registry.add_fallible("tfrt_test.async_copy.i32", copy);
    registry.add_fallible("tfrt_test.async_copy_2.i32", copy);
    for suffix in ["i32", "i64"] {
        registry.add_fallible(&format!("tfrt_test.async_copy.with_delay.{suffix}"), copy_with_delay);
        registry.add_fallible(&format!("tfrt_test.copy.with_delay.{suffix}"), |frame: &mut Frame<'_>| {
            pteron_clock::sleep(DELAY);
            Ok(frame.take_argument(0))
        });
    }
    registry.add_fallible("tfrt_test.do.async", do_async);
    registry.add_fallible("tfrt_test.usleep", |frame: &mut Frame<'_>| sleep(frame, Value::Chain).map(drop));
    registry.add_fallible("tfrt_test.blocking.usleep", |frame: &mut Frame<'_>| sleep(frame, Value::Chain));
    registry.add_fallible("tfrt_test.quiesce", |frame: &mut Frame<'_>| frame.quiesce());
    registry.add_fallible("tfrt_test.as_chain", as_chain);
    registry.add_fallible("tfrt_test.report_error_concrete_async", report_later);
    registry.add_fallible("tfrt_test.report_error_indirect_async", report_later);
    registry.add_fallible("tfrt_test.report_error_async", |frame: &mut Frame<'_>| {
        let reporter = frame.reporter();
        let report = move || Value::Error(reporter.report("something bad happened asynchronously"));
        Ok(frame.context().enqueue(report))
    });
    registry.add_fallible("tfrt_test.logging", |frame: &mut Frame<'_>| {
        let text = frame.object::<Text>(0)?;
        frame.context().host().log(|log| {
            for (name, condition) in [("TFRT_LOG", ""), ("TFRT_LOG_IF", ", true")] {
                for severity in ["INFO", "WARNING", "ERROR"] {
                    writeln!(log, "{} from {name}({severity}{condition}): {text}", &severity[..1])?;
                }
            }
            log.flush()
        });
        Ok(Chain)
    });
    registry.add_fallible("tfrt_test.print_bool", |frame: &mut Frame<'_>| {
        out!(frame, "{}\n", frame.get::<bool>(1)?);
        Ok(Chain)
    });
}

#[cfg(test)]
mod tests {
    use pteron_host::{
        ExecutionContext, Function, FunctionBuilder, HostContext, Kernel, KernelRegistry, Value, typed,
    };
    use pteron_pool::{Pool, WorkQueue};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI32, Ordering};

    const TASKS: i32 = 100;

    /// A function that spawns tasks, waits for all of them, and returns the number of tasks that have run.
    fn counted() -> Function {
        let mut registry = KernelRegistry::new();
        super::register(&mut registry);
        let count = Arc::new(AtomicI32::new(0));
        let counter = Arc::clone(&count);
        let add_later: Arc<dyn Kernel> = Arc::new(move |frame: &mut pteron_host::Frame<'_>| {
            for _ in 0..TASKS {
                let counter = Arc::clone(&counter);
                frame.context().enqueue(move || Value::I32(counter.fetch_add(1, Ordering::Relaxed)));
            }
        });
        let mut b = FunctionBuilder::new("counted", 0);
        b.call(&add_later, &[], 0);
        b.call(registry.kernel("tfrt_test.quiesce").unwrap(), &[], 0);
        let seen = b.kernel(&typed(move || count.load(Ordering::Relaxed)), &[]);
        b.returns(&[seen]);
        b.in_order().build().unwrap()
    }

    fn context(queue: WorkQueue) -> ExecutionContext {
        ExecutionContext::new(&HostContext::builder(queue).build())
    }

    fn run_as_task(context: &ExecutionContext) -> Value {
        let results = counted().execute_later(context, &[]);
        context.host().wait(&results);
        results[0].clone().settle()
    }

    #[test]
    fn quiesce_waits_for_all_tasks() {
        for queue in [WorkQueue::single_threaded(), WorkQueue::multi_threaded(&Pool::new(2))] {
            let results = counted().call(&context(queue), &[]).unwrap();
            assert!(matches!(results[0], Value::I32(TASKS)), "{results:?}");
        }
        let result = run_as_task(&context(WorkQueue::single_threaded()));
        assert!(matches!(result, Value::I32(TASKS)), "{result:?}");
    }

    #[test]
    fn quiesce_in_a_task_of_a_pool_is_an_error() {
        let result = run_as_task(&context(WorkQueue::multi_threaded(&Pool::new(2))));
        let error = result.as_error().expect("it would wait for itself");
        assert!(error.message().contains("order kernels by chains"), "{}", error.message());
    }
}
