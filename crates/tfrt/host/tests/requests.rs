//! Requests end: when they are cancelled, at their deadline, by a panic of theirs, and whatever they wait for.

use pteron_host::{
    AsyncValue, Charge, Error, ErrorCode, ErrorValue, ExecutionContext, Frame, Function, FunctionBuilder,
    HostContext, Kernel, Limits, ModuleBuilder, Promise, Value,
};
use pteron_pool::{Pool, WorkQueue};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

fn queues() -> [WorkQueue; 3] {
    let pool = Pool::new(3);
    [WorkQueue::single_threaded(), WorkQueue::multi_threaded(&pool), WorkQueue::of_workers(&pool)]
}

/// A host, and a list of the errors that its diagnostics handler was called with.
fn listening(queue: WorkQueue) -> (HostContext, Arc<Mutex<Vec<ErrorValue>>>) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let list = Arc::clone(&heard);
    let host =
        HostContext::builder(queue).on_error(move |error| list.lock().unwrap().push(error.clone())).build();
    (host, heard)
}

/// A function of one kernel; `uses` more kernels pass its result on.
fn function(uses: usize, run: impl Fn(&mut Frame<'_>) + Send + Sync + 'static) -> Function {
    let kernel: Arc<dyn Kernel> = Arc::new(run);
    let pass: Arc<dyn Kernel> = Arc::new(|frame: &mut Frame<'_>| {
        let value = frame.take_argument(0);
        frame.set(0, value);
    });
    let mut b = FunctionBuilder::new("f", 0);
    let mut value = b.kernel(&kernel, &[]);
    for _ in 0..uses {
        value = b.kernel(&pass, &[value]);
    }
    b.returns(&[value]);
    b.build().unwrap()
}

fn failed(result: Result<pteron_host::Results, Error>) -> ErrorValue {
    match result {
        Err(Error::Failed(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// Sets a value that nobody resolves.
fn never(frame: &mut Frame<'_>) {
    static PROMISES: Mutex<Vec<Promise>> = Mutex::new(Vec::new());
    let (promise, value) = AsyncValue::new();
    PROMISES.lock().unwrap().push(promise);
    frame.set(0, Value::Async(value));
}

#[test]
fn cancellation_wakes_callers_waiters_and_continuations() {
    for queue in queues() {
        for uses in [0, 2] {
            let (host, _) = listening(queue.clone());
            let context = ExecutionContext::new(&host);
            let results = function(uses, never).execute(&context, &[]);
            let Value::Async(value) = &results[0] else { panic!("{results:?}") };
            let woken = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&woken);
            value.and_then(move || {
                count.fetch_add(1, Ordering::AcqRel);
            });
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(20));
                    context.cancel();
                });
                assert_eq!(failed(function(uses, never).call(&context, &[])).code(), ErrorCode::Cancelled);
            });
            host.wait(&results);
            assert_eq!(value.get().and_then(Value::as_error).unwrap().code(), ErrorCode::Cancelled);
            assert_eq!(woken.load(Ordering::Acquire), 1);
            // A request that has been cancelled does not wait at all.
            assert_eq!(failed(function(uses, never).call(&context, &[])).code(), ErrorCode::Cancelled);
        }
    }
}

