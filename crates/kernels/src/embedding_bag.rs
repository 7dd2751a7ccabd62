//! Embedding bags, and the gradient of an embedding table.

use crate::support::convert::{all_values, indices};
use crate::support::dims::to_size;
use crate::support::dtype::{compute_type, dispatch};
use crate::support::rows::{expect_type, write_values};
use pteron_operator::{Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::ScalarType;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::_embedding_bag.out(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2, Tensor(d!) out3) -> (Tensor(a!), Tensor(b!), Tensor(c!), Tensor(d!))",
        DtypeSet::FLOATING,
        embedding_bag,
    ),
    Operator::new(
        "aten::_embedding_bag_forward_only.out(Tensor weight, Tensor indices, Tensor offsets, bool scale_grad_by_freq=False, int mode=0, bool sparse=False, Tensor? per_sample_weights=None, bool include_last_offset=False, int padding_idx=-1, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2, Tensor(d!) out3) -> (Tensor(a!), Tensor(b!), Tensor(c!), Tensor(d!))",
        DtypeSet::FLOATING,
        embedding_bag,
    ),
    Operator::new(
        "aten::embedding_dense_backward.out(Tensor grad_output, Tensor indices, SymInt num_weights, SymInt padding_idx, bool scale_grad_by_freq, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        embedding_dense_backward,
    ),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Sum,
    Mean,
    Max,
}

/// Writes one of the outs that only the gradient needs. Their sizes depend on which of PyTorch's kernels
/// would run: an out with other sizes that cannot be resized is filled with zeros.
fn write_gradient_info(
    ctx: &KernelContext<'_>,
    outs: &mut Outs<'_>,
    index: usize,
    sizes: &[usize],
    values: &[i64],
) -> Result<()> {
    let out = outs.tensor(index)?;
    if out.rank() != sizes.len() || out.resize(sizes).is_err() {
        out.bytes_mut().fill(0);
        return Ok(());
    }
    write_values::<i64>(ctx, out, |to| {
        to.copy_from_slice(values);
        Ok(())
    })
}

