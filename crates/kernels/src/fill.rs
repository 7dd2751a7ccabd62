//! Tensors created from scalars: filled, counted, identity matrices.

use crate::support::convert::{fill, fill_scalar, fill_zero};
use crate::support::dims::to_shape;
use crate::support::meaning::sizes_of_first;
use pteron_operator::{
    Args, DtypeSet, Error, KernelContext, Meaning, Operator, Outs, Result, Rounding, ensure,
};
use pteron_tensor::{Scalar, Shape, TensorViewMut};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::full.out(SymInt[] size, Scalar fill_value, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        full,
    )
    .means(fill_meaning)
    .sized(size_argument),
    Operator::new(
        "aten::full_like.out(Tensor self, Scalar fill_value, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        full_like,
    )
    .rounding(Rounding::ExactWithNumbers)
    .means(fill_meaning)
    .sized(sizes_of_first),
    Operator::new("aten::zeros.out(SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, zeros)
        .means(zero_meaning)
        .sized(size_argument),
    Operator::new(
        "aten::zeros_like.out(Tensor self, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        zeros_like,
    )
    .means(zero_meaning)
    .sized(sizes_of_first),
    Operator::new("aten::zero.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, zeros_like),
    Operator::new(
        "aten::new_zeros.out(Tensor self, SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        new_zeros,
    ),
    Operator::new(
        "aten::new_empty.out(Tensor self, SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        new_zeros,
    ),
    Operator::new(
        "aten::new_ones.out(Tensor self, SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        new_ones,
    ),
    Operator::new(
        "aten::new_full.out(Tensor self, SymInt[] size, Scalar fill_value, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        new_full,
    ),
    Operator::new("aten::ones.out(SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, ones),
    Operator::new(
        "aten::ones_like.out(Tensor self, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        ones_like,
    ),
    Operator::new(
        "aten::empty.out(SymInt[] size, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        zeros,
    ),
    Operator::new(
        "aten::empty_like.out(Tensor self, *, MemoryFormat? memory_format=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        zeros_like,
    ),
    Operator::new(
        "aten::empty_strided.out(SymInt[] size, SymInt[] stride, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        zeros,
    ),
    Operator::new(
        "dim_order_ops::_empty_dim_order.out(int[] size, *, int[]? dim_order=None, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        zeros,
    ),
    Operator::new(
        "aten::fill.Scalar_out(Tensor self, Scalar value, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        full_like,
    ),
    Operator::new(
        "aten::fill.Tensor_out(Tensor self, Tensor value, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        fill_tensor,
    ),
    Operator::new(
        "aten::scalar_tensor.out(Scalar s, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        scalar_tensor,
    ),
    Operator::new("aten::arange.out(Scalar end, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, arange),
    Operator::new(
        "aten::arange.start_out(Scalar start, Scalar end, Scalar step=1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        arange_start,
    ),
    Operator::new(
        "aten::linspace.out(Scalar start, Scalar end, int steps, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        linspace,
    ),
    Operator::new("aten::eye.out(SymInt n, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, eye),
    Operator::new("aten::eye.m_out(SymInt n, SymInt m, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, eye),
];

fn fill_meaning(args: &Args<'_>) -> Option<Meaning> {
    Some(Meaning::Fill(args.scalar("fill_value").ok()?))
}

/// The sizes at the argument `size`; `None` if they are not the sizes of a tensor.
fn size_argument(args: &Args<'_>) -> Option<Shape> {
    to_shape("size", args.ints("size").ok()?).ok()
}

fn zero_meaning(_: &Args<'_>) -> Option<Meaning> {
    Some(Meaning::Fill(Scalar::Int(0)))
}

/// Resizes the out to the sizes at an argument, and returns the out.
fn resize_out_to_arg<'o, 'a>(
    args: &Args<'_>,
    arg: &'static str,
    outs: &'o mut Outs<'a>,
) -> Result<&'o mut TensorViewMut<'a>> {
    let out = outs.tensor(0)?;
    out.resize(&to_shape(arg, args.ints(arg)?)?)?;
    Ok(out)
}

/// Resizes the out to the sizes of the argument `self`, and returns the out.
fn resize_out_like_self<'o, 'a>(
    args: &Args<'_>,
    outs: &'o mut Outs<'a>,
) -> Result<&'o mut TensorViewMut<'a>> {
    let out = outs.tensor(0)?;
    out.resize(args.meta("self")?.sizes())?;
    Ok(out)
}

fn full(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill_scalar(resize_out_to_arg(args, "size", outs)?, args.scalar("fill_value")?)
}

fn full_like(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill_scalar(resize_out_like_self(args, outs)?, args.scalar(["fill_value", "value"])?)
}

/// Fills the out with zeros, also for the `empty` operators, whose elements are unspecified.
fn zeros(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill_zero(resize_out_to_arg(args, "size", outs)?);
    Ok(())
}

fn zeros_like(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill_zero(resize_out_like_self(args, outs)?);
    Ok(())
}

fn ones(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill(resize_out_to_arg(args, "size", outs)?, 1i64)
}

fn new_zeros(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill_zero(resize_out_to_arg(args, "size", outs)?);
    Ok(())
}

fn new_ones(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill(resize_out_to_arg(args, "size", outs)?, 1i64)
}

fn new_full(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill_scalar(resize_out_to_arg(args, "size", outs)?, args.scalar("fill_value")?)
}

fn ones_like(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill(resize_out_like_self(args, outs)?, 1i64)
}

/// A tensor like `self`, filled with the single element of `value`.
fn fill_tensor(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let value = args.meta("value")?;
    ensure!(value.numel() == 1, "value: expected one element, found a tensor {value}");
    // A tensor with more dimensions than `self` would not broadcast to its shape.
    ensure!(
        value.rank() == 0 || args.meta("self")?.rank() >= value.rank(),
        "value: {value} has too many dimensions"
    );
    crate::support::convert::convert(ctx, args, outs, "value", args.meta("self")?.sizes())
}

/// A zero-dim tensor with the given value.
fn scalar_tensor(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let out = outs.tensor(0)?;
    out.resize(&[])?;
    fill_scalar(out, args.scalar("s")?)
}

fn arange(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill_arange(ctx, Scalar::Int(0), args.scalar("end")?, Scalar::Int(1), outs)
}

fn arange_start(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    fill_arange(ctx, args.scalar("start")?, args.scalar("end")?, args.scalar("step")?, outs)
}

/// Fills the output with `start`, `start + step`, ... up to but excluding `end`.
fn fill_arange(
    ctx: &KernelContext<'_>,
    start: Scalar,
    end: Scalar,
    step: Scalar,
    outs: &mut Outs<'_>,
) -> Result<()> {
    let (a, b, d) = (start.to_f64(), end.to_f64(), step.to_f64());
    ensure!(
        a.is_finite() && b.is_finite() && d.is_finite(),
        "arange from {start} to {end} by {step} is not finite"
    );
    ensure!(d != 0.0 && (b - a) / d >= 0.0, "arange cannot go from {start} to {end} by {step}");
    let out = outs.tensor(0)?;
    let all_integers = ![start, end, step].iter().any(|s| s.is_floating());
    let len = if all_integers {
        let distance = end.to_i64().abs_diff(start.to_i64());
        usize::try_from(distance.div_ceil(step.to_i64().unsigned_abs())).ok()
    } else {
        let n = ((b - a) / d).ceil();
        (n < usize::MAX as f64).then_some(n as usize)
    };
    let len =
        len.ok_or_else(|| Error::invalid(format!("arange from {start} to {end} by {step} is too long")))?;
    out.resize(&[len])?;
    if all_integers && !out.dtype().is_floating() {
        let (a, d) = (start.to_i64(), step.to_i64());
        return fill_sequence::<i64>(ctx, out, |i| a.wrapping_add(d.wrapping_mul(i as i64)));
    }
    fill_sequence::<f64>(ctx, out, |i| a + d * i as f64)
}

/// `steps` evenly spaced values from `start` to `end`, inclusive.
fn linspace(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b) = (args.scalar("start")?.to_f64(), args.scalar("end")?.to_f64());
    let n = crate::support::dims::to_size("steps", args.int("steps")?)?;
    let out = outs.tensor(0)?;
    out.resize(&[n])?;
    let step = (b - a) / (n.max(2) - 1) as f64;
    // Computed from the nearer endpoint, so that both endpoints are exact.
    fill_sequence::<f64>(ctx, out, |i| {
        if i < n.div_ceil(2) { a + step * i as f64 } else { b - step * (n - 1 - i) as f64 }
    })
}

/// Sets a one-dimensional out to `f(0)`, `f(1)`, ...
fn fill_sequence<C: crate::support::dtype::Compute>(
    _: &KernelContext<'_>,
    out: &mut TensorViewMut<'_>,
    f: impl Fn(usize) -> C,
) -> Result<()> {
    let (dtype, size) = (out.dtype(), out.dtype().size());
    crate::support::map::expect_aligned(out.bytes(), dtype)?;
    let store = C::storer(dtype)?;
    let mut block = [C::default(); 256];
    for (b, bytes) in out.bytes_mut().chunks_mut(256 * size).enumerate() {
        let n = bytes.len() / size;
        block[..n].iter_mut().enumerate().for_each(|(i, x)| *x = f(b * 256 + i));
        store(&block[..n], bytes);
    }
    Ok(())
}

/// Ones where row and column are equal, zeros elsewhere.
fn eye(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let n = args.int("n")?;
    let m = args.optional_int("m")?.unwrap_or(n);
    let sizes = to_shape("n", &[n, m])?;
    let out = outs.tensor(0)?;
    out.resize(&sizes)?;
    fill(out, 1i64)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let (size, strides) = (out.dtype().size(), *out.strides());
    let bytes = out.bytes_mut();
    for i in 0..sizes[0] {
        for j in (0..sizes[1]).filter(|&j| j != i) {
            bytes[(i * strides[0] + j * strides[1]) * size..][..size].fill(0);
        }
        pteron_pool::progress(sizes[1]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, ints, out, s, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Bool, Float, Half, Int, Long};

    #[test]
    fn filled_tensors_have_the_requested_sizes_and_values() {
        let r = call("aten::full.out", &[ints(&[2]), Arg::Double(1.5)], out(Float, &[3])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.5, 1.5]);
        let r = call("aten::full.out", &[ints(&[]), Arg::Int(i64::MAX)], out(Long, &[])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[i64::MAX]);
        let r = call("aten::ones.out", &[ints(&[2])], out(Bool, &[2])).unwrap();
        assert_eq!(r.bytes(), &[1, 1]);
        let x = t(&[2], &[1i32, 2]);
        let r = call("aten::fill.Tensor_out", &[a(&x), a(&s(2.9f32))], out(Int, &[2])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[2, 2]);
        assert!(call("aten::zeros.out", &[ints(&[-1])], out(Float, &[3])).is_err());
        assert!(call("aten::zeros.out", &[ints(&[1 << 40, 1 << 40])], out(Float, &[3, 1])).is_err());
        let r = call("aten::eye.m_out", &[Arg::Int(2), Arg::Int(3)], out(Half, &[2, 3])).unwrap();
        assert_eq!(r.bytes()[1], 0x3c);
        assert_eq!(r.bytes().iter().filter(|&&b| b != 0).count(), 2);
    }

    #[test]
    fn arange_and_linspace() {
        let args = [Arg::Int(5), Arg::Int(-2), Arg::Int(-3)];
        let r = call("aten::arange.start_out", &args, out(Int, &[3])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[5, 2, -1]);
        let args = [Arg::Double(0.0), Arg::Double(1.0), Arg::Double(0.3)];
        let r = call("aten::arange.start_out", &args, out(Float, &[4])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap()[3], (0.3f64 * 3.0) as f32);
        assert_eq!(call("aten::arange.out", &[Arg::Int(0)], out(Int, &[3])).unwrap().numel(), 0);
        for bad in [[0, 1, 0], [0, 1, -1], [i64::MIN, i64::MAX, 1]] {
            let args: Vec<_> = bad.iter().map(|&v| Arg::Int(v)).collect();
            assert!(call("aten::arange.start_out", &args, out(Int, &[3])).is_err());
        }
        let args = [Arg::Int(0), Arg::Int(1), Arg::Int(3)];
        let r = call("aten::linspace.out", &args, out(Float, &[3])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[0.0, 0.5, 1.0]);
    }
}
