use crate::kernels::{RegistryExt, out};
use pteron_host::{Attr, Chain, Effect, Fault, Frame, KernelRegistry};

/// Registers the arithmetic kernels of one integer type.
macro_rules! family {
    ($registry:ident, $ty:ty, $suffix:literal) => {
        $registry.add_pure(concat!("tfrt.constant.", $suffix), |Attr(v): Attr<$ty>| v);
        $registry.add_pure(concat!("tfrt.add.", $suffix), |a: $ty, b: $ty| a.wrapping_add(b));
        $registry.add_pure(concat!("tfrt.minus.", $suffix), |a: $ty, b: $ty| a.wrapping_sub(b));
        $registry.add_pure(concat!("tfrt.mul.", $suffix), |a: $ty, b: $ty| a.wrapping_mul(b));
        $registry.add_pure(concat!("tfrt.equal.", $suffix), |a: $ty, b: $ty| a == b);
        $registry.add_pure(concat!("tfrt.lessequal.", $suffix), |a: $ty, b: $ty| a <= b);
        $registry.add_typed(concat!("tfrt.div.", $suffix), |a: $ty, b: $ty| match b {
            0 => Err(Fault::from("Divide by zero")),
            b => Ok((a.wrapping_div(b), a.wrapping_rem(b))),
        });
        $registry.declare_effect(concat!("tfrt.div.", $suffix), Effect::Immediate);
        $registry.add_pure(concat!("tfrt.constant_s.", $suffix), |Attr(v): Attr<$ty>| v);
        $registry.add_pure(concat!("tfrt.add_s.", $suffix), |a: $ty, b: $ty| a.wrapping_add(b));
        $registry.add_pure(concat!("tfrt.mul_s.", $suffix), |a: $ty, b: $ty| a.wrapping_mul(b));
    };
}

/// Truncates a float to an integer; a value out of range, and NaN, become the smallest integer, as on x86.
macro_rules! truncate {
    ($ty:ty) => {
        |v: $ty| match v {
            -9223372036854775808.0..9223372036854775808.0 => v as i64,
            _ => i64::MIN,
        }
    };
}

pub(super) fn register(registry: &mut KernelRegistry) {
    family!(registry, i32, "i32");
    family!(registry, i64, "i64");
    registry.add_pure("tfrt.constant.ui32", |Attr(v): Attr<u32>| v);
    registry.add_pure("tfrt.constant.ui64", |Attr(v): Attr<u64>| v);
    registry.add_pure("tfrt.cast.i64_to_f32", |v: i64| v as f32);
    registry.add_pure("tfrt.cast.i64_to_f64", |v: i64| v as f64);
    registry.add_pure("tfrt.cast.f32_to_i64", truncate!(f32));
    registry.add_pure("tfrt.cast.f64_to_i64", truncate!(f64));
    registry.add_immediate("tfrt.print.i1", |frame: &mut Frame<'_>| {
        out!(frame, "int1 = {}\n", i32::from(frame.get::<bool>(0)?));
        Ok(Chain)
    });
    registry.add_immediate("tfrt.print.i32", |frame: &mut Frame<'_>| {
        out!(frame, "int32 = {}\n", frame.get::<i32>(0)?);
        Ok(Chain)
    });
    registry.add_immediate("tfrt.print.i64", |frame: &mut Frame<'_>| {
        out!(frame, "int64 = {}\n", frame.get::<i64>(0)?);
        Ok(Chain)
    });
}
