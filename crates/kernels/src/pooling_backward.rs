//! The gradients of max and average pooling of images and volumes.

use crate::support::convert::{all_values, indices};
use crate::support::dims::{to_positive, to_size};
use crate::support::dtype::{compute_type, dispatch};
use crate::support::rows::{expect_type, write_values};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{Shape, TensorMeta};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::max_pool2d_with_indices_backward.grad_input(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, int[2] dilation, bool ceil_mode, Tensor indices, *, Tensor(a!) grad_input) -> Tensor(a!)",
        DtypeSet::FLOATING,
        max_backward::<2>,
    ),
    Operator::new(
        "aten::max_pool3d_with_indices_backward.grad_input(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, int[3] dilation, bool ceil_mode, Tensor indices, *, Tensor(a!) grad_input) -> Tensor(a!)",
        DtypeSet::FLOATING,
        max_backward::<3>,
    ),
    Operator::new(
        "aten::avg_pool2d_backward.grad_input(Tensor grad_output, Tensor self, int[2] kernel_size, int[2] stride, int[2] padding, bool ceil_mode, bool count_include_pad, int? divisor_override, *, Tensor(a!) grad_input) -> Tensor(a!)",
        DtypeSet::FLOATING,
        avg_backward::<2>,
    ),
    Operator::new(
        "aten::avg_pool3d_backward.grad_input(Tensor grad_output, Tensor self, int[3] kernel_size, int[3] stride, int[3] padding, bool ceil_mode, bool count_include_pad, int? divisor_override, *, Tensor(a!) grad_input) -> Tensor(a!)",
        DtypeSet::FLOATING,
        avg_backward::<3>,
    ),
];

/// The sizes and parameters of the windows along one dimension.
#[derive(Clone, Copy)]
struct Slide {
    from: usize,
    to: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Slide {
    const NONE: Self = Self { from: 1, to: 1, kernel: 1, stride: 1, padding: 0, dilation: 1 };

    /// The extent of the `i`th window: its first element in the input, the number of its elements in the input, and the
    /// number including the padding.
    fn window_extent(&self, i: usize) -> (usize, usize, usize) {
        let start = i as i64 * self.stride as i64 - self.padding as i64;
        let step = self.dilation as i64;
        let end = start.saturating_add((self.kernel as i64 - 1).saturating_mul(step)).saturating_add(1);
        let padded = (end.min((self.from + self.padding) as i64) - start).max(0) as usize;
        let first = if start < 0 { start + (-start + step - 1) / step * step } else { start };
        let len = (end.min(self.from as i64) - first).max(0).unsigned_abs().div_ceil(step as u64);
        (first as usize, len as usize, padded)
    }
}

/// The windows of a pooling call over the last dimensions, padded in front to three with dimensions of size one.
struct Windows {
    slides: [Slide; 3],
    sizes: Shape,
}

/// The values of an argument: one for each of `N` dimensions, or one for all; an empty list gives `default`, if there
/// is one.
fn spatial_values<const N: usize>(
    args: &Args<'_>,
    index: usize,
    check: fn(&str, i64) -> Result<usize>,
    default: Option<[usize; N]>,
) -> Result<[usize; N]> {
    let list = args.ints(index)?;
    if let (true, Some(default)) = (list.is_empty(), default) {
        return Ok(default);
    }
    let mut all = [0; N];
    for (n, v) in all.iter_mut().zip(crate::support::dims::per_dim::<N>(args.name(index), list)?) {
        *n = check(args.name(index), v)?;
        // The limit is beyond any real size and rules out overflow.
        ensure!(*n as u64 <= 1 << 40, "{}: {v} is too large", args.name(index));
    }
    Ok(all)
}

impl Windows {
    /// `first` is the position of `kernel_size`; stride, padding, dilation (if `dilated`) and `ceil_mode`
    /// follow.
    fn new<const N: usize>(args: &Args<'_>, x: &TensorMeta, first: usize, dilated: bool) -> Result<Self> {
        let rank = x.rank();
        ensure!(
            rank == N + 1 || rank == N + 2,
            "self: expected {} or {} dimensions, found {x}",
            N + 1,
            N + 2
        );
        ensure!(!x.sizes()[rank - N - 1..].contains(&0), "self: {x} has empty images");
        let kernel = spatial_values::<N>(args, first, to_positive, None)?;
        let stride = spatial_values::<N>(args, first + 1, to_positive, Some(kernel))?;
        let padding = spatial_values::<N>(args, first + 2, to_size, None)?;
        let dilation =
            if dilated { spatial_values::<N>(args, first + 3, to_positive, None)? } else { [1; N] };
        let ceil = args.bool(first + 3 + dilated as usize)?;
        let mut sizes = *x.sizes();
        let mut slides = [Slide::NONE; 3];
        for d in 0..N {
            let (k, s, p, from) = (kernel[d], stride[d], padding[d], sizes[rank - N + d]);
            let reach = dilation[d].saturating_mul(k - 1).saturating_add(1);
            ensure!(
                p <= reach / 2,
                "{}: {p} is more than half of the window's {reach}",
                args.name(first + 2)
            );
            let room = (from + 2 * p).checked_sub(reach).map(|room| room + if ceil { s - 1 } else { 0 });
            let mut to = match room {
                Some(room) => room / s + 1,
                None if ceil && from + 2 * p + s > reach => 1,
                None => 0,
            };
            if ceil && to > 0 && (to - 1).saturating_mul(s) >= from + p {
                to -= 1;
            }
            ensure!(to > 0, "self: windows of {reach} do not fit dimension {d} of size {from}");
            sizes[rank - N + d] = to;
            slides[3 - N + d] = Slide { from, to, kernel: k, stride: s, padding: p, dilation: dilation[d] };
        }
        Ok(Self { slides, sizes })
    }

