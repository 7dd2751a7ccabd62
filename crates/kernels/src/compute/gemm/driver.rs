//! The driver of a product: divides it among threads, and into blocks that fit the caches.
//!
//! The blocks are those of Goto and van de Geijn ("Anatomy of High-Performance Matrix Multiplication", 2008), with the
//! loops of BLIS: `NC` columns of B, of these `KC` rows, which are packed, then `MC` rows of A, which are packed for
//! the L2 cache; [`Sweep`] runs the tiles. Each packed element is read many times, so that tiles take operands from
//! near caches, and contiguously. Packing is left out where an element is read too few times to pay for it: weights
//! are packed once for all calls, a few rows of A read B in place, and rows of A that few columns use stay in place.

use super::super::isa::Isa;
use super::super::mat::MatMut;
use super::super::scratch;
use super::super::simd::VectorIsa;
use super::super::split::{self, Grid, balanced_chunk};
use super::dot;
use super::epilogue::Epilogue;
use super::narrow::{Elements, WeightType};
use super::operand::{Lhs, Rhs};
use super::pack;
use super::sweep::{LhsBlock, RhsBlock, Sweep, TILES_THAT_WIDEN};
use super::tile;
use pteron_pool::Pool;
use std::ops::Range;

/// The largest inner dimension of a block: a panel of B with this many rows stays in the L1 cache.
const KC: usize = 256;
/// The approximate largest number of rows of a block: this many rows of A stay in the L2 cache.
const MC: usize = 168;
/// The largest number of columns of a block of B, if B has to be packed.
const NC: usize = 512;
/// The maximum number of rows of A for which B is read in place instead of being packed.
const DIRECT_ROWS: usize = 28;
/// The longest inner dimension summed in f32 alone; a longer one is summed in parts, whose sums are totalled in f64.
pub(crate) const MAX_F32_SUM: usize = 8192;
/// The length of a part of a long sum: the part is summed in f32 and then added to the f64 total.
pub(crate) const PARTIAL_SUM: usize = 1024;
/// The number of products in one accumulator, where a sum is longer than [`MAX_F32_SUM`].
const LONG_SUM_RUN: usize = 32;

/// The maximum number of products that one accumulator adds up, in a sum of `k` products computed `block` at a time.
pub(crate) fn accumulation_len(k: usize, block: usize) -> usize {
    if k > MAX_F32_SUM { LONG_SUM_RUN } else { block }
}

/// Accumulators of a product with a long inner dimension: an f32 partial sum and an f64 total for each of `m x n`
/// results.
pub(crate) struct LongSums {
    n: usize,
    partial: Vec<f32>,
    totals: Vec<f64>,
}

impl LongSums {
    pub(crate) fn new(m: usize, n: usize) -> Self {
        Self { n, partial: scratch::filled_vec(m * n, 0.0), totals: scratch::filled_vec(m * n, 0.0) }
    }

    /// The matrix to write the next partial product to.
    pub(crate) fn next_partial(&mut self) -> MatMut<'_> {
        let rows = self.totals.len() / self.n.max(1);
        MatMut::new(&mut self.partial, rows, self.n)
    }

    /// Adds the partial product to the totals.
    pub(crate) fn add_partial(&mut self) {
        self.totals.iter_mut().zip(&self.partial).for_each(|(total, &part)| *total += f64::from(part));
    }

    /// Applies `epilogue` to the totals and stores them in C, whose element `(0, 0)` is `(row, col)` of the
    /// epilogue's result.
    pub(crate) fn store(&self, mut c: MatMut<'_>, epilogue: &Epilogue<'_>, row: usize, col: usize) {
        for (r, totals) in self.totals.chunks_exact(self.n.max(1)).enumerate() {
            for (j, &total) in totals.iter().enumerate() {
                let c = c.at(r, j);
                let start = if epilogue.accumulate { f64::from(*c) } else { 0.0 };
                *c = epilogue.scalar((start + total) as f32, row + r, col + j);
            }
        }
    }
}

/// A product whose shapes have been checked.
pub(crate) struct Job<'a> {
    pub(crate) isa: Isa,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: Lhs<'a>,
    pub(crate) b: Rhs<'a>,
    pub(crate) epilogue: Epilogue<'a>,
}

enum Strategy {
    /// Dot products of contiguous rows of A and columns of B.
    Dots,
    /// Tiles, in cache blocks.
    Blocks,
}

