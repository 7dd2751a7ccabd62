//! The driver of a product: divides it among threads, and into blocks that fit the caches.
//!
//! The blocks are simpler than those of f32 products. Elements take a quarter of the bytes, so that the
//! inner dimension is not divided and a sum stays in registers until it is complete; weights are always packed. A block
//! of A, copied once as the bytes that the instructions multiply, stays in the L2 cache while all panels
//! pass it. The sums of several tiles are collected in a buffer of a few kilobytes and finished together: to set up
//! scales, zero points and rounding takes as long as thousands of multiplications.

use super::super::isa::Isa;
use super::super::mat::last_offset;
use super::super::scratch;
use super::super::simd::{Op, Simd, dispatch};
use super::super::split::{self, Grid};
use super::epilogue::{Params, QuantizedEpilogue, QuantizedOut};
use super::finish::{Finish, MAX_TILE};
use super::pack::{PANEL, PackedWeights, WeightBits};
use super::select::{SupportedKernel, ThreadKernel};
use super::tile::{Args, MAX_ROWS, MAX_STEP};
use pteron_pool::Pool;
use std::ops::Range;

/// The size, in bytes, of the rows of A that are copied at once: they stay in the L2 cache.
const BLOCK_BYTES: usize = 512 << 10;
/// The same for rows that are widened to 16 bits after.
const NARROW_BLOCK_BYTES: usize = 128 << 10;
/// Rows whose distance is a multiple of this number of bytes evict each other from the cache.
const EVICTING_STEP: usize = 2048;
/// The number of rows of a task is a multiple of this.
const ROW_UNIT: usize = 32;
/// The number of panels of a task is a multiple of this.
const PANEL_UNIT: usize = 2;
/// The number of sums that tiles may write past the sums of their own rows, at the end of a block.
const SUMS_PAST_TILE: usize = 8 * 4 * PANEL;
/// The maximum number of groups for which the sums of the largest tile are held at the same time.
const GROUPS: usize = 4;
/// The least work, in units of [`SupportedKernel::relative_work`], that is divided among threads.
const SPLIT_WORK: usize = split::reduced_under_miri(1 << 21);
/// The work of copying an inner element of a row of A, or of storing an element of the result, in the same units: at
/// hundreds of multiplications a nanosecond, products of few channels do little else.
const ELEMENT_WORK: usize = 64;

/// Cost of copying a unit of rows, some of which another core may have computed, and of reading a unit of columns
/// from a far cache, relative to multiplying the two by the fastest microkernel.
const READ_COST: [f64; 2] = [10.0, 4.0];

/// The left operand of a product, provided a block of rows at a time, as [`conversion`](super::conversion) says. A
/// block consists of lines
/// with equal numbers of rows; the rows of a line may overlap.
pub(crate) trait Fill: Sync {
    /// The layout of rows of `k` elements in a block.
    fn layout(&self, k: usize) -> RowLayout<'_>;
    /// The rows of the block that begins with the first of `rows`, of about `size` bytes if they are not shared.
    fn block_rows(&self, rows: Range<usize>, layout: &RowLayout<'_>, size: usize) -> Range<usize> {
        let block = (size / layout.step / ROW_UNIT * ROW_UNIT).max(ROW_UNIT);
        rows.start..rows.end.min(rows.start.saturating_add(block))
    }
    /// The number of bytes that any block of `rows` rows takes, including what tiles read past its end.
    fn block_bytes(&self, rows: usize, layout: &RowLayout<'_>, size: usize) -> usize {
        self.block_rows(0..rows, layout, size).len().next_multiple_of(MAX_ROWS) * layout.step
    }
    /// All rows, one after the other, if [`Self::fill_block`] would only copy them.
    fn in_place(&self) -> Option<&[u8]> {
        None
    }
    /// Writes the rows of a block, laid out as [`Self::layout`] says, with its row `step`. Bytes between the rows may
    /// be overwritten.
    fn fill_block(&self, rows: Range<usize>, step: usize, out: &mut [u8]);
}

