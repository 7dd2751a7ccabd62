use super::{Level, Op, Simd};
use std::arch::x86_64::*;

/// AVX2 and FMA. Made only by [`enter`], whose caller vouches for the machine.
#[derive(Clone, Copy)]
pub(crate) struct Avx2(());

/// Compiles `op` for AVX2 and runs it.
///
/// # Safety
/// The machine has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn enter<O: Op>(op: O) -> O::Out {
    op.run(Avx2(()))
}

/// The mask whose first `n` lanes are set.
#[inline(always)]
fn first(n: usize) -> __m256i {
    const ONES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: AVX2 is there (an `Avx2` exists); 8 elements from index 0..=8 of 16 are read.
    unsafe { _mm256_loadu_si256(ONES.as_ptr().add(8 - n.min(8)).cast()) }
}

impl Simd for Avx2 {
    type F = __m256;
    const LANES: usize = 8;
    const MAX_ROWS: usize = 6;
    const FUSED: bool = true;
    const LEVEL: Level = Level::Avx2;

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        // SAFETY: AVX2 is there: `self` proves it. The same holds for every block below.
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        // SAFETY: `self` proves FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX.
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX.
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    fn max(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX.
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    fn min(self, a: Self::F, b: Self::F) -> Self::F {
        // SAFETY: `self` proves AVX.
        unsafe { _mm256_min_ps(a, b) }
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
    unsafe fn load(self, p: *const f32) -> Self::F {
        // SAFETY: the caller lets 8 elements be read.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, a: Self::F) {
        // SAFETY: the caller lets 8 elements be written.
        unsafe { _mm256_storeu_ps(p, a) }
    }
    #[inline(always)]
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::F {
        // SAFETY: a masked load touches only the lanes that the caller allows.
        unsafe { _mm256_maskload_ps(p, first(n)) }
    }
    #[inline(always)]
    unsafe fn store_first(self, p: *mut f32, n: usize, a: Self::F) {
        // SAFETY: a masked store touches only the lanes that the caller allows.
        unsafe { _mm256_maskstore_ps(p, first(n), a) }
    }
}
