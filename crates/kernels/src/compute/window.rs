//! Pooling of channels-last images: the maximum, mean or sum of each window, per channel.

use super::conv::ConvFrame;
use super::isa::Isa;
use super::simd::{Op, Simd, dispatch};
use pteron_pool::Pool;

/// The least number of input elements that a task reads.
const GRAIN: usize = 1 << 15;
/// The number of pixels that are summed in f32 before the sum is added to an f64 total.
const F32_RUN: usize = 16;
/// The number of channels that are summed together.
const CHANNELS: usize = 64;

/// The windows of a pooling. There are three spatial dimensions, depth, height and width; a dimension that an
/// operator lacks has kernel, stride and dilation 1 and padding 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// The size of a window, in taps.
    pub kernel: [usize; 3],
    /// The distance between neighbouring windows, in pixels.
    pub stride: [usize; 3],
    /// Padding before the first pixel.
    pub padding: [usize; 3],
    /// The distance between neighbouring taps of a window, in pixels.
    pub dilation: [usize; 3],
}

/// How a window is reduced to one pixel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pooling {
    /// The maximum; NaN if any pixel is NaN, and negative infinity if the window contains no pixel.
    Max,
    /// The sum of the pixels divided by the number of pixels; padding is not counted.
    Mean,
    /// The sum of the pixels divided by the number of taps in the image or in its padding, which is as wide after the
    /// last pixel as before the first.
    MeanOfPadded,
    /// The sum of the pixels multiplied by this factor.
    Sum(f32),
}

/// Pools channels-last images of `channels` channels. Lines of the output are divided among the threads of `pool`.
///
/// # Panics
/// If the length of a slice does not match the frame.
pub fn pool_windows(
    pool: &Pool,
    isa: Isa,
    pooling: Pooling,
    windows: &Windows,
    frame: &ConvFrame,
    channels: usize,
    x: &[f32],
    out: &mut [f32],
) {
    if pooling == Pooling::Max {
        return each_line(pool, windows, frame, channels, x, out, |line, x, out| {
            dispatch(isa, MaxPoolOfFloats { line, x, out });
        });
    }
    each_line(pool, windows, frame, channels, x, out, |line, x, out| {
        dispatch(isa, Sums { pooling, line, x, out });
    });
}

/// Max pooling as in [`pool_windows`], for integers: quantized values are compared directly. A window without a pixel
/// gives the least value of the type.
///
/// # Panics
/// If the length of a slice does not match the frame.
pub fn max_pool<T: MaxPoolElement>(
    pool: &Pool,
    isa: Isa,
    windows: &Windows,
    frame: &ConvFrame,
    channels: usize,
    x: &[T],
    out: &mut [T],
) {
    each_line(pool, windows, frame, channels, x, out, |line, x, out| {
        dispatch(isa, MaxPool { line, x, out });
    });
}

/// Element types of max pooling.
pub trait MaxPoolElement: Copy + Send + Sync + 'static {
    /// The least value, the identity of the maximum.
    const MIN: Self;
    /// The greater of the two values, `self` if they are equal; NaN if either is NaN.
    fn max_or_nan(self, other: Self) -> Self;
}

impl MaxPoolElement for f32 {
    const MIN: Self = f32::NEG_INFINITY;
    #[inline(always)]
    fn max_or_nan(self, other: Self) -> Self {
        if other > self || other.is_nan() { other } else { self }
    }
}

macro_rules! integers {
    ($($type:ty),*) => { $(
        impl MaxPoolElement for $type {
            const MIN: Self = <$type>::MIN;
            #[inline(always)]
            fn max_or_nan(self, other: Self) -> Self {
                self.max(other)
            }
        }
    )* };
}

integers!(i8, u8);

