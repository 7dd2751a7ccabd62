//! Convolution by kernels of 3 x 3 taps and stride 1 with 16 multiplications instead of 36: Winograd's minimal
//! filtering F(2 x 2, 3 x 3), as Lavin and Gray apply it ("Fast Algorithms for Convolutional Neural Networks", 2015).
//!
//! A tile is 2 x 2 pixels of the output, which read 4 x 4 pixels of the input. The input transform turns these into
//! 4 x 4 points, as the weight transform has done with the weights ahead of time. For each point, the tiles are
//! multiplied by the weights as matrices, with a row for each tile and a column for each output channel. The output
//! transform turns the products into pixels.
//!
//! With a matrix product for each point, over many tiles, sums over channels run at the speed of a plain product, and
//! the transforms take little more. Larger tiles save more multiplications (F(4 x 4, 3 x 3) has a quarter of the direct
//! ones), but their transforms have factors up to 8, and rounding errors grow with them; those of F(2 x 2, 3 x 3) only
//! add and halve.
//!
//! Results differ from direct sums by rounding. An infinity or a NaN would spread to all pixels of its tile: tiles
//! whose sums are not all finite are summed directly instead, with taps reconstructed from the transformed weights.

use super::super::gemm::sweep::{LhsBlock, RhsBlock, Sweep};
use super::super::gemm::{Epilogue, tile};
use super::super::gemm::{PackedB, WeightStorage};
use super::super::isa::Isa;
use super::super::mat::{MatMut, MatRef, Shared};
use super::super::packed_weights::PackedWeightsReader;
use super::super::simd::dispatch;
use super::super::split::{self, Grid, balanced_chunk};
use super::super::{math, scratch};
use super::epilogue::ConvEpilogue;
use super::params::{ConvFrame, ConvParams, Layout};
use super::phase::KC;
use super::problem::Problem;
use super::rows::RowsConv;
use super::weights::ConvWeights;
use super::winograd_transforms::{InputTransform, OutputTransform, POINTS, TAPS, WeightTransform, taps_of};
use pteron_pool::Pool;
use pteron_tensor::Result;
use std::ops::Range;
use std::sync::OnceLock;

/// Approximate number of elements of transformed tiles and their products that are held at once: they stay in the L2
/// cache.
const HELD: usize = 1 << 17;
/// Least number of tiles held at once, however many channels there are: all weights are read once for that many
/// tiles.
const LEAST_HELD: usize = 64;
/// The fewest tiles for which the method is faster: first for at most [`FEW_WEIGHTS`] weights, then for more.
const LEAST_TILES: [usize; 2] = [12, 48];

/// The fewest input channels, and the fewest output channels, for which the method is faster.
const LEAST_CHANNELS: usize = 16;
/// The maximum number of weights whose transforms stay in the L2 cache.
const FEW_WEIGHTS: usize = 1 << 18;

/// Unused elements between the points of tiles: points a power of two apart would compete for few sets of the L1
/// cache.
const GAP: usize = 16;

#[derive(Debug)]
pub(super) struct Winograd {
    /// The transformed weights: for each point of a tile, a row for each input channel; columns are output channels.
    weights: PackedB,
    /// The weights for convolving directly, tap by tap; made when first needed.
    direct: OnceLock<RowsConv>,
}

impl Winograd {
    /// Whether the method applies to a convolution of channels-last images.
    pub(super) fn supports(p: &ConvParams) -> bool {
        let plain = !p.transposed && p.groups == 1 && p.padding[0] == 0;
        plain && p.kernel == [1, 3, 3] && p.stride == [1; 3] && p.dilation == [1; 3] && p.weight_count() > 0
    }

    /// Whether the method is faster for images of this size: transforming a tile must cost little compared with its
    /// products, and reading the larger weights little compared with the tiles that share them.
    pub(super) fn is_faster(p: &ConvParams, frame: &ConvFrame) -> bool {
        let [depth, height, width] = frame.output;
        let tiles = [depth, height.div_ceil(2), width.div_ceil(2)]
            .iter()
            .fold(frame.batch, |tiles, &n| tiles.saturating_mul(n));
        let least = LEAST_TILES[usize::from(p.weight_count() > FEW_WEIGHTS)];
        Self::supports(p) && p.in_channels.min(p.out_channels) >= LEAST_CHANNELS && tiles >= least
    }

