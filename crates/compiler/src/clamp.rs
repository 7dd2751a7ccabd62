//! Bounds in the range of an integer type.

use pteron_exported::{Argument, ExportedNode, ExportedProgram};
use pteron_tensor::ScalarType;
use std::sync::Arc;

/// The arguments of a `clamp` with integer bounds saturated to the operand's type, and `min` lowered to `max` if it
/// is above.
pub(crate) fn portable_clamp_args(
    program: &ExportedProgram,
    node: &ExportedNode,
) -> Vec<(Arc<str>, Argument)> {
    let dtype =
        node.arg("self").and_then(Argument::var).and_then(|var| program.spec(var)).map(|spec| spec.dtype);
    let mut args = node.args.clone();
    for (name, arg) in &mut args {
        if let (Argument::Int(bound), "min" | "max", Some(dtype)) = (&mut *arg, &**name, dtype) {
            *bound = saturate(*bound, dtype);
        }
    }
    let bound = |name: &str| {
        let (_, arg) = args.iter().find(|(n, _)| **n == *name)?;
        match arg {
            Argument::Int(v) => Some((*v as f64, arg.clone())),
            Argument::Float(v) => Some((*v, arg.clone())),
            _ => None,
        }
    };
    if let (Some((low, _)), Some((high, most))) = (bound("min"), bound("max"))
        && low > high
    {
        args.iter_mut().filter(|(name, _)| &**name == "min").for_each(|(_, arg)| *arg = most.clone());
    }
    args
}

/// Saturates a value to the range of an integer type; other types leave it unchanged.
pub(crate) fn saturate(value: i64, dtype: ScalarType) -> i64 {
    match dtype {
        ScalarType::Byte => value.clamp(0, i64::from(u8::MAX)),
        ScalarType::Char => value.clamp(i64::from(i8::MIN), i64::from(i8::MAX)),
        ScalarType::Short => value.clamp(i64::from(i16::MIN), i64::from(i16::MAX)),
        ScalarType::Int => value.clamp(i64::from(i32::MIN), i64::from(i32::MAX)),
        _ => value,
    }
}
