//! From a product to its tiles: how it is divided among threads, and into blocks that fit the caches.

use super::super::isa::Isa;
use super::super::math;
use super::super::scratch;
use super::super::split;
use super::epilogue::{Activation, Bias, Epilogue};
use super::pack::{self, PackedB};
use super::tile::{self, Args, Finish, Rows};
use super::{Lhs, Rhs, dot};
use pool::Pool;
use std::ops::Range;

/// Inner dimension of a block: a tile of A of this many columns stays in the nearest cache.
const KC: usize = 512;
/// Rows of a block: as many rows of A stay in the second cache.
const MC: usize = 168;
/// Columns of a block of B that must be packed first.
const NC: usize = 512;
/// Rows of A up to which B is read in place rather than packed.
const DIRECT_ROWS: usize = 28;
/// Inner dimension above which a sum is taken in parts.
pub(crate) const LONG: usize = 8192;
/// A part: what is summed in f32 before it is added up in f64.
pub(crate) const PART: usize = 1024;
/// Products of a long sum that are added one after another.
const RUN: usize = 32;

/// How many products of a sum of `k` are added one after another at most, where a block has `block` of them.
pub(crate) fn run_of(k: usize, block: usize) -> usize {
    if k > LONG { RUN } else { block }
}

/// The sums of a product of a long inner dimension: of `m` rows by `n` columns.
pub(crate) struct LongSums {
    n: usize,
    partial: Vec<f32>,
    totals: Vec<f64>,
}

impl LongSums {
    pub(crate) fn new(m: usize, n: usize) -> Self {
        Self { n, partial: vec![0.0; m * n], totals: vec![0.0; m * n] }
    }

    /// Where a part of the product is to be written: row `row` and column `col` of C are the first here.
    pub(crate) fn place(&mut self, row: usize, col: usize) -> RawC {
        RawC { ptr: self.partial.as_mut_ptr().wrapping_sub(row * self.n + col), rs: self.n, cs: 1 }
    }

    /// Adds the part that was written.
    pub(crate) fn add(&mut self) {
        self.totals.iter_mut().zip(&self.partial).for_each(|(total, &part)| *total += f64::from(part));
    }

    /// Stores the product in C, of which the first element here is that of row `row` and column `col`.
    ///
    /// # Safety
    /// C has these rows and columns, and nobody else reads or writes them meanwhile.
    pub(crate) unsafe fn store(&self, c: RawC, epilogue: &Epilogue<'_>, row: usize, col: usize) {
        for (r, totals) in self.totals.chunks_exact(self.n.max(1)).enumerate() {
            for (j, &total) in totals.iter().enumerate() {
                let p = c.ptr.wrapping_add((row + r) * c.rs + (col + j) * c.cs);
                // SAFETY: an element of C, as the caller promises.
                unsafe {
                    let start = if epilogue.accumulate { f64::from(*p) } else { 0.0 };
                    *p = epilogue.scalar((start + total) as f32, row + r, col + j);
                }
            }
        }
    }
}

/// Where C is. Tasks write disjoint rows and columns of it.
#[derive(Clone, Copy)]
pub(crate) struct RawC {
    pub(crate) ptr: *mut f32,
    pub(crate) rs: usize,
    pub(crate) cs: usize,
}

// SAFETY: made from a `MatMut` that outlives the call; no two of its elements share a place, and no
// two tasks of a product write the same element.
unsafe impl Send for RawC {}
// SAFETY: as above.
unsafe impl Sync for RawC {}

/// A product whose shapes were checked.
pub(crate) struct Job<'a> {
    pub(crate) isa: Isa,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    pub(crate) a: Lhs<'a>,
    pub(crate) b: Rhs<'a>,
    pub(crate) c: RawC,
    pub(crate) epilogue: Epilogue<'a>,
}

enum Way {
    /// Dot products of contiguous rows of A and columns of B.
    Dots,
    /// Tiles over blocks.
    Blocks,
}

