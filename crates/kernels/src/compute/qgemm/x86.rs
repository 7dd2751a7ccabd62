//! Tiles of vector registers of x86-64, written once, generic over the dot products of an instruction set, [`Dots`].

use super::super::gemm::tile::repeat;
use super::columns::{Columns, QUAD};
use super::pack::PANEL;
use super::tile::Args;
use std::arch::x86_64::*;

/// Vectors whose 32-bit lanes are columns, with dot products of four 8-bit values.
///
/// Implementations are zero-sized and constructed only where the machine has the instructions; every method relies on
/// that.
pub(super) trait Dots: Copy {
    /// Four unsigned bytes of a row of A, for every column.
    type A: Copy;
    /// Four rows of a vector of columns of B.
    type B: Copy;
    /// The sums of a vector of columns.
    type Sums: Copy;
    /// The number of columns of a vector.
    const LANES: usize;
    /// Whether a tile of one row has two sets of accumulators, which shortens the chain of dependent additions; there
    /// must be registers for both.
    const SPLIT: bool;

    fn zero(self) -> Self::Sums;
    /// # Safety
    /// Four bytes can be read.
    unsafe fn load_a(self, p: *const u8) -> Self::A;
    /// # Safety
    /// Four bytes for each column can be read.
    unsafe fn load_b(self, p: *const u8) -> Self::B;
    /// 4-bit values times 16: those in the low halves of the bytes, and those in the high halves.
    ///
    /// # Safety
    /// Four bytes for each column can be read.
    unsafe fn load_nibbles(self, p: *const u8) -> [Self::B; 2];
    fn dot(self, sums: Self::Sums, a: Self::A, b: Self::B) -> Self::Sums;
    fn add(self, sums: Self::Sums, others: Self::Sums) -> Self::Sums;
    /// # Safety
    /// One sum for each column can be written.
    unsafe fn store(self, p: *mut i32, sums: Self::Sums);
}

/// The number of vectors in a panel.
const fn vectors<D: Dots>() -> usize {
    PANEL / D::LANES
}

