//! The baseline on AArch64, where every machine has NEON: the same lanes as the one in plain Rust and bit-identical
//! results, but for the sign of zeros that are clamped.

use super::intrinsics::{intrinsics, memory_intrinsics};
use super::{F16_SCALE, Op, Rounding, Simd, VectorIsa};
use std::arch::aarch64::*;

/// The AArch64 implementation of [`Simd`], with vectors of 128 bits.
#[derive(Clone, Copy)]
pub(crate) struct Neon;

pub(super) const CONSTANTS: VectorIsa = VectorIsa::of::<Neon>();

/// Runs `op`.
///
/// # Safety
/// Any machine can run it; other instruction sets have conditions.
#[inline(always)]
pub(super) unsafe fn enter<O: Op>(op: O) -> O::Out {
    op.run(Neon)
}

const LANES: usize = 4;

impl Simd for Neon {
    type F = float32x4_t;
    type I = int32x4_t;
    const LANES: usize = LANES;
    const NAME: &str = "portable";
    const MAX_ROWS: usize = 12;
    const WIDE_ROWS: [usize; 2] = [1, 2];
    const FUSED: bool = true;
    const BY_LANE: bool = true;
    const STORES_FOUR: bool = true;
    const SATURATES: bool = true;

    intrinsics! {
        splat(x: f32) -> Self::F = vdupq_n_f32(x);
        mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F = vfmaq_f32(c, a, b);
        add(a: Self::F, b: Self::F) -> Self::F = vaddq_f32(a, b);
        sub(a: Self::F, b: Self::F) -> Self::F = vsubq_f32(a, b);
        mul(a: Self::F, b: Self::F) -> Self::F = vmulq_f32(a, b);
        // Not `fmax` and `fmin`, which differ where an operand is NaN and in the sign of zero.
        max(a: Self::F, b: Self::F) -> Self::F = vbslq_f32(vcgtq_f32(a, b), a, b);
        max_or_nan(a: Self::F, b: Self::F) -> Self::F =
            vbslq_f32(vornq_u32(vcgtq_f32(b, a), vceqq_f32(b, b)), b, a);
        min(a: Self::F, b: Self::F) -> Self::F = vbslq_f32(vcltq_f32(a, b), a, b);
        limit(a: Self::F, low: Self::F, high: Self::F) -> Self::F = vminnmq_f32(vmaxnmq_f32(a, low), high);
        clamp(a: Self::F, low: Self::F, high: Self::F) -> Self::F = vminq_f32(vmaxq_f32(a, low), high);
        sum(a: Self::F) -> f32 = vpadds_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)));
        splat_int(x: i32) -> Self::I = vdupq_n_s32(x);
        add_int(a: Self::I, b: Self::I) -> Self::I = vaddq_s32(a, b);
        sub_int(a: Self::I, b: Self::I) -> Self::I = vsubq_s32(a, b);
        mul_int(a: Self::I, b: Self::I) -> Self::I = vmulq_s32(a, b);
        shift_right(a: Self::I, n: u32) -> Self::I = vshlq_s32(a, vdupq_n_s32((n as i32).wrapping_neg()));
        to_float(a: Self::I) -> Self::F = vcvtq_f32_s32(a);
        round(a: Self::F) -> Self::I = vcvtnq_s32_f32(a);
    }

    memory_intrinsics! {
        load(p: *const f32) -> Self::F = vld1q_f32(p);
        store(p: *mut f32, a: Self::F) -> () = vst1q_f32(p, a);
        load_int(p: *const i32) -> Self::I = vreinterpretq_s32_u8(vld1q_u8(p.cast()));
        store_int(p: *mut i32, a: Self::I) -> () = vst1q_u8(p.cast(), vreinterpretq_u8_s32(a));
    }

    #[inline(always)]
    fn mul_add_lane<const LANE: i32>(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: every machine has NEON.
        unsafe { vfmaq_laneq_f32::<LANE>(c, b, a) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::F {
        // SAFETY: every machine has NEON; only elements below n are read, as the caller allows.
        unsafe {
            let none = vdup_n_f32(0.0);
            match n {
                0 => vdupq_n_f32(0.0),
                1 => vcombine_f32(vld1_lane_f32::<0>(p, none), none),
                2 => vcombine_f32(vld1_f32(p), none),
                3 => vcombine_f32(vld1_f32(p), vld1_lane_f32::<0>(p.add(2), none)),
                _ => vld1q_f32(p),
            }
        }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize, a: Self::F) {
        // SAFETY: every machine has NEON; only elements below n are written, as the caller allows.
        unsafe {
            match n {
                0 => {}
                1 => vst1q_lane_f32::<0>(p, a),
                2 => vst1_f32(p, vget_low_f32(a)),
                3 => {
                    vst1_f32(p, vget_low_f32(a));
                    vst1q_lane_f32::<2>(p.add(2), a);
                }
                _ => vst1q_f32(p, a),
            }
        }
    }
    #[inline(always)]
    unsafe fn store_bytes_first(self, p: *mut u8, n: usize, a: Self::I) {
        // SAFETY: every machine has NEON; only bytes below n are written, as the caller allows.
        unsafe {
            let halves = vmovn_s32(a);
            let bytes = vget_lane_u32::<0>(vreinterpret_u32_s8(vmovn_s16(vcombine_s16(halves, halves))));
            if n >= LANES {
                p.cast::<u32>().write_unaligned(bytes);
                return;
            }
            for (i, x) in bytes.to_le_bytes().into_iter().enumerate().take(n) {
                p.add(i).write(x);
            }
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, a: [Self::I; 4]) {
        let [a, b, c, d] = a;
        // SAFETY: every machine has NEON; the caller lets 16 bytes be written.
        unsafe {
            let halves =
                |a, b| vreinterpretq_u8_s16(vuzp1q_s16(vreinterpretq_s16_s32(a), vreinterpretq_s16_s32(b)));
            vst1q_u8(p, vuzp1q_u8(halves(a, b), halves(c, d)));
        }
    }
    #[inline(always)]
    unsafe fn store_rounded<const SIGNED: bool>(self, p: *mut u8, y: [Self::F; 4], to: &Rounding) {
        let [a, b, c, d] = y;
        // SAFETY: every machine has NEON; the caller lets 16 bytes be written.
        unsafe {
            let zero = vdupq_n_s16(to.zero as i16);
            let halves = |a, b| {
                let low = vqmovn_s32(vcvtnq_s32_f32(a));
                vqaddq_s16(vqmovn_high_s32(low, vcvtnq_s32_f32(b)), zero)
            };
            let (low, high) = (halves(a, b), halves(c, d));
            let bytes = if SIGNED {
                let bytes = vqmovn_high_s16(vqmovn_s16(low), high);
                let bytes = vmaxq_s8(bytes, vdupq_n_s8(to.low as i8));
                vreinterpretq_u8_s8(vminq_s8(bytes, vdupq_n_s8(to.high as i8)))
            } else {
                let bytes = vqmovun_high_s16(vqmovun_s16(low), high);
                vminq_u8(vmaxq_u8(bytes, vdupq_n_u8(to.low as u8)), vdupq_n_u8(to.high as u8))
            };
            vst1q_u8(p, bytes);
        }
    }
    #[inline(always)]
    fn interleave(self, lines: [&[u8]; 4], flip: u8, out: &mut [[u8; 4]]) -> usize {
        let [a, b, c, d] = lines.map(|line| line.as_chunks::<16>().0);
        let blocks = a.iter().zip(b).zip(c).zip(d).zip(out.as_chunks_mut::<16>().0);
        let mut done = 0;
        // SAFETY: every machine has NEON; each line has 16 bytes, and `out` as many of all.
        unsafe {
            let flips = vdupq_n_u8(flip);
            let load = |line: &[u8; 16]| vld1q_u8(line.as_ptr());
            if flip == 0 {
                for ((((a, b), c), d), out) in blocks {
                    vst4q_u8(out.as_mut_ptr().cast(), uint8x16x4_t(load(a), load(b), load(c), load(d)));
                    done += 16;
                }
            } else {
                let load = |line| veorq_u8(load(line), flips);
                for ((((a, b), c), d), out) in blocks {
                    vst4q_u8(out.as_mut_ptr().cast(), uint8x16x4_t(load(a), load(b), load(c), load(d)));
                    done += 16;
                }
            }
        }
        done
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::F {
        // SAFETY: every machine has NEON; the caller lets LANES bytes be read, which is what this loads.
        unsafe {
            let bytes = vreinterpret_u8_u32(vdup_n_u32(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))
        }
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: every machine has NEON; the caller lets LANES values be read.
        unsafe {
            let bits = vmovl_u16(vld1_u16(p));
            let magnitude = vreinterpretq_f32_u32(vshlq_n_u32::<13>(vandq_u32(bits, vdupq_n_u32(0x7fff))));
            let magnitude = vmulq_f32(magnitude, vdupq_n_f32(F16_SCALE));
            let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
            vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(magnitude), sign))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: every machine has NEON; the caller lets LANES values be read.
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::F {
        // SAFETY: every machine has NEON; the caller lets LANES bytes be read, which is what this loads.
        unsafe {
            let bytes = vreinterpret_s8_u32(vdup_n_u32(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
        }
    }
    #[inline(always)]
    unsafe fn transpose(
        self,
        src: *const f32,
        src_step: usize,
        (rows, cols): (usize, usize),
        dst: *mut f32,
        dst_step: usize,
    ) {
        let mut r = [self.splat(0.0); LANES];
        for (i, x) in r.iter_mut().enumerate() {
            if i < rows {
                // SAFETY: as the caller promises.
                *x = unsafe { self.load_first(src.add(i * src_step), cols) };
            }
        }
        for (i, x) in transpose4(r).into_iter().enumerate() {
            if i < cols {
                // SAFETY: as the caller promises.
                unsafe { self.store_first(dst.add(i * dst_step), rows, x) };
            }
        }
    }
}

/// The transpose of 4 rows of 4 elements.
#[inline(always)]
fn transpose4([a, b, c, d]: [float32x4_t; LANES]) -> [float32x4_t; LANES] {
    // SAFETY: every machine has NEON.
    unsafe {
        let (ab, cd) = (vtrnq_f32(a, b), vtrnq_f32(c, d));
        [
            vcombine_f32(vget_low_f32(ab.0), vget_low_f32(cd.0)),
            vcombine_f32(vget_low_f32(ab.1), vget_low_f32(cd.1)),
            vcombine_f32(vget_high_f32(ab.0), vget_high_f32(cd.0)),
            vcombine_f32(vget_high_f32(ab.1), vget_high_f32(cd.1)),
        ]
    }
}
