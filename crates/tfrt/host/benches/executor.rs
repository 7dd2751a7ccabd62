//! Speed of the executor, on programs with known timings of the reference implementation: per kernel, 43 ns in a
//! sequential chain, 218 ns in a wide graph and 7.8 ns in the interpreter; 0.30-0.67 s for fib(25); 229 ns per
//! iteration of a loop of two kernels.
#![allow(missing_docs)]

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pteron_host::{
    Bytes, ExecutionContext, Frame, Function, FunctionBuilder, HostContext, Interpreter, Kernel,
    KernelRegistry, Module, ModuleBuilder, Value, typed,
};
use pteron_pool::{Pool, WorkQueue};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

fn context(threads: Option<usize>) -> ExecutionContext {
    let queue = match threads {
        None => WorkQueue::single_threaded(),
        Some(n) => WorkQueue::multi_threaded(&Pool::new(n)),
    };
    ExecutionContext::new(&HostContext::builder(queue).build())
}

fn queues() -> [(&'static str, ExecutionContext); 2] {
    [("s", context(None)), ("mt:2", context(Some(2)))]
}

fn add() -> Arc<dyn Kernel> {
    typed(|a: i32, b: i32| a.wrapping_add(b))
}

/// A chain of trivial kernels, each of which uses the result of the previous one.
fn chain(kernels: usize) -> FunctionBuilder {
    let mut b = FunctionBuilder::new("chain", 2);
    let add = add();
    let mut last = b.argument(0);
    for _ in 0..kernels {
        last = b.kernel(&add, &[last, b.argument(1)]);
    }
    b.returns(&[last]);
    b
}

fn call(function: &Function, context: &ExecutionContext, arguments: &[Value]) -> i32 {
    match function.call(context, arguments).unwrap()[0] {
        Value::I32(v) => v,
        ref other => panic!("{other:?}"),
    }
}

fn in_order(c: &mut Criterion) {
    let mut group = c.benchmark_group("in order");
    let context = context(None);
    for kernels in [10, 200, 1000] {
        group.throughput(Throughput::Elements(kernels as u64));
        let function = chain(kernels).in_order().build().unwrap();
        let mut interpreter = Interpreter::new(&function).unwrap();
        group.bench_function(BenchmarkId::new("interpreter", kernels), |b| {
            let mut results = [Value::Empty];
            b.iter(|| {
                let arguments = [Value::I32(black_box(1)), Value::I32(black_box(2))];
                interpreter.run(&context, arguments, &mut results).unwrap();
                assert!(matches!(results[0], Value::I32(v) if v == 1 + 2 * kernels as i32));
            });
        });
        group.bench_function(BenchmarkId::new("plain Rust loop", kernels), |b| {
            let steps: Vec<fn(i32, i32) -> i32> = vec![i32::wrapping_add; kernels];
            b.iter(|| {
                let (mut x, y) = (black_box(1), black_box(2));
                for step in black_box(&steps) {
                    x = step(x, y);
                }
                assert_eq!(x, 1 + 2 * kernels as i32);
            });
        });
    }
    group.finish();
}

fn sequential(c: &mut Criterion) {
    let mut group = c.benchmark_group("sequential chain");
    for kernels in [100, 1000] {
        group.throughput(Throughput::Elements(kernels as u64));
        let function = chain(kernels).build().unwrap();
        for (name, context) in queues() {
            group.bench_function(BenchmarkId::new(name, kernels), |b| {
                b.iter(|| call(&function, &context, &[Value::I32(black_box(1)), Value::I32(2)]));
            });
        }
    }
    group.finish();
}

/// `kernels` independent kernels, each in a stream of its own, and one that waits for all.
fn wide(kernels: usize, work: impl Fn() + Send + Sync + 'static) -> Function {
    let mut b = FunctionBuilder::new("wide", 0);
    let one: Arc<dyn Kernel> = typed(move || {
        work();
        1i32
    });
    let sum: Arc<dyn Kernel> = Arc::new(|frame: &mut Frame<'_>| {
        let sum = (0..frame.arguments()).map(|i| frame.get::<i32>(i).unwrap()).sum::<i32>();
        frame.set(0, sum);
    });
    let parts: Vec<_> = (0..kernels)
        .map(|i| {
            let (results, id) = b.call(&one, &[], 1);
            b.edit(id).stream(i as u32 + 1);
            results[0]
        })
        .collect();
    let total = b.kernel(&sum, &parts);
    b.returns(&[total]);
    b.build().unwrap()
}