    /// The number of elements of a plane of the input and of a plane of the output.
    fn plane_sizes(&self) -> (usize, usize) {
        let product = |of: fn(&Slide) -> usize| self.slides.iter().map(of).product();
        (product(|s| s.from), product(|s| s.to))
    }

    /// Calls `f` with each window: its index, the number of its elements in the input, the number including
    /// the padding, and its start and length along each dimension.
    fn each_window(&self, mut f: impl FnMut(usize, usize, usize, [(usize, usize); 3])) {
        let [a, b, c] = &self.slides;
        for z in 0..a.to {
            let z_part = a.window_extent(z);
            for y in 0..b.to {
                let y_part = b.window_extent(y);
                for x in 0..c.to {
                    let parts = [z_part, y_part, c.window_extent(x)];
                    let count = parts.iter().map(|p| p.1).product();
                    let padded = parts.iter().map(|p| p.2).product();
                    f((z * b.to + y) * c.to + x, count, padded, parts.map(|p| (p.0, p.1)));
                }
            }
        }
    }

    /// Calls `f` with the offset, in a plane of the input, of each element of a window.
    fn each_pixel(&self, [z, y, x]: [(usize, usize); 3], mut f: impl FnMut(usize)) {
        let [a, b, c] = &self.slides;
        pteron_pool::progress(z.1 * y.1 * x.1);
        for i in 0..z.1 {
            for j in 0..y.1 {
                let row = ((z.0 + i * a.dilation) * b.from + y.0 + j * b.dilation) * c.from;
                for k in 0..x.1 {
                    f(row + x.0 + k * c.dilation);
                }
            }
        }
    }
}

/// The divisor of a window's sum, by the arguments of average pooling.
struct Divisor {
    fixed: Option<i64>,
    padded: bool,
}

impl Divisor {
    fn new(args: &Args<'_>, index: usize) -> Result<Self> {
        let fixed = if index + 1 < args.len() && !matches!(args.get(index + 1), pteron_operator::Arg::Out(_))
        {
            args.optional_int(index + 1)?
        } else {
            None
        };
        ensure!(fixed != Some(0), "divisor_override: zero");
        Ok(Self { fixed, padded: args.bool(index)? })
    }

    fn for_window(&self, count: usize, padded: usize) -> f64 {
        match self.fixed {
            Some(n) => n as f64,
            None => {
                if self.padded {
                    padded as f64
                } else {
                    count as f64
                }
            }
        }
    }
}

fn expect_sizes(name: &str, found: &Shape, expected: &Shape) -> Result<()> {
    ensure!(found == expected, "{name}: expected the shape {expected}, found {found}");
    Ok(())
}

/// The gradient of max pooling: each window's gradient is added to the window's largest element.
fn max_backward<const N: usize>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (grad, x, places) = (args.tensor("grad_output")?, args.meta("self")?, args.tensor("indices")?);
    let windows = Windows::new::<N>(args, x, 2, true)?;
    expect_sizes("grad_output", grad.sizes(), &windows.sizes)?;
    expect_sizes("indices", places.sizes(), &windows.sizes)?;
    expect_type("grad_output", x.dtype(), grad.dtype())?;
    let out = outs.tensor(0)?;
    expect_type("grad_input", x.dtype(), out.dtype())?;
    out.resize(x.sizes())?;
    let (from, to) = windows.plane_sizes();
    let places = indices(ctx, "indices", &places)?;
    let bad = places.iter().find(|&&at| at < 0 || at as u64 >= from as u64);
    ensure!(bad.is_none(), "indices: {} is out of range for {from} elements", bad.unwrap_or(&0));
    dispatch!("grad_output", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let grad = all_values::<C>(ctx, &grad)?;
        write_values::<C>(ctx, out, |out| {
            out.fill(0.0);
            for (i, (&g, &at)) in grad.iter().zip(places.iter()).enumerate() {
                out[i / to * from + at as usize] += g;
            }
            Ok(())
        })
    })
}

