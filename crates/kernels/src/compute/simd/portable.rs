use super::{F16_SCALE, Op, Simd, VectorIsa};
use std::array::from_fn;

/// The portable implementation of [`Simd`]: vectors are arrays, in plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

pub(super) const CONSTANTS: VectorIsa = VectorIsa::of::<Portable>();

/// Runs `op`.
///
/// # Safety
/// Any machine can run it; other instruction sets have conditions.
#[inline(always)]
pub(super) unsafe fn enter<O: Op>(op: O) -> O::Out {
    op.run(Portable)
}

const LANES: usize = 4;

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];
    const LANES: usize = LANES;
    const NAME: &str = "portable";
    const MAX_ROWS: usize = 6;
    const WIDE_ROWS: [usize; 2] = [1, 2];
    const FUSED: bool = cfg!(target_feature = "fma");
    const IS_ARRAY: bool = true;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        from_fn(|i| if Self::FUSED { a[i].mul_add(b[i], c[i]) } else { a[i] * b[i] + c[i] })
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn splat_int(self, x: i32) -> Self::I {
        [x; LANES]
    }
    #[inline(always)]
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i].wrapping_sub(b[i]))
    }
    #[inline(always)]
    fn mul_int(self, a: Self::I, b: Self::I) -> Self::I {
        from_fn(|i| a[i].wrapping_mul(b[i]))
    }
    #[inline(always)]
    fn shift_right(self, a: Self::I, n: u32) -> Self::I {
        from_fn(|i| a[i].wrapping_shr(n))
    }
    #[inline(always)]
    fn to_float(self, a: Self::I) -> Self::F {
        from_fn(|i| a[i] as f32)
    }
    #[inline(always)]
    fn round(self, a: Self::F) -> Self::I {
        // After this addition the lowest bits hold the integer.
        const ROUND: f32 = 12_582_912.0;
        from_fn(|i| ((a[i] + ROUND).to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32))
    }
    #[inline(always)]
    unsafe fn load_int(self, p: *const i32) -> Self::I {
        // SAFETY: the caller lets LANES elements be read.
        unsafe { p.cast::<Self::I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store_int(self, p: *mut i32, a: Self::I) {
        // SAFETY: the caller lets LANES elements be written.
        unsafe { p.cast::<Self::I>().write_unaligned(a) }
    }
    #[inline(always)]
    unsafe fn store_bytes_first(self, p: *mut u8, n: usize, a: Self::I) {
        for (i, &x) in a.iter().enumerate().take(n) {
            // SAFETY: only elements below n are written, as the caller allows.
            unsafe { p.add(i).write(x as u8) }
        }
    }
    #[inline(always)]
    unsafe fn load_bytes(self, p: *const u8) -> Self::F {
        // SAFETY: the caller lets LANES bytes be read.
        let bytes = unsafe { p.cast::<[u8; LANES]>().read() };
        from_fn(|i| f32::from(bytes[i]))
    }
    #[inline(always)]
    unsafe fn load_f16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller lets LANES values be read.
        let bits = unsafe { p.cast::<[u16; LANES]>().read() }.map(u32::from);
        from_fn(|i| {
            let magnitude = f32::from_bits((bits[i] & 0x7fff) << 13) * F16_SCALE;
            f32::from_bits(magnitude.to_bits() | (bits[i] & 0x8000) << 16)
        })
    }
    #[inline(always)]
    unsafe fn load_bf16(self, p: *const u16) -> Self::F {
        // SAFETY: the caller lets LANES values be read.
        let bits = unsafe { p.cast::<[u16; LANES]>().read() };
        from_fn(|i| f32::from_bits(u32::from(bits[i]) << 16))
    }
    #[inline(always)]
    unsafe fn load_i8(self, p: *const i8) -> Self::F {
        // SAFETY: the caller lets LANES bytes be read.
        let bytes = unsafe { p.cast::<[i8; LANES]>().read() };
        from_fn(|i| f32::from(bytes[i]))
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn max_or_nan(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if b[i] > a[i] || b[i].is_nan() { b[i] } else { a[i] })
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        (a[0] + a[2]) + (a[1] + a[3])
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: the caller lets LANES elements be read; an array has the alignment of its elements.
        unsafe { p.cast::<Self::F>().read() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, a: Self::F) {
        // SAFETY: the caller lets LANES elements be written.
        unsafe { p.cast::<Self::F>().write(a) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::F {
        // SAFETY: only elements below n are read, as the caller allows.
        from_fn(|i| if i < n { unsafe { p.add(i).read() } } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize, a: Self::F) {
        for (i, &x) in a.iter().enumerate().take(n) {
            // SAFETY: only elements below n are written, as the caller allows.
            unsafe { p.add(i).write(x) }
        }
    }
}