impl Job<'_> {
    fn way(&self) -> Way {
        match (self.a, self.b) {
            (Lhs::Plain(a), Rhs::Plain(b))
                if self.m <= dot::MAX_ROWS && b.row_stride() == 1 && (a.col_stride() == 1 || self.k == 1) =>
            {
                Way::Dots
            }
            _ => Way::Blocks,
        }
    }

    /// Computes the product, divided among the threads of `pool` where that pays.
    pub(super) fn run(&self, pool: &Pool) {
        let (rows, cols) = (self.row_unit(), self.col_unit());
        let work = self.m.max(split::LEAST_ROWS).saturating_mul(self.n).saturating_mul(self.k);
        let threads = split::threads(pool, work, split::PRODUCTS);
        if threads == 1 {
            return self.part(0..self.m, 0..self.n);
        }
        let (tm, tn) = grid(threads, self.m.div_ceil(rows), self.n.div_ceil(cols));
        pool.parallel_for(tm * tn, 1, &|tasks| {
            for t in tasks {
                self.part(share(t / tn, tm, self.m, rows), share(t % tn, tn, self.n, cols));
            }
        });
    }

    /// The rows that a division must keep together.
    fn row_unit(&self) -> usize {
        match self.a {
            Lhs::Packed(a) => a.height(),
            Lhs::Plain(_) => tile::max_rows(self.isa.level()),
        }
    }

    /// The columns that a division must keep together.
    fn col_unit(&self) -> usize {
        tile::panel_cols(self.isa.level())
    }

    /// Computes some rows and columns of the result.
    pub(crate) fn part(&self, rows: Range<usize>, cols: Range<usize>) {
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        if self.k == 0 {
            return self.no_product(rows, cols);
        }
        match self.way() {
            Way::Dots => self.dots(rows, cols),
            Way::Blocks => self.blocks(rows, cols),
        }
    }

    /// Whether rows of A are read where they are. Packed rows allow taller tiles; that pays where each is
    /// read for many columns, and where the rows' distance would make them evict each other.
    fn in_place(&self, rows: &Range<usize>, cols: &Range<usize>) -> bool {
        match self.a {
            Lhs::Plain(a) if a.col_stride() == 1 => {
                let few = cols.len() <= if a.row_stride() % 512 == 0 { 128 } else { 768 };
                few || rows.len() == 1
            }
            _ => false,
        }
    }

    fn no_product(&self, rows: Range<usize>, cols: Range<usize>) {
        for i in rows {
            for j in cols.clone() {
                let c = self.c.ptr.wrapping_add(i * self.c.rs + j * self.c.cs);
                // SAFETY: (i, j) is an element of C that only this task touches.
                unsafe {
                    let start = if self.epilogue.accumulate { *c } else { 0.0 };
                    *c = self.epilogue.scalar(start, i, j);
                }
            }
        }
    }

    fn dots(&self, rows: Range<usize>, cols: Range<usize>) {
        let (Lhs::Plain(a), Rhs::Plain(b)) = (self.a, self.b) else { return };
        let mut sums = [0.0; 32];
        let m = rows.len();
        for j in cols.clone().step_by(8) {
            let n = 8.min(cols.end - j);
            let pa = a.as_ptr().wrapping_add(rows.start * a.row_stride());
            let pb = b.as_ptr().wrapping_add(j * b.col_stride());
            // SAFETY: the rows and columns lie within the operands, and are contiguous (`way`).
            unsafe {
                dot::dots(self.isa, self.k, (pa, a.row_stride(), m), (pb, b.col_stride(), n), &mut sums)
            };
            for i in 0..m {
                for (jj, &sum) in sums[i * n..][..n].iter().enumerate() {
                    let (r, c) = (rows.start + i, j + jj);
                    let p = self.c.ptr.wrapping_add(r * self.c.rs + c * self.c.cs);
                    // SAFETY: (r, c) is an element of C that only this task touches.
                    unsafe {
                        let start = if self.epilogue.accumulate { *p } else { 0.0 };
                        *p = self.epilogue.scalar(start + sum, r, c);
                    }
                }
            }
        }
    }

    fn blocks(&self, rows: Range<usize>, cols: Range<usize>) {
        if self.k <= LONG {
            return self.products(rows, cols, 0..self.k, self.c, &self.epilogue);
        }
        let height = (MC / self.row_unit()).max(1) * self.row_unit();
        for i in rows.clone().step_by(height) {
            let rows = i..rows.end.min(i + height);
            for j in cols.clone().step_by(NC) {
                let cols = j..cols.end.min(j + NC);
                let mut sums = LongSums::new(rows.len(), cols.len());
                for k in (0..self.k).step_by(PART) {
                    let ks = k..self.k.min(k + PART);
                    let c = sums.place(rows.start, cols.start);
                    self.products(rows.clone(), cols.clone(), ks, c, &Epilogue::NONE);
                    sums.add();
                }
                // SAFETY: rows and columns of C that this task alone writes.
                unsafe { sums.store(self.c, &self.epilogue, rows.start, cols.start) };
            }
        }
    }

    /// Computes some rows and columns of the product of a part of the inner dimension into `to`.
    fn products(
        &self,
        rows: Range<usize>,
        cols: Range<usize>,
        inner: Range<usize>,
        to: RawC,
        epilogue: &Epilogue<'_>,
    ) {
        let level = self.isa.level();
        let nr = tile::panel_cols(level);
        let in_place = self.in_place(&rows, &cols);
        let height = match self.a {
            Lhs::Packed(a) => a.height(),
            Lhs::Plain(_) if in_place => {
                rows.len().div_ceil(rows.len().div_ceil(tile::max_rows_in_place(level)))
            }
            Lhs::Plain(_) => pack::panel_height(level, rows.len()),
        };
        let mut table = [std::ptr::null::<f32>(); MC];
        let mc = (MC / height).max(1) * height;
        let direct = matches!(self.b, Rhs::Plain(b) if b.col_stride() == 1 && self.m <= DIRECT_ROWS);
        let kc = run_of(self.k, KC).min(inner.len());
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
        scratch::with(a_len + b_len, |scratch| {
            let (a_scratch, b_scratch) = scratch.split_at_mut(a_len);
            for jb in cols.clone().step_by(nc) {
                let jcols = jb..cols.end.min(jb + nc);
                for kb in inner.clone().step_by(kc) {
                    let ks = kb..inner.end.min(kb + kc);
                    let b = self.panels(ks.clone(), jcols.clone(), direct, b_scratch);
                    for ib in rows.clone().step_by(mc) {
                        let irows = ib..rows.end.min(ib + mc);
                        let a = match self.a {
                            Lhs::Packed(a) => ABlock {
                                base: a.elements()[ib * self.k..].as_ptr(),
                                k: self.k,
                                skip: ks.start,
                            },
                            Lhs::Plain(a) if in_place => {
                                for (place, i) in table.iter_mut().zip(irows.clone()) {
                                    *place = a.from(i, ks.start).as_ptr();
                                }
                                ABlock { base: std::ptr::null(), k: 0, skip: 0 }
                            }
                            Lhs::Plain(a) => {
                                pack::pack_a(self.isa, a, irows.clone(), ks.clone(), height, a_scratch);
                                ABlock { base: a_scratch.as_ptr(), k: ks.len(), skip: 0 }
                            }
                        };
                        let sweep = Sweep {
                            isa: self.isa,
                            c: to,
                            epilogue,
                            rows: irows,
                            cols: jcols.clone(),
                            height,
                            k: ks.len(),
                            b,
                            accumulate: kb > inner.start || epilogue.accumulate,
                            last: ks.end == inner.end,
                        };
                        // SAFETY: the operands of every tile lie within those of the product, and this
                        // task alone writes these rows and columns.
                        unsafe {
                            sweep.run(|i, h| {
                                if in_place {
                                    Rows::InPlace(table[i..].as_ptr(), 1)
                                } else {
                                    Rows::Packed(a.base.wrapping_add(i * a.k + a.skip * h))
                                }
                            });
                        }
                    }
                }
            }
        });
    }

    /// Where the panels of B for these rows and columns are, packing them into `scratch` if need be.
    fn panels(&self, ks: Range<usize>, cols: Range<usize>, direct: bool, scratch: &mut [f32]) -> BBlock {
        let nr = tile::panel_cols(self.isa.level());
        match self.b {
            Rhs::Packed(b) => BBlock::of_packed(b, cols.start, ks.start),
            Rhs::Plain(b) if direct => {
                let whole = cols.len() / nr * nr;
                let tail = (whole < cols.len()).then(|| {
                    pack::pack_b(self.isa, b, ks.clone(), cols.start + whole..cols.end, nr, scratch);
                    scratch.as_ptr()
                });
                let base = b.from(ks.start, cols.start).as_ptr();
                BBlock { base, step: b.row_stride(), panel: nr, tail }
            }
            Rhs::Plain(b) => {
                let k = ks.len();
                pack::pack_b(self.isa, b, ks, cols, nr, scratch);
                BBlock { base: scratch.as_ptr(), step: nr, panel: k * nr, tail: None }
            }
        }
    }
}

