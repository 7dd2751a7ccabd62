//! Incomplete gamma functions, the Hurwitz zeta function and scaled error functions. They are computed in f64.
#![allow(clippy::excessive_precision, reason = "constants are written as published")]

use crate::support::map::{Input, elementwise, map_float};
use crate::support::special::erfc;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result};
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, PI};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::igamma.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        lower_gamma,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::igammac.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        upper_gamma,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::special_gammainc.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        lower_gamma,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::special_gammaincc.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        upper_gamma,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::special_zeta.out(Tensor self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        zeta_of,
    )
    .in_place(&["self", "other"]),
    Operator::new(
        "aten::special_zeta.self_scalar_out(Scalar self, Tensor other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        zeta_of,
    )
    .in_place(&["other"]),
    Operator::new(
        "aten::special_zeta.other_scalar_out(Tensor self, Scalar other, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        zeta_of,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_erfcx.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        scaled_erfc,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_log_ndtr.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        log_normal_distribution,
    )
    .in_place(&["self"]),
];

macro_rules! functions {
    ($($name:ident = |$($x:ident),+| $f:expr;)*) => { $(
        fn $name(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            let fns = elementwise! {
                float($($x),+) => {
                    $(let $x = f64::from($x);)+
                    ($f) as F
                };
            };
            let mut positions = 0..;
            let inputs = [$(functions!(@input $x, args, positions)),+];
            map_float(ctx, args, outs, inputs, &fns)
        }
    )* };
    (@input $x:ident, $args:ident, $positions:ident) => {
        Input::of_arg($args, $positions.next().unwrap_or_default())?
    };
}

functions! {
    lower_gamma = |a, x| incomplete_gamma(a, x, Part::Lower);
    upper_gamma = |a, x| incomplete_gamma(a, x, Part::Upper);
    zeta_of = |x, q| zeta(x, q);
    scaled_erfc = |x| erfcx(x);
    log_normal_distribution = |x| log_ndtr(x);
}

/// A part of the gamma function's integral, as a fraction of the whole: the part below `x`, or the part above it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Lower,
    Upper,
}

/// The largest `a` for which the series and the continued fraction are used: they take about `6 sqrt(a)` terms near `x = a`.
const MAX_SUMMED: f64 = 1e6;

/// The regularized incomplete gamma function, with PyTorch's values at zero and infinity.
fn incomplete_gamma(a: f64, x: f64, part: Part) -> f64 {
    let limit = |lower: bool| if lower == (part == Part::Lower) { 1.0 } else { 0.0 };
    if a < 0.0 || x < 0.0 || (a == 0.0 && (x == 0.0 || x.is_nan())) || (a.is_infinite() && x.is_infinite()) {
        return f64::NAN;
    }
    if a == 0.0 {
        return limit(true);
    }
    if x == 0.0 || a.is_infinite() || x.is_infinite() {
        return limit(x.is_infinite());
    }
    if a.is_nan() || x.is_nan() {
        return f64::NAN;
    }
    let (value, computed_part) = if a > MAX_SUMMED {
        uniform_expansion(a, x)
    } else if x < a + 1.0 {
        (lower_series(a, x), Part::Lower)
    } else {
        (upper_fraction(a, x), Part::Upper)
    };
    if computed_part == part { value } else { 1.0 - value }
}

/// `x^a e^-x / gamma(a)`.
fn gamma_prefix(a: f64, x: f64) -> f64 {
    (a * x.ln() - x - libm::lgamma(a)).exp()
}

/// The lower part as `prefix / a * (1 + x / (a + 1) + x^2 / ((a + 1)(a + 2)) + ...)`.
fn lower_series(a: f64, x: f64) -> f64 {
    let (mut term, mut sum, mut under) = (1.0, 1.0, a);
    for _ in 0..20_000 {
        under += 1.0;
        term *= x / under;
        sum += term;
        if term < sum * 1e-17 {
            break;
        }
    }
    sum * gamma_prefix(a, x) / a
}

/// The upper part as Legendre's continued fraction, evaluated by Lentz' method.
fn upper_fraction(a: f64, x: f64) -> f64 {
    const TINY: f64 = 1e-300;
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut value = d;
    for i in 1..20_000 {
        let i = f64::from(i);
        let an = -i * (i - a);
        b += 2.0;
        let away = |v: f64| if v.abs() < TINY { TINY } else { v };
        d = 1.0 / away(an * d + b);
        c = away(b + an / c);
        value *= c * d;
        if (c * d - 1.0).abs() < 1e-16 {
            break;
        }
    }
    value * gamma_prefix(a, x)
}

/// The nearer tail for large `a`: the leading terms of Temme's expansion, which is uniform in `x / a`.
fn uniform_expansion(a: f64, x: f64) -> (f64, Part) {
    let mu = (x - a) / a;
    // eta^2 / 2 = mu - log(1 + mu); near 0 by its series, since the difference cancels.
    let half = if mu.abs() < 1e-3 { mu * mu * (0.5 - mu / 3.0 + mu * mu / 4.0) } else { mu - mu.ln_1p() };
    let eta = (2.0 * half).sqrt().copysign(mu);
    let first = match eta.abs() < 1e-2 {
        true => -1.0 / 3.0 + eta / 12.0 - eta * eta * (2.0 / 135.0),
        false => 1.0 / mu - 1.0 / eta,
    };
    let correction = (-a * half).exp() / (2.0 * PI * a).sqrt() * first;
    let scaled = eta * (a / 2.0).sqrt();
    match x > a {
        true => (erfc(scaled) / 2.0 + correction, Part::Upper),
        false => (erfc(-scaled) / 2.0 - correction, Part::Lower),
    }
}

