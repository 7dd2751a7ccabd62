//! Pooling of channels-last images: the greatest or the mean of each window, channel by channel.

use super::conv::ConvFrame;
use super::isa::Isa;
use super::simd::{Op, Simd, dispatch};
use pool::Pool;

/// Elements of the input that a task looks at, at least.
const GRAIN: usize = 1 << 15;
/// Pixels that are added up in f32, one after another.
const FEW: usize = 16;
/// Channels whose sums are taken at once.
const CHANNELS: usize = 64;

/// The windows of a pooling. Space has three dimensions, depth, height and width; those that an
/// operator lacks have kernel, stride and dilation 1 and padding 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Windows {
    /// Pixels of a window.
    pub kernel: [usize; 3],
    /// Pixels from one window to the next.
    pub stride: [usize; 3],
    /// Pixels before the first.
    pub padding: [usize; 3],
    /// Pixels from one pixel of a window to the next.
    pub dilation: [usize; 3],
}

/// What is taken of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pooling {
    /// The greatest pixel; NaN if any is. Negative infinity if the window has none.
    Max,
    /// The sum of the pixels, divided by their number.
    Mean,
    /// The sum of the pixels, divided by the number of those of the window that lie in the image or in
    /// its padding, which is as wide after the last pixel as before the first.
    MeanOfPadded,
    /// The sum of the pixels times a factor.
    Sum(f32),
}

/// Pools images of `channels` channels, channels-last. Lines of the output are divided among the
/// threads of `pool`.
///
/// # Panics
/// If a slice has not the size that the frame says.
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
        let x = &x[n * image..][..image];
        dispatch(isa, Line { pooling, windows, frame, channels, at: [z, y], x, out });
    });
}

/// A line of the output.
struct Line<'a> {
    pooling: Pooling,
    windows: &'a Windows,
    frame: &'a ConvFrame,
    channels: usize,
    at: [usize; 2],
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Line<'_> {
    /// The pixels of the window at output pixel `o` of a dimension: the first, and how many; and how many it
    /// would have with the padding.
    #[inline(always)]
    fn reach(&self, d: usize, o: usize) -> (usize, usize, usize) {
        let w = self.windows;
        let (start, step, input) = (o * w.stride[d], w.dilation[d], self.frame.input[d]);
        // Divisions would take longer than a pixel of few channels.
        let steps = |n: usize| if step == 1 { n } else { n.div_ceil(step) };
        let skip = steps(w.padding[d].saturating_sub(start)).min(w.kernel[d]);
        let first = (start + skip * step).saturating_sub(w.padding[d]);
        let count = steps(input.saturating_sub(first)).min(w.kernel[d] - skip);
        let padded = steps((input + 2 * w.padding[d]).saturating_sub(start)).min(w.kernel[d]);
        (first, count, padded)
    }

    /// Every pixel of a window whose reach along each dimension is known.
    #[inline(always)]
    fn each_pixel(
        &self,
        z: (usize, usize, usize),
        y: (usize, usize, usize),
        x: (usize, usize, usize),
        mut visit: impl FnMut(&[f32]),
    ) {
        let ([_, height, width], step) = (self.frame.input, self.windows.dilation);
        for i in 0..z.1 {
            for j in 0..y.1 {
                let line = ((z.0 + i * step[0]) * height + y.0 + j * step[1]) * width;
                for k in 0..x.1 {
                    visit(&self.x[(line + x.0 + k * step[2]) * self.channels..][..self.channels]);
                }
            }
        }
    }
}

