//! From a block of a product to its tiles. [`Sweep::run`] checks the operands of a whole block; the tiles read and
//! write them unchecked.

use super::super::isa::Isa;
use super::super::mat::{MatMut, MatRef, last_of};
use super::super::math;
use super::epilogue::{Activation, Bias, Epilogue};
use super::pack::PackedB;
use super::row_table::RowTable;
use super::tile::{self, Args, Finish, Rows};
use std::ops::Range;

/// The rows of A of a block.
#[derive(Clone, Copy)]
pub(crate) enum Left<'a> {
    /// Packed: the panel of the rows from `i` on starts `i * k` elements into `elements`, and its first `skip`
    /// columns are not of this block.
    Packed { elements: &'a [f32], k: usize, skip: usize },
    /// In place: contiguous rows, any distance apart.
    Strided(MatRef<'a>),
    /// In place: for each tile its rows of the first of `taps` taps, those of the second, and so on.
    Table { table: &'a RowTable<'a>, taps: usize },
    /// In place: lines of `width` rows `step` elements apart, lines `line` elements apart, and for each tap how many
    /// elements after these its rows begin.
    Lines { data: &'a [f32], width: usize, line: usize, step: usize, offsets: &'a [usize] },
}

impl Left<'_> {
    /// How often the inner dimension is run through.
    fn taps(&self) -> usize {
        match *self {
            Left::Table { taps, .. } => taps,
            Left::Lines { offsets, .. } => offsets.len(),
            Left::Packed { .. } | Left::Strided(_) => 1,
        }
    }

    /// How many of `rows` rows from the `i`th on can be taken tile by tile.
    fn together(&self, i: usize, rows: usize) -> usize {
        if let Left::Lines { width, .. } = *self { rows.min(width - i % width) } else { rows }
    }

    /// Whether there are `rows` rows of `k` elements for each tap.
    fn has(&self, rows: usize, k: usize) -> bool {
        match *self {
            Left::Packed { elements, k: all, skip } => {
                skip.saturating_add(k) <= all && rows.saturating_mul(all) <= elements.len()
            }
            Left::Strided(a) => rows <= a.rows() && k <= a.cols() && (k <= 1 || a.col_stride() == 1),
            Left::Table { table, taps } => {
                rows.saturating_mul(taps) <= table.starts().len() && k <= table.row_len()
            }
            Left::Lines { data, width, line, step, offsets } => {
                let end = (rows.saturating_sub(1) / width.max(1))
                    .saturating_mul(line)
                    .saturating_add(width.min(rows).saturating_sub(1).saturating_mul(step))
                    .saturating_add(offsets.iter().copied().max().unwrap_or(0))
                    .saturating_add(k);
                width > 0 && end <= data.len()
            }
        }
    }

    /// Where the `h` rows of a tile are that begin `i` rows after the block's first.
    #[inline(always)]
    fn tile(&self, i: usize, h: usize) -> Rows {
        match *self {
            Left::Packed { elements, k, skip } => {
                Rows::Packed(elements.as_ptr().wrapping_add(i * k + skip * h), k * h)
            }
            Left::Strided(a) => Rows::Strided(a.as_ptr().wrapping_add(i * a.row_stride()), a.row_stride()),
            Left::Table { table, taps } => Rows::Table(table.starts().as_ptr().wrapping_add(i * taps), taps),
            Left::Lines { data, width, line, step, offsets } => Rows::Taps {
                first: data.as_ptr().wrapping_add(i / width * line + i % width * step),
                step,
                offsets: offsets.as_ptr(),
                taps: offsets.len(),
            },
        }
    }
}

/// The panels of B of a block: whole ones, whatever the number of columns of C.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a> {
    /// From the first row of the first panel on.
    pub(crate) elements: &'a [f32],
    /// Elements from one row of a panel to the next.
    pub(crate) step: usize,
    /// Elements from one panel to the next.
    pub(crate) panel: usize,
    /// The last, partial panel, if it is not after the others. Its rows lie close.
    pub(crate) tail: Option<&'a [f32]>,
}

impl<'a> Right<'a> {
    /// The panels of columns from `col` on, and their rows from `k` on.
    pub(crate) fn of_packed(b: &'a PackedB, col: usize, k: usize) -> Self {
        let nr = tile::panel_cols(b.level());
        let elements = &b.elements()[col * b.rows() + k * nr..];
        Right { elements, step: nr, panel: b.rows() * nr, tail: None }
    }

    /// Whether there are `panels` panels of `rows` rows of `nr` elements.
    fn has(&self, panels: usize, rows: usize, nr: usize) -> bool {
        let own = panels - usize::from(self.tail.is_some());
        let end = last_of(own, self.panel).saturating_add(last_of(rows, self.step)).saturating_add(nr);
        rows == 0
            || (own == 0 || end <= self.elements.len())
                && self.tail.is_none_or(|tail| rows.saturating_mul(nr) <= tail.len())
    }
}

