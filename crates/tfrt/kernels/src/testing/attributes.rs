use crate::kernels::RegistryExt;
use pteron_bef::Attribute;
use pteron_host::{Fault, Frame, KernelRegistry, Value};

fn wrong_shape() -> Fault {
    Fault::invalid("the attribute is not [[string, [i32, i32]], [f32]]")
}

/// Returns the leaves of the nested attribute `[["string", [i32, i32]], [f32]]`.
fn flatten(frame: &mut Frame<'_>) -> Result<Vec<Value>, Fault> {
    let outer: &[Attribute<'_>] = frame.attribute(0)?;
    let [Attribute::Aggregate(first), Attribute::Array(floats)] = outer else { return Err(wrong_shape()) };
    let [Attribute::String(text), Attribute::Array(numbers)] = first.as_slice() else {
        return Err(wrong_shape());
    };
    let numbers: Vec<i32> = numbers.i32s().ok_or_else(wrong_shape)?.collect();
    let [a, b, ..] = numbers[..] else { return Err(wrong_shape()) };
    let float = floats.f32s().ok_or_else(wrong_shape)?.next().ok_or_else(wrong_shape)?;
    let text = crate::kernels::text_value(frame, &[&String::from_utf8_lossy(text)])?;
    Ok(vec![text, a.into(), b.into(), float.into()])
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("tfrt_test.flat", flatten);
}
