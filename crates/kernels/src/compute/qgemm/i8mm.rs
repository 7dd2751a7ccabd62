//! Tiles with the matrix products of AArch64: pairs of rows, up to three, by a panel. An instruction multiplies two rows
//! by two columns of eight values each.

use super::super::gemm::tile::repeat;
use super::super::isa::Feature;
use super::arm::{self, COLUMNS, VECTORS};
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
    fn column_function(&self) -> Option<unsafe fn(&mut Columns<'_>)> {
        dotprod::DotProd.column_function()
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
            (1, false) => return dotprod::tile::<1, false>(args, 0),
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
                (1, true) => tile::<1, true>(args, row),
                (2, true) => tile::<2, true>(args, row),
                (_, true) => tile::<3, true>(args, row),
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

/// As [`load_pair`], with four zeros after four values.
///
/// # Safety
/// Four bytes can be read of each.
#[inline(always)]
unsafe fn load_half_pair(first: *const i8, second: *const i8) -> int8x16_t {
    // SAFETY: every machine has NEON; as the caller promises.
    unsafe {
        let four = |p: *const i8| u64::from(p.cast::<u32>().read_unaligned());
        vreinterpretq_s8_u64(vcombine_u64(vcreate_u64(four(first)), vcreate_u64(four(second))))
    }
}

/// The sums of `MP` pairs of rows from row `row` on, of one panel.
///
/// # Safety
/// [`Args`] were checked, A and the sums have these rows, and the machine has I8MM.
#[inline(always)]
unsafe fn tile<const MP: usize, const FOUR: bool>(args: &mut Args<'_>, row: usize) {
    // SAFETY: as the caller promises: each row of A has `k` values a segment, rounded up to a block of B, and B has as
    // many blocks.
    unsafe {
        for group in 0..args.groups {
            let mut b = arm::group_of_panel(args, group, FOUR);
            let mut sums = [[[vdupq_n_s32(0); 2]; VECTORS]; MP];
            // Multiplies the pairs of rows in `$a` by eight rows of B: four in each of two vectors.
            macro_rules! eight {
                ($a:ident, |$at:ident| $low:expr, $high:expr) => {
                    repeat!(VECTORS, [0 1 2 3], v => {
                        let $at = b.wrapping_add(v * COLUMNS * QUAD);
                        let (low, high) = (vreinterpretq_s32_s8($low), vreinterpretq_s32_s8($high));
                        let first = vreinterpretq_s8_s32(vzip1q_s32(low, high));
                        let second = vreinterpretq_s8_s32(vzip2q_s32(low, high));
                        repeat!(MP, [0 1 2], i => {
                            sums[i][v][0] = multiply(sums[i][v][0], $a[i], first);
                            sums[i][v][1] = multiply(sums[i][v][1], $a[i], second);
                        });
                    })
                };
            }
            macro_rules! pairs {
                ($from:ident, $load:path) => {{
                    let mut a = [vdupq_n_s8(0); MP];
                    repeat!(MP, [0 1 2], i => {
                        let first = $from.wrapping_add(2 * i * args.a_step);
                        a[i] = $load(first, first.wrapping_add(args.a_step));
                    });
                    a
                }};
            }
            for &segment in args.segments {
                let mut from = arm::row(args, row, segment + group * args.k);
                let mut left = args.k;
                while left > 4 || FOUR && left > 0 {
                    let a = pairs!(from, load_pair);
                    if FOUR {
                        eight!(a, |at| arm::low_halves(vld1q_s8(at)), arm::high_halves(vld1q_s8(at)));
                        b = b.wrapping_add(PANEL * QUAD);
                    } else {
                        eight!(a, |at| vld1q_s8(at), vld1q_s8(at.wrapping_add(PANEL * QUAD)));
                        b = b.wrapping_add(2 * PANEL * QUAD);
                    }
                    (from, left) = (from.wrapping_add(8), left.saturating_sub(8));
                }
                if left > 0 {
                    let a = pairs!(from, load_half_pair);
                    eight!(a, |at| vld1q_s8(at), vdupq_n_s8(0));
                    b = b.wrapping_add(PANEL * QUAD);
                }
            }
            let to = args.sums.as_mut_ptr().wrapping_add(group * args.group_step + row * PANEL);
            repeat!(MP, [0 1 2], i => {
                repeat!(VECTORS, [0 1 2 3], v => {
                    let [first, second] = sums[i][v].map(|x| vreinterpretq_s64_s32(x));
                    let to = to.wrapping_add(2 * i * PANEL + v * COLUMNS);
                    vst1q_s32(to, vreinterpretq_s32_s64(vzip1q_s64(first, second)));
                    vst1q_s32(to.wrapping_add(PANEL), vreinterpretq_s32_s64(vzip2q_s64(first, second)));
                });
            });
        }
    }
}
