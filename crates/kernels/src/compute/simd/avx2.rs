use super::intrinsics::{intrinsics, memory_intrinsics};
use super::{Op, Simd, VectorIsa};
use std::arch::x86_64::*;

/// AVX2, FMA and F16C. Constructed only by [`enter`], whose caller promises that the machine has them.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

pub(super) const CONSTANTS: VectorIsa = VectorIsa::of::<Avx2>();

/// Compiles `op` for AVX2 and runs it.
///
/// # Safety
/// The machine has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn enter<O: Op>(op: O) -> O::Out {
    op.run(Avx2(()))
}

/// The mask whose first `n` lanes are set.
#[inline(always)]
fn first_lanes(n: usize) -> __m256i {
    const ONES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: AVX2 is available (an `Avx2` exists); 8 elements from index 0..=8 of 16 are read.
    unsafe { _mm256_loadu_si256(ONES.as_ptr().add(8 - n.min(8)).cast()) }
}

impl Simd for Avx2 {
    type F = __m256;
    type I = __m256i;
    const LANES: usize = 8;
    const NAME: &str = "avx2";
    const MAX_ROWS: usize = 6;
    const WIDE_ROWS: [usize; 2] = [1, 2];
    const FUSED: bool = true;
    const STORES_FOUR: bool = true;
    const STORES_TWO: bool = true;

    intrinsics! {
        splat(x: f32) -> Self::F = _mm256_set1_ps(x);
        mul_add(a: Self::F, b: Self::F, c: Self::F) -> Self::F = _mm256_fmadd_ps(a, b, c);
        add(a: Self::F, b: Self::F) -> Self::F = _mm256_add_ps(a, b);
        sub(a: Self::F, b: Self::F) -> Self::F = _mm256_sub_ps(a, b);
        mul(a: Self::F, b: Self::F) -> Self::F = _mm256_mul_ps(a, b);
        max(a: Self::F, b: Self::F) -> Self::F = _mm256_max_ps(a, b);
        min(a: Self::F, b: Self::F) -> Self::F = _mm256_min_ps(a, b);
        max_or_nan(a: Self::F, b: Self::F) -> Self::F =
            _mm256_blendv_ps(_mm256_max_ps(b, a), b, _mm256_cmp_ps::<_CMP_UNORD_Q>(b, b));
        splat_int(x: i32) -> Self::I = _mm256_set1_epi32(x);
        add_int(a: Self::I, b: Self::I) -> Self::I = _mm256_add_epi32(a, b);
        sub_int(a: Self::I, b: Self::I) -> Self::I = _mm256_sub_epi32(a, b);
        mul_int(a: Self::I, b: Self::I) -> Self::I = _mm256_mullo_epi32(a, b);
        shift_right(a: Self::I, n: u32) -> Self::I = _mm256_sra_epi32(a, _mm_cvtsi32_si128(n as i32));
        to_float(a: Self::I) -> Self::F = _mm256_cvtepi32_ps(a);
        round(a: Self::F) -> Self::I = _mm256_cvtps_epi32(a);
        prefetch(p: *const f32) -> () = _mm_prefetch::<_MM_HINT_T1>(p.cast());
    }

