//! Concatenation, splitting and repetition.

use crate::support::convert::{convert, values, write};
use crate::support::copy::copy_into;
use crate::support::dims::{slice_range, to_shape, to_size, wrap_dim};
use crate::support::dtype::{conversion_type, dispatch};
use crate::support::layout::Layout;
use pteron_operator::{Args, DtypeSet, Error, KernelContext, Meaning, Operator, Outs, Result, ensure};
use pteron_tensor::{TensorView, TensorViewMut};
use smallvec::SmallVec;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::cat.out(Tensor[] tensors, int dim=0, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        cat,
    )
    .moves_elements()
    .any_layout()
    .means(|args| Some(Meaning::Concatenation(args.int("dim").ok()?))),
    Operator::new(
        "aten::stack.out(Tensor[] tensors, int dim=0, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        stack,
    )
    .moves_elements(),
    Operator::new(
        "aten::split_copy.Tensor_out(Tensor self, SymInt split_size, int dim=0, *, Tensor(a!)[] out) -> ()",
        DtypeSet::ALL,
        split,
    )
    .moves_elements(),
    Operator::new(
        "aten::split_with_sizes_copy.out(Tensor self, SymInt[] split_sizes, int dim=0, *, Tensor(a!)[] out) -> ()",
        DtypeSet::ALL,
        split_with_sizes,
    )
    .moves_elements(),
    Operator::new(
        "aten::slice_scatter.out(Tensor self, Tensor src, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        slice_scatter,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::repeat.out(Tensor self, SymInt[] repeats, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        repeat,
    )
    .moves_elements(),
];

/// Copies a view of a tensor to a view of an out, converting the elements if the types differ.
fn copy_converted(
    ctx: &KernelContext<'_>,
    from: &TensorView<'_>,
    view: &Layout,
    out: &mut TensorViewMut<'_>,
    into: &Layout,
) -> Result<()> {
    if from.dtype() == out.dtype() {
        return copy_into(from, view, out, into);
    }
    dispatch!("tensors", conversion_type(from.dtype(), out.dtype()), COMPUTE, C => {
        let all = values::<C>(ctx, from, view)?;
        write(ctx, &all, out, into)
    })
}

