//! Per-channel and per-token quantization, and the choice of quantization parameters.

use crate::quantize::tensor_qparams;
use crate::support::convert::{read, write_row_major};
use crate::support::dims::{DimSet, wrap_dim};
use crate::support::dtype::{Cast, compute_type, dispatch, expect_dtype};
use crate::support::layout::Layout;
use crate::support::map::{Fns, Input, elementwise, map_sized};
use crate::support::meaning::optional_tensor_position;
use crate::support::reduce::{Reducer, reduce};
use pteron_operator::facts::{ChooseQParams, QParams, wrap};
use pteron_operator::{Args, DtypeSet, KernelContext, Meaning, Operator, Outs, Result, ensure};
use pteron_tensor::memory::{collected, filled};
use pteron_tensor::{Scalar, ScalarType, Tensor, TensorMeta};

/// Types of quantized values.
const QUANTIZED: DtypeSet = DtypeSet::INTEGRAL.union(DtypeSet::of(&[ScalarType::UInt16, ScalarType::UInt32]));

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "quantized_decomposed::quantize_per_channel.out(Tensor input, Tensor scales, Tensor zero_points, int axis, int quant_min, int quant_max, ScalarType dtype, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        quantize_per_channel,
    ),
    Operator::new(
        "quantized_decomposed::dequantize_per_channel.out(Tensor input, Tensor scales, Tensor? zero_points, int axis, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None, Tensor(a!) out) -> Tensor(a!)",
        QUANTIZED,
        dequantize_per_channel,
    )
    .means(per_channel_meaning),
    Operator::new(
        "quantized_decomposed::quantize_per_token.out(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        quantize_per_token,
    )
    .means(|args| Some(Meaning::Quantize(tensor_qparams(args, true)?))),
    Operator::new(
        "quantized_decomposed::dequantize_per_token.out(Tensor input, Tensor scales, Tensor zero_points, int quant_min, int quant_max, ScalarType dtype, ScalarType output_dtype, *, Tensor(a!) out) -> Tensor(a!)",
        QUANTIZED,
        dequantize_per_token,
    )
    .means(|args| Some(Meaning::Dequantize(tensor_qparams(args, true)?))),
    Operator::new(
        "quantized_decomposed::choose_qparams.Tensor_out(Tensor input, int quant_min, int quant_max, float eps, ScalarType dtype, *, Tensor(a!) scale_out, Tensor(b!) zero_point_out) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::FLOATING,
        choose_qparams,
    )
    .means(choose_qparams_meaning),
    Operator::new(
        "quantized_decomposed::choose_qparams_per_token_asymmetric.out(Tensor input, ScalarType dtype, *, Tensor(a!) scale_out, Tensor(b!) zero_point_out) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::FLOATING,
        choose_qparams_per_token,
    )
    .means(|_| Some(Meaning::ChooseQParams(ChooseQParams::PerToken))),
];

fn per_channel_meaning(args: &Args<'_>) -> Option<Meaning> {
    let axis = wrap(args.int("axis").ok()?, args.meta("input").ok()?.rank())?;
    Some(Meaning::Dequantize(QParams::PerChannel {
        scales: 1,
        zeros: optional_tensor_position(args, "zero_points")?,
        axis,
    }))
}

fn choose_qparams_meaning(args: &Args<'_>) -> Option<Meaning> {
    let (low, high, eps) =
        (args.int("quant_min").ok()?, args.int("quant_max").ok()?, args.double("eps").ok()?);
    Some(Meaning::ChooseQParams(ChooseQParams::PerTensor { low, high, eps }))
}

/// The quantization parameters at an argument, one for each index of dimension `axis`, as an elementwise input.
fn per_channel_input(args: &Args<'_>, index: usize, axis: usize) -> Result<Input> {
    let (x, p) = (args.meta("input")?, args.meta(index)?);
    ensure!(
        x.rank() > 0 && p.numel() == x.sizes()[axis] && p.rank() <= 1,
        "{}: the shape {} does not suit dimension {axis} of {}",
        args.name(index),
        p.sizes(),
        x.sizes()
    );
    let mut view = Layout::of_tensor(p);
    while view.rank() < x.rank() - axis {
        view = view.insert(view.rank(), 1, 0)?;
    }
    Ok(Input::View(index, view))
}

/// The quantization parameters at an argument, one for each row, as an elementwise input.
fn per_token_input(args: &Args<'_>, index: usize) -> Result<Input> {
    let (x, p) = (args.meta("input")?, args.meta(index)?);
    let rows: usize = x.sizes().iter().rev().skip(1).product();
    ensure!(
        x.rank() > 0 && p.numel() == rows,
        "{}: {} elements for {rows} rows of the shape {}",
        args.name(index),
        p.numel(),
        x.sizes()
    );
    let mut sizes = *x.sizes();
    let last = sizes.rank() - 1;
    sizes[last] = 1;
    let view = Layout::of_tensor(p).reshape(&sizes);
    let view = view.ok_or_else(|| {
        pteron_operator::Error::invalid(format!(
            "{}: the layout of {p} cannot be viewed as {sizes}",
            args.name(index)
        ))
    })?;
    Ok(Input::View(index, view))
}

