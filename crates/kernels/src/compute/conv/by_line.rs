//! What the algorithms have in common that compute a line of a channels-last output at a time, reading the image directly.

use super::super::gemm::tile::repeat;
use super::super::isa::Isa;
use super::super::math;
use super::super::simd::Simd;
use super::super::split;
use super::epilogue::{ConvEpilogue, TAIL_PART};
use super::params::{ConvFrame, ConvParams};
use super::problem::{Problem, Window};
use pteron_pool::Pool;

/// One line of an output image.
pub(super) struct Line<'a> {
    pub(super) p: &'a ConvParams,
    pub(super) frame: &'a ConvFrame,
    /// The input image, or a window of it that contains the lines which this output line reads.
    pub(super) image: Window<'a>,
    pub(super) z: usize,
    pub(super) y: usize,
    /// The epilogue, with the residual of this line only.
    pub(super) epilogue: &'a ConvEpilogue<'a>,
    pub(super) out: &'a mut [f32],
}

/// Neighbouring pixels of a line, from `x` on, that read the same taps.
#[derive(Clone, Copy)]
pub(super) struct Segment {
    pub(super) x: usize,
    pub(super) count: usize,
}

impl Line<'_> {
    /// The pixels whose taps are all within the width of the image together, every other pixel alone.
    pub(super) fn segments(&self) -> impl Iterator<Item = Segment> + use<> {
        let (s, pad, width) = (self.p.stride[2], self.p.padding[2], self.frame.output[2]);
        let reach = (self.p.kernel[2] - 1) * self.p.dilation[2];
        let first = pad.div_ceil(s);
        let end =
            (self.frame.input[2] + pad).checked_sub(reach + 1).map_or(0, |last| last / s + 1).min(width);
        let mut x = 0;
        std::iter::from_fn(move || {
            let segment = Segment { x, count: if x >= first && x < end { end - x } else { 1 } };
            x += segment.count;
            (segment.x < width).then_some(segment)
        })
    }

    /// The index along dimension `d` of the input that the pixel at `at` reads with the tap `tap`, if it is in the image.
    pub(super) fn meet(&self, d: usize, at: usize, tap: usize) -> Option<usize> {
        let p = self.p;
        let i = (at * p.stride[d] + tap * p.dilation[d]).checked_sub(p.padding[d])?;
        (i < self.frame.input[d]).then_some(i)
    }

    /// Calls `f` for each line of the kernel that meets a line of the image, with the index in the window of that line's
    /// first pixel, and the first tap.
    #[inline]
    pub(super) fn for_each_kernel_line(&self, mut f: impl FnMut(usize, usize)) {
        let [depth, height, width] = self.p.kernel;
        for kz in 0..depth {
            let Some(z) = self.meet(0, self.z, kz) else { continue };
            for ky in 0..height {
                let Some(y) = self.meet(1, self.y, ky) else { continue };
                let line = z * self.frame.input[1] + y - self.image.first;
                f(line * self.frame.input[2], (kz * height + ky) * width);
            }
        }
    }

    /// What becomes of the sums of a segment.
    pub(super) fn finish(&mut self, segment: Segment) -> Finish<'_> {
        let channels = self.p.out_channels;
        let elements = segment.x * channels..(segment.x + segment.count) * channels;
        Finish {
            channels,
            bias: self.epilogue.bias,
            residual: self.epilogue.residual.map(|r| &r[elements.clone()]),
            bounds: self.epilogue.activation.number_bounds(),
            out: &mut self.out[elements],
        }
    }

    /// Applies the activation to the whole line, unless [`Finish`] did.
    pub(super) fn activate(&mut self, isa: Isa) {
        if let Some(function) = self.epilogue.activation.function() {
            math::activate(isa, function, self.out);
        }
    }
}

/// What becomes of the sums of neighbouring pixels.
pub(super) struct Finish<'a> {
    /// The number of channels of a pixel.
    pub(super) channels: usize,
    bias: Option<&'a [f32]>,
    residual: Option<&'a [f32]>,
    bounds: Option<(f32, f32)>,
    out: &'a mut [f32],
}

