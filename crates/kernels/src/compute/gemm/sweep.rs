//! The loop over the tiles of a block of a product. [`Sweep::run`] checks the operands of the whole block; the tiles
//! access them unchecked.
//!
//! Panels of B are the outer loop, rows of A the inner one, as in BLIS: a panel of [`KC`](super::driver) rows is small
//! enough for the L1 cache, where it stays while all rows of the block pass it, and a few rows of A come from the L2
//! cache for each tile.

use super::super::isa::Isa;
use super::super::mat::{MatMut, MatRef, last_offset};
use super::super::math;
use super::super::scratch;
use super::super::simd::VectorIsa;
use super::args::{Args, Finish, PREFETCHED_PER_STEP, Rows};
use super::element::widen_rows;
use super::epilogue::{Activation, Bias, Epilogue};
use super::narrow::{Elements, WeightType};
use super::pack::PackedB;
use super::row_table::RowTable;
use super::tile;
use std::ops::Range;

/// The largest number of tiles below each other that each widen the elements of B that they read. With two, products of
/// 12 rows by int8 weights take 1.18 of the time of those by f32, with one about as long.
pub(super) const TILES_THAT_WIDEN: usize = 1;

/// The rows of A that a block of the product reads.
#[derive(Clone, Copy)]
pub(crate) enum LhsBlock<'a> {
    /// Packed: the panel of the rows from `i` on starts at element `i * k`, and its first `skip` columns are not in
    /// this block.
    Packed { elements: &'a [f32], k: usize, skip: usize },
    /// In place: contiguous rows at any row stride.
    Strided(MatRef<'a>),
    /// In place: for each tile, the addresses of its rows at the first of `taps` taps, then at the second, and so on.
    Table { table: &'a RowTable<'a>, taps: usize },
    /// In place: lines of `width` rows, with row stride `step` and line stride `line`; and for each tap the offset of
    /// its rows.
    Lines { data: &'a [f32], width: usize, line: usize, step: usize, offsets: &'a [usize] },
}

impl LhsBlock<'_> {
    /// How many times the loop over the inner dimension runs: once for each tap.
    fn tap_count(&self) -> usize {
        match *self {
            LhsBlock::Table { taps, .. } => taps,
            LhsBlock::Lines { offsets, .. } => offsets.len(),
            LhsBlock::Packed { .. } | LhsBlock::Strided(_) => 1,
        }
    }

    /// How many of `rows` rows from row `i` on have one row stride in common, so that consecutive tiles can cover them.
    fn uniform_rows(&self, i: usize, rows: usize) -> usize {
        if let LhsBlock::Lines { width, .. } = *self { rows.min(width - i % width) } else { rows }
    }

    /// Whether `rows` rows of `k` elements are in bounds at each tap.
    fn in_bounds(&self, rows: usize, k: usize) -> bool {
        match *self {
            LhsBlock::Packed { elements, k: all, skip } => {
                skip.saturating_add(k) <= all && rows.saturating_mul(all) <= elements.len()
            }
            LhsBlock::Strided(a) => rows <= a.rows() && k <= a.cols() && (k <= 1 || a.col_stride() == 1),
            LhsBlock::Table { table, taps } => {
                rows.saturating_mul(taps) <= table.starts().len() && k <= table.row_len()
            }
            LhsBlock::Lines { data, width, line, step, offsets } => {
                let end = (rows.saturating_sub(1) / width.max(1))
                    .saturating_mul(line)
                    .saturating_add(width.min(rows).saturating_sub(1).saturating_mul(step))
                    .saturating_add(offsets.iter().copied().max().unwrap_or(0))
                    .saturating_add(k);
                width > 0 && end <= data.len()
            }
        }
    }

    /// The rows of the tile of `h` rows that begins at row `i` of the block.
    #[inline(always)]
    fn tile_rows(&self, i: usize, h: usize) -> Rows {
        match *self {
            LhsBlock::Packed { elements, k, skip } => {
                Rows::Packed(elements.as_ptr().wrapping_add(i * k + skip * h), k * h)
            }
            LhsBlock::Strided(a) => {
                Rows::Strided(a.as_ptr().wrapping_add(i * a.row_stride()), a.row_stride())
            }
            LhsBlock::Table { table, taps } => {
                Rows::Table(table.starts().as_ptr().wrapping_add(i * taps), taps)
            }
            LhsBlock::Lines { data, width, line, step, offsets } => Rows::Taps {
                first: data.as_ptr().wrapping_add(i / width * line + i % width * step),
                step,
                offsets: offsets.as_ptr(),
                taps: offsets.len(),
            },
        }
    }
}

