//! Indexing by tensors: reads and writes by index tensors and masks, embeddings, `nonzero`.

use crate::support::convert::{Values, convert, indices, values};
use crate::support::dims::{broadcast, wrap_dim, wrap_index};
use crate::support::dtype::{Cast, compute_type, dispatch, expect_dtype};
use crate::support::layout::{Layout, Walk};
use crate::support::map::expect_aligned;
use pteron_operator::{
    Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, Results, ScratchBuffer, ensure,
};
use pteron_tensor::{ScalarType, Shape, TensorView, TensorViewMut};
use smallvec::SmallVec;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::index.Tensor_out(Tensor self, Tensor?[] indices, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        index,
    ),
    Operator::new(
        "aten::index_select.out(Tensor self, int dim, Tensor index, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        index_select,
    ),
    Operator::new(
        "aten::embedding.out(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        embedding,
    ),
    Operator::new(
        "aten::index_put.out(Tensor self, Tensor?[] indices, Tensor values, bool accumulate=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        index_put,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::index_put_(Tensor(a!) self, Tensor?[] indices, Tensor values, bool accumulate=False) -> Tensor(a!)",
        DtypeSet::ALL,
        index_put_in_place,
    ),
    Operator::new("aten::nonzero.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, nonzero)
        .results(Results::DataDependentShape),
];

/// One index tensor: indices along a dimension.
struct Index<'a> {
    dim: usize,
    values: Values<'a, i64>,
    sizes: Shape,
}

/// The part of a tensor that index tensors select: for each position in their broadcast shape, a view over the
/// dimensions without an index.
struct Choice<'a> {
    /// The broadcast shape of the index tensors.
    sizes: Shape,
    /// The start of the view for each position in the shape `sizes`, in row-major order.
    starts: ScratchBuffer<'a, i64>,
    /// The layout of the view at a position, without its start.
    rest: Layout,
    /// The index, among the result's dimensions, at which the dimensions of `sizes` begin; the other dimensions are
    /// those of the view.
    at: usize,
}

