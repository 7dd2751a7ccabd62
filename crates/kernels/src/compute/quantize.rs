//! Quantization of f32 to 8-bit values, and dequantization.

use super::isa::Isa;
use super::rows::min_max;
use super::simd::{Op, Rounding, Simd, dispatch};
use super::split;
use pteron_pool::Pool;

/// Scale and zero point of quantized values: `q` stands for `(q - zero) * scale`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Affine {
    /// The difference between the dequantized values of neighbouring integers.
    pub scale: f32,
    /// The zero point: the quantized value of zero.
    pub zero: i32,
}

/// How f32 values are quantized to 8 bits: `clamp(round(x / scale) + zero, low, high)`, rounding half to even, NaN to
/// `low`. The division is a multiplication by the reciprocal, as in `quantized_decomposed::quantize_per_tensor`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quantization {
    /// Scale and zero point.
    pub affine: Affine,
    /// The least quantized value.
    pub low: i32,
    /// The greatest quantized value; not less than `low`.
    pub high: i32,
}

impl Quantization {
    /// Whether the bounds are within the range of `i8` (`signed`) or `u8`, the scale is finite and positive, and the
    /// zero point is small enough for single precision arithmetic.
    pub fn is_sound(&self, signed: bool) -> bool {
        let (least, greatest) = if signed { (-128, 127) } else { (0, 255) };
        least <= self.low
            && self.low <= self.high
            && self.high <= greatest
            && self.affine.zero.unsigned_abs() < 1 << 16
            && self.affine.scale.is_finite()
            && self.affine.scale > 0.0
    }

    /// Parameters that map the range `least` to `greatest`, extended to contain zero, to `low` to `high`, with a
    /// scale of at least `eps`: chosen as by `quantized_decomposed::choose_qparams`.
    pub fn choose((least, greatest): (f32, f32), (low, high): (i32, i32), eps: f32) -> Self {
        let (least, greatest) = (least.min(0.0), greatest.max(0.0));
        let scale = ((greatest - least) / (high - low) as f32).max(eps);
        let zero = f64::from(low) - f64::from((least / scale).round_ties_even());
        let zero = zero.max(f64::from(low)).min(f64::from(high)) as i32;
        Self { affine: Affine { scale, zero }, low, high }
    }

    /// Parameters that map the range `least` to `greatest`, extended to contain zero, to the range of `i8`. The zero
    /// point is computed from the end of the range with the smaller error: chosen as by
    /// `quantized_decomposed::choose_qparams_per_token_asymmetric`.
    pub fn choose_for_token((least, greatest): (f32, f32)) -> Self {
        let (min, max) = (-128f32, 127f32);
        let (low, high) = (least.min(0.0), greatest.max(0.0));
        let scale = ((high - low) / (max - min)).max(f32::EPSILON);
        let (low, high) = (low / scale, high / scale);
        let zero = if (min + low) + (max + high) > 0.0 { min - low } else { max - high };
        let zero = zero.max(min).min(max).round_ties_even() as i32;
        Self { affine: Affine { scale, zero }, low: -128, high: 127 }
    }
}

/// A [`Quantization`] in the form that vector code uses: the reciprocal of the scale, and bounds relative to the zero
/// point.
#[derive(Clone, Copy)]
pub(crate) struct Quantizer {
    inverse: f32,
    low: f32,
    high: f32,
    zero: i32,
}

impl Quantizer {
    pub(crate) fn new(q: &Quantization) -> Self {
        Self {
            inverse: 1.0 / q.affine.scale,
            low: (q.low - q.affine.zero) as f32,
            high: (q.high - q.affine.zero) as f32,
            zero: q.affine.zero,
        }
    }

    /// The reciprocal of the scale.
    pub(crate) fn inverse(&self) -> f32 {
        self.inverse
    }

    /// This quantizer, but multiplying by `inverse` instead of the reciprocal of its scale.
    fn with_inverse(self, inverse: f32) -> Self {
        Self { inverse, ..self }
    }

