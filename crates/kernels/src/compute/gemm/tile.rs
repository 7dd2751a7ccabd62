//! The GEMM micro-kernel: a tile of `MR` rows by `NP` panels of the result, kept in registers throughout the loop
//! over the inner dimension. Written once; compiled for each instruction set and tile shape.
//!
//! A step loads `NP` panels of a row of B and adds their products with each of `MR` elements of A: an outer product,
//! which does `MR * NP * 2` vector multiply-adds for `NP * 2` loads and `MR` broadcasts. The accumulators are
//! independent of each other. It takes eight of them to hide the latency of multiply-add, of which two start in each
//! of four cycles: tiles of few rows therefore cover more panels. The largest tile leaves registers for the row of B
//! and one broadcast: 6 x 2 + 2 + 1 of 16 with AVX2, 14 x 2 + 2 + 1 of 32 with AVX-512.

use super::super::isa::Isa;
use super::super::simd::{Op, Simd, VectorIsa, dispatch};
use super::args::{Args, Finish, PANEL_VECTORS, PREFETCHED_PER_STEP, Rows};
use super::array_tile::array_tile;
use super::element::{Bf16, Element, F16, F32, Int8};
use super::narrow::WeightType;
use std::marker::PhantomData;

/// At least the number of elements of the largest tile of any instruction set.
pub(crate) const MAX_TILE: usize = 512;

/// The number of columns in a panel of B.
pub(crate) fn panel_cols(isa: impl Into<VectorIsa>) -> usize {
    PANEL_VECTORS * isa.into().lanes
}

/// The number of rows of the largest tile.
pub(crate) fn max_rows(isa: impl Into<VectorIsa>) -> usize {
    isa.into().max_rows
}

/// The number of rows of the largest tile that reads A in place: each row needs a pointer in a register.
pub(crate) fn max_rows_in_place(isa: impl Into<VectorIsa>) -> usize {
    max_rows(isa).min(8)
}

/// How many panels a tile of `rows` rows covers, so that it has enough independent accumulators to keep the
/// multipliers busy.
pub(crate) fn panels_at_once(isa: impl Into<VectorIsa>, rows: usize) -> usize {
    let [four, two] = isa.into().wide_rows;
    match rows {
        0 => 1,
        _ if rows <= four => 4,
        _ if rows <= two => 2,
        _ => 1,
    }
}

/// Runs the tile of a shape, the elements of whose panels are of a type, out of a list of shapes.
macro_rules! run_shape {
    (
        ($isa:expr, $args:expr, $count:expr, $shape:expr), $element:ty, $in_place:literal:
        $(($mr:literal, $np:literal, $nv:literal)),*
    ) => {
        match $shape {
            $(($mr, $np, $nv) => {
                // SAFETY: as the caller promises.
                let tile = unsafe { Tile::<$mr, $np, $nv, $in_place, $element>::new($args, $count) };
                dispatch($isa, tile)
            })*
            _ => unreachable!("no tile of the shape {:?}", $shape),
        }
    };
}

/// Computes `count` tiles of `rows` rows by `panels` panels, one below the other.
///
/// # Safety
/// The promise of [`Args`] holds, with `rows * count` rows and elements of B of type `ty`; `rows` is 1 to [`max_rows`]
/// ([`max_rows_in_place`] for rows in place, as they are unless the elements are f32) and `panels` is 1 or
/// [`panels_at_once`].
pub(super) unsafe fn run(isa: Isa, rows: usize, count: usize, panels: usize, ty: WeightType, args: &Args) {
    match ty {
        // SAFETY: as the caller promises.
        WeightType::F32 => unsafe { run_f32(isa, rows, count, panels, args) },
        // SAFETY: as above.
        WeightType::F16 => unsafe { run_narrow::<F16>(isa, rows, count, panels, args) },
        // SAFETY: as above.
        WeightType::Bf16 => unsafe { run_narrow::<Bf16>(isa, rows, count, panels, args) },
        // SAFETY: as above.
        WeightType::Int8 => unsafe { run_narrow::<Int8>(isa, rows, count, panels, args) },
    }
    if let Some(finish) = args.finish.filter(Finish::is_after_store) {
        // SAFETY: as the caller promises.
        dispatch(isa, unsafe { StoredFinish::new(rows * count, args, finish) });
    }
}

