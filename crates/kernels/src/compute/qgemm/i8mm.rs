//! Tiles with the matrix products of AArch64: pairs of rows, up to three, by a panel. An instruction multiplies two rows
//! by two columns of eight values each, which are adjacent in panels of 8-bit values.

use super::super::gemm::tile::repeat;
use super::super::isa::Feature;
use super::arm::{self, COLUMNS, VECTORS, load_eight};
use super::columns::{Columns, QUAD};
use super::dotprod;
use super::pack::PANEL;
use super::tile::{Args, Microkernel};
use std::arch::aarch64::*;
use std::arch::asm;

/// The number of pairs of rows of the largest tile.
const PAIRS: usize = 3;

pub(super) struct I8mm;

impl Microkernel for I8mm {
    fn feature(&self) -> Option<Feature> {
        Some(Feature::I8mm)
    }
    fn relative_time(&self) -> usize {
        3
    }
    fn panels(&self) -> [usize; 2] {
        [1, 1]
    }
    fn rows_written(&self, rows: usize) -> usize {
        if rows == 1 { 1 } else { rows.next_multiple_of(2) }
    }
    fn adjacent_rows(&self) -> usize {
        8
    }
    fn column_function(&self) -> Option<unsafe fn(&mut Columns<'_>)> {
        dotprod::DotProd.column_function()
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
#[target_feature(enable = "neon,dotprod,i8mm")]
unsafe fn tiles(args: &mut Args<'_>) {
    // SAFETY: as the caller promises; A and the sums have an even number of rows, unless there is one.
    unsafe {
        match (args.rows, args.four) {
            // A row does not fill a pair.
            (1, false) => return tile::<1, true>(args, 0),
            (1, true) => return dotprod::tile::<1, true>(args, 0),
            _ => {}
        }
        let mut row = 0;
        while row < args.rows {
            let pairs = (args.rows - row).div_ceil(2).min(PAIRS);
            match (pairs, args.four) {
                (1, false) => tile::<1, false>(args, row),
                (2, false) => tile::<2, false>(args, row),
                (_, false) => tile::<3, false>(args, row),
                (1, true) => nibble_tile::<1>(args, row),
                (2, true) => nibble_tile::<2>(args, row),
                (_, true) => nibble_tile::<3>(args, row),
            }
            row += 2 * pairs;
        }
    }
}

/// Adds to the sums of two rows in two columns the dot products of eight values of each row, in the halves of `a`, and of
/// each column, in the halves of `b`.
///
/// # Safety
/// The machine has I8MM.
#[inline(always)]
unsafe fn multiply(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the instruction only reads and writes its operands; as the caller promises, the machine has it.
    unsafe {
        asm!("smmla {0:v}.4s, {1:v}.16b, {2:v}.16b", inout(vreg) sums, in(vreg) a, in(vreg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Eight values of each of two rows.
///
/// # Safety
/// Eight bytes can be read of each.
#[inline(always)]
unsafe fn load_pair(first: *const i8, second: *const i8) -> int8x16_t {
    // SAFETY: every machine has NEON; as the caller promises.
    unsafe { vcombine_s8(vld1_s8(first), vld1_s8(second)) }
}

/// Eight values of each of two rows, whose addresses are advanced past them.
///
/// # Safety
/// Eight bytes can be read of each.
#[inline(always)]
unsafe fn next_pair([first, second]: &mut [*const i8; 2]) -> int8x16_t {
    let pair;
    // SAFETY: every machine has NEON; as the caller promises, the bytes that the instructions read are there.
    unsafe {
        asm!("ldr {0:d}, [{1}], #8", "ld1 {{{0:v}.d}}[1], [{2}], #8", out(vreg) pair, inout(reg) *first,
            inout(reg) *second, options(pure, readonly, nostack, preserves_flags));
    }
    pair
}

/// The sums of `MP` pairs of rows from row `row` on, of one panel of 8-bit values. `ONE`: of the first of two rows.
///
/// # Safety
/// [`Args`] were checked, A and the sums have these rows, and the machine has I8MM.
#[inline(always)]
unsafe fn tile<const MP: usize, const ONE: bool>(args: &mut Args<'_>, row: usize) {
    // SAFETY: as the caller promises: each row of A has `k` values a segment, rounded up to a block of B, and B has as
    // many blocks of eight rows.
    unsafe {
        for group in 0..args.groups {
            let mut b = arm::group_of_panel(args, group, false);
            let mut sums = [[vdupq_n_s32(0); PANEL / 2]; MP];
            // Multiplies the pairs of rows in `$a` by eight rows of B.
            macro_rules! eight {
                ($a:ident) => {
                    repeat!(PANEL / 2, [0 1 2 3 4 5 6 7], v => {
                        let columns = vld1q_s8(b.wrapping_add(v * 16));
                        repeat!(MP, [0 1 2], i => {
                            sums[i][v] = multiply(sums[i][v], $a[i], columns);
                        });
                    });
                    b = b.wrapping_add(8 * PANEL);
                };
            }
            for &segment in args.segments {
                let mut from = [[std::ptr::null(); 2]; MP];
                let mut next = arm::row(args, row, segment + group * args.k);
                repeat!(MP, [0 1 2], i => {
                    from[i] = [next, next.wrapping_add(args.a_step)];
                    next = from[i][1].wrapping_add(args.a_step);
                });
                for _ in 0..args.k.div_ceil(8) {
                    let mut a = [vdupq_n_s8(0); MP];
                    repeat!(MP, [0 1 2], i => {
                        if ONE {
                            a[i] = load_eight(from[i][0]);
                            from[i][0] = from[i][0].wrapping_add(8);
                        } else {
                            a[i] = next_pair(&mut from[i]);
                        }
                    });
                    eight!(a);
                }
            }
            repeat!(MP, [0 1 2], i => {
                repeat!(VECTORS, [0 1 2 3], v => {
                    store_pair::<ONE>(args, group, (row + 2 * i, v), [sums[i][2 * v], sums[i][2 * v + 1]]);
                });
            });
        }
    }
}

/// Stores the sums of two rows from row `row` on in the columns of vector `v`, from those of two columns each. `ONE`: of
/// the first row only.
///
/// # Safety
/// The sums have these rows.
#[inline(always)]
unsafe fn store_pair<const ONE: bool>(
    args: &mut Args<'_>,
    group: usize,
    (row, v): (usize, usize),
    sums: [int32x4_t; 2],
) {
    let at = group * args.group_step + row * PANEL + v * COLUMNS;
    let to = args.sums.as_mut_ptr().wrapping_add(at);
    // SAFETY: every machine has NEON; as the caller promises.
    unsafe {
        let [first, second] = [vreinterpretq_s64_s32(sums[0]), vreinterpretq_s64_s32(sums[1])];
        vst1q_s32(to, vreinterpretq_s32_s64(vzip1q_s64(first, second)));
        if !ONE {
            vst1q_s32(to.wrapping_add(PANEL), vreinterpretq_s32_s64(vzip2q_s64(first, second)));
        }
    }
}

/// The sums of `MP` pairs of rows from row `row` on, of one panel of 4-bit values, of which four rows are adjacent.
///
/// # Safety
/// As [`tile`].
#[inline(always)]
unsafe fn nibble_tile<const MP: usize>(args: &mut Args<'_>, row: usize) {
    // SAFETY: as in [`tile`].
    unsafe {
        for group in 0..args.groups {
            let mut b = arm::group_of_panel(args, group, true);
            let mut sums = [[[vdupq_n_s32(0); 2]; VECTORS]; MP];
            for &segment in args.segments {
                let mut from = arm::row(args, row, segment + group * args.k);
                let mut left = args.k;
                while left > 0 {
                    let mut a = [vdupq_n_s8(0); MP];
                    repeat!(MP, [0 1 2], i => {
                        let first = from.wrapping_add(2 * i * args.a_step);
                        a[i] = load_pair(first, first.wrapping_add(args.a_step));
                    });
                    repeat!(VECTORS, [0 1 2 3], v => {
                        let both = vld1q_s8(b.wrapping_add(v * COLUMNS * QUAD));
                        let low = vreinterpretq_s32_s8(arm::low_halves(both));
                        let high = vreinterpretq_s32_s8(arm::high_halves(both));
                        let first = vreinterpretq_s8_s32(vzip1q_s32(low, high));
                        let second = vreinterpretq_s8_s32(vzip2q_s32(low, high));
                        repeat!(MP, [0 1 2], i => {
                            sums[i][v][0] = multiply(sums[i][v][0], a[i], first);
                            sums[i][v][1] = multiply(sums[i][v][1], a[i], second);
                        });
                    });
                    b = b.wrapping_add(PANEL * QUAD);
                    (from, left) = (from.wrapping_add(8), left.saturating_sub(8));
                }
            }
            repeat!(MP, [0 1 2], i => {
                repeat!(VECTORS, [0 1 2 3], v => {
                    store_pair::<false>(args, group, (row + 2 * i, v), sums[i][v]);
                });
            });
        }
    }
}