    /// This quantizer, but clamping the f32 values to `low..=high` first.
    pub(crate) fn with_bounds(self, low: f32, high: f32) -> Self {
        let (low, high) = (low * self.inverse, high * self.inverse);
        let (least, greatest) = (self.low, self.high);
        let within = |x: f32| if x > least { x.min(greatest) } else { least };
        Self { low: within(low), high: within(high), ..self }
    }

    /// How values that are multiplied by [`Self::inverse`] and rounded become bytes, if that needs no clamping before:
    /// none may be NaN then.
    pub(crate) fn rounding(&self) -> Option<Rounding> {
        let bound = |x: f32| x.round_ties_even() as i32 + self.zero;
        Rounding::new(self.zero, bound(self.low), bound(self.high))
    }

    /// Quantizes a vector of values that are already multiplied by [`Self::inverse`].
    #[inline(always)]
    pub(crate) fn quantize_vector<S: Simd>(&self, s: S, x: S::F) -> S::I {
        // Clamping before rounding gives the same result as clamping after it.
        let x = s.limit(x, s.splat(self.low), s.splat(self.high));
        s.add_int(s.round(x), s.splat_int(self.zero))
    }
}

/// Quantizes each element; stores the lowest byte of each quantized value.
///
/// # Panics
/// If the slices differ in length.
pub fn quantize(pool: &Pool, isa: Isa, q: &Quantization, x: &[f32], out: &mut [u8]) {
    assert_eq!(x.len(), out.len(), "lengths of f32 and quantized values");
    let quantizer = Quantizer::new(q);
    split::map_chunks(pool, split::BYTES, out, &|at, out| {
        let x = &x[at..][..out.len()];
        dispatch(isa, Quantize { quantizer, x, out });
    });
}

/// Quantizes a row to `i8` with parameters chosen for its range extended to contain zero; returns scale and zero
/// point. Like [`Quantization::choose_for_token`], except that the factor to multiply by is chosen and the scale is
/// its reciprocal, as in XNNPACK.
///
/// # Panics
/// If the slices differ in length.
pub fn quantize_row(isa: Isa, x: &[f32], out: &mut [u8]) -> Affine {
    assert_eq!(x.len(), out.len(), "lengths of f32 and quantized values");
    let (least, greatest) = min_max(isa, x);
    let (low, high) = (least.min(0.0), greatest.max(0.0));
    let (min, max) = (-128f32, 127f32);
    let factor = if low == high { 1.0 } else { (max - min) / (high - low) };
    let (below, above) = (low * factor, high * factor);
    let zero = if (min + below) + (max + above) > 0.0 { min - below } else { max - above };
    let zero = zero.max(min).min(max).round_ties_even() as i32;
    let affine = Affine { scale: 1.0 / factor, zero };
    let quantizer = Quantizer::new(&Quantization { affine, low: -128, high: 127 }).with_inverse(factor);
    dispatch(isa, Quantize { quantizer, x, out });
    affine
}

struct Quantize<'a> {
    quantizer: Quantizer,
    x: &'a [f32],
    out: &'a mut [u8],
}

impl Op for Quantize<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let inverse = s.splat(self.quantizer.inverse());
        let (mut all_out, mut all_x) = (self.out, self.x);
        if S::STORES_FOUR {
            let len = 4 * S::LANES;
            let whole = all_out.len().min(all_x.len()) / len * len;
            let (out, rest_out) = all_out.split_at_mut(whole);
            let (x, rest_x) = all_x.split_at(whole);
            for (out, x) in out.chunks_exact_mut(len).zip(x.chunks_exact(len)) {
                let quantized = |i: usize| {
                    // SAFETY: the chunk has four vectors.
                    let x = unsafe { s.load(x.as_ptr().add(i * S::LANES)) };
                    self.quantizer.quantize_vector(s, s.mul(x, inverse))
                };
                // SAFETY: the chunk has the bytes of four vectors.
                unsafe {
                    s.store_bytes(out.as_mut_ptr(), [quantized(0), quantized(1), quantized(2), quantized(3)]);
                }
            }
            (all_out, all_x) = (rest_out, rest_x);
        }
        for (out, x) in all_out.chunks_mut(S::LANES).zip(all_x.chunks(S::LANES)) {
            let n = out.len().min(x.len());
            // SAFETY: both chunks have at least `n` elements.
            unsafe {
                let x = s.mul(s.load_first(x.as_ptr(), n), inverse);
                s.store_bytes_first(out.as_mut_ptr(), n, self.quantizer.quantize_vector(s, x));
            }
        }
    }
}

