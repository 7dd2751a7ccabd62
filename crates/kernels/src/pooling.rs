//! Pooling over windows of one to three spatial dimensions.

use crate::support::convert::{all_values, write_row_major};
use crate::support::dims::to_size;
use crate::support::dtype::{Cast, Compute, compute_type, dispatch, expect_dtype};
use crate::support::map::expect_out;
use pteron_operator::facts::{Pool2d, PoolReduce};
use pteron_operator::{
    Args, DtypeSet, Error, KernelContext, Meaning, Operator, Outs, Result, Rounding, ensure,
};
use pteron_tensor::{Scalar, ScalarType, Shape, TensorMeta};
use std::ops::Range;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::avg_pool1d.out(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, bool ceil_mode=False, bool count_include_pad=True, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL,
        avg_pool::<1>,
    ),
    Operator::new(
        "aten::avg_pool2d.out(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL,
        avg_pool::<2>,
    )
    .rounding(Rounding::Once)
    .any_layout()
    .means(avg_meaning),
    Operator::new(
        "aten::avg_pool3d.out(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, bool ceil_mode=False, bool count_include_pad=True, int? divisor_override=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL,
        avg_pool::<3>,
    ),
    Operator::new(
        "aten::max_pool1d_with_indices.out(Tensor self, int[1] kernel_size, int[1] stride=[], int[1] padding=0, int[1] dilation=1, bool ceil_mode=False, *, Tensor(a!) out, Tensor(b!) indices) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::REAL,
        max_pool::<1>,
    ),
    Operator::new(
        "aten::max_pool2d_with_indices.out(Tensor self, int[2] kernel_size, int[2] stride=[], int[2] padding=0, int[2] dilation=1, bool ceil_mode=False, *, Tensor(a!) out, Tensor(b!) indices) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::REAL,
        max_pool::<2>,
    )
    .rounding(Rounding::Exact)
    .any_layout()
    .means(max_meaning),
    Operator::new(
        "aten::max_pool3d_with_indices.out(Tensor self, int[3] kernel_size, int[3] stride=[], int[3] padding=0, int[3] dilation=1, bool ceil_mode=False, *, Tensor(a!) out, Tensor(b!) indices) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::REAL,
        max_pool::<3>,
    ),
    Operator::new(
        "aten::adaptive_avg_pool1d.out(Tensor self, SymInt[1] output_size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        adaptive_avg_pool::<1>,
    ),
    Operator::new(
        "aten::adaptive_avg_pool2d.out(Tensor self, SymInt[2] output_size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        adaptive_avg_pool::<2>,
    ),
    Operator::new(
        "aten::adaptive_avg_pool3d.out(Tensor self, SymInt[3] output_size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        adaptive_avg_pool::<3>,
    ),
    Operator::new(
        "aten::_adaptive_avg_pool2d.out(Tensor self, SymInt[2] output_size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        adaptive_avg_pool::<2>,
    )
    .rounding(Rounding::Once)
    .any_layout(),
    Operator::new(
        "aten::_adaptive_avg_pool3d.out(Tensor self, SymInt[3] output_size, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        adaptive_avg_pool::<3>,
    ),
];

/// Height and width, from a list of one or two values; an empty or absent list gives `absent`.
fn height_and_width(args: &Args<'_>, arg: &'static str, absent: Option<[usize; 2]>) -> Option<[usize; 2]> {
    let one = |v: i64| usize::try_from(v).ok();
    match args.optional_ints(arg).ok()? {
        None | Some([]) => absent,
        Some(&[v]) => Some([one(v)?, one(v)?]),
        Some(&[h, w]) => Some([one(h)?, one(w)?]),
        Some(_) => None,
    }
}

fn max_meaning(args: &Args<'_>) -> Option<Meaning> {
    let kernel = height_and_width(args, "kernel_size", None)?;
    Some(Meaning::Pool(Pool2d {
        reduce: PoolReduce::Max,
        kernel,
        stride: height_and_width(args, "stride", Some(kernel))?,
        padding: height_and_width(args, "padding", Some([0; 2]))?,
        dilation: height_and_width(args, "dilation", Some([1; 2]))?,
        ceil: args.bool("ceil_mode").ok()?,
    }))
}

