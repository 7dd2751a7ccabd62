//! The GEMM tile: a block of `MR` rows by `NP` panels of the result, held in registers while the
//! inner dimension passes by. Written once; compiled for each instruction set and block shape.

#![allow(clippy::needless_range_loop, reason = "row, panel and vector numbers index several arrays at once")]

use super::super::isa::{Isa, Level};
use super::super::simd::{Op, Simd, dispatch};

/// Vectors in a panel of B.
pub(crate) const PANEL_VECTORS: usize = 2;
/// Elements of the largest tile of any level.
pub(crate) const MAX_TILE: usize = 512;

/// Columns in a panel of B.
pub(crate) const fn panel_cols(level: Level) -> usize {
    match level {
        Level::Portable => 8,
        Level::Avx2 => 16,
        Level::Avx512 => 32,
    }
}

/// Rows of the largest tile.
pub(crate) fn max_rows(level: Level) -> usize {
    match level {
        Level::Portable => <super::super::simd::Portable as Simd>::MAX_ROWS,
        Level::Avx2 => 6,
        Level::Avx512 => 14,
    }
}

/// Rows of the largest tile that reads its rows in place: each row needs a pointer of its own.
pub(crate) fn max_rows_in_place(level: Level) -> usize {
    max_rows(level).min(8)
}

/// How many panels a tile of `rows` rows takes at once, to keep the multipliers busy.
pub(crate) fn panels_at_once(level: Level, rows: usize) -> usize {
    match (level, rows) {
        (Level::Avx512, 1 | 2) => 4,
        (Level::Avx512, 3..=6) => 2,
        (_, 1) => 4,
        (_, 2) => 2,
        _ => 1,
    }
}

/// Where the rows of A are.
#[derive(Clone, Copy)]
pub(crate) enum Rows {
    /// Packed: `MR` elements of one column after those of the last.
    Packed(*const f32),
    /// In place: for each of `taps` runs, `MR` pointers to rows of `k` elements each.
    InPlace(*const *const f32, usize),
}

/// A tile's last step: `clamp(alpha * acc + bias + beta * residual)`. Null pointers: absent.
#[derive(Clone, Copy)]
pub(crate) struct Finish {
    pub(crate) alpha: f32,
    pub(crate) col_bias: *const f32,
    pub(crate) row_bias: *const f32,
    pub(crate) beta: f32,
    pub(crate) residual: *const f32,
    pub(crate) residual_step: usize,
    pub(crate) bounds: Option<(f32, f32)>,
}

/// A tile's operands. Whoever makes one vouches that every element named by it is there: `k` columns
/// (times taps) of `MR` rows of A and of the panels of B, and `MR` rows of `n` elements of C, of the
/// residual and the biases.
#[derive(Clone, Copy)]
pub(crate) struct Args {
    pub(crate) a: Rows,
    pub(crate) k: usize,
    pub(crate) b: *const f32,
    /// Elements from one row of a panel to the next.
    pub(crate) b_step: usize,
    /// Elements from one panel to the next.
    pub(crate) b_panel: usize,
    pub(crate) c: *mut f32,
    /// Elements from one row of C to the next.
    pub(crate) c_step: usize,
    /// Columns of C.
    pub(crate) n: usize,
    /// Whether the sums start from C.
    pub(crate) accumulate: bool,
    pub(crate) finish: Option<Finish>,
}

/// Computes a tile of `rows` rows by `panels` panels.
///
/// # Safety
/// The promise of [`Args`] holds; `rows` is 1 to [`max_rows`] ([`max_rows_in_place`] for rows in
/// place) and `panels` is 1 or [`panels_at_once`].
pub(crate) unsafe fn run(isa: Isa, rows: usize, panels: usize, args: &Args) {
    macro_rules! shapes {
        ($in_place:literal: $(($mr:literal, $np:literal)),*) => {
            match (rows, panels) {
                $(($mr, $np) => dispatch(isa, Tile::<$mr, $np, $in_place>(args)),)*
                _ => unreachable!("no tile of {rows} rows by {panels} panels"),
            }
        };
    }
    match args.a {
        Rows::Packed(_) => {
            shapes!(false: (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (9, 1),
            (10, 1), (11, 1), (12, 1), (13, 1), (14, 1), (1, 4), (2, 4), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2))
        }
        Rows::InPlace(..) => shapes!(true: (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1),
            (1, 4), (2, 4), (2, 2), (3, 2), (4, 2), (5, 2), (6, 2)),
    }
}

struct Tile<'a, const MR: usize, const NP: usize, const IN_PLACE: bool>(&'a Args);

impl<const MR: usize, const NP: usize, const IN_PLACE: bool> Op for Tile<'_, MR, NP, IN_PLACE> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if MR <= S::MAX_ROWS {
            // SAFETY: the caller of the module's `run` vouches for the operands.
            unsafe { tile::<S, MR, NP, IN_PLACE>(s, self.0) }
        }
    }
}