impl<'a> Choice<'a> {
    /// The selection from a tensor with layout `x` by index tensors, or masks, for its first dimensions.
    fn new(ctx: &KernelContext<'a>, x: &Layout, list: &[Option<TensorView<'a>>]) -> Result<Self> {
        let mut all: SmallVec<[Index<'a>; 4]> = SmallVec::new();
        let mut dim = 0;
        for tensor in list {
            match tensor {
                None => dim += 1,
                Some(mask) if matches!(mask.dtype(), ScalarType::Bool | ScalarType::Byte) => {
                    push_mask(ctx, x, mask, dim, &mut all)?;
                    dim += mask.rank();
                }
                Some(t) => {
                    let values = indices(ctx, "indices", t)?;
                    all.push(Index { dim, values, sizes: *t.sizes() });
                    dim += 1;
                }
            }
        }
        ensure!(dim <= x.rank(), "indices: they are for {dim} dimensions, the tensor's shape is {}", x.sizes);
        Self::of(ctx, x, &all, true)
    }

    /// The selection by index tensors `all`. Negative indices count from the end if `wrap`; otherwise they are refused.
    fn of(ctx: &KernelContext<'a>, x: &Layout, all: &[Index<'_>], wrap: bool) -> Result<Self> {
        let mut sizes = Shape::SCALAR;
        for index in all {
            sizes = broadcast(&sizes, &index.sizes)?;
        }
        let mut starts = ctx.scratch::<i64>(sizes.numel()?)?;
        starts.fill(x.offset as i64);
        for index in all {
            let (n, stride) = (x.sizes[index.dim], x.strides()[index.dim] as i64);
            let walk = Layout::contiguous(&index.sizes).expand(&sizes)?.walk();
            for (j, start) in starts.iter_mut().enumerate() {
                let i = index.values[walk.offset_at(j)];
                ensure!(
                    wrap || i >= 0,
                    "indices: index {i} is out of range for dimension {} of size {n}",
                    index.dim
                );
                *start += wrap_index("indices", i, n)? as i64 * stride;
            }
        }
        // The indexed dimensions are removed from the view. If they are adjacent, the index dimensions take their
        // place in the result, otherwise they come first.
        let mut rest = *x;
        rest.offset = 0;
        for index in all.iter().rev() {
            rest = rest.slice(index.dim, 0, 1.min(rest.sizes[index.dim]), 1).remove(index.dim);
        }
        let together = all.windows(2).all(|w| w[0].dim + 1 == w[1].dim);
        let at = if together { all.first().map_or(0, |i| i.dim) } else { 0 };
        Ok(Self { sizes, starts, rest, at })
    }

    /// The sizes of the result.
    fn result_shape(&self) -> Result<Shape> {
        let mut all = self.rest.sizes;
        for (i, &s) in self.sizes.iter().enumerate() {
            all.insert(self.at + i, s)?;
        }
        all.numel()?;
        Ok(all)
    }

    /// Splits a layout of the result into the traversal of the positions and that of the view at each position.
    fn split_walk(&self, result: &Layout) -> (Walk, Walk) {
        let here = self.at..self.at + self.sizes.rank();
        let one = |d: usize| (result.sizes[d], result.strides()[d]);
        let positions = Walk::new(here.clone().rev().map(one), result.offset);
        let rest = (0..result.rank()).rev().filter(|d| !here.contains(d)).map(one);
        (positions, Walk::new(rest, 0))
    }

    /// Calls `f(from, to, count)` for runs of `count` contiguous elements, with their starts in the indexed tensor and
    /// in the result, whose layout is `result`.
    fn each_run(&self, result: &Layout, mut f: impl FnMut(usize, usize, usize)) {
        let n: usize = self.rest.sizes.iter().product();
        if n == 0 || self.starts.is_empty() {
            return;
        }
        let (positions, there) = self.split_walk(result);
        let here = self.rest.walk();
        // The run length: elements of the view that are contiguous on both sides.
        let (near, far) = (here.run_len(n), there.run_len(n));
        let run = if near.max(far).is_multiple_of(near.min(far)) { near.min(far) } else { 1 };
        for i in (0..n).step_by(run) {
            let (from, to) = (here.offset_at(i), there.offset_at(i));
            let mut number = 0;
            positions.each_run(0..self.starts.len(), |at, step, count| {
                for (j, &start) in self.starts[number..number + count].iter().enumerate() {
                    f(start as usize + from, at.wrapping_add_signed(j as isize * step) + to, run);
                }
                number += count;
            });
            pteron_pool::progress(run * self.starts.len());
        }
    }

    /// Copies the selected part of `x` to `out`.
    fn copy_selection(&self, x: &TensorView<'_>, out: &mut TensorViewMut<'_>) -> Result<()> {
        ensure!(x.dtype() == out.dtype(), "out: expected a tensor of {}, found {}", x.dtype(), out.dtype());
        out.resize(&self.result_shape()?)?;
        let into = Layout::of_tensor(out.meta());
        match x.dtype().size() {
            1 => self.copy_elements::<1>(x.bytes(), &into, out.bytes_mut()),
            2 => self.copy_elements::<2>(x.bytes(), &into, out.bytes_mut()),
            4 => self.copy_elements::<4>(x.bytes(), &into, out.bytes_mut()),
            8 => self.copy_elements::<8>(x.bytes(), &into, out.bytes_mut()),
            _ => self.copy_elements::<16>(x.bytes(), &into, out.bytes_mut()),
        }
        Ok(())
    }

    /// Copies the selected elements of `S` bytes.
    fn copy_elements<const S: usize>(&self, from: &[u8], result: &Layout, to: &mut [u8]) {
        let from: &[[u8; S]] = bytemuck::cast_slice(from);
        let to: &mut [[u8; S]] = bytemuck::cast_slice_mut(to);
        self.each_run(result, |a, b, n| match n {
            1 => to[b] = from[a],
            _ => to[b..b + n].copy_from_slice(&from[a..a + n]),
        });
    }
}

