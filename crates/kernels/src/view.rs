//! Copies of views: reshapes, permutations, slices and other selections.

use crate::diagonal::diagonal_of;
use crate::support::copy::copy_view;
use crate::support::dims::{
    DimSet, infer_shape, slice_range, to_positive, to_shape, to_size, wrap_dim, wrap_index,
};
use crate::support::layout::Layout;
use crate::support::meaning::{dims_at, reshape_meaning};
use crate::support::rows::{expect_type, tensor_bytes, write_bytes};
use pteron_operator::facts::{Dims, ViewOf, wrap};
use pteron_operator::{Args, DtypeSet, Error, KernelContext, Meaning, Operator, Outs, Result, ensure};
use pteron_tensor::Shape;
use smallvec::SmallVec;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::view_copy.out(Tensor self, SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        view,
    )
    .moves_elements()
    .means(reshape_meaning)
    .sized(|args| infer_shape("size", args.ints("size").ok()?, args.meta("self").ok()?.numel()).ok()),
    Operator::new(
        "aten::view_copy.dtype_out(Tensor self, ScalarType dtype, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        view_as_type,
    ),
    Operator::new(
        "aten::_unsafe_view.out(Tensor self, SymInt[] size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        view,
    ),
    Operator::new(
        "aten::_reshape_alias_copy.out(Tensor self, SymInt[] size, SymInt[] stride, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        view,
    ),
    Operator::new(
        "aten::permute_copy.out(Tensor self, int[] dims, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        permute,
    )
    .moves_elements()
    .means(permute_meaning),
    Operator::new(
        "aten::transpose_copy.int_out(Tensor self, int dim0, int dim1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        transpose,
    )
    .moves_elements()
    .means(transpose_meaning),
    Operator::new("aten::t_copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, t)
        .moves_elements()
        .means(t_meaning),
    Operator::new(
        "aten::expand_copy.out(Tensor self, SymInt[] size, *, bool implicit=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        expand,
    )
    .moves_elements()
    .means(|_| Some(Meaning::View(ViewOf::Expand)))
    .sized(|args| sizes_of_view(args, expand_layout)),
    Operator::new(
        "aten::select_copy.int_out(Tensor self, int dim, SymInt index, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        select,
    )
    .moves_elements()
    .means(select_meaning),
    Operator::new(
        "aten::slice_copy.Tensor_out(Tensor self, int dim=0, SymInt? start=None, SymInt? end=None, SymInt step=1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        slice,
    )
    .moves_elements()
    .means(slice_meaning),
    Operator::new(
        "aten::narrow_copy.out(Tensor self, int dim, SymInt start, SymInt length, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        narrow,
    ),
    Operator::new(
        "aten::unsqueeze_copy.out(Tensor self, int dim, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        unsqueeze,
    )
    .moves_elements()
    .means(reshape_meaning)
    .sized(|args| sizes_of_view(args, unsqueeze_layout)),
    Operator::new(
        "aten::squeeze_copy.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        squeeze_all,
    ),
    Operator::new(
        "aten::squeeze_copy.dim_out(Tensor self, int dim, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        squeeze,
    )
    .moves_elements()
    .means(reshape_meaning)
    .sized(|args| sizes_of_view(args, squeeze_layout)),
    Operator::new(
        "aten::squeeze_copy.dims_out(Tensor self, int[] dim, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        squeeze,
    )
    .moves_elements()
    .means(reshape_meaning)
    .sized(|args| sizes_of_view(args, squeeze_layout)),
    Operator::new(
        "aten::diagonal_copy.out(Tensor self, int offset=0, int dim1=0, int dim2=1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        diagonal,
    ),
    Operator::new(
        "aten::unfold_copy.out(Tensor self, int dimension, int size, int step, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        unfold,
    ),
    Operator::new(
        "aten::as_strided_copy.out(Tensor self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        as_strided,
    )
    .moves_elements(),
    Operator::new(
        "aten::flip.out(Tensor self, int[] dims, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        flip,
    )
    .moves_elements(),
];

/// The rank of argument 0.
fn rank_of_self(args: &Args<'_>) -> Option<usize> {
    Some(args.meta("self").ok()?.rank())
}

fn permute_meaning(args: &Args<'_>) -> Option<Meaning> {
    let (rank, dims) = (rank_of_self(args)?, dims_at(args, "dims")?);
    let mut is_listed = vec![false; rank];
    dims.iter().for_each(|&d| is_listed[d] = true);
    (dims.len() == rank && !is_listed.contains(&false)).then_some(Meaning::View(ViewOf::Permute(dims)))
}