impl Finish<'_> {
    /// Panics unless there are `count` pixels, and as many values of everything else as they need.
    pub(super) fn check(&self, count: usize) {
        assert!(
            self.out.len() == count * self.channels && self.bias.is_none_or(|b| b.len() == self.channels)
        );
        assert!(self.residual.is_none_or(|r| r.len() == self.out.len()));
    }

    /// Stores the sums of `P` pixels from `at` on, of their channels from `ch` on, as far as there are some.
    ///
    /// # Safety
    /// The [check](Self::check) passed; `at + P` is at most the number of pixels, and `ch` less than that of channels.
    #[inline(always)]
    pub(super) unsafe fn store<S: Simd, const P: usize, const V: usize>(
        &mut self,
        s: S,
        mut sums: [[S::F; V]; P],
        at: usize,
        ch: usize,
    ) {
        let left = self.channels - ch;
        let is_full = left >= V * S::LANES;
        // SAFETY: at least `left` elements are in bounds.
        let load = |p: *const f32, v: usize| unsafe {
            let p = p.wrapping_add(v * S::LANES);
            if is_full { s.load(p) } else { s.load_first(p, left.saturating_sub(v * S::LANES)) }
        };
        let place = |i: usize, v: usize| (at + i) * self.channels + ch + v * S::LANES;
        // Calls `$body` for each vector of sums.
        macro_rules! each {
            (|$i:ident, $v:ident| $body:block) => {
                repeat!(P, [0 1 2 3 4 5 6 7], $i => {
                    repeat!(V, [0 1], $v => $body);
                });
            };
        }
        if let Some(b) = self.bias {
            let b: [S::F; V] = std::array::from_fn(|v| load(b.as_ptr().wrapping_add(ch), v));
            each!(|i, v| {
                sums[i][v] = s.add(sums[i][v], b[v]);
            });
        }
        if let Some(r) = self.residual {
            each!(|i, v| {
                sums[i][v] = s.add(sums[i][v], load(r.as_ptr().wrapping_add(place(i, 0)), v));
            });
        }
        if let Some((low, high)) = self.bounds {
            each!(|i, v| {
                sums[i][v] = s.clamp(sums[i][v], s.splat(low), s.splat(high));
            });
        }
        each!(|i, v| {
            let out = self.out.as_mut_ptr().wrapping_add(place(i, v));
            // SAFETY: these channels of this pixel are in bounds of the output.
            unsafe {
                if is_full {
                    s.store(out, sums[i][v]);
                } else {
                    s.store_first(out, left.saturating_sub(v * S::LANES), sums[i][v]);
                }
            }
        });
    }
}

/// Computes all lines of the output with `compute`, divided among the threads of `pool`; `per_pixel` is the number of
/// multiplications of an output pixel.
pub(super) fn run(
    pool: &Pool,
    problem: Problem<'_>,
    out: &mut [f32],
    per_pixel: usize,
    compute: &(dyn Fn(Line<'_>) + Sync),
) {
    let Problem { p, frame, x, epilogue, .. } = problem;
    let [_, height, width] = frame.output;
    let lines = frame.batch * frame.output[0] * height;
    let line_len = width * p.out_channels;
    let per_line = width.saturating_mul(per_pixel);
    let pixels = frame.in_pixels() * p.in_channels;
    // With a tail, lines are grouped to about `TAIL_PART` elements.
    let at_once = epilogue.tail.map_or(1, |_| TAIL_PART.div_ceil(line_len));
    let some = |group: usize, out: &mut [f32]| {
        let first = group * at_once;
        for (i, out) in (first..).zip(out.chunks_exact_mut(line_len)) {
            let (n, z, y) = (i / height / frame.output[0], i / height % frame.output[0], i % height);
            let image = Window { elements: &x[n * pixels..][..pixels], first: 0 };
            let epilogue = &epilogue.for_elements(i * line_len..(i + 1) * line_len);
            compute(Line { p, frame, image, z, y, epilogue, out });
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
        let grain = (split::TAPS / 4 / per_line.saturating_mul(at_once).max(1)).max(1);
        pool.parallel_chunks_mut(out, group_len, grain, &some);
    }
}