/// `clamp(round(x / scale) + zero_point, quant_min, quant_max)`; the bounds are arguments `bounds` and `bounds + 1`.
fn quantize(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    [scale, zero]: [Input; 2],
    bounds: usize,
) -> Result<()> {
    let (min, max) = (args.int(bounds)?, args.int(bounds + 1)?);
    ensure!(min <= max, "quant_min: {min} is greater than quant_max, {max}");
    expect_dtype("input", args.meta("input")?.dtype(), DtypeSet::FLOATING)?;
    let (low, high) = (min as f64, max as f64);
    let fns = elementwise! {
        float(x, s, z) => {
            // ExecuTorch multiplies by the reciprocal in float32.
            let q = (x.to_f32() * (1.0 / s.to_f32())).round_ties_even() as f64 + z.to_f64();
            F::from_f64(q.max(low).min(high))
        };
    };
    map_with_params(ctx, args, outs, [Input::Arg(0), scale, zero], QUANTIZED, &fns)
}

/// `(x - zero_point) * scale`
fn dequantize(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    [scale, zero]: [Input; 2],
) -> Result<()> {
    expect_dtype("input", args.meta("input")?.dtype(), QUANTIZED)?;
    let fns = elementwise! { float(x, s, z) => F::from_f32((x - z).to_f32() * s.to_f32()) };
    map_with_params(ctx, args, outs, [Input::Arg(0), scale, zero], DtypeSet::FLOATING, &fns)
}

fn map_with_params(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    inputs: [Input; 3],
    outs_of: DtypeSet,
    fns: &Fns<'_, 3>,
) -> Result<()> {
    let to = outs.tensor(0)?.dtype();
    expect_dtype("out", to, outs_of)?;
    let sizes = *args.meta("input")?.sizes();
    map_sized(ctx, args, outs, inputs, sizes, ScalarType::Double, to, fns)
}

fn quantize_per_channel(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let axis = wrap_dim("axis", args.int("axis")?, args.meta("input")?.rank())?;
    quantize(ctx, args, outs, [per_channel_input(args, 1, axis)?, per_channel_input(args, 2, axis)?], 4)
}

fn dequantize_per_channel(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let axis = wrap_dim("axis", args.int("axis")?, args.meta("input")?.rank())?;
    let zero = if args.is_none("zero_points") {
        Input::Scalar(Scalar::Int(0))
    } else {
        per_channel_input(args, 2, axis)?
    };
    dequantize(ctx, args, outs, [per_channel_input(args, 1, axis)?, zero])
}

fn quantize_per_token(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    quantize(ctx, args, outs, [per_token_input(args, 1)?, per_token_input(args, 2)?], 3)
}

fn dequantize_per_token(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    dequantize(ctx, args, outs, [per_token_input(args, 1)?, per_token_input(args, 2)?])
}

/// The reduction to the minimum of the elements and zero (`least`), or to their maximum.
struct Bound {
    least: bool,
}

impl<C: crate::support::dtype::Compute> Reducer<C> for Bound {
    type Acc = f64;
    type Out = f64;
    fn start(&self) -> f64 {
        0.0
    }
    fn step(&self, acc: f64, x: C, _: usize) -> f64 {
        self.merge_bounds(acc, x.to_f64())
    }
    fn merge(&self, a: f64, b: f64) -> f64 {
        self.merge_bounds(a, b)
    }
    fn finish(&self, acc: f64, _: usize) -> f64 {
        acc
    }
}

impl Bound {
    fn merge_bounds(&self, a: f64, b: f64) -> f64 {
        if self.least { a.min(b) } else { a.max(b) }
    }
}

/// The bounds of the elements over `dims`, extended to include zero, as rows of (smallest, largest).
fn element_bounds(ctx: &KernelContext<'_>, args: &Args<'_>, dims: DimSet) -> Result<Vec<[f64; 2]>> {
    let x = args.tensor("input")?;
    expect_dtype("input", x.dtype(), DtypeSet::FLOATING)?;
    let mut all: [Vec<f64>; 2] = [Vec::new(), Vec::new()];
    for (least, all) in [true, false].into_iter().zip(&mut all) {
        let sizes = dims.reduced_sizes(x.sizes(), true);
        let mut t = Tensor::zeros(TensorMeta::contiguous(ScalarType::Double, &sizes)?)?;
        dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
            reduce::<C, _>(ctx, &x, dims, true, &mut t.view_mut(), &Bound { least })?;
        });
        *all = filled(t.numel(), 0.0)?;
        read(&t.view(), &Layout::of_tensor(t.meta()), all)?;
    }
    let [low, high] = all;
    Ok(collected(low.into_iter().zip(high).map(|(a, b)| [a, b]))?)
}

