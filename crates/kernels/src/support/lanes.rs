//! Functions of the lanes of a tensor, that is, its rows along one dimension, in any layout.

use crate::support::dtype::{Compute, Store};
use crate::support::layout::{Layout, Walk};
use crate::support::map::expect_aligned;
use pteron_operator::{KernelContext, Result, ensure};
use pteron_tensor::{TensorView, TensorViewMut};
use smallvec::SmallVec;

/// Grain size: the smallest number of elements worth waking a thread for.
const GRAIN: usize = 1 << 14;

/// A buffer for the elements of a lane; on the stack unless the lane is long.
type Lane<C> = SmallVec<[C; 256]>;

/// Sets every lane of `out` along `dim` to `f` of the same lane of `x`. The out must have its final sizes: those
/// of `x`, except that the size along `dim` may differ.
pub(crate) fn map_lanes<C: Compute, O: Compute>(
    ctx: &KernelContext<'_>,
    x: &TensorView<'_>,
    dim: usize,
    out: &mut TensorViewMut<'_>,
    f: &(dyn Fn(&[C], &mut [O]) + Sync),
) -> Result<()> {
    let rank = x.rank();
    let fits = rank == out.rank() && (0..rank).all(|d| d == dim || x.sizes()[d] == out.sizes()[d]);
    ensure!(fits, "out: its shape {} does not follow from that of the input, {}", out.sizes(), x.sizes());
    if out.numel() == 0 {
        return Ok(());
    }
    expect_aligned(x.bytes(), x.dtype())?;
    expect_aligned(out.bytes(), out.dtype())?;
    let (from, into) = (Layout::of_tensor(x.meta()), Layout::of_tensor(out.meta()));
    let (n, step) = if rank == 0 { (1, 1) } else { (from.sizes[dim], from.strides()[dim]) };
    let (m, put) = if rank == 0 { (1, 1) } else { (into.sizes[dim], into.strides()[dim]) };

    // The dimensions stored outside `dim` index the blocks of the out; those inside index the lanes of a block.
    let order = *out.dim_order();
    let place = order.iter().position(|&d| d as usize == dim).unwrap_or(0);
    let loops = |dims: &[u8], l: &Layout| {
        let one = |&d: &u8| (l.sizes[d as usize], l.strides()[d as usize]);
        Walk::new(dims.iter().rev().map(one), 0)
    };
    let outer = &order[..place];
    let inner = order.get(place + 1..).unwrap_or(&[]);
    let lanes: usize = inner.iter().map(|&d| x.sizes()[d as usize]).product();
    let (blocks, first, second) = (loops(outer, &from), loops(inner, &from), loops(inner, &into));

    let load = C::loader(x.dtype())?;
    let store = O::storer(out.dtype())?;
    let size = out.dtype().size();
    let own = |at: usize| match (x.dtype() == C::DTYPE && (step == 1 || n == 1), x.storage::<C>()) {
        (true, Ok(all)) => all.get(at..at + n),
        _ => None,
    };
    let direct = out.dtype() == O::DTYPE && (put == 1 || m == 1);
    let block = lanes * m * size;
    let grain = (GRAIN / (lanes * n.max(m)).max(1)).max(1);
    ctx.pool().parallel_chunks_mut(out.bytes_mut(), block, grain, &|number, bytes| {
        let base = blocks.offset_at(number);
        let mut copy: Lane<C> = SmallVec::new();
        let mut result: Lane<O> = SmallVec::new();
        for lane in 0..lanes {
            let at = base + first.offset_at(lane);
            let to = second.offset_at(lane);
            let input = match own(at) {
                Some(all) => all,
                None => {
                    resize_lane(&mut copy, n);
                    if n > 0 {
                        load(x.bytes(), at, step, &mut copy);
                    }
                    &copy[..]
                }
            };
            if direct {
                f(input, &mut bytemuck::cast_slice_mut(bytes)[to..to + m]);
                continue;
            }
            resize_lane(&mut result, m);
            f(input, &mut result);
            if put == 1 {
                store(&result, &mut bytes[to * size..(to + m) * size]);
                continue;
            }
            store_strided(&result, store, bytes, to, put as usize, size);
        }
    });
    Ok(())
}

/// Resizes a lane. Unwinds with [`pteron_pool::out_of_memory`] if the allocation fails.
fn resize_lane<T: Compute>(lane: &mut Lane<T>, len: usize) {
    let more = len.saturating_sub(lane.len());
    if lane.try_reserve(more).is_err() {
        pteron_pool::out_of_memory(len.saturating_mul(size_of::<T>()));
    }
    lane.resize(len, T::default());
}

/// Stores the elements of `from` with stride `put`, from element `to` on.
fn store_strided<O: Compute>(
    from: &[O],
    store: Store<O>,
    bytes: &mut [u8],
    to: usize,
    put: usize,
    size: usize,
) {
    // One element at a time, through a buffer that is aligned for any type.
    let mut word = [0u64; 2];
    let word: &mut [u8] = bytemuck::cast_slice_mut(&mut word);
    for (i, x) in from.iter().enumerate() {
        store(std::slice::from_ref(x), &mut word[..size]);
        bytes[(to + i * put) * size..][..size].copy_from_slice(&word[..size]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_operator::{Generator, Scratch};
    use pteron_pool::Pool;
    use pteron_tensor::{DimOrder, ScalarType, Tensor, TensorMeta};

    /// Combines adjacent pairs along the dimension, for every dimension and several layouts and types.
    #[test]
    fn lanes_of_every_dimension_and_layout() {
        let sizes = [2, 6, 4, 8];
        let data: Vec<f32> = (0..384).map(|i| (i % 97) as f32).collect();
        let rows = Tensor::from_slice(&sizes, &data).unwrap();
        let (scratch, generator) = (Scratch::new(0), Generator::new(0));
        let orders = [[0, 1, 2, 3], [0, 2, 3, 1], [3, 1, 0, 2]].map(|o| DimOrder::new(&o).unwrap());
        for (from, to) in [(0, 0), (1, 0), (0, 1), (2, 2), (1, 2)] {
            let x = rows.to_dim_order(orders[from]).unwrap();
            for dim in 0..4 {
                let mut half = sizes;
                half[dim] /= 2;
                for dtype in [ScalarType::Float, ScalarType::Half, ScalarType::ComplexDouble] {
                    let meta = TensorMeta::new(dtype, &half, orders[to]).unwrap();
                    let mut out = Tensor::zeros(meta).unwrap();
                    let pool = Pool::new(2);
                    let ctx = KernelContext::new(&pool, &scratch, &generator);
                    map_lanes::<f32, f32>(&ctx, &x.view(), dim, &mut out.view_mut(), &|a, o| {
                        o.iter_mut().zip(a.chunks(2)).for_each(|(o, a)| *o = a[0] * 10.0 + a[1]);
                    })
                    .unwrap();
                    let stride = [192, 32, 8, 1][dim];
                    let mut got = vec![0f32; 192];
                    crate::support::convert::read(&out.view(), &Layout::of_tensor(out.meta()), &mut got)
                        .unwrap();
                    for (i, got) in got.into_iter().enumerate() {
                        let (outer, inner) = (i / (stride * half[dim]), i % stride);
                        let at = outer * stride * sizes[dim] + i / stride % half[dim] * 2 * stride + inner;
                        assert_eq!(got, data[at] * 10.0 + data[at + stride], "dim {dim} of {x:?}");
                    }
                }
            }
        }
    }
}