fn transpose_meaning(args: &Args<'_>) -> Option<Meaning> {
    let rank = rank_of_self(args)?;
    let mut dims: Dims = (0..rank).collect();
    dims.swap(wrap(args.int("dim0").ok()?, rank)?, wrap(args.int("dim1").ok()?, rank)?);
    Some(Meaning::View(ViewOf::Permute(dims)))
}

fn t_meaning(args: &Args<'_>) -> Option<Meaning> {
    Some(Meaning::View(ViewOf::Permute((0..rank_of_self(args)?).rev().collect())))
        .filter(|_| rank_of_self(args) <= Some(2))
}

fn select_meaning(args: &Args<'_>) -> Option<Meaning> {
    let dim = wrap(args.int("dim").ok()?, rank_of_self(args)?)?;
    let index = wrap(args.int("index").ok()?, args.meta("self").ok()?.sizes()[dim])?;
    Some(Meaning::View(ViewOf::Select { dim, index }))
}

fn slice_meaning(args: &Args<'_>) -> Option<Meaning> {
    let dim = wrap(args.int("dim").ok()?, rank_of_self(args)?)?;
    let size = args.meta("self").ok()?.sizes()[dim];
    let bound = |index: usize, default: usize| -> Option<usize> {
        let Some(at) = args.optional_int(index).ok()? else { return Some(default) };
        let at = if at < 0 { at.saturating_add(i64::try_from(size).ok()?) } else { at };
        Some(usize::try_from(at).unwrap_or(0).min(size))
    };
    let step = args.optional_int("step").ok()?.unwrap_or(1);
    let step = usize::try_from(step).ok().filter(|&s| s > 0 && s <= size.max(1))?;
    Some(Meaning::View(ViewOf::Slice { dim, start: bound(2, 0)?, end: bound(3, size)?, step }))
}

/// A reshape in row-major order; one of the sizes may be -1.
fn view(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let from = args.tensor("self")?;
    let sizes = infer_shape("size", args.ints("size")?, from.numel())?;
    let out = outs.tensor(0)?;
    out.resize(&sizes)?;
    let into = Layout::of_tensor(out.meta());
    crate::support::copy::copy_into(&from, &Layout::of_tensor(from.meta()), out, &into)
}

/// The bytes of the elements, in row-major order, as elements of another type. If its size differs, the last dimension
/// becomes longer or shorter.
fn view_as_type(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    let out = outs.tensor(0)?;
    if let Some(dtype) = args.optional_dtype("dtype")? {
        expect_type("out", dtype, out.dtype())?;
    }
    let (have, want) = (x.dtype().size(), out.dtype().size());
    let mut sizes = *x.sizes();
    if have != want {
        ensure!(sizes.rank() > 0, "self: a number of {have} bytes is none of {want}");
        let last = sizes.rank() - 1;
        let bytes = sizes[last].saturating_mul(have);
        ensure!(bytes.is_multiple_of(want), "self: rows of {bytes} bytes are none of elements of {want}");
        sizes[last] = bytes / want;
    }
    out.resize(&sizes)?;
    let bytes = tensor_bytes(ctx, &x)?;
    write_bytes(ctx, out, |to| {
        to.copy_from_slice(&bytes);
        Ok(())
    })
}

/// Permutes the dimensions.
fn permute(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let dims = args.ints("dims")?;
    copy_view(args, outs, |x| {
        let rank = x.rank();
        DimSet::from_list("dims", dims, rank)?;
        ensure!(dims.len() == rank, "dims: {dims:?} for a tensor of rank {rank}");
        let order: SmallVec<[usize; 8]> =
            dims.iter().map(|&d| wrap_dim("dims", d, rank)).collect::<Result<_>>()?;
        Ok(x.permute(&order))
    })
}

/// Swaps two dimensions; a zero-dim tensor stays as it is.
fn transpose(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| {
        let a = wrap_dim("dim0", args.int("dim0")?, x.rank())?;
        let b = wrap_dim("dim1", args.int("dim1")?, x.rank())?;
        Ok(if x.rank() == 0 { x } else { x.transpose(a, b) })
    })
}