/// Concatenates tensors along a dimension. Tensors of shape `[0]` are ignored.
fn cat(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let tensors = args.tensors("tensors")?;
    let counts = |t: &&TensorView<'_>| **t.sizes() != [0];
    let Some(model) = tensors.iter().find(counts).or(tensors.first()) else {
        return Err(Error::invalid("tensors: the list is empty"));
    };
    ensure!(model.rank() > 0, "tensors: zero-dim tensors cannot be concatenated; use stack");
    let dim = wrap_dim("dim", args.int("dim")?, model.rank())?;
    let mut sizes = *model.sizes();
    sizes[dim] = 0;
    for (i, t) in tensors.iter().enumerate().filter(|(_, t)| counts(t)) {
        let fits =
            t.rank() == sizes.rank() && (0..sizes.rank()).all(|d| d == dim || t.sizes()[d] == sizes[d]);
        ensure!(
            fits,
            "tensors: number {i} has the shape {}, which differs from {} in more than dimension {dim}",
            t.sizes(),
            model.sizes()
        );
        sizes[dim] = sizes[dim]
            .checked_add(t.sizes()[dim])
            .ok_or_else(|| Error::invalid("tensors: the sum of their sizes overflows"))?;
    }
    let out = outs.tensor(0)?;
    out.resize(&sizes)?;
    let there: SmallVec<[TensorView<'_>; 8]> = tensors.iter().filter(counts).copied().collect();
    if copy_rows_of_pieces(ctx, &there, dim, out) {
        return Ok(());
    }
    let out_layout = Layout::of_tensor(out.meta());
    let mut at = 0;
    for t in tensors.iter().filter(counts) {
        let len = t.sizes()[dim];
        copy_converted(
            ctx,
            t,
            &Layout::of_tensor(t.meta()),
            out,
            &out_layout.slice(dim, at.min(sizes[dim].saturating_sub(1)), len, 1),
        )?;
        at += len;
    }
    Ok(())
}

/// Grain size: the smallest number of bytes worth waking a thread for.
const BYTES_PER_THREAD: usize = 1 << 16;

/// Concatenates tensors that have the result's type and layout: for each index of the dimensions outside `dim`, the
/// result has a row that consists of one contiguous piece of every tensor; threads share the rows. Returns `false` and
/// does nothing if types or layouts differ or there are fewer than two rows.
fn copy_rows_of_pieces(
    ctx: &KernelContext<'_>,
    tensors: &[TensorView<'_>],
    dim: usize,
    out: &mut TensorViewMut<'_>,
) -> bool {
    let meta = out.meta();
    let (order, sizes) = (*meta.dim_order(), *meta.sizes());
    let same = |t: &TensorView<'_>| t.dtype() == meta.dtype() && *t.meta().dim_order() == order;
    let Some(before) = order.iter().position(|&d| usize::from(d) == dim) else { return false };
    let rows: usize = order[..before].iter().map(|&d| sizes[usize::from(d)]).product();
    let bytes = meta.nbytes();
    if rows < 2 || bytes == 0 || !tensors.iter().all(same) {
        return false;
    }
    let row = bytes / rows;
    let pieces: SmallVec<[(&[u8], usize); 8]> =
        tensors.iter().map(|t| (t.bytes(), t.meta().nbytes() / rows)).collect();
    let grain = (BYTES_PER_THREAD / row).max(1);
    ctx.pool().parallel_chunks_mut(out.bytes_mut(), row, grain, &|i, mut row| {
        for &(bytes, piece) in &pieces {
            let (to, rest) = row.split_at_mut(piece);
            to.copy_from_slice(&bytes[i * piece..][..piece]);
            row = rest;
        }
    });
    true
}

/// Stacks tensors of the same shape along a new dimension.
fn stack(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let tensors = args.tensors("tensors")?;
    let Some(model) = tensors.first() else {
        return Err(Error::invalid("tensors: the list is empty"));
    };
    let dim = wrap_dim("dim", args.int("dim")?, model.rank() + 1)?;
    let mut sizes = *model.sizes();
    sizes.insert(dim, tensors.len())?;
    let out = outs.tensor(0)?;
    out.resize(&sizes)?;
    let out_layout = Layout::of_tensor(out.meta());
    for (i, t) in tensors.iter().enumerate() {
        ensure!(
            t.sizes() == model.sizes(),
            "tensors: number {i} has the shape {}, the first has {}",
            t.sizes(),
            model.sizes()
        );
        copy_converted(ctx, t, &Layout::of_tensor(t.meta()), out, &out_layout.select(dim, i))?;
    }
    Ok(())
}

/// Copies a view of argument 0 to each of the `count` outs.
fn scatter_views(
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    count: usize,
    mut view: impl FnMut(Layout, usize) -> Layout,
) -> Result<()> {
    let x = args.tensor("self")?;
    let outs = outs.list(0)?;
    ensure!(outs.len() == count, "out: {count} tensors result, but there are {} outs", outs.len());
    for (i, out) in outs.iter_mut().enumerate() {
        let view = view(Layout::of_tensor(x.meta()), i);
        crate::support::copy::copy_to(&x, &view, out)?;
    }
    Ok(())
}

/// The dimension given by an argument, and its size.
fn dim_size(args: &Args<'_>, arg: &'static str) -> Result<(usize, usize)> {
    let sizes = args.meta("self")?.sizes();
    ensure!(sizes.rank() > 0, "self: a zero-dim tensor cannot be split");
    let dim = wrap_dim(arg, args.int(arg)?, sizes.rank())?;
    Ok((dim, sizes[dim]))
}

/// Splits a tensor along a dimension into pieces of `split_size`; the last piece may be smaller.
fn split(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dim, size) = dim_size(args, "dim")?;
    let each = to_size("split_size", args.int("split_size")?)?;
    ensure!(each > 0 || size == 0, "split_size: pieces of size 0 of a dimension of size {size}");
    let count = if size == 0 { 1 } else { size.div_ceil(each) };
    scatter_views(args, outs, count, |x, i| {
        if size == 0 { x } else { x.slice(dim, i * each, each.min(size - i * each), 1) }
    })
}

/// Splits a tensor along a dimension into pieces of given sizes, which must add up to the dimension's size.
fn split_with_sizes(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dim, size) = dim_size(args, "dim")?;
    let sizes: SmallVec<[usize; 8]> =
        args.ints("split_sizes")?.iter().map(|&s| to_size("split_sizes", s)).collect::<Result<_>>()?;
    let sum = sizes.iter().try_fold(0usize, |n, &s| n.checked_add(s));
    ensure!(sum == Some(size), "split_sizes: {sizes:?} do not add up to the dimension's size {size}");
    let mut at = 0;
    scatter_views(args, outs, sizes.len(), |x, i| {
        let start = if sizes[i] == 0 { 0 } else { at };
        at += sizes[i];
        x.slice(dim, start, sizes[i], 1)
    })
}

/// A copy of `self` in which a slice is replaced by `src`.
fn slice_scatter(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (dim, size) = dim_size(args, "dim")?;
    let step = args.int("step")?;
    let (start, len) = slice_range(args.optional_int("start")?, args.optional_int("end")?, step, size)?;
    convert(ctx, args, outs, "self", args.meta("self")?.sizes())?;
    let (src, out) = (args.tensor("src")?, outs.tensor(0)?);
    let into = Layout::of_tensor(out.meta()).slice(dim, start, len, if len > 1 { step as isize } else { 1 });
    let from = Layout::of_tensor(src.meta()).expand(&into.sizes)?;
    copy_converted(ctx, &src, &from, out, &into)
}

