//! Per-tensor quantization, and addition of quantized tensors.

use crate::support::dims::broadcast;
use crate::support::dtype::{Cast, expect_dtype};
use crate::support::layout::Layout;
use crate::support::map::{Input, elementwise, map_sized};
use pteron_operator::facts::QParams;
use pteron_operator::{Args, DtypeSet, KernelContext, Meaning, Operator, Outs, Result, ensure};
use pteron_tensor::ScalarType;

/// Types of quantized values.
const QUANTIZED: DtypeSet = DtypeSet::INTEGRAL.union(DtypeSet::of(&[ScalarType::UInt16, ScalarType::UInt32]));

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "quantized_decomposed::quantize_per_tensor.out(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        quantize,
    )
    .means(|args| Some(Meaning::Quantize(scalar_qparams(args)?))),
    Operator::new(
        "quantized_decomposed::quantize_per_tensor.Tensor_out(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        quantize,
    )
    .means(|args| Some(Meaning::Quantize(tensor_qparams(args, false)?))),
    Operator::new(
        "quantized_decomposed::dequantize_per_tensor.out(Tensor input, float scale, int zero_point, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None, Tensor(a!) out) -> Tensor(a!)",
        QUANTIZED,
        dequantize,
    )
    .means(|args| Some(Meaning::Dequantize(scalar_qparams(args)?))),
    Operator::new(
        "quantized_decomposed::dequantize_per_tensor.Tensor_out(Tensor input, Tensor scale, Tensor zero_point, int quant_min, int quant_max, ScalarType dtype, *, ScalarType? out_dtype=None, Tensor(a!) out) -> Tensor(a!)",
        QUANTIZED,
        dequantize,
    )
    .means(|args| Some(Meaning::Dequantize(tensor_qparams(args, false)?))),
    Operator::new(
        "quantized_decomposed::add.out(Tensor a, float a_scale, int a_zero_point, int a_quant_min, int a_quant_max, Tensor b, float b_scale, int b_zero_point, int b_quant_min, int b_quant_max, float out_scale, int out_zero_point, int out_quant_min, int out_quant_max, *, Tensor(a!) out) -> Tensor(a!)",
        QUANTIZED,
        quantized_add,
    ),
];

/// The quantization parameters of a call that passes them as scalars.
fn scalar_qparams(args: &Args<'_>) -> Option<QParams> {
    let (zero, low, high) =
        (args.int("zero_point").ok()?, args.int("quant_min").ok()?, args.int("quant_max").ok()?);
    Some(QParams::PerTensor { scale: args.double("scale").ok()?, zero, low, high })
}

/// The quantization parameters of a call that passes the scale and the zero point as tensors: of one element or, if
/// `by_row`, of one for each row.
pub(crate) fn tensor_qparams(args: &Args<'_>, by_row: bool) -> Option<QParams> {
    Some(QParams::Dynamic { by_row, low: args.int("quant_min").ok()?, high: args.int("quant_max").ok()? })
}

/// The value of an argument that is a scalar or a tensor of one element.
fn scalar_or_element(args: &Args<'_>, arg: &'static str) -> Result<f64> {
    if args.meta(arg).is_err() {
        return args.double(arg);
    }
    let t = args.tensor(arg)?;
    ensure!(t.numel() == 1, "{}: expected one element, found {}", arg, t.meta());
    let mut value = [0f64];
    crate::support::convert::read(&t, &Layout::of_tensor(t.meta()), &mut value)?;
    Ok(value[0])
}

/// Scale, zero point and bounds: arguments 1 to 4.
struct Affine {
    scale: f64,
    zero_point: i64,
    min: i64,
    max: i64,
}

impl Affine {
    fn read(args: &Args<'_>) -> Result<Self> {
        let zero_point = match args.meta("zero_point") {
            Ok(_) => i64::from_f64(scalar_or_element(args, "zero_point")?),
            Err(_) => args.int("zero_point")?,
        };
        let (min, max) = (args.int("quant_min")?, args.int("quant_max")?);
        ensure!(min <= max, "quant_min: {min} is greater than quant_max, {max}");
        Ok(Self { scale: scalar_or_element(args, "scale")?, zero_point, min, max })
    }
}

/// `clamp(round(x / scale) + zero_point, quant_min, quant_max)`, rounding ties to even.
#[expect(clippy::unnecessary_cast, reason = "the macro writes the expression for f32 and for f64")]
fn quantize(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let Affine { scale, zero_point, min, max } = Affine::read(args)?;
    let (from, sizes) = (args.meta("input")?.dtype(), *args.meta("input")?.sizes());
    let to = outs.tensor(0)?.dtype();
    expect_dtype("input", from, DtypeSet::FLOATING)?;
    expect_dtype("out", to, QUANTIZED)?;
    let (low, high) = (min as f64, max as f64);
    // ExecuTorch multiplies by the reciprocal in float32.
    let inverse = 1.0 / scale as f32;
    let zero = zero_point as f64;
    let fns = elementwise! {
        float(x) => ((x * inverse as F).round_ties_even() as f64 + zero).max(low).min(high) as F;
    };
    // Integers up to 2^24 are exact in float32; a larger range needs float64.
    let wide = from == ScalarType::Double || min < -(1 << 24) || max > 1 << 24;
    let dtype = if wide { ScalarType::Double } else { ScalarType::Float };
    map_sized(ctx, args, outs, [Input::Arg(0)], sizes, dtype, to, &fns)
}

