//! Tiles with AVX2: 6 rows by a panel, or a row by two. AVX2 has no exact dot products of four 8-bit values.
//!
//! 8-bit values of B are multiplied as 16-bit ones: A is widened before, B when it is loaded. Sums of the products of
//! unsigned bytes by 4-bit values fit 16 bits for [`BLOCKS`] blocks of four rows, `255 * 8 * 2 * BLOCKS < 2^15`, and
//! are widened only then.

use super::super::gemm::tile::repeat;
use super::super::isa::Feature;
use super::avx2_columns::column_sums;
use super::columns::Columns;
use super::pack::{PANEL, WeightBits};
use super::tile::{Args, Microkernel};
use std::arch::x86_64::*;

/// The number of rows of a tile.
const ROWS: usize = 6;
/// The number of columns of a vector of sums.
const LANES: usize = 8;
/// The number of blocks of four rows of B whose products with 4-bit values are added up in 16 bits.
const BLOCKS: usize = 8;
/// The least number of rows for which it pays to widen a panel of 4-bit values once, rather than in each tile.
const WIDENED_ROWS: usize = 2 * ROWS;

pub(super) struct Avx2;

impl Microkernel for Avx2 {
    fn feature(&self) -> Option<Feature> {
        Some(Feature::Avx2)
    }
    fn relative_time(&self) -> usize {
        16
    }
    fn panels(&self) -> [usize; 2] {
        [2, 1]
    }
    fn rows_written(&self, rows: usize) -> usize {
        let last = rows % ROWS;
        rows - last + [0, 1, 2, 4, 4, 6][last]
    }
    fn reads_four_bits(&self, rows: usize) -> bool {
        rows < WIDENED_ROWS
    }
    fn adjacent_rows(&self) -> usize {
        2
    }
    fn multiplies_words(&self, bits: WeightBits) -> bool {
        bits == WeightBits::Eight
    }
    fn column_function(&self) -> Option<unsafe fn(&mut Columns<'_>)> {
        Some(column_sums)
    }
    fn min_column_lines(&self) -> usize {
        2
    }
    unsafe fn run(&self, _: usize, args: &mut Args<'_>) {
        // SAFETY: as the caller promises.
        unsafe { tiles(args) }
    }
}

/// # Safety
/// The machine has AVX2; [`Args`] were checked.
#[target_feature(enable = "avx2")]
unsafe fn tiles(args: &mut Args<'_>) {
    macro_rules! run {
        ($args:ident, $tile:ident, $form:literal) => {
            match ($args.rows, $args.panels) {
                (1, 1) => $tile::<1, 1, $form>($args),
                (1, 2) => $tile::<1, 2, $form>($args),
                (2, 1) => $tile::<2, 1, $form>($args),
                (3 | 4, 1) => $tile::<4, 1, $form>($args),
                (5 | 6, 1) => $tile::<6, 1, $form>($args),
                (rows, panels) => unreachable!("no tile of {rows} rows by {panels} panels"),
            }
        };
    }
    for row in (0..args.rows).step_by(ROWS) {
        let args = &mut args.tile(row, ROWS);
        // SAFETY: as the caller promises; each tile holds the rows.
        unsafe {
            match (args.words, args.four) {
                (true, _) if args.panels == 1 && args.columns <= LANES => run!(args, word_tile, 1),
                (true, _) => run!(args, word_tile, 2),
                (false, true) => run!(args, byte_tile, true),
                (false, false) => run!(args, byte_tile, false),
            }
        }
    }
}

/// Multiplies 16-bit values of A by 8-bit values of B, in the first `NV` vectors of each panel.
///
/// # Safety
/// The machine has AVX2; [`Args`] were checked and have at most `MR` rows and `NP` panels.
#[inline(always)]
unsafe fn word_tile<const MR: usize, const NP: usize, const NV: usize>(args: &mut Args<'_>) {
    let mut b = args.b.as_ptr();
    for group in 0..args.groups {
        // SAFETY: the machine has AVX2. A has k values in each of MR rows and segments, and B as many rows of NP
        // panels; both are readable up to a multiple of four.
        unsafe {
            let mut sums = [[[_mm256_setzero_si256(); NV]; NP]; MR];
            for &segment in args.segments {
                let a = args.a.as_ptr().wrapping_add(2 * (segment + group * args.k));
                let mut k = 0;
                while k < args.k.next_multiple_of(4) {
                    repeat!(NP, [0 1], p => {
                        let at = b.wrapping_add(p * args.b_step);
                        let mut columns = [_mm256_setzero_si256(); NV];
                        repeat!(NV, [0 1], v => {
                            let at = at.wrapping_add(v * 2 * LANES);
                            columns[v] = _mm256_cvtepi8_epi16(_mm_loadu_si128(at.cast()));
                        });
                        repeat!(MR, [0 1 2 3 4 5], i => {
                            let row = broadcast(a.wrapping_add(i * args.a_step + 2 * k));
                            repeat!(NV, [0 1], v => {
                                let products = _mm256_madd_epi16(row, columns[v]);
                                sums[i][p][v] = _mm256_add_epi32(sums[i][p][v], products);
                            });
                        });
                    });
                    b = b.wrapping_add(2 * PANEL);
                    k += 2;
                }
            }
            store::<MR, NP, NV, 0>(args, group, &sums);
        }
    }
}

