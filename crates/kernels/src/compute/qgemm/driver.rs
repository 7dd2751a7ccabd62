//! From a product to its tiles: how it is divided among threads, and into blocks that fit the caches.

use super::super::gemm::driver::{grid_of, share};
use super::super::isa::Isa;
use super::super::scratch;
use super::super::simd::{Op, Simd, dispatch};
use super::super::split;
use super::epilogue::{Params, QuantizedEpilogue, QuantizedOut};
use super::finish::{Finish, MAX_TILE};
use super::pack::{PANEL, PackedWeights, WeightBits};
use super::tile::{AMX_HALF, Args, ROWS_READ, Ready};

pub(crate) use super::tile::{AMX_STEP, Path};

use pool::Pool;
use std::ops::Range;

/// Bytes of the rows of A that are copied at once: they stay in the second cache.
const BLOCK_BYTES: usize = 512 << 10;
/// Rows that a task keeps together.
const ROW_UNIT: usize = 32;
/// Panels that a task keeps together.
const PANEL_UNIT: usize = 2;
/// Sums past a tile that the last of several lines may write.
const TILE_PAST: usize = 8 * 4 * PANEL;
/// Groups of the largest tile that are finished together.
const GROUPS: usize = 4;
/// Work below which a product is not divided among threads: [`Path::work`].
const SPLIT_WORK: usize = split::worth(1 << 21);
/// As much work as copying an inner element of a row of A, or storing an element of the result: at hundreds of
/// multiplications in a nanosecond, products of few channels do little else.
const ELEMENT_WORK: usize = 64;

/// How many times as long as multiplying a unit of rows by one of columns it takes to copy the rows, some of which another
/// core may have computed, and to read the columns from a far cache, where the fastest path multiplies.
const READING: [f64; 2] = [10.0, 4.0];

/// The left operand of a product, given a block of rows at a time, as unsigned values. It lies in lines: of equal
/// numbers of rows, one after another, where a row may be where the one before it goes on.
pub(crate) trait Fill: Sync {
    /// How rows of `k` elements lie that were given.
    fn laid(&self, k: usize) -> RowLayout<'_>;
    /// The rows that are given at once, from the first of these on.
    fn block(&self, rows: Range<usize>, laid: &RowLayout<'_>) -> Range<usize> {
        let block = (BLOCK_BYTES / laid.step / ROW_UNIT * ROW_UNIT).max(ROW_UNIT);
        rows.start..rows.end.min(rows.start.saturating_add(block))
    }
    /// Bytes that any block of so many rows takes, with all that tiles read past it.
    fn bytes(&self, rows: usize, laid: &RowLayout<'_>) -> usize {
        self.block(0..rows, laid).len().next_multiple_of(ROWS_READ) * laid.step
    }
    /// Writes rows of a block as they are [laid](Self::laid). Of what is between them anything may be overwritten.
    fn fill(&self, rows: Range<usize>, step: usize, out: &mut [u8]);
}

/// How the rows of a block lie.
#[derive(Clone, Copy)]
pub(crate) struct RowLayout<'a> {
    /// Bytes from one row to the next of its line.
    pub(crate) step: usize,
    /// Rows of a line.
    pub(crate) width: usize,
    /// Bytes from one line to the next.
    pub(crate) line: usize,
    /// Where the pieces of a row are that lie apart, from its beginning on.
    pub(crate) pieces: &'a [usize],
    /// Elements of a piece.
    pub(crate) len: usize,
}

impl RowLayout<'_> {
    /// Rows one after another, each whole.
    pub(crate) fn rows(k: usize) -> Self {
        // An odd number of cache lines: rows at a power of two would evict each other.
        let step = (k.div_ceil(AMX_STEP) | 1) * AMX_STEP;
        Self { step, width: usize::MAX, line: 0, pieces: &[0], len: k }
    }

    /// Where a row of a block begins, and how many rows of its line are left.
    fn at(&self, row: usize) -> (usize, usize) {
        (row / self.width * self.line + row % self.width * self.step, self.width - row % self.width)
    }

    /// How many rows the halves of a tile of AMX have that begins at `row`, of which `left` rows are left: none goes on
    /// in another line.
    fn halves(&self, row: usize, left: usize) -> [usize; 2] {
        let first = AMX_HALF.min(self.at(row).1).min(left);
        [first, AMX_HALF.min(self.at(row + first).1).min(left - first)]
    }
}