/// The panels of B that a block of the product reads: whole panels, even if C has fewer columns.
#[derive(Clone, Copy)]
pub(crate) struct RhsBlock<'a> {
    /// The elements of B, from the first row of the first panel on.
    pub(crate) elements: Elements<'a>,
    /// The number of elements from one row of a panel to the next.
    pub(crate) step: usize,
    /// The number of elements from one panel to the next.
    pub(crate) panel: usize,
    /// The last, partial panel, if it is stored separately. Its rows are contiguous, and all elements are f32.
    pub(crate) tail: Option<&'a [f32]>,
}

impl<'a> RhsBlock<'a> {
    /// The panels that hold the columns from `col`, the first of a panel, on, without the rows before row `k`.
    pub(crate) fn of_packed(b: &'a PackedB, col: usize, k: usize) -> Self {
        let nr = tile::panel_cols(b.vector_isa());
        let elements = b.elements().from(col * b.rows() + k * nr, col);
        RhsBlock { elements, step: nr, panel: b.rows() * nr, tail: None }
    }

    /// Whether `panels` panels of `rows` rows of `nr` elements are in bounds.
    fn in_bounds(&self, panels: usize, rows: usize, nr: usize) -> bool {
        let own = panels - usize::from(self.tail.is_some());
        let scales = self.elements.scales();
        let is_narrow = !self.elements.is_f32();
        if is_narrow && (self.step != nr || self.tail.is_some())
            || !scales.is_empty() && scales.len() < own.saturating_mul(nr)
        {
            return false;
        }
        let end =
            last_offset(own, self.panel).saturating_add(last_offset(rows, self.step)).saturating_add(nr);
        rows == 0
            || (own == 0 || end <= self.elements.len())
                && self.tail.is_none_or(|tail| rows.saturating_mul(nr) <= tail.len())
    }
}

/// A block of a product: some rows and columns of C, and a part of the inner dimension.
pub(crate) struct Sweep<'a> {
    pub(crate) isa: Isa,
    pub(crate) epilogue: &'a Epilogue<'a>,
    /// The rows of C that the block computes, as the epilogue numbers them.
    pub(crate) rows: Range<usize>,
    /// The columns of C that the block computes, as the epilogue numbers them.
    pub(crate) cols: Range<usize>,
    /// The number of rows of a tile; the last tile may have fewer.
    pub(crate) height: usize,
    /// The inner dimension, of one tap if there are several.
    pub(crate) k: usize,
    pub(crate) b: RhsBlock<'a>,
    /// Whether the block's sums are added to C rather than stored over it.
    pub(crate) accumulate: bool,
    /// Whether this block completes the inner dimension, so that the epilogue is applied.
    pub(crate) last: bool,
}