/// A block of a product: some rows and columns of C, and a part of the inner dimension.
pub(crate) struct Sweep<'a> {
    pub(crate) isa: Isa,
    pub(crate) c: RawC,
    pub(crate) epilogue: &'a Epilogue<'a>,
    pub(crate) rows: Range<usize>,
    pub(crate) cols: Range<usize>,
    /// Rows of a tile; the last may have fewer.
    pub(crate) height: usize,
    /// Inner dimension (of each tap).
    pub(crate) k: usize,
    pub(crate) b: BBlock,
    /// Whether the sums are added to C.
    pub(crate) accumulate: bool,
    /// Whether this ends the inner dimension.
    pub(crate) last: bool,
}

impl Sweep<'_> {
    /// Computes every tile of the block. `a` says where the `h` rows are that begin `i` rows after the
    /// block's first.
    ///
    /// # Safety
    /// `a` and `b` give operands that reach as far as the block says; rows and columns are in C, which the
    /// epilogue fits, and no other task writes them.
    pub(crate) unsafe fn run(&self, a: impl Fn(usize, usize) -> Rows) {
        let level = self.isa.level();
        let nr = tile::panel_cols(level);
        let at_once = tile::panels_at_once(level, self.height);
        let panels = self.cols.len().div_ceil(nr);
        // A tail of its own cannot be taken together with the panels before it.
        let joined = panels - usize::from(self.b.tail.is_some());
        let mut p = 0;
        while p < panels {
            let wide = if p + at_once <= joined { at_once } else { 1 };
            let j = self.cols.start + p * nr;
            let n = (wide * nr).min(self.cols.end - j);
            let (base, step) = match self.b.tail {
                Some(tail) if p == joined => (tail, nr),
                _ => (self.b.base.wrapping_add(p * self.b.panel), self.b.step),
            };
            for i in self.rows.clone().step_by(self.height) {
                let h = self.height.min(self.rows.end - i);
                let mut args = Args {
                    a: a(i - self.rows.start, h),
                    k: self.k,
                    b: base,
                    b_step: step,
                    b_panel: self.b.panel,
                    c: std::ptr::null_mut(),
                    c_step: 0,
                    n,
                    accumulate: self.accumulate,
                    finish: None,
                };
                if wide == 1 || tile::panels_at_once(level, h) == wide {
                    // SAFETY: as the caller promises.
                    unsafe { run_tile(self.isa, h, wide, &mut args, self.c, self.epilogue, i, j, self.last) };
                } else {
                    for q in 0..wide {
                        args.b = base.wrapping_add(q * self.b.panel);
                        args.n = nr.min(n - q * nr);
                        // SAFETY: as the caller promises.
                        unsafe {
                            run_tile(
                                self.isa,
                                h,
                                1,
                                &mut args,
                                self.c,
                                self.epilogue,
                                i,
                                j + q * nr,
                                self.last,
                            )
                        };
                    }
                }
            }
            if self.last
                && let Some(op) = by_panel(self.epilogue, &self.c)
            {
                let at = self.c.ptr.wrapping_add(self.rows.start * self.c.rs + j);
                // SAFETY: the rows of these panels are in C and this task's own, and `by_panel` says that
                // the elements of a row lie together.
                unsafe { math::activate_rows(self.isa, op, at, self.rows.len(), n, self.c.rs) };
            }
            p += wide;
        }
    }
}

