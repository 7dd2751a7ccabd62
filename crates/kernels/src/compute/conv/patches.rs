//! One phase of a convolution as a product of patches by weights: a row of the left operand is the patch of one output
//! pixel. If channels are contiguous, the rows are read in place, through a table of pointers; otherwise they are
//! gathered (im2col), a block at a time.
//!
//! The table is that of the indirect convolution of XNNPACK (Dukhan, "The Indirect Convolution Algorithm", 2019):
//! im2col would copy each pixel once a tap, while a tile needs only one pointer for each of its rows and taps. Pixels
//! outside the image are pointers to zeros, so that tiles have no borders. With fewer than four channels a tap is too
//! short for a loop of its own, and copying pays.

use super::super::gemm::driver::{Job, LongSums, MAX_F32_SUM, PARTIAL_SUM, accumulation_len};
use super::super::gemm::row_table::RowTable;
use super::super::gemm::sweep::{LhsBlock, RhsBlock, Sweep};
use super::super::gemm::tile;
use super::super::gemm::{Bias, Epilogue, Lhs, Rhs, pack};
use super::super::mat::{MatMut, MatRef, Shared};
use super::super::scratch;
use super::super::simd::VectorIsa;
use super::epilogue::TAIL_PART;
use super::params::Layout;
use super::phase::{Chunk, KC, MC, Phase};
use super::problem::Problem;
use std::ops::Range;

/// The fewest input channels of a group for which rows are read in place, unless taps are merged.
const IN_PLACE_CHANNELS: usize = 4;

/// Zeros that are read instead of pixels outside the image.
static ZEROS: [f32; KC] = [0.0; KC];

/// The input pixel that a row's taps are relative to.
#[derive(Clone, Copy, Default)]
struct Origin {
    at: [isize; 3],
    /// The index of the pixel in the image: see [`linear_index`].
    pixel: isize,
    /// Whether the pixels of all taps are in the image.
    inner: bool,
}

/// The linear index of a pixel of an image of these sizes; meaningless for a pixel outside the image.
fn linear_index(at: [isize; 3], sizes: [usize; 3]) -> isize {
    let [_, h, w] = sizes.map(|n| n as isize);
    at[0].wrapping_mul(h).wrapping_add(at[1]).wrapping_mul(w).wrapping_add(at[2])
}

/// The computation of one [`Phase`] of a convolution.
pub(super) struct Run<'a> {
    pub(super) problem: Problem<'a>,
    pub(super) out: Shared<'a>,
    /// The layout of the input images; `output` is that of the output images.
    pub(super) input: Layout,
    pub(super) output: Layout,
    pub(super) phase: &'a Phase,
    /// The number of output pixels of the phase along each dimension.
    pub(super) count: [usize; 3],
}

