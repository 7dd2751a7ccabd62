//! Convolution as a product of patches by weights: a row of the left operand is the patch of one output pixel. If
//! channels are contiguous, the rows are read in place, through a table of pointers; otherwise they are gathered
//! (im2col), a block at a time.
//!
//! The table is that of the indirect convolution of XNNPACK (Dukhan, "The Indirect Convolution Algorithm", 2019):
//! im2col would copy each pixel once a tap, while a tile needs only one pointer for each of its rows and taps. Pixels
//! outside the image are pointers to zeros, so that tiles have no borders. With fewer than four channels a tap is too
//! short for a loop of its own, and copying pays.
//!
//! A transposed convolution of stride `s` decomposes into `s` ordinary ones a dimension, its phases: all output
//! pixels of a phase use the same taps.

use super::super::gemm::driver::{Job, LongSums, MAX_F32_SUM, PARTIAL_SUM, accumulation_len, grid, share};
use super::super::gemm::row_table::RowTable;
use super::super::gemm::sweep::{LhsBlock, RhsBlock, Sweep};
use super::super::gemm::tile;
use super::super::gemm::{Bias, Epilogue, Lhs, PackedB, Rhs, pack};
use super::super::isa::Isa;
use super::super::mat::{MatMut, MatRef, Shared};
use super::super::packed_weights::PackedWeightsReader;
use super::super::scratch;
use super::super::simd::VectorIsa;
use super::super::split::{self, balanced_chunk};
use super::{ConvEpilogue, ConvFrame, ConvParams, ConvWeights, Layout, TAIL_PART};
use pteron_pool::Pool;
use pteron_tensor::{AlignedBuffer, Result};
use std::ops::Range;

/// Largest inner dimension of a block.
pub(super) const KC: usize = 256;
/// Most rows of a block.
pub(super) const MC: usize = 112;
/// Channels from which on rows are read in place.
const IN_PLACE_CHANNELS: usize = 4;

/// Read in place of pixels outside the image.
static ZEROS: [f32; KC] = [0.0; KC];

#[derive(Debug)]
pub(super) struct RowsConv {
    phases: Vec<Phase>,
    input: Layout,
    output: Layout,
}

/// The output pixels `first + q * step`, which read the input pixels `q * scale + tap`.
#[derive(Debug)]
pub(super) struct Phase {
    first: [usize; 3],
    step: [usize; 3],
    scale: [usize; 3],
    taps: Vec<[isize; 3]>,
    /// The least and the greatest tap along each dimension.
    reach: [(isize, isize); 3],
    /// For each group, a matrix of `taps * channels` rows by the output channels of the group.
    pub(super) weights: Vec<PackedB>,
}

/// The input pixel that the taps of a row are relative to.
#[derive(Clone, Copy, Default)]
struct Origin {
    at: [isize; 3],
    /// Its index: see [`linear`].
    pixel: isize,
    /// Whether the pixels of all taps are in the image.
    inner: bool,
}

/// A part of the inner dimension: a range of taps, and a range of channels of each.
#[derive(Clone)]
pub(super) struct Chunk {
    pub(super) taps: Range<usize>,
    pub(super) channels: Range<usize>,
}

impl RowsConv {
    pub(super) fn new(
        isa: Isa,
        p: &ConvParams,
        weights: &ConvWeights<'_>,
        input: Layout,
        output: Layout,
    ) -> Result<Self> {
        let phases = first_pixels(p).map(|first| Phase::new(isa, p, weights, first));
        Ok(Self { phases: phases.collect::<Result<_>>()?, input, output })
    }

    pub(super) fn from_packed(
        isa: Isa,
        p: &ConvParams,
        (input, output): (Layout, Layout),
        from: &mut PackedWeightsReader,
    ) -> Option<Self> {
        let phases = first_pixels(p).map(|first| Phase::from_packed(isa, p, first, from));
        Some(Self { phases: phases.collect::<Option<_>>()?, input, output })
    }

    pub(super) fn store(&self, out: &mut Vec<u8>) {
        self.phases.iter().flat_map(|phase| &phase.weights).for_each(|group| group.store(out));
    }

    /// Whether results are contiguous: all channels of neighbouring pixels are computed together.
    pub(super) fn makes_parts(&self, p: &ConvParams) -> bool {
        self.output == Layout::ChannelsLast && p.groups == 1 && !p.transposed
    }