/// [`run`] for elements of f32.
///
/// # Safety
/// As for [`run`].
unsafe fn run_f32(isa: Isa, rows: usize, count: usize, panels: usize, args: &Args) {
    // Few columns need only half a panel.
    let vectors = if panels == 1 && 2 * args.n <= panel_cols(isa) { 1 } else { PANEL_VECTORS };
    let shape = (rows, panels, vectors);
    match args.a {
        Rows::Packed(..) => run_shape!((isa, args, count, shape), F32, false:
            (1, 1, 2), (2, 1, 2), (3, 1, 2), (4, 1, 2), (5, 1, 2), (6, 1, 2), (7, 1, 2),
            (8, 1, 2), (9, 1, 2), (10, 1, 2), (11, 1, 2), (12, 1, 2), (13, 1, 2), (14, 1, 2),
            (1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (5, 1, 1), (6, 1, 1), (7, 1, 1),
            (8, 1, 1), (9, 1, 1), (10, 1, 1), (11, 1, 1), (12, 1, 1), (13, 1, 1), (14, 1, 1),
            (1, 4, 2), (2, 4, 2), (2, 2, 2), (3, 2, 2), (4, 2, 2), (5, 2, 2), (6, 2, 2)),
        Rows::Strided(..) | Rows::Table(..) | Rows::Taps { .. } => {
            run_shape!((isa, args, count, shape), F32, true:
                (1, 1, 2), (2, 1, 2), (3, 1, 2), (4, 1, 2), (5, 1, 2), (6, 1, 2), (7, 1, 2), (8, 1, 2),
                (1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (5, 1, 1), (6, 1, 1), (7, 1, 1), (8, 1, 1),
                (1, 4, 2), (2, 4, 2), (2, 2, 2), (3, 2, 2), (4, 2, 2), (5, 2, 2), (6, 2, 2))
        }
    }
}

/// [`run`] for elements that are narrower than f32.
///
/// # Safety
/// As for [`run`].
unsafe fn run_narrow<E: Element>(isa: Isa, rows: usize, count: usize, panels: usize, args: &Args) {
    let shape = (rows, panels, PANEL_VECTORS);
    run_shape!((isa, args, count, shape), E, true:
        (1, 1, 2), (2, 1, 2), (3, 1, 2), (4, 1, 2), (5, 1, 2), (6, 1, 2), (7, 1, 2), (8, 1, 2),
        (1, 4, 2), (2, 4, 2), (2, 2, 2), (3, 2, 2), (4, 2, 2), (5, 2, 2), (6, 2, 2));
}

/// Tiles of `MR` rows by `NP` panels, one below the other; only the first `NV` vectors of each panel are computed.
struct Tile<'a, const MR: usize, const NP: usize, const NV: usize, const IN_PLACE: bool, E> {
    args: &'a Args,
    count: usize,
    element: PhantomData<E>,
}

impl<'a, const MR: usize, const NP: usize, const NV: usize, const IN_PLACE: bool, E: Element>
    Tile<'a, MR, NP, NV, IN_PLACE, E>
{
    /// # Safety
    /// The promise of [`Args`] holds for `count * MR` rows and `NP` panels, no column is past the `NV`th vector of
    /// the last panel, the elements of B are of type `E`, and `IN_PLACE` says whether the rows of A are in place.
    #[inline(always)]
    unsafe fn new(args: &'a Args, count: usize) -> Self {
        Self { args, count, element: PhantomData }
    }
}

impl<const MR: usize, const NP: usize, const NV: usize, const IN_PLACE: bool, E: Element> Op
    for Tile<'_, MR, NP, NV, IN_PLACE, E>
{
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut args = self.args.clone();
        let steps = args.k * args.a.tap_count();
        for _ in 0..self.count {
            // SAFETY: as `new` requires.
            unsafe {
                // `const` conditions: shapes that an instruction set never uses are not compiled for it.
                if const { MR > S::MAX_ROWS } {
                    unreachable!("no tile of this instruction set is so tall");
                } else if const { S::IS_ARRAY } {
                    array_tile::<S, MR, NP, IN_PLACE, E>(s, &args);
                } else {
                    vector_tile::<S, MR, NP, NV, IN_PLACE, E>(s, &args);
                }
            }
            args.a.advance(MR);
            args.c = args.c.wrapping_add(MR * args.c_step);
            args.ahead.start = args.ahead.start.wrapping_add(steps * PREFETCHED_PER_STEP).min(args.ahead.end);
        }
    }
}

