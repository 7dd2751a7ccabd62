//! Embeddings from quantized tables, whose values are bytes or packed 4-bit or 2-bit values.

use crate::support::convert::{all_values, indices};
use crate::support::dtype::expect_dtype;
use crate::support::quantized::check_zero_point_shape;
use crate::support::rows::{tensor_bytes, write_values};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::ScalarType;

/// Types of tables of 8-bit values.
const BYTES: DtypeSet = DtypeSet::of(&[ScalarType::Byte, ScalarType::Char]);
/// The type of packed tables.
const PACKED: DtypeSet = DtypeSet::of(&[ScalarType::Byte]);

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "quantized_decomposed::embedding_byte.out(Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, int weight_quant_min, int weight_quant_max, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        embedding::<8>,
    ),
    Operator::new(
        "quantized_decomposed::embedding_byte.dtype_out(Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, int weight_quant_min, int weight_quant_max, Tensor indices, *, ScalarType? dtype=None, Tensor(a!) out) -> Tensor(a!)",
        BYTES,
        embedding::<8>,
    ),
    Operator::new(
        "quantized_decomposed::embedding_4bit.out(Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, int weight_quant_min, int weight_quant_max, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        PACKED,
        embedding::<4>,
    ),
    Operator::new(
        "quantized_decomposed::embedding_4bit.dtype_out(Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, int weight_quant_min, int weight_quant_max, Tensor indices, ScalarType? dtype=None, *, Tensor(a!) out) -> Tensor(a!)",
        PACKED,
        embedding::<4>,
    ),
    Operator::new(
        "quantized_decomposed::embedding_2bit.out(Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, int weight_quant_min, int weight_quant_max, Tensor indices, *, Tensor(a!) out) -> Tensor(a!)",
        PACKED,
        embedding::<2>,
    ),
    Operator::new(
        "quantized_decomposed::embedding_2bit.dtype_out(Tensor weight, Tensor weight_scales, Tensor? weight_zero_points, int weight_quant_min, int weight_quant_max, Tensor indices, ScalarType? dtype=None, *, Tensor(a!) out) -> Tensor(a!)",
        PACKED,
        embedding::<2>,
    ),
];

/// Value `j` of a row of `BITS`-bit values. Of two 4-bit values the first is in the high half of the byte; of four
/// 2-bit values the first is in the lowest bits. Both are stored with an offset of half their range.
fn unpack_value<const BITS: u32>(row: &[u8], j: usize, signed: bool) -> f32 {
    match BITS {
        8 if signed => row[j] as i8 as f32,
        8 => row[j] as f32,
        4 => (row[j / 2] >> (4 - j % 2 * 4) & 15) as f32 - 8.0,
        _ => (row[j / 4] >> (j % 4 * 2) & 3) as f32 - 2.0,
    }
}