/// # Safety
/// [`Args`] were checked; `args` has at most `MR` rows and `NP` panels.
#[inline(always)]
pub(super) unsafe fn tile<D: Dots, const MR: usize, const NP: usize, const FOUR: bool>(
    d: D,
    args: &mut Args<'_>,
) {
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
                                $sums[i][p][v] = d.dot($sums[i][p][v], d.load_a(row.wrapping_add(i * args.a_step)), column);
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
                    dots!(sums, row, |at| d.load_nibbles(at)[0]);
                    dots!(others, row.wrapping_add(4), |at| d.load_nibbles(at)[1]);
                } else if FOUR {
                    repeat!(NP, [0 1 2 3], p => {
                        repeat!(vectors::<D>(), [0 1], v => {
                            let at = b.wrapping_add(p * args.b_step + v * D::LANES * 4);
                            // SAFETY: as above.
                            unsafe {
                                let [low, high] = d.load_nibbles(at);
                                repeat!(MR, [0 1 2 3 4 5 6 7], i => {
                                    let row = row.wrapping_add(i * args.a_step);
                                    sums[i][p][v] = d.dot(sums[i][p][v], d.load_a(row), low);
                                    sums[i][p][v] = d.dot(sums[i][p][v], d.load_a(row.wrapping_add(4)), high);
                                });
                            }
                        });
                    });
                } else {
                    dots!(sums, row, |at| d.load_b(at));
                    if split && k + 4 < args.k {
                        b = b.wrapping_add(64);
                        k += 4;
                        dots!(others, row.wrapping_add(4), |at| d.load_b(at));
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

/// [`Columns`], for dot products whose left operands may differ between columns, too.
///
/// # Safety
/// [`Columns`] were checked.
#[inline(always)]
pub(super) unsafe fn columns<V: Copy, D: Dots<A = V, B = V>>(d: D, args: &mut Columns<'_>) {
    let mut row = 0;
    // SAFETY: as the caller promises; at least as many rows are left as are computed.
    unsafe {
        while row + 4 <= args.rows() {
            compute_column_rows::<V, D, 4>(d, args, row);
            row += 4;
        }
        while row < args.rows() {
            compute_column_rows::<V, D, 1>(d, args, row);
            row += 1;
        }
    }
}

/// # Safety
/// [`Columns`] were checked, and there are `M` rows from `row` on.
#[inline(always)]
unsafe fn compute_column_rows<V: Copy, D: Dots<A = V, B = V>, const M: usize>(
    d: D,
    args: &mut Columns<'_>,
    row: usize,
) {
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
                let weights = d.load_b(b);
                repeat!(M, [0 1 2 3], i => {
                    sums[i] = d.dot(sums[i], d.load_b(at.wrapping_add(i * args.a_step)), weights);
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

impl Args<'_> {
    /// The tile from `row` on, of at most `max_rows` rows.
    pub(super) fn tile(&mut self, row: usize, max_rows: usize) -> Args<'_> {
        let sums = &mut self.sums[row * self.panels * PANEL..];
        Args { a: &self.a[row * self.a_step..], rows: (self.rows - row).min(max_rows), sums, ..*self }
    }
}

/// Implements [`Microkernel`](super::tile::Microkernel) with the [`Dots`] of an instruction set. `shapes` are rows and
/// panels: tiles below each other have at most `rows` rows, and each is the first shape that holds its rows. `columns`
/// names the function for [`Columns`], if there is to be one.
macro_rules! microkernel {
    (
        $kernel:ident: $dots:expr;
        feature: $feature:ident, $enabled:literal;
        relative_time: $time:literal;
        panels: $panels:expr;
        rows: $rows:literal;
        shapes: $(($most:literal, $np:literal)),*;
        $(columns: $columns:ident;)?
    ) => {
        pub(super) struct $kernel;

        impl Microkernel for $kernel {
            fn feature(&self) -> Option<Feature> {
                Some(Feature::$feature)
            }
            fn relative_time(&self) -> usize {
                $time
            }
            fn panels(&self) -> [usize; 2] {
                $panels
            }
            fn rows_written(&self, rows: usize) -> usize {
                x86::rows_written(rows, $rows)
            }
            $(fn column_function(&self) -> Option<unsafe fn(&mut Columns<'_>)> {
                Some($columns)
            })?
            unsafe fn run(&self, _: usize, args: &mut Args<'_>) {
                // SAFETY: as the caller promises.
                unsafe { tiles(args) }
            }
        }

        /// # Safety
        /// The machine has the feature; [`Args`] were checked.
        #[target_feature(enable = $enabled)]
        unsafe fn tiles(args: &mut Args<'_>) {
            for row in (0..args.rows).step_by($rows) {
                let args = &mut args.tile(row, $rows);
                // SAFETY: as the caller promises; a shape holds the rows.
                unsafe {
                    match (args.rows, args.panels, args.four) {
                        $(
                            (..=$most, $np, false) => x86::tile::<_, $most, $np, false>($dots, args),
                            (..=$most, $np, true) => x86::tile::<_, $most, $np, true>($dots, args),
                        )*
                        (rows, panels, _) => unreachable!("no tile of {rows} rows by {panels} panels"),
                    }
                }
            }
        }

        $(
            /// # Safety
            /// The machine has the feature; [`Columns`] were checked.
            #[target_feature(enable = $enabled)]
            unsafe fn $columns(args: &mut Columns<'_>) {
                // SAFETY: as the caller promises.
                unsafe { x86::columns($dots, args) }
            }
        )?
    };
}

pub(super) use microkernel;

/// The rows of sums that tiles of at most `max_rows` rows below each other write, if they have `rows` rows in all: the
/// last tile writes all rows of its shape, which has at least two if it has two panels.
pub(super) fn rows_written(rows: usize, max_rows: usize) -> usize {
    let last = rows % max_rows;
    rows - last + if last == 0 { 0 } else { last.next_power_of_two().max(2) }
}

/// 4-bit values of 32 bytes times 16: those in the low halves, and those in the high halves.
///
/// # Safety
/// The machine has AVX2, and 32 bytes can be read.
#[inline(always)]
pub(super) unsafe fn halves(p: *const u8) -> [__m256i; 2] {
    // SAFETY: as the caller promises.
    unsafe {
        let (all, high) = (_mm256_loadu_si256(p.cast()), _mm256_set1_epi8(0xf0u8 as i8));
        [_mm256_and_si256(_mm256_slli_epi16::<4>(all), high), _mm256_and_si256(all, high)]
    }
}