/// Dequantizes each value. The quantized values are `i8` if `signed`, else `u8`.
///
/// # Panics
/// If the slices differ in length.
pub fn dequantize(pool: &Pool, isa: Isa, affine: Affine, signed: bool, x: &[u8], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths of quantized and dequantized values");
    split::map_chunks(pool, split::BYTES, out, &|at, out| {
        let x = &x[at..][..out.len()];
        dispatch(isa, Dequantize { affine, signed, x, out });
    });
}

struct Dequantize<'a> {
    affine: Affine,
    signed: bool,
    x: &'a [u8],
    out: &'a mut [f32],
}

impl Op for Dequantize<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let flip = if self.signed { 0x80 } else { 0 };
        let zero = self.affine.zero + i32::from(flip);
        for (out, &x) in self.out.iter_mut().zip(self.x) {
            *out = (i32::from(x ^ flip) - zero) as f32 * self.affine.scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantized_and_dequantized_values_match_the_definition() {
        let q = Quantization { affine: Affine { scale: 0.25, zero: -3 }, low: -128, high: 127 };
        let x: Vec<f32> = (-4000..4000).map(|i| i as f32 / 64.0).collect();
        let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e30, 0.125, 0.375, -0.125];
        let x: Vec<f32> = x.into_iter().chain(special).collect();
        let want = |x: f32| match x.is_nan() {
            true => -128.0,
            false => (f64::from((x * 4.0).round_ties_even()) - 3.0).clamp(-128.0, 127.0),
        };
        for isa in Isa::available() {
            let mut quantized = vec![0; x.len()];
            quantize(&Pool::new(2), isa, &q, &x, &mut quantized);
            let mut dequantized = vec![0.0; x.len()];
            dequantize(&Pool::new(2), isa, q.affine, true, &quantized, &mut dequantized);
            for ((&x, &n), &dequantized_value) in x.iter().zip(&quantized).zip(&dequantized) {
                assert_eq!(f64::from(n as i8), want(x), "{isa:?}: {x}");
                assert_eq!(dequantized_value, (f32::from(n as i8) + 3.0) * 0.25);
            }
        }
    }

    #[test]
    fn the_scale_of_a_row_is_the_reciprocal_of_its_factor() {
        let x = [0.3f32, -1.7, 2.9, 0.0, 1.1];
        let factor = 255.0 / (2.9f32 + 1.7);
        for isa in Isa::available() {
            let mut quantized = [0; 5];
            let affine = quantize_row(isa, &x, &mut quantized);
            assert_eq!(affine, Affine { scale: 1.0 / factor, zero: -34 });
            let want = x.map(|x| ((x * factor).round_ties_even() as i32 - 34).clamp(-128, 127) as i8);
            assert_eq!(quantized.map(|n| n as i8), want);
            assert_eq!(quantize_row(isa, &[0.0; 3], &mut [0; 3]).scale, 1.0);
        }
    }

    #[test]
    fn chosen_parameters_cover_the_range_and_zero() {
        for range in
            [(0.5f32, 7.0f32), (-3.0, -1.0), (-1.0, 2.5), (0.0, 0.0), (f32::INFINITY, f32::NEG_INFINITY)]
        {
            for q in [Quantization::choose(range, (-128, 127), 1e-6), Quantization::choose_for_token(range)] {
                let dequantized = |n: i32| (n - q.affine.zero) as f32 * q.affine.scale;
                assert!((-128..=127).contains(&q.affine.zero), "{q:?}");
                if range.0 <= range.1 {
                    assert!(
                        dequantized(-128) <= range.0 + q.affine.scale
                            && dequantized(127) >= range.1 - q.affine.scale,
                        "{q:?}"
                    );
                }
            }
        }
    }
}
