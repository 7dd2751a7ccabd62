//! Convolution of channels-first images as a product of the weights by patches: a column of the right operand is the
//! patch of one output pixel. Patches are gathered (im2col) a block at a time, directly into the panels that the
//! product reads; a 1x1 kernel needs none of that, because the image is its matrix of patches.

use super::super::gemm::driver::{Job, LongSums, MAX_F32_SUM, PARTIAL_SUM, accumulation_len};
use super::super::gemm::sweep::{LhsBlock, RhsBlock, Sweep};
use super::super::gemm::tile;
use super::super::gemm::{Bias, Elements, Epilogue, Lhs, PackedA, Rhs};
use super::super::isa::Isa;
use super::super::mat::{MatMut, MatRef};
use super::super::packed_weights::PackedWeightsReader;
use super::super::scratch;
use super::super::split::{self, Grid, balanced_chunk};
use super::params::ConvParams;
use super::problem::Problem;
use pteron_pool::Pool;
use pteron_tensor::Result;
use std::ops::Range;

/// The largest inner dimension of a block.
const KC: usize = 256;
/// The largest number of output pixels of a block.
const NC: usize = 512;

/// A convolution's packed weights: for each group, a matrix of output channels by input channels and taps.
#[derive(Debug)]
pub(super) struct PlanesConv {
    weights: Vec<PackedA>,
}

impl PlanesConv {
    pub(super) fn new(isa: Isa, p: &ConvParams, weights: &[f32]) -> Result<Self> {
        let (rows, k) = (p.out_channels / p.groups, p.in_channels / p.groups * p.tap_count());
        let group = |g: usize| PackedA::new(isa, MatRef::new(&weights[g * rows * k..], rows, k));
        Ok(Self { weights: (0..p.groups).map(group).collect::<Result<_>>()? })
    }

    pub(super) fn from_packed(isa: Isa, p: &ConvParams, from: &mut PackedWeightsReader) -> Option<Self> {
        let (rows, k) = (p.out_channels / p.groups, p.in_channels / p.groups * p.tap_count());
        let weights = (0..p.groups).map(|_| PackedA::from_packed(isa, rows, k, from));
        Some(Self { weights: weights.collect::<Option<_>>()? })
    }

    pub(super) fn store(&self, out: &mut Vec<u8>) {
        self.weights.iter().for_each(|group| group.store(out));
    }

    pub(super) fn nbytes(&self) -> usize {
        self.weights.iter().map(PackedA::nbytes).sum()
    }

    pub(super) fn run(&self, pool: &Pool, problem: Problem<'_>, out: &mut [f32]) {
        let Problem { isa, p, frame, .. } = problem;
        let run = Run { problem, conv: self };
        let (rows, cols) = (p.out_channels / p.groups, frame.out_pixels());
        let units = frame.batch * p.groups;
        let k = p.in_channels / p.groups * p.tap_count();
        let work = units.saturating_mul(rows).saturating_mul(cols).saturating_mul(k);
        pteron_pool::count(work);
        let threads = split::thread_count(pool, work, split::PRODUCTS);
        let grid_units = [self.weights[0].height(), tile::panel_cols(isa)];
        let grid = Grid::new(threads.div_ceil(units), [rows, cols], grid_units);
        // One row per plane; the planes of a unit (an image and a group) are adjacent.
        let out = MatMut::new(out, units * rows, cols).blocks();
        let part = |t: usize| {
            let (unit, [planes, pixels]) = (t / grid.task_count(), grid.task_block(t % grid.task_count()));
            if !planes.is_empty() && !pixels.is_empty() {
                let first = unit * rows;
                // SAFETY: units have planes of their own, and the shares of a unit differ in their planes or pixels.
                let c = unsafe { out.block(first + planes.start..first + planes.end, pixels.clone()) };
                run.compute_part(unit / p.groups, unit % p.groups, planes, pixels, c);
            }
        };
        split::run_tasks(pool, threads, units * grid.task_count(), part);
    }
}

struct Run<'a> {
    problem: Problem<'a>,
    conv: &'a PlanesConv,
}

