//! Endless loops and unbounded recursion are stopped by the limits.

use pteron_host::{
    Error, ErrorCode, ExecutionContext, Frame, Function, FunctionBuilder, HostContext, Kernel, Limits,
    ModuleBuilder, Value, typed,
};
use pteron_pool::{Pool, WorkQueue};
use std::sync::Arc;

fn hosts(limits: Limits) -> Vec<HostContext> {
    [
        WorkQueue::single_threaded(),
        WorkQueue::multi_threaded(&Pool::new(1)),
        WorkQueue::multi_threaded(&Pool::new(3)),
    ]
    .into_iter()
    .map(|queue| HostContext::builder(queue).limits(limits).build())
    .collect()
}

/// A function that calls itself `depth` times, or for ever if `depth` is negative, and uses the call's result.
fn recursive(depth: i32, stream: u32) -> Function {
    let mut m = ModuleBuilder::new();
    let f = m.declare("f", 1, 1);
    let mut b = FunctionBuilder::new("f", 1);
    let call: Arc<dyn Kernel> = Arc::new(move |frame: &mut Frame<'_>| {
        let level = frame.get::<i32>(0).unwrap();
        if level == depth {
            return frame.set(0, level);
        }
        let results = frame.function(0).unwrap().execute(frame.context(), &[Value::I32(level + 1)]);
        frame.set_all(results);
    });
    let (result, id) = b.call(&call, &[b.argument(0)], 1);
    b.edit(id).functions(&[f]).stream(stream);
    let same = b.kernel(&typed(|v: i32| v), &result);
    b.returns(&[same]);
    m.define(f, b).unwrap();
    m.build().unwrap().find("f").unwrap()
}

fn code(result: Result<pteron_host::Results, Error>) -> ErrorCode {
    match result {
        Err(Error::Failed(error)) => error.code(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn deep_recursion_does_not_overflow_the_stack() {
    for host in hosts(Limits::DEFAULT) {
        for stream in [0, 1] {
            let result = recursive(30_000, stream).call(&ExecutionContext::new(&host), &[Value::I32(0)]);
            assert!(matches!(result.unwrap()[0], Value::I32(30_000)));
        }
    }
}

#[test]
fn endless_recursion_is_stopped() {
    for limits in
        [Limits { executions: 5_000, ..Limits::DEFAULT }, Limits { kernels: 20_000, ..Limits::DEFAULT }]
    {
        for host in hosts(limits) {
            let result = recursive(-1, 0).call(&ExecutionContext::new(&host), &[Value::I32(0)]);
            assert_eq!(code(result), ErrorCode::ResourceExhausted);
        }
    }
}

#[test]
fn an_endless_loop_is_stopped() {
    let body = FunctionBuilder::new("empty", 0).build().unwrap();
    let mut b = FunctionBuilder::new("forever", 0);
    let forever: Arc<dyn Kernel> = Arc::new(move |frame: &mut Frame<'_>| {
        while frame.context().cancellation_error().is_none() {
            body.execute(frame.context(), &[]);
        }
    });
    let after = typed(|| 1i32);
    let (_, id) = b.call(&forever, &[], 0);
    let (result, last) = b.call(&after, &[], 1);
    b.edit(last).after(id);
    b.returns(&result);
    let function = b.build().unwrap();
    for host in hosts(Limits { kernels: 10_000, ..Limits::DEFAULT }) {
        let result = function.call(&ExecutionContext::new(&host), &[]);
        assert_eq!(code(result), ErrorCode::ResourceExhausted);
    }
}

#[test]
fn errors_name_the_kernel_and_its_source_location() {
    use pteron_host::SourceLocation;
    let mut b = FunctionBuilder::new("f", 1);
    let fail = typed(|_: i32| Err::<i32, &str>("it does not work"));
    let (result, id) = b.call(&fail, &[b.argument(0)], 1);
    let location = SourceLocation::file("a.mlir", 3, 7);
    b.edit(id).name("test.fail").location(location);
    b.returns(&result);
    let function = b.build().unwrap();
    let context = ExecutionContext::new(&HostContext::single_threaded());
    let error = function.call(&context, &[Value::I32(1)]).unwrap_err();
    assert_eq!(error.to_string(), "a.mlir:3:7: test.fail: it does not work");
    let error = function.call(&context, &[Value::F32(1.0)]).unwrap_err();
    assert_eq!(error.to_string(), "a.mlir:3:7: test.fail: argument 0 is an f32, expected an i32");
    assert!(function.call(&context, &[]).unwrap_err().to_string().contains("takes 1 arguments, not 0"));
}

#[test]
fn malformed_functions_are_refused() {
    let one = typed(|| 1i32);
    let mut other = FunctionBuilder::new("other", 5);
    let foreign = other.kernel(&one, &[]);
    let mut b = FunctionBuilder::new("f", 0);
    b.kernel(&one, &[]);
    b.returns(&[foreign]);
    let problem = b.build().unwrap_err().to_string();
    assert!(problem.contains("returns register 5"), "{problem}");
    let mut m = ModuleBuilder::new();
    m.declare("g", 0, 0);
    assert!(m.build().unwrap_err().to_string().contains("declared but not defined"));
}
