//! Functions of integers, and of the representation of floating-point numbers.

use crate::support::convert::all_values;
use crate::support::map::{Fns, Input, elementwise, map};
use crate::support::rows::{expect_type, write_values};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result};
use pteron_tensor::ScalarType;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::gcd.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        gcd,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::lcm.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        lcm,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::nextafter.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::of(&[ScalarType::Float, ScalarType::Double]),
        nextafter,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::frexp.Tensor_out(Tensor self, *, Tensor(a!) mantissa, Tensor(b!) exponent) -> (Tensor(a!) mantissa, Tensor(b!) exponent)",
        DtypeSet::FLOATING,
        frexp,
    ),
];

/// The greatest common divisor, which is not negative unless it exceeds the type; that of two zeros is zero.
fn gcd(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    map(
        ctx,
        args,
        outs,
        [Input::Arg(0), Input::Arg(1)],
        &elementwise! { int(a, b) => greatest_common_divisor(a, b) },
    )
}

/// The least common multiple, which is not negative unless it exceeds the type; zero if an operand is zero.
fn lcm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = elementwise! {
        int(a, b) => match greatest_common_divisor(a, b) {
            0 => 0,
            common => a.wrapping_div(common).wrapping_mul(b).wrapping_abs(),
        };
    };
    map(ctx, args, outs, [Input::Arg(0), Input::Arg(1)], &fns)
}

fn greatest_common_divisor(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.unsigned_abs(), b.unsigned_abs());
    while a != 0 {
        (a, b) = (b % a, a);
    }
    b as i64
}

/// The next representable number after `self` towards `other`.
fn nextafter(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let fns = Fns {
        f32: Some(&|[x, y]: [&[f32]; 2], out: &mut [f32]| {
            out.iter_mut().zip(x.iter().zip(y)).for_each(|(o, (&x, &y))| *o = libm::nextafterf(x, y));
        }),
        f64: Some(&|[x, y]: [&[f64]; 2], out: &mut [f64]| {
            out.iter_mut().zip(x.iter().zip(y)).for_each(|(o, (&x, &y))| *o = libm::nextafter(x, y));
        }),
        i64: None,
        complex: None,
        exact_number: false,
    };
    map(ctx, args, outs, [Input::Arg(0), Input::Arg(1)], &fns)
}

/// The mantissa, whose magnitude is in [1/2, 1), and the exponent of two. Those of zero, infinities and NaN are the number itself
/// and zero.
fn frexp(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    let [mantissa, exponent] = outs.tensors([0, 1])?;
    expect_type("mantissa", x.dtype(), mantissa.dtype())?;
    expect_type("exponent", ScalarType::Int, exponent.dtype())?;
    let all = all_values::<f64>(ctx, &x)?;
    let parts = |x: f64| if x.is_finite() { libm::frexp(x) } else { (x, 0) };
    mantissa.resize(x.sizes())?;
    write_values::<f64>(ctx, mantissa, |to| {
        to.iter_mut().zip(all.iter()).for_each(|(m, &x)| *m = parts(x).0);
        Ok(())
    })?;
    exponent.resize(x.sizes())?;
    write_values::<i64>(ctx, exponent, |to| {
        to.iter_mut().zip(all.iter()).for_each(|(e, &x)| *e = i64::from(parts(x).1));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, out, t};
    use pteron_tensor::ScalarType::{Byte, Double, Float, Int, Long};

    #[test]
    fn divisors_and_multiples() {
        let (x, y) = (t(&[5], &[12i64, -18, 0, 0, i64::MIN]), t(&[5], &[18i64, 12, 5, 0, 6]));
        let r = call("aten::gcd.out", &[a(&x), a(&y)], out(Long, &[5])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[6, 6, 5, 0, 2]);
        let r = call("aten::lcm.out", &[a(&x), a(&y)], out(Long, &[5])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap()[..4], [36, 36, 0, 0]);
        let (x, y) = (t(&[2, 1], &[200u8, 7]), t(&[3], &[150u8, 14, 9]));
        let r = call("aten::gcd.out", &[a(&x), a(&y)], out(Byte, &[2, 3])).unwrap();
        assert_eq!(r.bytes(), &[50, 2, 1, 1, 7, 1]);
    }

    #[test]
    fn mantissas_and_exponents() {
        let x = t(&[6], &[8.0f64, -0.3, 0.0, f64::INFINITY, 5e-324, -1.0]);
        let [m, e] =
            call_many("aten::frexp.Tensor_out", &[a(&x)], [out(Double, &[6]), out(Int, &[6])]).unwrap();
        assert_eq!(m.storage::<f64>().unwrap(), &[0.5, -0.6, 0.0, f64::INFINITY, 0.5, -0.5]);
        assert_eq!(e.storage::<i32>().unwrap(), &[4, -1, 0, 0, -1073, 1]);
    }

    #[test]
    fn the_next_number() {
        let (x, y) = (t(&[3], &[1f32, 0.0, 1.0]), t(&[3], &[2f32, -1.0, 1.0]));
        let r = call("aten::nextafter.out", &[a(&x), a(&y)], out(Float, &[3])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0 + f32::EPSILON, -f32::from_bits(1), 1.0]);
    }
}
