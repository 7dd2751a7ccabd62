//! Tiles with the vector instructions of x86-64, written once, generic over [`Dots`].

use super::super::gemm::tile::repeat;
use super::columns::{Columns, QUAD};
use super::pack::PANEL;
use super::tile::Args;
use std::arch::x86_64::*;

/// Vectors whose 32-bit lanes are columns, with dot products of four 8-bit values.
///
/// Implementations are zero-sized and constructed only where the machine has the instructions; every method relies on
/// that.
trait Dots: Copy {
    /// Four unsigned bytes of a row of A, for every column.
    type A: Copy;
    /// Four rows of a vector of columns of B.
    type B: Copy;
    /// The sums of a vector of columns.
    type Sums: Copy;
    /// Columns of a vector.
    const LANES: usize;
    /// Whether there are registers for two sets of the sums of one row.
    const SPLIT: bool;

    fn zero(self) -> Self::Sums;
    /// # Safety
    /// Four bytes can be read.
    unsafe fn a(self, p: *const u8) -> Self::A;
    /// # Safety
    /// Four bytes a column can be read.
    unsafe fn b(self, p: *const u8) -> Self::B;
    /// 4-bit values times 16: those in the low halves of the bytes, and those in the high halves.
    ///
    /// # Safety
    /// Four bytes a column can be read.
    unsafe fn halves(self, p: *const u8) -> [Self::B; 2];
    fn dot(self, sums: Self::Sums, a: Self::A, b: Self::B) -> Self::Sums;
    fn add(self, sums: Self::Sums, others: Self::Sums) -> Self::Sums;
    /// # Safety
    /// A sum a column can be written.
    unsafe fn store(self, p: *mut i32, sums: Self::Sums);
}

/// [`Dots`] whose left operands may differ between columns.
trait ColumnDots: Dots {
    /// # Safety
    /// Four bytes a column can be read.
    unsafe fn columns(self, p: *const u8) -> Self::A;
}

/// The number of vectors in a panel.
const fn vectors<D: Dots>() -> usize {
    PANEL / D::LANES
}

/// # Safety
/// [`Args`] were checked; `args` has at most `MR` rows and `NP` panels.
#[inline(always)]
unsafe fn tile<D: Dots, const MR: usize, const NP: usize, const FOUR: bool>(d: D, args: &mut Args<'_>) {
    let mut b = args.b.as_ptr();
    // The few sums of one row would wait for each other: every other block of four rows of B has accumulators of its
    // own.
    let split = const { MR == 1 && D::SPLIT };
    for group in 0..args.groups {
        let mut sums = [[[d.zero(); 2]; NP]; MR];
        let mut others = sums;
        // Accumulates a block of four rows of B, whose vectors the closure loads.
        macro_rules! dots {
            ($sums:ident, $row:expr, |$at:ident| $column:expr) => {
                repeat!(NP, [0 1 2 3], p => {
                    repeat!(vectors::<D>(), [0 1], v => {
                        let $at = b.wrapping_add(p * args.b_step + v * D::LANES * 4);
                        // SAFETY: B has k rows of the panels, rounded up to a block; A has as many bytes in each of
                        // MR rows.
                        unsafe {
                            let column = $column;
                            repeat!(MR, [0 1 2 3 4 5 6 7], i => {
                                let row: *const u8 = $row;
                                $sums[i][p][v] = d.dot($sums[i][p][v], d.a(row.wrapping_add(i * args.a_step)), column);
                            });
                        }
                    });
                })
            };
        }
        for &segment in args.segments {
            let a = args.a.as_ptr().wrapping_add(segment + group * args.k);
            let mut k = 0;
            while k < args.k {
                let row = a.wrapping_add(k);
                if FOUR && split {
                    dots!(sums, row, |at| d.halves(at)[0]);
                    dots!(others, row.wrapping_add(4), |at| d.halves(at)[1]);
                } else if FOUR {
                    repeat!(NP, [0 1 2 3], p => {
                        repeat!(vectors::<D>(), [0 1], v => {
                            let at = b.wrapping_add(p * args.b_step + v * D::LANES * 4);
                            // SAFETY: as above.
                            unsafe {
                                let [low, high] = d.halves(at);
                                repeat!(MR, [0 1 2 3 4 5 6 7], i => {
                                    let row = row.wrapping_add(i * args.a_step);
                                    sums[i][p][v] = d.dot(sums[i][p][v], d.a(row), low);
                                    sums[i][p][v] = d.dot(sums[i][p][v], d.a(row.wrapping_add(4)), high);
                                });
                            }
                        });
                    });
                } else {
                    dots!(sums, row, |at| d.b(at));
                    if split && k + 4 < args.k {
                        b = b.wrapping_add(64);
                        k += 4;
                        dots!(others, row.wrapping_add(4), |at| d.b(at));
                    }
                }
                b = b.wrapping_add(64);
                k += if FOUR { 8 } else { 4 };
            }
        }
        let out = args.sums.as_mut_ptr().wrapping_add(group * args.group_step);
        repeat!(MR, [0 1 2 3 4 5 6 7], i => {
            repeat!(NP, [0 1 2 3], p => {
                repeat!(vectors::<D>(), [0 1], v => {
                    let to = out.wrapping_add((i * NP + p) * PANEL + v * D::LANES);
                    let sums = if split { d.add(sums[i][p][v], others[i][p][v]) } else { sums[i][p][v] };
                    // SAFETY: there is room for the sums of every tile.
                    unsafe { d.store(to, sums) };
                });
            });
        });
    }
}

