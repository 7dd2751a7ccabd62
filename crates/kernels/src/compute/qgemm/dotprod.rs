//! Tiles with the dot products of AArch64: up to 6 rows by a panel. Four rows of B multiply a lane of each row of A.

use super::super::gemm::tile::repeat;
use super::super::isa::Feature;
use super::arm::{self, COLUMNS, VECTORS, load_eight, load_four};
use super::columns::{Columns, QUAD};
use super::pack::PANEL;
use super::tile::{Args, Microkernel};
use std::arch::aarch64::*;
use std::arch::asm;

/// The number of rows of the largest tile.
const ROWS: usize = 6;

pub(super) struct DotProd;

impl Microkernel for DotProd {
    fn feature(&self) -> Option<Feature> {
        Some(Feature::DotProd)
    }
    fn relative_time(&self) -> usize {
        4
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
    fn reads_in_place(&self) -> bool {
        true
    }
    unsafe fn run(&self, _: usize, args: &mut Args<'_>) {
        // SAFETY: as the caller promises.
        unsafe { tiles(args) }
    }
}

/// # Safety
/// The machine has the feature; [`Args`] were checked.
#[target_feature(enable = "neon,dotprod")]
unsafe fn tiles(args: &mut Args<'_>) {
    // SAFETY: as the caller promises.
    unsafe { arm::run_tiles!(args, ROWS, tile: 1, 2, 3, 4, 5) }
}

/// Adds to each sum the dot product of the four values of a column and the four of lane `LANE` of `a`.
///
/// # Safety
/// The machine has dot products.
#[inline(always)]
unsafe fn dot_lane<const LANE: u8>(mut sums: int32x4_t, b: int8x16_t, a: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction only reads and writes its operands; as the caller promises, the machine has it.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.4b[{3}]", inout(vreg) sums, in(vreg) b, in(vreg) a, const LANE,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Adds to each sum the dot product of four values of `a` and as many of `b`.
///
/// # Safety
/// The machine has dot products.
#[inline(always)]
unsafe fn dot(mut sums: int32x4_t, b: int8x16_t, a: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction only reads and writes its operands; as the caller promises, the machine has it.
    unsafe {
        asm!("sdot {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sums, in(vreg) b, in(vreg) a,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// The sums of `MR` rows from row `row` on, of one panel.
///
/// # Safety
/// [`Args`] were checked and have these rows, and the machine has dot products.
#[inline(always)]
pub(super) unsafe fn tile<const MR: usize, const FOUR: bool>(args: &mut Args<'_>, row: usize) {
    // SAFETY: as the caller promises: A has `MR` rows of `k` values a segment, rounded up to a block of B, and B has
    // as many blocks.
    unsafe {
        for group in 0..args.groups {
            let mut b = arm::group_of_panel(args, group, FOUR);
            let mut sums = [[vdupq_n_s32(0); VECTORS]; MR];
            // Multiplies four rows of B, from which `$load` makes a vector, by lane `$lane` of the rows of A.
            macro_rules! quad {
                ($a:ident, $lane:literal, |$at:ident| $load:expr) => {
                    repeat!(VECTORS, [0 1 2 3], v => {
                        let $at = b.wrapping_add(v * COLUMNS * QUAD);
                        let column = $load;
                        repeat!(MR, [0 1 2 3 4 5], i => {
                            sums[i][v] = dot_lane::<$lane>(sums[i][v], column, $a[i]);
                        });
                    })
                };
            }
            // Multiplies a block of B by the lanes of the rows of A: one lane, or with 4-bit values two.
            macro_rules! block {
                ($a:ident, $low:literal, $high:literal) => {
                    if FOUR {
                        quad!($a, $low, |at| arm::low_halves(vld1q_s8(at)));
                        quad!($a, $high, |at| arm::high_halves(vld1q_s8(at)));
                    } else {
                        quad!($a, $low, |at| vld1q_s8(at));
                    }
                    b = b.wrapping_add(PANEL * QUAD);
                };
            }
            macro_rules! rows {
                ($from:ident, $bytes:literal, $load:path) => {{
                    let mut a = [vdupq_n_s8(0); MR];
                    repeat!(MR, [0 1 2 3 4 5], i => {
                        a[i] = $load($from[i]);
                        $from[i] = $from[i].wrapping_add($bytes);
                    });
                    a
                }};
            }
            for &segment in args.segments {
                let mut from = [std::ptr::null(); MR];
                let mut next = arm::row(args, row, segment + group * args.k);
                repeat!(MR, [0 1 2 3 4 5], i => {
                    from[i] = arm::in_register(next);
                    next = from[i].wrapping_add(args.a_step);
                });
                for _ in 0..args.k / 16 {
                    let a = rows!(from, 16, vld1q_s8);
                    block!(a, 0, 1);
                    if FOUR {
                        block!(a, 2, 3);
                    } else {
                        block!(a, 1, 1);
                        block!(a, 2, 2);
                        block!(a, 3, 3);
                    }
                }
                let left = args.k % 16;
                if FOUR {
                    for _ in 0..left.div_ceil(8) {
                        let a = rows!(from, 8, load_eight);
                        block!(a, 0, 1);
                    }
                } else {
                    if left >= 8 {
                        let a = rows!(from, 8, load_eight);
                        block!(a, 0, 0);
                        block!(a, 1, 1);
                    }
                    for _ in 0..(left % 8).div_ceil(4) {
                        let a = rows!(from, 4, load_four);
                        block!(a, 0, 0);
                    }
                }
            }
            arm::store_sums::<MR>(args, group, row, &sums);
        }
    }
}

/// # Safety
/// The machine has the feature; [`Columns`] were checked.
#[target_feature(enable = "neon,dotprod")]
unsafe fn columns(args: &mut Columns<'_>) {
    let rows = args.rows();
    let mut row = 0;
    // SAFETY: as the caller promises; at least as many rows are left as are computed.
    unsafe {
        if let &[a, b, c] = args.taps {
            let taps = [a, b, c];
            // Taps that are a row apart share what they read with the taps of the next row.
            if a.wrapping_add(args.a_step) == b && b.wrapping_add(args.a_step) == c {
                while row + 4 <= rows {
                    three_taps::<4, 6>(args, taps, row, |i, t| i + t);
                    row += 4;
                }
                match rows - row {
                    3 => three_taps::<3, 5>(args, taps, row, |i, t| i + t),
                    2 => three_taps::<2, 4>(args, taps, row, |i, t| i + t),
                    1 => three_taps::<1, 3>(args, taps, row, |i, t| i + t),
                    _ => {}
                }
                return;
            }
            while row + 4 <= rows {
                three_taps::<4, 12>(args, taps, row, |i, t| 3 * i + t);
                row += 4;
            }
        }
        while row + 4 <= rows {
            any_taps::<4>(args, row);
            row += 4;
        }
        while row < rows {
            any_taps::<1>(args, row);
            row += 1;
        }
    }
}

/// `M` rows of sums of three taps. `N` vectors are read for each vector of columns: `place` is the number of that which
/// a row reads for a tap.
///
/// # Safety
/// The machine has the feature, [`Columns`] were checked and have these taps, and there are `M` rows from `row` on.
#[inline(always)]
unsafe fn three_taps<const M: usize, const N: usize>(
    args: &mut Columns<'_>,
    taps: [usize; 3],
    row: usize,
    place: impl Fn(usize, usize) -> usize,
) {
    let a = args.a.as_ptr().wrapping_add(row * args.a_step).cast::<i8>();
    let out = args.sums.as_mut_ptr().wrapping_add(row * args.step);
    // Addresses of the first columns.
    let mut places = [a; N];
    for i in 0..M {
        for t in 0..3 {
            places[place(i, t)] = a.wrapping_add(i * args.a_step + taps[t]);
        }
    }
    let b: [*const i8; 3] = std::array::from_fn(|t| args.b.as_ptr().wrapping_add(t * args.b_step));
    let out: [*mut i32; M] = std::array::from_fn(|i| out.wrapping_add(i * args.step));
    for column in (0..args.columns).step_by(COLUMNS) {
        // SAFETY: in each row and at each tap, operands have columns up to a multiple of a panel; so have rows of sums.
        unsafe {
            let mut read = [vdupq_n_s8(0); N];
            repeat!(N, [0 1 2 3 4 5 6 7 8 9 10 11], i => {
                read[i] = vld1q_s8(places[i].wrapping_add(column * QUAD));
            });
            let mut weights = [vdupq_n_s8(0); 3];
            repeat!(3, [0 1 2], t => {
                weights[t] = vld1q_s8(b[t].wrapping_add(column * QUAD));
            });
            repeat!(M, [0 1 2 3], i => {
                let mut sums = vdupq_n_s32(0);
                repeat!(3, [0 1 2], t => {
                    sums = dot(sums, weights[t], read[place(i, t)]);
                });
                vst1q_s32(out[i].wrapping_add(column), sums);
            });
        }
    }
}

/// `M` rows of sums.
///
/// # Safety
/// As [`three_taps`].
#[inline(always)]
unsafe fn any_taps<const M: usize>(args: &mut Columns<'_>, row: usize) {
    let a = args.a.as_ptr().wrapping_add(row * args.a_step).cast::<i8>();
    let out = args.sums.as_mut_ptr().wrapping_add(row * args.step);
    for column in (0..args.columns).step_by(COLUMNS) {
        let mut b = args.b.as_ptr().wrapping_add(column * QUAD);
        // SAFETY: in each row and at each tap, operands have columns up to a multiple of a panel; so have rows of sums.
        unsafe {
            let mut sums = [vdupq_n_s32(0); M];
            for &tap in args.taps {
                let at = a.wrapping_add(tap + column * QUAD);
                let weights = vld1q_s8(b);
                repeat!(M, [0 1 2 3], i => {
                    sums[i] = dot(sums[i], weights, vld1q_s8(at.wrapping_add(i * args.a_step)));
                });
                b = b.wrapping_add(args.b_step);
            }
            repeat!(M, [0 1 2 3], i => {
                vst1q_s32(out.wrapping_add(i * args.step + column), sums[i]);
            });
        }
    }
}
