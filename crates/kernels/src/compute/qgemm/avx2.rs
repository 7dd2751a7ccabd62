//! Tiles with AVX2: 2 rows by a panel, or a row by two. AVX2 has no exact dot products of 8-bit values, so values are
//! widened to 16 bits, and each column has two partial sums until the end.

use super::super::isa::Feature;
use super::tile::{Args, Microkernel};
use super::x86::{self, Dots, halves, microkernel};
use std::arch::x86_64::*;

microkernel! {
    Avx2: Vectors;
    feature: Avx2, "avx2";
    relative_time: 16;
    panels: [2, 1];
    rows: 2;
    shapes: (1, 2), (1, 1), (2, 1);
}

#[derive(Clone, Copy)]
struct Vectors;

impl Dots for Vectors {
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
    unsafe fn load_a(self, p: *const u8) -> __m256i {
        // SAFETY: as the caller promises.
        unsafe { _mm256_cvtepu8_epi16(_mm_set1_epi32(p.cast::<i32>().read_unaligned())) }
    }
    #[inline(always)]
    unsafe fn load_b(self, p: *const u8) -> [__m256i; 2] {
        // SAFETY: as the caller promises.
        unsafe { widen(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> [[__m256i; 2]; 2] {
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
