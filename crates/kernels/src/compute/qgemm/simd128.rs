//! Tiles for WebAssembly with 128-bit vectors: up to 2 rows by half a panel. Values are widened to 16 bits, whose products
//! an instruction adds up in pairs: nothing saturates.

use super::super::gemm::tile::repeat;
use super::super::isa::Feature;
use super::columns::{Columns, QUAD};
use super::pack::PANEL;
use super::tile::{Args, Microkernel};
use std::arch::wasm32::*;

/// The number of rows of the largest tile.
const ROWS: usize = 2;
/// The number of columns of a tile.
const COLUMNS: usize = PANEL / 2;
/// The number of columns of a vector of sums, each of which is in two parts.
const OF_VECTOR: usize = 2;
/// The number of vectors of sums in a row of a tile.
const VECTORS: usize = COLUMNS / OF_VECTOR;

pub(super) struct Simd128;

impl Microkernel for Simd128 {
    fn feature(&self) -> Option<Feature> {
        None
    }
    fn relative_time(&self) -> usize {
        16
    }
    fn panels(&self) -> [usize; 2] {
        [1, 1]
    }
    fn rows_written(&self, rows: usize) -> usize {
        rows
    }
    fn column_function(&self) -> Option<unsafe fn(&mut Columns<'_>)> {
        Some(columns)
    }
    unsafe fn run(&self, _: usize, args: &mut Args<'_>) {
        let mut row = 0;
        while row < args.rows {
            let rows = (args.rows - row).min(ROWS);
            for column in [0, COLUMNS] {
                // SAFETY: as the caller promises; these rows and columns are those of a panel.
                unsafe {
                    match (rows, args.four) {
                        (1, false) => tile::<1, false>(args, row, column),
                        (1, true) => tile::<1, true>(args, row, column),
                        (_, false) => tile::<2, false>(args, row, column),
                        (_, true) => tile::<2, true>(args, row, column),
                    }
                }
            }
            row += rows;
        }
    }
}

/// Four unsigned bytes twice, widened to 16 bits.
///
/// # Safety
/// Four bytes can be read.
#[inline(always)]
unsafe fn load_row(p: *const u8) -> v128 {
    // SAFETY: as the caller promises.
    i16x8_extend_low_u8x16(unsafe { v128_load32_splat(p.cast()) })
}

/// Sums of four columns of which each is in two parts, in two vectors.
#[inline(always)]
fn join(first: v128, second: v128) -> v128 {
    i32x4_add(i32x4_shuffle::<0, 2, 4, 6>(first, second), i32x4_shuffle::<1, 3, 5, 7>(first, second))
}

/// The sums of `MR` rows from row `row` on, of half a panel from its column `column` on.
///
/// # Safety
/// [`Args`] were checked and have these rows and columns.
#[inline(always)]
unsafe fn tile<const MR: usize, const FOUR: bool>(args: &mut Args<'_>, row: usize, column: usize) {
    for group in 0..args.groups {
        let block = group * args.k * PANEL / if FOUR { 2 } else { 1 };
        let mut b = args.b.as_ptr().wrapping_add(block + column * QUAD);
        let mut sums = [[i32x4_splat(0); VECTORS]; MR];
        for &segment in args.segments {
            let a = args.a.as_ptr().wrapping_add(row * args.a_step + segment + group * args.k);
            let mut k = 0;
            while k < args.k {
                let mut rows = [[i32x4_splat(0); 2]; MR];
                repeat!(MR, [0 1], i => {
                    let a = a.wrapping_add(i * args.a_step + k);
                    // SAFETY: as the caller promises: A has as many rows of `k` values, rounded up to a block of B.
                    unsafe {
                        rows[i][0] = load_row(a);
                        if FOUR {
                            rows[i][1] = load_row(a.wrapping_add(4));
                        }
                    }
                });
                repeat!(VECTORS, [0 1 2 3], v => {
                    let at = b.wrapping_add(v * OF_VECTOR * QUAD);
                    // SAFETY: as the caller promises: B has `k` rows of a panel, rounded up to a block.
                    let columns = unsafe {
                        if FOUR {
                            let both = v128_load64_zero(at.cast());
                            let high = v128_and(both, i8x16_splat(-16));
                            [i16x8_extend_low_i8x16(i8x16_shl(both, 4)), i16x8_extend_low_i8x16(high)]
                        } else {
                            [i16x8_load_extend_i8x8(at.cast()), i32x4_splat(0)]
                        }
                    };
                    repeat!(MR, [0 1], i => {
                        sums[i][v] = i32x4_add(sums[i][v], i32x4_dot_i16x8(rows[i][0], columns[0]));
                        if FOUR {
                            sums[i][v] = i32x4_add(sums[i][v], i32x4_dot_i16x8(rows[i][1], columns[1]));
                        }
                    });
                });
                b = b.wrapping_add(PANEL * QUAD);
                k += if FOUR { 2 * QUAD } else { QUAD };
            }
        }
        let to = args.sums.as_mut_ptr().wrapping_add(group * args.group_step + row * PANEL + column);
        repeat!(MR, [0 1], i => {
            repeat!(VECTORS / 2, [0 1], v => {
                let four = join(sums[i][2 * v], sums[i][2 * v + 1]);
                // SAFETY: there is room for the sums of every row.
                unsafe { v128_store(to.wrapping_add(i * PANEL + v * 2 * OF_VECTOR).cast(), four) };
            });
        });
    }
}

/// # Safety
/// [`Columns`] were checked.
unsafe fn columns(args: &mut Columns<'_>) {
    let mut row = 0;
    // SAFETY: as the caller promises; at least as many rows are left as are computed.
    unsafe {
        while row + 2 <= args.rows() {
            column_rows::<2>(args, row);
            row += 2;
        }
        while row < args.rows() {
            column_rows::<1>(args, row);
            row += 1;
        }
    }
}

/// `M` rows of sums.
///
/// # Safety
/// [`Columns`] were checked, and there are `M` rows from `row` on.
#[inline(always)]
unsafe fn column_rows<const M: usize>(args: &mut Columns<'_>, row: usize) {
    let a = args.a.as_ptr().wrapping_add(row * args.a_step);
    let out = args.sums.as_mut_ptr().wrapping_add(row * args.step);
    for column in (0..args.columns).step_by(2 * OF_VECTOR) {
        let mut sums = [[i32x4_splat(0); 2]; M];
        let mut b = args.b.as_ptr().wrapping_add(column * QUAD);
        for &tap in args.taps {
            let at = a.wrapping_add(tap + column * QUAD);
            // SAFETY: in each row and at each tap, operands have columns up to a multiple of a panel.
            unsafe {
                // Loads that widen are faster than a load and two extensions.
                let [low, high] = [0, 8].map(|at| i16x8_load_extend_i8x8(b.wrapping_add(at)));
                repeat!(M, [0 1], i => {
                    let at = at.wrapping_add(i * args.a_step);
                    sums[i][0] = i32x4_add(sums[i][0], i32x4_dot_i16x8(i16x8_load_extend_u8x8(at), low));
                    let second = i16x8_load_extend_u8x8(at.wrapping_add(8));
                    sums[i][1] = i32x4_add(sums[i][1], i32x4_dot_i16x8(second, high));
                });
            }
            b = b.wrapping_add(args.b_step);
        }
        repeat!(M, [0 1], i => {
            let to = out.wrapping_add(i * args.step + column);
            // SAFETY: rows of sums have as many columns.
            unsafe { v128_store(to.cast(), join(sums[i][0], sums[i][1])) };
        });
    }
}
