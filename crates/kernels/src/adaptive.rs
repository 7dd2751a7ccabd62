//! Adaptive max pooling, and the gradient of adaptive average pooling.

use crate::support::convert::all_values;
use crate::support::dims::to_size;
use crate::support::dtype::{compute_type, dispatch};
use crate::support::rows::{expect_type, write_values};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{ScalarType, Shape, TensorMeta};
use std::ops::Range;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::_adaptive_avg_pool2d_backward.out(Tensor grad_output, Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        avg_pool_backward::<2>,
    ),
    Operator::new(
        "aten::_adaptive_avg_pool3d_backward.out(Tensor grad_output, Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        avg_pool_backward::<3>,
    ),
    Operator::new(
        "aten::adaptive_max_pool2d.out(Tensor self, int[2] output_size, *, Tensor(a!) out, Tensor(b!) indices) -> (Tensor(a!) out, Tensor(b!) indices)",
        DtypeSet::REAL,
        max_pool::<2>,
    ),
    Operator::new(
        "aten::adaptive_max_pool3d.out(Tensor self, int[3] output_size, *, Tensor(a!) out, Tensor(b!) indices) -> (Tensor(a!) out, Tensor(b!) indices)",
        DtypeSet::REAL,
        max_pool::<3>,
    ),
];

/// The input elements that window `i` of `to` adaptive windows covers, in a dimension of size `from`.
fn adaptive_window(i: usize, from: usize, to: usize) -> Range<usize> {
    let at = |i: usize| i as u128 * from as u128;
    (at(i) / to as u128) as usize..at(i + 1).div_ceil(to as u128) as usize
}

/// The windows of a pooling call over the last dimensions, padded in front to three with dimensions of size one.
struct Windows {
    planes: usize,
    from: [usize; 3],
    to: [usize; 3],
}

impl Windows {
    fn new<const N: usize>(x: &TensorMeta, to: &[usize]) -> Result<(Self, Shape)> {
        let rank = x.rank();
        ensure!(
            rank == N + 1 || rank == N + 2,
            "self: expected {} or {} dimensions, found {x}",
            N + 1,
            N + 2
        );
        ensure!(!x.sizes()[rank - N..].contains(&0), "self: {x} has empty images");
        let mut sizes = *x.sizes();
        sizes[rank - N..].copy_from_slice(to);
        let (mut a, mut b) = ([1; 3], [1; 3]);
        a[3 - N..].copy_from_slice(&x.sizes()[rank - N..]);
        b[3 - N..].copy_from_slice(to);
        Ok((Self { planes: x.sizes()[..rank - N].iter().product(), from: a, to: b }, sizes))
    }

    /// Calls `f` with the index of each window and the ranges that it covers.
    fn each_window(&self, mut f: impl FnMut(usize, [Range<usize>; 3])) {
        let [d, h, w] = self.to;
        for z in 0..d {
            for y in 0..h {
                for x in 0..w {
                    let part = |k: usize, i: usize| adaptive_window(i, self.from[k], self.to[k]);
                    f((z * h + y) * w + x, [part(0, z), part(1, y), part(2, x)]);
                }
            }
        }
    }

    /// Calls `f` with the offset, in a plane of the input, of each element of a window, in row-major order.
    fn each_pixel(&self, [d, h, w]: [Range<usize>; 3], mut f: impl FnMut(usize)) {
        let [_, height, width] = self.from;
        pteron_pool::progress(d.len() * h.len() * w.len());
        for z in d {
            for y in h.clone() {
                for x in w.clone() {
                    f((z * height + y) * width + x);
                }
            }
        }
    }
}

fn output_size<const N: usize>(args: &Args<'_>) -> Result<[usize; N]> {
    let list = args.ints("output_size")?;
    ensure!(list.len() == N, "output_size: expected {N} numbers, found {list:?}");
    let mut sizes = [0; N];
    for (size, &s) in sizes.iter_mut().zip(list) {
        *size = to_size("output_size", s)?;
    }
    Ok(sizes)
}

