//! Copies that rearrange elements: rolls, unbinding, triangles, shuffles, views as complex or real.

use crate::support::copy::{copy_into, copy_to};
use crate::support::dims::{to_positive, wrap_dim};
use crate::support::layout::Layout;
use crate::support::map::{Input, elementwise, map};
use crate::support::rows::{by_size, expect_type, tensor_bytes, write_bytes};
use pteron_operator::{Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{ScalarType, Shape, TensorView, TensorViewMut};
use smallvec::SmallVec;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::roll.out(Tensor self, SymInt[1] shifts, int[1] dims=[], *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        roll,
    ),
    Operator::new(
        "aten::unbind_copy.int_out(Tensor self, int dim=0, *, Tensor(a!)[] out) -> ()",
        DtypeSet::ALL,
        unbind,
    )
    .moves_elements(),
    Operator::new(
        "aten::tril.out(Tensor self, SymInt diagonal=0, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        tril,
    ),
    Operator::new(
        "aten::triu.out(Tensor self, SymInt diagonal=0, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        triu,
    ),
    Operator::new(
        "aten::pixel_shuffle.out(Tensor self, int upscale_factor, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        pixel_shuffle,
    )
    .moves_elements(),
    Operator::new(
        "aten::pixel_unshuffle.out(Tensor self, int downscale_factor, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        pixel_unshuffle,
    )
    .moves_elements(),
    Operator::new(
        "aten::channel_shuffle.out(Tensor self, SymInt groups, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        channel_shuffle,
    ),
    Operator::new(
        "preprocess::tile_crop.out(Tensor input, int tile_size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        tile_crop,
    )
    .moves_elements(),
    Operator::new(
        "aten::view_as_real_copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::COMPLEX,
        view_as_real,
    ),
    Operator::new(
        "aten::view_as_complex_copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        view_as_complex,
    ),
    Operator::new(
        "aten::_conj_physical.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        conj,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::conj_physical.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        conj,
    )
    .in_place(&["self"]),
];

/// Shifts elements along dimensions with wrap-around; without dimensions, shifts them in row-major order.
fn roll(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, shifts, dims) = (args.tensor("self")?, args.ints("shifts")?, args.ints("dims")?);
    let mut from = Layout::of_tensor(x.meta());
    let out = outs.tensor(0)?;
    out.resize(x.sizes())?;
    let mut into = Layout::of_tensor(out.meta());
    let mut by: SmallVec<[usize; 8]> = SmallVec::from_elem(0, x.rank().max(1));
    if dims.is_empty() {
        ensure!(shifts.len() == 1, "shifts: expected one number, since there are no dims, found {shifts:?}");
        let flat = Shape::new(&[x.numel()])?;
        match (from.reshape(&flat), into.reshape(&flat)) {
            (Some(a), Some(b)) if x.numel() > 0 => {
                (from, into) = (a, b);
                by[0] = shifts[0].rem_euclid(x.numel() as i64) as usize;
            }
            _ => return roll_flat(&x, out, shifts[0]),
        }
    } else {
        ensure!(shifts.len() == dims.len(), "shifts: {shifts:?} for the dims {dims:?}");
        for (&shift, &dim) in shifts.iter().zip(dims) {
            let d = wrap_dim("dims", dim, x.rank())?;
            let size = from.sizes.get(d).map_or(1, |&n| n.max(1)) as i64;
            by[d] = ((by[d] as i64 + shift.rem_euclid(size)) % size) as usize;
        }
    }
    roll_dims(&x, from, out, into, &by, 0)
}

/// Copies the two parts of each rolled dimension, starting with `dim`.
fn roll_dims(
    x: &TensorView<'_>,
    from: Layout,
    out: &mut TensorViewMut<'_>,
    into: Layout,
    by: &[usize],
    dim: usize,
) -> Result<()> {
    match (dim..from.rank()).find(|&d| by[d] != 0) {
        None => copy_into(x, &from, out, &into),
        Some(d) => {
            let (n, k) = (from.sizes[d], by[d]);
            roll_dims(x, from.slice(d, 0, n - k, 1), out, into.slice(d, k, n - k, 1), by, d + 1)?;
            roll_dims(x, from.slice(d, n - k, k, 1), out, into.slice(d, 0, k, 1), by, d + 1)
        }
    }
}