/// Calls `run` with each line of the output and the input image that the line is computed from.
fn each_line<T: Send + Sync>(
    pool: &Pool,
    windows: &Windows,
    frame: &ConvFrame,
    channels: usize,
    x: &[T],
    out: &mut [T],
    run: impl Fn(OutputLine<'_>, &[T], &mut [T]) + Sync,
) {
    let image = frame.in_pixels() * channels;
    assert_eq!(x.len(), frame.batch * image, "input of {windows:?} for {frame:?}");
    assert_eq!(out.len(), frame.batch * frame.out_pixels() * channels, "output of {windows:?} for {frame:?}");
    let [depth, height, width] = frame.output;
    let line = width * channels;
    if out.is_empty() {
        return;
    }
    let grain = (GRAIN / (line * windows.kernel.iter().product::<usize>()).max(1)).max(1);
    pool.parallel_chunks_mut(out, line, grain, &|i, out| {
        let (n, z, y) = (i / height / depth, i / height % depth, i % height);
        run(OutputLine { windows, frame, channels, at: [z, y] }, &x[n * image..][..image], out);
    });
}

/// The taps of a window along one dimension.
#[derive(Clone, Copy)]
struct TapRange {
    /// Index of the first pixel in the image.
    first: usize,
    /// The number of taps that lie in the image.
    count: usize,
    /// The number of taps that lie in the image or in its padding.
    padded: usize,
}

/// The position of a line of the output.
#[derive(Clone, Copy)]
struct OutputLine<'a> {
    windows: &'a Windows,
    frame: &'a ConvFrame,
    channels: usize,
    at: [usize; 2],
}

impl OutputLine<'_> {
    /// The taps of the window of output pixel `o` along dimension `d`.
    #[inline(always)]
    fn taps(&self, d: usize, o: usize) -> TapRange {
        let w = self.windows;
        let (start, step, input) = (o * w.stride[d], w.dilation[d], self.frame.input[d]);
        // A division would take longer than the pooling of a pixel with few channels.
        let steps = |n: usize| if step == 1 { n } else { n.div_ceil(step) };
        let skip = steps(w.padding[d].saturating_sub(start)).min(w.kernel[d]);
        let first = (start + skip * step).saturating_sub(w.padding[d]);
        let count = steps(input.saturating_sub(first)).min(w.kernel[d] - skip);
        let padded = steps((input + 2 * w.padding[d]).saturating_sub(start)).min(w.kernel[d]);
        TapRange { first, count, padded }
    }

    /// Calls `visit` with every window of the line and the output pixel of that window.
    #[inline(always)]
    fn each_window<T>(&self, out: &mut [T], mut visit: impl FnMut([TapRange; 3], &mut [T])) {
        let (z, y) = (self.taps(0, self.at[0]), self.taps(1, self.at[1]));
        let mut seen = 0;
        for (o, out) in out.chunks_exact_mut(self.channels).enumerate() {
            let taps = [z, y, self.taps(2, o)];
            seen += pixel_count(taps);
            visit(taps, out);
        }
        pteron_pool::count(seen);
    }

    /// Calls `visit` with the offset in the image of each pixel of a window.
    #[inline(always)]
    fn each_pixel(&self, [z, y, x]: [TapRange; 3], mut visit: impl FnMut(usize)) {
        let ([_, height, width], step) = (self.frame.input, self.windows.dilation);
        for i in 0..z.count {
            for j in 0..y.count {
                let line = ((z.first + i * step[0]) * height + y.first + j * step[1]) * width;
                for k in 0..x.count {
                    visit((line + x.first + k * step[2]) * self.channels);
                }
            }
        }
    }
}

/// The number of pixels of a window that are in the image.
fn pixel_count(taps: [TapRange; 3]) -> usize {
    taps.iter().map(|r| r.count).product()
}

