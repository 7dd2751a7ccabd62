//! Elementary functions of one f32, without branches or tables, so that the compiler vectorizes loops over them for
//! each instruction set. The stated errors are the largest that the tests find over the domain of a function, in units
//! in the last place of the exact result.

#![allow(clippy::excessive_precision, reason = "coefficients are kept as they were computed")]

use super::super::simd::Simd;
use std::f32::consts::{FRAC_1_SQRT_2, LOG2_E};
use std::f64::consts::{LN_2, LOG2_E as LOG2_E64, LOG10_2, LOG10_E};

/// Adding this constant rounds an f32 to an integer, which is then in the low bits of the sum.
const ROUND: f32 = 12_582_912.0;

/// `p(x)` by Horner's rule, highest coefficient first.
#[inline(always)]
fn polynomial<S: Simd, const N: usize>(s: S, x: f32, coefficients: [f32; N]) -> f32 {
    let mut y = coefficients[0];
    for c in &coefficients[1..] {
        y = s.mul_add_scalar(y, x, *c);
    }
    y
}

/// `2^n` for `-126 <= n <= 127`.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `e^x`, within 1 ulp.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: f32) -> f32 {
    let x = if x > 89.0 { 89.0 } else { x };
    let x = if x < -104.0 { -104.0 } else { x };
    let shifted = s.mul_add_scalar(x, LOG2_E, ROUND);
    let n = shifted - ROUND;
    let bits = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    let y = exp_of_remainder(s, x, n);
    // Two factors, because a single one could be outside the range of normal numbers.
    let half = bits >> 1;
    y * power_of_two(half) * power_of_two(bits.wrapping_sub(half))
}

/// `e^x` within 1 ulp, for magnitudes of `x` up to 87, whose results are normal.
#[inline(always)]
fn exp_in_normal_range<S: Simd>(s: S, x: f32) -> f32 {
    let shifted = s.mul_add_scalar(x, LOG2_E, ROUND);
    let n = shifted - ROUND;
    let bits = shifted.to_bits().wrapping_sub(ROUND.to_bits()) as i32;
    exp_of_remainder(s, x, n) * power_of_two(bits)
}

/// `e^x` within 1 ulp, for `x` up to zero; zero for `x` below -87, where results would soon be subnormal, which
/// processors handle slowly.
#[inline(always)]
pub(crate) fn exp_nonpositive<S: Simd>(s: S, x: f32) -> f32 {
    const LEAST: f32 = -87.0;
    let y = exp_in_normal_range(s, if x < LEAST { LEAST } else { x });
    if x < LEAST { 0.0 } else { y }
}

/// `e^(x - n ln 2)` where `n` is nearest to `x / ln 2`.
#[inline(always)]
fn exp_of_remainder<S: Simd>(s: S, x: f32, n: f32) -> f32 {
    let r = s.mul_add_scalar(n, -0.693_359_4, x);
    let r = s.mul_add_scalar(n, 2.121_944_4e-4, r);
    let p = polynomial(
        s,
        r,
        [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 5.0e-1],
    );
    s.mul_add_scalar(p, r * r, r) + 1.0
}

/// `ln x`, within 1 ulp. NaN below zero, negative infinity at zero.
#[inline(always)]
pub(crate) fn log<S: Simd>(s: S, x: f32) -> f32 {
    let (e, f, y) = log_parts(s, x);
    let y = s.mul_add_scalar(e, -2.121_944_4e-4, y);
    let y = s.mul_add_scalar(-0.5, f * f, y);
    log_or_limit(x, s.mul_add_scalar(e, 0.693_359_4, f + y))
}

/// `log10 x`, within 1 ulp. NaN below zero, negative infinity at zero.
#[inline(always)]
pub(crate) fn log10<S: Simd>(s: S, x: f32) -> f32 {
    let (e, fraction) = exponent_and_log(s, x);
    log_or_limit(x, (e * LOG10_2 + fraction * LOG10_E) as f32)
}

/// `log2 x`, within 1 ulp. NaN below zero, negative infinity at zero.
#[inline(always)]
pub(crate) fn log2<S: Simd>(s: S, x: f32) -> f32 {
    let (e, fraction) = exponent_and_log(s, x);
    log_or_limit(x, (e + fraction * LOG2_E64) as f32)
}

/// `ln(1 + x)`, within 1 ulp. NaN below minus one, negative infinity at minus one.
#[inline(always)]
pub(crate) fn log1p<S: Simd>(s: S, x: f32) -> f32 {
    let wide = f64::from(x);
    let sum = (wide + 1.0) as f32;
    let (e, fraction) = exponent_and_log(s, sum);
    // What the sum has lost by rounding, times the derivative of the logarithm.
    let lost = (wide - (f64::from(sum) - 1.0)) / f64::from(sum);
    let y = log_or_limit(sum, (e * LN_2 + fraction + lost) as f32);
    // The sum of a tiny number is one, and the sign of zero would be lost.
    if x.abs() < 1e-8 { x } else { y }
}