/// [`roll`] without dimensions, for any layout.
fn roll_flat(x: &TensorView<'_>, out: &mut TensorViewMut<'_>, shift: i64) -> Result<()> {
    expect_type("out", x.dtype(), out.dtype())?;
    let n = x.numel();
    if n == 0 {
        return Ok(());
    }
    let by = shift.rem_euclid(n as i64) as usize;
    let (from, into) = (Layout::of_tensor(x.meta()).walk(), Layout::of_tensor(out.meta()).walk());
    by_size!(x.dtype().size(), E => {
        let (src, dst): (&[E], &mut [E]) = (bytemuck::cast_slice(x.bytes()), bytemuck::cast_slice_mut(out.bytes_mut()));
        for i in 0..n {
            dst[into.offset_at((i + by) % n)] = src[from.offset_at(i)];
            pteron_pool::progress(1);
        }
    });
    Ok(())
}

/// Copies each slice of a dimension to a separate tensor.
fn unbind(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    ensure!(x.rank() > 0, "self: a zero-dim tensor cannot be unbound");
    let layout = Layout::of_tensor(x.meta());
    let dim = wrap_dim("dim", args.int("dim")?, x.rank())?;
    let outs = outs.list(0)?;
    ensure!(
        outs.len() == layout.sizes[dim],
        "out: {} tensors for a dimension of size {}",
        outs.len(),
        layout.sizes[dim]
    );
    outs.iter_mut().enumerate().try_for_each(|(i, out)| copy_to(&x, &layout.select(dim, i), out))
}

/// The elements on and below a diagonal, zero elsewhere.
fn tril(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    keep_triangle(ctx, args, outs, |width, start| 0..start.saturating_add(1).clamp(0, width))
}

/// The elements on and above a diagonal, zero elsewhere.
fn triu(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    keep_triangle(ctx, args, outs, |width, start| start.clamp(0, width)..width)
}

/// Keeps the columns `keep(width, start)` of each row and zeros the rest; `start` is the column of the diagonal.
fn keep_triangle(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    keep: impl Fn(i64, i64) -> std::ops::Range<i64>,
) -> Result<()> {
    let (x, diagonal) = (args.tensor("self")?, args.int("diagonal")?);
    let &[.., height, width] = &**x.sizes() else {
        return Err(Error::invalid(format!("self: expected at least two dimensions, found {}", x.rank())));
    };
    let out = outs.tensor(0)?;
    out.resize(x.sizes())?;
    expect_type("out", x.dtype(), out.dtype())?;
    if x.numel() == 0 {
        return Ok(());
    }
    let (from, size) = (tensor_bytes(ctx, &x)?, x.dtype().size());
    write_bytes(ctx, out, |to| {
        let rows = to.chunks_exact_mut(width * size).zip(from.chunks_exact(width * size));
        for (r, (to, from)) in rows.enumerate() {
            let columns = keep(width as i64, ((r % height) as i64).saturating_add(diagonal));
            let columns = columns.start as usize * size..columns.end as usize * size;
            to[..columns.start].fill(0);
            to[columns.end..].fill(0);
            to[columns.clone()].copy_from_slice(&from[columns]);
            pteron_pool::progress(width);
        }
        Ok(())
    })
}

/// Splits a dimension of a layout into two; `inner`, the size of the inner one, must divide the dimension's size.
fn split_dim(x: Layout, dim: usize, inner: usize) -> Result<Layout> {
    let (size, stride) = (x.sizes[dim], x.strides()[dim]);
    x.slice(dim, 0, size / inner, inner as isize).insert(dim + 1, inner, stride)
}

/// Permutes the dimensions from `first` on; `rest` lists them relative to `first`. Leading dimensions keep their order.
fn permute_from(x: &Layout, first: usize, rest: &[usize]) -> Layout {
    let dims: SmallVec<[usize; 8]> = (0..first).chain(rest.iter().map(|&d| first + d)).collect();
    x.permute(&dims)
}

