//! Complex tensors made of two real ones.

use crate::support::dtype::{C64, expect_dtype};
use crate::support::map::{Fns, Input, complex_type, elementwise, map_as};
use crate::support::rows::expect_type;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result};
use pteron_tensor::ScalarType;

/// The types that the parts of a complex number can have.
const PARTS: DtypeSet = DtypeSet::of(&[ScalarType::Half, ScalarType::Float, ScalarType::Double]);

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::complex.out(Tensor real, Tensor imag, *, Tensor(a!) out) -> Tensor(a!)",
        PARTS,
        complex,
    ),
    Operator::new("aten::polar.out(Tensor abs, Tensor angle, *, Tensor(a!) out) -> Tensor(a!)", PARTS, polar),
];

/// Complex numbers from their real and imaginary parts.
fn complex(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    complex_from_parts(ctx, args, outs, &elementwise! { complex(re, im) => C64::new(re.re, im.re) })
}

/// Complex numbers from their absolute values and their angles in radians.
fn polar(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    complex_from_parts(
        ctx,
        args,
        outs,
        &elementwise! {
            complex(r, angle) => {
                let (sin, cos) = angle.re.sin_cos();
                C64::new(r.re * cos, r.re * sin)
            };
        },
    )
}

/// The names of the first argument, the real part or the absolute value; [`SECOND`] has those of the second.
const FIRST: [&str; 2] = ["real", "abs"];
const SECOND: [&str; 2] = ["imag", "angle"];

/// Sets the out to a complex function of two real tensors, which must have the same type and are broadcast.
fn complex_from_parts(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    fns: &Fns<'_, 2>,
) -> Result<()> {
    let dtype = args.meta(FIRST)?.dtype();
    expect_dtype(args.name(FIRST), dtype, PARTS)?;
    expect_type(args.name(SECOND), dtype, args.meta(SECOND)?.dtype())?;
    let result = complex_type(dtype);
    expect_type("out", result, outs.tensor(0)?.dtype())?;
    map_as(ctx, args, outs, [Input::Arg(0), Input::Arg(1)], result, result, fns)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, s, t};
    use num_complex::Complex;
    use pteron_tensor::ScalarType::{ComplexDouble, ComplexFloat, ComplexHalf, Float};

    #[test]
    fn parts_broadcast() {
        let (re, im) = (t(&[2, 1], &[1f32, -2.0]), t(&[2], &[0.5f32, f32::INFINITY]));
        let r = call("aten::complex.out", &[a(&re), a(&im)], out(ComplexFloat, &[2, 2])).unwrap();
        let numbers = [(1.0, 0.5), (1.0, f32::INFINITY), (-2.0, 0.5), (-2.0, f32::INFINITY)];
        assert_eq!(r.storage::<Complex<f32>>().unwrap(), numbers.map(|(re, im)| Complex::new(re, im)));
    }

    #[test]
    fn angles_are_in_radians() {
        let (r, angle) = (s(2f64), t(&[3], &[0.0, std::f64::consts::FRAC_PI_2, -3.0]));
        let z = call("aten::polar.out", &[a(&r), a(&angle)], out(ComplexDouble, &[3])).unwrap();
        for (z, angle) in
            z.storage::<Complex<f64>>().unwrap().iter().zip([0.0, std::f64::consts::FRAC_PI_2, -3.0])
        {
            assert!((z - Complex::from_polar(2.0, angle)).norm() < 1e-15);
        }
    }

    #[test]
    fn parts_have_one_type_and_the_out_its_complex_type() {
        let (half, single, integer) =
            (t(&[1], &[pteron_tensor::f16::ONE]), t(&[1], &[1f32]), t(&[1], &[1i32]));
        for name in ["aten::complex.out", "aten::polar.out"] {
            assert!(call(name, &[a(&half), a(&half)], out(ComplexHalf, &[1])).is_ok());
            assert!(call(name, &[a(&half), a(&single)], out(ComplexFloat, &[1])).is_err());
            assert!(call(name, &[a(&single), a(&single)], out(ComplexDouble, &[1])).is_err());
            assert!(call(name, &[a(&single), a(&single)], out(Float, &[1])).is_err());
            assert!(call(name, &[a(&integer), a(&integer)], out(ComplexFloat, &[1])).is_err());
        }
    }
}