/// # Safety
/// [`Columns`] were checked.
#[inline(always)]
unsafe fn columns<D: ColumnDots>(d: D, args: &mut Columns<'_>) {
    let mut row = 0;
    // SAFETY: as the caller promises; at least as many rows are left as are computed.
    unsafe {
        while row + 4 <= args.rows() {
            columns_of::<D, 4>(d, args, row);
            row += 4;
        }
        while row < args.rows() {
            columns_of::<D, 1>(d, args, row);
            row += 1;
        }
    }
}

/// # Safety
/// [`Columns`] were checked, and there are `M` rows from `row` on.
#[inline(always)]
unsafe fn columns_of<D: ColumnDots, const M: usize>(d: D, args: &mut Columns<'_>, row: usize) {
    let a = args.a.as_ptr().wrapping_add(row * args.a_step);
    let out = args.sums.as_mut_ptr().wrapping_add(row * args.step);
    for column in (0..args.columns).step_by(D::LANES) {
        let mut sums = [d.zero(); M];
        let mut b = args.b.as_ptr().wrapping_add(column * QUAD).cast::<u8>();
        for &tap in args.taps {
            let at = a.wrapping_add(tap + column * QUAD);
            // SAFETY: in each row and at each tap, operands have columns up to a multiple of a panel, and so whole
            // vectors.
            unsafe {
                let weights = d.b(b);
                repeat!(M, [0 1 2 3], i => {
                    sums[i] = d.dot(sums[i], d.columns(at.wrapping_add(i * args.a_step)), weights);
                });
            }
            b = b.wrapping_add(args.b_step);
        }
        repeat!(M, [0 1 2 3], i => {
            // SAFETY: rows of sums have as many columns.
            unsafe { d.store(out.wrapping_add(i * args.step + column), sums[i]) };
        });
    }
}

/// Runs tiles below each other, each of at most `$rows` rows: the first of the listed shapes that holds its rows.
macro_rules! shapes {
    ($d:expr, $args:ident, $rows:expr, $(($most:literal, $np:literal)),*) => {
        for row in (0..$args.rows).step_by($rows) {
            let tile_args = &mut $args.tile(row, $rows);
            match (tile_args.rows, tile_args.panels, tile_args.four) {
                $(
                    (..=$most, $np, false) => tile::<_, $most, $np, false>($d, tile_args),
                    (..=$most, $np, true) => tile::<_, $most, $np, true>($d, tile_args),
                )*
                (rows, panels, _) => unreachable!("no tile of {rows} rows by {panels} panels"),
            }
        }
    };
}

/// The most rows of sums that the last of tiles below each other writes if it has `rows` rows: those of its shape,
/// which has at least two rows if it has two panels.
pub(super) fn rows_written(rows: usize) -> usize {
    if rows == 0 { 0 } else { rows.next_power_of_two().max(2) }
}