/// The names, in different schemas, of the factor of the pixel and channel shuffles.
const FACTOR: [&str; 3] = ["upscale_factor", "downscale_factor", "groups"];

/// The dimension of the channels (the third from the end), and the shuffle's factor.
fn channels_and_factor(args: &Args<'_>) -> Result<(usize, usize)> {
    let rank = args.meta("self")?.rank();
    ensure!(rank >= 3, "self: expected at least three dimensions, found {rank}");
    Ok((rank - 3, to_positive(args.name(FACTOR), args.int(FACTOR)?)?))
}

fn checked_product(args: &Args<'_>, size: usize, factor: usize) -> Result<usize> {
    let too_large = || Error::invalid(format!("{}: the size overflows", args.name(FACTOR)));
    size.checked_mul(factor).ok_or_else(too_large)
}

/// Rearranges an image of `C*r*r` channels and `H` by `W` pixels to `C` channels and `H*r` by `W*r` pixels.
fn pixel_shuffle(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, (c, r)) = (args.tensor("self")?, channels_and_factor(args)?);
    let mut sizes = *x.sizes();
    let square = checked_product(args, r, r)?;
    ensure!(sizes[c].is_multiple_of(square), "self: {} channels cannot be divided by {square}", sizes[c]);
    sizes[c] /= square;
    sizes[c + 1] = checked_product(args, sizes[c + 1], r)?;
    sizes[c + 2] = checked_product(args, sizes[c + 2], r)?;
    let out = outs.tensor(0)?;
    out.resize(&sizes)?;
    let from = permute_from(
        &split_dim(split_dim(Layout::of_tensor(x.meta()), c, square)?, c + 1, r)?,
        c,
        &[0, 3, 1, 4, 2],
    );
    let into = split_dim(split_dim(Layout::of_tensor(out.meta()), c + 2, r)?, c + 1, r)?;
    copy_into(&x, &from, out, &into)
}

/// The inverse of [`pixel_shuffle`].
fn pixel_unshuffle(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, (c, r)) = (args.tensor("self")?, channels_and_factor(args)?);
    let mut sizes = *x.sizes();
    for d in [c + 1, c + 2] {
        ensure!(
            sizes[d].is_multiple_of(r),
            "self: dimension {d} of size {} cannot be divided by {r}",
            sizes[d]
        );
        sizes[d] /= r;
    }
    let square = checked_product(args, r, r)?;
    sizes[c] = checked_product(args, sizes[c], square)?;
    let out = outs.tensor(0)?;
    out.resize(&sizes)?;
    let from = permute_from(
        &split_dim(split_dim(Layout::of_tensor(x.meta()), c + 2, r)?, c + 1, r)?,
        c,
        &[0, 2, 4, 1, 3],
    );
    let into = split_dim(split_dim(Layout::of_tensor(out.meta()), c, square)?, c + 1, r)?;
    copy_into(&x, &from, out, &into)
}

/// Interleaves the groups of channels (dimension 1): the first channel of each group, then the second of each, and so
/// on.
fn channel_shuffle(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, groups) = (args.tensor("self")?, to_positive("groups", args.int("groups")?)?);
    ensure!(x.rank() >= 3, "self: expected at least three dimensions, found {}", x.rank());
    let channels = x.sizes()[1];
    ensure!(channels.is_multiple_of(groups), "groups: {groups} does not divide {channels} channels");
    let out = outs.tensor(0)?;
    out.resize(x.sizes())?;
    if channels == 0 {
        return Ok(());
    }
    let from = split_dim(Layout::of_tensor(x.meta()), 1, channels / groups)?.transpose(1, 2);
    let into = split_dim(Layout::of_tensor(out.meta()), 1, groups)?;
    copy_into(&x, &from, out, &into)
}

