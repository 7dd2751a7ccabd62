//! Depthwise convolution of channels-last images: channels are the lanes, a few pixels share each load
//! of the weights.

use super::super::gemm::tile::repeat;
use super::super::isa::Isa;
use super::super::math;
use super::super::packed_weights::{PackedWeightsReader, WeightBuffer};
use super::super::simd::{Op, Simd, dispatch};
use super::super::split;
use super::epilogue::{ConvEpilogue, TAIL_PART};
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
        let Problem { isa, p, frame, x, epilogue } = problem;
        let [_, height, width] = frame.output;
        let lines = frame.batch * frame.output[0] * height;
        let line_len = width * p.out_channels;
        let per_line = line_len * p.tap_count();
        let pixels = frame.in_pixels() * p.in_channels;
        // With a tail, lines are grouped to about `TAIL_PART` elements.
        let at_once = epilogue.tail.map_or(1, |_| TAIL_PART.div_ceil(line_len));
        let some = |group: usize, out: &mut [f32]| {
            let first = group * at_once;
            for (i, out) in (first..).zip(out.chunks_exact_mut(line_len)) {
                let (n, z, y) = (i / height / frame.output[0], i / height % frame.output[0], i % height);
                let image = Window { elements: &x[n * pixels..][..pixels], first: 0 };
                let epilogue = &epilogue.for_elements(i * line_len..(i + 1) * line_len);
                Line { p, frame, image, z, y, weights: self.weights.elements(), epilogue, out }.run(isa);
            }
            if let Some(tail) = epilogue.tail {
                (tail.0)(first * line_len, out);
            }
        };
        pteron_pool::count(lines.saturating_mul(per_line));
        let group_len = at_once * line_len;
        if lines.saturating_mul(per_line) < split::TAPS {
            out.chunks_mut(group_len).enumerate().for_each(|(group, out)| some(group, out));
        } else {
            let grain = (split::TAPS / 4 / (per_line * at_once).max(1)).max(1);
            pool.parallel_chunks_mut(out, group_len, grain, &some);
        }
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
            Line { p, frame, image, z: 0, y, weights: self.weights.elements(), epilogue, out }.run(isa);
        }
    }
}

/// One line of an output image.
struct Line<'a> {
    p: &'a ConvParams,
    frame: &'a ConvFrame,
    /// The input image, or a window of it that contains the lines which this output line reads.
    image: Window<'a>,
    z: usize,
    y: usize,
    weights: &'a [f32],
    /// The epilogue, with the residual of this line only.
    epilogue: &'a ConvEpilogue<'a>,
    out: &'a mut [f32],
}

/// A tap that lies in the image: the offset of its input pixel, and that of its weights.
type Tap = (usize, usize);

impl Line<'_> {
    fn run(self, isa: Isa) {
        let channels = self.p.in_channels;
        let width = self.frame.output[2];
        let (first, end) = self.inner_pixels();
        let step = self.p.stride[2] * channels;
        let mut taps = [(0, 0); MAX_TAPS];
        let mut x = 0;
        while x < width {
            let count = if x >= first && x < end { end - x } else { 1 };
            let taps = &mut taps[..];
            let n = self.taps_in_image(x, taps);
            let out = &mut self.out[x * channels..][..count * channels];
            let residual = self.epilogue.residual.map(|r| &r[x * channels..][..count * channels]);
            let pixels = Pixels {
                image: self.image.elements,
                taps: &taps[..n],
                weights: self.weights,
                channels,
                step,
                count,
                bias: self.epilogue.bias,
                residual,
                bounds: self.epilogue.activation.number_bounds(),
                out: &mut *out,
            };
            dispatch(isa, pixels);
            if let Some(function) = self.epilogue.activation.function() {
                math::activate(isa, function, out);
            }
            x += count;
        }
    }

    /// The range, as start and end, of the pixels whose taps are all within the width of the image.
    fn inner_pixels(&self) -> (usize, usize) {
        let (s, pad) = (self.p.stride[2], self.p.padding[2]);
        let reach = (self.p.kernel[2] - 1) * self.p.dilation[2];
        let first = pad.div_ceil(s);
        let end = (self.frame.input[2] + pad).checked_sub(reach + 1).map_or(0, |last| last / s + 1);
        (first, end.min(self.frame.output[2]))
    }

    /// Writes the taps of the pixel at `x` that are in the image to `taps`, and returns their number.
    fn taps_in_image(&self, x: usize, taps: &mut [Tap]) -> usize {
        let p = self.p;
        let at = [self.z, self.y, x];
        let meet = |d: usize, k: usize| {
            let i = (at[d] * p.stride[d] + k * p.dilation[d]).checked_sub(p.padding[d])?;
            (i < self.frame.input[d]).then_some(i)
        };
        let mut n = 0;
        for kz in 0..p.kernel[0] {
            let Some(iz) = meet(0, kz) else { continue };
            for ky in 0..p.kernel[1] {
                let Some(iy) = meet(1, ky) else { continue };
                for kx in 0..p.kernel[2] {
                    let Some(ix) = meet(2, kx) else { continue };
                    let line = iz * self.frame.input[1] + iy - self.image.first;
                    let pixel = line * self.frame.input[2] + ix;
                    let tap = (kz * p.kernel[1] + ky) * p.kernel[2] + kx;
                    taps[n] = (pixel * p.in_channels, tap * p.in_channels);
                    n += 1;
                }
            }
        }
        n
    }
}