    /// Transforms and packs the weights; `None` if a transformed weight is not finite.
    pub(super) fn new(isa: Isa, p: &ConvParams, weights: &ConvWeights<'_>) -> Result<Option<Self>> {
        let [outer, inner, tap] = weights.strides;
        let nr = tile::panel_cols(isa);
        let mut taps = scratch::filled_vec(TAPS * nr, 0.0);
        let mut finite = true;
        let weights = PackedB::from_fn(isa, POINTS * p.in_channels, p.out_channels, |columns, panel| {
            let from = weights.values_from(columns.start);
            for (c, out) in (0..p.in_channels).zip((0..).step_by(nr)) {
                for (t, taps) in taps.chunks_exact_mut(nr).enumerate() {
                    let from = from[c * inner + t * tap..].iter().step_by(outer);
                    taps[..columns.len()].iter_mut().zip(from).for_each(|(to, &w)| *to = w);
                    taps[columns.len()..].fill(0.0);
                }
                let (out, pitch) = (&mut panel[out..], p.in_channels * nr);
                finite &= dispatch(isa, WeightTransform { taps: &taps, out, pitch });
            }
        })?;
        Ok(finite.then(|| Self { weights, direct: OnceLock::new() }))
    }

    pub(super) fn from_packed(isa: Isa, p: &ConvParams, from: &mut PackedWeightsReader) -> Option<Self> {
        let weights =
            PackedB::from_packed(isa, WeightStorage::F32, POINTS * p.in_channels, p.out_channels, from)?;
        Some(Self { weights, direct: OnceLock::new() })
    }

    pub(super) fn store(&self, out: &mut Vec<u8>) {
        self.weights.store(out);
    }

    pub(super) fn nbytes(&self) -> usize {
        self.weights.nbytes()
    }

    pub(super) fn run(&self, pool: &Pool, problem: Problem<'_>, out: &mut [f32]) {
        let Problem { isa, p, frame, epilogue, .. } = problem;
        let [depth, height, width] = frame.output;
        let lines = [height.div_ceil(2), width.div_ceil(2)];
        let tiles = frame.batch * depth * lines[0] * lines[1];
        let run = Run { problem, out: Shared::new(out), conv: self, lines };
        let work = tiles.saturating_mul(POINTS * p.in_channels).saturating_mul(p.out_channels);
        pteron_pool::count(work);
        let threads = split::thread_count(pool, work, split::PRODUCTS);
        // A tail needs whole lines of tiles, and all channels of a pixel.
        let units = match epilogue.tail {
            Some(_) => [lines[1], p.out_channels],
            None => [tile::max_rows_in_place(isa), tile::panel_cols(isa)],
        };
        let grid = Grid::new(threads, [tiles, p.out_channels], units);
        let part = |t: usize| {
            let [tiles, cols] = grid.task_block(t);
            // SAFETY: tasks have tiles or channels of their own.
            unsafe { run.compute_part(tiles, cols) };
        };
        split::run_tasks(pool, threads, grid.task_count(), part);
    }

    /// The weights for convolving directly, tap by tap.
    fn direct_weights(&self, isa: Isa, p: &ConvParams) -> &RowsConv {
        self.direct.get_or_init(|| {
            let mut plain = scratch::filled_vec(p.weight_count(), 0.0);
            for (o, taps) in plain.chunks_exact_mut(p.in_channels * TAPS).enumerate() {
                for (c, taps) in taps.chunks_exact_mut(TAPS).enumerate() {
                    let point = |t: usize| self.weights.at(t * p.in_channels + c, o);
                    taps.copy_from_slice(&taps_of(std::array::from_fn(point)));
                }
            }
            let last = Layout::ChannelsLast;
            RowsConv::new(isa, p, &ConvWeights::contiguous(p, &plain), WeightStorage::F32, (last, last))
                .unwrap_or_else(|_| pteron_pool::out_of_memory(plain.len() * size_of::<f32>()))
        })
    }
}

struct Run<'a> {
    problem: Problem<'a>,
    out: Shared<'a>,
    conv: &'a Winograd,
    /// The number of lines of tiles in an image, and of tiles in such a line.
    lines: [usize; 2],
}

/// A run of neighbouring tiles in one line of tiles.
struct Segment {
    /// The index of the image, counted through batch and depth.
    image: usize,
    /// The line and column of the segment's first pixel.
    first: [usize; 2],
    /// The number of tiles.
    count: usize,
    /// The numbers of lines and columns of pixels that the segment covers.
    size: [usize; 2],
}