fn avg_meaning(args: &Args<'_>) -> Option<Meaning> {
    let kernel = height_and_width(args, "kernel_size", None)?;
    let reduce = match args.optional_int("divisor_override").ok()? {
        Some(divisor) => PoolReduce::SumDiv(Some(divisor).filter(|&d| d != 0)?),
        None if args.bool("count_include_pad").ok()? => PoolReduce::Avg { count_include_pad: true },
        None => PoolReduce::Avg { count_include_pad: false },
    };
    Some(Meaning::Pool(Pool2d {
        reduce,
        kernel,
        stride: height_and_width(args, "stride", Some(kernel))?,
        padding: height_and_width(args, "padding", Some([0; 2]))?,
        dilation: [1; 2],
        ceil: args.bool("ceil_mode").ok()?,
    }))
}

/// The windows of a pooling call over the last `D` dimensions, padded in front to three with dimensions of size one.
struct Windows {
    /// The number of planes: the product of the leading dimensions.
    planes: usize,
    input: [usize; 3],
    output: [usize; 3],
    kernel: [usize; 3],
    stride: [usize; 3],
    padding: [usize; 3],
    dilation: [usize; 3],
    sizes: Shape,
}

/// The values of an argument, one for all `D` dimensions or one for each, padded to three in front; an empty list gives
/// `default`.
fn spatial_values<const D: usize>(
    args: &Args<'_>,
    index: usize,
    default: [usize; 3],
    least: i64,
) -> Result<[usize; 3]> {
    let (name, list) = (args.name(index), args.ints(index)?);
    if list.is_empty() {
        return Ok(default);
    }
    ensure!(list.len() == 1 || list.len() == D, "{name}: expected 1 or {D} numbers, found {list:?}");
    let mut all = [if least == 1 { 1 } else { 0 }; 3];
    for d in 0..D {
        let value = list[if list.len() == 1 { 0 } else { d }];
        ensure!((least..=1 << 30).contains(&value), "{name}: {value} is not between {least} and 2^30");
        all[3 - D + d] = value as usize;
    }
    Ok(all)
}

impl Windows {
    /// The number of planes and the spatial sizes of argument 0: `D` spatial dimensions and channels, with or without a
    /// batch dimension.
    fn image_sizes<const D: usize>(x: &TensorMeta) -> Result<(usize, [usize; 3])> {
        let rank = x.rank();
        ensure!(
            rank == D + 1 || rank == D + 2,
            "self: expected {} or {} dimensions, found the shape {}",
            D + 1,
            D + 2,
            x.sizes()
        );
        let mut input = [1; 3];
        input[3 - D..].copy_from_slice(&x.sizes()[rank - D..]);
        let planes = x.sizes()[..rank - D].iter().try_fold(1usize, |n, &s| n.checked_mul(s));
        let planes =
            planes.ok_or_else(|| Error::invalid(format!("self: the shape {} overflows", x.sizes())))?;
        Ok((planes, input))
    }

    /// Reads the arguments kernel, stride and padding (1 to 3), ceil_mode, and dilation if the operator has it.
    fn read<const D: usize>(args: &Args<'_>, dilation: Option<usize>, ceil: usize) -> Result<Self> {
        let x = args.meta("self")?;
        let (planes, input) = Self::image_sizes::<D>(x)?;
        ensure!(!args.ints("kernel_size")?.is_empty(), "kernel_size: the list is empty");
        let kernel = spatial_values::<D>(args, 1, [1; 3], 1)?;
        let stride = spatial_values::<D>(args, 2, kernel, 1)?;
        let padding = spatial_values::<D>(args, 3, [0; 3], 0)?;
        let dilation = match dilation {
            Some(index) => spatial_values::<D>(args, index, [1; 3], 1)?,
            None => [1; 3],
        };
        let ceil = args.bool(ceil)?;
        let mut output = [1; 3];
        for d in 3 - D..3 {
            let reach = dilation[d] * (kernel[d] - 1) + 1;
            ensure!(
                padding[d] <= reach / 2,
                "padding: {} is more than half of the window's {reach}",
                padding[d]
            );
            let last = if ceil { stride[d] - 1 } else { 0 };
            let room = (input[d] + 2 * padding[d] + last).checked_sub(reach);
            let room = room.ok_or_else(|| {
                Error::invalid(format!(
                    "kernel_size: {kernel:?} is larger than the padded shape {}",
                    x.sizes()
                ))
            })?;
            output[d] = room / stride[d] + 1;
            // The last window must start inside the input or the padding before it.
            if ceil && (output[d] - 1) * stride[d] >= input[d] + padding[d] {
                output[d] -= 1;
            }
        }
        let mut sizes = *x.sizes();
        let rank = sizes.rank();
        sizes[rank - D..].copy_from_slice(&output[3 - D..]);
        Ok(Self { planes, input, output, kernel, stride, padding, dilation, sizes })
    }