/// Unrolls a body over the indices below a constant: arrays indexed by constants stay in registers, which a loop does
/// not guarantee.
macro_rules! repeat {
    ($count:expr, [$($number:literal)*], $i:ident => $body:block) => {{
        $(
            if const { $number < $count } {
                let $i = $number;
                $body
            }
        )*
    }};
}

pub(crate) use repeat;

/// Unrolls a body over the rows, panels and vectors of a tile.
macro_rules! each_vector {
    ($mr:ident, $np:ident, $nv:ident, |$i:ident, $p:ident, $v:ident| $body:block) => {
        repeat!($mr, [0 1 2 3 4 5 6 7 8 9 10 11 12 13], $i => {
            repeat!($np, [0 1 2 3], $p => {
                repeat!($nv, [0 1], $v => $body);
            });
        })
    };
}

/// # Safety
/// As [`Tile::new`].
#[inline(always)]
unsafe fn vector_tile<
    S: Simd,
    const MR: usize,
    const NP: usize,
    const NV: usize,
    const IN_PLACE: bool,
    E: Element,
>(
    s: S,
    args: &Args,
) {
    let panel = PANEL_VECTORS * S::LANES;
    let is_full = args.n == NP * NV * S::LANES;
    // The number of columns of C at or past the first lane of a vector.
    let left = |p: usize, v: usize| args.n.saturating_sub(p * panel + v * S::LANES);
    let c = |i: usize, p: usize, v: usize| args.c.wrapping_add(i * args.c_step + p * panel + v * S::LANES);

    let mut acc = [[[s.splat(0.0); NV]; NP]; MR];

    let mut b: *const E::Stored = args.b.cast();
    let mut scales = [[s.splat(1.0); NV]; NP];
    if const { E::SCALED } {
        repeat!(NP, [0 1 2 3], p => {
            repeat!(NV, [0 1], v => {
                // SAFETY: there is a scale for each column of the panels.
                scales[p][v] = unsafe { s.load(args.scales.wrapping_add(p * panel + v * S::LANES)) };
            });
        });
    }
    let (mut ahead, ahead_step) = match args.ahead.is_empty() {
        true => (args.b, 0),
        false => (args.ahead.start, PREFETCHED_PER_STEP),
    };
    for tap in 0..args.a.tap_count() {
        let mut rows = [std::ptr::null::<f32>(); MR];
        match args.a {
            Rows::Strided(a, step) => {
                repeat!(MR, [0 1 2 3 4 5 6 7 8 9 10 11 12 13], i => {
                    rows[i] = a.wrapping_add(i * step);
                });
            }
            // SAFETY: there are MR pointers for each tap.
            Rows::Table(table, _) => unsafe {
                repeat!(MR, [0 1 2 3 4 5 6 7 8 9 10 11 12 13], i => {
                    rows[i] = *table.add(tap * MR + i);
                });
            },
            // SAFETY: there is an offset for each tap.
            Rows::Taps { first, step, offsets, .. } => unsafe {
                let first = first.wrapping_add(*offsets.add(tap));
                repeat!(MR, [0 1 2 3 4 5 6 7 8 9 10 11 12 13], i => {
                    rows[i] = first.wrapping_add(i * step);
                });
            },
            Rows::Packed(a, _) => rows[0] = a,
        }
        let mut a = rows[0];
        // Loads the row of B at `$at`.
        macro_rules! row_of_b {
            ($at:expr) => {{
                let (at, mut row) = ($at, [[s.splat(0.0); NV]; NP]);
                repeat!(NP, [0 1 2 3], p => {
                    repeat!(NV, [0 1], v => {
                        // SAFETY: B has k rows of NP panels.
                        row[p][v] = unsafe { E::load(s, at.wrapping_add(p * args.b_panel + v * S::LANES)) };
                        if const { E::SCALED } {
                            row[p][v] = s.mul(row[p][v], scales[p][v]);
                        }
                    });
                });
                row
            }};
        }
        // Adds the products of a row of B with row `$i` of A, of which `$product` adds one to a sum.
        macro_rules! add_row {
            ($bv:ident, $i:ident, |$b:ident, $sum:ident| $product:expr) => {
                repeat!(NP, [0 1 2 3], p => {
                    repeat!(NV, [0 1], v => {
                        let ($b, $sum) = ($bv[p][v], acc[$i][p][v]);
                        acc[$i][p][v] = $product;
                    });
                })
            };
        }
        // Multiplies the next `$n` columns of A by as many rows of B, which are `$step` elements apart.
        macro_rules! columns {
            ($n:literal: $($lane:literal)*, $step:expr) => {{
                let mut some = [s.splat(0.0); MR];
                repeat!(MR, [0 1 2 3 4 5 6 7], i => {
                    // SAFETY: A has MR rows of k columns.
                    some[i] = unsafe { s.load_first(rows[i], $n) };
                });
                $(
                    let bv = row_of_b!(b.wrapping_add($lane * $step));
                    repeat!(MR, [0 1 2 3 4 5 6 7], i => {
                        add_row!(bv, i, |b, sum| s.mul_add_lane::<$lane>(some[i], b, sum));
                    });
                )*
            }};
        }
        // The same, and goes on to the columns after them.
        macro_rules! next_columns {
            ($n:literal: $($lane:literal)*, $step:expr) => {{
                columns!($n: $($lane)*, $step);
                repeat!(MR, [0 1 2 3 4 5 6 7], i => { rows[i] = rows[i].wrapping_add($n); });
                b = b.wrapping_add($n * $step);
            }};
        }
        if const { S::BY_LANE && IN_PLACE } {
            // Rows of a packed panel are at constant offsets.
            if args.b_step == panel {
                for _ in 0..args.k / 4 {
                    next_columns!(4: 0 1 2 3, panel);
                }
            } else {
                for _ in 0..args.k / 4 {
                    next_columns!(4: 0 1 2 3, args.b_step);
                }
            }
            if args.k & 2 != 0 {
                next_columns!(2: 0 1, args.b_step);
            }
            if args.k & 1 != 0 {
                columns!(1: 0, args.b_step);
                b = b.wrapping_add(args.b_step);
            }
            continue;
        }
        if const { S::BY_LANE } {
            // Multiplies a column of A, in vectors of four rows, by a row of B.
            macro_rules! rows {
                ($fours:ident, $bv:ident: $($i:literal)*) => {$(
                    if const { $i < MR } {
                        let i = $i;
                        add_row!($bv, i, |b, sum| s.mul_add_lane::<{ $i % 4 }>($fours[$i / 4], b, sum));
                    }
                )*};
            }
            // The same for the column and the row that are `$next` after the next; rows of B are `$step` elements apart.
            macro_rules! column {
                ($next:literal, $step:expr) => {{
                    let bv = row_of_b!(b.wrapping_add($next * $step));
                    let mut fours = [s.splat(0.0); 4];
                    repeat!(MR.div_ceil(4), [0 1 2 3], q => {
                        let at = a.wrapping_add($next * MR + 4 * q);
                        // SAFETY: A has MR elements for each column.
                        fours[q] = unsafe { s.load_first(at, MR - 4 * q) };
                    });
                    rows!(fours, bv: 0 1 2 3 4 5 6 7 8 9 10 11 12 13);
                }};
            }
            if args.b_step == panel {
                for _ in 0..args.k / 2 {
                    column!(0, panel);
                    column!(1, panel);
                    (a, b) = (a.wrapping_add(2 * MR), b.wrapping_add(2 * panel));
                }
                if args.k & 1 != 0 {
                    column!(0, panel);
                    b = b.wrapping_add(panel);
                }
            } else {
                for _ in 0..args.k {
                    column!(0, args.b_step);
                    (a, b) = (a.wrapping_add(MR), b.wrapping_add(args.b_step));
                }
            }
            continue;
        }
        for k in 0..args.k {
            let bv = row_of_b!(b);
            repeat!(MR, [0 1 2 3 4 5 6 7 8 9 10 11 12 13], i => {
                // SAFETY: A has MR rows of k columns.
                let x = s.splat(unsafe { if IN_PLACE { *rows[i].add(k) } else { *a.add(i) } });
                add_row!(bv, i, |b, sum| s.mul_add(x, b, sum));
            });
            b = b.wrapping_add(args.b_step);
            s.prefetch(ahead.cast());
            ahead = ahead.wrapping_add(ahead_step);
            if !IN_PLACE {
                a = a.wrapping_add(MR);
            }
        }
    }

    // Added last: adding products one by one to a large sum would lose precision.
    if args.accumulate {
        each_vector!(MR, NP, NV, |i, p, v| {
            // SAFETY: C has MR rows of n columns; `left` of them are read.
            acc[i][p][v] = s.add(unsafe { s.load_first(c(i, p, v), left(p, v)) }, acc[i][p][v]);
        });
    }
    if let Some(f) = args.register_epilogue() {
        if !f.col_bias.is_null() {
            repeat!(NP, [0 1 2 3], p => {
                repeat!(NV, [0 1], v => {
                    let at = f.col_bias.wrapping_add(p * panel + v * S::LANES);
                    // SAFETY: there is a bias for each column of C.
                    let bias = unsafe { s.load_first(at, left(p, v)) };
                    repeat!(MR, [0 1 2 3 4 5 6 7 8 9 10 11 12 13], i => {
                        acc[i][p][v] = s.add(acc[i][p][v], bias);
                    });
                });
            });
        }
        if let Some((low, high)) = f.bounds {
            let (low, high) = (s.splat(low), s.splat(high));
            each_vector!(MR, NP, NV, |i, p, v| {
                acc[i][p][v] = s.clamp(acc[i][p][v], low, high);
            });
        }
    }
    each_vector!(MR, NP, NV, |i, p, v| {
        // SAFETY: C has MR rows of n columns; `left` of them are written.
        unsafe {
            if is_full {
                s.store(c(i, p, v), acc[i][p][v]);
            } else {
                s.store_first(c(i, p, v), left(p, v), acc[i][p][v]);
            }
        }
    });
}