    pub(super) fn bytes(&self) -> usize {
        self.phases.iter().flat_map(|phase| &phase.weights).map(PackedB::bytes).sum()
    }

    /// Computes a range of pixels and channels of image `n`, for a convolution with one group that is not transposed.
    ///
    /// # Safety
    /// No other task accesses these meanwhile.
    pub(super) unsafe fn pixels(
        &self,
        isa: Isa,
        p: &ConvParams,
        frame: &ConvFrame,
        (x, out): (&[f32], Shared<'_>),
        epilogue: &ConvEpilogue<'_>,
        (n, pixels, cols): (usize, Range<usize>, Range<usize>),
    ) {
        for phase in &self.phases {
            let count = phase.count(frame.output);
            let run = Run { isa, p, frame, x, out, epilogue, phase, count, conv: self };
            // SAFETY: as the caller promises.
            unsafe { run.part(n, 0, pixels.clone(), cols.clone()) };
        }
    }

    pub(super) fn run(
        &self,
        isa: Isa,
        pool: &Pool,
        p: &ConvParams,
        frame: &ConvFrame,
        x: &[f32],
        out: &mut [f32],
        epilogue: &ConvEpilogue<'_>,
    ) {
        let out = Shared::new(out);
        for phase in &self.phases {
            let count = phase.count(frame.output);
            let rows: usize = count.iter().product();
            let cols = p.out_channels / p.groups;
            if rows == 0 {
                continue;
            }
            let run = Run { isa, p, frame, x, out, epilogue, phase, count, conv: self };
            let units = frame.batch * p.groups;
            let k = phase.taps.len() * (p.in_channels / p.groups);
            let work = units.saturating_mul(rows).saturating_mul(cols).saturating_mul(k);
            pteron_pool::count(work);
            let threads = split::threads(pool, work, split::PRODUCTS);
            let layouts = (self.input, self.output);
            if !run.is_pointwise()
                && let Some(lines) = super::lines::Lines::new(p, frame, layouts, epilogue.tail.is_some())
            {
                run.by_lines(pool, threads, &lines);
                continue;
            }
            let (row_unit, col_unit) = (tile::max_rows_in_place(isa), tile::panel_cols(isa));
            // A tail needs all channels of a pixel.
            let col_units = if epilogue.tail.is_some() { 1 } else { cols.div_ceil(col_unit) };
            let (tm, tn) = grid(threads.div_ceil(units.max(1)), rows.div_ceil(row_unit), col_units);
            let part = |t: usize| {
                let (unit, t) = (t / (tm * tn), t % (tm * tn));
                let rows = share(t / tn, tm, rows, row_unit);
                let cols = share(t % tn, tn, cols, col_unit);
                // SAFETY: units have an image or a group of their own, and the shares of a unit differ in their rows
                // or columns.
                unsafe { run.part(unit / p.groups, unit % p.groups, rows, cols) };
            };
            if threads == 1 {
                (0..units * tm * tn).for_each(part);
            } else {
                pool.parallel_for(units * tm * tn, 1, &|tasks| tasks.for_each(part));
            }
        }
    }
}

/// The first output pixel of each phase.
fn first_pixels(p: &ConvParams) -> impl Iterator<Item = [usize; 3]> + use<> {
    let [depth, height, width] = if p.transposed { p.stride } else { [1; 3] };
    (0..depth).flat_map(move |z| (0..height).flat_map(move |y| (0..width).map(move |x| [z, y, x])))
}

impl Phase {
    /// The phase without its weights, and the indices of its taps in the kernel.
    fn geometry(p: &ConvParams, first: [usize; 3]) -> (Self, Vec<usize>) {
        let mut taps = Vec::new();
        let mut indices = Vec::new();
        for z in 0..p.kernel[0] {
            for y in 0..p.kernel[1] {
                for x in 0..p.kernel[2] {
                    let at = [z, y, x];
                    let mut tap = [0; 3];
                    let meets = (0..3).all(|d| {
                        let reach = (at[d] * p.dilation[d]) as isize;
                        let pad = p.padding[d] as isize;
                        if !p.transposed {
                            tap[d] = reach - pad;
                            return true;
                        }
                        let distance = first[d] as isize + pad - reach;
                        tap[d] = distance.div_euclid(p.stride[d] as isize);
                        distance.rem_euclid(p.stride[d] as isize) == 0
                    });
                    if meets {
                        taps.push(tap);
                        indices.push((z * p.kernel[1] + y) * p.kernel[2] + x);
                    }
                }
            }
        }
        let (step, scale) = if p.transposed { (p.stride, [1; 3]) } else { ([1; 3], p.stride) };
        let reach = std::array::from_fn(|d| {
            let along = taps.iter().map(|t: &[isize; 3]| t[d]);
            (along.clone().min().unwrap_or(0), along.max().unwrap_or(0))
        });
        (Self { first, step, scale, taps, reach, weights: Vec::new() }, indices)
    }