/// Multiplies bytes of A by 4-bit values of B, packed two a byte if `FOUR`; the sums are then 16 times the true ones.
///
/// # Safety
/// The machine has AVX2; [`Args`] were checked and have at most `MR` rows and `NP` panels.
#[inline(always)]
unsafe fn byte_tile<const MR: usize, const NP: usize, const FOUR: bool>(args: &mut Args<'_>) {
    let mut b = args.b.as_ptr();
    let step = const { if FOUR { 8 } else { 4 } };
    for group in 0..args.groups {
        // SAFETY: as in `word_tile`, up to a multiple of `step`.
        unsafe {
            let mut sums = [[[_mm256_setzero_si256(); 2]; NP]; MR];
            for &segment in args.segments {
                let a = args.a.as_ptr().wrapping_add(segment + group * args.k);
                let mut k = 0;
                while k < args.k {
                    let mut short = [[[_mm256_setzero_si256(); 2]; NP]; MR];
                    let end = args.k.min(k + 4 * BLOCKS);
                    while k < end {
                        // Four rows of B at a time, so that registers hold all operands.
                        repeat!(2, [0 1], half => {
                            if half == 0 || FOUR {
                                repeat!(NP, [0 1], p => {
                                    let at = b.wrapping_add(p * args.b_step);
                                    let low = _mm256_loadu_si256(at.cast());
                                    let high = _mm256_loadu_si256(at.wrapping_add(4 * LANES).cast());
                                    let low = if FOUR { nibbles(low, half == 1) } else { low };
                                    let high = if FOUR { nibbles(high, half == 1) } else { high };
                                    repeat!(MR, [0 1 2 3 4 5], i => {
                                        let row = broadcast(a.wrapping_add(i * args.a_step + k + 4 * half));
                                        let [s, t] = short[i][p];
                                        short[i][p] = [
                                            _mm256_add_epi16(s, _mm256_maddubs_epi16(row, low)),
                                            _mm256_add_epi16(t, _mm256_maddubs_epi16(row, high)),
                                        ];
                                    });
                                });
                            }
                        });
                        b = b.wrapping_add(4 * PANEL);
                        k += step;
                    }
                    repeat!(MR, [0 1 2 3 4 5], i => {
                        repeat!(NP, [0 1], p => {
                            repeat!(2, [0 1], v => {
                                let long = _mm256_madd_epi16(short[i][p][v], _mm256_set1_epi16(1));
                                sums[i][p][v] = _mm256_add_epi32(sums[i][p][v], long);
                            });
                        });
                    });
                }
            }
            if FOUR {
                store::<MR, NP, 2, 4>(args, group, &sums);
            } else {
                store::<MR, NP, 2, 0>(args, group, &sums);
            }
        }
    }
}

/// Four bytes, for every column.
///
/// # Safety
/// The machine has AVX2, and the bytes can be read.
#[inline(always)]
unsafe fn broadcast(p: *const u8) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
}

/// The 4-bit values in the low halves of bytes, or in the high halves if `high`, as signed bytes.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn nibbles(bytes: __m256i, high: bool) -> __m256i {
    // SAFETY: as the caller promises.
    unsafe {
        let signed = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
        let bytes = if high { _mm256_srli_epi16::<4>(bytes) } else { bytes };
        let places = _mm256_and_si256(bytes, _mm256_set1_epi8(15));
        _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(signed), places)
    }
}

/// Stores the sums of a group, times `2^SHIFT`: `NV` vectors of each panel.
///
/// # Safety
/// The machine has AVX2; [`Args`] were checked, with at least `MR` rows written of `NP` panels.
#[inline(always)]
unsafe fn store<const MR: usize, const NP: usize, const NV: usize, const SHIFT: i32>(
    args: &mut Args<'_>,
    group: usize,
    sums: &[[[__m256i; NV]; NP]; MR],
) {
    let out = args.sums.as_mut_ptr().wrapping_add(group * args.group_step);
    repeat!(MR, [0 1 2 3 4 5], i => {
        repeat!(NP, [0 1], p => {
            repeat!(NV, [0 1], v => {
                let to = out.wrapping_add((i * NP + p) * PANEL + v * LANES);
                // SAFETY: as the caller promises.
                unsafe { _mm256_storeu_si256(to.cast(), _mm256_slli_epi32::<SHIFT>(sums[i][p][v])) };
            });
        });
    });
}
