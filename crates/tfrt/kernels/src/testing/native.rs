use pteron_host::{Chain, ErrorCode, ErrorValue, ExecutionContext, KernelRegistry, Value};

fn add(arguments: &[Value]) -> Value {
    match arguments {
        [Value::I32(a), Value::I32(b)] => Value::I32(a.wrapping_add(*b)),
        _ => Value::Error(ErrorValue::new(ErrorCode::InvalidArgument, "two arguments of type i32 expected")),
    }
}

/// Sets the first of `results` to `value`; does nothing if there are no results.
fn set_first(results: &mut [Value], value: impl Into<Value>) {
    if let Some(result) = results.first_mut() {
        *result = value.into();
    }
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_native("native_sink", |_: &ExecutionContext, _: &[Value], _: &mut [Value]| ());
    registry.add_native("native_async_sink", |_: &ExecutionContext, _: &[Value], r: &mut [Value]| {
        set_first(r, Chain)
    });
    registry
        .add_native("native_add", |_: &ExecutionContext, a: &[Value], r: &mut [Value]| set_first(r, add(a)));
    registry.add_native("native_async_add", |c: &ExecutionContext, a: &[Value], r: &mut [Value]| {
        let sum = add(a);
        set_first(r, c.enqueue(move || sum));
    });
    registry.add_native("native_error", |_: &ExecutionContext, _: &[Value], r: &mut [Value]| {
        set_first(r, Value::Error(ErrorValue::new(ErrorCode::Internal, "something bad happened")));
    });
}