/// The sum, mean or maximum of the rows of `weight` selected by each bag of indices. A bag extends from
/// its offset to the next; `padding_idx`, unless negative, is a row that is ignored.
fn embedding_bag(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (weight, list, offsets) = (args.tensor("weight")?, args.tensor("indices")?, args.tensor("offsets")?);
    let mode = match args.int("mode")? {
        0 => Mode::Sum,
        1 => Mode::Mean,
        2 => Mode::Max,
        other => return Err(Error::invalid(format!("mode: {other} is not one of 0, 1, 2"))),
    };
    let (scales, padding) = (args.optional_tensor("per_sample_weights")?, args.int("padding_idx")?);
    let &[rows, width] = &**weight.sizes() else {
        return Err(Error::invalid(format!("weight: expected a matrix, found {}", weight.meta())));
    };
    ensure!(list.rank() == 1, "indices: expected one dimension, found {}", list.meta());
    ensure!(offsets.rank() == 1, "offsets: expected one dimension, found {}", offsets.meta());
    ensure!(padding < rows as i64, "padding_idx: {padding} of {rows} rows");
    if let Some(s) = &scales {
        ensure!(mode == Mode::Sum, "per_sample_weights: only the sum takes weights");
        ensure!(
            s.sizes() == list.sizes(),
            "per_sample_weights: expected the shape {}, found {}",
            list.sizes(),
            s.sizes()
        );
        expect_type("per_sample_weights", weight.dtype(), s.dtype())?;
    }
    let at = indices(ctx, "indices", &list)?;
    let starts = indices(ctx, "offsets", &offsets)?;
    let bad = at.iter().find(|&&i| i < 0 || i as u64 >= rows as u64);
    ensure!(bad.is_none(), "indices: {} is out of range for {rows} rows", bad.unwrap_or(&0));
    let ordered = starts.windows(2).all(|w| w[0] <= w[1]) && starts.first().is_none_or(|&s| s == 0);
    let within = starts.last().is_none_or(|&s| s as u64 <= at.len() as u64);
    ensure!(
        ordered && within,
        "offsets: expected 0 first, then none less than the one before, at most {}",
        at.len()
    );
    let last = args.bool("include_last_offset")?;
    ensure!(!last || !starts.is_empty(), "offsets: the last offset is missing");
    let bags = starts.len() - last as usize;
    // A plain sum does not record the bag of each index. Only in a plain sum are indices after the last
    // offset (with `include_last_offset`) ignored; otherwise they belong to the last bag.
    let plain = mode == Mode::Sum && padding < 0 && compute_type(weight.dtype()) == ScalarType::Float;
    let range = |b: usize| {
        let end = if b + 1 == bags && !plain { None } else { starts.get(b + 1) };
        starts[b] as usize..end.map_or(at.len(), |&e| e as usize)
    };
    let counts = |i: &usize| padding < 0 || at[*i] != padding;

    let out = outs.tensor(0)?;
    expect_type("out0", weight.dtype(), out.dtype())?;
    out.resize(&[bags, width])?;
    let mut largest = ctx.scratch::<i64>(if mode == Mode::Max { bags * width } else { 0 })?;
    largest.fill(0);
    dispatch!("weight", compute_type(weight.dtype()), COMPUTE_FLOAT, C => {
        let table = all_values::<C>(ctx, &weight)?;
        let scales = scales.as_ref().map(|s| all_values::<C>(ctx, s)).transpose()?;
        write_values::<C>(ctx, out, |out| {
            out.fill(0.0);
            for b in 0..bags {
                let out = &mut out[b * width..][..width];
                let mut n = 0usize;
                for i in range(b).filter(counts) {
                    let row = &table[at[i] as usize * width..][..width];
                    let scale = scales.as_ref().map_or(1.0, |s| s[i]);
                    pteron_pool::progress(width);
                    for (j, (out, &x)) in out.iter_mut().zip(row).enumerate() {
                        if mode != Mode::Max {
                            *out += x * scale;
                        } else if n == 0 || x > *out {
                            *out = x;
                            largest[b * width + j] = at[i];
                        }
                    }
                    n += 1;
                }
                if mode == Mode::Mean && n > 0 {
                    out.iter_mut().for_each(|x| *x /= n as C);
                }
            }
            Ok(())
        })?;
    });

    let mut bag_of = ctx.scratch::<i64>(if plain { 0 } else { at.len() })?;
    let mut sizes = ctx.scratch::<i64>(bags)?;
    for b in 0..bags {
        sizes[b] = if mode == Mode::Sum { 0 } else { range(b).filter(counts).count() as i64 };
        if !plain {
            bag_of[range(b)].fill(b as i64);
        }
    }
    write_gradient_info(ctx, outs, 1, &[bag_of.len()], &bag_of)?;
    write_gradient_info(ctx, outs, 2, &[bags], &sizes)?;
    match mode {
        Mode::Max => write_gradient_info(ctx, outs, 3, &[bags, width], &largest),
        _ => write_gradient_info(ctx, outs, 3, &[bags], &sizes),
    }
}