/// The layout of the rows of a block.
#[derive(Clone, Copy)]
pub(crate) struct RowLayout<'a> {
    /// The number of bytes from one row to the next in a line.
    pub(crate) step: usize,
    /// The number of rows of a line.
    pub(crate) width: usize,
    /// The number of bytes from one line to the next.
    pub(crate) line: usize,
    /// The offset of each segment of a row from the row's beginning; the segments need not be adjacent.
    pub(crate) segments: &'a [usize],
    /// The number of elements of a segment.
    pub(crate) len: usize,
}

impl RowLayout<'_> {
    /// The layout of dense rows of one segment each.
    pub(crate) fn rows(k: usize) -> Self {
        // An odd number of cache lines: rows at strides of a power of two would evict each other.
        let step = (k.div_ceil(MAX_STEP) | 1) * MAX_STEP;
        Self { step, width: usize::MAX, line: 0, segments: &[0], len: k }
    }

    /// The offset of a row in the block, and the number of rows from that row to the end of the line of rows.
    fn row_offset(&self, row: usize) -> (usize, usize) {
        (row / self.width * self.line + row % self.width * self.step, self.width - row % self.width)
    }

    /// The number of bytes that tiles of `rows` rows read, if all rows are in one line.
    fn bytes_read(&self, rows: usize) -> Option<usize> {
        let row = self.segments.iter().max().unwrap_or(&0) + self.len.next_multiple_of(MAX_STEP);
        (self.width == usize::MAX).then(|| last_offset(rows, self.step) + row)
    }

    /// The numbers of rows in the two halves, of at most `half` rows, of the tile that begins at `row`, if `left` rows
    /// are left: neither half continues in another line.
    fn half_rows(&self, row: usize, left: usize, half: usize) -> [usize; 2] {
        let first = half.min(self.row_offset(row).1).min(left);
        [first, half.min(self.row_offset(row + first).1).min(left - first)]
    }
}

/// A product whose shapes have been checked.
pub(crate) struct Job<'a> {
    pub(crate) kernel: SupportedKernel,
    pub(crate) isa: Isa,
    pub(crate) m: usize,
    pub(crate) fill: &'a dyn Fill,
    /// The offset that [`Fill::fill_block`] adds to the quantized values of A.
    pub(crate) zero: i32,
    pub(crate) params: Params<'a>,
    pub(crate) b: &'a PackedWeights,
    pub(crate) epilogue: QuantizedEpilogue<'a>,
}

