//! Tiles with AVX-512 VNNI: 8 rows by two panels, or a row by four.

use super::super::isa::Feature;
use super::columns::Columns;
use super::tile::{Args, Microkernel};
use super::x86::{self, Dots, microkernel};
use std::arch::x86_64::*;

microkernel! {
    Avx512Vnni: Vectors;
    feature: Avx512Vnni, "avx2,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni";
    relative_time: 3;
    panels: [4, 2];
    rows: 8;
    shapes: (1, 4), (1, 1), (2, 2), (2, 1), (4, 2), (4, 1), (8, 2), (8, 1);
    columns: column_sums;
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
    unsafe fn load_a(self, p: *const u8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe { _mm512_set1_epi32(p.cast::<i32>().read_unaligned()) }
    }
    #[inline(always)]
    unsafe fn load_b(self, p: *const u8) -> __m512i {
        // SAFETY: as the caller promises.
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_nibbles(self, p: *const u8) -> [__m512i; 2] {
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
