//! Products of floating-point matrices with quantized weights.

use crate::compute::{Epilogue, MatMut, MatRef, gemm};
use crate::support::convert::{all_values, write_row_major};
use crate::support::dtype::expect_dtype;
use crate::support::quantized::check_zero_point_shape;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::ScalarType;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "quantized_decomposed::mixed_mm.out(Tensor input, Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        mixed_mm,
    ),
    Operator::new(
        "quantized_decomposed::mixed_linear.out(Tensor input, Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, ScalarType? dtype=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        mixed_linear,
    ),
];

/// `input @ weight`; each row of `weight` has one scale.
fn mixed_mm(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    multiply_by_dequantized(ctx, args, outs, false)
}

/// `input @ weight^T`; each row of `weight` has one scale, or one for each of its groups.
fn mixed_linear(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    if let Some(dtype) = args.optional_dtype("dtype")? {
        let actual = outs.tensor(0)?.dtype();
        ensure!(dtype == actual, "out: expected a tensor of {dtype}, found one of {actual}");
    }
    multiply_by_dequantized(ctx, args, outs, true)
}

/// The product with the dequantized weight, `(value - zero_point) * scale`, in float32.
fn multiply_by_dequantized(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    transposed: bool,
) -> Result<()> {
    let (x, weight, scales) = (args.tensor("input")?, args.tensor("weight")?, args.tensor("weight_scales")?);
    let zeros = args.optional_tensor("weight_zero_points")?;
    expect_dtype("input", x.dtype(), DtypeSet::FLOATING)?;
    expect_dtype("weight", weight.dtype(), DtypeSet::of(&[ScalarType::Byte, ScalarType::Char]))?;
    let (&[m, k], &[rows, columns]) = (&**x.sizes(), &**weight.sizes()) else {
        let message = format!("expected two matrices, found {} and {}", x.meta(), weight.meta());
        return Err(pteron_operator::Error::invalid(message));
    };
    let (inner, n) = if transposed { (columns, rows) } else { (rows, columns) };
    ensure!(
        k == inner,
        "weight: the shape {} does not suit an input of the shape {}",
        weight.sizes(),
        x.sizes()
    );
    let groups = match **scales.sizes() {
        [r] if r == rows => 1,
        [r, groups] if r == rows && groups > 0 && (transposed || groups == 1) => groups,
        _ => 0,
    };
    ensure!(groups > 0, "weight_scales: the shape {} does not suit {rows} rows", scales.sizes());
    check_zero_point_shape(zeros.as_ref(), &scales)?;
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::FLOATING)?;
    out.resize(&[m, n])?;

    let numbers = all_values::<f32>(ctx, &weight)?;
    let scales = all_values::<f32>(ctx, &scales)?;
    let zeros = zeros.map(|z| all_values::<f32>(ctx, &z)).transpose()?;
    let mut weight = ctx.scratch::<f32>(numbers.len())?;
    // The last group may be shorter than the others.
    let size = columns.div_ceil(groups).max(1);
    let rows = weight.chunks_exact_mut(columns.max(1)).zip(numbers.chunks_exact(columns.max(1)));
    for (i, (to, from)) in rows.enumerate() {
        for (g, (to, from)) in to.chunks_mut(size).zip(from.chunks(size)).enumerate() {
            let group = i * groups + g;
            let (scale, zero) = (scales[group], zeros.as_ref().map_or(0.0, |z| z[group]));
            to.iter_mut().zip(from).for_each(|(to, &q)| *to = (q - zero) * scale);
        }
    }
    let x = all_values::<f32>(ctx, &x)?;
    let (a, b) = (MatRef::new(&x, m, k), MatRef::new(&weight, if transposed { n } else { k }, columns));
    let b = if transposed { b.t() } else { b };
    write_row_major::<f32>(ctx, out, |out| {
        gemm(ctx.pool(), crate::support::isa(ctx), a, b, MatMut::new(out, m, n), &Epilogue::NONE);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Float, Half, Long};

    #[test]
    fn scales_of_rows_and_groups() {
        let x = t(&[1, 3], &[1f32, 2.0, 3.0]);
        let (w, s) = (t(&[3, 2], &[1i8, 2, 3, 4, 5, 6]), t(&[3], &[1f32, 10.0, 100.0]));
        let r = call(
            "quantized_decomposed::mixed_mm.out",
            &[a(&x), a(&w), a(&s), Arg::None],
            out(Float, &[1, 2]),
        );
        assert_eq!(r.unwrap().storage::<f32>().unwrap(), &[1561.0, 1882.0]);
        let w = t(&[2, 3], &[1i8, 2, 3, -4, 5, 6]);
        let (s, z) = (t(&[2, 2], &[1f32, 10.0, 2.0, 1.0]), t(&[2, 2], &[0f32, 1.0, 0.0, 0.0]));
        let args = [a(&x), a(&w), a(&s), a(&z)];
        let r = call("quantized_decomposed::mixed_linear.out", &args, out(Half, &[1, 2])).unwrap();
        let r: Vec<f32> = r.storage::<pteron_tensor::f16>().unwrap().iter().map(|h| h.to_f32()).collect();
        assert_eq!(r, [65.0, 30.0]);
        assert!(call("quantized_decomposed::mixed_linear.out", &args, out(Long, &[1, 2])).is_err());
        assert!(call("quantized_decomposed::mixed_mm.out", &args, out(Float, &[1, 3])).is_err());
    }
}
