//! Speed of the executor. The figures to beat are the reference's, per kernel: 43 ns in a sequential
//! chain, 218 ns in a wide graph, 7.8 ns in the interpreter.
#![allow(missing_docs)]

use criterion::{Criterion, criterion_group, criterion_main};
use pteron_host::{
    ExecutionContext, FunctionBuilder, HostContext, Interpreter, KernelRegistry, Value, typed,
};
use std::hint::black_box;

/// 200 trivial kernels, each of which uses the result of the one before.
fn chain(kernels: usize) -> FunctionBuilder {
    let mut b = FunctionBuilder::new("chain", 2);
    let add = typed(|a: i32, b: i32| a.wrapping_add(b));
    let mut last = b.argument(0);
    for _ in 0..kernels {
        last = b.kernel(&add, &[last, b.argument(1)]);
    }
    b.returns(&[last]);
    b
}

fn context() -> ExecutionContext {
    ExecutionContext::new(&HostContext::single_threaded(KernelRegistry::new()))
}

fn in_order(c: &mut Criterion) {
    let mut group = c.benchmark_group("200 kernels");
    let function = chain(200).in_order().build().unwrap();
    let mut interpreter = Interpreter::new(&function).unwrap();
    let context = context();
    group.bench_function("in order", |b| {
        let mut results = [Value::Empty];
        b.iter(|| {
            let arguments = [Value::I32(black_box(1)), Value::I32(black_box(2))];
            interpreter.run(&context, arguments, &mut results).unwrap();
            assert!(matches!(results[0], Value::I32(401)));
        });
    });
    let dataflow = chain(200).build().unwrap();
    group.bench_function("dataflow", |b| {
        b.iter(|| {
            let results = dataflow.execute(&context, &[Value::I32(black_box(1)), Value::I32(black_box(2))]);
            assert!(matches!(results[0], Value::I32(401)));
        });
    });
    group.bench_function("plain Rust loop", |b| {
        let steps: Vec<fn(i32, i32) -> i32> = vec![i32::wrapping_add; 200];
        b.iter(|| {
            let (mut x, y) = (black_box(1), black_box(2));
            for step in black_box(&steps) {
                x = step(x, y);
            }
            assert_eq!(x, 401);
        });
    });
    group.finish();
}

criterion_group!(benches, in_order);
criterion_main!(benches);
