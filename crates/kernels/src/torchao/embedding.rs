//! Embeddings from packed tables.

use super::bits::Layout;
use super::header::{Header, Kind};
use super::linear::packed_bytes;
use super::packed::Packed;
use crate::support::convert::{all_values, indices, write_row_major};
use crate::support::dims::to_positive;
use crate::support::rows::{expect_type, tensor_bytes};
use pteron_operator::{Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{ScalarType, TensorViewMut};

/// The types of packed tables.
const BYTES: DtypeSet = DtypeSet::of(&[ScalarType::Char, ScalarType::Byte]);

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "torchao::_embedding_1bit.out(Tensor packed_weight_qvals, int num_embeddings, int embedding_dim, Tensor weight_scales, Tensor weight_zeros, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        embedding::<1>,
    ),
    Operator::new(
        "torchao::_embedding_2bit.out(Tensor packed_weight_qvals, int num_embeddings, int embedding_dim, Tensor weight_scales, Tensor weight_zeros, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        embedding::<2>,
    ),
    Operator::new(
        "torchao::_embedding_3bit.out(Tensor packed_weight_qvals, int num_embeddings, int embedding_dim, Tensor weight_scales, Tensor weight_zeros, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        embedding::<3>,
    ),
    Operator::new(
        "torchao::_embedding_4bit.out(Tensor packed_weight_qvals, int num_embeddings, int embedding_dim, Tensor weight_scales, Tensor weight_zeros, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        embedding::<4>,
    ),
    Operator::new(
        "torchao::_embedding_5bit.out(Tensor packed_weight_qvals, int num_embeddings, int embedding_dim, Tensor weight_scales, Tensor weight_zeros, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        embedding::<5>,
    ),
    Operator::new(
        "torchao::_embedding_6bit.out(Tensor packed_weight_qvals, int num_embeddings, int embedding_dim, Tensor weight_scales, Tensor weight_zeros, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        embedding::<6>,
    ),
    Operator::new(
        "torchao::_embedding_7bit.out(Tensor packed_weight_qvals, int num_embeddings, int embedding_dim, Tensor weight_scales, Tensor weight_zeros, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        embedding::<7>,
    ),
    Operator::new(
        "torchao::_embedding_8bit.out(Tensor packed_weight_qvals, int num_embeddings, int embedding_dim, Tensor weight_scales, Tensor weight_zeros, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        embedding::<8>,
    ),
    Operator::new(
        "torchao::_shared_embedding_1bit.out(Tensor packed_weights, int group_size, int n, int k, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        shared_embedding::<1>,
    ),
    Operator::new(
        "torchao::_shared_embedding_2bit.out(Tensor packed_weights, int group_size, int n, int k, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        shared_embedding::<2>,
    ),
    Operator::new(
        "torchao::_shared_embedding_3bit.out(Tensor packed_weights, int group_size, int n, int k, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        shared_embedding::<3>,
    ),
    Operator::new(
        "torchao::_shared_embedding_4bit.out(Tensor packed_weights, int group_size, int n, int k, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        shared_embedding::<4>,
    ),
    Operator::new(
        "torchao::_shared_embedding_5bit.out(Tensor packed_weights, int group_size, int n, int k, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        shared_embedding::<5>,
    ),
    Operator::new(
        "torchao::_shared_embedding_6bit.out(Tensor packed_weights, int group_size, int n, int k, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        shared_embedding::<6>,
    ),
    Operator::new(
        "torchao::_shared_embedding_7bit.out(Tensor packed_weights, int group_size, int n, int k, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        shared_embedding::<7>,
    ),
    Operator::new(
        "torchao::_shared_embedding_8bit.out(Tensor packed_weights, int group_size, int n, int k, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        shared_embedding::<8>,
    ),
];

/// The indices at an argument, which must be below `rows`. Resizes the out to one row of `width` elements for each index.
fn read_indices(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    index: usize,
    out: &mut TensorViewMut<'_>,
    [rows, width]: [usize; 2],
) -> Result<Vec<usize>> {
    let list = args.tensor(index)?;
    let name = args.name(index);
    ensure!(list.rank() == 1, "{name}: expected one dimension, found the shape {}", list.sizes());
    expect_type("out", ScalarType::Float, out.dtype())?;
    out.resize(&[list.numel(), width])?;
    let list = indices(ctx, name, &list)?;
    let row = |&i: &i64| {
        let row = usize::try_from(i).ok().filter(|&row| row < rows);
        row.ok_or_else(|| Error::invalid(format!("{name}: {i} is out of range for {rows} rows")))
    };
    list.iter().map(row).collect()
}