impl Line<'_> {
    /// The result for `N` channels from `channel` on of a window of few pixels, or the greatest of one of any number.
    #[inline(always)]
    fn block<const N: usize>(&self, reach: [(usize, usize, usize); 3], channel: usize, out: &mut [f32]) {
        let [z, y, x] = reach;
        let max = self.pooling == Pooling::Max;
        let mut acc = [if max { f32::NEG_INFINITY } else { 0.0 }; N];
        let lanes = |pixel: &[f32]| *pixel[channel..].first_chunk::<N>().expect("channels of a pixel");
        if max {
            self.each_pixel(z, y, x, |pixel| {
                for (m, x) in acc.iter_mut().zip(lanes(pixel)) {
                    *m = if x > *m || x.is_nan() { x } else { *m };
                }
            });
        } else {
            self.each_pixel(z, y, x, |pixel| acc.iter_mut().zip(lanes(pixel)).for_each(|(s, x)| *s += x));
            self.finish(reach, &mut acc);
        }
        out[channel..][..N].copy_from_slice(&acc);
    }

    /// What the sums of a window stand for.
    #[inline(always)]
    fn finish(&self, [z, y, x]: [(usize, usize, usize); 3], sums: &mut [f32]) {
        match self.pooling {
            Pooling::Sum(factor) => sums.iter_mut().for_each(|s| *s *= factor),
            Pooling::MeanOfPadded => {
                let n = (z.2 * y.2 * x.2) as f32;
                sums.iter_mut().for_each(|s| *s /= n);
            }
            _ => {
                let n = (z.1 * y.1 * x.1) as f32;
                sums.iter_mut().for_each(|s| *s /= n);
            }
        }
    }

    /// The sums of a window of many pixels: of a few in f32, of all in f64.
    #[inline(always)]
    fn long_sums(
        &self,
        z: (usize, usize, usize),
        y: (usize, usize, usize),
        x: (usize, usize, usize),
        out: &mut [f32],
    ) {
        for (i, out) in out.chunks_mut(CHANNELS).enumerate() {
            let (mut totals, mut sums, mut seen) = ([0.0f64; CHANNELS], [0.0f32; CHANNELS], 0);
            self.each_pixel(z, y, x, |pixel| {
                let pixel = &pixel[i * CHANNELS..][..out.len()];
                sums.iter_mut().zip(pixel).for_each(|(sum, x)| *sum += x);
                seen += 1;
                if seen % FEW == 0 {
                    totals
                        .iter_mut()
                        .zip(&mut sums)
                        .for_each(|(t, sum)| *t += f64::from(std::mem::take(sum)));
                }
            });
            let all = totals.iter().zip(sums).map(|(total, sum)| (total + f64::from(sum)) as f32);
            out.iter_mut().zip(all).for_each(|(out, sum)| *out = sum);
        }
    }
}

impl Op for Line<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, _: S) {
        let out = std::mem::take(&mut self.out);
        let (z, y) = (self.reach(0, self.at[0]), self.reach(1, self.at[1]));
        let mut seen = 0;
        for (o, out) in out.chunks_exact_mut(self.channels).enumerate() {
            let reach = [z, y, self.reach(2, o)];
            let pixels: usize = reach.iter().map(|r| r.1).product();
            seen += pixels;
            if self.pooling != Pooling::Max && pixels > FEW {
                self.long_sums(z, y, reach[2], out);
                self.finish(reach, out);
                continue;
            }
            let mut channel = 0;
            while channel < self.channels {
                channel += match self.channels - channel {
                    16.. => {
                        self.block::<16>(reach, channel, out);
                        16
                    }
                    8.. => {
                        self.block::<8>(reach, channel, out);
                        8
                    }
                    4.. => {
                        self.block::<4>(reach, channel, out);
                        4
                    }
                    _ => {
                        self.block::<1>(reach, channel, out);
                        1
                    }
                };
            }
        }
        pool::count(seen);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_at_borders() {
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
        let of = |rows: &[usize], columns: &[usize]| -> Vec<f32> {
            rows.iter().flat_map(|r| columns.iter().map(move |c| (r * 4 + c) as f32)).collect()
        };
        let (rows, columns): ([&[usize]; 2], [&[usize]; 3]) = ([&[0], &[1, 2]], [&[0, 1], &[1, 2, 3], &[3]]);
        let (max, mean, padded) = (run(Pooling::Max), run(Pooling::Mean), run(Pooling::MeanOfPadded));
        let sum = run(Pooling::Sum(2.0));
        for (i, row) in rows.iter().enumerate() {
            for (j, column) in columns.iter().enumerate() {
                let (at, all) = ((i * 3 + j) * 2, of(row, column));
                let total: f32 = all.iter().sum();
                let greatest = all.iter().copied().fold(f32::MIN, f32::max);
                let least = all.iter().copied().fold(f32::MAX, f32::min);
                assert_eq!((max[at], max[at + 1]), (greatest, -least));
                assert_eq!(mean[at], total / all.len() as f32);
                assert_eq!(sum[at + 1], -2.0 * total);
                let width = [3.0, 3.0, 2.0][j];
                assert_eq!(padded[at], total / (2.0 * width));
            }
        }
    }

    #[test]
    fn long_sums_are_those_of_f64() {
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
    fn nan_is_the_greatest() {
        let frame = ConvFrame { batch: 1, input: [1, 1, 3], output: [1, 1, 1] };
        let windows = Windows { kernel: [1, 1, 3], stride: [1; 3], padding: [0; 3], dilation: [1; 3] };
        for x in [[f32::NAN, 1.0, 2.0], [1.0, f32::NAN, 2.0], [1.0, 2.0, f32::NAN]] {
            let mut out = [0.0];
            pool_windows(&Pool::serial(), Isa::detect(), Pooling::Max, &windows, &frame, 1, &x, &mut out);
            assert!(out[0].is_nan());
        }
    }
}