/// The gradient of average pooling: each window's gradient is divided equally among the window's elements.
fn avg_backward<const N: usize>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (grad, x) = (args.tensor("grad_output")?, args.meta("self")?);
    let windows = Windows::new::<N>(args, x, 2, false)?;
    let divisor = Divisor::new(args, 6)?;
    expect_sizes("grad_output", grad.sizes(), &windows.sizes)?;
    expect_type("grad_output", x.dtype(), grad.dtype())?;
    let out = outs.tensor(0)?;
    expect_type("grad_input", x.dtype(), out.dtype())?;
    out.resize(x.sizes())?;
    let (from, to) = windows.plane_sizes();
    dispatch!("grad_output", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let grad = all_values::<C>(ctx, &grad)?;
        write_values::<C>(ctx, out, |out| {
            out.fill(0.0);
            for (out, grad) in out.chunks_exact_mut(from).zip(grad.chunks_exact(to)) {
                windows.each_window(|i, count, padded, parts| {
                    let share = grad[i] / divisor.for_window(count, padded) as C;
                    windows.each_pixel(parts, |at| out[at] += share);
                });
            }
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, ints, out, t};
    use pteron_operator::{Arg, Result};
    use pteron_tensor::ScalarType::Float;
    use pteron_tensor::Tensor;

    fn max(i: &Tensor, [kernel, stride, padding]: [i64; 3]) -> Result<Vec<f32>> {
        let (x, g) = (t(&[1, 1, 1, 4], &[0f32; 4]), t(&[1, 1, 1, 2], &[10f32, 20.0]));
        let row = |n| ints(&[1, n]);
        let list =
            [a(&g), a(&x), row(kernel), row(stride), ints(&[0, padding]), row(2), Arg::Bool(false), a(i)];
        let r = call("aten::max_pool2d_with_indices_backward.grad_input", &list, out(Float, &[1, 1, 1, 4]))?;
        Ok(r.storage::<f32>()?.to_vec())
    }

    #[test]
    fn gradients_of_max_pooling_go_to_the_largest_element() {
        let at = |i: &[i64]| t(&[1, 1, 1, 2], i);
        assert_eq!(max(&at(&[2, 1]), [2, 1, 0]).unwrap(), [0.0, 20.0, 10.0, 0.0]);
        assert_eq!(max(&at(&[2, 2]), [2, 1, 0]).unwrap(), [0.0, 0.0, 30.0, 0.0]);
        for bad in [[0, 4], [0, -1]] {
            assert!(max(&at(&bad), [2, 1, 0]).is_err());
        }
    }

    #[test]
    fn gradients_of_average_pooling_are_divided_among_the_window() {
        let (x, g) = (t(&[1, 1, 4], &[0f32; 4]), t(&[1, 1, 3], &[3f32, 6.0, 9.0]));
        let share = |padded| {
            let list = [
                a(&g),
                a(&x),
                ints(&[1, 3]),
                ints(&[1, 2]),
                ints(&[0, 1]),
                Arg::Bool(true),
                Arg::Bool(padded),
                Arg::None,
            ];
            let r = call("aten::avg_pool2d_backward.grad_input", &list, out(Float, &[1, 1, 4])).unwrap();
            r.storage::<f32>().unwrap().to_vec()
        };
        assert_eq!(share(true), [1.0, 3.0, 2.0, 6.5]);
        assert_eq!(share(false), [1.5, 3.5, 2.0, 11.0]);
    }

    #[test]
    fn invalid_windows_are_errors() {
        let i = t(&[1, 1, 1, 2], &[0i64, 0]);
        let most = i64::MAX;
        for bad in
            [[0, 1, 0], [5, 1, 0], [2, 0, 0], [2, 1, 2], [most, 1, 0], [2, most, 0], [2, 1, most], [-1, 1, 0]]
        {
            assert!(max(&i, bad).is_err());
        }
        let list = [a(&i), a(&i), int(2), int(1), int(0), Arg::Bool(false), Arg::Bool(false), int(0)];
        assert!(call("aten::avg_pool2d_backward.grad_input", &list, out(Float, &[1, 1, 4])).is_err());
    }
}
