//! From a product to its tiles: how it is divided among threads, and into blocks that fit the caches.

use super::super::gemm::driver::{grid, share};
use super::super::isa::Isa;
use super::super::scratch;
use super::super::split;
use super::epilogue::{Finish, MAX_TILE, Params, QuantizedEpilogue, QuantizedOut, Tile};
use super::pack::{PANEL, PackedWeights, WeightBits};
use super::tile::{AMX_STEP, Args, ROWS_READ, Ready};

pub(crate) use super::tile::Path;

use pool::Pool;
use std::ops::Range;

/// Bytes of the rows of A that are copied at once: they stay in the second cache.
const BLOCK_BYTES: usize = 512 << 10;
/// Rows that a task keeps together.
const ROW_UNIT: usize = 32;
/// Panels that a task keeps together.
const PANEL_UNIT: usize = 2;
/// Work below which a product is not divided among threads: [`Path::work`].
const SPLIT_WORK: usize = split::worth(1 << 21);
/// As much work as copying an inner element of a row of A, or storing an element of the result: at hundreds of
/// multiplications in a nanosecond, products of few channels do little else.
const ELEMENT_WORK: usize = 64;

/// The left operand of a product, given a block of rows at a time.
pub(crate) trait Fill: Sync {
    /// Writes rows as unsigned values: row `i` of those asked for at `i * step` of `out`, as many bytes as the
    /// product has inner elements.
    fn fill(&self, rows: Range<usize>, step: usize, out: &mut [u8]);
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
        let (tm, tn) = grid(threads, self.m.div_ceil(ROW_UNIT), panels.div_ceil(PANEL_UNIT));
        let out = out.blocks();
        pool.parallel_for(tm * tn, 1, &|tasks| {
            for t in tasks {
                let rows = share(t / tn, tm, self.m, ROW_UNIT);
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
        let k = self.b.rows();
        let path = self.path.for_shape(rows.len(), k, self.b.group());
        // An odd number of cache lines: rows at a power of two would evict each other.
        let step = (k.div_ceil(AMX_STEP) | 1) * AMX_STEP;
        let block = (BLOCK_BYTES / step / ROW_UNIT * ROW_UNIT).max(ROW_UNIT).min(rows.len());
        let a_len = (block.next_multiple_of(ROWS_READ)) * step;
        let widen = path.is_amx() && self.b.bits() == WeightBits::Four;
        let b_len = if widen { PANEL_UNIT * PANEL * self.b.depth() } else { 0 };
        let ready = path.ready();
        scratch::with((a_len + b_len).div_ceil(size_of::<f32>()), |scratch| {
            let (a, b) = bytemuck::cast_slice_mut(scratch).split_at_mut(a_len);
            for first in rows.clone().step_by(block) {
                let block = first..rows.end.min(first + block);
                self.fill.fill(block.clone(), step, a);
                let cols = panels.start * PANEL..self.b.cols().min(panels.end * PANEL);
                let out = out.block(block.start - rows.start..block.end - rows.start, 0..cols.len());
                self.block(&ready, block, panels.clone(), (a, step), widen.then_some(&mut *b), out);
            }
        });
    }

    fn block(
        &self,
        ready: &Ready,
        rows: Range<usize>,
        panels: Range<usize>,
        (a, a_step): (&[u8], usize),
        mut wide: Option<&mut [u8]>,
        mut out: QuantizedOut<'_>,
    ) {
        let (b, n, path) = (self.b, self.b.cols(), ready.path());
        let first_col = panels.start * PANEL;
        let mut sums = Tile([0i32; MAX_TILE]);
        let mut dequantized = Tile([0.0f32; MAX_TILE]);
        let mut p = panels.start;
        while p < panels.end {
            // The shape of the first tile; those below take as many panels.
            let (_, at_once) = path.shape(rows.len(), panels.end - p);
            if let Some(wide) = &mut wide {
                for q in 0..at_once {
                    let to = &mut wide[q * PANEL * b.depth()..][..PANEL * b.depth()];
                    widen(&b.panel(p + q, 0)[..b.panel_step()], to);
                }
            }
            let cols = (at_once * PANEL).min(n - p * PANEL);
            let mut r = 0;
            while r < rows.len() {
                let (height, panels) = below(path, rows.len() - r, at_once);
                // A last single row may take its panels in another way.
                for q in (0..at_once).step_by(panels) {
                    let cols = (panels * PANEL).min(cols.saturating_sub(q * PANEL));
                    let col = ((p + q) * PANEL).min(n) - first_col;
                    self.tile(
                        ready,
                        (rows.start + r, p + q, panels),
                        (&a[r * a_step..], a_step),
                        wide.as_deref().map(|w| &w[q * PANEL * b.depth()..]),
                        (&mut sums, &mut dequantized),
                        out.block(r..r + height, col..col + cols),
                    );
                }
                r += height;
            }
            p += at_once;
        }
    }

    /// Computes tiles of the result below each other, which are `out`: its rows from `row` on, of `panels` panels from
    /// `panel` on.
    fn tile(
        &self,
        ready: &Ready,
        (row, panel, panels): (usize, usize, usize),
        (a, a_step): (&[u8], usize),
        wide: Option<&[u8]>,
        (sums, dequantized): (&mut Tile<i32>, &mut Tile<f32>),
        mut out: QuantizedOut<'_>,
    ) {
        let (b, k) = (self.b, self.b.rows());
        let (rows, cols) = out.shape();
        let four = b.bits() == WeightBits::Four && wide.is_none();
        let groups = b.groups();
        for g in 0..groups {
            let from = g * b.group();
            let (data, b_step) = match wide {
                Some(wide) => (&wide[from * PANEL..], PANEL * b.depth()),
                None => (b.panel(panel, from), b.panel_step()),
            };
            let k = b.group().min(k - from);
            let step = ready.path().step(panels);
            let mut done = 0;
            while done < rows {
                let (rows, _) = ready.path().shape(rows - done, panels);
                let (a, sums) = (&a[done * a_step + from..], &mut sums.0[done * step..]);
                ready.run(&mut Args { a, a_step, b: data, b_step, k, four, rows, panels, sums });
                done += rows;
            }
            let (scales, column_sums) = b.columns(g, panel);
            let finish = Finish {
                sums,
                shift: if four { 4 } else { 0 },
                dequantized,
                first: g == 0,
                last: g + 1 == groups,
                step,
                params: self.params.from(row),
                zero: self.zero,
                scales,
                column_sums,
                epilogue: self.epilogue.from(panel * PANEL),
                out: out.block(0..rows, 0..cols),
            };
            finish.run(self.isa);
        }
    }
}

/// The rows and panels of the tiles that are finished together, for `rows` rows of which `panels` panels are left: as
/// many tiles of one width below each other as there is room for their sums. What finishing costs once, it costs once
/// for all of them.
fn below(path: Path, rows: usize, panels: usize) -> (usize, usize) {
    let (mut height, width) = path.shape(rows, panels);
    while height < rows {
        let (next, other) = path.shape(rows - height, panels);
        if other != width || (height + path.rows_written(next)) * path.step(width) > MAX_TILE {
            break;
        }
        height += next;
    }
    (height, width)
}

/// A panel of 4-bit values as one of 8-bit values.
fn widen(panel: &[u8], out: &mut [u8]) {
    for (block, out) in panel.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<128>().0) {
        let (low, high) = out.split_at_mut(64);
        for ((low, high), &x) in low.iter_mut().zip(high).zip(block) {
            *low = ((x << 4) as i8 >> 4) as u8;
            *high = (x as i8 >> 4) as u8;
        }
    }
}
