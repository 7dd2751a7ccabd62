//! Dot products of four bytes by four 8-bit values, both different from column to column, with AVX2.

use super::super::gemm::tile::repeat;
use super::columns::{Columns, QUAD};
use std::arch::x86_64::*;

/// The number of columns of a vector of sums.
const LANES: usize = 8;

/// # Safety
/// The machine has AVX2; [`Columns`] were checked.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn column_sums(args: &mut Columns<'_>) {
    let mut row = 0;
    // SAFETY: as the caller promises; at least as many rows are left as are computed.
    unsafe {
        while row + 4 <= args.rows() {
            compute_rows::<4>(args, row);
            row += 4;
        }
        while row < args.rows() {
            compute_rows::<1>(args, row);
            row += 1;
        }
    }
}

/// Values of B become the high bytes of 16-bit ones, so that no sign is extended: a sum of few taps, times 256, fits 32
/// bits.
///
/// # Safety
/// The machine has AVX2; [`Columns`] were checked, and there are `M` rows from `row` on.
#[inline(always)]
unsafe fn compute_rows<const M: usize>(args: &mut Columns<'_>, row: usize) {
    let a = args.a.as_ptr().wrapping_add(row * args.a_step);
    let out = args.sums.as_mut_ptr().wrapping_add(row * args.step);
    for column in (0..args.columns).step_by(LANES) {
        let mut b = args.b.as_ptr().wrapping_add(column * QUAD).cast::<u8>();
        // SAFETY: the machine has AVX2. In each row and at each tap, operands have columns up to a multiple of a panel,
        // and so whole vectors; rows of sums have as many.
        unsafe {
            let zero = _mm256_setzero_si256();
            // Of columns 0 1 4 5, and of columns 2 3 6 7: the products of the first two values, and of the last two.
            let mut sums = [[zero; 2]; M];
            for &tap in args.taps {
                let at = a.wrapping_add(tap + column * QUAD);
                let weights = _mm256_loadu_si256(b.cast());
                let (low, high) = (_mm256_unpacklo_epi8(zero, weights), _mm256_unpackhi_epi8(zero, weights));
                repeat!(M, [0 1 2 3], i => {
                    let values = _mm256_loadu_si256(at.wrapping_add(i * args.a_step).cast());
                    let [s, t] = sums[i];
                    sums[i] = [
                        _mm256_add_epi32(s, _mm256_madd_epi16(_mm256_unpacklo_epi8(values, zero), low)),
                        _mm256_add_epi32(t, _mm256_madd_epi16(_mm256_unpackhi_epi8(values, zero), high)),
                    ];
                });
                b = b.wrapping_add(args.b_step);
            }
            repeat!(M, [0 1 2 3], i => {
                let sums = _mm256_srai_epi32::<8>(_mm256_hadd_epi32(sums[i][0], sums[i][1]));
                _mm256_storeu_si256(out.wrapping_add(i * args.step + column).cast(), sums);
            });
        }
    }
}