/// The epilogue applied to a tile that has been stored.
struct StoredFinish<'a> {
    rows: usize,
    args: &'a Args,
    finish: Finish,
}

impl<'a> StoredFinish<'a> {
    /// # Safety
    /// The promise of [`Args`] holds for `rows` rows, and `finish` is their epilogue.
    #[inline(always)]
    unsafe fn new(rows: usize, args: &'a Args, finish: Finish) -> Self {
        Self { rows, args, finish }
    }
}

impl Op for StoredFinish<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let StoredFinish { rows, args, finish: f } = self;
        let (alpha, beta) = (s.splat(f.alpha), s.splat(f.beta));
        let bounds = f.bounds.map(|(low, high)| (s.splat(low), s.splat(high)));
        for i in 0..rows {
            // SAFETY: there is a bias for each row of C.
            let row_bias = s.splat(if f.row_bias.is_null() { 0.0 } else { unsafe { *f.row_bias.add(i) } });
            for j in (0..args.n).step_by(S::LANES) {
                let (c, left) = (args.c.wrapping_add(i * args.c_step + j), args.n - j);
                // SAFETY: C and the residual have `rows` rows of n columns, and there is a bias for each
                // column; `left` of them are read and written.
                unsafe {
                    let mut x = s.mul_add(alpha, s.load_first(c, left), row_bias);
                    if !f.col_bias.is_null() {
                        x = s.add(x, s.load_first(f.col_bias.add(j), left));
                    }
                    if !f.residual.is_null() {
                        let at = f.residual.wrapping_add(i * f.residual_step + j);
                        x = s.mul_add(beta, s.load_first(at, left), x);
                    }
                    if let Some((low, high)) = bounds {
                        x = s.clamp(x, low, high);
                    }
                    s.store_first(c, left, x);
                }
            }
        }
    }
}
