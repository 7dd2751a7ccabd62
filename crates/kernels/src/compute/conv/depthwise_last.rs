//! Depthwise convolution of channels-last images: channels are the lanes, a few pixels share each load
//! of the weights.

use super::super::gemm::tile::repeat;
use super::super::isa::Isa;
use super::super::packed_weights::{PackedWeightsReader, WeightBuffer};
use super::super::simd::{Op, Simd, dispatch};
use super::by_line::{self, Finish, Line};
use super::epilogue::ConvEpilogue;
use super::params::{ConvFrame, ConvParams};
use super::problem::{Problem, Window};
use super::weights::ConvWeights;
use pteron_pool::Pool;
use pteron_tensor::{AlignedBuffer, Result};
use std::ops::Range;

/// The maximum number of taps of a kernel that this algorithm supports.
pub(super) const MAX_TAPS: usize = 128;

/// Depthwise weights stored tap by tap; the channels of a tap are contiguous.
#[derive(Debug)]
pub(super) struct DepthwiseLast {
    weights: WeightBuffer,
}

impl DepthwiseLast {
    pub(super) fn new(p: &ConvParams, weights: &ConvWeights<'_>) -> Result<Self> {
        let mut buffer = AlignedBuffer::zeroed(p.weight_count() * size_of::<f32>())?;
        let taps: &mut [f32] = bytemuck::cast_slice_mut(&mut buffer);
        if p.in_channels > 0 {
            for (t, tap) in taps.chunks_exact_mut(p.in_channels).enumerate() {
                let [channel, _, step] = weights.strides;
                let from = weights.values[t * step..].iter().step_by(channel.max(1));
                tap.iter_mut().zip(from).for_each(|(to, &w)| *to = w);
            }
        }
        Ok(Self { weights: WeightBuffer::Owned(buffer) })
    }

    pub(super) fn from_packed(p: &ConvParams, from: &mut PackedWeightsReader) -> Option<Self> {
        Some(Self { weights: from.take(p.weight_count())? })
    }

    pub(super) fn store(&self, out: &mut Vec<u8>) {
        self.weights.store(out);
    }

    pub(super) fn nbytes(&self) -> usize {
        self.weights.nbytes()
    }

    pub(super) fn run(&self, pool: &Pool, problem: Problem<'_>, out: &mut [f32]) {
        let per_pixel = problem.p.out_channels * problem.p.tap_count();
        by_line::run(pool, problem, out, per_pixel, &|line| self.compute_line(problem.isa, line));
    }
}

impl DepthwiseLast {
    /// Computes `lines` of the output of one 2-D image; the window contains the input lines that they read.
    pub(super) fn compute_lines(
        &self,
        isa: Isa,
        p: &ConvParams,
        frame: &ConvFrame,
        image: Window<'_>,
        lines: Range<usize>,
        out: &mut [f32],
        epilogue: &ConvEpilogue<'_>,
    ) {
        let len = frame.output[2] * p.out_channels;
        pteron_pool::count(lines.len() * len * p.tap_count());
        for (i, (y, out)) in lines.zip(out.chunks_exact_mut(len)).enumerate() {
            let epilogue = &epilogue.for_elements(i * len..(i + 1) * len);
            self.compute_line(isa, Line { p, frame, image, z: 0, y, epilogue, out });
        }
    }

    fn compute_line(&self, isa: Isa, mut line: Line<'_>) {
        let mut taps = [(0, 0); MAX_TAPS];
        let (image, step) = (line.image.elements, line.p.stride[2] * line.p.in_channels);
        for segment in line.segments() {
            let n = taps_in_image(&line, segment.x, &mut taps);
            let (taps, weights) = (&taps[..n], self.weights.elements());
            let pixels =
                Pixels { image, taps, weights, step, count: segment.count, finish: line.finish(segment) };
            dispatch(isa, pixels);
        }
        line.activate(isa);
    }
}

/// A tap that lies in the image: the offset of its input pixel, and that of its weights.
type Tap = (usize, usize);

/// Writes the taps of the pixel at `x` that are in the image to `taps`, and returns their number.
fn taps_in_image(line: &Line<'_>, x: usize, taps: &mut [Tap]) -> usize {
    let channels = line.p.in_channels;
    let mut n = 0;
    line.for_each_kernel_line(|first, tap| {
        for kx in 0..line.p.kernel[2] {
            let Some(ix) = line.meet(2, x, kx) else { continue };
            taps[n] = ((first + ix) * channels, (tap + kx) * channels);
            n += 1;
        }
    });
    n
}

/// Neighbouring pixels with the same taps; the input of each pixel is `step` elements after that of the previous one.
struct Pixels<'a> {
    image: &'a [f32],
    taps: &'a [Tap],
    weights: &'a [f32],
    step: usize,
    count: usize,
    finish: Finish<'a>,
}