/// The dequantized rows, `(value - zero_point) * scale`, of a table selected by indices. A row has one scale and
/// one zero point, or one for each of its groups.
fn embedding<const BITS: u32>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (table, scales, zeros) =
        (args.tensor("weight")?, args.tensor("weight_scales")?, args.optional_tensor("weight_zero_points")?);
    let (min, max) = (args.int("weight_quant_min")?, args.int("weight_quant_max")?);
    let list = args.tensor("indices")?;
    expect_dtype("weight", table.dtype(), if BITS == 8 { BYTES } else { PACKED })?;
    ensure!(min <= max, "weight_quant_min: {min} is greater than weight_quant_max, {max}");
    let &[rows, columns] = &**table.sizes() else {
        return Err(pteron_operator::Error::invalid(format!(
            "weight: expected a matrix, found {}",
            table.meta()
        )));
    };
    let width = columns.saturating_mul(8 / BITS as usize);
    let groups = match **scales.sizes() {
        [n] if n == rows => 1,
        [n, groups] if n == rows && groups > 0 && width.is_multiple_of(groups) => groups,
        _ => 0,
    };
    ensure!(
        groups > 0,
        "weight_scales: the shape {} does not suit {rows} rows of {width} numbers",
        scales.sizes()
    );
    check_zero_point_shape(zeros.as_ref(), &scales)?;
    let out = outs.tensor(0)?;
    expect_dtype("out", out.dtype(), DtypeSet::FLOATING)?;
    if let Some(dtype) = args.optional_dtype("dtype")? {
        ensure!(dtype == out.dtype(), "out: expected a tensor of {dtype}, found one of {}", out.dtype());
    }
    let at = indices(ctx, "indices", &list)?;
    let bad = at.iter().find(|&&i| i < 0 || i as u64 >= rows as u64);
    ensure!(bad.is_none(), "indices: {} is out of range for {rows} rows", bad.unwrap_or(&0));
    let mut sizes = *list.sizes();
    sizes.insert(sizes.rank(), width)?;
    sizes.numel()?;
    out.resize(&sizes)?;

    let bytes = tensor_bytes(ctx, &table)?;
    let scales = all_values::<f32>(ctx, &scales)?;
    let zeros = zeros.map(|z| all_values::<f32>(ctx, &z)).transpose()?;
    let signed = table.dtype() == ScalarType::Char;
    let size = width / groups;
    write_values::<f32>(ctx, out, |out| {
        for (out, &i) in out.chunks_exact_mut(width.max(1)).zip(at.iter()) {
            let row = &bytes[i as usize * columns..][..columns];
            for (g, out) in out.chunks_exact_mut(size).enumerate() {
                let group = i as usize * groups + g;
                let (scale, zero) = (scales[group], zeros.as_ref().map_or(0.0, |z| z[group]));
                for (j, out) in out.iter_mut().enumerate() {
                    *out = (unpack_value::<BITS>(row, g * size + j, signed) - zero) * scale;
                }
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, out, t};
    use pteron_operator::{Arg, Result};
    use pteron_tensor::ScalarType::{Float, Half, Int};
    use pteron_tensor::Tensor;

    fn embed(
        name: &str,
        table: &Tensor,
        scales: &Tensor,
        zeros: Option<&Tensor>,
        to: Tensor,
    ) -> Result<Tensor> {
        let at = t(&[2], &[1i64, 0]);
        let args = [a(table), a(scales), zeros.map_or(Arg::None, a), int(-8), int(7), a(&at)];
        call(&format!("quantized_decomposed::{name}.out"), &args, to)
    }

    #[test]
    fn packed_values() {
        let table = t(&[2, 1], &[0x8fu8, 0b11_10_01_00]);
        let scales = t(&[2], &[2f32, 1.0]);
        let four = embed("embedding_4bit", &table, &scales, None, out(Float, &[2, 2])).unwrap();
        assert_eq!(four.storage::<f32>().unwrap(), &[6.0, -4.0, 0.0, 14.0]);
        let two = embed("embedding_2bit", &table, &scales, None, out(Half, &[2, 4])).unwrap();
        let two: Vec<f32> = two.storage::<pteron_tensor::f16>().unwrap().iter().map(|h| h.to_f32()).collect();
        assert_eq!(two, [-2.0, -1.0, 0.0, 1.0, 2.0, 2.0, -4.0, 0.0]);
    }

    #[test]
    fn groups_and_zero_points() {
        let table = t(&[2, 2], &[1i8, -2, 3, 4]);
        let (scales, zeros) = (t(&[2, 2], &[1f32, 10.0, 0.5, 2.0]), t(&[2, 2], &[0f32, 1.0, 1.0, 0.0]));
        let byte = embed("embedding_byte", &table, &scales, Some(&zeros), out(Float, &[2, 2])).unwrap();
        assert_eq!(byte.storage::<f32>().unwrap(), &[1.0, 8.0, 1.0, -30.0]);
        for (scales, to) in [
            (t(&[3], &[0f32; 3]), out(Float, &[2, 2])),
            (t(&[2, 0], &[0f32; 0]), out(Float, &[2, 2])),
            (t(&[2, 3], &[0f32; 6]), out(Float, &[2, 2])),
            (t(&[2], &[0f32; 2]), out(Int, &[2, 2])),
        ] {
            assert!(embed("embedding_byte", &table, &scales, None, to).is_err());
        }
    }
}