/// The function that is applied to whole panels of C once they are done: one that is more than bounds, where
/// the elements of a row lie together.
fn by_panel(epilogue: &Epilogue<'_>, c: &RawC) -> Option<math::Unary> {
    match epilogue.activation {
        Activation::Unary(op) if c.cs == 1 => Some(op),
        _ => None,
    }
}

/// Computes a tile of C at `(i, j)` and, if `last`, finishes it, but for what is done [`by_panel`]. The arguments are completed where they
/// are: a copy would wait for the last tile's stores.
///
/// # Safety
/// As [`tile::run`] says of `args`, which lacks only C and the last step; the tile is in C, and no
/// other task writes it; the epilogue fits C.
pub(crate) unsafe fn run_tile(
    isa: Isa,
    rows: usize,
    panels: usize,
    args: &mut Args,
    c: RawC,
    epilogue: &Epilogue<'_>,
    i: usize,
    j: usize,
    last: bool,
) {
    // What the tile itself cannot do follows it: a residual across its rows, an activation beyond bounds.
    let fused = epilogue.residual.is_none_or(|(_, r)| r.col_stride() == 1);
    let own = if by_panel(epilogue, &c).is_some() { Activation::Identity } else { epilogue.activation };
    let simple = fused && own.is_simple();
    args.finish = last.then(|| Finish {
        alpha: epilogue.alpha,
        col_bias: if let Bias::PerCol(b) = epilogue.bias { b[j..].as_ptr() } else { std::ptr::null() },
        row_bias: if let Bias::PerRow(b) = epilogue.bias { b[i..].as_ptr() } else { std::ptr::null() },
        beta: epilogue.residual.map_or(0.0, |(beta, _)| beta),
        residual: match epilogue.residual {
            Some((_, r)) if fused => r.from(i, j).as_ptr(),
            _ => std::ptr::null(),
        },
        residual_step: epilogue.residual.map_or(0, |(_, r)| r.row_stride()),
        bounds: if simple { own.bounds() } else { None },
    });
    let n = args.n;
    let at = c.ptr.wrapping_add(i * c.rs + j * c.cs);
    if c.cs == 1 || n == 1 {
        (args.c, args.c_step) = (at, c.rs);
        // SAFETY: as the caller promises.
        unsafe { tile::run(isa, rows, panels, args) };
    } else {
        let mut own = [0.0f32; tile::MAX_TILE];
        let place = |r: usize, q: usize| at.wrapping_add(r * c.rs + q * c.cs);
        if args.accumulate {
            for r in 0..rows {
                for q in 0..n {
                    // SAFETY: an element of the tile.
                    own[r * n + q] = unsafe { *place(r, q) };
                }
            }
        }
        (args.c, args.c_step) = (own.as_mut_ptr(), n);
        // SAFETY: as the caller promises; `own` holds any tile.
        unsafe { tile::run(isa, rows, panels, args) };
        for q in 0..n {
            for r in 0..rows {
                // SAFETY: an element of the tile.
                unsafe { *place(r, q) = own[r * n + q] };
            }
        }
    }
    if last && !simple {
        for r in 0..rows {
            for q in 0..n {
                if let (Some((beta, residual)), false) = (epilogue.residual, fused) {
                    // SAFETY: an element of the tile.
                    unsafe { *at.wrapping_add(r * c.rs + q * c.cs) += beta * residual.at(i + r, j + q) };
                }
            }
            for q in 0..n {
                let p = at.wrapping_add(r * c.rs + q * c.cs);
                // SAFETY: an element of the tile.
                unsafe { *p = own.scalar(*p) };
            }
        }
    }
}

