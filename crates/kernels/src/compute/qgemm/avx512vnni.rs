//! Tiles with AVX-512 VNNI: 8 rows by two panels, or a row by four.

use super::super::isa::Feature;
use super::columns::Columns;
use super::tile::{Args, Microkernel};
use super::x86::{self, ColumnDots, Dots, columns, shapes, tile};
use std::arch::x86_64::*;

pub(super) struct Avx512Vnni;

impl Microkernel for Avx512Vnni {
    fn feature(&self) -> Option<Feature> {
        Some(Feature::Avx512Vnni)
    }
    fn relative_time(&self) -> usize {
        3
    }
    fn panels(&self) -> [usize; 2] {
        [4, 2]
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
const MAX_ROWS: usize = 8;

/// # Safety
/// The machine has AVX-512 F, BW and VNNI; [`Args`] were checked.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn tiles(args: &mut Args<'_>) {
    // SAFETY: as the caller promises.
    unsafe {
        shapes!(Vectors, args, MAX_ROWS, (1, 4), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1));
    }
}

/// # Safety
/// The machine has AVX-512 F, BW and VNNI; [`Columns`] were checked.
#[target_feature(enable = "avx2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn column_sums(args: &mut Columns<'_>) {
    // SAFETY: as the caller promises.
    unsafe { columns(Vectors, args) }
}

#[derive(Clone, Copy)]
struct Vectors;

impl Dots for Vectors {
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

impl ColumnDots for Vectors {
    #[inline(always)]
    unsafe fn columns(self, p: *const u8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
}