/// Adds the indices of a mask's true elements: one index tensor for each dimension of the mask.
fn push_mask<'a>(
    ctx: &KernelContext<'a>,
    x: &Layout,
    mask: &TensorView<'_>,
    dim: usize,
    all: &mut SmallVec<[Index<'a>; 4]>,
) -> Result<()> {
    let fits = x.sizes.get(dim..dim + mask.rank()).is_some_and(|s| *s == **mask.sizes());
    ensure!(
        fits && mask.rank() > 0,
        "indices: a mask of shape {} does not suit dimensions {dim} on of {}",
        mask.sizes(),
        x.sizes
    );
    let walk = Layout::of_tensor(mask.meta()).walk();
    let count = mask.bytes().iter().filter(|&&b| b != 0).count();
    for d in 0..mask.rank() {
        let inner: usize = mask.sizes()[d + 1..].iter().product();
        let mut values = ctx.scratch::<i64>(count)?;
        let places = (0..mask.numel()).filter(|&i| mask.bytes()[walk.offset_at(i)] != 0);
        for (v, i) in values.iter_mut().zip(places) {
            *v = (i / inner % mask.sizes()[d]) as i64;
        }
        all.push(Index { dim: dim + d, values: Values::Copy(values), sizes: Shape::new(&[count])? });
    }
    Ok(())
}

/// Indexes the first dimensions by index tensors; a mask is equivalent to the indices of its
/// true elements. Negative indices count from the end.
fn index(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, list) = (args.tensor("self")?, args.optional_tensors("indices")?);
    Choice::new(ctx, &Layout::of_tensor(x.meta()), &list)?.copy_selection(&x, outs.tensor(0)?)
}

/// The slices of a dimension selected by a list of indices.
fn index_select(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, index) = (args.tensor("self")?, args.tensor("index")?);
    ensure!(index.rank() <= 1, "index: expected at most one dimension, found {}", index.meta());
    let dim = wrap_dim("dim", args.int("dim")?, x.rank())?;
    let mut layout = Layout::of_tensor(x.meta());
    let values = indices(ctx, "index", &index)?;
    let sizes = if x.rank() == 0 {
        ensure!(
            values.len() == 1,
            "index: a zero-dim tensor has one element, found {} indices",
            values.len()
        );
        layout = layout.insert(0, 1, 1)?;
        Shape::SCALAR
    } else {
        Shape::new(&[values.len()])?
    };
    Choice::of(ctx, &layout, &[Index { dim, values, sizes }], false)?.copy_selection(&x, outs.tensor(0)?)
}

/// The rows of a matrix selected by an index tensor.
fn embedding(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (weight, index) = (args.tensor("weight")?, args.tensor("indices")?);
    ensure!(weight.rank() == 2, "weight: expected a matrix, found the shape {}", weight.sizes());
    let index = Index { dim: 0, values: indices(ctx, "indices", &index)?, sizes: *index.sizes() };
    Choice::of(ctx, &Layout::of_tensor(weight.meta()), &[index], false)?
        .copy_selection(&weight, outs.tensor(0)?)
}

/// A copy of `self` in which `values` are written, or added, to the indexed elements.
fn index_put(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    convert(ctx, args, outs, "self", args.meta("self")?.sizes())?;
    write_selection(ctx, args, outs)
}

/// Like [`index_put`], but writes to `self` in place.
fn index_put_in_place(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    write_selection(ctx, args, outs)
}

fn write_selection(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (list, from, accumulate) =
        (args.optional_tensors("indices")?, args.tensor("values")?, args.bool("accumulate")?);
    let out = outs.tensor(0)?;
    ensure!(
        from.dtype() == out.dtype(),
        "values: expected a tensor of {}, as self is, found {}",
        out.dtype(),
        from.dtype()
    );
    let choice = Choice::new(ctx, &Layout::of_tensor(out.meta()), &list)?;
    let source = Layout::of_tensor(from.meta()).expand(&choice.result_shape()?)?;
    let size = from.dtype().size();
    if !accumulate {
        let (src, dst) = (from.bytes(), out.bytes_mut());
        choice.each_run(&source, |a, b, n| {
            dst[a * size..(a + n) * size].copy_from_slice(&src[b * size..(b + n) * size]);
        });
        return Ok(());
    }
    expect_aligned(from.bytes(), from.dtype())?;
    expect_aligned(out.bytes(), out.dtype())?;
    dispatch!("values", from.dtype(), ALL, T => {
        let (src, dst) = (from.storage::<T>()?, out.storage_mut::<T>()?);
        choice.each_run(&source, |a, b, n| {
            for (d, s) in dst[a..a + n].iter_mut().zip(&src[b..b + n]) {
                *d = add_elements(*d, *s);
            }
        });
    });
    Ok(())
}

