//! Tiles for AArch64 without dot products: up to 2 rows by a panel. Products are widened to 16 bits and added up in 32
//! bits, each sum in two parts.

use super::super::gemm::tile::repeat;
use super::super::isa::Feature;
use super::arm::{self, COLUMNS, VECTORS, load_four};
use super::columns::QUAD;
use super::pack::PANEL;
use super::tile::{Args, Microkernel};
use std::arch::aarch64::*;

/// The number of rows of the largest tile.
const ROWS: usize = 2;

pub(super) struct Neon;

impl Microkernel for Neon {
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
    fn reads_in_place(&self) -> bool {
        true
    }
    unsafe fn run(&self, _: usize, args: &mut Args<'_>) {
        // SAFETY: as the caller promises.
        unsafe {
            match args.without_least {
                true => arm::run_tiles!(args, ROWS, pairs: 1),
                false => arm::run_tiles!(args, ROWS, single: 1),
            }
        }
    }
}

/// Tiles of weights of which none is -128: two products of 8-bit values then fit 16 bits together.
///
/// # Safety
/// As [`tile`].
#[inline(never)]
unsafe fn pairs<const MR: usize, const FOUR: bool>(args: &mut Args<'_>, row: usize) {
    // SAFETY: as the caller promises.
    unsafe { tile::<MR, FOUR, true>(args, row) }
}

/// Tiles of any weights.
///
/// # Safety
/// As [`tile`].
#[inline(never)]
unsafe fn single<const MR: usize, const FOUR: bool>(args: &mut Args<'_>, row: usize) {
    // SAFETY: as the caller promises.
    unsafe { tile::<MR, FOUR, false>(args, row) }
}

/// The sums of `MR` rows from row `row` on, of one panel.
///
/// # Safety
/// [`Args`] were checked and have these rows.
#[inline(always)]
unsafe fn tile<const MR: usize, const FOUR: bool, const PAIRS: bool>(args: &mut Args<'_>, row: usize) {
    // SAFETY: every machine has NEON; as the caller promises, A has `MR` rows of `k` values a segment, rounded up to a
    // block of B, and B has as many blocks.
    unsafe {
        for group in 0..args.groups {
            let mut b = arm::group_of_panel(args, group, FOUR);
            let mut sums = [[[vdupq_n_s32(0); 2]; VECTORS]; MR];
            // Multiplies the four rows of B in `$b` by the four values of each row of A in `$a`.
            macro_rules! multiply {
                ($v:ident, $b:expr, $a:expr) => {{
                    let (b, a) = ($b, $a);
                    repeat!(MR, [0 1], i => {
                        let low = vmull_s8(vget_low_s8(b), vget_low_s8(a[i]));
                        sums[i][$v][0] = vpadalq_s16(sums[i][$v][0], low);
                        sums[i][$v][1] = vpadalq_s16(sums[i][$v][1], vmull_high_s8(b, a[i]));
                    });
                }};
            }
            macro_rules! fours {
                ($from:expr) => {{
                    let mut a = [vdupq_n_s8(0); MR];
                    repeat!(MR, [0 1], i => {
                        a[i] = load_four($from.wrapping_add(i * args.a_step));
                    });
                    a
                }};
            }
            // Multiplies eight rows of B by those of the rows of A in `$a` and `$next`.
            macro_rules! eight {
                ($a:expr, $next:expr) => {{
                    let (a, next) = ($a, $next);
                    repeat!(VECTORS, [0 1 2 3], v => {
                        let at = b.wrapping_add(v * COLUMNS * QUAD);
                        if FOUR {
                            multiply!(v, arm::low_halves(vld1q_s8(at)), a);
                            multiply!(v, arm::high_halves(vld1q_s8(at)), next);
                        } else if PAIRS {
                            let (x, y) = (vld1q_s8(at), vld1q_s8(at.wrapping_add(PANEL * QUAD)));
                            repeat!(MR, [0 1], i => {
                                let low = vmull_s8(vget_low_s8(x), vget_low_s8(a[i]));
                                let low = vmlal_s8(low, vget_low_s8(y), vget_low_s8(next[i]));
                                let high = vmlal_high_s8(vmull_high_s8(x, a[i]), y, next[i]);
                                sums[i][v][0] = vpadalq_s16(sums[i][v][0], low);
                                sums[i][v][1] = vpadalq_s16(sums[i][v][1], high);
                            });
                        } else {
                            multiply!(v, vld1q_s8(at), a);
                            multiply!(v, vld1q_s8(at.wrapping_add(PANEL * QUAD)), next);
                        }
                    });
                    b = b.wrapping_add(if FOUR { PANEL * QUAD } else { 2 * PANEL * QUAD });
                }};
            }
            for &segment in args.segments {
                let mut from = arm::row(args, row, segment + group * args.k);
                let mut left = args.k;
                while left > 12 {
                    let mut a = [[vdupq_n_s8(0); MR]; 4];
                    repeat!(MR, [0 1], i => {
                        let x = vreinterpretq_s32_s8(vld1q_s8(from.wrapping_add(i * args.a_step)));
                        a[0][i] = vreinterpretq_s8_s32(vdupq_laneq_s32::<0>(x));
                        a[1][i] = vreinterpretq_s8_s32(vdupq_laneq_s32::<1>(x));
                        a[2][i] = vreinterpretq_s8_s32(vdupq_laneq_s32::<2>(x));
                        a[3][i] = vreinterpretq_s8_s32(vdupq_laneq_s32::<3>(x));
                    });
                    eight!(a[0], a[1]);
                    eight!(a[2], a[3]);
                    (from, left) = (from.wrapping_add(16), left.saturating_sub(16));
                }
                while left > 4 || FOUR && left > 0 {
                    eight!(fours!(from), fours!(from.wrapping_add(4)));
                    (from, left) = (from.wrapping_add(8), left.saturating_sub(8));
                }
                if left > 0 {
                    let a = fours!(from);
                    repeat!(VECTORS, [0 1 2 3], v => {
                        multiply!(v, vld1q_s8(b.wrapping_add(v * COLUMNS * QUAD)), a);
                    });
                    b = b.wrapping_add(PANEL * QUAD);
                }
            }
            let mut whole = [[vdupq_n_s32(0); VECTORS]; MR];
            repeat!(MR, [0 1], i => {
                repeat!(VECTORS, [0 1 2 3], v => {
                    whole[i][v] = vpaddq_s32(sums[i][v][0], sums[i][v][1]);
                });
            });
            arm::store_sums::<MR>(args, group, row, &whole);
        }
    }
}
