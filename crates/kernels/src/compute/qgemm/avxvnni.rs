//! Tiles with AVX-VNNI: 4 rows by a panel, or a row by two.

use super::super::isa::Feature;
use super::columns::Columns;
use super::tile::{Args, Microkernel};
use super::x86::{self, ColumnDots, Dots, columns, halves, shapes, tile};
use std::arch::x86_64::*;

pub(super) struct AvxVnni;

impl Microkernel for AvxVnni {
    fn feature(&self) -> Option<Feature> {
        Some(Feature::AvxVnni)
    }
    fn relative_time(&self) -> usize {
        8
    }
    fn panels(&self) -> [usize; 2] {
        [2, 1]
    }
    fn rows_written(&self, rows: usize) -> usize {
        x86::rows_written(rows, MAX_ROWS)
    }
    fn columns(&self) -> Option<unsafe fn(&mut Columns<'_>)> {
        Some(column_sums)
    }
    unsafe fn run(&self, _: usize, args: &mut Args<'_>) {
        // SAFETY: as the caller promises.
        unsafe { tiles(args) }
    }
}

/// Rows of the largest tile.
const MAX_ROWS: usize = 4;

/// # Safety
/// The machine has AVX2 and AVX-VNNI; [`Args`] were checked.
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn tiles(args: &mut Args<'_>) {
    // SAFETY: as the caller promises.
    unsafe {
        shapes!(Vectors, args, MAX_ROWS, (1, 2), (1, 1), (2, 1), (4, 1));
    }
}

/// # Safety
/// The machine has AVX2 and AVX-VNNI; [`Columns`] were checked.
#[target_feature(enable = "avx2,avxvnni")]
unsafe fn column_sums(args: &mut Columns<'_>) {
    // SAFETY: as the caller promises.
    unsafe { columns(Vectors, args) }
}

#[derive(Clone, Copy)]
struct Vectors;

impl Dots for Vectors {
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

impl ColumnDots for Vectors {
    #[inline(always)]
    unsafe fn columns(self, p: *const u8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
}