    /// The number of pixels of a plane of the input.
    fn input_pixels(&self) -> usize {
        self.input.iter().product()
    }

    /// The coordinates of an output pixel.
    fn pixel_coordinates(&self, at: usize) -> [usize; 3] {
        let [_, h, w] = self.output;
        [at / (h * w), at / w % h, at % w]
    }

    /// The taps of a window that are in bounds of the input along dimension `d`, and the input position of tap 0.
    fn taps_in_bounds(&self, d: usize, o: usize) -> (Range<usize>, isize) {
        let start = (o * self.stride[d]) as isize - self.padding[d] as isize;
        let step = self.dilation[d] as isize;
        let first = if start < 0 { (-start + step - 1) / step } else { 0 };
        let end =
            (self.input[d] as isize - start + step - 1).div_euclid(step).clamp(0, self.kernel[d] as isize);
        (first.min(end) as usize..end as usize, start)
    }

    /// The index that PyTorch reports for a window without pixels, that of the first tap not before the input; it may
    /// be out of bounds.
    fn window_start(&self, at: usize) -> i64 {
        let place = self.pixel_coordinates(at);
        (0..3).fold(0, |index, d| {
            let (_, start) = self.taps_in_bounds(d, place[d]);
            let behind = if start < 0 {
                (-start + self.dilation[d] as isize - 1) / self.dilation[d] as isize
            } else {
                0
            };
            let first = (start + behind * self.dilation[d] as isize) as i64;
            index.wrapping_mul(self.input[d] as i64).wrapping_add(first)
        })
    }

    /// The part of the input that each window covers.
    fn window_spans(&self) -> Reach {
        let span = |d: usize, o: usize| {
            let (taps, start) = self.taps_in_bounds(d, o);
            let first = (start + (taps.start * self.dilation[d]) as isize).max(0) as usize;
            let from = o * self.stride[d];
            let padded = (from + self.kernel[d]).min(self.input[d] + 2 * self.padding[d]) - from;
            Span { first, count: taps.len(), padded }
        };
        let spans = [0, 1, 2].map(|d| (0..self.output[d]).map(|o| span(d, o)).collect());
        Reach { spans, step: self.dilation, input: self.input }
    }
}

/// The part of the input, along one dimension, that a window covers.
#[derive(Clone, Copy)]
struct Span {
    /// The window's first pixel in the input.
    first: usize,
    /// The number of pixels of the window that lie in the input.
    count: usize,
    /// The number of pixels of the window that lie in the input or its padding.
    padded: usize,
}

/// The spans of all windows, for each coordinate along each dimension of the output.
struct Reach {
    spans: [Vec<Span>; 3],
    /// The distance between adjacent pixels of a window (the dilation).
    step: [usize; 3],
    input: [usize; 3],
}

impl Reach {
    /// Calls `f` with the index and the spans of each window, in the order of the output's pixels.
    fn each_window(&self, mut f: impl FnMut(usize, [Span; 3])) {
        let [depth, height, width] = &self.spans;
        let mut at = 0;
        for &z in depth {
            for &y in height {
                for &x in width {
                    f(at, [z, y, x]);
                    at += 1;
                }
                pteron_pool::progress(z.count * y.count * width.iter().map(|x| x.count).sum::<usize>());
            }
        }
    }