fn wide_graph(c: &mut Criterion) {
    let mut group = c.benchmark_group("wide graph");
    group.throughput(Throughput::Elements(1000));
    let function = wide(1000, || ());
    for (name, context) in queues() {
        group.bench_function(name, |b| b.iter(|| assert_eq!(call(&function, &context, &[]), 1000)));
    }
    group.finish();
    let mut group = c.benchmark_group("wide graph of 20 us kernels");
    let spin = || {
        let start = Instant::now();
        while start.elapsed() < Duration::from_micros(20) {
            std::hint::spin_loop();
        }
    };
    let function = wide(200, spin);
    for (name, context) in [("mt:1", context(Some(1))), ("mt:2", context(Some(2)))] {
        group.bench_function(name, |b| b.iter(|| assert_eq!(call(&function, &context, &[]), 200)));
    }
    group.finish();
}

/// The recursive Fibonacci function; its branches are separate functions, as regions are.
fn fib() -> Function {
    let mut m = ModuleBuilder::new();
    let (then, other, fib) = (m.declare("then", 1, 1), m.declare("else", 1, 1), m.declare("fib", 1, 1));
    let constant = |v: i32| typed(move || v);
    let invoke: Arc<dyn Kernel> = Arc::new(|frame: &mut Frame<'_>| {
        let function = frame.function(0).unwrap();
        frame.call(function, 0);
    });
    let branch: Arc<dyn Kernel> = Arc::new(|frame: &mut Frame<'_>| {
        let function = frame.function(usize::from(!frame.get::<bool>(0).unwrap())).unwrap();
        frame.call(function, 1);
    });
    let mut b = FunctionBuilder::new("then", 1);
    b.returns(&[b.argument(0)]);
    m.define(then, b).unwrap();
    let mut b = FunctionBuilder::new("else", 1);
    let minus = typed(|a: i32, b: i32| a - b);
    let mut halves = Vec::new();
    for (stream, k) in [(0, 1), (1, 2)] {
        let (n, id) = b.call(&constant(k), &[], 1);
        b.edit(id).stream(stream);
        let (x, id) = b.call(&minus, &[b.argument(0), n[0]], 1);
        b.edit(id).stream(stream);
        let (y, id) = b.call(&invoke, &x, 1);
        b.edit(id).stream(stream).functions(&[fib]);
        halves.extend(y);
    }
    let sum = b.kernel(&add(), &halves);
    b.returns(&[sum]);
    m.define(other, b).unwrap();
    let mut b = FunctionBuilder::new("fib", 1);
    let (two, _) = b.call(&constant(2), &[], 1);
    let less = b.kernel(&typed(|a: i32, b: i32| a < b), &[b.argument(0), two[0]]);
    let (result, id) = b.call(&branch, &[less, b.argument(0)], 1);
    b.edit(id).functions(&[then, other]);
    b.returns(&result);
    m.define(fib, b).unwrap();
    m.build().unwrap().find("fib").unwrap()
}

fn recursion(c: &mut Criterion) {
    let mut group = c.benchmark_group("fib");
    group.sample_size(10);
    let function = fib();
    for (n, value) in [(10, 55), (20, 6765), (25, 75025)] {
        for (name, context) in queues() {
            group.bench_function(BenchmarkId::new(name, n), |b| {
                b.iter(|| assert_eq!(call(&function, &context, &[Value::I32(n)]), value));
            });
        }
    }
    group.finish();
}

fn repeat(c: &mut Criterion) {
    let mut group = c.benchmark_group("loop");
    group.throughput(Throughput::Elements(1000));
    let body = chain(2).build().unwrap();
    let mut b = FunctionBuilder::new("repeat", 1);
    let repeat: Arc<dyn Kernel> = Arc::new(move |frame: &mut Frame<'_>| {
        let mut value = frame.argument(0).clone();
        for _ in 0..1000 {
            value = body.execute(frame.context(), &[value, Value::I32(1)]).remove(0);
        }
        frame.set(0, value);
    });
    let result = b.kernel(&repeat, &[b.argument(0)]);
    b.returns(&[result]);
    let function = b.build().unwrap();
    for (name, context) in queues() {
        group.bench_function(name, |b| {
            b.iter(|| assert_eq!(call(&function, &context, &[Value::I32(0)]), 2000));
        });
    }
    group.finish();
}

/// Opening a file: verified as a whole, or checked function by function on first call.
fn open(c: &mut Criterion) {
    const FIB: &[u8] = include_bytes!("../../bef/tests/data/fib_recursive.bef");
    let mut registry = KernelRegistry::new();
    let names = ["add.i32", "minus.i32", "constant.i32", "lessequal.i32", "if", "call"];
    names.iter().for_each(|name| registry.add(&format!("tfrt.{name}"), |_| ()));
    let bytes: Bytes = Arc::new(FIB);
    let mut group = c.benchmark_group("open");
    group.bench_function("fib", |b| b.iter(|| Module::open(Arc::clone(&bytes), &registry).unwrap()));
    group.bench_function("fib, unchecked", |b| {
        b.iter(|| Module::open_lazily(Arc::clone(&bytes), &registry).unwrap());
    });
    group.finish();
}

criterion_group!(benches, open, in_order, sequential, wide_graph, recursion, repeat);
criterion_main!(benches);
