//! Constant, reflection and replication padding.

use crate::support::convert::fill_scalar;
use crate::support::copy::copy_into;
use crate::support::layout::Layout;
use crate::support::remap::remap;
use crate::support::rows::expect_type;
use pteron_operator::{Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, ensure};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::constant_pad_nd.out(Tensor self, SymInt[] pad, Scalar value=0, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        constant_pad,
    )
    .moves_elements()
    .any_layout(),
    Operator::new(
        "aten::reflection_pad1d.out(Tensor self, SymInt[2] padding, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| pad::<1>(c, a, o, true),
    ),
    Operator::new(
        "aten::reflection_pad2d.out(Tensor self, SymInt[4] padding, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| pad::<2>(c, a, o, true),
    ),
    Operator::new(
        "aten::reflection_pad3d.out(Tensor self, SymInt[6] padding, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| pad::<3>(c, a, o, true),
    ),
    Operator::new(
        "aten::replication_pad1d.out(Tensor self, SymInt[2] padding, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| pad::<1>(c, a, o, false),
    ),
    Operator::new(
        "aten::replication_pad2d.out(Tensor self, SymInt[4] padding, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| pad::<2>(c, a, o, false),
    ),
    Operator::new(
        "aten::replication_pad3d.out(Tensor self, SymInt[6] padding, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        |c, a, o| pad::<3>(c, a, o, false),
    ),
];

/// The size of a dimension after padding on both sides; negative padding crops.
fn padded_size(name: &str, size: usize, [before, after]: [i64; 2]) -> Result<usize> {
    let new = size as i128 + before as i128 + after as i128;
    usize::try_from(new).map_err(|_| {
        Error::invalid(format!("{name}: a dimension of size {size} padded by {before} and {after}"))
    })
}

/// The padding before and after dimension `dim`. `pad` has pairs for the last dimensions, beginning with the last one.
fn padding_of_dim(pad: &[i64], rank: usize, dim: usize) -> [i64; 2] {
    match pad.get(2 * (rank - 1 - dim)..) {
        Some([before, after, ..]) => [*before, *after],
        _ => [0, 0],
    }
}

fn constant_pad(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, pad) = (args.tensor("self")?, args.ints("pad")?);
    let rank = x.rank();
    ensure!(pad.len().is_multiple_of(2) && pad.len() / 2 <= rank, "pad: {pad:?} for a tensor of rank {rank}");
    let mut sizes = *x.sizes();
    for d in 0..rank {
        sizes[d] = padded_size("pad", sizes[d], padding_of_dim(pad, rank, d))?;
    }
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    out.resize(&sizes)?;
    fill_scalar(out, args.scalar("value")?)?;
    let (mut from, mut into) = (Layout::of_tensor(x.meta()), Layout::of_tensor(out.meta()));
    for d in 0..rank {
        let [before, after] = padding_of_dim(pad, rank, d);
        let cut = |by: i64| usize::try_from(by.saturating_neg()).unwrap_or(0);
        let len = from.sizes[d].saturating_sub(cut(before)).saturating_sub(cut(after));
        let start = |by: usize| if len == 0 { 0 } else { by };
        from = from.slice(d, start(cut(before)), len, 1);
        into = into.slice(d, start(usize::try_from(before).unwrap_or(0)), len, 1);
    }
    copy_into(&x, &from, out, &into)
}

/// The source index of element `i` of a dimension of size `size` with `before` elements of padding in front:
/// the padding mirrors the elements at the edge.
fn reflected_index(i: i64, before: i64, size: i64) -> i64 {
    let at = i - before;
    if at < 0 {
        -at
    } else if at < size {
        at
    } else {
        2 * (size - 1) - at
    }
}

/// Like [`reflected_index`], but the padding repeats the element at the edge.
fn replicated_index(i: i64, before: i64, size: i64) -> i64 {
    (i - before).clamp(0, size - 1)
}