/// Transposes a matrix; tensors of fewer dimensions stay as they are.
fn t(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| {
        ensure!(x.rank() <= 2, "self: expected at most two dimensions, found the shape {}", x.sizes);
        Ok(if x.rank() == 2 { x.transpose(0, 1) } else { x })
    })
}

/// Broadcasts to the given sizes; -1 keeps the size of a dimension.
fn expand(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| expand_layout(args, x))
}

fn expand_layout(args: &Args<'_>, x: Layout) -> Result<Layout> {
    let size = args.ints("size")?;
    let front = size.len().checked_sub(x.rank()).ok_or_else(|| {
        Error::invalid(format!("size: {size:?} has fewer dimensions than the shape {}", x.sizes))
    })?;
    let mut sizes = Shape::filled(size.len(), 0)?;
    for (d, &s) in size.iter().enumerate() {
        sizes[d] = if s == -1 && d >= front { x.sizes[d - front] } else { to_size("size", s)? };
    }
    x.expand(&sizes)
}

/// The sizes of a view of the argument `self`; `None` if there is no such view.
fn sizes_of_view(args: &Args<'_>, view: fn(&Args<'_>, Layout) -> Result<Layout>) -> Option<Shape> {
    Some(view(args, Layout::of_tensor(args.meta("self").ok()?)).ok()?.sizes)
}

/// Selects one index of a dimension, and removes the dimension.
fn select(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| {
        let dim = dim_of(args, "dim", &x)?;
        Ok(x.select(dim, wrap_index("index", args.int("index")?, x.sizes[dim])?))
    })
}

/// The dimension at an argument; fails for a zero-dim tensor.
fn dim_of(args: &Args<'_>, arg: &'static str, x: &Layout) -> Result<usize> {
    ensure!(x.rank() > 0, "self: a zero-dim tensor has no dimensions");
    wrap_dim(arg, args.int(arg)?, x.rank())
}

/// A slice of a dimension, with Python's semantics.
fn slice(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| {
        let dim = dim_of(args, "dim", &x)?;
        let step = args.int("step")?;
        let (start, len) =
            slice_range(args.optional_int("start")?, args.optional_int("end")?, step, x.sizes[dim])?;
        Ok(x.slice(dim, start, len, if len > 1 { step as isize } else { 1 }))
    })
}

/// `length` elements of a dimension from `start` on.
fn narrow(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| {
        let dim = dim_of(args, "dim", &x)?;
        let (start, length, size) =
            (args.int("start")?, to_size("length", args.int("length")?)?, x.sizes[dim]);
        let start = if start == size as i64 { size } else { wrap_index("start", start, size)? };
        ensure!(length <= size - start, "length: {start} + {length} is beyond the dimension's size {size}");
        Ok(x.slice(dim, if length == 0 { 0 } else { start }, length, 1))
    })
}

/// Inserts a dimension of size one before `dim`.
fn unsqueeze(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| unsqueeze_layout(args, x))
}

fn unsqueeze_layout(args: &Args<'_>, x: Layout) -> Result<Layout> {
    x.insert(wrap_dim("dim", args.int("dim")?, x.rank() + 1)?, 1, 0)
}

/// Removes all dimensions of size one.
fn squeeze_all(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| Ok(remove_dims_of_size_one(x, DimSet::all(x.rank()))))
}

/// Removes the listed dimensions that have size one.
fn squeeze(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| squeeze_layout(args, x))
}

fn squeeze_layout(args: &Args<'_>, x: Layout) -> Result<Layout> {
    Ok(remove_dims_of_size_one(x, DimSet::from_list("dim", args.ints("dim")?, x.rank())?))
}

fn remove_dims_of_size_one(x: Layout, dims: DimSet) -> Layout {
    (0..x.rank()).rev().filter(|&d| dims.contains(d) && x.sizes[d] == 1).fold(x, |v, d| v.remove(d))
}

/// A diagonal of two dimensions, as the last dimension, `offset` above the main diagonal (below it if negative).
fn diagonal(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| {
        diagonal_of(x, args.int("offset")?, (dim_of(args, "dim1", &x)?, dim_of(args, "dim2", &x)?))
    })
}