/// `(x - zero_point) * scale`
fn dequantize(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let Affine { scale, zero_point, .. } = Affine::read(args)?;
    let (from, sizes) = (args.meta("input")?.dtype(), *args.meta("input")?.sizes());
    let to = outs.tensor(0)?.dtype();
    expect_dtype("input", from, QUANTIZED)?;
    expect_dtype("out", to, DtypeSet::FLOATING)?;
    let (scale, zero) = (scale as f32, zero_point as f64);
    let fns = elementwise! { float(x) => (x as f64 - zero) as F * scale as F };
    map_sized(ctx, args, outs, [Input::Arg(0)], sizes, ScalarType::Double, to, &fns)
}

/// Adds two quantized tensors: dequantizes, adds in float32, and requantizes.
#[expect(clippy::unnecessary_cast, reason = "the macro writes the expression for f32 and for f64")]
fn quantized_add(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let bounds = |at: usize| {
        let (min, max) = (args.int(at)?, args.int(at + 1)?);
        ensure!(min <= max, "{}: {min} is greater than {max}", args.name(at));
        Ok((min as f64, max as f64))
    };
    let (_, _, (low, high)) = (bounds(3)?, bounds(8)?, bounds(12)?);
    let scale = |at: usize| Ok::<_, pteron_operator::Error>(args.double(at)? as f32);
    let (a_scale, b_scale, inverse) = (scale(1)? as f64, scale(6)? as f64, 1.0 / scale(10)?);
    let (a_zero, b_zero, zero) = (
        args.int("a_zero_point")? as f64,
        args.int("b_zero_point")? as f64,
        args.int("out_zero_point")? as f64,
    );
    let (dtype, to) = (args.meta("a")?.dtype(), outs.tensor(0)?.dtype());
    expect_dtype("a", dtype, QUANTIZED)?;
    ensure!(
        args.meta("b")?.dtype() == dtype && to == dtype,
        "b and out: expected tensors of {dtype}, found {} and {to}",
        args.meta("b")?.dtype()
    );
    let fns = elementwise! {
        float(a, b) => {
            let value = |x: F, zero: f64, scale: f64| ((x as f64 - zero) * scale) as f32;
            let sum = value(a, a_zero, a_scale) + value(b, b_zero, b_scale);
            ((inverse * sum).round_ties_even() as f64 + zero).max(low).min(high) as F
        };
    };
    let sizes = broadcast(args.meta("a")?.sizes(), args.meta("b")?.sizes())?;
    map_sized(ctx, args, outs, [Input::Arg(0), Input::Arg(5)], sizes, ScalarType::Double, to, &fns)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, out, s, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Byte, Char, Float, Half};

    #[test]
    fn quantization_round_trips() {
        let x = t(&[5], &[0.25f32, -0.35, 100.0, f32::NEG_INFINITY, 0.75]);
        let args = [a(&x), Arg::Double(0.5), int(3), int(-128), int(127), int(1)];
        let q = call("quantized_decomposed::quantize_per_tensor.out", &args, out(Char, &[5])).unwrap();
        assert_eq!(q.storage::<i8>().unwrap(), &[3, 2, 127, -128, 5]);
        let args = [a(&q), Arg::Double(0.5), int(3), int(-128), int(127), int(1)];
        let r = call("quantized_decomposed::dequantize_per_tensor.out", &args, out(Half, &[5])).unwrap();
        assert_eq!(
            r.storage::<pteron_tensor::f16>().unwrap()[..2].iter().map(|h| h.to_f32()).collect::<Vec<_>>(),
            [0.0, -0.5]
        );
        let (scale, zero) = (s(0.5f64), s(3i64));
        let args = [a(&x), a(&scale), a(&zero), int(0), int(255), int(0)];
        let q = call("quantized_decomposed::quantize_per_tensor.Tensor_out", &args, out(Byte, &[5])).unwrap();
        assert_eq!(q.storage::<u8>().unwrap(), &[3, 2, 203, 0, 5]);
        let args = [a(&x), Arg::Double(0.5), int(3), int(5), int(4), int(1)];
        assert!(call("quantized_decomposed::quantize_per_tensor.out", &args, out(Float, &[5])).is_err());
    }
}