/// Pads the last `N` dimensions of a tensor with `N + 1` or `N + 2` dimensions.
fn pad<const N: usize>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    reflect: bool,
) -> Result<()> {
    let (x, pad) = (args.tensor("self")?, args.ints("padding")?);
    let rank = x.rank();
    ensure!(pad.len() == 2 * N, "padding: expected {} numbers, found {pad:?}", 2 * N);
    ensure!(rank == N + 1 || rank == N + 2, "self: expected {} or {} dimensions, found {rank}", N + 1, N + 2);
    let mut sizes = *x.sizes();
    ensure!(!sizes[rank - N - 1..].contains(&0), "self: the shape {sizes} has nothing to pad with");
    let mut sides = [(0, 0); N];
    for (side, d) in sides.iter_mut().zip(rank - N..) {
        let (size, [before, after]) = (sizes[d] as i64, padding_of_dim(pad, rank, d));
        ensure!(
            !reflect || (before < size && after < size),
            "padding: {before} and {after} are not less than the size {size} of dimension {d}"
        );
        sizes[d] = padded_size("padding", sizes[d], [before, after])?;
        ensure!(sizes[d] > 0, "padding: nothing is left of dimension {d} of size {size}");
        *side = (before, size);
    }
    let out = outs.tensor(0)?;
    out.resize(&sizes)?;
    let source = if reflect { reflected_index } else { replicated_index };
    // Between the paddings, the elements of a row are those of the input.
    let (before, size) = sides[N - 1];
    let end = |at: i64| (at.max(0) as usize).min(sizes[rank - 1]);
    let run = end(before)..end(before.saturating_add(size));
    remap(ctx, &x, out, N, &|k, i| source(i as i64, sides[k].0, sides[k].1) as usize, run)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, ints, out, t};
    use pteron_operator::{Arg, Result};
    use pteron_tensor::ScalarType::Int;
    use pteron_tensor::{DimOrder, Tensor};

    fn go(name: &str, x: &Tensor, pad: &[i64], sizes: &[usize]) -> Result<Vec<i32>> {
        let mut args = vec![a(x), ints(pad)];
        if name == "aten::constant_pad_nd.out" {
            args.push(Arg::Int(9));
        }
        let r = call(name, &args, out(Int, sizes))?;
        assert_eq!(&**r.sizes(), sizes);
        Ok(r.storage::<i32>().unwrap().to_vec())
    }

    #[test]
    fn constant_padding_and_cropping() {
        let x = t(&[2, 2], &[1i32, 2, 3, 4]);
        let pad = |p: &[i64], s: &[usize]| go("aten::constant_pad_nd.out", &x, p, s);
        assert_eq!(pad(&[1, 0, 0, 1], &[3, 3]).unwrap(), [9, 1, 2, 9, 3, 4, 9, 9, 9]);
        assert_eq!(pad(&[-1, 1], &[2, 2]).unwrap(), [2, 9, 4, 9]);
        assert_eq!(pad(&[-2, 0], &[2, 0]).unwrap(), [0i32; 0]);
        for bad in [&[-3, 0][..], &[1], &[0; 6], &[i64::MAX, i64::MAX], &[i64::MIN, 0]] {
            assert!(pad(bad, &[4, 4]).is_err());
        }
    }

    #[test]
    fn reflection_and_replication_padding() {
        let x = t(&[1, 3], &[1i32, 2, 3]);
        let reflect = |p: &[i64], s: &[usize]| go("aten::reflection_pad1d.out", &x, p, s);
        assert_eq!(reflect(&[2, 1], &[1, 6]).unwrap(), [3, 2, 1, 2, 3, 2]);
        assert_eq!(reflect(&[-1, 2], &[1, 4]).unwrap(), [2, 3, 2, 1]);
        assert!(reflect(&[3, 0], &[1, 6]).is_err());
        assert_eq!(
            go("aten::replication_pad1d.out", &x, &[4, 1], &[1, 8]).unwrap(),
            [1, 1, 1, 1, 1, 2, 3, 3]
        );
        assert!(go("aten::replication_pad1d.out", &x, &[-4, 0], &[1, 1]).is_err());
        let y = t(&[1, 2, 1, 2], &[1i32, 2, 3, 4]).to_dim_order(DimOrder::channels_last(4)).unwrap();
        let r = go("aten::replication_pad2d.out", &y, &[1, 0, 0, 1], &[1, 2, 2, 3]).unwrap();
        assert_eq!(r, [1, 1, 2, 1, 1, 2, 3, 3, 4, 3, 3, 4]);
        assert!(
            go("aten::replication_pad2d.out", &t::<i32>(&[1, 0, 1, 1], &[]), &[0; 4], &[1, 0, 1, 1]).is_err()
        );
    }
}
