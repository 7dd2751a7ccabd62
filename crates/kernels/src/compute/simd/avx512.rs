use super::intrinsics::{intrinsics, memory_intrinsics};
use super::{Op, Simd, VectorIsa};
use std::arch::x86_64::*;

/// AVX-512 F, BW, DQ and VL. Constructed only by [`enter`], whose caller promises that the machine has them.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

pub(super) const CONSTANTS: VectorIsa = VectorIsa::of::<Avx512>();

/// Compiles `op` for AVX-512 and runs it.
///
/// # Safety
/// The machine has AVX2, FMA and AVX-512 F, BW, DQ and VL.
#[target_feature(enable = "avx2,fma,avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn enter<O: Op>(op: O) -> O::Out {
    op.run(Avx512(()))
}

/// The mask whose first `n` lanes are set.
#[inline(always)]
fn first_lanes(n: usize) -> __mmask16 {
    ((1u32 << n.min(16)) - 1) as __mmask16
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    const LANES: usize = 16;
    const NAME: &str = "avx512";
    const MAX_ROWS: usize = 14;
    const WIDE_ROWS: [usize; 2] = [2, 6];
    const FUSED: bool = true;

    intrinsics! {
        splat(x: f32) -> Self::F = _mm512_set1_ps(x);
        mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F = _mm512_fmadd_ps(a, b, c);
        add(a: Self::F, b: Self::F) -> Self::F = _mm512_add_ps(a, b);
        sub(a: Self::F, b: Self::F) -> Self::F = _mm512_sub_ps(a, b);
        mul(a: Self::F, b: Self::F) -> Self::F = _mm512_mul_ps(a, b);
        max(a: Self::F, b: Self::F) -> Self::F = _mm512_max_ps(a, b);
        max_or_nan(a: Self::F, b: Self::F) -> Self::F =
            _mm512_mask_mov_ps(_mm512_max_ps(b, a), _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(b, b), b);
        min(a: Self::F, b: Self::F) -> Self::F = _mm512_min_ps(a, b);
        sum(a: Self::F) -> f32 = _mm512_reduce_add_ps(a);
        splat_int(x: i32) -> Self::I = _mm512_set1_epi32(x);
        add_int(a: Self::I, b: Self::I) -> Self::I = _mm512_add_epi32(a, b);
        sub_int(a: Self::I, b: Self::I) -> Self::I = _mm512_sub_epi32(a, b);
        mul_int(a: Self::I, b: Self::I) -> Self::I = _mm512_mullo_epi32(a, b);
        shift_right(a: Self::I, n: u32) -> Self::I = _mm512_sra_epi32(a, _mm_cvtsi32_si128(n as i32));
        to_float(a: Self::I) -> Self::F = _mm512_cvtepi32_ps(a);
        round(a: Self::F) -> Self::I = _mm512_cvtps_epi32(a);
        prefetch(p: *const f32) -> () = _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }

    memory_intrinsics! {
        load(p: *const f32) -> Self::F = _mm512_loadu_ps(p);
        store(p: *mut f32, a: Self::F) -> () = _mm512_storeu_ps(p, a);
        load_first(p: *const f32, n: usize) -> Self::F = _mm512_maskz_loadu_ps(first_lanes(n), p);
        store_first(p: *mut f32, n: usize, a: Self::F) -> () = _mm512_mask_storeu_ps(p, first_lanes(n), a);
        load_int(p: *const i32) -> Self::I = _mm512_loadu_si512(p.cast());
        store_int(p: *mut i32, a: Self::I) -> () = _mm512_storeu_si512(p.cast(), a);
        load_bytes(p: *const u8) -> Self::F =
            _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(p.cast())));
        load_f16(p: *const u16) -> Self::F = _mm512_cvtph_ps(_mm256_loadu_si256(p.cast()));
        load_bf16(p: *const u16) -> Self::F = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(
            _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())),
        ));
        load_i8(p: *const i8) -> Self::F =
            _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())));
    }

    #[inline(always)]
    unsafe fn store_bytes_first(self, p: *mut u8, n: usize, a: Self::I) {
        // SAFETY: `self` proves AVX-512; a masked store touches only the bytes that the caller allows.
        unsafe {
            let bytes = _mm512_cvtepi32_epi8(a);
            if n >= 16 {
                _mm_storeu_si128(p.cast(), bytes)
            } else {
                _mm_mask_storeu_epi8(p.cast(), first_lanes(n), bytes)
            }
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
        let mut r = [self.splat(0.0); 16];
        for (i, x) in r.iter_mut().enumerate() {
            if i < rows {
                // SAFETY: as the caller promises.
                *x = unsafe { self.load_first(src.add(i * src_step), cols) };
            }
        }
        // SAFETY: `self` proves AVX-512.
        let t = unsafe { transpose16(r) };
        for (i, &x) in t.iter().enumerate() {
            if i < cols {
                // SAFETY: as the caller promises.
                unsafe { self.store_first(dst.add(i * dst_step), rows, x) };
            }
        }
    }
}

/// The transpose of 16 rows of 16 elements.
///
/// # Safety
/// The machine has AVX-512 F.
#[inline(always)]
unsafe fn transpose16(r: [__m512; 16]) -> [__m512; 16] {
    // SAFETY: as the caller promises.
    unsafe {
        let mut a = r;
        for i in 0..8 {
            a[2 * i] = _mm512_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            a[2 * i + 1] = _mm512_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let pd = |x, y| (_mm512_castps_pd(x), _mm512_castps_pd(y));
        let mut b = a;
        for i in 0..4 {
            for j in 0..2 {
                let (x, y) = pd(a[4 * i + j], a[4 * i + j + 2]);
                b[4 * i + 2 * j] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
                b[4 * i + 2 * j + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
            }
        }
        // Row 4i + j of `b` holds column 4l + j of rows 4i.. in its quarter l.
        let mut out = b;
        for j in 0..4 {
            let low = _mm512_shuffle_f32x4::<0x88>(b[j], b[4 + j]);
            let high = _mm512_shuffle_f32x4::<0xdd>(b[j], b[4 + j]);
            let low2 = _mm512_shuffle_f32x4::<0x88>(b[8 + j], b[12 + j]);
            let high2 = _mm512_shuffle_f32x4::<0xdd>(b[8 + j], b[12 + j]);
            out[j] = _mm512_shuffle_f32x4::<0x88>(low, low2);
            out[8 + j] = _mm512_shuffle_f32x4::<0xdd>(low, low2);
            out[4 + j] = _mm512_shuffle_f32x4::<0x88>(high, high2);
            out[12 + j] = _mm512_shuffle_f32x4::<0xdd>(high, high2);
        }
        out
    }
}
