//! From a product to its tiles: how it is divided among threads, and into blocks that fit the caches.

use super::super::gemm::driver::{grid, share};
use super::super::isa::Isa;
use super::super::scratch;
use super::epilogue::{Finish, MAX_TILE, Params, Place, QuantizedEpilogue, Tile};
use super::pack::{PANEL, PackedWeights, WeightBits};
use super::tile::{self, AMX_STEP, Args, ROWS_READ};

pub(crate) use super::tile::Path;

use pool::Pool;
use std::ops::Range;

/// Bytes of the rows of A that are copied at once: they stay in the second cache.
const BLOCK_BYTES: usize = 512 << 10;
/// Rows that a task keeps together.
const ROW_UNIT: usize = 32;
/// Panels that a task keeps together.
const PANEL_UNIT: usize = 2;
/// Multiplications below which a product is not divided among threads.
const SPLIT_WORK: usize = 1 << 22;

/// The left operand of a product, given a block of rows at a time.
pub(crate) trait Fill: Sync {
    /// Writes rows as unsigned numbers: row `i` of those asked for at `i * step` of `out`, as many bytes as the
    /// product has inner elements.
    fn fill(&self, rows: Range<usize>, step: usize, out: &mut [u8]);
}

/// A product whose shapes were checked.
pub(crate) struct Job<'a> {
    pub(crate) path: Path,
    pub(crate) isa: Isa,
    pub(crate) m: usize,
    pub(crate) fill: &'a dyn Fill,
    /// What `fill` adds to the numbers.
    pub(crate) zero: i32,
    pub(crate) params: Params<'a>,
    pub(crate) b: &'a PackedWeights,
    pub(crate) out: Place,
    pub(crate) epilogue: QuantizedEpilogue<'a>,
}

impl Job<'_> {
    /// Computes the product, divided among the threads of `pool` where that pays.
    pub(crate) fn run(&self, pool: &Pool) {
        let panels = self.b.panels();
        let work = self.m.saturating_mul(self.b.cols()).saturating_mul(self.b.rows());
        let threads = if work < SPLIT_WORK { 1 } else { pool.threads().min(work / (SPLIT_WORK / 2)) };
        if threads == 1 {
            return self.part(0..self.m, 0..panels);
        }
        let (tm, tn) = grid(threads, self.m.div_ceil(ROW_UNIT), panels.div_ceil(PANEL_UNIT));
        pool.parallel_for(tm * tn, 1, &|tasks| {
            for t in tasks {
                self.part(share(t / tn, tm, self.m, ROW_UNIT), share(t % tn, tn, panels, PANEL_UNIT));
            }
        });
    }

    /// Computes some rows and panels of the result.
    pub(crate) fn part(&self, rows: Range<usize>, panels: Range<usize>) {
        let k = self.b.rows();
        let path = self.path.for_shape(rows.len(), k, self.b.group());
        // An odd number of cache lines: rows at a power of two would evict each other.
        let step = (k.div_ceil(AMX_STEP) | 1) * AMX_STEP;
        let block = (BLOCK_BYTES / step / ROW_UNIT * ROW_UNIT).max(ROW_UNIT).min(rows.len());
        let a_len = (block.next_multiple_of(ROWS_READ)) * step;
        let widen = path.is_amx() && self.b.bits() == WeightBits::Four;
        let b_len = if widen { PANEL_UNIT * PANEL * self.b.depth() } else { 0 };
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a path by AMX exists only where it is available.
        let _tiles = path.is_amx().then(|| unsafe { super::amx::Tiles::configure() });
        scratch::with((a_len + b_len).div_ceil(size_of::<f32>()), |scratch| {
            let (a, b) = bytemuck::cast_slice_mut(scratch).split_at_mut(a_len);
            for first in rows.clone().step_by(block) {
                let block = first..rows.end.min(first + block);
                self.fill.fill(block.clone(), step, a);
                self.block(path, block, panels.clone(), (a, step), widen.then_some(&mut *b));
            }
        });
    }

    fn block(
        &self,
        path: Path,
        rows: Range<usize>,
        panels: Range<usize>,
        (a, a_step): (&[u8], usize),
        mut wide: Option<&mut [u8]>,
    ) {
        let (b, n) = (self.b, self.b.cols());
        let mut sums = Tile([0i32; MAX_TILE]);
        let mut reals = Tile([0.0f32; MAX_TILE]);
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
                let (height, panels) = path.shape(rows.len() - r, at_once);
                // A last single row may take its panels in another way.
                for q in (0..at_once).step_by(panels) {
                    let cols = (panels * PANEL).min(cols.saturating_sub(q * PANEL));
                    self.tile(
                        path,
                        (rows.start + r, height),
                        (p + q, panels, cols),
                        (&a[r * a_step..], a_step),
                        wide.as_deref().map(|w| &w[q * PANEL * b.depth()..]),
                        (&mut sums, &mut reals),
                    );
                }
                r += height;
            }
            p += at_once;
        }
    }

    /// Computes a tile of the result: `rows` from `row` on by `panels` from `panel` on, of whose columns `cols`
    /// are there.
    fn tile(
        &self,
        path: Path,
        (row, rows): (usize, usize),
        (panel, panels, cols): (usize, usize, usize),
        (a, a_step): (&[u8], usize),
        wide: Option<&[u8]>,
        (sums, reals): (&mut Tile<i32>, &mut Tile<f32>),
    ) {
        let (b, k) = (self.b, self.b.rows());
        let four = b.bits() == WeightBits::Four && wide.is_none();
        let groups = b.groups();
        for g in 0..groups {
            let from = g * b.group();
            let (data, b_step) = match wide {
                Some(wide) => (&wide[from * PANEL..], PANEL * b.depth()),
                None => (b.panel(panel, from), b.panel_step()),
            };
            let k = b.group().min(k - from);
            let args = Args {
                a: a[from..].as_ptr(),
                a_step,
                b: data.as_ptr(),
                b_step,
                k,
                four,
                rows,
                panels,
                sums: sums.0.as_mut_ptr(),
            };
            // SAFETY: A was copied with a distance of rows that is a multiple of every step, for a multiple of
            // the rows of every tile; panels are padded to the step of AMX, or where they are shorter, and AMX
            // is not taken, to a block.
            unsafe { tile::run(path, &args) };
            let (scales, column_sums) = b.columns(g, panel);
            let finish = Finish {
                sums,
                shift: if four { 4 } else { 0 },
                reals,
                first: g == 0,
                last: g + 1 == groups,
                step: args.step(path),
                rows,
                cols,
                params: self.params.from(row),
                zero: self.zero,
                scales,
                column_sums,
                epilogue: self.epilogue.from(panel * PANEL),
                out: self.out.at(row, panel * PANEL),
            };
            // SAFETY: rows and columns of the result that only this task writes.
            unsafe { finish.run(self.isa) };
        }
    }
}

/// A panel of 4-bit numbers as one of 8-bit numbers.
fn widen(panel: &[u8], out: &mut [u8]) {
    for (block, out) in panel.as_chunks::<64>().0.iter().zip(out.as_chunks_mut::<128>().0) {
        let (low, high) = out.split_at_mut(64);
        for ((low, high), &x) in low.iter_mut().zip(high).zip(block) {
            *low = ((x << 4) as i8 >> 4) as u8;
            *high = (x as i8 >> 4) as u8;
        }
    }
}
