//! The baseline on WebAssembly with 128-bit vectors: as many lanes as the portable implementation, and bit-identical
//! results. A WebAssembly module is compiled for one instruction set, so there is nothing to detect at run time.

use super::{Op, Simd, VectorIsa};
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
    const MAX_ROWS: usize = 6;
    const WIDE_ROWS: [usize; 2] = [1, 2];
    const FUSED: bool = false;

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
        let mut lanes = [0.0f32; LANES];
        for (i, lane) in lanes.iter_mut().enumerate().take(n) {
            // SAFETY: only elements below n are read, as the caller allows.
            *lane = unsafe { p.add(i).read() };
        }
        f32x4(lanes[0], lanes[1], lanes[2], lanes[3])
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize, a: v128) {
        for (i, x) in floats(a).into_iter().enumerate().take(n) {
            // SAFETY: only elements below n are written, as the caller allows.
            unsafe { p.add(i).write(x) }
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
    unsafe fn load_bytes(self, p: *const u8) -> v128 {
        // SAFETY: the caller lets LANES bytes be read, which is what this loads.
        let bytes = unsafe { v128_load32_zero(p.cast()) };
        f32x4_convert_i32x4(u32x4_extend_low_u16x8(u16x8_extend_low_u8x16(bytes)))
    }
}

/// The lanes of a vector.
#[inline(always)]
fn floats(a: v128) -> [f32; LANES] {
    [
        f32x4_extract_lane::<0>(a),
        f32x4_extract_lane::<1>(a),
        f32x4_extract_lane::<2>(a),
        f32x4_extract_lane::<3>(a),
    ]
}