/// Repeats the tensor along each dimension; if there are more repeats than dimensions, dimensions are added in front.
fn repeat(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, repeats) = (args.tensor("self")?, to_shape("repeats", args.ints("repeats")?)?);
    let front = repeats.rank().checked_sub(x.rank()).ok_or_else(|| {
        Error::invalid(format!("repeats: {repeats} has fewer dimensions than the shape {}", x.sizes()))
    })?;
    let mut sizes = repeats;
    for (d, &s) in x.sizes().iter().enumerate() {
        sizes[front + d] = repeats[front + d]
            .checked_mul(s)
            .ok_or_else(|| Error::invalid(format!("repeats: {repeats} times {} overflows", x.sizes())))?;
    }
    let out = outs.tensor(0)?;
    out.resize(&sizes)?;
    if out.numel() == 0 {
        return Ok(());
    }
    // Each repeated dimension becomes two: the repeats, with stride 0, and the elements.
    let mut from = Layout::of_tensor(x.meta());
    for d in (0..repeats.rank()).rev().filter(|&d| repeats[d] != 1) {
        from = from.insert(d.saturating_sub(front), repeats[d], 0)?;
    }
    let into = Layout::of_tensor(out.meta());
    copy_into(&x, &from, out, &into)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_list, int, ints, list, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Float, Int};
    use pteron_tensor::{DimOrder, Tensor};

    fn numbered(sizes: &[usize]) -> Tensor {
        let n = sizes.iter().product::<usize>() as i32;
        t(sizes, &(0..n).collect::<Vec<_>>())
    }

    fn elements(t: &Tensor) -> Vec<i32> {
        t.to_dim_order(DimOrder::contiguous(t.rank())).unwrap().as_slice().unwrap().to_vec()
    }

    #[test]
    fn concatenation_stacking_and_splitting() {
        let (x, y, none) = (numbered(&[2, 2]), t(&[2, 1], &[7i32, 8]), t::<i32>(&[0], &[]));
        let r = call("aten::cat.out", &[list(&[&x, &none, &y]), int(-1)], out(Int, &[2, 3])).unwrap();
        assert_eq!(elements(&r), [0, 1, 7, 2, 3, 8]);
        // Enough rows that several threads share them.
        let (wide, narrow) = (numbered(&[3, 700, 40]), numbered(&[3, 700, 9]));
        let r = call("aten::cat.out", &[list(&[&wide, &narrow, &wide]), int(2)], out(Int, &[3, 700, 89]));
        let r = elements(&r.unwrap());
        for (i, row) in r.chunks(89).enumerate() {
            let i = i as i32;
            let expected = (40 * i..40 * i + 40).chain(9 * i..9 * i + 9).chain(40 * i..40 * i + 40);
            assert!(row.iter().copied().eq(expected), "row {i}");
        }
        let f = t(&[1, 2], &[0.5f32, 1.5]);
        let r = call("aten::cat.out", &[list(&[&x, &f])], out(Float, &[3, 2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[0.0, 1.0, 2.0, 3.0, 0.5, 1.5]);
        assert!(call("aten::cat.out", &[list(&[&x, &y])], out(Int, &[4, 2])).is_err());
        assert!(call("aten::cat.out", &[list(&[])], out(Int, &[4, 2])).is_err());
        let r = call("aten::stack.out", &[list(&[&x, &x]), int(-1)], out(Int, &[2, 2, 2])).unwrap();
        assert_eq!(elements(&r), [0, 0, 1, 1, 2, 2, 3, 3]);
        let outs = vec![out(Int, &[2, 2]), out(Int, &[2, 1])];
        let r =
            call_list("aten::split_copy.Tensor_out", &[a(&numbered(&[2, 3])), int(2), int(1)], outs).unwrap();
        assert_eq!((elements(&r[0]), elements(&r[1])), (vec![0, 1, 3, 4], vec![2, 5]));
        let outs = vec![out(Int, &[0, 2]), out(Int, &[2, 2])];
        let args = [a(&x), ints(&[0, 2])];
        assert_eq!(
            elements(&call_list("aten::split_with_sizes_copy.out", &args, outs).unwrap()[1]),
            [0, 1, 2, 3]
        );
        let args = [a(&x), ints(&[1, 2])];
        assert!(call_list("aten::split_with_sizes_copy.out", &args, vec![out(Int, &[2, 2])]).is_err());
    }

    #[test]
    fn slice_scatter_and_repeat() {
        let x = numbered(&[2, 3]);
        let src = t(&[2, 2], &[10i32, 11, 12, 13]);
        let args = [a(&x), a(&src), int(1), int(0), Arg::None, int(2)];
        let r = call("aten::slice_scatter.out", &args, out(Int, &[2, 3])).unwrap();
        assert_eq!(elements(&r), [10, 1, 11, 12, 4, 13]);
        let r = call("aten::repeat.out", &[a(&numbered(&[2])), ints(&[2, 2])], out(Int, &[2, 4])).unwrap();
        assert_eq!(elements(&r), [0, 1, 0, 1, 0, 1, 0, 1]);
        let r = call("aten::repeat.out", &[a(&x), ints(&[2, 0])], out(Int, &[4, 3])).unwrap();
        assert_eq!(r.numel(), 0);
        assert!(call("aten::repeat.out", &[a(&x), ints(&[1 << 62, 1 << 62])], out(Int, &[4, 3])).is_err());
    }
}
