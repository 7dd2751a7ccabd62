//! SIMD code written once for every instruction set. An [`Op`] is generic over a [`Simd`]; [`dispatch`] runs the
//! instance that was compiled for the best instruction set of an [`Isa`](super::Isa).
//!
//! Bodies must be `#[inline(always)]` down to the intrinsics: only code inlined into the dispatcher is compiled with
//! the instructions. An instruction set is a file and a row in `select.rs`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod intrinsics;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(not(any(target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128"))))]
mod portable;
mod select;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
mod simd128;
#[cfg(test)]
mod tests;

pub(crate) use select::dispatch;

/// `2^112`. The bits of a finite float16 value, shifted to the place of an f32's, are the value divided by this.
const F16_SCALE: f32 = f32::from_bits(0x7780_0000);

/// The most lanes that a vector has.
pub(crate) const MAX_LANES: usize = 16;

/// Vectors of f32 of an instruction set, and vectors of as many i32. A value of a type that implements this proves
/// that the machine has the instruction set.
pub(crate) trait Simd: Copy {
    /// A vector of f32.
    type F: Copy;
    /// A vector of i32.
    type I: Copy;
    /// The number of lanes of a vector.
    const LANES: usize;
    /// The name of the instruction set. Stored weights are packed for a name: instruction sets with the same name
    /// must have the same tiles.
    const NAME: &str;
    /// The number of rows of the largest GEMM tile, which uses all vector registers at two vectors a row.
    const MAX_ROWS: usize;
    /// The largest number of rows of a GEMM tile of four panels, and of one of two panels. Taller tiles have one: their
    /// rows are independent accumulators enough to hide the latency of multiply-add.
    const WIDE_ROWS: [usize; 2];
    /// Whether multiply-add rounds once, in one instruction.
    const FUSED: bool;
    /// Whether a vector is an array, so that the compiler vectorizes plain loops over it.
    const IS_ARRAY: bool = false;
    /// Whether bytes of four vectors are best stored together.
    const STORES_FOUR: bool = false;
    /// Whether bytes of two vectors are best stored together.
    const STORES_TWO: bool = false;
    /// Whether rounded values are limited to 8 bits as they are narrowed, so that [`Simd::store_rounded`] takes fewer
    /// instructions than to limit, round and store.
    const SATURATES: bool = false;
    /// Whether a lane of a vector of four multiplies another vector in one instruction, [`Simd::mul_add_lane`]: tiles
    /// then load elements four at a time instead of one by one.
    const BY_LANE: bool = false;