/// Windows of `size` elements of a dimension, `step` apart, as a new last dimension.
fn unfold(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| {
        let dim = wrap_dim("dimension", args.int("dimension")?, x.rank())?;
        let size = to_size("size", args.int("size")?)?;
        let step = to_positive("step", args.int("step")?)?;
        let have = if x.rank() == 0 { 1 } else { x.sizes[dim] };
        ensure!(size <= have, "size: windows of {size} do not fit a dimension of size {have}");
        if x.rank() == 0 {
            return x.insert(0, size, 1);
        }
        let (stride, count) = (x.strides()[dim], (have - size) / step + 1);
        if size == 0 {
            // There may be one more window than elements, but all windows are empty.
            return x.remove(dim).insert(dim, count, 0)?.insert(x.rank(), 0, 1);
        }
        let x = x.slice(dim, 0, count, if count > 1 { step as isize } else { 1 });
        x.insert(x.rank(), size, stride)
    })
}

/// A view of the storage with given sizes and strides; all elements must be in bounds.
fn as_strided(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (size, stride) = (to_shape("size", args.ints("size")?)?, args.ints("stride")?);
    let offset = to_size("storage_offset", args.optional_int("storage_offset")?.unwrap_or(0))?;
    ensure!(stride.len() == size.rank(), "stride: {stride:?} for the sizes {size}");
    copy_view(args, outs, |x| {
        let numel = x.numel()?;
        let stride: SmallVec<[usize; 8]> =
            stride.iter().map(|&s| to_size("stride", s)).collect::<Result<_>>()?;
        if size.numel()? > 0 {
            let last = size
                .iter()
                .zip(&stride)
                .try_fold(offset, |at, (&n, &s)| at.checked_add((n - 1).checked_mul(s)?))
                .filter(|&last| last < numel);
            ensure!(
                last.is_some(),
                "sizes {size} at strides {stride:?} from {offset} on reach beyond {numel} elements"
            );
        }
        let storage = Layout::contiguous(&Shape::new(&[numel])?);
        // Every element is in bounds, as checked above.
        let first = if size.numel()? == 0 { 0 } else { offset };
        let mut view = storage.slice(0, first.min(numel.saturating_sub(1)), 1.min(numel), 1).remove(0);
        for (d, (&n, &s)) in size.iter().zip(&stride).enumerate() {
            view = view.insert(d, n, if n > 1 { s as isize } else { 0 })?;
        }
        Ok(view)
    })
}