/// `x` as `2^e m` with `m` in sqrt(1/2) to sqrt(2): returns `e`, `f = m - 1` and `ln m - f + f^2 / 2`, for positive and
/// finite `x`.
#[inline(always)]
fn log_parts<S: Simd>(s: S, x: f32) -> (f32, f32, f32) {
    let small = x < f32::MIN_POSITIVE;
    let scaled = if small { x * 8_388_608.0 } else { x };
    let bits = scaled.to_bits();
    let e = (bits.wrapping_sub(0x3f35_04f3) as i32) >> 23;
    let m = f32::from_bits(bits.wrapping_sub((e << 23) as u32));
    let e = e as f32 - if small { 23.0 } else { 0.0 };
    let f = m - 1.0;
    let p = polynomial(
        s,
        f,
        [
            7.037_683_6e-2,
            -1.151_461e-1,
            1.167_699_9e-1,
            -1.242_014_1e-1,
            1.424_932_3e-1,
            -1.666_805_8e-1,
            2.000_071_5e-1,
            -2.499_999_4e-1,
            3.333_333_1e-1,
        ],
    );
    (e, f, p * f * (f * f))
}

/// `e` and `ln m` for `x = 2^e m`, to be combined in f64.
#[inline(always)]
fn exponent_and_log<S: Simd>(s: S, x: f32) -> (f64, f64) {
    let (e, f, y) = log_parts(s, x);
    (f64::from(e), f64::from(f) + f64::from(s.mul_add_scalar(-0.5, f * f, y)))
}

/// `y`, the logarithm of `x`, if `x` is positive and finite; otherwise the limit: NaN or an infinity.
#[inline(always)]
fn log_or_limit(x: f32, y: f32) -> f32 {
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    if x < 0.0 || x.is_nan() { f32::NAN } else { y }
}

/// `1 / (1 + e^-x)`, within 3 ulp where the result is normal.
#[inline(always)]
pub(crate) fn sigmoid<S: Simd>(s: S, x: f32) -> f32 {
    1.0 / (1.0 + exp(s, -x))
}

/// `x / (1 + e^-x)`, within 4 ulp where the result is normal.
#[inline(always)]
pub(crate) fn silu<S: Simd>(s: S, x: f32) -> f32 {
    x / (1.0 + exp(s, -x))
}

/// `tanh x`, within 2 ulp.
#[inline(always)]
pub(crate) fn tanh<S: Simd>(s: S, x: f32) -> f32 {
    let x2 = x * x;
    let p =
        polynomial(s, x2, [-5.704_988_7e-3, 2.063_908_9e-2, -5.373_971_6e-2, 1.333_144_2e-1, -3.333_328e-1]);
    let near = s.mul_add_scalar(p * x2, x, x);
    let a = x.abs();
    // From 10 on, the result rounds to 1.
    let far = 1.0 - 2.0 / (exp_in_normal_range(s, 2.0 * if a > 10.0 { 10.0 } else { a }) + 1.0);
    // `copysign` covers negative zero, too: the sum of zeros of both signs is positive.
    if a < 0.625 { near } else { far }.copysign(x)
}

/// The error function, within 2 ulp.
#[inline(always)]
pub(crate) fn erf<S: Simd>(s: S, x: f32) -> f32 {
    let t = x.abs();
    let t = if t > 4.0 { 4.0 } else { t };
    let x2 = t * t;
    let r = s.mul_add_scalar(-1.728_534_7e-5, t, 3.831_971_3e-4);
    let u = s.mul_add_scalar(-3.883_964_4e-3, t, 2.425_462_2e-2);
    let r = s.mul_add_scalar(r, x2, u);
    let r = s.mul_add_scalar(r, t, -1.067_778_8e-1);
    let r = s.mul_add_scalar(r, t, -6.348_467e-1);
    let r = s.mul_add_scalar(r, t, -1.287_175_1e-1);
    // The exponent is between -19 and 0.
    let far = (1.0 - exp_in_normal_range(s, s.mul_add_scalar(r, t, -t))).copysign(x);
    let p = polynomial(
        s,
        x2,
        [-5.967_617e-4, 4.991_194_2e-3, -2.676_813_5e-2, 1.128_199_25e-1, -3.761_253_4e-1, 1.283_791_7e-1],
    );
    let near = s.mul_add_scalar(p, x, x);
    if t > 0.927_734_4 { far } else { near }
}

/// `x (1 + erf(x / sqrt 2)) / 2`; the error is at most 4 ulp of `x` for `x >= 0`, of `max(1, |x|)` for `x < 0`.
#[inline(always)]
pub(crate) fn gelu<S: Simd>(s: S, x: f32) -> f32 {
    0.5 * x * (1.0 + erf(s, x * FRAC_1_SQRT_2))
}