/// The Hurwitz zeta function, the sum of `(q + k)^-x`: the first terms, and the rest by Euler and Maclaurin's formula.
fn zeta(x: f64, q: f64) -> f64 {
    // Bernoulli numbers `B(2k) / (2k)!`.
    const COEFFICIENTS: [f64; 8] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30_240.0,
        -1.0 / 1_209_600.0,
        1.0 / 47_900_160.0,
        -691.0 / 1_307_674_368_000.0,
        1.0 / 74_724_249_600.0,
        -3_617.0 / 10_670_622_842_880_000.0,
    ];
    const TERMS: u32 = 12;
    if x == 1.0 {
        return f64::INFINITY;
    }
    if x.is_nan() || q.is_nan() || x < 1.0 {
        return f64::NAN;
    }
    if q <= 0.0 {
        if q == q.floor() {
            return f64::INFINITY;
        }
        if x != x.floor() {
            return f64::NAN;
        }
    }
    // Terms of negative bases are added until the base is positive, but not more than could matter.
    let leading = if q < 0.0 { (-q).min(1e6) as u32 } else { 0 } + TERMS;
    let mut sum = 0.0;
    for k in 0..leading {
        let term = (q + f64::from(k)).powf(-x);
        sum += term;
        if term.abs() < sum.abs() * 1e-17 {
            return sum;
        }
    }
    let end = q + f64::from(leading);
    let power = end.powf(-x);
    sum += power * end / (x - 1.0) + power / 2.0;
    let (mut factor, mut scaled) = (x, power / end);
    for (k, coefficient) in COEFFICIENTS.iter().enumerate() {
        sum += coefficient * factor * scaled;
        let next = x + 2.0 * k as f64;
        factor *= (next + 1.0) * (next + 2.0);
        scaled /= end * end;
    }
    sum
}

/// `exp(x^2) erfc(x)`, by the asymptotic series where the factors overflow and vanish.
fn erfcx(x: f64) -> f64 {
    if x < 25.0 {
        return (x * x).exp() * erfc(x);
    }
    let square = 1.0 / (2.0 * x * x);
    let series = 1.0 - square * (1.0 - 3.0 * square * (1.0 - 5.0 * square * (1.0 - 7.0 * square)));
    series / (x * PI.sqrt())
}

/// The logarithm of the standard normal cumulative distribution function, accurate also where that function
/// underflows.
fn log_ndtr(x: f64) -> f64 {
    let scaled = x * FRAC_1_SQRT_2;
    if x < -1.0 { erfcx(-scaled).ln() - LN_2 - scaled * scaled } else { (-erfc(scaled) / 2.0).ln_1p() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(found: f64, expected: f64) {
        assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{found}, expected {expected}");
    }

    #[test]
    fn incomplete_gamma_functions() {
        let p = |a, x| incomplete_gamma(a, x, Part::Lower);
        let q = |a, x| incomplete_gamma(a, x, Part::Upper);
        near(p(1.0, 2.0), 1.0 - (-2.0f64).exp());
        near(q(0.5, 4.0), erfc(2.0));
        near(p(3.0, 0.1), 0.000_154_653_070_264_671_84);
        near(q(2.0, 50.0), 51.0 * (-50.0f64).exp());
        assert_eq!((p(2.0, 0.0), q(2.0, 0.0), p(2.0, f64::INFINITY)), (0.0, 1.0, 1.0));
        assert_eq!((p(0.0, 1.0), p(f64::INFINITY, 1.0)), (1.0, 0.0));
        assert!(p(0.0, 0.0).is_nan() && p(-1.0, 1.0).is_nan() && q(f64::INFINITY, f64::INFINITY).is_nan());
    }

    #[test]
    fn large_arguments_continue_the_sums() {
        let a = MAX_SUMMED;
        for x in [a * 0.997, a - 1500.0, a, a + 1.0, a + 900.0, a * 1.002] {
            let summed = incomplete_gamma(a, x, Part::Upper);
            let (value, part) = uniform_expansion(a, x);
            let expanded = if part == Part::Upper { value } else { 1.0 - value };
            assert!((summed - expanded).abs() < 1e-7, "{x}: {summed}, {expanded}");
        }
    }

    #[test]
    fn zeta_and_error_functions() {
        near(zeta(2.0, 1.0), PI * PI / 6.0);
        near(zeta(4.0, 1.0), PI.powi(4) / 90.0);
        near(zeta(2.0, -0.5), PI * PI / 2.0 + 4.0);
        near(zeta(1.1, 300.0), 5.654_058_467_587_489);
        assert!(
            zeta(1.0, 1.0) == f64::INFINITY && zeta(0.5, 1.0).is_nan() && zeta(2.0, -3.0) == f64::INFINITY
        );
        near(erfcx(24.0), 0.023_487_546_063_682_64);
        near(erfcx(26.5), 0.021_275_046_685_371_106);
        near(log_ndtr(-30.0), -454.321_243_956_343_2);
        near(log_ndtr(3.0), -0.001_350_809_964_748_193_4);
    }
}