type Acc<S, const MR: usize, const NP: usize> = [[[<S as Simd>::F; PANEL_VECTORS]; NP]; MR];

/// # Safety
/// The promise of [`Args`] holds.
#[inline(always)]
unsafe fn tile<S: Simd, const MR: usize, const NP: usize, const IN_PLACE: bool>(s: S, args: &Args) {
    let panel = PANEL_VECTORS * S::LANES;
    let whole = args.n == NP * panel;
    // How many columns of C are at or past the first of a vector.
    let left = |p: usize, v: usize| args.n.saturating_sub(p * panel + v * S::LANES);

    let mut acc: Acc<S, MR, NP> = [[[s.splat(0.0); PANEL_VECTORS]; NP]; MR];
    if args.accumulate {
        for i in 0..MR {
            for p in 0..NP {
                for v in 0..PANEL_VECTORS {
                    // SAFETY: C has MR rows of n columns; `left` of them are read.
                    acc[i][p][v] = unsafe {
                        let c = args.c.wrapping_add(i * args.c_step + p * panel + v * S::LANES);
                        if whole { s.load(c) } else { s.load_first(c, left(p, v)) }
                    };
                }
            }
        }
    }

    let mut b = args.b;
    let taps = if let Rows::InPlace(_, taps) = args.a { taps } else { 1 };
    for tap in 0..taps {
        let mut rows = [std::ptr::null::<f32>(); MR];
        match args.a {
            // SAFETY: there are MR pointers for each tap.
            Rows::InPlace(table, _) => unsafe {
                for (i, row) in rows.iter_mut().enumerate() {
                    *row = *table.add(tap * MR + i);
                }
            },
            Rows::Packed(a) => rows[0] = a,
        }
        let mut a = rows[0];
        for k in 0..args.k {
            // SAFETY: A has MR rows of k columns, B has k rows of NP panels.
            unsafe {
                let mut bv = [[s.splat(0.0); PANEL_VECTORS]; NP];
                for (p, bv) in bv.iter_mut().enumerate() {
                    for (v, bv) in bv.iter_mut().enumerate() {
                        *bv = s.load(b.add(p * args.b_panel + v * S::LANES));
                    }
                }
                for i in 0..MR {
                    let x = if IN_PLACE { *rows[i].add(k) } else { *a.add(i) };
                    let x = s.splat(x);
                    for p in 0..NP {
                        for v in 0..PANEL_VECTORS {
                            acc[i][p][v] = s.mul_add(x, bv[p][v], acc[i][p][v]);
                        }
                    }
                }
            }
            b = b.wrapping_add(args.b_step);
            if !IN_PLACE {
                a = a.wrapping_add(MR);
            }
        }
    }

    if let Some(f) = &args.finish {
        for i in 0..MR {
            for p in 0..NP {
                for v in 0..PANEL_VECTORS {
                    let at = p * panel + v * S::LANES;
                    // SAFETY: biases and residual have the rows and columns of C.
                    acc[i][p][v] = unsafe { finish(s, f, acc[i][p][v], i, at, left(p, v), whole) };
                }
            }
        }
    }
    for i in 0..MR {
        for p in 0..NP {
            for v in 0..PANEL_VECTORS {
                let c = args.c.wrapping_add(i * args.c_step + p * panel + v * S::LANES);
                // SAFETY: C has MR rows of n columns; `left` of them are written.
                unsafe {
                    if whole { s.store(c, acc[i][p][v]) } else { s.store_first(c, left(p, v), acc[i][p][v]) }
                }
            }
        }
    }
}

/// The finished vector for sums `x` of row `i`, of the `left` columns from `at` on.
///
/// # Safety
/// The pointers of `f` are null or reach so far.
#[inline(always)]
unsafe fn finish<S: Simd>(s: S, f: &Finish, x: S::F, i: usize, at: usize, left: usize, whole: bool) -> S::F {
    // SAFETY: as the caller promises.
    let load = |p: *const f32| unsafe { if whole { s.load(p) } else { s.load_first(p, left) } };
    let mut x = x;
    if f.alpha != 1.0 {
        x = s.mul(x, s.splat(f.alpha));
    }
    if !f.col_bias.is_null() {
        x = s.add(x, load(f.col_bias.wrapping_add(at)));
    }
    if !f.row_bias.is_null() {
        // SAFETY: there is a bias for each row.
        x = s.add(x, s.splat(unsafe { *f.row_bias.add(i) }));
    }
    if !f.residual.is_null() {
        let r = load(f.residual.wrapping_add(i * f.residual_step + at));
        x = if f.beta == 1.0 { s.add(x, r) } else { s.add(x, s.mul(r, s.splat(f.beta))) };
    }
    if let Some((low, high)) = f.bounds {
        x = s.min(s.splat(high), s.max(s.splat(low), x));
    }
    x
}
