//! Random graphs give the same results on every kind of queue as a direct evaluation, and drop every value exactly
//! once.
//!
//! `PTERON_STRESS=1000000 cargo nextest run -p pteron-host random_graphs` for a long run.

use pteron_host::{
    AsyncValue, ErrorCode, ErrorValue, ExecutionContext, Frame, Function, FunctionBuilder, HostContext,
    Interpreter, Kernel, Value,
};
use pteron_pool::{Pool, WorkQueue};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A number with a counter of live instances.
struct Counted(i64, Arc<AtomicI64>);

impl Counted {
    fn value(number: i64, live: &Arc<AtomicI64>) -> Value {
        live.fetch_add(1, Ordering::Relaxed);
        Value::object(Counted(number, Arc::clone(live)))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

#[derive(Clone, Copy)]
enum Act {
    Now,
    Later,
    /// By a promise that another task resolves.
    Promised,
    Fail,
}

/// The function that every kernel computes: one number from its arguments.
fn combine(seed: i64, arguments: impl Iterator<Item = i64>) -> i64 {
    arguments.fold(seed, |a, b| a.wrapping_mul(31).wrapping_add(b))
}

fn number(value: &Value) -> i64 {
    match value {
        Value::I64(v) => *v,
        other => other.downcast_ref::<Counted>().expect("a number").0,
    }
}

fn kernel(act: Act, seed: i64, plain: bool, live: &Arc<AtomicI64>) -> Arc<dyn Kernel> {
    let live = Arc::clone(live);
    Arc::new(move |frame: &mut Frame<'_>| {
        let total = combine(seed, (0..frame.arguments()).map(|i| number(frame.argument(i))));
        for result in 0..frame.results() {
            let number = total.wrapping_add(result as i64);
            let live = Arc::clone(&live);
            let make = move || if plain { Value::I64(number) } else { Counted::value(number, &live) };
            match act {
                Act::Now => frame.set(result, make()),
                Act::Later => frame.set(result, frame.context().enqueue(make)),
                Act::Promised => {
                    let (promise, value) = AsyncValue::new();
                    let later = frame.context().enqueue(make);
                    frame.context().host().queue().add_task(Box::new(move || promise.set(later)));
                    frame.set(result, value);
                }
                Act::Fail => return frame.fail("asked to fail"),
            }
        }
    })
}

/// A random function without arguments, and its expected results: numbers, or `None` for failures.
fn graph(random: &mut Random, live: &Arc<AtomicI64>, only_now: bool) -> (Function, Vec<Option<i64>>) {
    let mut b = FunctionBuilder::new("random", 0);
    let mut known: Vec<(_, Option<i64>)> = Vec::new();
    let mut kernels = Vec::new();
    for seed in 0..1 + random.below(30) as i64 {
        let count = random.below(4).min(known.len());
        let chosen: Vec<usize> = (0..count).map(|_| random.below(known.len())).collect();
        let act = match random.below(20) {
            0 if !only_now => Act::Fail,
            1..=4 if !only_now => Act::Later,
            5..=7 if !only_now => Act::Promised,
            _ => Act::Now,
        };
        let arguments: Vec<_> = chosen.iter().map(|&i| known[i].0).collect();
        let numbers: Option<Vec<i64>> = chosen.iter().map(|&i| known[i].1).collect();
        let results = random.below(3);
        let implementation = kernel(act, seed, random.below(2) == 0, live);
        let (registers, id) = b.call(&implementation, &arguments, results);
        let edit = b.edit(id).stream(random.below(4) as u32);
        if !kernels.is_empty() && random.below(3) == 0 {
            edit.after(kernels[random.below(kernels.len())]);
        }
        kernels.push(id);
        let total = numbers.filter(|_| !matches!(act, Act::Fail)).map(|n| combine(seed, n.into_iter()));
        for (i, register) in registers.into_iter().enumerate() {
            known.push((register, total.map(|t| t.wrapping_add(i as i64))));
        }
    }
    let returned: Vec<usize> = if known.is_empty() {
        Vec::new()
    } else {
        (0..random.below(4)).map(|_| random.below(known.len())).collect()
    };
    b.returns(&returned.iter().map(|&i| known[i].0).collect::<Vec<_>>());
    (b.build().unwrap(), returned.iter().map(|&i| known[i].1).collect())
}

fn seen(results: impl IntoIterator<Item = Value>) -> Vec<Option<i64>> {
    results.into_iter().map(Value::settle).map(|v| (!v.is_error()).then(|| number(&v))).collect()
}

#[test]
fn random_graphs_give_the_expected_results_and_leak_nothing() {
    let few = if cfg!(miri) { 8 } else { 400 };
    let count: usize = std::env::var("PTERON_STRESS").ok().and_then(|n| n.parse().ok()).unwrap_or(few);
    let hosts: Vec<HostContext> = std::iter::once(WorkQueue::single_threaded())
        .chain([1, 2, 4].map(|n| WorkQueue::multi_threaded(&Pool::new(n))))
        .map(|queue| HostContext::builder(queue).build())
        .collect();
    let live = Arc::new(AtomicI64::new(0));
    let mut random = Random(1);
    for round in 0..count {
        let (function, expected) = graph(&mut random, &live, round % 8 == 0);
        for host in &hosts {
            let context = ExecutionContext::new(host);
            let results = if random.below(4) == 0 {
                function.execute_later(&context, &[])
            } else {
                function.execute(&context, &[])
            };
            host.wait(&results);
            assert_eq!(seen(results), expected, "graph {round} on {host:?}");
            host.quiesce();
        }
        if round % 8 == 0 {
            let mut results = vec![Value::Empty; expected.len()];
            let context = ExecutionContext::new(&hosts[0]);
            Interpreter::new(&function).unwrap().run(&context, [], &mut results).unwrap();
            assert_eq!(seen(results), expected, "graph {round} in order");
        }
        drop(function);
        assert_eq!(live.load(Ordering::Relaxed), 0, "graph {round} leaks, or drops twice");
    }
}

#[test]
fn cancelled_graphs_end_and_leak_nothing() {
    let live = Arc::new(AtomicI64::new(0));
    let mut random = Random(7);
    let host = HostContext::builder(WorkQueue::multi_threaded(&Pool::new(3))).build();
    for _ in 0..if cfg!(miri) { 4 } else { 200 } {
        let (function, _) = graph(&mut random, &live, false);
        let context = ExecutionContext::new(&host);
        let results = function.execute_later(&context, &[]);
        let canceller = context.clone();
        host.queue().add_task(Box::new(move || {
            canceller.cancel_with(ErrorValue::new(ErrorCode::Cancelled, "enough"));
        }));
        host.wait(&results);
        drop(results);
        host.quiesce();
        assert_eq!(live.load(Ordering::Relaxed), 0);
    }
}
