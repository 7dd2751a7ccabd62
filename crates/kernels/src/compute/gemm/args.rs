//! The operands of a micro-kernel: the rows of A, the panels of B, C and the epilogue.

use std::ops::Range;

/// The width of a panel of B, in vectors.
pub(super) const PANEL_VECTORS: usize = 2;

/// The rows of A that a tile reads.
#[derive(Clone, Copy)]
pub(super) enum Rows {
    /// Packed: column by column, `MR` elements for each column; and the number of elements from one tile to the next.
    Packed(*const f32, usize),
    /// In place: the first row, and the row stride.
    Strided(*const f32, usize),
    /// In place: for each of `taps` taps, `MR` pointers to rows of `k` elements each.
    Table(*const *const f32, usize),
    /// In place: the first row, the row stride, and for each of `taps` taps the offset that it adds to each row's address.
    Taps { first: *const f32, step: usize, offsets: *const usize, taps: usize },
}

/// The epilogue of a tile: `clamp(alpha * acc + bias + beta * residual)`. A null pointer means that the operand is
/// absent.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    pub(super) alpha: f32,
    pub(super) col_bias: *const f32,
    pub(super) row_bias: *const f32,
    pub(super) beta: f32,
    pub(super) residual: *const f32,
    pub(super) residual_step: usize,
    pub(super) bounds: Option<(f32, f32)>,
}

impl Rows {
    /// How many times the loop over the inner dimension runs: once for each tap.
    #[inline(always)]
    pub(super) fn tap_count(&self) -> usize {
        match *self {
            Rows::Table(_, taps) | Rows::Taps { taps, .. } => taps,
            Rows::Packed(..) | Rows::Strided(..) => 1,
        }
    }

    /// Advances from a tile of `rows` rows to the tile below it.
    #[inline(always)]
    pub(super) fn advance(&mut self, rows: usize) {
        match self {
            Rows::Packed(a, tile) => *a = a.wrapping_add(*tile),
            Rows::Strided(a, step) => *a = a.wrapping_add(rows * *step),
            Rows::Table(table, taps) => *table = table.wrapping_add(rows * *taps),
            Rows::Taps { first, step, .. } => *first = first.wrapping_add(rows * *step),
        }
    }
}

impl Finish {
    /// Whether the epilogue is applied to the stored tile instead of in registers. A column bias and bounds, all that
    /// nearly every product needs, are applied in registers; doing the rest there would double the code of each tile
    /// for little gain.
    pub(super) fn is_after_store(&self) -> bool {
        self.alpha != 1.0 || !self.row_bias.is_null() || !self.residual.is_null()
    }
}

/// The operands of a tile. Callers of [`tile::run`](super::tile::run) promise that all elements named here are in bounds: `k` columns (times
/// taps) of `MR` rows of A, as many rows of the panels of B, and `MR` rows of `n` elements of C, of the residual and
/// the biases.
#[derive(Clone)]
pub(super) struct Args {
    pub(super) a: Rows,
    pub(super) k: usize,
    /// The first element of B that the tile reads, of the type of which the tile is.
    pub(super) b: *const u8,
    /// The scale of each column of the panels; null unless the type of the elements has scales.
    pub(super) scales: *const f32,
    /// The number of elements from one row of a panel of B to the next.
    pub(super) b_step: usize,
    /// The number of elements from one panel of B to the next.
    pub(super) b_panel: usize,
    pub(super) c: *mut f32,
    /// The number of elements from one row of C to the next.
    pub(super) c_step: usize,
    /// The number of columns of C.
    pub(super) n: usize,
    /// Whether the tile's sums are added to C rather than stored over it.
    pub(super) accumulate: bool,
    pub(super) finish: Option<Finish>,
    /// The part of B still to be prefetched for later tiles; empty if there is none.
    pub(super) ahead: Range<*const u8>,
}

/// The number of bytes of B, one cache line, that a tile prefetches for each step along the inner dimension.
pub(super) const PREFETCHED_PER_STEP: usize = 64;

impl Args {
    /// The epilogue, if it is applied to the sums in registers, before the tile is stored.
    #[inline(always)]
    pub(super) fn register_epilogue(&self) -> Option<&Finish> {
        self.finish.as_ref().filter(|f| !f.is_after_store())
    }
}