#[test]
fn cancelling_one_request_leaves_a_value_that_another_waits_for() {
    let (promise, shared) = AsyncValue::new();
    let (host, _) = listening(WorkQueue::multi_threaded(&Pool::new(2)));
    let waits = function(1, move |frame: &mut Frame<'_>| frame.set(0, Value::Async(shared.clone())));
    let [first, second] = [0, 1].map(|_| ExecutionContext::new(&host));
    let results = waits.execute(&second, &[]);
    let cancelled = waits.execute(&first, &[]);
    first.cancel();
    host.wait(&cancelled);
    promise.set(Value::I32(4));
    host.wait(&results);
    assert!(matches!(results[0].clone().settle(), Value::I32(4)));
    assert!(matches!(cancelled[0].clone().settle(), Value::Error(_)));
}

#[test]
fn a_deadline_ends_a_request_once_and_no_other() {
    for queue in queues() {
        let (host, heard) = listening(queue);
        let start = Instant::now();
        let context = ExecutionContext::with_deadline(&host, start + Duration::from_millis(30));
        assert_eq!(failed(function(1, never).call(&context, &[])).code(), ErrorCode::DeadlineExceeded);
        assert!(start.elapsed() >= Duration::from_millis(30));
        assert_eq!(heard.lock().unwrap().len(), 1);
        // A request that ends before its deadline removes its timer.
        let early = ExecutionContext::with_deadline(&host, Instant::now() + Duration::from_millis(1));
        drop(early);
        let other = ExecutionContext::new(&host);
        other.set_deadline(Instant::now() + Duration::from_millis(1));
        other.set_deadline(Instant::now() + Duration::from_secs(3600));
        std::thread::sleep(Duration::from_millis(20));
        assert!(other.cancellation_error().is_none());
        assert_eq!(heard.lock().unwrap().len(), 1);
    }
}

#[test]
fn a_panic_is_the_error_of_its_own_request() {
    type Run = fn(&mut Frame<'_>);
    let ways: [Run; 4] = [
        |_| panic!("the kernel"),
        |frame| {
            let value = frame.context().enqueue(|| panic!("the task"));
            frame.set(0, value);
        },
        |frame| {
            let (promise, value) = AsyncValue::new();
            frame.context().host().queue().add_task(Box::new(move || {
                let _promise = promise;
                panic!("a task of its own")
            }));
            frame.set(0, Value::Async(value));
        },
        |frame| {
            let (promise, value) = AsyncValue::new();
            frame.context().host().after(Duration::from_millis(1), move || {
                let _promise = promise;
                panic!("the timer")
            });
            frame.set(0, Value::Async(value));
        },
    ];
    for queue in queues() {
        for way in ways {
            for uses in [0, 1] {
                let (host, heard) = listening(queue.clone());
                let slow = function(uses, |frame: &mut Frame<'_>| {
                    let value = frame.context().enqueue(|| Value::I32(1));
                    frame.set(0, value);
                });
                let others = slow.execute(&ExecutionContext::new(&host), &[]);
                let error = failed(function(uses, way).call(&ExecutionContext::new(&host), &[]));
                assert_eq!(error.code(), ErrorCode::Internal);
                assert_eq!(*heard.lock().unwrap(), [error]);
                host.wait(&others);
                assert!(matches!(others[0].clone().settle(), Value::I32(1)));
                // Timers and tasks go on.
                let (fired, wait) = mpsc::channel();
                host.after(Duration::from_millis(1), move || fired.send(()).unwrap());
                wait.recv_timeout(Duration::from_secs(5)).unwrap();
            }
        }
    }
}

#[test]
fn a_waiter_that_panics_leaves_the_other_waiters() {
    let (promise, value) = AsyncValue::new();
    let woken = Arc::new(AtomicUsize::new(0));
    for i in 0..3 {
        let woken = Arc::clone(&woken);
        value.and_then(move || {
            assert_ne!(i, 1, "this waiter panics");
            woken.fetch_add(1, Ordering::AcqRel);
        });
    }
    promise.set(Value::I32(1));
    assert_eq!(woken.load(Ordering::Acquire), 2);
}

#[test]
fn timers_can_be_removed_and_need_not_fire() {
    let (host, _) = listening(WorkQueue::single_threaded());
    let (fired, wait) = mpsc::channel();
    let send = |n: i32| {
        let fired = fired.clone();
        move || fired.send(n).unwrap()
    };
    let removed = host.after(Duration::from_millis(20), send(1));
    host.after(Duration::MAX, send(2));
    host.after(Duration::from_millis(30), send(3));
    let begun = host.after(Duration::ZERO, send(0));
    assert_eq!(wait.recv_timeout(Duration::from_secs(5)), Ok(0));
    assert!(removed.remove() && !removed.remove() && !begun.remove());
    assert_eq!(wait.recv_timeout(Duration::from_secs(5)), Ok(3));
    assert!(wait.try_recv().is_err());
}

#[test]
fn constructors_of_resources_may_ask_for_others() {
    let (host, _) = listening(WorkQueue::single_threaded());
    let context = ExecutionContext::new(&host);
    let nested = context.resource("a", || context.resource("b", || 1u32).map(|b| *b));
    assert_eq!(*nested.unwrap(), Some(1));
    let itself = context.resource("c", || context.resource("c", || 1u32).is_some());
    assert!(!(*itself.unwrap()));
    assert_eq!(*host.shared(|| u64::from(*host.shared(|| 1u32))), 1);
    struct Itself;
    let needs_itself = || host.shared(|| drop(host.shared(|| Itself)));
    assert_eq!(*needs_itself(), ());
    context.clear_resources();
    assert_eq!(context.resource("a", || 2u8).as_deref(), Some(&2));
}

#[test]
fn charges_are_limited_over_all_values_of_a_request() {
    let limits = Limits { memory: 100, ..Limits::DEFAULT };
    let host = HostContext::builder(WorkQueue::single_threaded()).limits(limits).build();
    struct Held(#[expect(dead_code)] Charge);
    let take = |bytes| {
        function(0, move |frame: &mut Frame<'_>| match frame.context().charge(bytes) {
            Ok(charge) => frame.set(0, Value::object(Held(charge))),
            Err(fault) => frame.fail(fault),
        })
    };
    let context = ExecutionContext::new(&host);
    let first = take(60).call(&context, &[]).unwrap();
    assert_eq!(failed(take(50).call(&context, &[])).code(), ErrorCode::ResourceExhausted);
    assert_eq!(context.charged_bytes(), 60);
    drop(first);
    take(100).call(&context, &[]).unwrap();
    assert_eq!(context.charged_bytes(), 0);
}

/// Functions `wait`, which calls `task` and waits for it, and `task`, whose result a timer resolves after a while.
fn waiting<const STACK: usize>() -> Function {
    let timer: Arc<dyn Kernel> = Arc::new(|frame: &mut Frame<'_>| {
        let (promise, value) = AsyncValue::new();
        frame.context().host().after(Duration::from_millis(20), move || promise.set(Value::I32(1)));
        frame.set(0, Value::Async(value));
    });
    let wait: Arc<dyn Kernel> = Arc::new(|frame: &mut Frame<'_>| {
        std::hint::black_box([0u8; STACK]);
        match frame.function(0).unwrap().to_function().call(frame.context(), &[]) {
            Ok(values) => frame.set(0, values[0].clone()),
            Err(error) => frame.fail(error.to_string()),
        }
    });
    let mut module = ModuleBuilder::new();
    let (task, main) = (module.declare("task", 0, 1), module.declare("wait", 0, 1));
    for (id, kernel) in [(task, timer), (main, wait)] {
        let mut b = FunctionBuilder::new("f", 0);
        let (results, kernel) = b.call(&kernel, &[], 1);
        b.edit(kernel).functions(if id == main { std::slice::from_ref(&task) } else { &[] });
        b.returns(&results);
        module.define(id, b).unwrap();
    }
    module.build().unwrap().find("wait").unwrap()
}

#[test]
fn any_number_of_kernels_may_wait_at_the_same_time() {
    fn run<const STACK: usize>(queue: WorkQueue, count: usize) {
        let host = HostContext::builder(queue).build();
        let function = waiting::<STACK>();
        let requests: Vec<_> = (0..count).map(|_| ExecutionContext::new(&host)).collect();
        let values: Vec<Value> = requests.iter().flat_map(|c| function.execute_later(c, &[])).collect();
        host.wait(&values);
        assert!(values.into_iter().all(|value| matches!(value.settle(), Value::I32(1))));
    }
    for queue in queues() {
        run::<0>(queue.clone(), 3000);
        run::<16_384>(queue, 500);
    }
}
