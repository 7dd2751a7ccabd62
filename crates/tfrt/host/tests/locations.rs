//! Every failure has the kernel and the location that it came from, and the diagnostics handler is called with it once.

use pteron_host::{
    AsyncValue, ErrorCode, ErrorValue, ExecutionContext, Frame, Function, FunctionBuilder, HostContext,
    Kernel, SourceLocation, Value, typed,
};
use pteron_pool::{Pool, WorkQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn kernel(run: impl Fn(&mut Frame<'_>) + Send + Sync + 'static) -> Arc<dyn Kernel> {
    Arc::new(run)
}

/// A call site within a name: a location that is not a position in a file.
fn call_site() -> SourceLocation {
    let name =
        SourceLocation::Name { name: "layer".into(), child: Box::new(SourceLocation::file("m.py", 3, 4)) };
    SourceLocation::CallSite { callee: Box::new(name), caller: Box::new(SourceLocation::file("m.py", 9, 1)) }
}

/// Calls `failing` and then, if `users > 0`, kernels that use its result one after another.
fn function(failing: &Arc<dyn Kernel>, users: usize, returned: bool) -> Function {
    let mut b = FunctionBuilder::new("f", 0);
    let (result, id) = b.call(failing, &[], 1);
    b.edit(id).name("my.failing").location(call_site());
    let mut last = result[0];
    for _ in 0..users {
        let add = typed(|a: i64, b: i64| a + b);
        last = b.kernel(&add, &[last, result[0]]);
    }
    let one = typed(|| 1i64);
    let other = b.kernel(&one, &[]);
    b.returns(&[if returned { last } else { other }]);
    b.build().unwrap()
}

/// The ways in which a kernel can fail without reporting it.
fn unreported() -> Vec<(&'static str, Arc<dyn Kernel>)> {
    vec![
        ("missing", kernel(|_| {})),
        ("empty", kernel(|frame| frame.set(0, Value::Empty))),
        (
            "dropped",
            kernel(|frame| {
                let (promise, value) = AsyncValue::new();
                drop(promise);
                frame.set(0, Value::Async(value));
            }),
        ),
        (
            "dropped later",
            kernel(|frame| {
                let (promise, value) = AsyncValue::new();
                frame.context().host().after(Duration::from_millis(1), move || drop(promise));
                frame.set(0, Value::Async(value));
            }),
        ),
        (
            "resolved to nothing by a task",
            kernel(|frame| {
                let value = frame.context().enqueue(|| Value::Empty);
                frame.set(0, value);
            }),
        ),
    ]
}

/// A host on one thread and one on three, and the number of errors that each has heard.
fn hosts() -> Vec<(HostContext, Arc<AtomicUsize>)> {
    let queues = [WorkQueue::single_threaded(), WorkQueue::of_workers(&Pool::new(3))];
    let host = |queue| {
        let heard = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&heard);
        let builder = HostContext::builder(queue);
        let listen = move |error: &ErrorValue| {
            assert_eq!(error.location(), Some(&call_site()));
            count.fetch_add(1, Ordering::SeqCst);
        };
        (builder.on_error(listen).build(), heard)
    };
    queues.into_iter().map(host).collect()
}

#[test]
fn failures_that_no_kernel_reports_are_heard_once_with_their_location() {
    for (name, failing) in unreported() {
        for users in [0, 1, 10] {
            for (host, heard) in hosts() {
                let result = function(&failing, users, true).call(&ExecutionContext::new(&host), &[]);
                let error = result.expect_err("no value").to_string();
                let place = "loc(\"m.py;3;4(layer)<-m.py;9;1\"): my.failing: ";
                assert!(error.starts_with(place), "{name}, {users} users: {error}");
                assert_eq!(heard.load(Ordering::SeqCst), 1, "{name}, {users} users");
            }
        }
    }
}

#[test]
fn failures_of_results_that_nobody_uses_are_heard() {
    for (name, failing) in unreported() {
        for (host, heard) in hosts() {
            function(&failing, 0, false).call(&ExecutionContext::new(&host), &[]).expect("another result");
            host.quiesce();
            for _ in 0..1000 {
                if heard.load(Ordering::SeqCst) == 1 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(2));
            }
            assert_eq!(heard.load(Ordering::SeqCst), 1, "{name}");
        }
    }
}

#[test]
fn an_error_that_a_kernel_makes_is_located_but_not_reported() {
    let made = ErrorValue::new(ErrorCode::NotFound, "no row");
    let shared = made.clone();
    let failing = kernel(move |frame| frame.set(0, Value::Error(shared.clone())));
    for (host, heard) in hosts() {
        let error = function(&failing, 3, true).call(&ExecutionContext::new(&host), &[]).unwrap_err();
        let pteron_host::Error::Failed(error) = error else { panic!("{error}") };
        assert_eq!((error.kernel(), error.location()), (Some("my.failing"), Some(&call_site())));
        assert_eq!((error.code(), heard.load(Ordering::SeqCst)), (ErrorCode::NotFound, 0));
    }
    // The kernel's own copy may be the result of other kernels.
    assert_eq!(made.location(), None);
}

#[test]
fn a_cancelled_request_has_no_location() {
    let cancels = kernel(|frame| {
        frame.context().cancel();
        frame.set(0, 1i64);
    });
    let host = HostContext::single_threaded();
    let error = function(&cancels, 2, true).call(&ExecutionContext::new(&host), &[]).unwrap_err();
    assert_eq!(error.to_string(), "Cancelled");
}

#[test]
fn synchronous_functions_find_missing_results() {
    for (host, heard) in hosts() {
        let mut b = FunctionBuilder::new("f", 0).in_order();
        let (result, id) = b.call(&kernel(|_| {}), &[], 1);
        b.edit(id).name("my.failing").location(call_site());
        b.returns(&result);
        let error = b.build().unwrap().call(&ExecutionContext::new(&host), &[]).unwrap_err().to_string();
        assert!(error.contains("my.failing: kernel `my.failing` did not set a result"), "{error}");
        assert_eq!(heard.load(Ordering::SeqCst), 1);
    }
}