    /// A vector with `x` in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// `a * b + c`; rounded once if [`Simd::FUSED`].
    fn mul_add(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// `a[LANE] * b + c`, rounded as [`Simd::mul_add`] rounds; through memory unless [`Simd::BY_LANE`].
    #[inline(always)]
    fn mul_add_lane<const LANE: i32>(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut lanes = [0.0; MAX_LANES];
        // SAFETY: no vector has more lanes.
        unsafe { self.store(lanes.as_mut_ptr(), a) };
        self.mul_add(self.splat(lanes[LANE as usize]), b, c)
    }
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// The greater of `a` and `b` in each lane; `b` where either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The lesser of `a` and `b` in each lane; `b` where either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The greater of `a` and `b` in each lane, `a` where they are equal, and NaN where either is NaN.
    fn max_or_nan(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a` limited to `low..=high`, which are numbers; `low` where it is NaN. The sign of a zero is unspecified.
    #[inline(always)]
    fn limit(self, a: Self::F, low: Self::F, high: Self::F) -> Self::F {
        self.min(self.max(a, low), high)
    }
    /// `a` limited to `low..=high`, which are numbers; `high` if `low > high`; NaN where it is NaN. The sign of a zero is
    /// unspecified.
    #[inline(always)]
    fn clamp(self, a: Self::F, low: Self::F, high: Self::F) -> Self::F {
        self.min(high, self.max(low, a))
    }
    /// The sum of the lanes, in an order fixed for the instruction set.
    fn sum(self, a: Self::F) -> f32;

    /// Loads a vector; `p` needs no more than the alignment of an f32.
    ///
    /// # Safety
    /// `LANES` elements can be read at `p`.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// Stores a vector; `p` needs no more than the alignment of an f32.
    ///
    /// # Safety
    /// `LANES` elements can be written at `p`.
    unsafe fn store(self, p: *mut f32, a: Self::F);
    /// Loads the first `n.min(LANES)` elements; the rest are zero.
    ///
    /// # Safety
    /// `n.min(LANES)` elements can be read at `p`.
    unsafe fn load_first(self, p: *const f32, n: usize) -> Self::F;
    /// Stores the first `n.min(LANES)` elements.
    ///
    /// # Safety
    /// `n.min(LANES)` elements can be written at `p`.
    unsafe fn store_first(self, p: *mut f32, n: usize, a: Self::F);

    /// A vector with `x` in every lane.
    fn splat_int(self, x: i32) -> Self::I;
    /// `a + b`, wrapping.
    fn add_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a - b`, wrapping.
    fn sub_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a * b`, wrapping.
    fn mul_int(self, a: Self::I, b: Self::I) -> Self::I;
    /// `a >> n`, keeping the sign; `n` is below 32.
    fn shift_right(self, a: Self::I, n: u32) -> Self::I;
    /// Converts to the nearest f32 values.
    fn to_float(self, a: Self::I) -> Self::F;
    /// Rounds f32 values, of magnitudes below 2^22, to the nearest integers, half to even.
    fn round(self, a: Self::F) -> Self::I;

    /// Loads integers; `p` need not be aligned.
    ///
    /// # Safety
    /// `LANES` elements can be read at `p`.
    unsafe fn load_int(self, p: *const i32) -> Self::I;
    /// Stores integers; `p` need not be aligned.
    ///
    /// # Safety
    /// `LANES` elements can be written at `p`.
    #[cfg_attr(target_arch = "aarch64", allow(dead_code, reason = "tests use it"))]
    unsafe fn store_int(self, p: *mut i32, a: Self::I);
    /// Stores the lowest bytes of the first `n.min(LANES)` elements.
    ///
    /// # Safety
    /// `n.min(LANES)` bytes can be written at `p`.
    unsafe fn store_bytes_first(self, p: *mut u8, n: usize, a: Self::I);
    /// Stores the lowest bytes of four vectors, one after the other.
    ///
    /// # Safety
    /// `4 * LANES` bytes can be written at `p`.
    #[inline(always)]
    unsafe fn store_bytes(self, p: *mut u8, a: [Self::I; 4]) {
        for (i, a) in a.into_iter().enumerate() {
            // SAFETY: as the caller promises.
            unsafe { self.store_bytes_first(p.add(i * Self::LANES), Self::LANES, a) };
        }
    }
    /// Stores the lowest bytes of two vectors, one after the other.
    ///
    /// # Safety
    /// `2 * LANES` bytes can be written at `p`.
    #[inline(always)]
    unsafe fn store_two_bytes(self, p: *mut u8, [a, b]: [Self::I; 2]) {
        // SAFETY: as the caller promises.
        unsafe {
            self.store_bytes_first(p, Self::LANES, a);
            self.store_bytes_first(p.add(Self::LANES), Self::LANES, b);
        }
    }
    /// Rounds the values of four vectors, none of which is NaN, to the nearest integers, half to even, and stores them as
    /// `to` says, one after the other; `SIGNED` is [`Rounding::is_signed`].
    ///
    /// # Safety
    /// `4 * LANES` bytes can be written at `p`.
    #[inline(always)]
    unsafe fn store_rounded<const SIGNED: bool>(self, p: *mut u8, y: [Self::F; 4], to: &Rounding) {
        let [low, high] = [to.low, to.high].map(|bound| self.splat((bound - to.zero) as f32));
        let rounded = |y| self.add_int(self.round(self.limit(y, low, high)), self.splat_int(to.zero));
        // SAFETY: as the caller promises.
        unsafe { self.store_bytes(p, [rounded(y[0]), rounded(y[1]), rounded(y[2]), rounded(y[3])]) };
    }
    /// Interleaves the bytes of four lines, with the bits of `flip` inverted, as far as they fill vectors; returns how many
    /// bytes of each line that are.
    #[inline(always)]
    fn interleave(self, lines: [&[u8]; 4], flip: u8, out: &mut [[u8; 4]]) -> usize {
        let _ = (lines, flip, out);
        0
    }
    /// Converts unsigned bytes to f32.
    ///
    /// # Safety
    /// `LANES` bytes can be read at `p`.
    #[cfg_attr(target_arch = "aarch64", allow(dead_code, reason = "taps are summed in integers there"))]
    unsafe fn load_bytes(self, p: *const u8) -> Self::F;
    /// Converts float16 values, all of which are finite, to f32.
    ///
    /// # Safety
    /// `LANES` values can be read at `p`.
    unsafe fn load_f16(self, p: *const u16) -> Self::F;
    /// Converts bfloat16 values to f32.
    ///
    /// # Safety
    /// `LANES` values can be read at `p`.
    unsafe fn load_bf16(self, p: *const u16) -> Self::F;
    /// Converts signed bytes to f32.
    ///
    /// # Safety
    /// `LANES` bytes can be read at `p`.
    unsafe fn load_i8(self, p: *const i8) -> Self::F;

    /// Prefetches the cache line at `p` to the second-level cache; `p` need not be valid. Does nothing if the
    /// instruction set has no prefetch.
    #[inline(always)]
    fn prefetch(self, p: *const f32) {
        let _ = p;
    }

    /// Transposes a block of at most `LANES x LANES`: `dst[c * dst_step + r] = src[r * src_step + c]`.
    ///
    /// # Safety
    /// `rows` rows of `cols` elements can be read and `cols` rows of `rows` elements written; both numbers are at
    /// most `LANES`.
    #[inline(always)]
    unsafe fn transpose(
        self,
        src: *const f32,
        src_step: usize,
        (rows, cols): (usize, usize),
        dst: *mut f32,
        dst_step: usize,
    ) {
        for c in 0..cols {
            for r in 0..rows {
                // SAFETY: as the caller promises.
                unsafe { *dst.add(c * dst_step + r) = *src.add(r * src_step + c) };
            }
        }
    }

    /// `a * b + c` of scalars, rounded as [`Simd::mul_add`] rounds.
    #[inline(always)]
    fn mul_add_scalar(self, a: f32, b: f32, c: f32) -> f32 {
        if Self::FUSED { a.mul_add(b, c) } else { a * b + c }
    }
}

/// How rounded values become bytes: `zero` is added, and the sums are limited to `low..=high`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounding {
    zero: i32,
    low: i32,
    high: i32,
}

impl Rounding {
    /// The largest magnitude of a zero point: a value outside 16 bits is then outside the bounds, too, when it is limited
    /// to 16 bits first.
    const MAX_ZERO: u32 = 32_000;

    /// `None` unless the bounds are in the range of `i8` or of `u8`, and the zero point is small enough.
    pub(crate) fn new(zero: i32, low: i32, high: i32) -> Option<Self> {
        let is_narrow = low <= high && (-128 <= low && high <= 127 || 0 <= low && high <= 255);
        (is_narrow && zero.unsigned_abs() <= Self::MAX_ZERO).then_some(Self { zero, low, high })
    }

    /// Whether the bounds are in the range of `i8`.
    #[inline(always)]
    pub(crate) fn is_signed(&self) -> bool {
        self.high <= 127
    }
}

/// Code written once for every instruction set. `run` must be `#[inline(always)]`.
pub(crate) trait Op {
    /// The type of the result.
    type Out;
    /// Runs the operation with the instructions of `s`.
    fn run<S: Simd>(self, s: S) -> Self::Out;
}

/// The constants of the [`Simd`] that [`dispatch`] chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VectorIsa {
    /// The [`Simd::NAME`] of the instruction set.
    pub(crate) name: &'static str,
    /// The [`Simd::LANES`] of the instruction set.
    pub(crate) lanes: usize,
    /// The [`Simd::MAX_ROWS`] of the instruction set.
    pub(crate) max_rows: usize,
    /// The [`Simd::WIDE_ROWS`] of the instruction set.
    pub(crate) wide_rows: [usize; 2],
}

impl VectorIsa {
    const fn of<S: Simd>() -> Self {
        Self { name: S::NAME, lanes: S::LANES, max_rows: S::MAX_ROWS, wide_rows: S::WIDE_ROWS }
    }
}