    /// Calls `f` with the index in the plane of every pixel of a window.
    #[inline(always)]
    fn each_pixel(&self, [z, y, x]: [Span; 3], mut f: impl FnMut(usize)) {
        let [_, height, width] = self.input;
        for i in 0..z.count {
            for j in 0..y.count {
                let row =
                    ((z.first + i * self.step[0]) * height + y.first + j * self.step[1]) * width + x.first;
                for k in 0..x.count {
                    f(row + k * self.step[2]);
                }
            }
        }
    }

    /// The sum of the pixels of a window of an image.
    #[inline(always)]
    fn sum_window<C: Compute>(&self, window: [Span; 3], image: &[C]) -> f64 {
        let mut sum = 0.0;
        self.each_pixel(window, |i| sum += image[i].to_f64());
        sum
    }
}

/// Grain size: the smallest amount of work worth waking a thread for.
const GRAIN: usize = 1 << 14;

/// The smallest value of a scalar type: negative infinity for floating-point types.
fn least_value(dtype: ScalarType) -> Scalar {
    match dtype {
        ScalarType::Byte => Scalar::Int(0),
        ScalarType::Char => Scalar::Int(i8::MIN.into()),
        ScalarType::Short => Scalar::Int(i16::MIN.into()),
        ScalarType::Int => Scalar::Int(i32::MIN.into()),
        ScalarType::Long => Scalar::Int(i64::MIN),
        _ => Scalar::Double(f64::NEG_INFINITY),
    }
}

/// Average pooling. Padding counts as zeros, unless `count_include_pad` is false.
fn avg_pool<const D: usize>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let windows = Windows::read::<D>(args, None, 4)?;
    let with_padding = args.bool("count_include_pad")?;
    let divisor = if D == 1 { None } else { args.optional_int("divisor_override")? };
    ensure!(divisor != Some(0), "divisor_override: it is zero");
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    expect_dtype("self", x.dtype(), DtypeSet::REAL)?;
    expect_out(x.dtype(), out.dtype())?;
    out.resize(&windows.sizes)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let (from, to) = (windows.input_pixels(), windows.output.iter().product::<usize>());
    let work = windows.kernel.iter().fold(to, |work, &k| work.saturating_mul(k)).max(1);
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        let all = all_values::<C>(ctx, &x)?;
        let (all, reach) = (&*all, windows.window_spans());
        let pixels = |span: Span| if with_padding { span.padded } else { span.count };
        write_row_major::<C>(ctx, out, |out| {
            ctx.pool().parallel_chunks_mut(out, to.max(1), (GRAIN / work).max(1), &|plane, out| {
                let image = &all[plane * from..(plane + 1) * from];
                reach.each_window(|at, window| {
                    let n = match divisor {
                        Some(n) => n as f64,
                        None => window.map(pixels).iter().product::<usize>() as f64,
                    };
                    out[at] = C::from_f64(reach.sum_window(window, image) / n);
                });
            });
            Ok(())
        })
    })
}