/// Neighbouring pixels with the same taps; the input of each pixel is `step` elements after that of the previous one.
struct Pixels<'a> {
    image: &'a [f32],
    taps: &'a [Tap],
    weights: &'a [f32],
    channels: usize,
    step: usize,
    count: usize,
    bias: Option<&'a [f32]>,
    residual: Option<&'a [f32]>,
    bounds: Option<(f32, f32)>,
    out: &'a mut [f32],
}

impl Op for Pixels<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let c = self.channels;
        assert!(self.count > 0);
        let last = (self.count - 1) * self.step + c;
        assert!(
            self.taps
                .iter()
                .all(|&(at, weight)| at + last <= self.image.len() && weight + c <= self.weights.len())
        );
        assert!(self.out.len() == self.count * c && self.bias.is_none_or(|b| b.len() == c));
        assert!(self.residual.is_none_or(|r| r.len() == self.out.len()));
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
        let (triples, rest) = self.taps.as_chunks::<3>();
        let is_triple = |&[a, b, c]: &[Tap; 3]| {
            let is_next =
                |from: Tap, to: Tap| from.0 + self.channels == to.0 && from.1 + self.channels == to.1;
            is_next(a, b) && is_next(b, c)
        };
        (rest.is_empty() && triples.iter().all(is_triple)).then(|| self.step / self.channels.max(1))
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
        let c = self.channels;
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
        let left = self.channels - ch;
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
                let w = |t: usize| weights.wrapping_add(tap + t * self.channels);
                let w: [[S::F; V]; 3] = std::array::from_fn(|t| std::array::from_fn(|v| load(w(t), v)));
                repeat!((P - 1) * R + 3, [0 1 2 3 4 5 6 7 8], column => {
                    let x = image.wrapping_add(pixel + column * self.channels);
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
        let place = |i: usize| (at + i) * self.channels + ch;
        if let Some(b) = self.bias {
            let b: [S::F; V] = std::array::from_fn(|v| load(b.as_ptr().wrapping_add(ch), v));
            for acc in &mut acc {
                for (acc, &b) in acc.iter_mut().zip(&b) {
                    *acc = s.add(*acc, b);
                }
            }
        }
        if let Some(r) = self.residual {
            for (i, acc) in acc.iter_mut().enumerate() {
                for (v, acc) in acc.iter_mut().enumerate() {
                    *acc = s.add(*acc, load(r.as_ptr().wrapping_add(place(i)), v));
                }
            }
        }
        if let Some((low, high)) = self.bounds {
            for acc in acc.as_flattened_mut() {
                *acc = s.clamp(*acc, s.splat(low), s.splat(high));
            }
        }
        for (i, acc) in acc.iter().enumerate() {
            for (v, &y) in acc.iter().enumerate() {
                let out = self.out.as_mut_ptr().wrapping_add(place(i) + v * S::LANES);
                // SAFETY: these channels of this pixel are in bounds of the output.
                unsafe { if is_full { s.store(out, y) } else { s.store_first(out, left, y) } }
            }
        }
    }
}