impl Job<'_> {
    /// Computes the product into `out`; in parallel on `pool` where that pays.
    ///
    /// # Panics
    /// If `out` is not an `m x n` matrix with contiguous rows.
    pub(crate) fn run(&self, pool: &Pool, out: QuantizedOut<'_>) {
        let (n, panels) = (self.b.cols(), self.b.panel_count());
        out.check(self.m, n);
        let work = self.m.saturating_mul(n).saturating_mul(self.b.rows());
        pteron_pool::count(work);
        let elements = self.m.saturating_mul(n.saturating_add(self.b.rows()));
        let kernel = self.kernel.for_shape(self.isa, self.m, self.b.rows(), self.b.group_rows());
        let work = kernel.relative_work(work).saturating_add(elements.saturating_mul(ELEMENT_WORK));
        let threads = split::thread_count(pool, work, SPLIT_WORK);
        if threads == 1 {
            return self.compute_part(0..self.m, 0..panels, out);
        }
        // Tasks get whole lines, if there are several.
        let width = self.fill.layout(self.b.rows()).width;
        let unit = if width < self.m { width } else { ROW_UNIT };
        let read_cost = READ_COST.map(|cost| cost / kernel.relative_time() as f64);
        let grid = Grid::with_reads(threads, [self.m, panels], [unit, PANEL_UNIT], read_cost);
        let out = out.blocks();
        pool.parallel_for(grid.task_count(), 1, &|tasks| {
            for t in tasks {
                let [rows, panels] = grid.task_block(t);
                let cols = (panels.start * PANEL).min(n)..(panels.end * PANEL).min(n);
                // SAFETY: different tasks have disjoint shares of the rows or of the panels.
                let out = unsafe { out.block(rows.clone(), cols) };
                self.compute_part(rows, panels, out);
            }
        });
    }

    /// Computes the block of the result with these rows and panels. `out` is that block.
    fn compute_part(&self, rows: Range<usize>, panels: Range<usize>, mut out: QuantizedOut<'_>) {
        if rows.is_empty() {
            return;
        }
        let layout = self.fill.layout(self.b.rows());
        let kernel = self.kernel.for_shape(self.isa, rows.len(), self.b.rows(), self.b.group_rows());
        let words = kernel.multiplies_words(self.b.bits());
        assert!(
            self.b.has_adjacent_rows(kernel.adjacent_rows()),
            "weights packed for another instruction set"
        );
        let size = if words { NARROW_BLOCK_BYTES } else { BLOCK_BYTES };
        let a_len = self.fill.block_bytes(rows.len(), &layout, size).next_multiple_of(MAX_STEP);
        let words_len = if words { 2 * a_len } else { 0 };
        let widen = !kernel.reads_four_bits(rows.len()) && self.b.bits() == WeightBits::Four;
        let b_len = if widen { PANEL_UNIT * PANEL * self.b.depth() } else { 0 };
        let (tile, several) =
            if self.b.group_count() > 1 { (GROUPS * MAX_TILE, MAX_TILE) } else { (MAX_TILE, 0) };
        let tile = tile + SUMS_PAST_TILE;
        let kernel = kernel.for_thread(if self.b.group_count() > 1 { self.b.group_rows() } else { 0 });
        let scratch_len = tile + several + (words_len + a_len + b_len).div_ceil(size_of::<f32>());
        scratch::with_buffer(scratch_len, |scratch| {
            let (sums, rest) = scratch.split_at_mut(tile);
            let (dequantized, rest) = rest.split_at_mut(several);
            let tiles = &mut (bytemuck::cast_slice_mut(sums), dequantized);
            let (wide, rest) = bytemuck::cast_slice_mut(rest).split_at_mut(words_len);
            let (a, b) = rest.split_at_mut(a_len);
            let mut first = rows.start;
            while first < rows.end {
                let block = self.fill.block_rows(first..rows.end, &layout, size);
                first = block.end;
                let (a, layout) = if let Some(bytes) = self.block_in_place(kernel.kernel(), &block) {
                    (Rows { bytes, words }, RowLayout { step: self.b.rows(), ..layout })
                } else {
                    self.fill.fill_block(block.clone(), layout.step, a);
                    if words {
                        let read = layout.bytes_read(kernel.kernel().rows_written(block.len()));
                        let len = read
                            .unwrap_or_else(|| self.fill.block_bytes(block.len(), &layout, size))
                            .min(a_len);
                        let to = &mut bytemuck::cast_slice_mut(wide)[..len];
                        dispatch(self.isa, WidenRows { rows: &a[..len], out: to });
                        (Rows { bytes: wide, words }, layout)
                    } else {
                        (Rows { bytes: a, words }, layout)
                    }
                };
                let cols = panels.start * PANEL..self.b.cols().min(panels.end * PANEL);
                let out = out.block(block.start - rows.start..block.end - rows.start, 0..cols.len());
                self.compute_block(
                    &kernel,
                    block,
                    panels.clone(),
                    (a, &layout),
                    widen.then_some(&mut *b),
                    tiles,
                    out,
                );
            }
        });
    }

    /// The bytes from the first row of a block on, if its rows can be read in place: all that the tiles read is there,
    /// and the rows do not evict each other from the cache.
    fn block_in_place(&self, kernel: SupportedKernel, rows: &Range<usize>) -> Option<&[u8]> {
        let (all, k) = (self.fill.in_place().filter(|_| kernel.reads_in_place())?, self.b.rows());
        let unit = if self.b.bits() == WeightBits::Four { 8 } else { kernel.adjacent_rows() };
        let end = rows.start.checked_add(kernel.rows_written(rows.len()))?.checked_mul(k)?;
        let fits = k.is_multiple_of(unit) && !k.is_multiple_of(EVICTING_STEP) && end <= all.len();
        fits.then(|| &all[rows.start * k..])
    }

    fn compute_block(
        &self,
        kernel: &ThreadKernel,
        rows: Range<usize>,
        panels: Range<usize>,
        (a, layout): (Rows<'_>, &RowLayout<'_>),
        mut wide: Option<&mut [u8]>,
        tiles: &mut (&mut [i32], &mut [f32]),
        mut out: QuantizedOut<'_>,
    ) {
        let (b, n) = (self.b, self.b.cols());
        let first_col = panels.start * PANEL;
        let mut p = panels.start;
        while p < panels.end {
            let at_once = kernel.kernel().panels_at_once(rows.len(), panels.end - p);
            if let Some(wide) = &mut wide {
                for q in 0..at_once {
                    let to = &mut wide[q * PANEL * b.depth()..][..PANEL * b.depth()];
                    dispatch(self.isa, Widen { panel: &b.panel(p + q, 0)[..b.panel_step()], out: to });
                }
            }
            let cols = p * PANEL - first_col..((p + at_once) * PANEL).min(n) - first_col;
            let mut r = 0;
            while r < rows.len() {
                // Tiles are finished together with those below them, to pay the fixed cost of that once.
                let height = match kernel.kernel().half_rows() {
                    Some(half) => layout.half_rows(r, rows.len() - r, half).iter().sum(),
                    None => (MAX_TILE / kernel.kernel().row_step(at_once)).min(rows.len() - r),
                };
                let out = out.block(r..r + height, cols.clone());
                let tile = TilePosition { first: rows.start, row: r, panel: p, panels: at_once };
                self.compute_tiles(kernel, tile, (a, layout), wide.as_deref(), tiles, out);
                r += height;
            }
            p += at_once;
        }
    }

    /// Computes tiles of the result, one below the other, into `out`.
    fn compute_tiles(
        &self,
        kernel: &ThreadKernel,
        tile: TilePosition,
        (a, layout): (Rows<'_>, &RowLayout<'_>),
        wide: Option<&[u8]>,
        (sums, dequantized): &mut (&mut [i32], &mut [f32]),
        mut out: QuantizedOut<'_>,
    ) {
        let (b, step) = (self.b, kernel.kernel().row_step(tile.panels));
        let (rows, cols) = out.shape();
        let half_rows = kernel.kernel().half_rows();
        let halves = half_rows.map_or([rows, 0], |half| layout.half_rows(tile.row, rows, half));
        let groups = b.group_count();
        // As many groups at once as there is room for their sums.
        let group_step = if groups > 1 { kernel.kernel().rows_written(rows) * step } else { sums.len() };
        let at_once = (sums.len() / group_step).clamp(1, groups);
        for some in (0..groups).step_by(at_once) {
            let some = some..groups.min(some + at_once);
            // All groups have the same number of rows of B, except that the last may have fewer.
            let full_groups = some.start..some.end.min(layout.len / b.group_rows().max(1)).max(some.start);
            for run in [full_groups.clone(), full_groups.end..some.end] {
                if !run.is_empty() {
                    let sums = &mut sums[(run.start - some.start) * group_step..];
                    self.multiply(
                        kernel,
                        tile,
                        run,
                        (a, layout),
                        wide,
                        ([rows, cols], halves),
                        (sums, group_step),
                    );
                }
            }
            let (scales, column_sums) = b.scales_and_sums(tile.panel);
            // Halves of a tile whose sums are adjacent are finished together.
            let half_rows = half_rows.unwrap_or(rows);
            let split = if halves[0] == half_rows { rows } else { halves[0] };
            for (rows, slot) in [(0..split, 0), (split..rows, half_rows)] {
                if rows.is_empty() {
                    continue;
                }
                let finish = Finish {
                    sums: &sums[slot * step..],
                    groups: some.clone(),
                    group_step,
                    shift: if b.bits() == WeightBits::Four && wide.is_none() { 4 } else { 0 },
                    dequantized,
                    step,
                    params: self.params.starting_at_row(tile.first + tile.row + rows.start),
                    zero: self.zero,
                    scales,
                    column_sums,
                    panel_step: groups * PANEL,
                    epilogue: self.epilogue.starting_at_column(tile.panel * PANEL),
                    out: out.block(rows, 0..cols),
                };
                finish.run(self.isa);
            }
        }
    }

    /// Computes the sums of tiles one below the other, of `rows` rows in all and `columns` columns, for the groups `run`,
    /// which have equal numbers of rows of B. If tiles have two halves, these are the rows of each half of a single tile.
    fn multiply(
        &self,
        kernel: &ThreadKernel,
        tile: TilePosition,
        run: Range<usize>,
        (a, layout): (Rows<'_>, &RowLayout<'_>),
        wide: Option<&[u8]>,
        ([rows, columns], [first_half, second_half]): ([usize; 2], [usize; 2]),
        (sums, group_step): (&mut [i32], usize),
    ) {
        let b = self.b;
        let from = run.start * b.group_rows();
        let size = if a.words { 2 } else { 1 };
        let (data, b_step) = match wide {
            Some(wide) => (&wide[from * PANEL..], PANEL * b.depth()),
            None => (b.panel(tile.panel, from), b.panel_step()),
        };
        let mut done = 0;
        while done < rows {
            let (at, left) = layout.row_offset(tile.row + done);
            let (low, rows) = match kernel.kernel().half_rows() {
                Some(half) if second_half > 0 => {
                    ((layout.row_offset(tile.row + first_half).0 - at) * size, half + second_half)
                }
                Some(_) => (0, first_half),
                None => (0, left.min(rows - done)),
            };
            kernel.run(&mut Args {
                a: &a.bytes[(at + from) * size..],
                words: a.words,
                a_step: layout.step * size,
                low,
                segments: layout.segments,
                b: data,
                b_step,
                // With several groups, each is a part of the only segment of a row.
                k: b.group_rows().min(layout.len - from),
                groups: run.len(),
                group_step,
                without_least: b.is_without_least(),
                four: b.bits() == WeightBits::Four && wide.is_none(),
                rows,
                panels: tile.panels,
                columns,
                sums: &mut sums[done * kernel.kernel().row_step(tile.panels)..],
            });
            done += rows;
        }
    }
}