/// Cuts an image `[C, H, W]` into square tiles of `tile_size` pixels, row by row: `[tiles, C, tile_size, tile_size]`.
fn tile_crop(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, size) = (args.tensor("input")?, to_positive("tile_size", args.int("tile_size")?)?);
    let &[channels, height, width] = &**x.sizes() else {
        return Err(Error::invalid(format!(
            "input: expected three dimensions, found the shape {}",
            x.sizes()
        )));
    };
    ensure!(
        height.is_multiple_of(size) && width.is_multiple_of(size),
        "tile_size: {size} does not divide an image of {height} by {width} pixels"
    );
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    let (rows, columns) = (height / size, width / size);
    out.resize(&[rows * columns, channels, size, size])?;
    if x.numel() == 0 {
        return Ok(());
    }
    let from = permute_from(
        &split_dim(split_dim(Layout::of_tensor(x.meta()), 2, size)?, 1, size)?,
        0,
        &[1, 3, 0, 2, 4],
    );
    let into = split_dim(Layout::of_tensor(out.meta()), 0, columns)?;
    copy_into(&x, &from, out, &into)
}

/// Copies the bytes of argument 0, in row-major order, to an out of these sizes and this type.
fn reinterpret(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    sizes: &Shape,
    dtype: ScalarType,
) -> Result<()> {
    let out = outs.tensor(0)?;
    expect_type("out", dtype, out.dtype())?;
    out.resize(sizes)?;
    let from = tensor_bytes(ctx, &args.tensor("self")?)?;
    write_bytes(ctx, out, |to| {
        to.copy_from_slice(&from);
        Ok(())
    })
}

/// The real and the imaginary part of each element, along a new last dimension.
fn view_as_real(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let meta = args.meta("self")?;
    ensure!(meta.dtype().is_complex(), "self: expected a complex tensor, found {meta}");
    let mut sizes = *meta.sizes();
    sizes.push(2)?;
    reinterpret(ctx, args, outs, &sizes, meta.dtype().to_real())
}

/// Complex elements from the pairs in the last dimension.
fn view_as_complex(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let meta = args.meta("self")?;
    let dtype = match meta.dtype() {
        ScalarType::Half => ScalarType::ComplexHalf,
        ScalarType::Float => ScalarType::ComplexFloat,
        ScalarType::Double => ScalarType::ComplexDouble,
        other => return Err(Error::invalid(format!("self: there is no complex type of {other}"))),
    };
    let mut sizes = *meta.sizes();
    ensure!(sizes.last() == Some(&2), "self: expected a last dimension of size 2, found the shape {sizes}");
    sizes.remove(sizes.rank() - 1);
    reinterpret(ctx, args, outs, &sizes, dtype)
}