/// Max pooling of a line of windows of f32.
struct MaxPoolOfFloats<'a> {
    line: OutputLine<'a>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Op for MaxPoolOfFloats<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { line, x, out } = self;
        line.each_window(out, |taps, out| {
            if out.len() < S::LANES {
                return MaxPool::pool_window::<1>(line, x, taps, out);
            }
            // Four vectors at a time, then two, then one; the last may overlap the one before it.
            let mut channel = 0;
            while channel + 4 * S::LANES <= out.len() {
                pool_vectors::<S, 4>(s, line, x, taps, channel, out);
                channel += 4 * S::LANES;
            }
            if channel + 2 * S::LANES <= out.len() {
                pool_vectors::<S, 2>(s, line, x, taps, channel, out);
                channel += 2 * S::LANES;
            }
            while channel < out.len() {
                pool_vectors::<S, 1>(s, line, x, taps, channel.min(out.len() - S::LANES), out);
                channel += S::LANES;
            }
        });
    }
}

/// Pools `N` vectors of channels of one window.
#[inline(always)]
fn pool_vectors<S: Simd, const N: usize>(
    s: S,
    line: OutputLine<'_>,
    x: &[f32],
    taps: [TapRange; 3],
    channel: usize,
    out: &mut [f32],
) {
    let mut max = [s.splat(f32::NEG_INFINITY); N];
    line.each_pixel(taps, |pixel| {
        let pixel = &x[pixel + channel..][..N * S::LANES];
        for (i, max) in max.iter_mut().enumerate() {
            // SAFETY: `pixel` has `N` vectors of elements.
            *max = s.max_or_nan(*max, unsafe { s.load(pixel.as_ptr().add(i * S::LANES)) });
        }
    });
    let out = &mut out[channel..][..N * S::LANES];
    for (i, max) in max.into_iter().enumerate() {
        // SAFETY: `out` has `N` vectors of elements.
        unsafe { s.store(out.as_mut_ptr().add(i * S::LANES), max) };
    }
}

/// Max pooling of a line of windows.
struct MaxPool<'a, T> {
    line: OutputLine<'a>,
    x: &'a [T],
    out: &'a mut [T],
}

impl<T: MaxPoolElement> MaxPool<'_, T> {
    /// Pools one window, `N` channels at a time. The last block may overlap the one before it.
    #[inline(always)]
    fn pool_window<const N: usize>(line: OutputLine<'_>, x: &[T], taps: [TapRange; 3], out: &mut [T]) {
        for channel in (0..out.len()).step_by(N) {
            let channel = channel.min(out.len() - N);
            let mut max = [T::MIN; N];
            line.each_pixel(taps, |pixel| {
                let lanes = *x[pixel + channel..].first_chunk::<N>().expect("channels of a pixel");
                max.iter_mut().zip(lanes).for_each(|(m, x)| *m = m.max_or_nan(x));
            });
            out[channel..][..N].copy_from_slice(&max);
        }
    }
}

impl<T: MaxPoolElement> Op for MaxPool<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { line, x, out } = self;
        line.each_window(out, |taps, out| match out.len() {
            64.. => Self::pool_window::<64>(line, x, taps, out),
            16.. => Self::pool_window::<16>(line, x, taps, out),
            8.. => Self::pool_window::<8>(line, x, taps, out),
            4.. => Self::pool_window::<4>(line, x, taps, out),
            _ => Self::pool_window::<1>(line, x, taps, out),
        });
    }
}