/// The sum of two elements; integers wrap; the sum of bools is their logical or.
fn add_elements<T: Cast>(a: T, b: T) -> T {
    match compute_type(T::DTYPE) {
        ScalarType::Long => T::from_i64(a.to_i64().wrapping_add(b.to_i64())),
        ScalarType::Float => T::from_f32(a.to_f32() + b.to_f32()),
        ScalarType::Double => T::from_f64(a.to_f64() + b.to_f64()),
        _ => T::from_complex(a.to_complex() + b.to_complex()),
    }
}

/// The coordinates of every nonzero element, in row-major order; each row of the result holds those of one element.
fn nonzero(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    expect_dtype("self", x.dtype(), DtypeSet::ALL)?;
    ensure!(out.dtype() == ScalarType::Long, "out: expected int64, found {}", out.dtype());
    let rank = x.rank();
    dispatch!("self", compute_type(x.dtype()), COMPUTE, C => {
        let all = values::<C>(ctx, &x, &Layout::of_tensor(x.meta()))?;
        out.resize(&[all.iter().filter(|v| **v != C::default()).count(), rank])?;
        let (rows, columns) = match out.strides()[..] {
            [rows, columns] => (rows, columns),
            _ => return Err(Error::invalid("out: expected a matrix")),
        };
        let coordinates = out.storage_mut::<i64>()?;
        let (outer, inner) = x.sizes().split_at(rank.saturating_sub(1));
        let inner = inner.first().map_or(1, |&n| n.max(1));
        let mut place = vec![0i64; rank];
        let mut row = 0;
        for line in all.chunks(inner) {
            for (i, _) in line.iter().enumerate().filter(|(_, v)| **v != C::default()) {
                if let Some(last) = place.last_mut() {
                    *last = i as i64;
                }
                place.iter().enumerate().for_each(|(d, &i)| coordinates[row * rows + d * columns] = i);
                row += 1;
            }
            // The coordinates of the next line.
            for (i, &size) in place.iter_mut().zip(outer).rev() {
                *i += 1;
                if *i < size as i64 {
                    break;
                }
                *i = 0;
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Float, Int, Long};
    use pteron_tensor::{Bool, DimOrder, Tensor};

    fn numbered(sizes: &[usize]) -> Tensor {
        let n = sizes.iter().product::<usize>() as i32;
        t(sizes, &(0..n).collect::<Vec<_>>())
    }

    fn optional<'a>(list: &[Option<&'a Tensor>]) -> Arg<'a> {
        Arg::OptionalTensors(list.iter().map(|t| t.map(|t| t.view())).collect())
    }

    fn elements(t: &Tensor) -> Vec<i32> {
        t.to_dim_order(DimOrder::contiguous(t.rank())).unwrap().as_slice().unwrap().to_vec()
    }

    fn truths(sizes: &[usize], bits: &[u8]) -> Tensor {
        t(sizes, &bits.iter().map(|&b| Bool::from(b == 1)).collect::<Vec<_>>())
    }

    #[test]
    fn indexing_by_tensors_and_masks() {
        let x = numbered(&[2, 3, 4]);
        let (i, j) = (t(&[2], &[1i64, -1]), t(&[2, 1], &[0i32, 2]));
        let go = |list: &[Option<&Tensor>], sizes: &[usize]| {
            let r = call("aten::index.Tensor_out", &[a(&x), optional(list)], out(Int, sizes))?;
            assert_eq!(&**r.sizes(), sizes);
            Ok::<_, pteron_operator::Error>(elements(&r))
        };
        assert_eq!(go(&[None, None, Some(&i)], &[2, 3, 2]).unwrap()[..4], [1, 3, 5, 7]);
        assert_eq!(go(&[None, Some(&j), Some(&i)], &[2, 2, 2]).unwrap(), [1, 3, 9, 11, 13, 15, 21, 23]);
        // Index dimensions that are not adjacent come first.
        let k = t(&[2], &[0i64, 1]);
        assert_eq!(go(&[Some(&k), None, Some(&i)], &[2, 3]).unwrap(), [1, 5, 9, 15, 19, 23]);
        let mask = truths(&[2, 3], &[0, 1, 0, 0, 0, 1]);
        assert_eq!(go(&[Some(&mask)], &[2, 4]).unwrap(), [4, 5, 6, 7, 20, 21, 22, 23]);
        let far = t(&[1], &[4i64]);
        assert!(go(&[None, None, Some(&far)], &[2, 3, 1]).unwrap_err().to_string().contains("4"));
        assert!(go(&[None, Some(&mask)], &[2, 1]).is_err());
        assert!(go(&[None, None, None, Some(&i)], &[2]).is_err());
        let none = t::<i64>(&[0], &[]);
        assert_eq!(go(&[Some(&none)], &[0, 3, 4]).unwrap(), []);
    }

    #[test]
    fn index_select_and_embedding() {
        let x = numbered(&[3, 2]);
        let i = t(&[2], &[2i32, 0]);
        let r = call("aten::index_select.out", &[a(&x), int(0), a(&i)], out(Int, &[2, 2])).unwrap();
        assert_eq!(elements(&r), [4, 5, 0, 1]);
        let r =
            call("aten::embedding.out", &[a(&x), a(&t(&[1, 2], &[1i64, 1]))], out(Int, &[1, 2, 2])).unwrap();
        assert_eq!(elements(&r), [2, 3, 2, 3]);
        for bad in [-1i64, 3] {
            assert!(call("aten::embedding.out", &[a(&x), a(&t(&[1], &[bad]))], out(Int, &[1, 2])).is_err());
        }
    }

    #[test]
    fn index_put_writes_or_accumulates() {
        let x = t(&[3], &[0f32, 10.0, 20.0]);
        let (i, v) = (t(&[3], &[0i64, 0, -1]), t(&[3], &[1f32, 2.0, 3.0]));
        let args = [a(&x), optional(&[Some(&i)]), a(&v)];
        let r = call("aten::index_put.out", &args, out(Float, &[3])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[2.0, 10.0, 3.0]);
        let args = [optional(&[Some(&i)]), a(&v), Arg::Bool(true)];
        let r = call("aten::index_put_", &args, x.clone()).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[3.0, 10.0, 23.0]);
        let (one, seven) = (t(&[1], &[1i64]), t(&[], &[7i32]));
        let args = [optional(&[None, Some(&one)]), a(&seven)];
        let r = call("aten::index_put_", &args, numbered(&[2, 2])).unwrap();
        assert_eq!(elements(&r), [0, 7, 2, 7]);
    }

    #[test]
    fn nonzero_gives_the_coordinates() {
        let x = t(&[2, 2], &[0f32, f32::NAN, 0.0, 3.0]);
        for order in [[0, 1], [1, 0]] {
            let into = out(Long, &[2, 2]).to_dim_order(DimOrder::new(&order).unwrap()).unwrap();
            let r = call("aten::nonzero.out", &[a(&x)], into).unwrap();
            assert_eq!(&**r.sizes(), &[2, 2]);
            let r = r.to_dim_order(DimOrder::contiguous(2)).unwrap();
            assert_eq!(r.storage::<i64>().unwrap(), &[0, 1, 1, 1]);
        }
        let x = t(&[2, 3, 2], &[0i32, 4, 0, 0, 5, 0, 0, 0, 0, 6, 7, 8]);
        let r = call("aten::nonzero.out", &[a(&x)], out(Long, &[12, 3])).unwrap();
        let places = [[0, 0, 1], [0, 2, 0], [1, 1, 1], [1, 2, 0], [1, 2, 1]];
        assert_eq!((&**r.sizes(), r.storage::<i64>().unwrap()), (&[5, 3][..], places.as_flattened()));
        let r = call("aten::nonzero.out", &[a(&t(&[0, 3], &[0f32; 0]))], out(Long, &[0, 2])).unwrap();
        assert_eq!(&**r.sizes(), &[0, 2]);
        let r = call("aten::nonzero.out", &[a(&t(&[], &[5u8]))], out(Long, &[1, 0])).unwrap();
        assert_eq!(&**r.sizes(), &[1, 0]);
    }
}
