//! Convolution of channels-last images with few channels, as the first of most networks: output channels are the lanes,
//! and each element of the input is multiplied by the weights of all of them. The sums are so short that what a tile
//! needs around them would take longer than they.

use super::super::gemm::tile::repeat;
use super::super::isa::Isa;
use super::super::packed_weights::{PackedWeightsReader, WeightBuffer};
use super::super::simd::{MAX_LANES, Op, Simd, dispatch};
use super::by_line::{self, Finish, Line};
use super::params::ConvParams;
use super::problem::Problem;
use super::weights::ConvWeights;
use pteron_pool::Pool;
use pteron_tensor::{AlignedBuffer, Result};
use smallvec::SmallVec;

/// The largest number of input channels.
const MAX_CHANNELS: usize = 8;
/// The largest number of products of a sum.
const MAX_SUM: usize = 256;

/// Whether this algorithm computes channels-last images with these parameters. Pointwise convolutions can be links of chains.
pub(super) fn supports(p: &ConvParams) -> bool {
    let sum = p.tap_count().saturating_mul(p.in_channels);
    let is_plain = p.groups == 1 && !p.transposed && p.tap_count() > 1 && p.dilation[2] == 1;
    is_plain && p.in_channels <= MAX_CHANNELS && (1..=MAX_SUM).contains(&sum)
}

/// Weights `[tap, in, out]`, each line padded to whole vectors.
#[derive(Debug)]
pub(super) struct FewChannels {
    weights: WeightBuffer,
}

/// The number of elements of a line of weights.
fn line_len(p: &ConvParams) -> usize {
    p.out_channels.next_multiple_of(MAX_LANES)
}

fn stored_len(p: &ConvParams) -> usize {
    p.tap_count() * p.in_channels * line_len(p)
}

impl FewChannels {
    pub(super) fn new(p: &ConvParams, weights: &ConvWeights<'_>) -> Result<Self> {
        let mut buffer = AlignedBuffer::zeroed(stored_len(p) * size_of::<f32>())?;
        let lines: &mut [f32] = bytemuck::cast_slice_mut(&mut buffer);
        for (i, line) in lines.chunks_exact_mut(line_len(p).max(1)).enumerate() {
            let (tap, channel) = (i / p.in_channels, i % p.in_channels);
            for (out, weight) in line[..p.out_channels].iter_mut().enumerate() {
                *weight = weights.at(out, channel, tap);
            }
        }
        Ok(Self { weights: WeightBuffer::Owned(buffer) })
    }

    pub(super) fn from_packed(p: &ConvParams, from: &mut PackedWeightsReader) -> Option<Self> {
        Some(Self { weights: from.take(stored_len(p))? })
    }

    pub(super) fn store(&self, out: &mut Vec<u8>) {
        self.weights.store(out);
    }

    pub(super) fn nbytes(&self) -> usize {
        self.weights.nbytes()
    }

    pub(super) fn run(&self, pool: &Pool, problem: Problem<'_>, out: &mut [f32]) {
        let p = problem.p;
        let per_pixel = p.weight_count();
        by_line::run(pool, problem, out, per_pixel, &|line| self.compute_line(problem.isa, line));
    }

    fn compute_line(&self, isa: Isa, mut line: Line<'_>) {
        let channels = line.p.in_channels;
        let mut rows = TapRows::new();
        line.for_each_kernel_line(|pixel, tap| rows.push((pixel * channels, tap * channels)));
        dispatch(isa, Segments { rows: &rows, weights: self.weights.elements(), line: &mut line });
        line.activate(isa);
    }
}

/// The lines of the kernel that meet lines of the image: the offset of the image's line, and the line of weights of its
/// first tap.
type TapRows = SmallVec<[(usize, usize); 16]>;

/// A line of the output, segment by segment.
struct Segments<'a, 'b> {
    rows: &'a [(usize, usize)],
    weights: &'a [f32],
    line: &'a mut Line<'b>,
}

impl Op for Segments<'_, '_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { rows, weights, line } = self;
        let (p, width) = (line.p, line.frame.input[2]);
        for segment in line.segments() {
            // The taps whose pixels are within the width of the image.
            let (start, padding) = (segment.x * p.stride[2], p.padding[2]);
            let first = padding.saturating_sub(start);
            let end = (width + padding).saturating_sub(start).min(p.kernel[2]);
            let first = first.min(end);
            let from = if first < end { start + first - padding } else { 0 };
            let pixels = Pixels {
                image: line.image.elements,
                rows,
                from: from * p.in_channels,
                weights,
                first: first * p.in_channels,
                len: (end - first) * p.in_channels,
                line: line_len(p),
                step: p.stride[2] * p.in_channels,
                count: segment.count,
                finish: line.finish(segment),
            };
            pixels.sum(s);
        }
    }
}