impl Job<'_> {
    fn strategy(&self) -> Strategy {
        match (self.a, self.b) {
            (Lhs::Plain(a), Rhs::Plain(b))
                if self.m <= dot::MAX_ROWS && b.row_stride() == 1 && (a.col_stride() == 1 || self.k == 1) =>
            {
                Strategy::Dots
            }
            _ => Strategy::Blocks,
        }
    }

    /// Computes the product into C; in parallel on `pool` where that pays.
    pub(super) fn run(&self, pool: &Pool, c: MatMut<'_>) {
        let work = self.m.max(split::LEAST_ROWS).saturating_mul(self.n).saturating_mul(self.k);
        pteron_pool::count(self.m.saturating_mul(self.n).saturating_mul(self.k));
        let threads = split::thread_count(pool, work, split::PRODUCTS);
        divide(pool, threads, c, [self.row_unit(), self.col_unit()], &|rows, cols, c| {
            self.compute_part(rows, cols, c);
        });
    }

    /// Tasks get multiples of this number of rows: the height of packed panels, or of the instruction set's tiles.
    fn row_unit(&self) -> usize {
        match self.a {
            Lhs::Packed(a) => a.height(),
            Lhs::Plain(_) => tile::max_rows(self.isa),
        }
    }

    /// Tasks get multiples of this number of columns: the width of a panel.
    fn col_unit(&self) -> usize {
        tile::panel_cols(self.isa)
    }

    /// Computes the block of the result with these rows and columns. `c` is that block.
    pub(crate) fn compute_part(&self, rows: Range<usize>, cols: Range<usize>, c: MatMut<'_>) {
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        if self.k == 0 {
            return self.store_zero_products(rows, cols, c);
        }
        match self.strategy() {
            Strategy::Dots => self.compute_dots(rows, cols, c),
            Strategy::Blocks => self.compute_blocks(rows, cols, c),
        }
    }

    /// Whether rows of A are read in place. Packing allows taller tiles; it pays if each row is read for many
    /// columns, the more so if the row stride makes rows evict each other from the cache.
    fn reads_in_place(&self, rows: &Range<usize>, cols: &Range<usize>) -> bool {
        match self.a {
            Lhs::Plain(a) if a.col_stride() == 1 => {
                let few = cols.len() <= if a.row_stride() % 512 == 0 { 128 } else { 768 };
                few || rows.len() == 1 || self.has_narrow_weights() && self.has_few_tiles(rows)
            }
            _ => false,
        }
    }

    fn has_narrow_weights(&self) -> bool {
        matches!(self.b, Rhs::Packed(b) if b.weight_type() != WeightType::F32)
    }

    /// Whether there are so few rows that tiles can widen the elements of B as they read them; rows of A are in place then.
    fn has_few_tiles(&self, rows: &Range<usize>) -> bool {
        rows.len() <= TILES_THAT_WIDEN * tile::max_rows_in_place(self.isa)
    }

    fn store_zero_products(&self, rows: Range<usize>, cols: Range<usize>, mut c: MatMut<'_>) {
        for (r, i) in rows.enumerate() {
            for (q, j) in cols.clone().enumerate() {
                let c = c.at(r, q);
                let start = if self.epilogue.accumulate { *c } else { 0.0 };
                *c = self.epilogue.scalar(start, i, j);
            }
        }
    }

    fn compute_dots(&self, rows: Range<usize>, cols: Range<usize>, mut c: MatMut<'_>) {
        let (Lhs::Plain(a), Rhs::Plain(b)) = (self.a, self.b) else { return };
        let mut sums = [0.0; 32];
        let a = a.block(rows.clone(), 0..self.k);
        for j in cols.clone().step_by(8) {
            let n = 8.min(cols.end - j);
            dot::dots(self.isa, a, b.block(0..self.k, j..j + n).t(), &mut sums);
            for (i, sums) in sums.chunks_exact(n).take(rows.len()).enumerate() {
                for (jj, &sum) in sums.iter().enumerate() {
                    let c = c.at(i, j - cols.start + jj);
                    let start = if self.epilogue.accumulate { *c } else { 0.0 };
                    *c = self.epilogue.scalar(start + sum, rows.start + i, j + jj);
                }
            }
        }
    }

    fn compute_blocks(&self, rows: Range<usize>, cols: Range<usize>, mut c: MatMut<'_>) {
        if self.k <= MAX_F32_SUM {
            return self.compute_block(rows, cols, 0..self.k, c, &self.epilogue);
        }
        let height = (MC / self.row_unit()).max(1) * self.row_unit();
        for i in rows.clone().step_by(height) {
            let block = i..rows.end.min(i + height);
            for j in cols.clone().step_by(NC) {
                let cols_of = j..cols.end.min(j + NC);
                let mut sums = LongSums::new(block.len(), cols_of.len());
                for k in (0..self.k).step_by(PARTIAL_SUM) {
                    let ks = k..self.k.min(k + PARTIAL_SUM);
                    self.compute_block(
                        block.clone(),
                        cols_of.clone(),
                        ks,
                        sums.next_partial(),
                        &Epilogue::NONE,
                    );
                    sums.add_partial();
                }
                let c = c.block(relative_range(&block, rows.start), relative_range(&cols_of, cols.start));
                sums.store(c, &self.epilogue, block.start, cols_of.start);
            }
        }
    }

    /// Computes a block of the product over a range of the inner dimension. `c` is that block.
    fn compute_block(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        inner: Range<usize>,
        mut c: MatMut<'_>,
        epilogue: &Epilogue<'_>,
    ) {
        let vectors = VectorIsa::from(self.isa);
        let nr = tile::panel_cols(vectors);
        let in_place = self.reads_in_place(&rows, &cols);
        let height = match self.a {
            Lhs::Packed(a) => a.height(),
            Lhs::Plain(_) if in_place => {
                rows.len().div_ceil(rows.len().div_ceil(tile::max_rows_in_place(vectors)))
            }
            Lhs::Plain(_) => pack::panel_height(vectors, rows.len()),
        };
        let mc = (MC / height).max(1) * height;
        let direct = matches!(self.b, Rhs::Plain(b) if b.col_stride() == 1 && self.m <= DIRECT_ROWS);
        // Even parts: a short last part would load and store all of C for few products.
        let kc = balanced_chunk(inner.len(), accumulation_len(self.k, KC));
        let nc = match self.b {
            Rhs::Packed(_) => cols.len(),
            Rhs::Plain(_) => NC.min(cols.len()),
        };
        let a_len = if matches!(self.a, Lhs::Plain(_)) && !in_place { mc.min(rows.len()) * kc } else { 0 };
        let b_len = match self.b {
            Rhs::Packed(_) => 0,
            Rhs::Plain(_) if direct => nr * kc,
            Rhs::Plain(_) => nc.next_multiple_of(nr) * kc,
        };
        scratch::with_buffer(a_len + b_len, |scratch| {
            let (a_scratch, b_scratch) = scratch.split_at_mut(a_len);
            // The inner dimension is the second loop: C is read and written once for each of its parts, but a packed
            // part of B serves all rows.
            for jb in cols.clone().step_by(nc) {
                let jcols = jb..cols.end.min(jb + nc);
                for kb in inner.clone().step_by(kc) {
                    let ks = kb..inner.end.min(kb + kc);
                    let b = self.provide_panels(ks.clone(), jcols.clone(), direct, b_scratch);
                    for ib in rows.clone().step_by(mc) {
                        let irows = ib..rows.end.min(ib + mc);
                        let a = match self.a {
                            Lhs::Packed(a) => {
                                let elements = &a.elements()[ib * self.k..];
                                LhsBlock::Packed { elements, k: self.k, skip: ks.start }
                            }
                            Lhs::Plain(a) if in_place => {
                                LhsBlock::Strided(a.block(irows.clone(), ks.clone()))
                            }
                            Lhs::Plain(a) => {
                                pack::pack_a(self.isa, a, irows.clone(), ks.clone(), height, a_scratch);
                                LhsBlock::Packed { elements: a_scratch, k: ks.len(), skip: 0 }
                            }
                        };
                        let to =
                            c.block(relative_range(&irows, rows.start), relative_range(&jcols, cols.start));
                        Sweep {
                            isa: self.isa,
                            epilogue,
                            rows: irows,
                            cols: jcols.clone(),
                            height,
                            k: ks.len(),
                            b,
                            accumulate: kb > inner.start || epilogue.accumulate,
                            last: ks.end == inner.end,
                        }
                        .run(a, to);
                    }
                }
            }
        });
    }

    /// The panels of B for these rows and columns, packed into `scratch` unless B is packed or read in place.
    fn provide_panels<'a>(
        &'a self,
        ks: Range<usize>,
        cols: Range<usize>,
        direct: bool,
        scratch: &'a mut [f32],
    ) -> RhsBlock<'a> {
        let nr = tile::panel_cols(self.isa);
        match self.b {
            Rhs::Packed(b) => RhsBlock::of_packed(b, cols.start, ks.start),
            Rhs::Plain(b) if direct => {
                let full_columns = cols.len() / nr * nr;
                let tail = (full_columns < cols.len()).then(|| {
                    pack::pack_b(self.isa, b, ks.clone(), cols.start + full_columns..cols.end, nr, scratch);
                    &*scratch
                });
                RhsBlock {
                    elements: Elements::F32(b.data_from(ks.start, cols.start)),
                    step: b.row_stride(),
                    panel: nr,
                    tail,
                }
            }
            Rhs::Plain(b) => {
                let k = ks.len();
                pack::pack_b(self.isa, b, ks, cols, nr, scratch);
                RhsBlock { elements: Elements::F32(scratch), step: nr, panel: k * nr, tail: None }
            }
        }
    }
}

/// `range` with `start` subtracted from both ends; `start` is at most `range.start`.
fn relative_range(range: &Range<usize>, start: usize) -> Range<usize> {
    range.start - start..range.end - start
}

/// Divides C into blocks of whole row units and column units, at most `threads` of them, and runs `body` as a task
/// for each.
pub(crate) fn divide(
    pool: &Pool,
    threads: usize,
    c: MatMut<'_>,
    units: [usize; 2],
    body: &(dyn Fn(Range<usize>, Range<usize>, MatMut<'_>) + Sync),
) {
    let (m, n) = (c.rows(), c.cols());
    if threads == 1 {
        return body(0..m, 0..n, c);
    }
    let grid = Grid::new(threads, [m, n], units);
    let c = c.blocks();
    pool.parallel_for(grid.task_count(), 1, &|tasks| {
        for t in tasks {
            let [rows, cols] = grid.task_block(t);
            // SAFETY: different tasks have disjoint shares of the rows or of the columns.
            let c = unsafe { c.block(rows.clone(), cols.clone()) };
            body(rows, cols, c);
        }
    });
}