/// Rows of the largest tile of each path.
pub(super) const AVX512_VNNI_ROWS: usize = 8;
pub(super) const AVX_VNNI_ROWS: usize = 4;
pub(super) const MULTIPLY_ADD_ROWS: usize = 2;

/// # Safety
/// The machine has AVX-512 F, BW and VNNI; [`Args`] were checked.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn avx512_vnni(args: &mut Args<'_>) {
    // SAFETY: as the caller promises.
    unsafe {
        shapes!(
            Avx512Vnni,
            args,
            AVX512_VNNI_ROWS,
            (1, 4),
            (1, 1),
            (2, 2),
            (2, 1),
            (4, 2),
            (4, 1),
            (8, 2),
            (8, 1)
        );
    }
}

/// # Safety
/// The machine has AVX2 and AVX-VNNI; [`Args`] were checked.
#[target_feature(enable = "avx2,avxvnni")]
pub(super) unsafe fn avx_vnni(args: &mut Args<'_>) {
    // SAFETY: as the caller promises.
    unsafe {
        shapes!(AvxVnni, args, AVX_VNNI_ROWS, (1, 2), (1, 1), (2, 1), (4, 1));
    }
}

/// # Safety
/// The machine has AVX-512 F, BW and VNNI; [`Columns`] were checked.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(super) unsafe fn avx512_vnni_columns(args: &mut Columns<'_>) {
    // SAFETY: as the caller promises.
    unsafe { columns(Avx512Vnni, args) }
}

/// # Safety
/// The machine has AVX2 and AVX-VNNI; [`Columns`] were checked.
#[target_feature(enable = "avx2,avxvnni")]
pub(super) unsafe fn avx_vnni_columns(args: &mut Columns<'_>) {
    // SAFETY: as the caller promises.
    unsafe { columns(AvxVnni, args) }
}

/// # Safety
/// The machine has AVX2; [`Args`] were checked.
#[target_feature(enable = "avx2")]
pub(super) unsafe fn multiply_add(args: &mut Args<'_>) {
    // SAFETY: as the caller promises.
    unsafe {
        shapes!(MultiplyAdd, args, MULTIPLY_ADD_ROWS, (1, 2), (1, 1), (2, 1));
    }
}

#[derive(Clone, Copy)]
struct Avx512Vnni;

impl Dots for Avx512Vnni {
    type A = __m512i;
    type B = __m512i;
    type Sums = __m512i;
    const LANES: usize = 16;
    const SPLIT: bool = true;