/// A block of rows of A: bytes, or 16-bit values, at offsets that the layout gives in elements.
#[derive(Clone, Copy)]
struct Rows<'a> {
    bytes: &'a [u8],
    words: bool,
}

/// Where tiles one below the other are: their rows begin at row `row` of the block whose first row is `first`, and they
/// cover `panels` panels from `panel` on.
#[derive(Clone, Copy)]
struct TilePosition {
    first: usize,
    row: usize,
    panel: usize,
    panels: usize,
}

/// Widens rows of A to 16 bits.
struct WidenRows<'a> {
    rows: &'a [u8],
    out: &'a mut [u16],
}

impl Op for WidenRows<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        self.out.iter_mut().zip(self.rows).for_each(|(to, &x)| *to = u16::from(x));
    }
}

/// Widens a panel of 4-bit values to 8 bits.
struct Widen<'a> {
    panel: &'a [u8],
    out: &'a mut [u8],
}

impl Op for Widen<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        widen(self.panel, self.out);
    }
}

#[inline(always)]
fn widen(panel: &[u8], out: &mut [u8]) {
    for (block, out) in panel.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<128>().0) {
        let (low, high) = out.split_at_mut(64);
        for ((low, high), &x) in low.iter_mut().zip(high).zip(block) {
            *low = ((x << 4) as i8 >> 4) as u8;
            *high = (x as i8 >> 4) as u8;
        }
    }
}