/// Reverses some dimensions.
fn flip(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    copy_view(args, outs, |x| {
        let dims = DimSet::from_list("dims", args.ints("dims")?, x.rank())?;
        Ok((0..x.rank()).filter(|&d| dims.contains(d)).fold(x, |v, d| v.flip(d)))
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, ints, out, s, t};
    use pteron_operator::{Arg, Result};
    use pteron_tensor::ScalarType::{Float, Int};
    use pteron_tensor::{DimOrder, Tensor};

    fn numbered(sizes: &[usize]) -> Tensor {
        let n = sizes.iter().product::<usize>() as i32;
        t(sizes, &(0..n).collect::<Vec<_>>())
    }

    /// The elements of the result of operator `name`, whose sizes are checked.
    fn of<'a>(name: &str, x: &'a Tensor, args: &[Arg<'a>], sizes: &[usize]) -> Vec<i32> {
        go(name, x, args, sizes).unwrap().as_slice().unwrap().to_vec()
    }

    fn go<'a>(name: &str, x: &'a Tensor, args: &[Arg<'a>], sizes: &[usize]) -> Result<Tensor> {
        let args: Vec<_> = [a(x)].into_iter().chain(args.iter().cloned()).collect();
        let r = call(name, &args, out(Int, sizes))?;
        assert_eq!(&**r.sizes(), sizes);
        Ok(r)
    }

    #[test]
    fn reshapes_permutations_and_flips() {
        let x = numbered(&[2, 3]);
        assert_eq!(of("aten::view_copy.out", &x, &[ints(&[3, -1])], &[3, 2]), [0, 1, 2, 3, 4, 5]);
        assert_eq!(of("aten::permute_copy.out", &x, &[ints(&[-1, 0])], &[3, 2]), [0, 3, 1, 4, 2, 5]);
        assert_eq!(of("aten::t_copy.out", &x, &[], &[3, 2]), [0, 3, 1, 4, 2, 5]);
        assert!(go("aten::permute_copy.out", &x, &[ints(&[0, 0])], &[2, 2]).is_err());
        assert!(go("aten::permute_copy.out", &x, &[ints(&[0])], &[2]).is_err());
        assert_eq!(
            of("aten::expand_copy.out", &numbered(&[2, 1]), &[ints(&[2, -1, 2])], &[2, 2, 2])[..4],
            [0, 0, 1, 1]
        );
        assert!(go("aten::expand_copy.out", &x, &[ints(&[-1, 2, 3])], &[2, 2, 3]).is_err());
        assert_eq!(of("aten::unsqueeze_copy.out", &x, &[int(-1)], &[2, 3, 1]).len(), 6);
        assert_eq!(
            of("aten::squeeze_copy.dims_out", &numbered(&[1, 2, 1]), &[ints(&[0, 1])], &[2, 1]),
            [0, 1]
        );
        assert_eq!(of("aten::squeeze_copy.dim_out", &s(5i32), &[int(-1)], &[]), [5]);
        assert_eq!(of("aten::flip.out", &x, &[ints(&[1])], &[2, 3]), [2, 1, 0, 5, 4, 3]);
        assert!(call("aten::t_copy.out", &[a(&x)], out(Float, &[3, 2])).is_err());
    }

    #[test]
    fn a_reshape_is_in_row_major_order_for_any_layout() {
        let x = numbered(&[1, 2, 2, 3]).to_dim_order(DimOrder::channels_last(4)).unwrap();
        assert_eq!(of("aten::view_copy.out", &x, &[ints(&[12])], &[12]), (0..12).collect::<Vec<_>>());
    }

    #[test]
    fn bytes_are_viewed_as_other_types() {
        use pteron_tensor::ScalarType::{Byte, Float, Int, Short};
        let x = t(&[2, 2], &[1.0f32, 2.0, -1.0, 0.0]);
        let name = "aten::view_copy.dtype_out";
        let r = call(name, &[a(&x), int(Int as i64)], out(Int, &[2, 2])).unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[0x3f80_0000, 0x4000_0000, -0x4080_0000, 0]);
        let r = call(name, &[a(&x), int(Short as i64)], out(Short, &[2, 4])).unwrap();
        assert_eq!((r.sizes().to_vec(), r.storage::<i16>().unwrap()[1]), (vec![2, 4], 0x3f80));
        let bytes = t(&[1, 8], &[0u8, 0, 128, 63, 0, 0, 0, 64]);
        let r = call(name, &[a(&bytes), int(Float as i64)], out(Float, &[1, 2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0, 2.0]);
        let three = t(&[3], &[0u8; 3]);
        assert!(call(name, &[a(&three), int(Float as i64)], out(Float, &[1])).is_err());
        assert!(call(name, &[a(&x), int(Byte as i64)], out(Int, &[2, 2])).is_err());
    }

    #[test]
    fn selections_slices_and_diagonals() {
        let x = numbered(&[3, 4]);
        assert_eq!(of("aten::select_copy.int_out", &x, &[int(1), int(-1)], &[3]), [3, 7, 11]);
        assert!(go("aten::select_copy.int_out", &x, &[int(1), int(4)], &[3]).is_err());
        assert_eq!(
            of("aten::slice_copy.Tensor_out", &x, &[int(1), int(1), int(i64::MAX), int(2)], &[3, 2]),
            [1, 3, 5, 7, 9, 11]
        );
        assert_eq!(of("aten::slice_copy.Tensor_out", &x, &[int(0), int(5)], &[0, 4]), []);
        assert_eq!(of("aten::narrow_copy.out", &x, &[int(0), int(-1), int(1)], &[1, 4]), [8, 9, 10, 11]);
        assert!(go("aten::narrow_copy.out", &x, &[int(0), int(2), int(2)], &[2, 4]).is_err());
        assert_eq!(of("aten::diagonal_copy.out", &x, &[int(1)], &[3]), [1, 6, 11]);
        assert_eq!(of("aten::diagonal_copy.out", &x, &[int(-5)], &[0]), []);
        assert_eq!(
            of("aten::unfold_copy.out", &numbered(&[5]), &[int(0), int(3), int(2)], &[2, 3]),
            [0, 1, 2, 2, 3, 4]
        );
        let args = [ints(&[2, 2]), ints(&[3, 1]), int(2)];
        assert_eq!(of("aten::as_strided_copy.out", &x, &args, &[2, 2]), [2, 3, 5, 6]);
        for (size, stride, offset) in
            [([2, 2], [9, 1], 2), ([2, 2], [i64::MAX, 1], 2), ([2, 2], [1, 1], i64::MAX)]
        {
            let args = [ints(&size), ints(&stride), int(offset)];
            assert!(go("aten::as_strided_copy.out", &x, &args, &[2, 2]).is_err());
        }
    }
}
