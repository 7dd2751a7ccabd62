use crate::format::Fixed;
use crate::kernels::{RegistryExt, object_value, out};
use half::{bf16, f16};
use num_complex::Complex;
use pteron_host::{Attr, Bf16Bits, Chain, Effect, F16Bits, Fault, Frame, KernelRegistry};

macro_rules! family {
    ($registry:ident, $ty:ty, $suffix:literal) => {
        $registry.add_pure(concat!("tfrt.constant.", $suffix), |Attr(v): Attr<$ty>| v);
        $registry.add_pure(concat!("tfrt.constant_s.", $suffix), |Attr(v): Attr<$ty>| v);
        $registry.add_pure(concat!("tfrt.add.", $suffix), |a: $ty, b: $ty| a + b);
        $registry.add_pure(concat!("tfrt.minimum.", $suffix), |a: $ty, b: $ty| if b < a { b } else { a });
        $registry.add_pure(concat!("tfrt.multiply.", $suffix), |a: $ty, b: $ty| a * b);
        $registry.add_typed(concat!("tfrt.div.", $suffix), |a: $ty, b: $ty| {
            if b == 0.0 { Err(Fault::from("Divide by zero")) } else { Ok(a / b) }
        });
        $registry.declare_effect(concat!("tfrt.div.", $suffix), Effect::Immediate);
        $registry.add_immediate(concat!("tfrt.print.", $suffix), |frame: &mut Frame<'_>| {
            out!(frame, concat!($suffix, " = {}\n"), Fixed(frame.get::<$ty>(0)?.into()));
            Ok(Chain)
        });
    };
}

macro_rules! complex {
    ($registry:ident, $ty:ty, $suffix:literal) => {
        // Attributes are sorted by name, so the imaginary part comes first.
        $registry.add_pure(concat!("tfrt.constant.", $suffix), |Attr(im): Attr<$ty>, Attr(re): Attr<$ty>| {
            object_value(Complex::new(re, im))
        });
        $registry.add_immediate(concat!("tfrt.print.", $suffix), |frame: &mut Frame<'_>| {
            let v = *frame.object::<Complex<$ty>>(0)?;
            out!(frame, concat!($suffix, " = {}+{}i\n"), Fixed(v.re.into()), Fixed(v.im.into()));
            Ok(Chain)
        });
    };
}

pub(super) fn register(registry: &mut KernelRegistry) {
    family!(registry, f32, "f32");
    family!(registry, f64, "f64");
    complex!(registry, f32, "complex64");
    complex!(registry, f64, "complex128");
    for name in ["tfrt.constant.f16", "tfrt.constant_s.f16"] {
        registry.add_pure(name, |Attr(v): Attr<F16Bits>| object_value(f16::from_bits(v.0)));
    }
    for name in ["tfrt.constant.bf16", "tfrt.constant_s.bf16"] {
        registry.add_pure(name, |Attr(v): Attr<Bf16Bits>| object_value(bf16::from_bits(v.0)));
    }
    registry.add_immediate("tfrt.print.f16", |frame: &mut Frame<'_>| {
        out!(frame, "f16 = {}\n", frame.object::<f16>(0)?.to_bits());
        Ok(Chain)
    });
}
