//! What the tiles of AArch64 have in common. Their left operands are signed.

use super::super::gemm::tile::repeat;
use super::pack::PANEL;
use super::tile::Args;
use std::arch::aarch64::*;
use std::arch::asm;

/// The number of columns of a vector of sums.
pub(super) const COLUMNS: usize = 4;
/// The number of vectors of sums of a panel.
pub(super) const VECTORS: usize = PANEL / COLUMNS;

/// The first block of B in a group of a panel.
#[inline(always)]
pub(super) fn group_of_panel(args: &Args<'_>, group: usize, four: bool) -> *const i8 {
    args.b.as_ptr().cast::<i8>().wrapping_add(group * args.k * PANEL / if four { 2 } else { 1 })
}

/// Row `row` of A from its value `at` on.
#[inline(always)]
pub(super) fn row(args: &Args<'_>, row: usize, at: usize) -> *const i8 {
    args.a.as_ptr().cast::<i8>().wrapping_add(row * args.a_step + at)
}

/// `p`, in a register of its own: the compiler no longer knows how it was computed, and computes it no more than once.
#[expect(clippy::pointers_in_nomem_asm_block, reason = "there is no instruction")]
#[inline(always)]
pub(super) fn in_register(mut p: *const i8) -> *const i8 {
    // SAFETY: no instruction.
    unsafe {
        asm!("/* {0} */", inout(reg) p, options(pure, nomem, nostack, preserves_flags));
    }
    p
}

/// Four bytes in each lane.
///
/// # Safety
/// Four bytes can be read.
#[inline(always)]
pub(super) unsafe fn load_four(p: *const i8) -> int8x16_t {
    // SAFETY: every machine has NEON; as the caller promises.
    unsafe { vreinterpretq_s8_s32(vdupq_n_s32(p.cast::<i32>().read_unaligned())) }
}

/// Eight bytes in each half.
///
/// # Safety
/// Eight bytes can be read.
#[inline(always)]
pub(super) unsafe fn load_eight(p: *const i8) -> int8x16_t {
    // SAFETY: every machine has NEON; as the caller promises.
    unsafe { vreinterpretq_s8_s64(vdupq_n_s64(p.cast::<i64>().read_unaligned())) }
}

/// 16 times the 4-bit values in the low halves of the bytes.
#[inline(always)]
pub(super) fn low_halves(x: int8x16_t) -> int8x16_t {
    // SAFETY: every machine has NEON.
    unsafe { vshlq_n_s8::<4>(x) }
}

/// 16 times the 4-bit values in the high halves of the bytes.
#[inline(always)]
pub(super) fn high_halves(x: int8x16_t) -> int8x16_t {
    // SAFETY: every machine has NEON.
    unsafe { vandq_s8(x, vdupq_n_s8(-16)) }
}

/// Stores the sums of `MR` rows of a panel from row `row` on.
///
/// # Safety
/// [`Args`] were checked and have these rows.
#[inline(always)]
pub(super) unsafe fn store_sums<const MR: usize>(
    args: &mut Args<'_>,
    group: usize,
    row: usize,
    sums: &[[int32x4_t; VECTORS]; MR],
) {
    let to = args.sums.as_mut_ptr().wrapping_add(group * args.group_step + row * PANEL);
    repeat!(MR, [0 1 2 3 4 5 6 7], i => {
        repeat!(VECTORS, [0 1 2 3], v => {
            // SAFETY: every machine has NEON; there is room for the sums of every row.
            unsafe { vst1q_s32(to.wrapping_add(i * PANEL + v * COLUMNS), sums[i][v]) };
        });
    });
}

/// Calls `$tile::<MR, FOUR>` for tiles below each other: those of `$rows` rows, then one of fewer.
macro_rules! run_tiles {
    ($args:ident, $rows:expr, $tile:ident: $($fewer:literal),*) => {{
        debug_assert_eq!($args.panels, 1);
        let mut row = 0;
        if $args.four {
            while row + $rows <= $args.rows {
                $tile::<{ $rows }, true>($args, row);
                row += $rows;
            }
        } else {
            while row + $rows <= $args.rows {
                $tile::<{ $rows }, false>($args, row);
                row += $rows;
            }
        }
        match ($args.rows - row, $args.four) {
            (0, _) => {}
            $(
                ($fewer, false) => $tile::<$fewer, false>($args, row),
                ($fewer, true) => $tile::<$fewer, true>($args, row),
            )*
            (rows, _) => unreachable!("no tile of {rows} rows"),
        }
    }};
}

pub(super) use run_tiles;