impl Run<'_> {
    /// Computes a range of channels and pixels of image `n`, group `g`. `c` is that block.
    fn compute_part(&self, n: usize, g: usize, rows: Range<usize>, cols: Range<usize>, mut c: MatMut<'_>) {
        let Problem { isa, p, frame, x, epilogue } = self.problem;
        let (ci, co) = (p.in_channels / p.groups, p.out_channels / p.groups);
        let (in_pixels, out_pixels) = (frame.in_pixels(), frame.out_pixels());
        let first = (n * p.out_channels + g * co) * out_pixels;
        let epilogue = Epilogue {
            bias: epilogue.bias.map_or(Bias::None, |b| Bias::PerRow(&b[g * co..][..co])),
            residual: epilogue.residual.map(|r| (1.0, MatRef::new(&r[first..], co, out_pixels))),
            activation: epilogue.activation,
            ..Epilogue::NONE
        };
        let image = &x[(n * p.in_channels + g * ci) * in_pixels..][..ci * in_pixels];
        let weights = &self.conv.weights[g];
        let k = ci * p.tap_count();
        let is_pointwise =
            p.tap_count() == 1 && p.stride == [1; 3] && p.padding == [0; 3] && frame.input == frame.output;
        if is_pointwise || k == 0 {
            let b = Rhs::Plain(MatRef::new(image, k, out_pixels));
            let a = Lhs::Packed(weights);
            return Job { isa, m: co, n: out_pixels, k, a, b, epilogue }.compute_part(rows, cols, c);
        }
        let nr = tile::panel_cols(isa);
        let kc = balanced_chunk(k, accumulation_len(k, KC));
        let nc = NC.min(cols.len().next_multiple_of(nr));
        scratch::with_buffer(kc * nc + nc, |scratch| {
            let (panels, line) = scratch.split_at_mut(kc * nc);
            for jb in cols.clone().step_by(nc) {
                let jcols = jb..cols.end.min(jb + nc);
                let mut long = (k > MAX_F32_SUM).then(|| LongSums::new(rows.len(), jcols.len()));
                let mut c = c.block(0..rows.len(), jb - cols.start..jcols.end - cols.start);
                let plain = if long.is_some() { Epilogue::NONE } else { epilogue };
                for kb in (0..k).step_by(kc) {
                    let ks = kb..k.min(kb + kc);
                    let panel = ks.len() * nr;
                    for (i, row) in ks.clone().enumerate() {
                        let line = &mut line[..jcols.len().next_multiple_of(nr)];
                        self.write_patch_line(image, row, jcols.clone(), line);
                        for (lanes, panel) in line.chunks_exact(nr).zip(panels.chunks_exact_mut(panel)) {
                            panel[i * nr..][..nr].copy_from_slice(lanes);
                        }
                    }
                    let sweep = Sweep {
                        isa,
                        epilogue: &plain,
                        rows: rows.clone(),
                        cols: jcols.clone(),
                        height: weights.height(),
                        k: ks.len(),
                        b: RhsBlock { elements: Elements::F32(panels), step: nr, panel, tail: None },
                        accumulate: if long.is_some() { !kb.is_multiple_of(PARTIAL_SUM) } else { kb > 0 },
                        last: ks.end == k,
                    };
                    let to = match &mut long {
                        Some(sums) => sums.next_partial(),
                        None => c.reborrow(),
                    };
                    let elements = &weights.elements()[rows.start * k..];
                    sweep.run(LhsBlock::Packed { elements, k, skip: ks.start }, to);
                    if let Some(sums) = &mut long
                        && (ks.end.is_multiple_of(PARTIAL_SUM) || ks.end == k)
                    {
                        sums.add_partial();
                    }
                }
                if let Some(sums) = &long {
                    sums.store(c, &epilogue, rows.start, jcols.start);
                }
            }
        });
    }

    /// Writes the input pixels that the output pixels `cols` read for one channel and tap, then zeros.
    fn write_patch_line(&self, image: &[f32], row: usize, cols: Range<usize>, line: &mut [f32]) {
        pteron_pool::count(line.len());
        let (p, frame) = (self.problem.p, self.problem.frame);
        let (channel, tap) = (row / p.tap_count(), row % p.tap_count());
        let at = [tap / (p.kernel[1] * p.kernel[2]), tap / p.kernel[2] % p.kernel[1], tap % p.kernel[2]];
        let plane = &image[channel * frame.in_pixels()..][..frame.in_pixels()];
        let [_, height, width] = frame.output;
        let meet = |d: usize, o: usize| {
            let i = (o * p.stride[d] + at[d] * p.dilation[d]).checked_sub(p.padding[d])?;
            (i < frame.input[d]).then_some(i)
        };
        let stride = p.stride[2];
        let shift = at[2] * p.dilation[2];
        let mut col = cols.start;
        let mut rest = line;
        while col < cols.end {
            let (z, y, x) = (col / width / height, col / width % height, col % width);
            let n = (width - x).min(cols.end - col);
            let dst;
            (dst, rest) = rest.split_at_mut(n);
            col += n;
            let (Some(z), Some(y)) = (meet(0, z), meet(1, y)) else {
                dst.fill(0.0);
                continue;
            };
            let source = &plane[(z * frame.input[1] + y) * frame.input[2]..][..frame.input[2]];
            // Element i is input column (x + i) * stride + shift - padding.
            let base = x * stride + shift;
            let skip = p.padding[2].saturating_sub(base).div_ceil(stride).min(n);
            let first = (base + skip * stride).saturating_sub(p.padding[2]);
            let have = source.len().saturating_sub(first).div_ceil(stride).min(n - skip);
            dst[..skip].fill(0.0);
            dst[skip + have..].fill(0.0);
            if have > 0 {
                let dst = &mut dst[skip..skip + have];
                if stride == 1 {
                    dst.copy_from_slice(&source[first..][..have]);
                } else {
                    for (d, s) in dst.iter_mut().zip(source[first..].iter().step_by(stride)) {
                        *d = *s;
                    }
                }
            }
        }
        rest.fill(0.0);
    }
}
