//! Elementwise sums of two tensors of 8-bit quantized values, in integer arithmetic.

use super::isa::Isa;
use super::simd::{Op, Simd, dispatch};
use super::split;
use pteron_pool::Pool;

/// `clamp(floor(((a - zeros[0]) * factors[0] + (b - zeros[1]) * factors[1]) / 2^shift + 1/2) + zero, low, high)`,
/// wrapping in 32 bits. All three tensors are `i8` if `signed`, else `u8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantizedSum {
    /// Fixed-point factors of the two inputs; the second is negative for a difference.
    pub factors: [i32; 2],
    /// The zero points of the two inputs.
    pub zeros: [i32; 2],
    /// Fraction bits of the factors: 1 to 31.
    pub shift: u32,
    /// The zero point of the result.
    pub zero: i32,
    /// The least quantized value of the result.
    pub low: i32,
    /// The greatest quantized value of the result.
    pub high: i32,
    /// Whether the quantized values are signed.
    pub signed: bool,
}

impl QuantizedSum {
    /// Fixed-point factors for `a` and `b`, and their shift: the greater factor has 21 bits. `None` unless both
    /// magnitudes are at least 2^-10 and below 2^8.
    pub fn factors(a: f32, b: f32) -> Option<([i32; 2], u32)> {
        let range = 2f32.powi(-10)..2f32.powi(8);
        if !range.contains(&a.abs()) || !range.contains(&b.abs()) {
            return None;
        }
        let exponent = (a.abs().max(b.abs()).to_bits() >> 23) as i32 - 127;
        let shift = 20 - exponent;
        let unit = 2f32.powi(shift);
        Some(([a, b].map(|x| (x * unit).round_ties_even() as i32), shift as u32))
    }
}

/// Adds two tensors of 8-bit values elementwise. Runs in parallel on `pool` if they are large enough.
///
/// # Panics
/// If the slices differ in length, or `sum.low` is above `sum.high`.
pub fn quantized_sum(pool: &Pool, isa: Isa, sum: &QuantizedSum, a: &[u8], b: &[u8], out: &mut [u8]) {
    assert!(a.len() == out.len() && b.len() == out.len(), "lengths of two tensors and their sum");
    assert!(sum.low <= sum.high, "quantized bounds {} to {}", sum.low, sum.high);
    split::map_chunks(pool, split::BYTES, out, &|at, out| {
        let (a, b) = (&a[at..][..out.len()], &b[at..][..out.len()]);
        dispatch(isa, Add { sum: *sum, a, b, out });
    });
}

struct Add<'a> {
    sum: QuantizedSum,
    a: &'a [u8],
    b: &'a [u8],
    out: &'a mut [u8],
}

impl Op for Add<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let QuantizedSum { factors: [fa, fb], zeros, shift, zero, low, high, signed } = self.sum;
        let (flip, lift) = if signed { (0x80, 128) } else { (0, 0) };
        let start = (1i32 << (shift - 1))
            .wrapping_sub(fa.wrapping_mul(zeros[0].wrapping_add(lift)))
            .wrapping_sub(fb.wrapping_mul(zeros[1].wrapping_add(lift)));
        for ((out, &a), &b) in self.out.iter_mut().zip(self.a).zip(self.b) {
            let a = i32::from(a ^ flip).wrapping_mul(fa);
            let b = i32::from(b ^ flip).wrapping_mul(fb);
            let quantized = (start.wrapping_add(a).wrapping_add(b) >> shift).wrapping_add(zero);
            *out = quantized.max(low).min(high) as u8;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_rounded_half_up() {
        let ([fa, fb], shift) = QuantizedSum::factors(0.75, -1.5).unwrap();
        assert_eq!((fa, fb, shift), (3 << 18, -3 << 19, 20));
        let all: Vec<(u8, u8)> = (0..=255).flat_map(|a| (0..=255).map(move |b| (a, b))).collect();
        let (a, b): (Vec<u8>, Vec<u8>) = all.iter().copied().unzip();
        for signed in [false, true] {
            let (zeros, zero) = if signed { ([-3, 100], -20) } else { ([3, 200], 90) };
            let (low, high) = if signed { (-128, 127) } else { (10, 255) };
            let sum = QuantizedSum { factors: [fa, fb], zeros, shift, zero, low, high, signed };
            let number = |x: u8| if signed { i32::from(x as i8) } else { i32::from(x) };
            for isa in Isa::available() {
                let mut out = vec![0; a.len()];
                quantized_sum(&Pool::new(2), isa, &sum, &a, &b, &mut out);
                for ((&a, &b), &out) in a.iter().zip(&b).zip(&out) {
                    let exact =
                        f64::from(number(a) - zeros[0]) * 0.75 - f64::from(number(b) - zeros[1]) * 1.5;
                    let want = ((exact + 0.5).floor() as i32 + zero).clamp(low, high);
                    assert_eq!(number(out), want, "{isa:?}: {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn factors_have_21_bits() {
        assert_eq!(QuantizedSum::factors(1.0, 0.5), Some(([1 << 20, 1 << 19], 20)));
        assert_eq!(QuantizedSum::factors(255.0, 255.0).map(|(_, shift)| shift), Some(13));
        assert_eq!(QuantizedSum::factors(256.0, 1.0), None);
        assert_eq!(QuantizedSum::factors(1.0, 0.0009), None);
        assert_eq!(QuantizedSum::factors(f32::NAN, 1.0), None);
    }
}