/// The complex conjugate; real elements stay.
fn conj(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    map(ctx, args, outs, [Input::Arg(0)], &elementwise! { real(x) => x; complex(z) => z.conj() })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_list, ints, out, t};
    use num_complex::Complex;
    use pteron_operator::Arg;
    use pteron_tensor::DimOrder;
    use pteron_tensor::ScalarType::{Byte, ComplexFloat, Float, Int};

    #[test]
    fn tiles_are_cut_row_by_row() {
        let x: Vec<u8> = (0..16).collect();
        let r = call(
            "preprocess::tile_crop.out",
            &[a(&t(&[2, 2, 4], &x)), Arg::Int(2)],
            out(Byte, &[2, 2, 2, 2]),
        );
        assert_eq!(r.unwrap().bytes(), [0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15]);
        for (shape, size) in [(&[2, 2, 4][..], 3), (&[2, 2, 4], 0), (&[4, 4], 2)] {
            let r = call(
                "preprocess::tile_crop.out",
                &[a(&t(shape, &x)), Arg::Int(size)],
                out(Byte, &[9, 2, 3, 3]),
            );
            assert!(r.is_err(), "{shape:?} {size}");
        }
    }

    #[test]
    fn rolls_wrap_around() {
        let x = t(&[2, 3], &[0i32, 1, 2, 3, 4, 5]);
        let roll = |x, shifts: &[i64], dims: &[i64]| {
            let r = call("aten::roll.out", &[a(x), ints(shifts), ints(dims)], out(Int, &[2, 3]));
            r.map(|r| r.storage::<i32>().unwrap().to_vec())
        };
        assert_eq!(roll(&x, &[1], &[]).unwrap(), [5, 0, 1, 2, 3, 4]);
        assert_eq!(roll(&x, &[1, -1], &[0, 1]).unwrap(), [4, 5, 3, 1, 2, 0]);
        assert_eq!(roll(&x, &[i64::MIN, i64::MIN], &[1, -1]).unwrap(), [1, 2, 0, 4, 5, 3]);
        let by_column = x.to_dim_order(DimOrder::new(&[1, 0]).unwrap()).unwrap();
        assert_eq!(roll(&by_column, &[-1], &[]).unwrap(), [1, 2, 3, 4, 5, 0]);
        assert!(roll(&x, &[1, 2], &[]).is_err());
    }

    #[test]
    fn triangles_keep_one_side_of_a_diagonal() {
        let x = t(&[2, 3], &[1i32, 2, 3, 4, 5, 6]);
        let go = |name, k| {
            call(name, &[a(&x), Arg::Int(k)], out(Int, &[2, 3])).unwrap().storage::<i32>().unwrap().to_vec()
        };
        assert_eq!(go("aten::tril.out", 0), [1, 0, 0, 4, 5, 0]);
        assert_eq!(go("aten::triu.out", 1), [0, 2, 3, 0, 0, 6]);
        assert_eq!(go("aten::tril.out", i64::MAX), [1, 2, 3, 4, 5, 6]);
        assert_eq!(go("aten::triu.out", i64::MAX), [0; 6]);
        assert_eq!(go("aten::tril.out", i64::MIN), [0; 6]);
    }

    #[test]
    fn pixel_shuffle_and_its_inverse_in_any_layout() {
        let x = t(&[1, 4, 1, 2], &[0i32, 1, 2, 3, 4, 5, 6, 7]);
        for order in [DimOrder::contiguous(4), DimOrder::channels_last(4)] {
            let x = x.to_dim_order(order).unwrap();
            let y = call("aten::pixel_shuffle.out", &[a(&x), Arg::Int(2)], out(Int, &[1, 1, 2, 4])).unwrap();
            assert_eq!(y.storage::<i32>().unwrap(), &[0, 2, 1, 3, 4, 6, 5, 7]);
            let z =
                call("aten::pixel_unshuffle.out", &[a(&y), Arg::Int(2)], out(Int, &[1, 4, 1, 2])).unwrap();
            assert_eq!(z.storage::<i32>().unwrap(), &[0, 1, 2, 3, 4, 5, 6, 7]);
        }
        for bad in [0, -1, 3, i64::MAX] {
            assert!(
                call("aten::pixel_shuffle.out", &[a(&x), Arg::Int(bad)], out(Int, &[1, 1, 2, 4])).is_err()
            );
        }
    }

    #[test]
    fn unbind_and_views_as_complex_or_real() {
        let x = t(&[2, 2], &[1i32, 2, 3, 4]);
        let outs = vec![out(Int, &[2]), out(Int, &[2])];
        let r = call_list("aten::unbind_copy.int_out", &[a(&x), Arg::Int(-1)], outs).unwrap();
        assert_eq!(r[1].storage::<i32>().unwrap(), &[2, 4]);
        assert!(call_list("aten::unbind_copy.int_out", &[a(&x)], vec![out(Int, &[2])]).is_err());
        let z = t(&[1], &[Complex::new(1f32, -2.0)]);
        let r = call("aten::view_as_real_copy.out", &[a(&z)], out(Float, &[1, 2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0, -2.0]);
        let r = call("aten::view_as_complex_copy.out", &[a(&r)], out(ComplexFloat, &[1])).unwrap();
        assert_eq!(r.bytes(), z.bytes());
        let r = call("aten::_conj_physical.out", &[a(&z)], out(ComplexFloat, &[1])).unwrap();
        assert_eq!(r.storage::<Complex<f32>>().unwrap(), &[Complex::new(1.0, 2.0)]);
    }
}