/// Max pooling: the largest element of each window and its index in the plane. NaN counts as largest.
fn max_pool<const D: usize>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let windows = Windows::read::<D>(args, Some(4), 5)?;
    let x = args.tensor("self")?;
    expect_dtype("self", x.dtype(), DtypeSet::REAL)?;
    let [out, indices] = outs.tensors([0, 1])?;
    expect_out(x.dtype(), out.dtype())?;
    ensure!(indices.dtype() == ScalarType::Long, "indices: expected int64, found {}", indices.dtype());
    out.resize(&windows.sizes)?;
    indices.resize(&windows.sizes)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let (from, to) = (windows.input_pixels(), windows.output.iter().product::<usize>());
    let work = windows.kernel.iter().fold(to, |work, &k| work.saturating_mul(k)).max(1);
    let grain = (GRAIN / work).max(1);
    dispatch!("self", compute_type(x.dtype()), COMPUTE_REAL, C => {
        let all = all_values::<C>(ctx, &x)?;
        let (all, reach) = (&*all, windows.window_spans());
        // Computes the indices first, then reads the values at the indices. The index of a window without pixels is
        // stored complemented (negative).
        let mut positions = ctx.scratch::<i64>(windows.planes * to)?;
        ctx.pool().parallel_chunks_mut(&mut positions, to.max(1), grain, &|plane, positions| {
            let image = &all[plane * from..(plane + 1) * from];
            reach.each_window(|at, window| {
                if window.iter().any(|span| span.count == 0) {
                    positions[at] = !windows.window_start(at);
                    return;
                }
                let [z, y, x] = window.map(|span| span.first);
                let mut place = (z * reach.input[1] + y) * reach.input[2] + x;
                let mut max = image[place];
                reach.each_pixel(window, |i| {
                    let value = image[i];
                    #[expect(clippy::eq_op, reason = "NaN differs from itself")]
                    if value > max || value != value {
                        (max, place) = (value, i);
                    }
                });
                positions[at] = place as i64;
            });
        });
        let (positions, least) = (&*positions, C::from_scalar(least_value(x.dtype())));
        write_row_major::<C>(ctx, out, |out| {
            for (i, (out, &at)) in out.iter_mut().zip(positions).enumerate() {
                *out = if at < 0 { least } else { all[i / to * from + at as usize] };
            }
            Ok(())
        })?;
        write_row_major::<i64>(ctx, indices, |out| {
            out.iter_mut().zip(positions).for_each(|(out, &at)| *out = if at < 0 { !at } else { at });
            Ok(())
        })
    })
}