    #[inline(always)]
    fn zero(self) -> __m512i {
        // SAFETY: the machine has AVX-512; likewise below.
        unsafe { _mm512_setzero_si512() }
    }
    #[inline(always)]
    unsafe fn a(self, p: *const u8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn b(self, p: *const u8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn halves(self, p: *const u8) -> [__m512i; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            let (all, high) = (_mm512_loadu_si512(p.cast()), _mm512_set1_epi8(0xf0u8 as i8));
            [_mm512_and_si512(_mm512_slli_epi16::<4>(all), high), _mm512_and_si512(all, high)]
        }
    }
    #[inline(always)]
    fn dot(self, sums: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: the machine has AVX-512 VNNI.
        unsafe { _mm512_dpbusd_epi32(sums, a, b) }
    }
    #[inline(always)]
    fn add(self, sums: __m512i, others: __m512i) -> __m512i {
        // SAFETY: the machine has AVX-512.
        unsafe { _mm512_add_epi32(sums, others) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut i32, sums: __m512i) {
        // SAFETY: as the caller promises.
        unsafe { _mm512_storeu_si512(p.cast(), sums) };
    }
}

impl ColumnDots for Avx512Vnni {
    #[inline(always)]
    unsafe fn columns(self, p: *const u8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
}

/// 4-bit values of 32 bytes times 16: those in the low halves, and those in the high halves.
///
/// # Safety
/// The machine has AVX2, and 32 bytes can be read.
#[inline(always)]
unsafe fn halves(p: *const u8) -> [__m256i; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let (all, high) = (_mm256_loadu_si256(p.cast()), _mm256_set1_epi8(0xf0u8 as i8));
        [_mm256_and_si256(_mm256_slli_epi16::<4>(all), high), _mm256_and_si256(all, high)]
    }
}

#[derive(Clone, Copy)]
struct AvxVnni;

impl Dots for AvxVnni {
    type A = __m256i;
    type B = __m256i;
    type Sums = __m256i;
    const LANES: usize = 8;
    const SPLIT: bool = true;

    #[inline(always)]
    fn zero(self) -> __m256i {
        // SAFETY: the machine has AVX2; likewise below.
        unsafe { _mm256_setzero_si256() }
    }
    #[inline(always)]
    unsafe fn a(self, p: *const u8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn b(self, p: *const u8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn halves(self, p: *const u8) -> [__m256i; 2] {
        // SAFETY: as the caller promises.
        unsafe { halves(p) }
    }
    #[inline(always)]
    fn dot(self, sums: __m256i, a: __m256i, b: __m256i) -> __m256i {
        // SAFETY: the machine has AVX-VNNI.
        unsafe { _mm256_dpbusd_avx_epi32(sums, a, b) }
    }
    #[inline(always)]
    fn add(self, sums: __m256i, others: __m256i) -> __m256i {
        // SAFETY: the machine has AVX2.
        unsafe { _mm256_add_epi32(sums, others) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut i32, sums: __m256i) {
        // SAFETY: as the caller promises.
        unsafe { _mm256_storeu_si256(p.cast(), sums) };
    }
}

impl ColumnDots for AvxVnni {
    #[inline(always)]
    unsafe fn columns(self, p: *const u8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
}

/// Without exact dot products of 8-bit values: they are widened to 16 bits, and each column has two partial sums
/// until the end.
#[derive(Clone, Copy)]
struct MultiplyAdd;

impl Dots for MultiplyAdd {
    type A = __m256i;
    type B = [__m256i; 2];
    type Sums = [__m256i; 2];
    const LANES: usize = 8;
    const SPLIT: bool = false;

    #[inline(always)]
    fn zero(self) -> [__m256i; 2] {
        // SAFETY: the machine has AVX2; likewise below.
        unsafe { [_mm256_setzero_si256(); 2] }
    }
    #[inline(always)]
    unsafe fn a(self, p: *const u8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { _mm256_cvtepu8_epi16(_mm_set1_epi32(p.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn b(self, p: *const u8) -> [__m256i; 2] {
        // SAFETY: as the caller promises.
        unsafe { widen(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn halves(self, p: *const u8) -> [[__m256i; 2]; 2] {
        // SAFETY: as the caller promises.
        unsafe {
            // Not `map`: it may be compiled without AVX2, and would then pass the vectors in memory.
            let [low, high] = halves(p);
            [widen(low), widen(high)]
        }
    }
    #[inline(always)]
    fn dot(self, sums: [__m256i; 2], a: __m256i, b: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the machine has AVX2.
        unsafe {
            [
                _mm256_add_epi32(sums[0], _mm256_madd_epi16(a, b[0])),
                _mm256_add_epi32(sums[1], _mm256_madd_epi16(a, b[1])),
            ]
        }
    }
    #[inline(always)]
    fn add(self, sums: [__m256i; 2], others: [__m256i; 2]) -> [__m256i; 2] {
        // SAFETY: the machine has AVX2.
        unsafe { [_mm256_add_epi32(sums[0], others[0]), _mm256_add_epi32(sums[1], others[1])] }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut i32, sums: [__m256i; 2]) {
        // SAFETY: as the caller promises.
        unsafe {
            // Columns 0 1 4 5 2 3 6 7.
            let pairs = _mm256_hadd_epi32(sums[0], sums[1]);
            _mm256_storeu_si256(p.cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(pairs));
        }
    }
}

/// Signed bytes as 16-bit integers: the first four columns, and the last four.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn widen(x: __m256i) -> [__m256i; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        [
            _mm256_cvtepi8_epi16(_mm256_castsi256_si128(x)),
            _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(x)),
        ]
    }
}