/// `x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2`; as exact as [`gelu`].
#[inline(always)]
pub(crate) fn gelu_tanh<S: Simd>(s: S, x: f32) -> f32 {
    const SCALE: f32 = 0.797_884_6;
    let inner = SCALE * s.mul_add_scalar(0.044_715 * x * x, x, x);
    0.5 * x * (1.0 + tanh(s, inner))
}

/// The magnitude of `x` above which [`sin`] and [`cos`] are not exact enough.
pub(crate) const TRIG_LIMIT: f32 = 1.0e6;

/// The index of the quarter turn nearest to `x`, and the remainder, for magnitudes up to [`TRIG_LIMIT`].
#[inline(always)]
fn nearest_quarter_turn(x: f32) -> (i32, f32) {
    const ROUND: f64 = 6_755_399_441_055_744.0;
    let x = f64::from(x);
    let shifted = x * std::f64::consts::FRAC_2_PI + ROUND;
    let n = shifted - ROUND;
    // A quarter turn is split into two parts, the first short enough that its products are exact.
    let r = (x - n * 1.570_796_326_734_125_6) - n * 6.077_100_506_506_192e-11;
    (shifted.to_bits() as i32, r as f32)
}

#[inline(always)]
fn sin_or_cos<S: Simd>(s: S, quarter: i32, r: f32) -> f32 {
    let r2 = r * r;
    let p = polynomial(s, r2, [2.718_311_4e-6, -1.983_930_3e-4, 8.333_329e-3, -1.666_666_6e-1]);
    // `copysign`, because the sum of zeros of both signs is positive.
    let sin = s.mul_add_scalar(p * r2, r, r).copysign(r);
    let p = polynomial(s, r2, [-2.605_374e-7, 2.476_016_1e-5, -1.388_837_1e-3, 4.166_664_2e-2, -0.5]);
    let cos = s.mul_add_scalar(p, r2, 1.0);
    let y = if quarter & 1 == 0 { sin } else { cos };
    if quarter & 2 == 0 { y } else { -y }
}

/// `sin x` for `|x|` up to [`TRIG_LIMIT`], within 1.5 ulp.
#[inline(always)]
pub(crate) fn sin<S: Simd>(s: S, x: f32) -> f32 {
    let (q, r) = nearest_quarter_turn(x);
    sin_or_cos(s, q, r)
}

/// `cos x` for `|x|` up to [`TRIG_LIMIT`], within 1.5 ulp.
#[inline(always)]
pub(crate) fn cos<S: Simd>(s: S, x: f32) -> f32 {
    let (q, r) = nearest_quarter_turn(x);
    sin_or_cos(s, q.wrapping_add(1), r)
}

/// `min(max(x + 3, 0), 6) / 6`; NaN for NaN.
#[inline(always)]
pub(crate) fn hardsigmoid(x: f32) -> f32 {
    let y = x + 3.0;
    let y = if y < 0.0 { 0.0 } else { y };
    let y = if y > 6.0 { 6.0 } else { y };
    y / 6.0
}

/// `x min(max(x + 3, 0), 6) / 6`; NaN for NaN.
#[inline(always)]
pub(crate) fn hardswish(x: f32) -> f32 {
    let y = x + 3.0;
    let y = if y < 0.0 { 0.0 } else { y };
    let y = if y > 6.0 { 6.0 } else { y };
    x * y / 6.0
}

/// [`hardswish`], multiplying by 1/6 instead of dividing by 6.
#[inline(always)]
pub(crate) fn hardswish_by_sixth<S: Simd>(s: S, x: f32) -> f32 {
    let y = s.mul_add_scalar(x, 1.0 / 6.0, 0.5);
    let y = if y < 0.0 { 0.0 } else { y };
    let y = if y > 1.0 { 1.0 } else { y };
    y * x
}

/// The nearest float16, ties to even; infinity if out of range.
#[inline(always)]
pub(crate) fn round_to_half(x: f32) -> f32 {
    let bits = x.to_bits();
    let magnitude = f32::from_bits(bits & 0x7fff_ffff);
    // Drops thirteen bits. A carry goes into the exponent, as it should.
    let normal = f32::from_bits((bits & 0x7fff_ffff).wrapping_add(0xfff + (bits >> 13 & 1)) & !0x1fff);
    // Subnormal float16 values are 2^-24 apart, as are f32 values from one half to one.
    let small = (magnitude + 0.5) - 0.5;
    let y = if magnitude < 6.103_515_6e-5 { small } else { normal };
    let y = if magnitude >= 65_520.0 { f32::INFINITY } else { y };
    let y = f32::from_bits(y.to_bits() | bits & 0x8000_0000);
    if magnitude.is_nan() { x } else { y }
}

/// The nearest bfloat16, ties to even; infinity if out of range.
#[inline(always)]
pub(crate) fn round_to_bfloat16(x: f32) -> f32 {
    let bits = x.to_bits();
    let y = f32::from_bits(bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000);
    if x.is_nan() { x } else { y }
}