    fn from_packed(
        isa: Isa,
        p: &ConvParams,
        first: [usize; 3],
        from: &mut PackedWeightsReader,
    ) -> Option<Self> {
        let (phase, _) = Self::geometry(p, first);
        let (k, co) = (phase.taps.len() * (p.in_channels / p.groups), p.out_channels / p.groups);
        let weights = (0..p.groups).map(|_| PackedB::from_packed(isa, k, co, from));
        Some(Self { weights: weights.collect::<Option<_>>()?, ..phase })
    }

    fn new(isa: Isa, p: &ConvParams, weights: &ConvWeights<'_>, first: [usize; 3]) -> Result<Self> {
        let (phase, indices) = Self::geometry(p, first);
        let taps = &phase.taps;
        let (ci, co) = (p.in_channels / p.groups, p.out_channels / p.groups);
        let mut packed = pteron_tensor::memory::with_room(p.groups)?;
        let [outer, inner, _] = weights.strides;
        let strided = match p.transposed {
            false => weights.step_within_taps().map(|step| (co, taps.len() * ci, step)),
            true => (p.taps() == 1 && indices == [0]).then_some((ci, co, inner)),
        };
        if let Some((rows, columns, step)) = strided {
            // The weights of a group are a strided matrix, or its transpose.
            for g in 0..p.groups {
                let matrix = MatRef::strided(weights.from(g * rows), rows, columns, outer, step);
                packed.push(PackedB::new(isa, if p.transposed { matrix } else { matrix.t() })?);
            }
        } else {
            let mut matrix = AlignedBuffer::zeroed(taps.len() * ci * co * size_of::<f32>())?;
            let matrix: &mut [f32] = bytemuck::cast_slice_mut(&mut matrix);
            for g in 0..p.groups {
                if co > 0 {
                    gather(p, weights, g, &indices, matrix);
                }
                packed.push(PackedB::new(isa, MatRef::new(matrix, taps.len() * ci, co))?);
            }
        }
        Ok(Self { weights: packed, ..phase })
    }

    /// The number of output pixels of the phase along each dimension.
    fn count(&self, out: [usize; 3]) -> [usize; 3] {
        std::array::from_fn(|d| out[d].saturating_sub(self.first[d]).div_ceil(self.step[d]))
    }