/// Sets the outs, which have one element for each row, to the scale and zero point that `choose` derives from its
/// bounds.
fn write_qparams(
    ctx: &KernelContext<'_>,
    outs: &mut Outs<'_>,
    bounds: &[[f64; 2]],
    choose: impl Fn([f64; 2]) -> (f64, f64),
) -> Result<()> {
    for k in 0..2 {
        let out = outs.tensor(k)?;
        ensure!(
            out.numel() == bounds.len(),
            "out {k}: expected {} elements, found {}",
            bounds.len(),
            out.sizes()
        );
        write_row_major::<f64>(ctx, out, |out| {
            for (o, &b) in out.iter_mut().zip(bounds) {
                let (scale, zero) = choose(b);
                *o = if k == 0 { scale } else { zero };
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Scale and zero point that map the range of a whole tensor to the quantized range.
fn choose_qparams(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (min, max, eps) = (args.int("quant_min")?, args.int("quant_max")?, args.double("eps")?);
    ensure!(min < max, "quant_min: {min} is not less than quant_max, {max}");
    let all = element_bounds(ctx, args, DimSet::all(args.meta("input")?.rank()))?;
    write_qparams(ctx, outs, &all, |[low, high]| {
        let range = (max as f64 - min as f64) as f32;
        let scale = ((high as f32 - low as f32) / range).max(eps as f32);
        let zero = min as f64 - (low as f32 / scale).round_ties_even() as f64;
        (scale as f64, zero.max(min as f64).min(max as f64))
    })
}

/// Scale and zero point that map the range of each row to int8; the zero point is computed from the end of the range
/// with the smaller error.
fn choose_qparams_per_token(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.meta("input")?;
    ensure!(x.rank() > 0, "input: a zero-dim tensor has no rows");
    let rows = DimSet::single(x.rank() - 1);
    let mut sizes = *x.sizes();
    sizes[x.rank() - 1] = 1;
    outs.tensor(0)?.resize(&sizes)?;
    outs.tensor(1)?.resize(&sizes)?;
    let all = element_bounds(ctx, args, rows)?;
    write_qparams(ctx, outs, &all, |[low, high]| {
        let (min, max) = (-128f32, 127f32);
        let (low, high) = (low as f32, high as f32);
        let scale = ((high - low) / (max - min)).max(f32::EPSILON);
        let (low, high) = (low / scale, high / scale);
        let zero = if (min + low) + (max + high) > 0.0 { min - low } else { max - high };
        (scale as f64, zero.max(min).min(max).round_ties_even() as f64)
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Char, Double, Float, Long};

    #[test]
    fn per_channel_and_per_token_quantization() {
        let x = t(&[2, 2], &[1f32, 2.0, 3.0, -4.0]);
        let (scale, zero) = (t(&[2], &[0.5f64, 2.0]), t(&[2], &[1i64, 0]));
        let name = "quantized_decomposed::quantize_per_channel.out";
        let args = [a(&x), a(&scale), a(&zero), int(-1), int(-128), int(127), int(1)];
        let q = call(name, &args, out(Char, &[2, 2])).unwrap();
        assert_eq!(q.storage::<i8>().unwrap(), &[3, 1, 7, -2]);
        let name = "quantized_decomposed::dequantize_per_channel.out";
        let args = [a(&q), a(&scale), Arg::None, int(0), int(-128), int(127), int(1)];
        let r = call(name, &args, out(Float, &[2, 2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.5, 0.5, 14.0, -4.0]);
        let args = [a(&q), a(&scale), a(&zero), int(-128), int(127), int(1), int(6)];
        let r = call("quantized_decomposed::dequantize_per_token.out", &args, out(Float, &[2, 2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0, 0.0, 14.0, -4.0]);
        let short = t(&[1], &[0.5f64]);
        let args = [a(&x), a(&short), a(&zero), int(0), int(-128), int(127), int(1)];
        assert!(call("quantized_decomposed::quantize_per_channel.out", &args, out(Char, &[2, 2])).is_err());
    }

    #[test]
    fn quantization_parameters_are_chosen_from_the_range() {
        let x = t(&[2, 2], &[-1f32, 1.55, 0.0, 0.0]);
        let args = [a(&x), int(-128), int(127), Arg::Double(1e-5), int(1)];
        let outs = [out(Double, &[1]), out(Long, &[1])];
        let [s, z] = call_many("quantized_decomposed::choose_qparams.Tensor_out", &args, outs).unwrap();
        assert!((s.storage::<f64>().unwrap()[0] - 0.01).abs() < 1e-8);
        assert_eq!(z.storage::<i64>().unwrap(), &[-28]);
        let outs = [out(Double, &[2, 1]), out(Long, &[2, 1])];
        let name = "quantized_decomposed::choose_qparams_per_token_asymmetric.out";
        let [s, z] = call_many(name, &[a(&x), int(1)], outs).unwrap();
        assert!((s.storage::<f64>().unwrap()[0] - 0.01).abs() < 1e-8);
        assert_eq!(z.storage::<i64>().unwrap()[0], -28);
    }
}