/// Adaptive average pooling: windows that divide the input evenly among an output of given sizes.
fn adaptive_avg_pool<const D: usize>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
) -> Result<()> {
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    let (_, input) = Windows::image_sizes::<D>(x.meta())?;
    let list = args.ints("output_size")?;
    ensure!(list.len() == D, "output_size: expected {D} numbers, found {list:?}");
    let mut output = [1; 3];
    for (d, &s) in list.iter().enumerate() {
        output[3 - D + d] = to_size("output_size", s)?;
    }
    ensure!(input.iter().all(|&s| s > 0), "self: the shape {} has no pixels to take means of", x.sizes());
    expect_dtype("self", x.dtype(), DtypeSet::FLOATING)?;
    expect_out(x.dtype(), out.dtype())?;
    let mut sizes = *x.sizes();
    let rank = sizes.rank();
    sizes[rank - D..].copy_from_slice(&output[3 - D..]);
    out.resize(&sizes)?;
    let (from, to) = (input.iter().product::<usize>(), output.iter().product::<usize>());
    if out.numel() == 0 {
        return Ok(());
    }
    let span = |d: usize, o: usize| {
        let (first, end) = (o * input[d] / output[d], ((o + 1) * input[d]).div_ceil(output[d]));
        Span { first, count: end - first, padded: end - first }
    };
    let spans = [0, 1, 2].map(|d| (0..output[d]).map(|o| span(d, o)).collect());
    let reach = Reach { spans, step: [1; 3], input };
    dispatch!("self", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let all = all_values::<C>(ctx, &x)?;
        let all = &*all;
        write_row_major::<C>(ctx, out, |out| {
            ctx.pool().parallel_chunks_mut(out, to.max(1), (GRAIN / from).max(1), &|plane, out| {
                let image = &all[plane * from..(plane + 1) * from];
                reach.each_window(|at, window| {
                    let n: usize = window.iter().map(|span| span.count).product();
                    out[at] = C::from_f64(reach.sum_window(window, image) / n as f64);
                });
            });
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, ints, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Float, Long};
    use pteron_tensor::{DimOrder, Tensor};

    fn numbered(sizes: &[usize]) -> Tensor {
        let n = sizes.iter().product::<usize>();
        t(sizes, &(0..n).map(|i| i as f32).collect::<Vec<_>>())
    }

    fn f32s(t: &Tensor) -> Vec<f32> {
        t.to_dim_order(DimOrder::contiguous(t.rank())).unwrap().as_slice().unwrap().to_vec()
    }

    #[test]
    fn average_pooling() {
        let x = numbered(&[1, 3, 3]);
        let args = [a(&x), ints(&[2]), ints(&[2]), ints(&[1])];
        let r = call("aten::avg_pool2d.out", &args, out(Float, &[1, 2, 2])).unwrap();
        assert_eq!(f32s(&r), [0.0, 0.75, 2.25, 6.0]);
        let (no, yes) = (Arg::Bool(false), Arg::Bool(true));
        let args = [a(&x), ints(&[2]), ints(&[2]), ints(&[1]), no.clone(), no];
        let r = call("aten::avg_pool2d.out", &args, out(Float, &[1, 2, 2])).unwrap();
        assert_eq!(f32s(&r), [0.0, 1.5, 4.5, 6.0]);
        let args = [a(&x), ints(&[2]), ints(&[2]), ints(&[0]), yes.clone(), yes, int(2)];
        let r = call("aten::avg_pool2d.out", &args, out(Float, &[1, 2, 2])).unwrap();
        assert_eq!(f32s(&r), [4.0, 3.5, 6.5, 4.0]);
        let r =
            call("aten::avg_pool1d.out", &[a(&numbered(&[1, 4])), ints(&[2])], out(Float, &[1, 2])).unwrap();
        assert_eq!(f32s(&r), [0.5, 2.5]);
        let r =
            call("aten::_adaptive_avg_pool2d.out", &[a(&x), ints(&[2, 1])], out(Float, &[1, 2, 1])).unwrap();
        assert_eq!(f32s(&r), [2.5, 5.5]);
        for bad in [[0, 1, 0], [2, 0, 0], [2, 1, 2], [4, 1, 0], [i64::MAX, 1, 1], [2, 1, -1]] {
            let args = [a(&x), ints(&bad[..1]), ints(&bad[1..2]), ints(&bad[2..])];
            assert!(call("aten::avg_pool2d.out", &args, out(Float, &[1, 2, 2])).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn max_pooling_and_its_indices() {
        let x = t(&[1, 1, 3, 3], &[1f32, 9.0, 2.0, f32::NAN, 5.0, 9.0, -1.0, 0.0, -3.0]);
        let x = x.to_dim_order(DimOrder::channels_last(4)).unwrap();
        let outs = [out(Float, &[1, 1, 2, 2]), out(Long, &[1, 1, 2, 2])];
        let [v, i] =
            call_many("aten::max_pool2d_with_indices.out", &[a(&x), ints(&[2]), ints(&[1])], outs).unwrap();
        let v = f32s(&v);
        assert!(v[0].is_nan() && v[1] == 9.0 && v[2].is_nan() && v[3] == 9.0);
        assert_eq!(i.storage::<i64>().unwrap(), &[3, 1, 3, 5]);
        let (y, n) = (t(&[1, 2, 5], &[f32::NEG_INFINITY; 10]), Arg::Bool(true));
        let args = [a(&y), ints(&[2, 2]), ints(&[2]), ints(&[1]), ints(&[1]), n];
        let outs = [out(Float, &[1, 2, 4]), out(Long, &[1, 2, 4])];
        let [_, i] = call_many("aten::max_pool2d_with_indices.out", &args, outs).unwrap();
        assert_eq!(i.storage::<i64>().unwrap(), &[0, 1, 3, 5, 6, 8, 0, 0][..i.numel()]);
    }

    #[test]
    fn windows_without_pixels_give_the_smallest_value() {
        let x = t(&[1, 1, 4, 1], &[1f32, 2.0, 3.0, 4.0]);
        let outs = [out(Float, &[1, 1, 2, 1]), out(Long, &[1, 1, 2, 1])];
        let args = [a(&x), ints(&[2, 2]), ints(&[2, 1]), ints(&[0, 1]), ints(&[1, 2])];
        let [v, i] = call_many("aten::max_pool2d_with_indices.out", &args, outs).unwrap();
        assert_eq!(v.storage::<f32>().unwrap(), [f32::NEG_INFINITY; 2]);
        assert_eq!(i.storage::<i64>().unwrap(), [1, 3]);
    }
}
