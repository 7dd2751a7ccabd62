//! Reductions of a tensor over any of its dimensions.

use crate::support::dims::DimSet;
use crate::support::dtype::{Compute, Load, conversion};
use crate::support::layout::{Layout, Walk};
use crate::support::map::expect_aligned;
use pteron_operator::{Args, KernelContext, Result};
use pteron_tensor::{ScalarType, TensorMeta, TensorView, TensorViewMut};

/// A reduction of elements that are read as `C`.
pub(crate) trait Reducer<C: Compute>: Sync {
    /// The accumulator.
    type Acc: Copy;
    /// The type of the result, which is converted to the out's type when it is stored.
    type Out: Compute;
    /// Whether the elements of one result are accumulated strictly in order, because rounding makes the order
    /// observable.
    const IN_ORDER: bool = false;
    /// The accumulator before the first element.
    fn start(&self) -> Self::Acc;
    /// Accumulates one element: the `index`th in row-major order of the reduced dimensions.
    fn step(&self, acc: Self::Acc, x: C, index: usize) -> Self::Acc;
    /// Combines two accumulators.
    fn merge(&self, a: Self::Acc, b: Self::Acc) -> Self::Acc;
    /// The result over `count` elements.
    fn finish(&self, acc: Self::Acc, count: usize) -> Self::Out;
}

/// The number of independent accumulators over one row, so that the loop vectorises. Fixed, so that results depend only
/// on the input.
const LANES: usize = 8;
/// The number of elements read at a time.
const BLOCK: usize = 512;
/// The largest number of columns that are reduced together if the innermost dimension is kept.
const COLUMNS: usize = 64;
/// Grain size: the smallest number of elements worth waking a thread for.
const GRAIN: usize = 1 << 15;

/// The dimensions at an argument; all dimensions if the argument is absent or empty.
pub(crate) fn dims_at(args: &Args<'_>, arg: &'static str) -> Result<DimSet> {
    DimSet::for_reduction(arg, args.optional_ints(arg)?, args.meta("self")?.rank())
}

/// Resizes `out` to the sizes of `x` without `dims` (kept with size one if `keepdim`), and sets it
/// to the reductions over `dims`.
pub(crate) fn reduce<C: Compute, R: Reducer<C>>(
    ctx: &KernelContext<'_>,
    x: &TensorView<'_>,
    dims: DimSet,
    keepdim: bool,
    out: &mut TensorViewMut<'_>,
    reducer: &R,
) -> Result<()> {
    reduce_as(ctx, x, x.dtype(), dims, keepdim, out, reducer)
}

/// Like [`reduce`], but converts the elements to `dtype` first.
pub(crate) fn reduce_as<C: Compute, R: Reducer<C>>(
    ctx: &KernelContext<'_>,
    x: &TensorView<'_>,
    dtype: ScalarType,
    dims: DimSet,
    keepdim: bool,
    out: &mut TensorViewMut<'_>,
    reducer: &R,
) -> Result<()> {
    out.resize(&dims.reduced_sizes(x.sizes(), keepdim))?;
    expect_aligned(x.bytes(), x.dtype())?;
    expect_aligned(out.bytes(), out.dtype())?;
    let rank = x.rank();
    let from = Layout::of_tensor(x.meta());
    let one = |d: usize| (x.sizes()[d], from.strides()[d]);
    let reduced = Walk::new((0..rank).rev().filter(|&d| dims.contains(d)).map(one), 0);
    let count = (0..rank).filter(|&d| dims.contains(d)).map(|d| x.sizes()[d]).product();
    // The dimensions of x that correspond to those of the out, in the out's storage order.
    let same: Vec<usize> = (0..rank).filter(|&d| keepdim || !dims.contains(d)).collect();
    let order = out.dim_order().iter().rev().map(|&d| same[d as usize]);
    let kept_dims = Walk::new(order.filter(|&d| !dims.contains(d)).map(one), 0);

    let store = R::Out::storer(out.dtype())?;
    let size = out.dtype().size();
    let convert = conversion(x.dtype(), dtype);
    let job = Job { bytes: x.bytes(), load: C::loader(x.dtype())?, convert, reduced, count, reducer };
    pteron_pool::count(x.numel());
    let piece = (GRAIN / job.count.max(1)).max(1);
    ctx.pool().parallel_chunks_mut(out.bytes_mut(), piece * size, 1, &|number, bytes| {
        let start = number * piece;
        let mut results = [R::Out::default(); COLUMNS];
        let mut done = 0;
        kept_dims.each_run(start..start + bytes.len() / size, |at, stride, n| {
            for first in (0..n).step_by(COLUMNS) {
                let results = &mut results[..COLUMNS.min(n - first)];
                let at = (at as isize + first as isize * stride) as usize;
                job.run_reductions(at, stride, results);
                store(results, &mut bytes[done * size..(done + results.len()) * size]);
                done += results.len();
            }
        });
    });
    Ok(())
}