/// Mean and sum pooling of a line of windows.
struct Sums<'a> {
    pooling: Pooling,
    line: OutputLine<'a>,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Sums<'_> {
    /// Pools `N` channels of a window, starting at `channel`. The window has at most `F32_RUN` pixels, so that the sums
    /// are in f32.
    #[inline(always)]
    fn sum_channels<const N: usize>(&self, taps: [TapRange; 3], channel: usize, out: &mut [f32]) {
        let mut sums = [0.0; N];
        self.line.each_pixel(taps, |pixel| {
            let lanes = *self.x[pixel + channel..].first_chunk::<N>().expect("channels of a pixel");
            sums.iter_mut().zip(lanes).for_each(|(s, x)| *s += x);
        });
        self.scale_sums(taps, &mut sums);
        out[channel..][..N].copy_from_slice(&sums);
    }

    /// Scales the sums of a window as the pooling requires.
    #[inline(always)]
    fn scale_sums(&self, [z, y, x]: [TapRange; 3], sums: &mut [f32]) {
        match self.pooling {
            Pooling::Sum(factor) => sums.iter_mut().for_each(|s| *s *= factor),
            Pooling::MeanOfPadded => {
                let n = (z.padded * y.padded * x.padded) as f32;
                sums.iter_mut().for_each(|s| *s /= n);
            }
            _ => {
                let n = pixel_count([z, y, x]) as f32;
                sums.iter_mut().for_each(|s| *s /= n);
            }
        }
    }

    /// Pools a window of many pixels: partial sums in f32, totals in f64.
    #[inline(always)]
    fn sum_large_window(&self, taps: [TapRange; 3], out: &mut [f32]) {
        for (i, out) in out.chunks_mut(CHANNELS).enumerate() {
            let (mut totals, mut sums, mut seen) = ([0.0f64; CHANNELS], [0.0f32; CHANNELS], 0);
            self.line.each_pixel(taps, |pixel| {
                let pixel = &self.x[pixel + i * CHANNELS..][..out.len()];
                sums.iter_mut().zip(pixel).for_each(|(sum, x)| *sum += x);
                seen += 1;
                if seen % F32_RUN == 0 {
                    totals
                        .iter_mut()
                        .zip(&mut sums)
                        .for_each(|(t, sum)| *t += f64::from(std::mem::take(sum)));
                }
            });
            let all = totals.iter().zip(sums).map(|(total, sum)| (total + f64::from(sum)) as f32);
            out.iter_mut().zip(all).for_each(|(out, sum)| *out = sum);
        }
        self.scale_sums(taps, out);
    }
}