/// The gradient of adaptive average pooling: each window's gradient is divided equally among the window's elements.
fn avg_pool_backward<const N: usize>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
) -> Result<()> {
    let (grad, x) = (args.tensor("grad_output")?, args.meta("self")?);
    ensure!(
        grad.rank() == x.rank()
            && grad.rank() >= N
            && grad.sizes()[..x.rank() - N] == x.sizes()[..x.rank() - N],
        "grad_output: the shape {} does not go with the input's, {}",
        grad.sizes(),
        x.sizes()
    );
    let (windows, _) = Windows::new::<N>(x, &grad.sizes()[x.rank() - N..])?;
    expect_type("grad_output", x.dtype(), grad.dtype())?;
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    out.resize(x.sizes())?;
    let (from, to) = (windows.from.iter().product::<usize>(), windows.to.iter().product::<usize>());
    dispatch!("grad_output", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let grad = all_values::<C>(ctx, &grad)?;
        write_values::<C>(ctx, out, |out| {
            out.fill(0.0);
            for plane in 0..windows.planes {
                let (out, grad) = (&mut out[plane * from..][..from], &grad[plane * to..][..to]);
                windows.each_window(|i, parts| {
                    let count: usize = parts.iter().map(|p| p.len()).product();
                    let share = grad[i] / count as C;
                    windows.each_pixel(parts, |at| out[at] += share);
                });
            }
            Ok(())
        })
    })
}

/// Adaptive max pooling: the largest element of each window and its offset in the image. NaN counts as largest.
fn max_pool<const N: usize>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    let (windows, sizes) = Windows::new::<N>(x.meta(), &output_size::<N>(args)?)?;
    let [out, indices] = outs.tensors([0, 1])?;
    expect_type("out", x.dtype(), out.dtype())?;
    expect_type("indices", ScalarType::Long, indices.dtype())?;
    out.resize(&sizes)?;
    indices.resize(&sizes)?;
    let (from, to) = (windows.from.iter().product::<usize>(), windows.to.iter().product::<usize>());
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        let values = all_values::<C>(ctx, &x)?;
        let mut positions = ctx.scratch::<i64>(out.numel())?;
        for plane in 0..windows.planes {
            let x = &values[plane * from..][..from];
            windows.each_window(|i, parts| {
                let mut best: Option<usize> = None;
                windows.each_pixel(parts, |at| {
                    // Not comparable to itself: NaN.
                    let better = best.is_none_or(|b| x[at] > x[b] || x[at].partial_cmp(&x[at]).is_none());
                    if better {
                        best = Some(at);
                    }
                });
                positions[plane * to + i] = best.unwrap_or(0) as i64;
            });
        }
        write_values::<C>(ctx, out, |out| {
            for (i, (out, &at)) in out.iter_mut().zip(positions.iter()).enumerate() {
                *out = values[i / to * from + at as usize];
            }
            Ok(())
        })?;
        write_values::<i64>(ctx, indices, |to| {
            to.copy_from_slice(&positions);
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, ints, out, t};
    use pteron_tensor::ScalarType::{Float, Long};
    use pteron_tensor::{DimOrder, Tensor};

    #[test]
    fn windows_overlap_where_sizes_do_not_divide() {
        let x =
            t(&[1, 1, 1, 5], &[1f32, 2.0, 3.0, 4.0, 5.0]).to_dim_order(DimOrder::channels_last(4)).unwrap();
        let outs = [out(Float, &[1, 1, 1, 7]), out(Long, &[1, 1, 1, 7])];
        let [_, i] = call_many("aten::adaptive_max_pool2d.out", &[a(&x), ints(&[1, 7])], outs).unwrap();
        assert_eq!(i.storage::<i64>().unwrap(), &[0, 1, 2, 2, 3, 4, 4]);
        let g = t(&[1, 1, 1, 2], &[3f32, 6.0]);
        let r = call("aten::_adaptive_avg_pool2d_backward.out", &[a(&g), a(&x)], out(Float, &[1, 1, 1, 5]))
            .unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[1.0, 1.0, 3.0, 2.0, 2.0]);
    }

    #[test]
    fn no_windows_and_no_elements() {
        let x = t(&[1, 2, 2], &[1f32, 2.0, 3.0, 4.0]);
        let pool = |x: &Tensor, size: &[i64]| {
            let outs = [out(Float, &[1, 2, 2]), out(Long, &[1, 2, 2])];
            call_many("aten::adaptive_max_pool2d.out", &[a(x), ints(size)], outs)
        };
        assert_eq!(pool(&x, &[0, 2]).unwrap()[0].numel(), 0);
        for bad in [&[-1, 2][..], &[2], &[i64::MAX, i64::MAX], &[3, 3]] {
            assert!(pool(&x, bad).is_err());
        }
        assert!(pool(&t::<f32>(&[1, 0, 2], &[]), &[1, 1]).is_err());
    }
}