/// If a row-major tensor is a sequence of matrices that are reduced over their rows: the number of rows (the reduced
/// extent) and of columns (the kept inner extent) of each. `None` otherwise.
pub(crate) fn reduced_matrix_sizes(x: &TensorMeta, dims: DimSet) -> Option<(usize, usize)> {
    if !x.dim_order().is_contiguous() || x.numel() == 0 {
        return None;
    }
    let first = (0..x.rank()).find(|&d| dims.contains(d)).unwrap_or(x.rank());
    let end = (first..x.rank()).find(|&d| !dims.contains(d)).unwrap_or(x.rank());
    let rest: &[usize] = &x.sizes()[end..];
    (end..x.rank())
        .all(|d| !dims.contains(d))
        .then(|| (x.sizes()[first..end].iter().product(), rest.iter().product()))
}

struct Job<'a, C, R> {
    bytes: &'a [u8],
    load: Load<C>,
    convert: Option<fn(C) -> C>,
    reduced: Walk,
    count: usize,
    reducer: &'a R,
}

impl<C: Compute, R: Reducer<C>> Job<'_, C, R> {
    /// Reads and converts elements.
    fn read_block(&self, at: usize, stride: isize, block: &mut [C]) {
        (self.load)(self.bytes, at, stride, block);
        if let Some(convert) = self.convert {
            block.iter_mut().for_each(|x| *x = convert(*x));
        }
    }

    /// Computes the reductions whose first elements are at `at`, `at + stride`, ...
    fn run_reductions(&self, at: usize, stride: isize, results: &mut [R::Out]) {
        if stride == 1 && results.len() > 1 && self.reduced.inner_loop().1 != 1 {
            return self.reduce_columns(at, results);
        }
        for (i, result) in results.iter_mut().enumerate() {
            *result = self.reduce_row((at as isize + i as isize * stride) as usize);
        }
    }

    /// Computes one reduction, reading the elements along the reduced dimensions.
    fn reduce_row(&self, base: usize) -> R::Out {
        let mut lanes = [self.reducer.start(); LANES];
        let mut block = [C::default(); BLOCK];
        let mut index = 0;
        self.reduced.each_run(0..self.count, |at, stride, n| {
            for first in (0..n).step_by(BLOCK) {
                let block = &mut block[..BLOCK.min(n - first)];
                self.read_block((base + at).wrapping_add_signed(first as isize * stride), stride, block);
                if R::IN_ORDER {
                    for &x in &*block {
                        lanes[0] = self.reducer.step(lanes[0], x, index);
                        index += 1;
                    }
                    continue;
                }
                let (groups, rest) = block.as_chunks::<LANES>();
                for (g, group) in groups.iter().enumerate() {
                    for (l, acc) in lanes.iter_mut().enumerate() {
                        *acc = self.reducer.step(*acc, group[l], index + g * LANES + l);
                    }
                }
                let done = index + groups.len() * LANES;
                for (l, (acc, &x)) in lanes.iter_mut().zip(rest).enumerate() {
                    *acc = self.reducer.step(*acc, x, done + l);
                }
                index += block.len();
            }
        });
        let lanes = if R::IN_ORDER { &lanes[..1] } else { &lanes };
        let acc = lanes.iter().copied().reduce(|a, b| self.reducer.merge(a, b));
        self.reducer.finish(acc.unwrap_or(lanes[0]), self.count)
    }

    /// Computes reductions over adjacent columns, reading row by row.
    fn reduce_columns(&self, base: usize, results: &mut [R::Out]) {
        let n = results.len();
        let mut columns = [self.reducer.start(); COLUMNS];
        let mut block = [C::default(); COLUMNS];
        let mut index = 0;
        self.reduced.each_run(0..self.count, |at, stride, rows| {
            for i in 0..rows {
                let at = (base + at).wrapping_add_signed(i as isize * stride);
                self.read_block(at, 1, &mut block[..n]);
                for (acc, &x) in columns[..n].iter_mut().zip(&block) {
                    *acc = self.reducer.step(*acc, x, index);
                }
                index += 1;
            }
        });
        for (result, acc) in results.iter_mut().zip(columns) {
            *result = self.reducer.finish(acc, self.count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_operator::{Generator, Scratch};
    use pteron_pool::Pool;
    use pteron_tensor::{DimOrder, ScalarType, Tensor, TensorMeta};

    struct Sum;
    impl Reducer<f32> for Sum {
        type Acc = f64;
        type Out = f64;
        fn start(&self) -> f64 {
            0.0
        }
        fn step(&self, acc: f64, x: f32, index: usize) -> f64 {
            // Weighting by the index makes the result depend on the order of the elements.
            acc + x as f64 * (index + 1) as f64
        }
        fn merge(&self, a: f64, b: f64) -> f64 {
            a + b
        }
        fn finish(&self, acc: f64, count: usize) -> f64 {
            acc + count as f64
        }
    }

    #[test]
    fn every_set_of_dims_in_every_layout() {
        let sizes = [3, 20, 2, 70];
        let numel = sizes.iter().product::<usize>();
        let data: Vec<f32> = (0..numel).map(|i| (i * 7 % 101) as f32).collect();
        let rows = Tensor::from_slice(&sizes, &data).unwrap();
        let (scratch, generator) = (Scratch::new(0), Generator::new(0));
        for order in [[0, 1, 2, 3], [0, 2, 3, 1], [3, 1, 0, 2]] {
            let x = rows.to_dim_order(DimOrder::new(&order).unwrap()).unwrap();
            for mask in 0..16i64 {
                let list: Vec<i64> = (0..4).filter(|d| mask >> d & 1 == 1).collect();
                let dims = DimSet::from_list("dim", &list, 4).unwrap();
                let mut want = std::collections::BTreeMap::new();
                let mut seen = std::collections::BTreeMap::new();
                for (i, &v) in data.iter().enumerate() {
                    let index = [i / 2800, i / 140 % 20, i / 70 % 2, i % 70];
                    let key: Vec<usize> = (0..4).filter(|&d| !dims.contains(d)).map(|d| index[d]).collect();
                    let n: &mut f64 = seen.entry(key.clone()).or_default();
                    *n += 1.0;
                    *want.entry(key).or_insert(0.0) += v as f64 * *n + 1.0;
                }
                let want: Vec<f64> = want.into_values().collect();
                for (keepdim, threads) in [(false, 1), (true, 3)] {
                    let meta =
                        TensorMeta::contiguous(ScalarType::Double, &dims.reduced_sizes(x.sizes(), keepdim));
                    let mut out = Tensor::zeros(meta.unwrap()).unwrap();
                    let pool = Pool::new(threads);
                    let ctx = KernelContext::new(&pool, &scratch, &generator);
                    reduce(&ctx, &x.view(), dims, keepdim, &mut out.view_mut(), &Sum).unwrap();
                    assert_eq!(out.storage::<f64>().unwrap(), want, "dims {list:?} of order {order:?}");
                }
            }
        }
    }
}