impl Run<'_> {
    /// Computes a range of pixels and channels of image `n`, group `g`.
    ///
    /// # Safety
    /// No other task accesses these meanwhile.
    pub(super) unsafe fn compute_part(&self, n: usize, g: usize, rows: Range<usize>, cols: Range<usize>) {
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        if self.is_pointwise() {
            // SAFETY: as the caller promises.
            let c = unsafe { self.output_block(n, g, rows.clone(), cols.clone()) };
            return self.pointwise(n, g, rows, cols, c);
        }
        let width = self.count[2];
        let mut row = rows.start;
        while row < rows.end {
            // Rows with a fixed stride in the output: all of them, or those of a line.
            let end =
                if self.phase.step == [1; 3] { rows.end } else { rows.end.min((row / width + 1) * width) };
            let end = end.min(row + MC);
            // SAFETY: as the caller promises.
            let mut c = unsafe { self.output_block(n, g, row..end, cols.clone()) };
            self.compute_block(n, g, row..end, cols.clone(), c.reborrow());
            self.run_tail(n, row..end, c);
            row = end;
        }
    }

    /// Applies the tail, if there is one, to finished rows in C, which are then pixels of the output with all their
    /// channels.
    pub(super) fn run_tail(&self, n: usize, rows: Range<usize>, c: MatMut<'_>) {
        let Problem { p, frame, epilogue, .. } = self.problem;
        let Some(tail) = epilogue.tail else { return };
        let first = (n * frame.out_pixels() + rows.start) * p.out_channels;
        let mut c = c.into_one_row();
        (tail.0)(first, c.row(0).expect("contiguous channels-last pixels"));
    }

    /// The block of the output of image `n`, group `g`, with these columns and these rows, which have a fixed stride.
    ///
    /// # Safety
    /// No other task accesses the block meanwhile.
    pub(super) unsafe fn output_block(
        &self,
        n: usize,
        g: usize,
        rows: Range<usize>,
        cols: Range<usize>,
    ) -> MatMut<'_> {
        let (first, rs, cs) = self.strides(n, g, rows.start);
        // SAFETY: as the caller promises.
        unsafe { self.out.matrix(first + cols.start * cs, (rows.len(), rs), (cols.len(), cs)) }
    }

    /// For the output of image `n`, group `g`: the offset of the first channel of row `row`, the row stride and the
    /// channel stride.
    fn strides(&self, n: usize, g: usize, row: usize) -> (usize, usize, usize) {
        let (p, out_pixels) = (self.problem.p, self.problem.frame.out_pixels());
        let (channel, pixel) = self.output.strides(p.out_channels, out_pixels);
        let base = n * p.out_channels * out_pixels + g * (p.out_channels / p.groups) * channel;
        (base + self.out_pixel(row) * pixel, self.phase.step[2] * pixel, channel)
    }

    /// The epilogue of rows `rows` of image `n` and group `g`, which must have a uniform stride in the output.
    pub(super) fn gemm_epilogue(&self, n: usize, g: usize, rows: Range<usize>) -> Epilogue<'_> {
        let Problem { p, epilogue, .. } = self.problem;
        let co = p.out_channels / p.groups;
        let (first, rs, cs) = self.strides(n, g, rows.start);
        Epilogue {
            bias: Bias::per_col(epilogue.bias.map(|b| &b[g * co..][..co])),
            residual: epilogue.residual.map(|r| (1.0, MatRef::strided(&r[first..], rows.len(), co, rs, cs))),
            activation: epilogue.activation,
            ..Epilogue::NONE
        }
    }

    /// Whether output pixel `i` reads input pixel `i` only.
    pub(super) fn is_pointwise(&self) -> bool {
        let Problem { p, frame, .. } = self.problem;
        let plain = self.phase.taps.len() == 1 && self.phase.taps[0] == [0; 3];
        plain && p.stride == [1; 3] && frame.input == frame.output && p.in_channels > 0
    }

    /// Computes a pointwise convolution as a product of the image, whose rows are pixels, by the weights.
    fn pointwise(&self, n: usize, g: usize, rows: Range<usize>, cols: Range<usize>, mut c: MatMut<'_>) {
        let Problem { isa, p, frame, x, .. } = self.problem;
        let pixels = frame.out_pixels();
        let (ci, co) = (p.in_channels / p.groups, p.out_channels / p.groups);
        let (channel, pixel) = self.input.strides(p.in_channels, pixels);
        let image = &x[n * p.in_channels * pixels + g * ci * channel..];
        let a = Lhs::Plain(MatRef::strided(image, pixels, ci, pixel, channel));
        let epilogue = self.gemm_epilogue(n, g, 0..pixels);
        let b = Rhs::Packed(&self.phase.weights[g]);
        let job = Job { isa, m: pixels, n: co, k: ci, a, b, epilogue };
        if self.problem.epilogue.tail.is_none() {
            return job.compute_part(rows, cols, c);
        }
        let some = TAIL_PART.div_ceil(co.max(1)).next_multiple_of(MC);
        for row in rows.clone().step_by(some) {
            let part = row..rows.end.min(row + some);
            let mut c = c.block(row - rows.start..part.end - rows.start, 0..cols.len());
            job.compute_part(part.clone(), cols.clone(), c.reborrow());
            self.run_tail(n, part, c);
        }
    }

    /// Computes a block of the output of image `n`, group `g`. `c` is that block.
    fn compute_block(&self, n: usize, g: usize, rows: Range<usize>, cols: Range<usize>, mut c: MatMut<'_>) {
        let Problem { isa, p, .. } = self.problem;
        let ci = p.in_channels / p.groups;
        let epilogue = self.gemm_epilogue(n, g, rows.clone());
        let weights = &self.phase.weights[g];
        let vectors = VectorIsa::from(isa);
        let wide = self.merged_tap_count();
        let in_place = self.input == Layout::ChannelsLast && (ci >= IN_PLACE_CHANNELS || wide > 1);
        let most = if in_place { tile::max_rows_in_place(vectors) } else { tile::max_rows(vectors) };
        let height = rows.len().div_ceil(rows.len().div_ceil(most));
        let all = self.phase.taps.len() * ci;
        let mut long = (all > MAX_F32_SUM).then(|| LongSums::new(rows.len(), cols.len()));
        let plain = if long.is_some() { Epilogue::NONE } else { epilogue };
        let sweep = |k: usize, row: usize, accumulate: bool, last: bool| Sweep {
            isa,
            epilogue: &plain,
            rows: 0..rows.len(),
            cols: cols.clone(),
            height,
            k,
            b: RhsBlock::of_packed(weights, cols.start, row),
            accumulate,
            last,
        };
        if ci == 0 || self.phase.taps.is_empty() {
            return sweep(0, 0, false, true).run(LhsBlock::Packed { elements: &[], k: 0, skip: 0 }, c);
        }
        let mut origins = [Origin::default(); MC];
        let origins = &mut origins[..rows.len()];
        self.find_origins(rows.start, origins);
        let ci = ci * wide;
        let end = (self.phase.taps.len() / wide, ci);
        let (run, mut summed) = (accumulation_len(all, KC), 0);
        for chunk in self.phase.chunks(end.0, ci, run) {
            let row = chunk.taps.start * ci + chunk.channels.start;
            let last = (chunk.taps.end, chunk.channels.end) == end;
            let accumulate = if long.is_some() { summed > 0 } else { row > 0 };
            let to = match &mut long {
                Some(sums) => sums.next_partial(),
                None => c.reborrow(),
            };
            if in_place {
                let taps = chunk.taps.len();
                let borders = if wide > 1 { origins.len() * taps * ci } else { 0 };
                let len = chunk.channels.len();
                scratch::with_buffer(borders, |borders| {
                    RowTable::with(len, |table| {
                        match wide {
                            1 => self.fill_table(table, n, g, origins, height, &chunk),
                            _ => self.fill_wide(table, n, origins, height, (&chunk, wide), borders),
                        }
                        sweep(len, row, accumulate, last).run(LhsBlock::Table { table, taps }, to);
                    });
                });
            } else {
                let k = chunk.taps.len() * chunk.channels.len();
                scratch::with_buffer(2 * k * origins.len(), |s| {
                    let (plain, packed) = s.split_at_mut(k * origins.len());
                    self.gather_rows(n, g, origins, &chunk, plain);
                    pack::pack_a(
                        isa,
                        MatRef::new(plain, origins.len(), k),
                        0..origins.len(),
                        0..k,
                        height,
                        packed,
                    );
                    sweep(k, row, accumulate, last)
                        .run(LhsBlock::Packed { elements: packed, k, skip: 0 }, to);
                });
            }
            if let Some(sums) = &mut long {
                summed += chunk.taps.len() * chunk.channels.len();
                if summed + run > PARTIAL_SUM || last {
                    sums.add_partial();
                    summed = 0;
                }
            }
        }
        if let Some(sums) = &long {
            sums.store(c, &epilogue, 0, cols.start);
        }
    }

    /// The index in the output image of a row's pixel.
    fn out_pixel(&self, row: usize) -> usize {
        let q = self.row_position(row);
        let o: [usize; 3] = std::array::from_fn(|d| self.phase.first[d] + q[d] * self.phase.step[d]);
        let [_, height, width] = self.problem.frame.output;
        (o[0] * height + o[1]) * width + o[2]
    }

    /// Sets `origins` to the origins of the rows from `first` on.
    fn find_origins(&self, first: usize, origins: &mut [Origin]) {
        let (input, reach, scale) = (self.problem.frame.input, &self.phase.reach, &self.phase.scale);
        let inner = |d: usize, at: isize| {
            let has = |tap: isize| (at.wrapping_add(tap) as usize) < input[d];
            has(reach[d].0) && has(reach[d].1)
        };
        let mut q = self.row_position(first);
        let mut left = origins;
        // A line of the output at a time.
        while !left.is_empty() {
            let (line, rest) = left.split_at_mut((self.count[2] - q[2]).min(left.len()));
            let [z, y] = [0, 1].map(|d| (q[d] * scale[d]) as isize);
            let within = inner(0, z) && inner(1, y);
            let start = linear_index([z, y, 0], input);
            for (i, origin) in line.iter_mut().enumerate() {
                let x = ((q[2] + i) * scale[2]) as isize;
                let inner = within && inner(2, x);
                *origin = Origin { at: [z, y, x], pixel: start.wrapping_add(x), inner };
            }
            q = if q[1] + 1 < self.count[1] { [q[0], q[1] + 1, 0] } else { [q[0] + 1, 0, 0] };
            left = rest;
        }
    }

    fn row_position(&self, row: usize) -> [usize; 3] {
        let [_, h, w] = self.count;
        [row / (h * w), row / w % h, row % w]
    }

    /// A function that finds the input pixel that a row reads at the tap `tap`; `None` if the pixel is outside the image.
    #[inline(always)]
    fn pixel_finder(&self, tap: &[isize; 3]) -> impl Fn(&Origin) -> Option<usize> {
        let (tap, input) = (*tap, self.problem.frame.input);
        let distance = linear_index(tap, input);
        move |origin| {
            let has = |d: usize| (origin.at[d].wrapping_add(tap[d]) as usize) < input[d];
            (origin.inner || (0..3).all(has)).then(|| origin.pixel.wrapping_add(distance) as usize)
        }
    }

    /// The number of neighbouring taps that are treated as one, because their pixels are contiguous and have few
    /// channels: a line of the kernel, or one tap.
    fn merged_tap_count(&self) -> usize {
        let p = self.problem.p;
        let line = p.kernel[2];
        let together = self.input == Layout::ChannelsLast && p.groups == 1 && !p.transposed;
        let few = p.in_channels < IN_PLACE_CHANNELS && line * p.in_channels <= KC;
        let short = p.tap_count() * p.in_channels <= MAX_F32_SUM;
        if together && few && short && p.dilation[2] == 1 && line > 1 { line } else { 1 }
    }

    /// As [`Self::fill_table`], for taps that each stand for `wide` neighbouring taps. Rows that cross the border of
    /// the image are copied to `borders`, with zeros outside.
    fn fill_wide<'a>(
        &'a self,
        table: &mut RowTable<'a>,
        n: usize,
        origins: &[Origin],
        height: usize,
        (chunk, wide): (&Chunk, usize),
        borders: &'a mut [f32],
    ) {
        let Problem { p, frame, x, .. } = self.problem;
        let channels = p.in_channels;
        let image = &x[n * frame.in_pixels() * channels..];
        let len = wide * channels;
        let mut borders = borders.chunks_exact_mut(len);
        for origins in origins.chunks(height) {
            for t in chunk.taps.clone() {
                let taps = &self.phase.taps[t * wide..][..wide];
                if self.extend_inner(table, image, origins, &taps[0], channels) {
                    continue;
                }
                let (first, last) = (self.pixel_finder(&taps[0]), self.pixel_finder(&taps[wide - 1]));
                table.extend_rows(origins.iter().map(|origin| {
                    if let (Some(pixel), Some(_)) = (first(origin), last(origin)) {
                        return &image[pixel * channels..];
                    }
                    let border = borders.next().expect("a border for each row and tap");
                    for (dst, tap) in border.chunks_exact_mut(channels).zip(taps) {
                        match self.pixel_finder(tap)(origin) {
                            Some(at) => dst.copy_from_slice(&image[at * channels..][..channels]),
                            None => dst.fill(0.0),
                        }
                    }
                    border
                }));
            }
        }
    }

    /// If all pixels that any tap of these rows reads are in the image, adds the rows of one tap, whose pixels are
    /// `step` elements apart, and returns true. Otherwise adds nothing and returns false.
    #[inline(always)]
    fn extend_inner<'a>(
        &self,
        table: &mut RowTable<'a>,
        image: &'a [f32],
        origins: &[Origin],
        tap: &[isize; 3],
        step: usize,
    ) -> bool {
        let all = origins.iter().all(|p| p.inner);
        if all {
            let distance = linear_index(*tap, self.problem.frame.input);
            table.extend(image, origins.iter().map(|p| ((p.pixel + distance) as usize).wrapping_mul(step)));
        }
        all
    }

    /// Adds to `table`, for each `height` rows and each tap of the chunk, the input channels that the rows read.
    fn fill_table<'a>(
        &'a self,
        table: &mut RowTable<'a>,
        n: usize,
        g: usize,
        origins: &[Origin],
        height: usize,
        chunk: &Chunk,
    ) {
        let Problem { p, frame, x, .. } = self.problem;
        let ci = p.in_channels / p.groups;
        let image = &x[n * frame.in_pixels() * p.in_channels..];
        let channel = g * ci + chunk.channels.start;
        for origins in origins.chunks(height) {
            for tap in &self.phase.taps[chunk.taps.clone()] {
                if self.extend_inner(table, &image[channel..], origins, tap, p.in_channels) {
                    continue;
                }
                let pixel_of = self.pixel_finder(tap);
                table.extend_rows(origins.iter().map(|origin| match pixel_of(origin) {
                    Some(pixel) => &image[pixel * p.in_channels + channel..],
                    None => &ZEROS[..],
                }));
            }
        }
    }

    /// Copies the chunk's elements of each row, row after row.
    fn gather_rows(&self, n: usize, g: usize, origins: &[Origin], chunk: &Chunk, rows: &mut [f32]) {
        let Problem { p, frame, x, .. } = self.problem;
        let (ci, pixels) = (p.in_channels / p.groups, frame.in_pixels());
        let image = &x[n * pixels * p.in_channels..][..pixels * p.in_channels];
        let (channel, pixel) = self.input.strides(p.in_channels, pixels);
        let first = (g * ci + chunk.channels.start) * channel;
        let taps = &self.phase.taps[chunk.taps.clone()];
        let len = chunk.channels.len();
        for (row, origin) in rows.chunks_exact_mut(taps.len() * len).zip(origins) {
            for (dst, tap) in row.chunks_exact_mut(len).zip(taps) {
                match self.pixel_finder(tap)(origin) {
                    Some(at) => {
                        for (c, x) in dst.iter_mut().enumerate() {
                            *x = image[first + at * pixel + c * channel];
                        }
                    }
                    None => dst.fill(0.0),
                }
            }
        }
    }
}