/// The gradient of a table of `num_weights` rows, given the gradients of the rows that the indices selected.
fn embedding_dense_backward(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (grad, list) = (args.tensor("grad_output")?, args.tensor("indices")?);
    let (rows, padding, by_frequency) = (
        to_size("num_weights", args.int("num_weights")?)?,
        args.int("padding_idx")?,
        args.bool("scale_grad_by_freq")?,
    );
    let width = grad.sizes().last().copied().unwrap_or(0);
    ensure!(
        grad.rank() == list.rank() + 1 && grad.sizes()[..list.rank()] == **list.sizes(),
        "grad_output: the shape {} does not go with that of the indices, {}",
        grad.sizes(),
        list.sizes()
    );
    let at = indices(ctx, "indices", &list)?;
    let bad = at.iter().find(|&&i| i < 0 || i as u64 >= rows as u64);
    ensure!(bad.is_none(), "indices: {} is out of range for {rows} rows", bad.unwrap_or(&0));
    let out = outs.tensor(0)?;
    expect_type("out", grad.dtype(), out.dtype())?;
    out.resize(&[rows, width])?;
    let mut counts = ctx.scratch::<i64>(if by_frequency { rows } else { 0 })?;
    counts.fill(0);
    if by_frequency {
        at.iter().for_each(|&i| counts[i as usize] += 1);
    }
    dispatch!("grad_output", compute_type(grad.dtype()), COMPUTE_FLOAT, C => {
        let grad = all_values::<C>(ctx, &grad)?;
        write_values::<C>(ctx, out, |out| {
            out.fill(0.0);
            for (k, &i) in at.iter().enumerate().filter(|(_, i)| **i != padding) {
                let scale = counts.get(i as usize).map_or(1.0, |&n| 1.0 / n as C);
                let row = &mut out[i as usize * width..][..width];
                row.iter_mut().zip(&grad[k * width..][..width]).for_each(|(o, &g)| *o += g * scale);
            }
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, out, t};
    use pteron_operator::{Arg, Result};
    use pteron_tensor::ScalarType::{Float, Long};
    use pteron_tensor::Tensor;

    fn bags(indices: &[i64], offsets: &[i64], mode: i64, padding: i64) -> Result<[Tensor; 4]> {
        let weight = t(&[3, 2], &[1f32, 2.0, 3.0, 0.0, 5.0, 6.0]);
        let (i, o) = (t(&[indices.len()], indices), t(&[offsets.len()], offsets));
        let no = Arg::Bool(false);
        let args = [a(&weight), a(&i), a(&o), no.clone(), int(mode), no.clone(), Arg::None, no, int(padding)];
        let largest = if mode == 2 { out(Long, &[2, 2]) } else { out(Long, &[2]) };
        let outs = [out(Float, &[2, 2]), out(Long, &[4]), out(Long, &[2]), largest];
        call_many("aten::_embedding_bag.out", &args, outs)
    }

    #[test]
    fn bags_are_reduced() {
        let of = |mode, padding| bags(&[0, 1, 2, 1], &[0, 3], mode, padding).unwrap();
        assert_eq!(of(0, -1)[0].storage::<f32>().unwrap(), &[9.0, 8.0, 3.0, 0.0]);
        let [v, which, sizes, _] = of(1, 1);
        assert_eq!(v.storage::<f32>().unwrap(), &[3.0, 4.0, 0.0, 0.0]);
        assert_eq!(which.storage::<i64>().unwrap(), &[0, 0, 0, 1]);
        assert_eq!(sizes.storage::<i64>().unwrap(), &[2, 0]);
        let [v, .., largest] = of(2, -1);
        assert_eq!(v.storage::<f32>().unwrap(), &[5.0, 6.0, 3.0, 0.0]);
        assert_eq!(largest.storage::<i64>().unwrap(), &[2, 2, 1, 1]);
        for (indices, offsets) in
            [([0, 3], [0, 1]), ([0, -1], [0, 1]), ([0, 1], [1, 1]), ([0, 1], [0, 3]), ([0, 1], [0, -1])]
        {
            assert!(bags(&indices, &offsets, 0, -1).is_err());
        }
    }

    #[test]
    fn gradients_are_added_to_the_rows_of_the_table() {
        let (g, i) = (t(&[3, 1], &[1f32, 2.0, 4.0]), t(&[3], &[1i64, 1, 0]));
        let back = |rows, padding, frequency| {
            let args = [a(&g), a(&i), int(rows), int(padding), Arg::Bool(frequency)];
            call("aten::embedding_dense_backward.out", &args, out(Float, &[3, 1]))
        };
        assert_eq!(back(3, -1, false).unwrap().storage::<f32>().unwrap(), &[4.0, 3.0, 0.0]);
        assert_eq!(back(2, 0, true).unwrap().storage::<f32>().unwrap(), &[0.0, 1.5]);
        assert!(
            back(1, -1, false).is_err() && back(-1, -1, false).is_err() && back(i64::MAX, -1, true).is_err()
        );
    }
}
