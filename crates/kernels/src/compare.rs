//! Comparisons, logical and bitwise operators.

use crate::support::convert::{fill, values};
use crate::support::copy::PIECE;
use crate::support::dims::broadcast;
use crate::support::dtype::{Compute, expect_dtype};
use crate::support::layout::Layout;
use crate::support::map::{Input, elementwise, map, map_bool, promote};
use pteron_operator::{
    Args, DtypeSet, Error, KernelContext, Meaning, Operator, Outs, Result, Rounding, ensure,
};
use pteron_tensor::{ScalarType, TensorView};

/// Integers and bool.
const BITS: DtypeSet = DtypeSet::INTEGRAL.union(DtypeSet::BOOL);

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::eq.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        eq,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::eq.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        eq,
    )
    .in_place(&["self"])
    .rounding(Rounding::ExactWithNumbers)
    .means(|args| Some(Meaning::Equals(args.scalar("other").ok()?))),
    Operator::new(
        "aten::ne.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        ne,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::ne.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        ne,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::lt.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        lt,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::lt.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        lt,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::le.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        le,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::le.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        le,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::gt.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        gt,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::gt.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        gt,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::ge.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        ge,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::ge.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        ge,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::logical_and.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        logical_and,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::logical_or.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        logical_or,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::logical_xor.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        logical_xor,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::bitwise_and.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        BITS,
        bitwise_and,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::bitwise_and.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        BITS,
        bitwise_and,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::bitwise_and.Scalar_Tensor_out(Scalar self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        BITS,
        bitwise_and,
    )
    .in_place(&["other"]),
    Operator::new(
        "aten::bitwise_or.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        BITS,
        bitwise_or,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::bitwise_or.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        BITS,
        bitwise_or,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::bitwise_or.Scalar_Tensor_out(Scalar self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        BITS,
        bitwise_or,
    )
    .in_place(&["other"]),
    Operator::new(
        "aten::bitwise_xor.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        BITS,
        bitwise_xor,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::bitwise_xor.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        BITS,
        bitwise_xor,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::bitwise_xor.Scalar_Tensor_out(Scalar self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        BITS,
        bitwise_xor,
    )
    .in_place(&["other"]),
    Operator::new(
        "aten::bitwise_left_shift.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        left_shift,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::bitwise_left_shift.Tensor_Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        left_shift,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::bitwise_left_shift.Scalar_Tensor_out(Scalar self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        left_shift,
    )
    .in_place(&["other"]),
    Operator::new(
        "aten::bitwise_right_shift.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        right_shift,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::bitwise_right_shift.Tensor_Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        right_shift,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::bitwise_right_shift.Scalar_Tensor_out(Scalar self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        right_shift,
    )
    .in_place(&["other"]),
    Operator::new(
        "aten::__lshift__.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        left_shift,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::__lshift__.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        left_shift,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::__rshift__.Tensor_out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        right_shift,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::__rshift__.Scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::INTEGRAL,
        right_shift,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::allclose.out(Tensor self, Tensor other, float rtol=1e-05, float atol=1e-08, bool equal_nan=False, bool dummy_param=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        allclose,
    ),
];

/// Arguments 0 and 1, tensors or scalars.
fn operands(args: &Args<'_>) -> Result<[Input; 2]> {
    Ok([Input::of_arg(args, 0)?, Input::of_arg(args, 1)?])
}

macro_rules! comparisons {
    ($($name:ident = |$a:ident, $b:ident| $f:expr $(, complex $c:expr)?;)*) => { $(
        fn $name(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            let fns = elementwise! { real($a, $b) => F::from_bool($f) $(; complex($a, $b) => F::from_bool($c))? };
            map_bool(ctx, args, outs, operands(args)?, &fns)
        }
    )* };
}

comparisons! {
    eq = |a, b| a == b, complex a == b;
    ne = |a, b| a != b, complex a != b;
    lt = |a, b| a < b;
    le = |a, b| a <= b;
    gt = |a, b| a > b;
    ge = |a, b| a >= b;
    logical_and = |a, b| a.is_true() && b.is_true(), complex a.is_true() && b.is_true();
    logical_or = |a, b| a.is_true() || b.is_true(), complex a.is_true() || b.is_true();
    logical_xor = |a, b| a.is_true() != b.is_true(), complex a.is_true() != b.is_true();
}

macro_rules! bits {
    ($($(#[$doc:meta])* $name:ident = |$a:ident, $b:ident| $f:expr;)*) => { $(
        $(#[$doc])*
        fn $name(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            map(ctx, args, outs, operands(args)?, &elementwise! { int($a, $b) => $f })
        }
    )* };
}

bits! {
    bitwise_and = |a, b| a & b;
    bitwise_or = |a, b| a | b;
    bitwise_xor = |a, b| a ^ b;
}

/// The width in bits of the operands' promoted type, which must be an integer type.
fn bit_width(args: &Args<'_>, inputs: &[Input; 2]) -> Result<i64> {
    match promote(args, inputs)? {
        ScalarType::Bool => Err(Error::invalid("self: bool cannot be shifted")),
        dtype => Ok(dtype.size() as i64 * 8),
    }
}

/// Shifts left. Bits shifted out of the type are lost; a negative shift, or one by the width or more, gives 0.
fn left_shift(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    let width = bit_width(args, &inputs)?;
    let fns = elementwise! { int(a, b) => if (0..width).contains(&b) { a << b } else { 0 } };
    map(ctx, args, outs, inputs, &fns)
}

/// Shifts right, arithmetically for signed types; a negative shift, or one by the width or more, leaves only the sign.
fn right_shift(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let inputs = operands(args)?;
    let width = bit_width(args, &inputs)?;
    let fns = elementwise! { int(a, b) => a >> if (0..width).contains(&b) { b } else { 63 } };
    map(ctx, args, outs, inputs, &fns)
}

/// Whether every element of `self` differs from that of `other` by at most `atol + rtol * |other|`, or both are NaN
/// and `equal_nan` is set.
fn allclose(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, y) = (args.tensor("self")?, args.tensor("other")?);
    let (rtol, atol, equal_nan) = (args.double("rtol")?, args.double("atol")?, args.bool("equal_nan")?);
    ensure!(x.dtype() == y.dtype(), "other: expected a tensor of {}, found one of {}", x.dtype(), y.dtype());
    expect_dtype("self", x.dtype(), DtypeSet::REAL_BOOL)?;
    let sizes = broadcast(x.sizes(), y.sizes())?;
    let of = |t: &TensorView<'_>| Layout::of_tensor(t.meta()).expand(&sizes);
    let (a, b) = (values::<f64>(ctx, &x, &of(&x)?)?, values::<f64>(ctx, &y, &of(&y)?)?);
    let close = |(a, b): (&f64, &f64)| {
        a == b
            || (equal_nan && a.is_nan() && b.is_nan())
            || (a.is_finite() && b.is_finite() && (a - b).abs() <= atol + (rtol * b).abs())
    };
    let truth = a.chunks(PIECE).zip(b.chunks(PIECE)).all(|(a, b)| {
        pteron_pool::progress(a.len());
        a.iter().zip(b).all(close)
    });
    let out = outs.tensor(0)?;
    out.resize(&[])?;
    fill(out, truth as i64)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Bool, Byte, Char, Float, Int, Long};

    fn truths(t: &pteron_tensor::Tensor) -> Vec<bool> {
        t.storage::<pteron_tensor::Bool>().unwrap().iter().map(|b| b.get()).collect()
    }

    #[test]
    fn comparisons_promote_and_handle_nan() {
        let (x, y) = (t(&[3], &[1i32, 2, 3]), t(&[3], &[1.5f32, 2.0, f32::NAN]));
        let go = |name: &str| truths(&call(name, &[a(&x), a(&y)], out(Bool, &[3])).unwrap());
        assert_eq!(go("aten::lt.Tensor_out"), [true, false, false]);
        assert_eq!(go("aten::ne.Tensor_out"), [true, false, true]);
        assert_eq!(go("aten::ge.Tensor_out"), [false, true, false]);
        assert_eq!(go("aten::logical_and.out"), [true, true, true]);
        let r = call("aten::eq.Scalar_out", &[a(&x), Arg::Double(2.0)], out(Float, &[3])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[0.0, 1.0, 0.0]);
        let big = t(&[1], &[i64::MAX]);
        let r = call("aten::eq.Scalar_out", &[a(&big), Arg::Int(i64::MAX - 1)], out(Bool, &[1])).unwrap();
        assert_eq!(truths(&r), [false]);
    }

    #[test]
    fn nans_are_close_only_if_equal_nan() {
        let (x, y) = (t(&[2], &[1f32, f32::NAN]), t(&[2], &[1.000_001f32, f32::NAN]));
        let args = |equal_nan| [a(&x), a(&y), Arg::Double(1e-5), Arg::Double(0.0), Arg::Bool(equal_nan)];
        let go = |equal_nan| truths(&call("aten::allclose.out", &args(equal_nan), out(Bool, &[])).unwrap());
        assert_eq!((go(true), go(false)), (vec![true], vec![false]));
    }

    #[test]
    fn bits_and_shifts() {
        let (x, n) = (t(&[4], &[0b1100u8, 1, 255, 128]), t(&[4], &[1i8, 8, -1, 7]));
        let r = call("aten::bitwise_xor.Scalar_out", &[a(&x), Arg::Int(0b1010)], out(Byte, &[4])).unwrap();
        assert_eq!(r.storage::<u8>().unwrap(), &[0b0110, 11, 0xf5, 0x8a]);
        let y = t(&[4], &[1u8, 8, 200, 7]);
        let r = call("aten::bitwise_left_shift.Tensor_out", &[a(&x), a(&y)], out(Byte, &[4])).unwrap();
        assert_eq!(r.storage::<u8>().unwrap(), &[24, 0, 0, 0]);
        let m = t(&[4], &[-8i8, -8, -8, 64]);
        for name in ["aten::bitwise_right_shift.Tensor_out", "aten::__rshift__.Tensor_out"] {
            let r = call(name, &[a(&m), a(&n)], out(Char, &[4])).unwrap();
            assert_eq!(r.storage::<i8>().unwrap(), &[-4, -1, -1, 0]);
        }
        let r = call("aten::__lshift__.Scalar_out", &[a(&m), Arg::Int(2)], out(Char, &[4])).unwrap();
        assert_eq!(r.storage::<i8>().unwrap(), &[-32, -32, -32, 0]);
        let r = call("aten::__rshift__.Scalar_out", &[a(&m), Arg::Int(-1)], out(Char, &[4])).unwrap();
        assert_eq!(r.storage::<i8>().unwrap(), &[-1, -1, -1, 0]);
        let b = t(&[2], &[pteron_tensor::Bool::from(true), false.into()]);
        let r = call("aten::bitwise_and.Scalar_out", &[a(&b), Arg::Int(3)], out(Long, &[2])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[1, 0]);
        let f = t(&[1], &[1f32]);
        let e = call("aten::bitwise_and.Tensor_out", &[a(&f), a(&f)], out(Int, &[1])).unwrap_err();
        assert!(e.to_string().contains("float32"), "{e}");
    }
}