impl Op for Pixels<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let c = self.finish.channels;
        assert!(self.count > 0);
        let last = (self.count - 1) * self.step + c;
        assert!(
            self.taps
                .iter()
                .all(|&(at, weight)| at + last <= self.image.len() && weight + c <= self.weights.len())
        );
        self.finish.check(self.count);
        // SAFETY: by the assertions all elements of these pixels are in bounds.
        unsafe {
            if const { S::BY_LANE } {
                match self.triple_stride() {
                    Some(1) => return self.sum_line::<S, 1>(s),
                    Some(2) => return self.sum_line::<S, 2>(s),
                    _ => {}
                }
            }
            self.sum_line::<S, 0>(s);
        }
    }
}

impl Pixels<'_> {
    /// The number of input pixels from one pixel to the next, if the taps are triples of neighbouring input pixels and
    /// weights: successive pixels then share most of what they read.
    fn triple_stride(&self) -> Option<usize> {
        let channels = self.finish.channels;
        let (triples, rest) = self.taps.as_chunks::<3>();
        let is_triple = |&[a, b, c]: &[Tap; 3]| {
            let is_next = |from: Tap, to: Tap| from.0 + channels == to.0 && from.1 + channels == to.1;
            is_next(a, b) && is_next(b, c)
        };
        (rest.is_empty() && triples.iter().all(is_triple)).then(|| self.step / channels.max(1))
    }

    /// Computes all pixels. `R`: the [stride](Self::triple_stride) of triples, or 0.
    ///
    /// # Safety
    /// The assertions of `run` hold.
    #[inline(always)]
    unsafe fn sum_line<S: Simd, const R: usize>(&mut self, s: S) {
        let mut at = 0;
        // SAFETY: at least as many pixels are left as are computed.
        unsafe {
            while self.count - at >= 4 {
                self.sum_pixels::<S, 4, R>(s, at);
                at += 4;
            }
            if const { R > 0 } && self.count - at >= 2 {
                self.sum_pixels::<S, 2, R>(s, at);
                at += 2;
            }
            while at < self.count {
                self.sum_pixels::<S, 1, R>(s, at);
                at += 1;
            }
        }
    }

    /// # Safety
    /// The assertions of `run` hold, and `at + P <= count`.
    #[inline(always)]
    unsafe fn sum_pixels<S: Simd, const P: usize, const R: usize>(&mut self, s: S, at: usize) {
        let c = self.finish.channels;
        let mut ch = 0;
        while ch < c {
            // SAFETY: as the caller promises; the channels of a group are within those of a pixel.
            unsafe {
                if c - ch >= 2 * S::LANES {
                    self.sum_channels::<S, P, 2, R>(s, at, ch);
                    ch += 2 * S::LANES;
                } else {
                    self.sum_channels::<S, P, 1, R>(s, at, ch);
                    ch += S::LANES;
                }
            }
        }
    }

    /// Computes `V` vectors of channels from `ch` on of `P` pixels from `at` on.
    ///
    /// # Safety
    /// As for `sum_pixels`; if `V > 1`, at least `V` vectors of channels are left.
    #[inline(always)]
    unsafe fn sum_channels<S: Simd, const P: usize, const V: usize, const R: usize>(
        &mut self,
        s: S,
        at: usize,
        ch: usize,
    ) {
        let channels = self.finish.channels;
        let left = channels - ch;
        let is_full = V > 1 || left >= S::LANES;
        // SAFETY: at least `left` elements are in bounds, or `V` whole vectors.
        let load = |p: *const f32, v: usize| unsafe {
            let p = p.wrapping_add(v * S::LANES);
            if is_full { s.load(p) } else { s.load_first(p, left) }
        };
        let mut acc = [[s.splat(0.0); V]; P];
        let image = self.image.as_ptr().wrapping_add(at * self.step + ch);
        let weights = self.weights.as_ptr().wrapping_add(ch);
        if const { R > 0 } {
            for &[(pixel, tap), ..] in self.taps.as_chunks::<3>().0 {
                let w = |t: usize| weights.wrapping_add(tap + t * channels);
                let w: [[S::F; V]; 3] = std::array::from_fn(|t| std::array::from_fn(|v| load(w(t), v)));
                repeat!((P - 1) * R + 3, [0 1 2 3 4 5 6 7 8], column => {
                    let x = image.wrapping_add(pixel + column * channels);
                    let x: [S::F; V] = std::array::from_fn(|v| load(x, v));
                    repeat!(P, [0 1 2 3], i => {
                        if let Some(t) = column.checked_sub(i * R).filter(|&t| t < 3) {
                            repeat!(V, [0 1], v => {
                                acc[i][v] = s.mul_add(x[v], w[t][v], acc[i][v]);
                            });
                        }
                    });
                });
            }
        } else {
            for &(pixel, tap) in self.taps {
                let w: [S::F; V] = std::array::from_fn(|v| load(weights.wrapping_add(tap), v));
                for (i, acc) in acc.iter_mut().enumerate() {
                    let x = image.wrapping_add(pixel + i * self.step);
                    for (v, acc) in acc.iter_mut().enumerate() {
                        *acc = s.mul_add(load(x, v), w[v], *acc);
                    }
                }
            }
        }
        // SAFETY: as the caller promises.
        unsafe { self.finish.store(s, acc, at, ch) };
    }
}