impl Op for Sums<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, _: S) {
        let out = std::mem::take(&mut self.out);
        self.line.each_window(out, |taps, out| {
            if pixel_count(taps) > F32_RUN {
                return self.sum_large_window(taps, out);
            }
            let mut channel = 0;
            while channel < out.len() {
                channel += match out.len() - channel {
                    16.. => {
                        self.sum_channels::<16>(taps, channel, out);
                        16
                    }
                    8.. => {
                        self.sum_channels::<8>(taps, channel, out);
                        8
                    }
                    4.. => {
                        self.sum_channels::<4>(taps, channel, out);
                        4
                    }
                    _ => {
                        self.sum_channels::<1>(taps, channel, out);
                        1
                    }
                };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_at_borders_match_the_definition() {
        let frame = ConvFrame { batch: 1, input: [1, 3, 4], output: [1, 2, 3] };
        let windows = Windows { kernel: [1, 2, 3], stride: [1, 2, 2], padding: [0, 1, 1], dilation: [1; 3] };
        let x: Vec<f32> = (0..24).map(|i| (i / 2) as f32 * if i % 2 == 0 { 1.0 } else { -1.0 }).collect();
        let run = |pooling| {
            let mut first = Vec::new();
            for isa in Isa::available() {
                let mut out = vec![0.0; 12];
                pool_windows(&Pool::new(2), isa, pooling, &windows, &frame, 2, &x, &mut out);
                assert!(first.is_empty() || first == out);
                first = out;
            }
            first
        };
        // Rows {0} and {1, 2}; columns {0, 1}, {1, 2, 3} and {3}.
        let pixels_of = |rows: &[usize], columns: &[usize]| -> Vec<f32> {
            rows.iter().flat_map(|r| columns.iter().map(move |c| (r * 4 + c) as f32)).collect()
        };
        let (rows, columns): ([&[usize]; 2], [&[usize]; 3]) = ([&[0], &[1, 2]], [&[0, 1], &[1, 2, 3], &[3]]);
        let (max, mean, padded) = (run(Pooling::Max), run(Pooling::Mean), run(Pooling::MeanOfPadded));
        let sum = run(Pooling::Sum(2.0));
        for (i, row) in rows.iter().enumerate() {
            for (j, column) in columns.iter().enumerate() {
                let (at, all) = ((i * 3 + j) * 2, pixels_of(row, column));
                let total: f32 = all.iter().sum();
                let largest = all.iter().copied().fold(f32::MIN, f32::max);
                let least = all.iter().copied().fold(f32::MAX, f32::min);
                assert_eq!((max[at], max[at + 1]), (largest, -least));
                assert_eq!(mean[at], total / all.len() as f32);
                assert_eq!(sum[at + 1], -2.0 * total);
                let width = [3.0, 3.0, 2.0][j];
                assert_eq!(padded[at], total / (2.0 * width));
            }
        }
    }

    #[test]
    fn sums_of_large_windows_are_as_exact_as_f64() {
        let (side, channels) = (700, 3);
        let frame = ConvFrame { batch: 1, input: [1, side, side], output: [1, 1, 1] };
        let windows = Windows { kernel: [1, side, side], stride: [1; 3], padding: [0; 3], dilation: [1; 3] };
        let x = vec![0.1f32; side * side * channels];
        for isa in Isa::available() {
            for pooling in [Pooling::Mean, Pooling::MeanOfPadded, Pooling::Sum(1.0)] {
                let mut out = [0.0; 3];
                pool_windows(&Pool::serial(), isa, pooling, &windows, &frame, channels, &x, &mut out);
                let many = if pooling == Pooling::Sum(1.0) { (side * side) as f64 } else { 1.0 };
                let error = (f64::from(out[2]) / (f64::from(0.1f32) * many) - 1.0).abs();
                assert!(error < 1e-6, "{pooling:?}: {error:e}");
            }
        }
    }

    #[test]
    fn max_pooling_of_bytes_matches_that_of_f32() {
        let frame = ConvFrame { batch: 2, input: [1, 5, 6], output: [1, 3, 3] };
        let windows = Windows { kernel: [1, 3, 3], stride: [1, 2, 2], padding: [0, 1, 1], dilation: [1; 3] };
        for channels in [1, 3, 5, 9, 17, 64, 100] {
            let bytes: Vec<i8> = (0..60 * channels).map(|i| (i * 97 % 251) as u8 as i8).collect();
            let floats: Vec<f32> = bytes.iter().map(|&x| x.into()).collect();
            for isa in Isa::available() {
                let (pool, n) = (Pool::new(2), 18 * channels);
                let (mut of_bytes, mut of_floats) = (vec![0; n], vec![0.0; n]);
                max_pool(&pool, isa, &windows, &frame, channels, &bytes, &mut of_bytes);
                pool_windows(&pool, isa, Pooling::Max, &windows, &frame, channels, &floats, &mut of_floats);
                let of_bytes: Vec<f32> = of_bytes.iter().map(|&x| x.into()).collect();
                assert_eq!(of_bytes, of_floats, "{channels} channels");
            }
        }
    }

    #[test]
    fn max_pooling_propagates_nan() {
        let frame = ConvFrame { batch: 1, input: [1, 1, 3], output: [1, 1, 1] };
        let windows = Windows { kernel: [1, 1, 3], stride: [1; 3], padding: [0; 3], dilation: [1; 3] };
        for x in [[f32::NAN, 1.0, 2.0], [1.0, f32::NAN, 2.0], [1.0, 2.0, f32::NAN]] {
            let mut out = [0.0];
            pool_windows(&Pool::serial(), Isa::detect(), Pooling::Max, &windows, &frame, 1, &x, &mut out);
            assert!(out[0].is_nan());
        }
    }
}
