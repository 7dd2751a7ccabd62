//! Depthwise convolution of channels-first images: neighbouring pixels of a line are the lanes. A block of a plane is
//! copied with its halo, and its columns are sorted by stride phase, so that every tap reads contiguous elements
//! without bounds checks.

use super::super::gemm::Activation;
use super::super::isa::Isa;
use super::super::math;
use super::super::scratch;
use super::super::simd::{Op, Simd, dispatch};
use super::super::split;
use super::params::{ConvFrame, ConvParams};
use super::problem::Problem;
use pteron_pool::Pool;
use smallvec::{SmallVec, smallvec};
use std::ops::Range;

/// The maximum number of taps of a kernel that this algorithm supports.
pub(super) const MAX_TAPS: usize = 128;
/// The maximum number of columns of a block of the output.
const COLUMNS: usize = 1024;
/// The maximum number of elements that are copied for a block of several lines.
const PATCH: usize = 1 << 15;
/// The largest number of elements that a block may copy for each multiply-add. Where a kernel extends so far that a
/// block would copy more, each tap reads the plane directly.
const MAX_COPIED: usize = 8;
/// The largest number of lanes of a vector of any instruction set: the extra room after a block's copied lines.
const ROOM: usize = 16;

/// Whether this algorithm supports a depthwise convolution: the kernel has depth 1, and neither it nor the stride along
/// a line is too large.
pub(super) fn supports(p: &ConvParams) -> bool {
    p.kernel[0] == 1
        && p.kernel.iter().all(|&k| k > 0)
        && p.tap_count() <= MAX_TAPS
        && p.kernel[2] * p.dilation[2] <= PATCH
        && p.stride[2] <= 16
}

/// Convolves each channel with its kernel, `weights[channel][tap]`.
pub(super) fn run(pool: &Pool, problem: Problem<'_>, weights: &[f32], out: &mut [f32]) {
    let Problem { isa, p, frame, x, epilogue } = problem;
    let depth = frame.output[0];
    let planes = frame.batch * p.out_channels * depth;
    let area = frame.output[1] * frame.output[2];
    let plane = |i: usize, out: &mut [f32]| {
        let (image, z) = (i / depth, i % depth);
        let c = image % p.out_channels;
        let source = (z * p.stride[0]).checked_sub(p.padding[0]).filter(|&z| z < frame.input[0]);
        let in_area = frame.input[1] * frame.input[2];
        Plane {
            isa,
            p,
            frame,
            x: source.map(|z| &x[(image * frame.input[0] + z) * in_area..][..in_area]),
            weights: &weights[c * p.tap_count()..][..p.tap_count()],
            bias: epilogue.bias.map_or(0.0, |b| b[c]),
            residual: epilogue.residual.map(|r| &r[i * area..][..area]),
            activation: epilogue.activation,
            out,
        }
        .run();
    };
    let per_plane = area * p.tap_count();
    pteron_pool::count(planes.saturating_mul(per_plane));
    if planes.saturating_mul(per_plane) < split::TAPS {
        out.chunks_exact_mut(area).enumerate().for_each(|(i, out)| plane(i, out));
    } else {
        let grain = (split::TAPS / 4 / per_plane.max(1)).max(1);
        pool.parallel_chunks_mut(out, area, grain, &plane);
    }
}

/// One plane of an output image.
struct Plane<'a> {
    isa: Isa,
    p: &'a ConvParams,
    frame: &'a ConvFrame,
    /// The plane of the input that is read; `None` if the kernel reads only padding.
    x: Option<&'a [f32]>,
    weights: &'a [f32],
    bias: f32,
    residual: Option<&'a [f32]>,
    activation: Activation,
    out: &'a mut [f32],
}

