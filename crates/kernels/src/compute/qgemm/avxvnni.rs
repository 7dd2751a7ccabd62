//! Tiles with AVX-VNNI: 4 rows by a panel, or a row by two.

use super::super::isa::Feature;
use super::columns::Columns;
use super::tile::{Args, Microkernel};
use super::x86::{self, Dots, halves, microkernel};
use std::arch::x86_64::*;

microkernel! {
    AvxVnni: Vectors;
    feature: AvxVnni, "avx2,avxvnni";
    relative_time: 8;
    panels: [2, 1];
    rows: 4;
    shapes: (1, 2), (1, 1), (2, 1), (4, 1);
    columns: column_sums;
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
    unsafe fn load_a(self, p: *const u8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn load_b(self, p: *const u8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> [__m256i; 2] {
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