/// A block of a product: some rows and columns of C, and a part of the inner dimension.
pub(crate) struct Sweep<'a> {
    pub(crate) isa: Isa,
    pub(crate) epilogue: &'a Epilogue<'a>,
    /// The rows, by their numbers in the epilogue.
    pub(crate) rows: Range<usize>,
    /// The columns, by their numbers in the epilogue.
    pub(crate) cols: Range<usize>,
    /// Rows of a tile; the last may have fewer.
    pub(crate) height: usize,
    /// Inner dimension (of each tap).
    pub(crate) k: usize,
    pub(crate) b: Right<'a>,
    /// Whether the sums are added to C.
    pub(crate) accumulate: bool,
    /// Whether this ends the inner dimension.
    pub(crate) last: bool,
}

impl Sweep<'_> {
    /// Computes every tile of the block into C, which has its rows and columns and no others, from its rows of A.
    ///
    /// # Panics
    /// If C has another shape, or an operand does not reach as far as the block says.
    pub(crate) fn run(&self, a: Left<'_>, mut c: MatMut<'_>) {
        let level = self.isa.level();
        let nr = tile::panel_cols(level);
        let panels = self.cols.len().div_ceil(nr);
        if self.rows.is_empty() || panels == 0 {
            return;
        }
        self.check(&a, &c, panels, nr);
        let at_once = tile::panels_at_once(level, self.height);
        // A tail of its own cannot be taken together with the panels before it.
        let joined = panels - usize::from(self.b.tail.is_some());
        let c_raw = RawC { first: c.as_mut_ptr(), rs: c.row_stride(), cs: c.col_stride() };
        let by_panel = by_panel(self.epilogue, &c_raw);
        let mut p = 0;
        while p < panels {
            let wide = if p + at_once <= joined { at_once } else { 1 };
            let j = p * nr;
            let n = (wide * nr).min(self.cols.len() - j);
            let (base, step) = match self.b.tail {
                Some(tail) if p == joined => (tail.as_ptr(), nr),
                _ => (self.b.elements.as_ptr().wrapping_add(p * self.b.panel), self.b.step),
            };
            let mut ahead = self.ahead(&a, p, wide, joined);
            let mut i = 0;
            while i < self.rows.len() {
                let left = a.together(i, self.rows.len() - i);
                let h = self.height.min(left);
                // What is stored across its rows is stored a tile at a time.
                let count = if c_raw.cs == 1 || n == 1 { left / h } else { 1 };
                let mut args = Args {
                    a: a.tile(i, h),
                    k: self.k,
                    b: base,
                    b_step: step,
                    b_panel: self.b.panel,
                    c: std::ptr::null_mut(),
                    c_step: 0,
                    n,
                    accumulate: self.accumulate,
                    finish: None,
                    ahead: ahead.clone(),
                };
                // The last rows may be too few for so many panels at once, or could take more.
                if wide == 1 || tile::panels_at_once(level, h) == wide {
                    // SAFETY: `check` found every element of the block, of which this is a tile.
                    unsafe { self.tiles((h, count), wide, &mut args, c_raw, (i, j)) };
                } else {
                    for q in 0..wide {
                        args.b = base.wrapping_add(q * self.b.panel);
                        args.n = nr.min(n - q * nr);
                        // SAFETY: as above.
                        unsafe { self.tiles((h, count), 1, &mut args, c_raw, (i, j + q * nr)) };
                    }
                }
                ahead.start =
                    ahead.start.wrapping_add(count * self.k * a.taps() * tile::AHEAD).min(ahead.end);
                i += h * count;
            }
            if let (true, Some(function)) = (self.last, by_panel) {
                math::activate_rows(self.isa, function, c.block(0..self.rows.len(), j..j + n));
            }
            p += wide;
        }
    }

    /// The panel after the `p`th, to be in the nearer caches when it is needed: of weights, the first tile would wait
    /// for memory at every step. Nothing where there is none that lies in one piece.
    fn ahead(&self, a: &Left<'_>, p: usize, wide: usize, joined: usize) -> Range<*const f32> {
        let nr = tile::panel_cols(self.isa.level());
        if wide > 1 || p + 1 >= joined || self.b.step != nr || self.rows.len() <= self.height {
            return std::ptr::null()..std::ptr::null();
        }
        let start = self.b.elements.as_ptr().wrapping_add((p + 1) * self.b.panel);
        start..start.wrapping_add(self.k * a.taps() * nr)
    }

    /// Panics unless every element is there that the tiles of the block read and write.
    fn check(&self, a: &Left<'_>, c: &MatMut<'_>, panels: usize, nr: usize) {
        let (rows, cols) = (self.rows.len(), self.cols.len());
        assert_eq!((c.rows(), c.cols()), (rows, cols), "C of a block");
        assert!(self.height > 0 && a.has(rows, self.k), "rows of A of a block");
        assert!(self.b.has(panels, self.k.saturating_mul(a.taps()), nr), "panels of B of a block");
        let bias = match self.epilogue.bias {
            Bias::None => true,
            Bias::PerCol(b) => self.cols.end <= b.len(),
            Bias::PerRow(b) => self.rows.end <= b.len(),
        };
        assert!(bias, "bias of a block");
        if let Some((_, r)) = self.epilogue.residual {
            assert!(self.rows.end <= r.rows() && self.cols.end <= r.cols(), "residual of a block");
        }
    }

    /// Computes tiles of C, one below the other, of which the first begins at `(i, j)` and, if the block is the last of
    /// the inner dimension, finishes them, but for what is done [`by_panel`]. More than one are stored row by row. The arguments are completed where they are: a copy would wait
    /// for the last tile's stores.
    ///
    /// # Safety
    /// As [`tile::run`] says of `args`, which lacks only C and the last step; [`Self::check`] holds, and the tiles
    /// are the block's. Where C is neither contiguous along its rows nor of one column, there is one.
    unsafe fn tiles(
        &self,
        (height, count): (usize, usize),
        panels: usize,
        args: &mut Args,
        c: RawC,
        (i, j): (usize, usize),
    ) {
        let epilogue = self.epilogue;
        let rows = height * count;
        // What the tile itself cannot do follows it: a residual across its rows, an activation beyond bounds.
        let fused = epilogue.residual.is_none_or(|(_, r)| r.col_stride() == 1);
        let own = if by_panel(epilogue, &c).is_some() { Activation::Identity } else { epilogue.activation };
        let simple = fused && own.is_simple();
        let (row, col) = (self.rows.start + i, self.cols.start + j);
        let null = std::ptr::null();
        args.finish = self.last.then(|| Finish {
            alpha: epilogue.alpha,
            col_bias: if let Bias::PerCol(b) = epilogue.bias { b[col..].as_ptr() } else { null },
            row_bias: if let Bias::PerRow(b) = epilogue.bias { b[row..].as_ptr() } else { null },
            beta: epilogue.residual.map_or(0.0, |(beta, _)| beta),
            residual: match epilogue.residual {
                Some((_, r)) if fused => r.from(row, col).as_ptr(),
                _ => null,
            },
            residual_step: epilogue.residual.map_or(0, |(_, r)| r.row_stride()),
            bounds: if simple { own.bounds() } else { None },
        });
        let n = args.n;
        let at = c.first.wrapping_add(i * c.rs + j * c.cs);
        if c.cs == 1 || n == 1 {
            (args.c, args.c_step) = (at, c.rs);
            // SAFETY: as the caller promises.
            unsafe { tile::run(self.isa, height, count, panels, args) };
        } else {
            let mut copy = [0.0f32; tile::MAX_TILE];
            let place = |r: usize, q: usize| at.wrapping_add(r * c.rs + q * c.cs);
            if args.accumulate {
                for r in 0..rows {
                    for q in 0..n {
                        // SAFETY: an element of the tile.
                        copy[r * n + q] = unsafe { *place(r, q) };
                    }
                }
            }
            (args.c, args.c_step) = (copy.as_mut_ptr(), n);
            // SAFETY: as the caller promises; `copy` holds any tile.
            unsafe { tile::run(self.isa, height, count, panels, args) };
            for q in 0..n {
                for r in 0..rows {
                    // SAFETY: an element of the tile.
                    unsafe { *place(r, q) = copy[r * n + q] };
                }
            }
        }
        if self.last && !simple {
            for r in 0..rows {
                for q in 0..n {
                    if let (Some((beta, residual)), false) = (epilogue.residual, fused) {
                        // SAFETY: an element of the tile.
                        unsafe {
                            *at.wrapping_add(r * c.rs + q * c.cs) += beta * residual.at(row + r, col + q)
                        };
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
}

/// Where the C of a block is, for its tiles.
#[derive(Clone, Copy)]
struct RawC {
    first: *mut f32,
    rs: usize,
    cs: usize,
}

/// The function that is applied to whole panels of C once they are done: one that is more than bounds, where
/// the elements of a row lie together.
fn by_panel(epilogue: &Epilogue<'_>, c: &RawC) -> Option<math::Function> {
    epilogue.activation.function().filter(|_| c.cs == 1)
}
