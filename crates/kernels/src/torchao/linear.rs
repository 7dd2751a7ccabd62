//! Products with packed weights.

use super::packed::Packed;
use crate::support::convert::{all_values, write_row_major};
use crate::support::dims::to_positive;
use crate::support::dtype::expect_dtype;
use crate::support::rows::{expect_type, tensor_bytes};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{ScalarType, TensorView};

/// The type of activations and results.
const FLOAT: DtypeSet = DtypeSet::of(&[ScalarType::Float]);

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "torchao::_linear_8bit_act_1bit_weight.out(Tensor activations, Tensor packed_weights, int group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        linear::<1>,
    ),
    Operator::new(
        "torchao::_linear_8bit_act_2bit_weight.out(Tensor activations, Tensor packed_weights, int group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        linear::<2>,
    ),
    Operator::new(
        "torchao::_linear_8bit_act_3bit_weight.out(Tensor activations, Tensor packed_weights, int group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        linear::<3>,
    ),
    Operator::new(
        "torchao::_linear_8bit_act_4bit_weight.out(Tensor activations, Tensor packed_weights, int group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        linear::<4>,
    ),
    Operator::new(
        "torchao::_linear_8bit_act_5bit_weight.out(Tensor activations, Tensor packed_weights, int group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        linear::<5>,
    ),
    Operator::new(
        "torchao::_linear_8bit_act_6bit_weight.out(Tensor activations, Tensor packed_weights, int group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        linear::<6>,
    ),
    Operator::new(
        "torchao::_linear_8bit_act_7bit_weight.out(Tensor activations, Tensor packed_weights, int group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        linear::<7>,
    ),
    Operator::new(
        "torchao::_linear_8bit_act_8bit_weight.out(Tensor activations, Tensor packed_weights, int group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        linear::<8>,
    ),
    Operator::new(
        "torchao::_linear_groupwise_1bit_weight_with_lut.out(Tensor activations, Tensor packed_weights, int scale_group_size, int lut_group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        groupwise::<1>,
    ),
    Operator::new(
        "torchao::_linear_groupwise_2bit_weight_with_lut.out(Tensor activations, Tensor packed_weights, int scale_group_size, int lut_group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        groupwise::<2>,
    ),
    Operator::new(
        "torchao::_linear_groupwise_3bit_weight_with_lut.out(Tensor activations, Tensor packed_weights, int scale_group_size, int lut_group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        groupwise::<3>,
    ),
    Operator::new(
        "torchao::_linear_groupwise_4bit_weight_with_lut.out(Tensor activations, Tensor packed_weights, int scale_group_size, int lut_group_size, int n, int k, *, Tensor(a!) out) -> Tensor(a!)",
        FLOAT,
        groupwise::<4>,
    ),
];

/// The packed weights at an argument, which must be a one-dimensional tensor of bytes.
pub(super) fn packed_bytes<'a>(args: &Args<'a>, arg: &'static str) -> Result<TensorView<'a>> {
    let weights = args.tensor(arg)?;
    let bytes = DtypeSet::of(&[ScalarType::Char, ScalarType::Byte]);
    expect_dtype(arg, weights.dtype(), bytes)?;
    ensure!(weights.rank() == 1, "{}: expected one dimension, found the shape {}", arg, weights.sizes());
    Ok(weights)
}

/// A product with weights of `BITS` bits. Each row of the activations is quantized to eight bits and dequantized, with a
/// range that includes zero, as by torchao's `Int8DynamicActivationIntxWeightConfig`.
fn linear<const BITS: u32>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let [group, n, k] = positive_ints(args, [2, 3, 4])?;
    let weights = packed_bytes(args, "packed_weights")?;
    let weights = tensor_bytes(ctx, &weights)?;
    let packed = Packed::read_linear("packed_weights", &weights, BITS, [n, k, group])?;
    multiply(ctx, args, outs, &packed, [n, k], fake_quantize_row)
}

/// A product with weights that are looked up in tables, by indices of `BITS` bits.
fn groupwise<const BITS: u32>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let [group, tables, n, k] = positive_ints(args, [2, 3, 4, 5])?;
    let weights = packed_bytes(args, "packed_weights")?;
    let weights = tensor_bytes(ctx, &weights)?;
    let packed = Packed::read_groupwise("packed_weights", &weights, BITS, [n, k, group, tables])?;
    multiply(ctx, args, outs, &packed, [n, k], |_| ())
}

fn positive_ints<const N: usize>(args: &Args<'_>, indices: [usize; N]) -> Result<[usize; N]> {
    let mut sizes = [0; N];
    for (size, &index) in sizes.iter_mut().zip(&indices) {
        *size = to_positive(args.name(index), args.int(index)?)?;
    }
    Ok(sizes)
}

fn multiply(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    weights: &Packed<'_>,
    [n, k]: [usize; 2],
    of_row: fn(&mut [f32]),
) -> Result<()> {
    let x = args.tensor("activations")?;
    expect_type("activations", ScalarType::Float, x.dtype())?;
    let m = match **x.sizes() {
        [m, columns] if columns == k => m,
        _ => {
            let message = format!("activations: the shape {} does not suit {k} columns", x.sizes());
            return Err(pteron_operator::Error::invalid(message));
        }
    };
    let out = outs.tensor(0)?;
    expect_type("out", ScalarType::Float, out.dtype())?;
    out.resize(&[m, n])?;
    let from = all_values::<f32>(ctx, &x)?;
    let mut rows = ctx.scratch::<f32>(from.len())?;
    rows.copy_from_slice(&from);
    rows.chunks_exact_mut(k).for_each(of_row);
    write_row_major::<f32>(ctx, out, |out| weights.multiply(ctx, &rows, out))
}

/// Quantizes a row to signed values of eight bits, and dequantizes those values again.
fn fake_quantize_row(row: &mut [f32]) {
    let low = row.iter().copied().fold(0.0, f32::min);
    let high = row.iter().copied().fold(0.0, f32::max);
    let scale = ((high - low) / 255.0).max(f32::EPSILON);
    let zero = (-128.0 - (low / scale).round_ties_even()).clamp(-128.0, 127.0);
    let inverse = 1.0 / scale;
    for x in row {
        let q = ((*x * inverse).round_ties_even() + zero).clamp(-128.0, 127.0);
        *x = (q - zero) * scale;
    }
}
