//! The baseline on WebAssembly with 128-bit vectors: as many lanes as the portable implementation, and bit-identical
//! results. A WebAssembly module is compiled for one instruction set, so there is nothing to detect at run time.

use super::{F16_SCALE, Op, Simd, VectorIsa};
use std::arch::wasm32::*;

/// The WebAssembly implementation of [`Simd`], with vectors of 128 bits.
#[derive(Clone, Copy)]
pub(crate) struct Simd128;

pub(super) const CONSTANTS: VectorIsa = VectorIsa::of::<Simd128>();

/// Runs `op`.
///
/// # Safety
/// Any machine can run it; other instruction sets have conditions.
#[inline(always)]
pub(super) unsafe fn enter<O: Op>(op: O) -> O::Out {
    op.run(Simd128)
}

const LANES: usize = 4;

impl Simd for Simd128 {
    type F = v128;
    type I = v128;
    const LANES: usize = LANES;
    const NAME: &str = "portable";
    /// Taller tiles are slower: with 12 sums, engines run out of the 16 registers of x86-64.
    const MAX_ROWS: usize = 4;
    const WIDE_ROWS: [usize; 2] = [1, 2];
    const FUSED: bool = false;
    const STORES_FOUR: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> v128 {
        f32x4_splat(x)
    }
    #[inline(always)]
    fn mul_add(self, a: v128, b: v128, c: v128) -> v128 {
        f32x4_add(f32x4_mul(a, b), c)
    }
    #[inline(always)]
    fn add(self, a: v128, b: v128) -> v128 {
        f32x4_add(a, b)
    }
    #[inline(always)]
    fn sub(self, a: v128, b: v128) -> v128 {
        f32x4_sub(a, b)
    }
    #[inline(always)]
    fn mul(self, a: v128, b: v128) -> v128 {
        f32x4_mul(a, b)
    }
    #[inline(always)]
    fn max_or_nan(self, a: v128, b: v128) -> v128 {
        v128_bitselect(b, a, v128_or(f32x4_gt(b, a), f32x4_ne(b, b)))
    }
    #[inline(always)]
    fn max(self, a: v128, b: v128) -> v128 {
        // `pmax` returns its second operand if that is greater, otherwise its first.
        f32x4_pmax(b, a)
    }
    #[inline(always)]
    fn min(self, a: v128, b: v128) -> v128 {
        f32x4_pmin(b, a)
    }
    #[inline(always)]
    fn sum(self, a: v128) -> f32 {
        let halves = f32x4_add(a, i32x4_shuffle::<2, 3, 2, 3>(a, a));
        f32x4_extract_lane::<0>(halves) + f32x4_extract_lane::<1>(halves)
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> v128 {
        // SAFETY: the caller lets LANES elements be read; no alignment is needed.
        unsafe { v128_load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, a: v128) {
        // SAFETY: the caller lets LANES elements be written; no alignment is needed.
        unsafe { v128_store(p.cast(), a) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> v128 {
        // SAFETY: only elements below n are read, as the caller allows; no alignment is needed.
        unsafe {
            if n >= LANES {
                return v128_load(p.cast());
            }
            match n {
                0 => f32x4_splat(0.0),
                1 => v128_load32_zero(p.cast()),
                2 => v128_load64_zero(p.cast()),
                _ => v128_load32_lane::<2>(v128_load64_zero(p.cast()), p.add(2).cast()),
            }
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize, a: v128) {
        // SAFETY: only elements below n are written, as the caller allows; no alignment is needed.
        unsafe {
            if n >= LANES {
                return v128_store(p.cast(), a);
            }
            match n {
                0 => {}
                1 => v128_store32_lane::<0>(a, p.cast()),
                2 => v128_store64_lane::<0>(a, p.cast()),
                _ => {
                    v128_store64_lane::<0>(a, p.cast());
                    v128_store32_lane::<2>(a, p.add(2).cast());
                }
            }
        }
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> v128 {
        i32x4_splat(x)
    }
    #[inline(always)]
    fn add_int(self, a: v128, b: v128) -> v128 {
        i32x4_add(a, b)
    }
    #[inline(always)]
    fn sub_int(self, a: v128, b: v128) -> v128 {
        i32x4_sub(a, b)
    }
    #[inline(always)]
    fn mul_int(self, a: v128, b: v128) -> v128 {
        i32x4_mul(a, b)
    }
    #[inline(always)]
    fn shift_right(self, a: v128, n: u32) -> v128 {
        i32x4_shr(a, n)
    }
    #[inline(always)]
    fn to_float(self, a: v128) -> v128 {
        f32x4_convert_i32x4(a)
    }
    #[inline(always)]
    fn round(self, a: v128) -> v128 {
        // After this addition the lowest bits hold the integer.
        let round = f32x4_splat(12_582_912.0);
        i32x4_sub(f32x4_add(a, round), round)
    }
    #[inline(always)]
    unsafe fn load_int(self, p: *const i32) -> v128 {
        // SAFETY: the caller lets LANES elements be read; no alignment is needed.
        unsafe { v128_load(p.cast()) }
    }
    #[inline(always)]
    unsafe fn store_int(self, p: *mut i32, a: v128) {
        // SAFETY: the caller lets LANES elements be written; no alignment is needed.
        unsafe { v128_store(p.cast(), a) }
    }
    #[inline(always)]
    unsafe fn store_bytes_first(self, p: *mut u8, n: usize, a: v128) {
        let lowest = i8x16_shuffle::<0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12>(a, a);
        let bytes = i32x4_extract_lane::<0>(lowest).to_le_bytes();
        if n >= LANES {
            // SAFETY: the caller lets n bytes be written, and n is at least LANES.
            unsafe { p.cast::<[u8; LANES]>().write(bytes) };
            return;
        }
        for (i, x) in bytes.into_iter().enumerate().take(n) {
            // SAFETY: only bytes below n are written, as the caller allows.
            unsafe { p.add(i).write(x) }
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, [a, b, c, d]: [v128; 4]) {
        // Takes the even bytes of two vectors, and so the lowest of each four in two steps.
        let even = |a, b| i8x16_shuffle::<0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30>(a, b);
        // SAFETY: the caller lets 16 bytes be written.
        unsafe { v128_store(p.cast(), even(even(a, b), even(c, d))) };
    }
    #[inline(always)]
    fn interleave(self, lines: [&[u8]; 4], flip: u8, out: &mut [[u8; 4]]) -> usize {
        let [a, b, c, d] = lines.map(|line| line.as_chunks::<16>().0);
        let blocks = a.iter().zip(b).zip(c).zip(d).zip(out.as_chunks_mut::<16>().0);
        let (flip, mut done) = (u8x16_splat(flip), 0);
        for ((((a, b), c), d), out) in blocks {
            // SAFETY: each line has 16 bytes.
            let load = |line: &[u8; 16]| v128_xor(unsafe { v128_load(line.as_ptr().cast()) }, flip);
            let low = |a, b| i8x16_shuffle::<0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23>(a, b);
            let high =
                |a, b| i8x16_shuffle::<8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31>(a, b);
            let (a, b, c, d) = (load(a), load(b), load(c), load(d));
            let to: *mut v128 = out.as_mut_ptr().cast();
            for (i, (ab, cd)) in [(low(a, b), low(c, d)), (high(a, b), high(c, d))].into_iter().enumerate() {
                // SAFETY: `out` has four vectors.
                unsafe {
                    v128_store(to.add(2 * i), i16x8_shuffle::<0, 8, 1, 9, 2, 10, 3, 11>(ab, cd));
                    v128_store(to.add(2 * i + 1), i16x8_shuffle::<4, 12, 5, 13, 6, 14, 7, 15>(ab, cd));
                }
            }
            done += 16;
        }
        done
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> v128 {
        // SAFETY: the caller lets LANES bytes be read, which is what this loads.
        let bytes = unsafe { v128_load32_zero(p.cast()) };
        f32x4_convert_i32x4(u32x4_extend_low_u16x8(u16x8_extend_low_u8x16(bytes)))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> v128 {
        // SAFETY: the caller lets LANES values be read; no alignment is needed.
        let bits = unsafe { u32x4_load_extend_u16x4(p) };
        let magnitude = u32x4_shl(v128_and(bits, u32x4_splat(0x7fff)), 13);
        let sign = u32x4_shl(v128_and(bits, u32x4_splat(0x8000)), 16);
        v128_or(f32x4_mul(magnitude, f32x4_splat(F16_SCALE)), sign)
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> v128 {
        // SAFETY: the caller lets LANES values be read; no alignment is needed.
        u32x4_shl(unsafe { u32x4_load_extend_u16x4(p) }, 16)
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> v128 {
        // SAFETY: the caller lets LANES bytes be read, which is what this loads.
        let bytes = unsafe { v128_load32_zero(p.cast()) };
        f32x4_convert_i32x4(i32x4_extend_low_i16x8(i16x8_extend_low_i8x16(bytes)))
    }
}