/// Packed rows of A: the panel of rows from `i` on starts `i * k` elements past `base`, and its first
/// `skip` columns are not of this block.
struct ABlock {
    base: *const f32,
    k: usize,
    skip: usize,
}

/// Panels of B.
#[derive(Clone, Copy)]
pub(crate) struct BBlock {
    pub(crate) base: *const f32,
    /// Elements from one row of a panel to the next.
    pub(crate) step: usize,
    /// Elements from one panel to the next.
    pub(crate) panel: usize,
    /// Where the last, partial panel is, if not after the others. Its rows lie close.
    pub(crate) tail: Option<*const f32>,
}

impl BBlock {
    /// The panels of columns from `col` on, and their rows from `k` on.
    pub(crate) fn of_packed(b: &PackedB, col: usize, k: usize) -> Self {
        let nr = tile::panel_cols(b.level());
        let base = b.elements()[col * b.rows()..].as_ptr();
        BBlock { base: base.wrapping_add(k * nr), step: nr, panel: b.rows() * nr, tail: None }
    }
}

/// The numbers of row and column tasks, for at most `threads` tasks of `rows x cols` units, that leave
/// tasks nearest to square.
pub(crate) fn grid(threads: usize, rows: usize, cols: usize) -> (usize, usize) {
    let mut best = (1, 1);
    let mut least = f64::INFINITY;
    for tm in 1..=threads.min(rows) {
        let tn = (threads / tm).min(cols).max(1);
        let (r, c) = (rows.div_ceil(tm) as f64, cols.div_ceil(tn) as f64);
        // The slowest task's work, then what tasks read.
        let cost = r * c * 1000.0 + r + c;
        if cost < least {
            (least, best) = (cost, (tm, tn));
        }
    }
    best
}

/// The `i`th of `parts` shares of `len` items, in whole units.
pub(crate) fn share(i: usize, parts: usize, len: usize, unit: usize) -> Range<usize> {
    let units = len.div_ceil(unit);
    let at = |i: usize| (units * i / parts * unit).min(len);
    at(i)..at(i + 1)
}