impl Run<'_> {
    /// Computes a range of tiles, counted through all images, and a range of their channels.
    ///
    /// # Safety
    /// No other task accesses these meanwhile.
    unsafe fn compute_part(&self, tiles: Range<usize>, cols: Range<usize>) {
        if tiles.is_empty() || cols.is_empty() {
            return;
        }
        let Problem { isa, p, epilogue, .. } = self.problem;
        let (channels, unit) = (p.in_channels, tile::max_rows_in_place(isa));
        let max_tiles = (HELD / (POINTS * (channels + cols.len()))).max(LEAST_HELD);
        let most = balanced_chunk(tiles.len(), max_tiles).next_multiple_of(unit).min(tiles.len());
        let pitches = [channels, cols.len()].map(|n| most * n + GAP);
        // A tail is applied to whole lines of tiles, as soon as about `most` tiles are complete.
        let group = match epilogue.tail {
            Some(_) => (most / self.lines[1]).max(1) * self.lines[1],
            None => tiles.len(),
        };
        scratch::with_buffer(POINTS * (pitches[0] + pitches[1]), |scratch| {
            let (points, products) = scratch.split_at_mut(POINTS * pitches[0]);
            for first in tiles.clone().step_by(group) {
                let group = first..tiles.end.min(first + group);
                for first in group.clone().step_by(most) {
                    let some = first..group.end.min(first + most);
                    self.transform_inputs(some.clone(), points, pitches[0]);
                    self.multiply(some.len(), cols.clone(), (points, pitches[0]), (products, pitches[1]));
                    // SAFETY: as the caller promises.
                    unsafe { self.transform_outputs(some, cols.clone(), products, pitches[1]) };
                }
                // SAFETY: as the caller promises.
                unsafe { self.run_tail(group) };
            }
        });
    }

    /// Splits a range of tiles by lines of tiles.
    fn split_into_segments(&self, tiles: Range<usize>) -> impl Iterator<Item = Segment> {
        let ([lines, columns], [_, height, width]) = (self.lines, self.problem.frame.output);
        let mut next = tiles.start;
        std::iter::from_fn(move || {
            let (line, column) = (next / columns, next % columns);
            let count = (columns - column).min(tiles.end - next);
            next += count;
            let first = [line % lines * 2, column * 2];
            let size = [(height - first[0]).min(2), (width - first[1]).min(2 * count)];
            (count > 0).then_some(Segment { image: line / lines, first, count, size })
        })
    }

    /// Applies the input transform for a range of tiles.
    fn transform_inputs(&self, tiles: Range<usize>, points: &mut [f32], pitch: usize) {
        let Problem { isa, p, frame, x, .. } = self.problem;
        let (channels, [depth, height, width]) = (p.in_channels, frame.input);
        let len = height * width * channels;
        let mut done = 0;
        for Segment { image, first, count, .. } in self.split_into_segments(tiles) {
            // The output may have more planes than the input; the additional planes read only padding.
            let (n, z) = (image / frame.output[0], image % frame.output[0]);
            let (image, size) = match z < depth {
                true => (&x[(n * depth + z) * len..][..len], [height, width]),
                false => (&[][..], [0; 2]),
            };
            let first = [0, 1].map(|d| first[d].wrapping_sub(p.padding[d + 1]) as isize);
            let out = &mut points[done * channels..];
            dispatch(isa, InputTransform { image, size, channels, first, count, out, pitch });
            done += count;
        }
    }

    /// Multiplies `tiles` tiles by the weights of a range of output channels, point by point.
    fn multiply(
        &self,
        tiles: usize,
        cols: Range<usize>,
        (points, points_pitch): (&[f32], usize),
        (products, products_pitch): (&mut [f32], usize),
    ) {
        let Problem { isa, p, .. } = self.problem;
        let channels = p.in_channels;
        let height = tiles.div_ceil(tiles.div_ceil(tile::max_rows_in_place(isa)));
        let some = balanced_chunk(channels, KC);
        for (point, products) in products.chunks_exact_mut(products_pitch).enumerate() {
            let tiles_of = MatRef::new(&points[point * points_pitch..], tiles, channels);
            let mut c = MatMut::new(products, tiles, cols.len());
            for first in (0..channels).step_by(some) {
                let inner = first..channels.min(first + some);
                let sweep = Sweep {
                    isa,
                    epilogue: &Epilogue::NONE,
                    rows: 0..tiles,
                    cols: cols.clone(),
                    height,
                    k: inner.len(),
                    b: RhsBlock::of_packed(&self.conv.weights, cols.start, point * channels + first),
                    accumulate: first > 0,
                    last: inner.end == channels,
                };
                sweep.run(LhsBlock::Strided(tiles_of.block(0..tiles, inner)), c.reborrow());
            }
        }
    }

    /// Applies the output transform and the epilogue to the products of a range of tiles.
    ///
    /// # Safety
    /// As for [`Self::compute_part`].
    unsafe fn transform_outputs(
        &self,
        tiles: Range<usize>,
        cols: Range<usize>,
        products: &[f32],
        pitch: usize,
    ) {
        let Problem { isa, p, epilogue, .. } = self.problem;
        let mut done = 0;
        for segment in self.split_into_segments(tiles) {
            let products = &products[done * cols.len()..];
            done += segment.count;
            // SAFETY: as the caller promises; the two lines of a segment are disjoint.
            let mut lines = [0, 1].map(|y| unsafe { self.output_line(&segment, y, cols.clone()) });
            let transform = OutputTransform {
                products,
                pitch,
                out: lines.each_mut().map(MatMut::reborrow),
                bias: epilogue.bias.map(|b| &b[cols.clone()]),
                residual: [0, 1].map(|y| self.residual_line(&segment, y, &cols)),
                residual_step: p.out_channels,
                bounds: epilogue.activation.number_bounds(),
            };
            if !dispatch(isa, transform) {
                // SAFETY: as the caller promises.
                unsafe { self.sum_directly(&segment, cols.clone()) };
            } else if let Some(function) = epilogue.activation.function() {
                lines.into_iter().for_each(|line| math::activate_rows(isa, function, line));
            }
        }
    }

    /// Computes the pixels of a segment by direct sums.
    ///
    /// # Safety
    /// As for [`Self::compute_part`].
    unsafe fn sum_directly(&self, segment: &Segment, cols: Range<usize>) {
        let Problem { isa, p, frame, .. } = self.problem;
        let (direct, n) = (self.conv.direct_weights(isa, p), segment.image / frame.output[0]);
        let epilogue = ConvEpilogue { tail: None, ..*self.problem.epilogue };
        for y in 0..segment.size[0] {
            let first = self.first_pixel(segment, y) - n * frame.out_pixels();
            let part = (n, first..first + segment.size[1], cols.clone());
            // SAFETY: as the caller promises.
            unsafe { direct.compute_pixels(Problem { epilogue: &epilogue, ..self.problem }, self.out, part) };
        }
    }

    /// The index of the first pixel of line `y` of a segment.
    fn first_pixel(&self, segment: &Segment, y: usize) -> usize {
        let [_, height, width] = self.problem.frame.output;
        (segment.image * height + segment.first[0] + y) * width + segment.first[1]
    }

    /// The channels `cols` of line `y` of a segment; empty if the segment has no such line.
    ///
    /// # Safety
    /// As for [`Self::compute_part`].
    unsafe fn output_line(&self, segment: &Segment, y: usize, cols: Range<usize>) -> MatMut<'_> {
        let step = self.problem.p.out_channels;
        let (first, width) = match y < segment.size[0] {
            true => (self.first_pixel(segment, y) * step + cols.start, segment.size[1]),
            false => (0, 0),
        };
        // SAFETY: as the caller promises.
        unsafe { self.out.matrix(first, (width, step), (cols.len(), 1)) }
    }

    /// The residual of line `y` of a segment, from channel `cols.start` on: see [`Self::output_line`].
    fn residual_line(&self, segment: &Segment, y: usize, cols: &Range<usize>) -> Option<&[f32]> {
        let residual = self.problem.epilogue.residual.filter(|_| y < segment.size[0])?;
        Some(&residual[self.first_pixel(segment, y) * self.problem.p.out_channels + cols.start..])
    }

    /// Applies the tail, if there is one, to the pixels of whole lines of tiles, all of whose channels are complete.
    ///
    /// # Safety
    /// As for [`Self::compute_part`].
    unsafe fn run_tail(&self, tiles: Range<usize>) {
        let Problem { p, frame, epilogue, .. } = self.problem;
        let Some(tail) = epilogue.tail else { return };
        let [_, height, width] = frame.output;
        let pixel = |line: usize| (line / self.lines[0] * height + line % self.lines[0] * 2) * width;
        let first = pixel(tiles.start / self.lines[1]) * p.out_channels;
        let end = pixel(tiles.end / self.lines[1]) * p.out_channels;
        // SAFETY: as the caller promises.
        let mut pixels = unsafe { self.out.matrix(first, (1, end - first), (end - first, 1)) };
        (tail.0)(first, pixels.row(0).expect("contiguous elements"));
    }
}