/// A product whose shapes were checked.
pub(crate) struct Job<'a> {
    pub(crate) path: Path,
    pub(crate) isa: Isa,
    pub(crate) m: usize,
    pub(crate) fill: &'a dyn Fill,
    /// What `fill` adds to the quantized values.
    pub(crate) zero: i32,
    pub(crate) params: Params<'a>,
    pub(crate) b: &'a PackedWeights,
    pub(crate) epilogue: QuantizedEpilogue<'a>,
}

impl Job<'_> {
    /// Computes the product into `out`, divided among the threads of `pool` where that pays.
    ///
    /// # Panics
    /// If `out` is not an `m x n` matrix with contiguous rows.
    pub(crate) fn run(&self, pool: &Pool, out: QuantizedOut<'_>) {
        let (n, panels) = (self.b.cols(), self.b.panels());
        out.check(self.m, n);
        let work = self.m.saturating_mul(n).saturating_mul(self.b.rows());
        pool::count(work);
        let elements = self.m.saturating_mul(n.saturating_add(self.b.rows()));
        let path = self.path.for_shape(self.m, self.b.rows(), self.b.group());
        let work = path.work(work).saturating_add(elements.saturating_mul(ELEMENT_WORK));
        let threads = split::threads(pool, work, SPLIT_WORK);
        if threads == 1 {
            return self.part(0..self.m, 0..panels, out);
        }
        // Whole lines.
        let width = self.fill.laid(self.b.rows()).width;
        let unit = if width < self.m { width } else { ROW_UNIT };
        let reading = READING.map(|reading| reading / path.work(1) as f64);
        let (tm, tn) = grid_of(threads, self.m.div_ceil(unit), panels.div_ceil(PANEL_UNIT), reading);
        let out = out.blocks();
        pool.parallel_for(tm * tn, 1, &|tasks| {
            for t in tasks {
                let rows = share(t / tn, tm, self.m, unit);
                let panels = share(t % tn, tn, panels, PANEL_UNIT);
                let cols = (panels.start * PANEL).min(n)..(panels.end * PANEL).min(n);
                // SAFETY: shares of different tasks have rows or panels of their own.
                let out = unsafe { out.block(rows.clone(), cols) };
                self.part(rows, panels, out);
            }
        });
    }

    /// Computes some rows and panels of the result: `out` has these and no others.
    fn part(&self, rows: Range<usize>, panels: Range<usize>, mut out: QuantizedOut<'_>) {
        if rows.is_empty() {
            return;
        }
        let laid = self.fill.laid(self.b.rows());
        let path = self.path.for_shape(rows.len(), self.b.rows(), self.b.group());
        let a_len = self.fill.bytes(rows.len(), &laid).next_multiple_of(AMX_STEP);
        let widen = path.is_amx() && self.b.bits() == WeightBits::Four;
        let b_len = if widen { PANEL_UNIT * PANEL * self.b.depth() } else { 0 };
        let (tile, several) = if self.b.groups() > 1 { (GROUPS * MAX_TILE, MAX_TILE) } else { (MAX_TILE, 0) };
        let tile = tile + TILE_PAST;
        let ready = path.ready(if self.b.groups() > 1 { self.b.group() } else { 0 });
        let numbers = tile + several + (a_len + b_len).div_ceil(size_of::<f32>());
        scratch::with(numbers, |scratch| {
            let (sums, rest) = scratch.split_at_mut(tile);
            let (dequantized, rest) = rest.split_at_mut(several);
            let tiles = &mut (bytemuck::cast_slice_mut(sums), dequantized);
            let (a, b) = bytemuck::cast_slice_mut(rest).split_at_mut(a_len);
            let mut first = rows.start;
            while first < rows.end {
                let block = self.fill.block(first..rows.end, &laid);
                first = block.end;
                self.fill.fill(block.clone(), laid.step, a);
                let cols = panels.start * PANEL..self.b.cols().min(panels.end * PANEL);
                let out = out.block(block.start - rows.start..block.end - rows.start, 0..cols.len());
                self.block(&ready, block, panels.clone(), (a, &laid), widen.then_some(&mut *b), tiles, out);
            }
        });
    }

    fn block(
        &self,
        ready: &Ready,
        rows: Range<usize>,
        panels: Range<usize>,
        (a, laid): (&[u8], &RowLayout<'_>),
        mut wide: Option<&mut [u8]>,
        tiles: &mut (&mut [i32], &mut [f32]),
        mut out: QuantizedOut<'_>,
    ) {
        let (b, n, path) = (self.b, self.b.cols(), ready.path());
        let first_col = panels.start * PANEL;
        let mut p = panels.start;
        while p < panels.end {
            let at_once = path.panels(rows.len(), panels.end - p);
            if let Some(wide) = &mut wide {
                for q in 0..at_once {
                    let to = &mut wide[q * PANEL * b.depth()..][..PANEL * b.depth()];
                    dispatch(self.isa, Widen { panel: &b.panel(p + q, 0)[..b.panel_step()], out: to });
                }
            }
            let cols = p * PANEL - first_col..((p + at_once) * PANEL).min(n) - first_col;
            let mut r = 0;
            while r < rows.len() {
                // What finishing costs once, it costs once for tiles below each other.
                let height = match path.is_amx() {
                    true => laid.halves(r, rows.len() - r).iter().sum(),
                    false => (MAX_TILE / path.step(at_once)).min(rows.len() - r),
                };
                let out = out.block(r..r + height, cols.clone());
                let tile = (rows.start, r, p, at_once);
                self.tile(ready, tile, (a, laid), wide.as_deref(), tiles, out);
                r += height;
            }
            p += at_once;
        }
    }

    /// Computes tiles of the result below each other, which are `out`: its rows from `row` of a block on, whose first
    /// is `first`, of `panels` panels from `panel` on.
    fn tile(
        &self,
        ready: &Ready,
        (first, row, panel, panels): (usize, usize, usize, usize),
        (a, laid): (&[u8], &RowLayout<'_>),
        wide: Option<&[u8]>,
        (sums, dequantized): &mut (&mut [i32], &mut [f32]),
        mut out: QuantizedOut<'_>,
    ) {
        let (b, step, is_amx) = (self.b, ready.path().step(panels), ready.path().is_amx());
        let (rows, cols) = out.shape();
        let [first_half, second_half] = if is_amx { laid.halves(row, rows) } else { [rows, 0] };
        let four = b.bits() == WeightBits::Four && wide.is_none();
        let groups = b.groups();
        // As many groups at once as there is room for their sums.
        let group_step = if groups > 1 { ready.path().rows_written(rows) * step } else { sums.len() };
        let at_once = (sums.len() / group_step).clamp(1, groups);
        for some in (0..groups).step_by(at_once) {
            let some = some..groups.min(some + at_once);
            // All have as many rows of B but the last, which may have fewer.
            let whole = some.start..some.end.min(laid.len / b.group().max(1)).max(some.start);
            for run in [whole.clone(), whole.end..some.end] {
                if run.is_empty() {
                    continue;
                }
                let from = run.start * b.group();
                let (data, b_step) = match wide {
                    Some(wide) => (&wide[from * PANEL..], PANEL * b.depth()),
                    None => (b.panel(panel, from), b.panel_step()),
                };
                // Of several groups each is a part of a row's only piece.
                let k = b.group().min(laid.len - from);
                let sums = &mut sums[(run.start - some.start) * group_step..];
                let mut done = 0;
                while done < rows {
                    let (at, left) = laid.at(row + done);
                    let (low, rows) = match is_amx {
                        true if second_half > 0 => (laid.at(row + first_half).0 - at, AMX_HALF + second_half),
                        true => (0, first_half),
                        false => (0, left.min(rows - done)),
                    };
                    let (a, sums) = (&a[at + from..], &mut sums[done * step..]);
                    let (a_step, pieces, groups) = (laid.step, laid.pieces, run.len());
                    let b = data;
                    ready.run(&mut Args {
                        a,
                        a_step,
                        low,
                        pieces,
                        b,
                        b_step,
                        k,
                        groups,
                        group_step,
                        four,
                        rows,
                        panels,
                        sums,
                    });
                    done += rows;
                }
            }
            let (scales, column_sums) = b.columns(panel);
            // Halves of a tile whose sums lie together are finished together.
            let split = if first_half == AMX_HALF { rows } else { first_half };
            for (rows, slot) in [(0..split, 0), (split..rows, AMX_HALF)] {
                if rows.is_empty() {
                    continue;
                }
                let finish = Finish {
                    sums: &sums[slot * step..],
                    groups: some.clone(),
                    group_step,
                    shift: if four { 4 } else { 0 },
                    dequantized,
                    step,
                    params: self.params.from(first + row + rows.start),
                    zero: self.zero,
                    scales,
                    column_sums,
                    panel_step: groups * PANEL,
                    epilogue: self.epilogue.from(panel * PANEL),
                    out: out.block(rows, 0..cols),
                };
                finish.run(self.isa);
            }
        }
    }
}

/// A panel of 4-bit values as one of 8-bit values.
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