    memory_intrinsics! {
        load(p: *const f32) -> Self::F = _mm256_loadu_ps(p);
        store(p: *mut f32, a: Self::F) -> () = _mm256_storeu_ps(p, a);
        load_first(p: *const f32, n: usize) -> Self::F = _mm256_maskload_ps(p, first_lanes(n));
        load_int(p: *const i32) -> Self::I = _mm256_loadu_si256(p.cast());
        store_int(p: *mut i32, a: Self::I) -> () = _mm256_storeu_si256(p.cast(), a);
        load_bytes(p: *const u8) -> Self::F =
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast())));
        load_f16(p: *const u16) -> Self::F = _mm256_cvtph_ps(_mm_loadu_si128(p.cast()));
        load_bf16(p: *const u16) -> Self::F =
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))));
        load_i8(p: *const i8) -> Self::F =
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())));
    }

    // Not a masked store, which takes AMD's processors some twenty cycles.
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize, a: Self::F) {
        // SAFETY: `self` proves AVX; the first `n` elements are written.
        unsafe {
            if n >= Self::LANES {
                return self.store(p, a);
            }
            let (mut p, mut rest) = (p, _mm256_castps256_ps128(a));
            if n & 4 != 0 {
                _mm_storeu_ps(p, rest);
                (p, rest) = (p.add(4), _mm256_extractf128_ps::<1>(a));
            }
            if n & 2 != 0 {
                _mm_storel_epi64(p.cast(), _mm_castps_si128(rest));
                (p, rest) = (p.add(2), _mm_movehl_ps(rest, rest));
            }
            if n & 1 != 0 {
                _mm_store_ss(p, rest);
            }
        }
    }
    #[inline(always)]
    fn sum(self, a: Self::F) -> f32 {
        // SAFETY: `self` proves AVX.
        unsafe {
            let x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
            let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
            _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps::<1>(x, x)))
        }
    }
    #[inline(always)]
    unsafe fn store_bytes_first(self, p: *mut u8, n: usize, a: Self::I) {
        // SAFETY: `self` proves AVX2; only bytes that the caller allows are written.
        unsafe {
            let lowest = _mm256_setr_epi8(
                0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1, -1, -1, -1,
                -1, -1, -1, -1, -1, -1, -1,
            );
            let bytes = _mm256_shuffle_epi8(a, lowest);
            let low = _mm_cvtsi128_si32(_mm256_castsi256_si128(bytes)).to_le_bytes();
            let high = _mm_cvtsi128_si32(_mm256_extracti128_si256::<1>(bytes)).to_le_bytes();
            if n >= 8 {
                p.cast::<[[u8; 4]; 2]>().write([low, high]);
            } else {
                for (i, x) in low.into_iter().chain(high).enumerate().take(n) {
                    p.add(i).write(x);
                }
            }
        }
    }
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, [a, b, c, d]: [Self::I; 4]) {
        // SAFETY: as the caller promises.
        unsafe {
            self.store_two_bytes(p, [a, b]);
            self.store_two_bytes(p.add(16), [c, d]);
        }
    }
    #[inline(always)]
    unsafe fn store_two_bytes(self, p: *mut u8, [a, b]: [Self::I; 2]) {
        // SAFETY: `self` proves AVX2; 16 bytes can be written.
        unsafe {
            let lowest = _mm256_set1_epi32(0xff);
            let (a, b) = (_mm256_and_si256(a, lowest), _mm256_and_si256(b, lowest));
            // Elements 0 to 3 of both vectors, then 4 to 7 of both.
            let pairs = _mm256_packs_epi32(a, b);
            let bytes = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256::<1>(pairs));
            _mm_storeu_si128(p.cast(), _mm_shuffle_epi32::<0b11_01_10_00>(bytes));
        }
    }
    #[inline(always)]
    fn interleave(self, lines: [&[u8]; 4], flip: u8, out: &mut [[u8; 4]]) -> usize {
        let len = lines.iter().fold(out.len(), |len, line| len.min(line.len())) / 16 * 16;
        // SAFETY: `self` proves AVX2; up to `len` elements of the lines and of `out` are in bounds.
        unsafe {
            let flip = _mm_set1_epi8(flip as i8);
            for i in (0..len).step_by(16) {
                let load = |line: &[u8]| _mm_xor_si128(_mm_loadu_si128(line.as_ptr().add(i).cast()), flip);
                let (a, b, c, d) = (load(lines[0]), load(lines[1]), load(lines[2]), load(lines[3]));
                let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
                let to = out.as_mut_ptr().add(i).cast::<__m128i>();
                _mm_storeu_si128(to, _mm_unpacklo_epi16(ab, cd));
                _mm_storeu_si128(to.add(1), _mm_unpackhi_epi16(ab, cd));
                let (ab, cd) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
                _mm_storeu_si128(to.add(2), _mm_unpacklo_epi16(ab, cd));
                _mm_storeu_si128(to.add(3), _mm_unpackhi_epi16(ab, cd));
            }
        }
        len
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
        let mut r = [self.splat(0.0); 8];
        for (i, x) in r.iter_mut().enumerate() {
            if i < rows {
                // SAFETY: as the caller promises.
                *x = unsafe {
                    let p = src.add(i * src_step);
                    if cols == 8 { self.load(p) } else { self.load_first(p, cols) }
                };
            }
        }
        // SAFETY: `self` proves AVX.
        let t = unsafe { transpose8(r) };
        for (i, &x) in t.iter().enumerate() {
            if i < cols {
                // SAFETY: as the caller promises.
                unsafe {
                    let p = dst.add(i * dst_step);
                    if rows == 8 { self.store(p, x) } else { self.store_first(p, rows, x) }
                }
            }
        }
    }
}

/// The transpose of 8 rows of 8 elements.
///
/// # Safety
/// The machine has AVX.
#[inline(always)]
unsafe fn transpose8(r: [__m256; 8]) -> [__m256; 8] {
    // SAFETY: as the caller promises.
    unsafe {
        let mut a = r;
        for i in 0..4 {
            a[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
            a[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
        }
        let mut out = a;
        for j in 0..2 {
            let low = _mm256_shuffle_ps::<0x44>(a[j], a[2 + j]);
            let high = _mm256_shuffle_ps::<0xee>(a[j], a[2 + j]);
            let low2 = _mm256_shuffle_ps::<0x44>(a[4 + j], a[6 + j]);
            let high2 = _mm256_shuffle_ps::<0xee>(a[4 + j], a[6 + j]);
            out[2 * j] = _mm256_permute2f128_ps::<0x20>(low, low2);
            out[2 * j + 1] = _mm256_permute2f128_ps::<0x20>(high, high2);
            out[4 + 2 * j] = _mm256_permute2f128_ps::<0x31>(low, low2);
            out[4 + 2 * j + 1] = _mm256_permute2f128_ps::<0x31>(high, high2);
        }
        out
    }
}