impl Plane<'_> {
    fn run(mut self) {
        let p = self.p;
        let [_, height, width] = self.frame.output;
        let stride = p.stride[2];
        let reach = [(p.kernel[1] - 1) * p.dilation[1], (p.kernel[2] - 1) * p.dilation[2]];
        let columns = COLUMNS.min(width);
        // Elements of one stride phase of a line.
        let phase = columns + reach[1] / stride + 1;
        let line = phase * stride;
        let lines = (PATCH / line).saturating_sub(reach[0]).max(1).div_ceil(p.stride[1]).min(height);
        let patch_lines = (lines - 1) * p.stride[1] + reach[0] + 1;
        let sums = lines * columns * p.tap_count();
        if patch_lines.saturating_mul(line) > sums.saturating_mul(MAX_COPIED) {
            return self.run_in_place();
        }
        // The last vector of a line may read into the next line, or past the last line into the extra room.
        scratch::with_buffer(patch_lines * line + ROOM, |patch| {
            let mut taps: SmallVec<[(usize, f32); 32]> = smallvec![(0, 0.0); p.tap_count()];
            for (t, tap) in taps.iter_mut().enumerate() {
                let (ky, kx) = (t / p.kernel[2] * p.dilation[1], t % p.kernel[2] * p.dilation[2]);
                *tap = (ky * line + kx % stride * phase + kx / stride, self.weights[t]);
            }
            for y in (0..height).step_by(lines) {
                let ys = y..height.min(y + lines);
                for x in (0..width).step_by(columns) {
                    let xs = x..width.min(x + columns);
                    self.fill_patch(patch, phase, (ys.len() - 1) * p.stride[1] + reach[0] + 1, y, x);
                    let step = line * p.stride[1];
                    self.sum_block(patch, step, &taps, ys.clone(), xs);
                }
            }
        });
    }

    /// Sums each line tap by tap over the pixels that are in the image, without a copy.
    fn run_in_place(&mut self) {
        let p = self.p;
        let [_, height, width] = self.frame.output;
        let [_, in_height, in_width] = self.frame.input;
        let bounds = self.activation.bounds();
        for y in 0..height {
            let line = &mut self.out[y * width..][..width];
            line.fill(0.0);
            for (t, &weight) in self.weights.iter().enumerate() {
                let (ky, kx) = (t / p.kernel[2] * p.dilation[1], t % p.kernel[2] * p.dilation[2]);
                let row = (y * p.stride[1] + ky).checked_sub(p.padding[1]).filter(|&r| r < in_height);
                let (Some(row), Some(plane)) = (row, self.x) else { continue };
                // Pixel i reads column i * stride + kx - padding.
                let skip = p.padding[2].saturating_sub(kx).div_ceil(p.stride[2]).min(width);
                let first = (skip * p.stride[2] + kx).saturating_sub(p.padding[2]).min(in_width);
                let source = plane[row * in_width..][first..in_width].iter().step_by(p.stride[2]);
                line[skip..].iter_mut().zip(source).for_each(|(sum, x)| *sum += weight * x);
            }
            line.iter_mut().for_each(|sum| *sum += self.bias);
            if let Some(residual) = self.residual {
                line.iter_mut().zip(&residual[y * width..]).for_each(|(sum, r)| *sum += r);
            }
            if bounds.is_some() {
                line.iter_mut().for_each(|sum| *sum = math::clamp_to_bounds(*sum, bounds));
            }
            if let Some(function) = self.activation.function() {
                math::activate(self.isa, function, line);
            }
        }
    }

    /// Copies the `lines` input lines that the block at `(y, x)` reads, with the columns of each sorted by stride
    /// phase.
    fn fill_patch(&self, patch: &mut [f32], phase: usize, lines: usize, y: usize, x: usize) {
        let p = self.p;
        let [_, in_height, in_width] = self.frame.input;
        let stride = p.stride[2];
        pteron_pool::count(lines * phase * stride);
        for (l, line) in patch.chunks_exact_mut(phase * stride).take(lines).enumerate() {
            let row = (y * p.stride[1] + l).checked_sub(p.padding[1]).filter(|&r| r < in_height);
            let (Some(row), Some(plane)) = (row, self.x) else {
                line.fill(0.0);
                continue;
            };
            let row = &plane[row * in_width..][..in_width];
            for (q, dst) in line.chunks_exact_mut(phase).enumerate() {
                // Element i is column (x + i) * stride + q - padding.
                let base = x * stride + q;
                let skip = p.padding[2].saturating_sub(base).div_ceil(stride).min(phase);
                let first = (base + skip * stride).saturating_sub(p.padding[2]);
                let have = in_width.saturating_sub(first).div_ceil(stride).min(phase - skip);
                dst[..skip].fill(0.0);
                dst[skip + have..].fill(0.0);
                if have > 0 {
                    let source = &row[first..];
                    let dst = &mut dst[skip..skip + have];
                    match stride {
                        1 => dst.copy_from_slice(&source[..have]),
                        2 => copy_even_elements(source, dst),
                        _ => dst.iter_mut().zip(source.iter().step_by(stride)).for_each(|(d, s)| *d = *s),
                    }
                }
            }
        }
    }

    fn sum_block(
        &mut self,
        patch: &[f32],
        step: usize,
        taps: &[(usize, f32)],
        ys: Range<usize>,
        xs: Range<usize>,
    ) {
        let width = self.frame.output[2];
        let block = Block {
            patch,
            step,
            taps,
            lines: ys.len(),
            n: xs.len(),
            width,
            bias: self.bias,
            bounds: self.activation.number_bounds(),
            residual: self.residual.map(|r| &r[ys.start * width + xs.start..]),
            out: &mut self.out[ys.start * width + xs.start..],
        };
        dispatch(self.isa, block);
        if let Some(function) = self.activation.function() {
            for y in ys {
                math::activate(self.isa, function, &mut self.out[y * width..][xs.clone()]);
            }
        }
    }
}