/// The dequantized rows, `(value - zero point) * scale`, of a table of `BITS`-bit values. A row has one scale and one zero
/// point for each of its groups.
fn embedding<const BITS: u32>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let table = packed_bytes(args, "packed_weight_qvals")?;
    let rows = to_positive("num_embeddings", args.int("num_embeddings")?)?;
    let width = to_positive("embedding_dim", args.int("embedding_dim")?)?;
    let (scales, zeros) = (args.tensor("weight_scales")?, args.tensor("weight_zeros")?);
    expect_type("weight_scales", ScalarType::Float, scales.dtype())?;
    expect_type("weight_zeros", ScalarType::Char, zeros.dtype())?;
    let groups = match **scales.sizes() {
        [n, groups] if n == rows && groups > 0 && width.is_multiple_of(groups) => groups,
        _ => 0,
    };
    let group = width.checked_div(groups).unwrap_or(0);
    ensure!(
        group > 0 && group.is_multiple_of(32),
        "weight_scales: the shape {} does not suit {rows} rows of {width} values in groups of multiples of 32",
        scales.sizes()
    );
    ensure!(
        zeros.sizes() == scales.sizes(),
        "weight_zeros: the shape {} differs from that of the scales, {}",
        zeros.sizes(),
        scales.sizes()
    );
    let table = tensor_bytes(ctx, &table)?;
    let header = Header::read("packed_weight_qvals", &table)?;
    ensure!(header.kind == Kind::Embedding, "packed_weight_qvals: packed as {:?}", header.kind);
    header.expect_params("packed_weight_qvals", 0, &[1, BITS as i32, 32, 128])?;
    // The width is a multiple of 32.
    let row_bytes = width / 8 * BITS as usize;
    let (needed, actual) = (row_bytes as u128 * rows as u128, header.payload.len());
    ensure!(needed == actual as u128, "packed_weight_qvals: {needed} bytes expected, found {actual}");

    let out = outs.tensor(0)?;
    let list = read_indices(ctx, args, 5, out, [rows, width])?;
    let (scales, zeros) = (all_values::<f32>(ctx, &scales)?, all_values::<f32>(ctx, &zeros)?);
    let layouts = [128, 64, 32].map(|run| (run, Layout::new(BITS, run)));
    let low = if BITS == 8 { 0 } else { 1 << (BITS - 1) };
    let mut values = ctx.scratch::<u8>(width)?;
    write_row_major::<f32>(ctx, out, |out| {
        for (out, &row) in out.chunks_exact_mut(width).zip(&list) {
            unpack_row(&layouts, &header.payload[row * row_bytes..][..row_bytes], &mut values);
            let parameters = scales[row * groups..].iter().zip(&zeros[row * groups..]);
            let each = out.chunks_exact_mut(group).zip(values.chunks_exact(group)).zip(parameters);
            for ((out, values), (scale, zero)) in each {
                let number = |v: u8| f32::from((v as i8).wrapping_sub(low));
                out.iter_mut().zip(values).for_each(|(out, &v)| *out = (number(v) - zero) * scale);
            }
            pteron_pool::progress(width);
        }
        Ok(())
    })
}

/// Unpacks a row: runs of 128 values, then one of 64 and one of 32 if values are left.
fn unpack_row(layouts: &[(usize, Layout); 3], mut packed: &[u8], mut values: &mut [u8]) {
    for (run, layout) in layouts {
        let (now, later) = values.split_at_mut(values.len() / run * run);
        let (bytes, rest) = packed.split_at(layout.packed_len(now.len()));
        layout.unpack(bytes, now);
        (values, packed) = (later, rest);
    }
}

/// The dequantized rows, selected by the indices, of a product's packed weights.
fn shared_embedding<const BITS: u32>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
) -> Result<()> {
    let weights = packed_bytes(args, "packed_weights")?;
    let size = |arg: &'static str| to_positive(arg, args.int(arg)?);
    let (group, n, k) = (size("group_size")?, size("n")?, size("k")?);
    let weights = tensor_bytes(ctx, &weights)?;
    let packed = Packed::read_linear("packed_weights", &weights, BITS, [n, k, group])?;
    let out = outs.tensor(0)?;
    let list = read_indices(ctx, args, 4, out, [n, k])?;
    let height = packed.height();
    let mut strip = ctx.scratch::<f32>(height.saturating_mul(k))?;
    write_row_major::<f32>(ctx, out, |out| {
        for (out, &row) in out.chunks_exact_mut(k).zip(&list) {
            packed.dequantize(row / height, &mut strip);
            out.copy_from_slice(&strip[row % height * k..][..k]);
            pteron_pool::progress(height * k);
        }
        Ok(())
    })
}