    /// Splits the inner dimension of `taps` taps by `channels` channels into even chunks of at most `most` elements.
    pub(super) fn chunks(&self, taps: usize, channels: usize, most: usize) -> impl Iterator<Item = Chunk> {
        let some_taps = balanced_chunk(taps, (most / channels.max(1)).max(1));
        let some_channels = balanced_chunk(channels, most);
        (0..taps).step_by(some_taps).flat_map(move |t| {
            let taps = t..taps.min(t + some_taps);
            (0..channels)
                .step_by(some_channels)
                .map(move |c| Chunk { taps: taps.clone(), channels: c..channels.min(c + some_channels) })
        })
    }
}

/// Gathers the weights of a group into a matrix with a row for each of the taps at these indices and each input
/// channel, and a column for each output channel.
fn gather(p: &ConvParams, weights: &ConvWeights<'_>, group: usize, indices: &[usize], matrix: &mut [f32]) {
    /// Output channels whose weights are read at a time: a cache line of the matrix.
    const LINE: usize = 16;
    let (ci, co, [outer, inner, tap]) =
        (p.in_channels / p.groups, p.out_channels / p.groups, weights.strides);
    if p.transposed {
        let rows = indices.iter().flat_map(|&t| (0..ci).map(move |c| (t, c)));
        for (row, (t, c)) in matrix.chunks_exact_mut(co).zip(rows) {
            let from = weights.from(group * ci + c)[t * tap..].iter().step_by(inner);
            row.iter_mut().zip(from).for_each(|(to, &w)| *to = w);
        }
        return;
    }
    for first in (0..co).step_by(LINE) {
        let channels = LINE.min(co - first);
        let from = weights.from(group * co + first);
        for c in 0..ci {
            for (i, &t) in indices.iter().enumerate() {
                let line = &mut matrix[(i * ci + c) * co + first..][..channels];
                let weights = from[c * inner + t * tap..].iter().step_by(outer);
                line.iter_mut().zip(weights).for_each(|(to, &w)| *to = w);
            }
        }
    }
}

/// The linear index of a pixel of an image of these sizes; meaningless for a pixel outside the image.
fn linear(at: [isize; 3], sizes: [usize; 3]) -> isize {
    let [_, h, w] = sizes.map(|n| n as isize);
    at[0].wrapping_mul(h).wrapping_add(at[1]).wrapping_mul(w).wrapping_add(at[2])
}

/// The computation of one phase.
pub(super) struct Run<'a> {
    pub(super) isa: Isa,
    pub(super) p: &'a ConvParams,
    pub(super) frame: &'a ConvFrame,
    pub(super) x: &'a [f32],
    out: Shared<'a>,
    pub(super) epilogue: &'a ConvEpilogue<'a>,
    pub(super) phase: &'a Phase,
    count: [usize; 3],
    conv: &'a RowsConv,
}