/// Copies elements 0, 2, 4 ... of `source`.
fn copy_even_elements(source: &[f32], dst: &mut [f32]) {
    let (pairs, rest) = source.as_chunks::<2>();
    let (head, tail) = dst.split_at_mut(pairs.len().min(dst.len()));
    for (d, s) in head.iter_mut().zip(pairs) {
        *d = s[0];
    }
    tail.copy_from_slice(&rest[..tail.len()]);
}

/// Lines of `n` pixels, `width` apart. A sum adds up `patch[line * step + pixel + tap.0] * tap.1` over the taps.
struct Block<'a> {
    patch: &'a [f32],
    step: usize,
    taps: &'a [(usize, f32)],
    lines: usize,
    n: usize,
    width: usize,
    bias: f32,
    bounds: Option<(f32, f32)>,
    residual: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl Op for Block<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let padded = self.n.next_multiple_of(S::LANES);
        assert!(self.lines > 0);
        let last = (self.lines - 1) * self.step + padded;
        assert!(self.taps.iter().all(|&(at, _)| at + last <= self.patch.len()));
        let end = (self.lines - 1) * self.width + self.n;
        assert!(end <= self.out.len() && self.residual.is_none_or(|r| end <= r.len()));
        // SAFETY: by the assertions all elements of the lines are in bounds, and those of the patch up to whole
        // vectors.
        unsafe {
            let mut y = 0;
            // Several vectors of one line if it is long, of several lines if it is short.
            if self.n > S::LANES {
                for y in 0..self.lines {
                    let mut x = 0;
                    while x < self.n {
                        if self.n - x > 2 * S::LANES {
                            let v = |i: usize| (y, x + i * S::LANES);
                            self.sum_vectors(s, [v(0), v(1), v(2), v(3)].map(|(y, x)| (y, x.min(self.n))));
                            x += 4 * S::LANES;
                        } else {
                            self.sum_vectors(s, [(y, x), (y, (x + S::LANES).min(self.n))]);
                            x += 2 * S::LANES;
                        }
                    }
                }
                return;
            }
            while y < self.lines {
                if self.lines - y >= 4 {
                    self.sum_vectors(s, [(y, 0), (y + 1, 0), (y + 2, 0), (y + 3, 0)]);
                    y += 4;
                } else {
                    self.sum_vectors(s, [(y, 0)]);
                    y += 1;
                }
            }
        }
    }
}

impl Block<'_> {
    /// Computes the vectors at these lines and pixels. A vector at pixel `n` is computed but not stored.
    ///
    /// # Safety
    /// The assertions of `run` hold; lines are below `lines`, and pixels are multiples of a vector or `n`.
    #[inline(always)]
    unsafe fn sum_vectors<S: Simd, const P: usize>(&mut self, s: S, at: [(usize, usize); P]) {
        let mut acc = [s.splat(0.0); P];
        // A vector past the end of its line reads the first elements of the line instead.
        let base: [*const f32; P] = std::array::from_fn(|i| {
            let (y, x) = at[i];
            self.patch.as_ptr().wrapping_add(y * self.step + if x < self.n { x } else { 0 })
        });
        for &(offset, w) in self.taps {
            let w = s.splat(w);
            for (acc, base) in acc.iter_mut().zip(&base) {
                // SAFETY: the patch has a whole vector here.
                *acc = s.mul_add(unsafe { s.load(base.wrapping_add(offset)) }, w, *acc);
            }
        }
        for (&sum, (y, x)) in acc.iter().zip(at) {
            let left = self.n - x;
            let place = y * self.width + x;
            let mut v = s.add(sum, s.splat(self.bias));
            if let Some(r) = self.residual {
                // SAFETY: `left` pixels of the line are in bounds.
                v = s.add(v, unsafe { s.load_first(r.as_ptr().wrapping_add(place), left) });
            }
            if let Some((low, high)) = self.bounds {
                v = s.clamp(v, s.splat(low), s.splat(high));
            }
            // SAFETY: as above.
            unsafe { s.store_first(self.out.as_mut_ptr().wrapping_add(place), left, v) };
        }
    }
}