impl Sweep<'_> {
    /// Whether tiles widen the elements of B in registers. Otherwise each panel is widened once for all of its tiles,
    /// which costs about as much as a tile of two rows: it pays if there are more than a few.
    fn widens_in_registers(&self, a: &LhsBlock<'_>) -> bool {
        let is_packed = matches!(a, LhsBlock::Packed { .. });
        !self.b.elements.is_f32() && !is_packed && self.rows.len() <= TILES_THAT_WIDEN * self.height
    }

    /// Computes the tiles of the block from its rows of A. C has the rows and columns of the block and no others.
    ///
    /// # Panics
    /// If C has another shape, or an operand is too small for the block.
    pub(crate) fn run(&self, a: LhsBlock<'_>, mut c: MatMut<'_>) {
        let vectors = VectorIsa::from(self.isa);
        let nr = tile::panel_cols(vectors);
        let panels = self.cols.len().div_ceil(nr);
        if self.rows.is_empty() || panels == 0 {
            return;
        }
        self.check(&a, &c, panels, nr);
        let at_once = tile::panels_at_once(vectors, self.height);
        // A separate tail panel cannot be computed together with the panels before it.
        let joined = panels - usize::from(self.b.tail.is_some());
        let c_raw = RawC { first: c.as_mut_ptr(), rs: c.row_stride(), cs: c.col_stride() };
        let panel_activation = panel_activation(self.epilogue, &c_raw);
        let rows_of_b = self.k * a.tap_count();
        let widened_len = match self.b.elements.is_f32() || self.widens_in_registers(&a) {
            true => 0,
            false => at_once * nr * rows_of_b,
        };
        scratch::with_buffer(widened_len, |widened| {
            let mut p = 0;
            while p < panels {
                let wide = if p + at_once <= joined { at_once } else { 1 };
                let j = p * nr;
                let n = (wide * nr).min(self.cols.len() - j);
                let panels = self.provide_panels(p, wide, joined, rows_of_b, widened);
                self.run_panels(&a, panels, (p, wide, n), joined, c_raw);
                if let (true, Some(function)) = (self.last, panel_activation) {
                    math::activate_rows(self.isa, function, c.block(0..self.rows.len(), j..j + n));
                }
                p += wide;
            }
        });
    }

    /// The `wide` panels from the `p`th on, widened to `widened` unless that is empty.
    fn provide_panels(
        &self,
        p: usize,
        wide: usize,
        joined: usize,
        rows_of_b: usize,
        widened: &mut [f32],
    ) -> Panels {
        let nr = tile::panel_cols(self.isa);
        let b = &self.b;
        let f32s = |first: &[f32], step, panel| Panels {
            first: first.as_ptr().cast(),
            step,
            panel,
            scales: std::ptr::null(),
            ty: WeightType::F32,
        };
        if let Some(tail) = b.tail.filter(|_| p == joined) {
            return f32s(tail, nr, b.panel);
        }
        if widened.is_empty() {
            let scales = b.elements.scales().get(p * nr..).unwrap_or_default();
            let first = b.elements.as_ptr().wrapping_add(p * b.panel * b.elements.size());
            let ty = b.elements.weight_type();
            return Panels { first, step: b.step, panel: b.panel, scales: scales.as_ptr(), ty };
        }
        let panel = rows_of_b * nr;
        for (q, widened) in widened.chunks_exact_mut(panel).take(wide).enumerate() {
            widen_rows(self.isa, b.elements.from((p + q) * b.panel, (p + q) * nr), rows_of_b, widened);
        }
        f32s(widened, nr, panel)
    }

    /// Computes the tiles of some panels, which cover `n` columns of C.
    fn run_panels(
        &self,
        a: &LhsBlock<'_>,
        b: Panels,
        (p, wide, n): (usize, usize, usize),
        joined: usize,
        c: RawC,
    ) {
        let vectors = VectorIsa::from(self.isa);
        let nr = tile::panel_cols(vectors);
        let j = p * nr;
        let mut ahead = self.prefetch_range(a, p, wide, joined);
        let mut i = 0;
        while i < self.rows.len() {
            let left = a.uniform_rows(i, self.rows.len() - i);
            let h = self.height.min(left);
            // Tiles below each other are one call, since a call costs as much as several steps of a tile. If the
            // rows of C are not contiguous, tiles are computed and stored one at a time.
            let count = if c.cs == 1 || n == 1 { left / h } else { 1 };
            let mut args = Args {
                a: a.tile_rows(i, h),
                k: self.k,
                b: b.first,
                scales: b.scales,
                b_step: b.step,
                b_panel: b.panel,
                c: std::ptr::null_mut(),
                c_step: 0,
                n,
                accumulate: self.accumulate,
                finish: None,
                ahead: ahead.clone(),
            };
            // A last tile of fewer rows may cover another number of panels at once.
            if wide == 1 || tile::panels_at_once(vectors, h) == wide {
                // SAFETY: `check` found every element of the block to be in bounds, and this tile is part of it.
                unsafe { self.run_tiles((h, count), (wide, b.ty), &mut args, c, (i, j)) };
            } else {
                for q in 0..wide {
                    args.b = b.first.wrapping_add(q * b.panel * b.ty.size());
                    args.scales = b.scales.wrapping_add(q * nr);
                    args.n = nr.min(n - q * nr);
                    // SAFETY: as above.
                    unsafe { self.run_tiles((h, count), (1, b.ty), &mut args, c, (i, j + q * nr)) };
                }
            }
            ahead.start =
                ahead.start.wrapping_add(count * self.k * a.tap_count() * PREFETCHED_PER_STEP).min(ahead.end);
            i += h * count;
        }
    }

    /// The panel after the `p`th, for prefetching: otherwise the first tile on a panel of weights would wait for
    /// memory at every step. Empty if there is no such panel, if it is not contiguous, or if no further tile runs
    /// before it is needed.
    fn prefetch_range(&self, a: &LhsBlock<'_>, p: usize, wide: usize, joined: usize) -> Range<*const u8> {
        let nr = tile::panel_cols(self.isa);
        if wide > 1 || p + 1 >= joined || self.b.step != nr || self.rows.len() <= self.height {
            return std::ptr::null()..std::ptr::null();
        }
        let size = self.b.elements.size();
        let start = self.b.elements.as_ptr().wrapping_add((p + 1) * self.b.panel * size);
        start..start.wrapping_add(self.k * a.tap_count() * nr * size)
    }

    /// Panics unless all elements that the tiles of the block read and write are in bounds.
    fn check(&self, a: &LhsBlock<'_>, c: &MatMut<'_>, panels: usize, nr: usize) {
        let (rows, cols) = (self.rows.len(), self.cols.len());
        assert_eq!((c.rows(), c.cols()), (rows, cols), "C of a block");
        assert!(self.height > 0 && a.in_bounds(rows, self.k), "rows of A of a block");
        assert!(self.b.in_bounds(panels, self.k.saturating_mul(a.tap_count()), nr), "panels of B of a block");
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

    /// Computes `count` tiles of C, one below the other, the first of which begins at `(i, j)`. If the block
    /// completes the inner dimension, it also applies the epilogue, apart from what [`panel_activation`] leaves for
    /// whole panels. C, its row stride and the epilogue are set in `args` itself: a copy of `args` would wait for the
    /// stores of the tile before.
    ///
    /// # Safety
    /// As [`tile::run`] requires for `args`, which lacks only C and the epilogue; [`Self::check`] has passed, and the
    /// tiles are in the block. If the rows of C are not contiguous and it has more than one column, `count` is one.
    unsafe fn run_tiles(
        &self,
        (height, count): (usize, usize),
        (panels, ty): (usize, WeightType),
        args: &mut Args,
        c: RawC,
        (i, j): (usize, usize),
    ) {
        let epilogue = self.epilogue;
        let rows = height * count;
        // The tile itself cannot apply a residual whose rows are not contiguous, or an activation beyond bounds: they
        // follow below.
        let fused = epilogue.residual.is_none_or(|(_, r)| r.col_stride() == 1);
        let own =
            if panel_activation(epilogue, &c).is_some() { Activation::Identity } else { epilogue.activation };
        let simple = fused && own.is_simple();
        let (row, col) = (self.rows.start + i, self.cols.start + j);
        let null = std::ptr::null();
        args.finish = self.last.then(|| Finish {
            alpha: epilogue.alpha,
            col_bias: if let Bias::PerCol(b) = epilogue.bias { b[col..].as_ptr() } else { null },
            row_bias: if let Bias::PerRow(b) = epilogue.bias { b[row..].as_ptr() } else { null },
            beta: epilogue.residual.map_or(0.0, |(beta, _)| beta),
            residual: match epilogue.residual {
                Some((_, r)) if fused => r.data_from(row, col).as_ptr(),
                _ => null,
            },
            residual_step: epilogue.residual.map_or(0, |(_, r)| r.row_stride()),
            bounds: if simple { own.number_bounds() } else { None },
        });
        let n = args.n;
        let at = c.first.wrapping_add(i * c.rs + j * c.cs);
        if c.cs == 1 || n == 1 {
            (args.c, args.c_step) = (at, c.rs);
            // SAFETY: as the caller promises.
            unsafe { tile::run(self.isa, height, count, panels, ty, args) };
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
            unsafe { tile::run(self.isa, height, count, panels, ty, args) };
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

/// Panels of B as tiles read them.
#[derive(Clone, Copy)]
struct Panels {
    first: *const u8,
    /// The number of elements from one row of a panel to the next.
    step: usize,
    /// The number of elements from one panel to the next.
    panel: usize,
    /// The scales of the columns; meaningless unless the type of the elements has scales.
    scales: *const f32,
    ty: WeightType,
}

/// The C of a block: address and strides.
#[derive(Clone, Copy)]
struct RawC {
    first: *mut f32,
    rs: usize,
    cs: usize,
}

/// The function to apply to whole panels of C once their tiles are done: an activation beyond bounds, if the rows of
/// C are contiguous.
fn panel_activation(epilogue: &Epilogue<'_>, c: &RawC) -> Option<math::Function> {
    epilogue.activation.function().filter(|_| c.cs == 1)
}