/// Neighbouring pixels with the same taps; the input of each pixel is `step` elements after that of the previous one.
struct Pixels<'a> {
    image: &'a [f32],
    rows: &'a [(usize, usize)],
    /// The first element that the first pixel reads of a line.
    from: usize,
    weights: &'a [f32],
    /// The line of weights of that element, from those of the first tap on.
    first: usize,
    /// The number of elements that a pixel reads of a line.
    len: usize,
    /// The number of elements of a line of weights: a multiple of the most lanes.
    line: usize,
    step: usize,
    count: usize,
    finish: Finish<'a>,
}

impl Pixels<'_> {
    #[inline(always)]
    fn sum<S: Simd>(mut self, s: S) {
        let channels = self.finish.channels;
        assert!(self.count > 0 && self.line == channels.next_multiple_of(MAX_LANES));
        let last = self.from + self.len + (self.count - 1) * self.step;
        let end = self.first + self.len;
        assert!(self.rows.iter().all(|&(at, weight)| {
            at + last <= self.image.len() && (weight + end) * self.line <= self.weights.len()
        }));
        self.finish.check(self.count);
        let mut ch = 0;
        while ch < channels {
            // SAFETY: by the assertions all elements of these pixels are in bounds, and all vectors of these weights.
            unsafe {
                if channels - ch > S::LANES {
                    self.sum_channels::<S, 2>(s, ch);
                    ch += 2 * S::LANES;
                } else {
                    self.sum_channels::<S, 1>(s, ch);
                    ch += S::LANES;
                }
            }
        }
    }

    /// Computes `V` vectors of channels from `ch` on of all pixels.
    ///
    /// # Safety
    /// The assertions of `sum` hold, and more than `V - 1` vectors of channels are left.
    #[inline(always)]
    unsafe fn sum_channels<S: Simd, const V: usize>(&mut self, s: S, ch: usize) {
        let mut at = 0;
        // As many sums at a time as there are registers for.
        macro_rules! pixels {
            ($($p:literal)*) => {$(
                if const { $p * V <= 2 * S::MAX_ROWS } {
                    while self.count - at >= $p {
                        // SAFETY: as the caller promises; at least as many pixels are left.
                        unsafe { self.sum_pixels::<S, $p, V>(s, at, ch) };
                        at += $p;
                    }
                }
            )*};
        }
        if const { V == 1 } {
            pixels!(8 4 2 1);
        } else {
            pixels!(6 4 2 1);
        }
    }

    /// Computes `V` vectors of channels from `ch` on of `P` pixels from `at` on.
    ///
    /// # Safety
    /// As for `sum_channels`, and `at + P <= count`.
    #[inline(always)]
    unsafe fn sum_pixels<S: Simd, const P: usize, const V: usize>(&mut self, s: S, at: usize, ch: usize) {
        let (line, step) = (self.line, self.step);
        let mut sums = [[s.splat(0.0); V]; P];
        for &(row, weight) in self.rows {
            let mut weights = self.weights.as_ptr().wrapping_add((weight + self.first) * line + ch);
            let mut x = self.image.as_ptr().wrapping_add(at * step + self.from + row);
            // Adds the products of the next line of weights by `$element` for each pixel `$i`.
            macro_rules! line {
                (|$i:ident| $element:expr, |$x:ident, $w:ident, $sum:ident| $product:expr) => {
                    let of_vector = |v: usize| {
                        // SAFETY: there are whole vectors of weights.
                        unsafe { s.load(weights.wrapping_add(v * S::LANES)) }
                    };
                    let w: [S::F; V] = std::array::from_fn(of_vector);
                    repeat!(P, [0 1 2 3 4 5 6 7], $i => {
                        let $x = $element;
                        repeat!(V, [0 1], v => {
                            let ($w, $sum) = (w[v], sums[$i][v]);
                            sums[$i][v] = $product;
                        });
                    });
                    weights = weights.wrapping_add(line);
                };
            }
            let mut left = self.len;
            // Multiplies the next `$n` elements of each pixel by as many lines of weights.
            macro_rules! lanes {
                ($n:literal: $($lane:literal)*) => {{
                    let mut some = [s.splat(0.0); P];
                    repeat!(P, [0 1 2 3 4 5 6 7], i => {
                        // SAFETY: the line has as many more elements.
                        some[i] = unsafe { s.load_first(x.wrapping_add(i * step), $n) };
                    });
                    $(line!(|i| some[i], |x, w, sum| s.mul_add_lane::<$lane>(x, w, sum));)*
                    (x, left) = (x.wrapping_add($n), left - $n);
                }};
            }
            if const { S::BY_LANE } {
                while left >= 4 {
                    lanes!(4: 0 1 2 3);
                }
                if left >= 2 {
                    lanes!(2: 0 1);
                }
            }
            for _ in 0..left {
                // SAFETY: the line has one more element.
                let element = |i: usize| s.splat(unsafe { *x.wrapping_add(i * step) });
                line!(|i| element(i), |x, w, sum| s.mul_add(x, w, sum));
                x = x.wrapping_add(1);
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.finish.store(s, sums, at, ch) };
    }
}