impl Run<'_> {
    /// Computes a range of pixels and channels of image `n`, group `g`.
    ///
    /// # Safety
    /// No other task accesses these meanwhile.
    unsafe fn part(&self, n: usize, g: usize, rows: Range<usize>, cols: Range<usize>) {
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
            self.block(n, g, row..end, cols.clone(), c.reborrow());
            self.run_tail(n, row..end, c);
            row = end;
        }
    }

    /// Applies the tail, if there is one, to finished rows in C, which are then pixels of the output with all their
    /// channels.
    pub(super) fn run_tail(&self, n: usize, rows: Range<usize>, c: MatMut<'_>) {
        let Some(tail) = self.epilogue.tail else { return };
        let first = (n * self.frame.out_pixels() + rows.start) * self.p.out_channels;
        let mut c = c.joined();
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
        let (p, out_pixels) = (self.p, self.frame.out_pixels());
        let (channel, pixel) = self.conv.output.strides(p.out_channels, out_pixels);
        let base = n * p.out_channels * out_pixels + g * (p.out_channels / p.groups) * channel;
        (base + self.out_pixel(row) * pixel, self.phase.step[2] * pixel, channel)
    }

    /// The epilogue of rows with a fixed stride, of image `n` and group `g`.
    pub(super) fn gemm_epilogue(&self, n: usize, g: usize, rows: Range<usize>) -> Epilogue<'_> {
        let co = self.p.out_channels / self.p.groups;
        let (first, rs, cs) = self.strides(n, g, rows.start);
        Epilogue {
            bias: Bias::per_col(self.epilogue.bias.map(|b| &b[g * co..][..co])),
            residual: self
                .epilogue
                .residual
                .map(|r| (1.0, MatRef::strided(&r[first..], rows.len(), co, rs, cs))),
            activation: self.epilogue.activation,
            ..Epilogue::NONE
        }
    }

    /// Whether output pixel `i` reads input pixel `i` only.
    fn is_pointwise(&self) -> bool {
        let p = self.p;
        let plain = self.phase.taps.len() == 1 && self.phase.taps[0] == [0; 3];
        plain && p.stride == [1; 3] && self.frame.input == self.frame.output && p.in_channels > 0
    }

    /// Computes a pointwise convolution as a product of the image, whose rows are pixels, by the weights.
    fn pointwise(&self, n: usize, g: usize, rows: Range<usize>, cols: Range<usize>, mut c: MatMut<'_>) {
        let (p, pixels) = (self.p, self.frame.out_pixels());
        let (ci, co) = (p.in_channels / p.groups, p.out_channels / p.groups);
        let (channel, pixel) = self.conv.input.strides(p.in_channels, pixels);
        let image = &self.x[n * p.in_channels * pixels + g * ci * channel..];
        let a = Lhs::Plain(MatRef::strided(image, pixels, ci, pixel, channel));
        let epilogue = self.gemm_epilogue(n, g, 0..pixels);
        let b = Rhs::Packed(&self.phase.weights[g]);
        let job = Job { isa: self.isa, m: pixels, n: co, k: ci, a, b, epilogue };
        if self.epilogue.tail.is_none() {
            return job.part(rows, cols, c);
        }
        let some = TAIL_PART.div_ceil(co.max(1)).next_multiple_of(MC);
        for row in rows.clone().step_by(some) {
            let part = row..rows.end.min(row + some);
            let mut c = c.block(row - rows.start..part.end - rows.start, 0..cols.len());
            job.part(part.clone(), cols.clone(), c.reborrow());
            self.run_tail(n, part, c);
        }
    }

    /// Computes a block of the output of image `n`, group `g`. C is that block.
    fn block(&self, n: usize, g: usize, rows: Range<usize>, cols: Range<usize>, mut c: MatMut<'_>) {
        let p = self.p;
        let ci = p.in_channels / p.groups;
        let epilogue = self.gemm_epilogue(n, g, rows.clone());
        let weights = &self.phase.weights[g];
        let vectors = VectorIsa::from(self.isa);
        let wide = self.wide();
        let in_place = self.conv.input == Layout::ChannelsLast && (ci >= IN_PLACE_CHANNELS || wide > 1);
        let most = if in_place { tile::max_rows_in_place(vectors) } else { tile::max_rows(vectors) };
        let height = rows.len().div_ceil(rows.len().div_ceil(most));
        let all = self.phase.taps.len() * ci;
        let mut long = (all > MAX_F32_SUM).then(|| LongSums::new(rows.len(), cols.len()));
        let plain = if long.is_some() { Epilogue::NONE } else { epilogue };
        let sweep = |k: usize, row: usize, accumulate: bool, last: bool| Sweep {
            isa: self.isa,
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
        self.origins(rows.start, origins);
        let ci = ci * wide;
        let end = (self.phase.taps.len() / wide, ci);
        let (run, mut summed) = (accumulation_len(all, KC), 0);
        for chunk in self.phase.chunks(end.0, ci, run) {
            let row = chunk.taps.start * ci + chunk.channels.start;
            let last = (chunk.taps.end, chunk.channels.end) == end;
            let accumulate = if long.is_some() { summed > 0 } else { row > 0 };
            let to = match &mut long {
                Some(sums) => sums.partial(),
                None => c.reborrow(),
            };
            if in_place {
                let taps = chunk.taps.len();
                let borders = if wide > 1 { origins.len() * taps * ci } else { 0 };
                let len = chunk.channels.len();
                scratch::with(borders, |borders| {
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
                scratch::with(2 * k * origins.len(), |s| {
                    let (plain, packed) = s.split_at_mut(k * origins.len());
                    self.gather(n, g, origins, &chunk, plain);
                    pack::pack_a(
                        self.isa,
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
                    sums.add();
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
        let q = self.split(row);
        let o: [usize; 3] = std::array::from_fn(|d| self.phase.first[d] + q[d] * self.phase.step[d]);
        (o[0] * self.frame.output[1] + o[1]) * self.frame.output[2] + o[2]
    }

    /// The origins of the rows from `first` on.
    fn origins(&self, first: usize, origins: &mut [Origin]) {
        let (input, reach, scale) = (self.frame.input, &self.phase.reach, &self.phase.scale);
        let inner = |d: usize, at: isize| {
            let has = |tap: isize| (at.wrapping_add(tap) as usize) < input[d];
            has(reach[d].0) && has(reach[d].1)
        };
        let mut q = self.split(first);
        let mut left = origins;
        // A line of the output at a time.
        while !left.is_empty() {
            let (line, rest) = left.split_at_mut((self.count[2] - q[2]).min(left.len()));
            let [z, y] = [0, 1].map(|d| (q[d] * scale[d]) as isize);
            let within = inner(0, z) && inner(1, y);
            let start = linear([z, y, 0], input);
            for (i, origin) in line.iter_mut().enumerate() {
                let x = ((q[2] + i) * scale[2]) as isize;
                let inner = within && inner(2, x);
                *origin = Origin { at: [z, y, x], pixel: start.wrapping_add(x), inner };
            }
            q = if q[1] + 1 < self.count[1] { [q[0], q[1] + 1, 0] } else { [q[0] + 1, 0, 0] };
            left = rest;
        }
    }

    fn split(&self, row: usize) -> [usize; 3] {
        let [_, h, w] = self.count;
        [row / (h * w), row / w % h, row % w]
    }

    /// A function that finds the input pixel that a row reads at one tap, if it is in the image.
    #[inline(always)]
    fn pixels_of(&self, tap: &[isize; 3]) -> impl Fn(&Origin) -> Option<usize> {
        let (tap, input) = (*tap, self.frame.input);
        let distance = linear(tap, input);
        move |origin| {
            let has = |d: usize| (origin.at[d].wrapping_add(tap[d]) as usize) < input[d];
            (origin.inner || (0..3).all(has)).then(|| origin.pixel.wrapping_add(distance) as usize)
        }
    }

    /// How many neighbouring taps are treated as one, because their pixels are contiguous and have few channels: a
    /// line of the kernel, or one tap.
    fn wide(&self) -> usize {
        let p = self.p;
        let line = p.kernel[2];
        let together = self.conv.input == Layout::ChannelsLast && p.groups == 1 && !p.transposed;
        let few = p.in_channels < IN_PLACE_CHANNELS && line * p.in_channels <= KC;
        let short = p.taps() * p.in_channels <= MAX_F32_SUM;
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
        let channels = self.p.in_channels;
        let image = &self.x[n * self.frame.in_pixels() * channels..];
        let len = wide * channels;
        let mut borders = borders.chunks_exact_mut(len);
        for origins in origins.chunks(height) {
            for t in chunk.taps.clone() {
                let taps = &self.phase.taps[t * wide..][..wide];
                if self.extend_inner(table, image, origins, &taps[0], channels) {
                    continue;
                }
                let (first, last) = (self.pixels_of(&taps[0]), self.pixels_of(&taps[wide - 1]));
                table.extend_rows(origins.iter().map(|origin| {
                    if let (Some(pixel), Some(_)) = (first(origin), last(origin)) {
                        return &image[pixel * channels..];
                    }
                    let border = borders.next().expect("a border for each row and tap");
                    for (dst, tap) in border.chunks_exact_mut(channels).zip(taps) {
                        match self.pixels_of(tap)(origin) {
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
            let distance = linear(*tap, self.frame.input);
            table.extend(image, origins.iter().map(|p| ((p.pixel + distance) as usize).wrapping_mul(step)));
        }
        all
    }

    /// Adds, for each `height` rows and each tap of the chunk, the channels that the rows read.
    fn fill_table<'a>(
        &'a self,
        table: &mut RowTable<'a>,
        n: usize,
        g: usize,
        origins: &[Origin],
        height: usize,
        chunk: &Chunk,
    ) {
        let (p, ci) = (self.p, self.p.in_channels / self.p.groups);
        let image = &self.x[n * self.frame.in_pixels() * p.in_channels..];
        let channel = g * ci + chunk.channels.start;
        for origins in origins.chunks(height) {
            for tap in &self.phase.taps[chunk.taps.clone()] {
                if self.extend_inner(table, &image[channel..], origins, tap, p.in_channels) {
                    continue;
                }
                let pixel_of = self.pixels_of(tap);
                table.extend_rows(origins.iter().map(|origin| match pixel_of(origin) {
                    Some(pixel) => &image[pixel * p.in_channels + channel..],
                    None => &ZEROS[..],
                }));
            }
        }
    }

    /// Copies the chunk's elements of each row, row after row.
    fn gather(&self, n: usize, g: usize, origins: &[Origin], chunk: &Chunk, rows: &mut [f32]) {
        let (p, ci) = (self.p, self.p.in_channels / self.p.groups);
        let pixels = self.frame.in_pixels();
        let image = &self.x[n * pixels * p.in_channels..][..pixels * p.in_channels];
        let (channel, pixel) = self.conv.input.strides(p.in_channels, pixels);
        let first = (g * ci + chunk.channels.start) * channel;
        let taps = &self.phase.taps[chunk.taps.clone()];
        let len = chunk.channels.len();
        for (row, origin) in rows.chunks_exact_mut(taps.len() * len).zip(origins) {
            for (dst, tap) in row.chunks_exact_mut(len).zip(taps) {
                match self.pixels_of(tap)(origin) {
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
