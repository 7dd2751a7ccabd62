//! Bessel functions of orders zero and one, their relatives, and the Airy function. They are computed in f64.
#![allow(clippy::excessive_precision, reason = "constants are written as published")]

use crate::support::map::{Input, elementwise, map_float};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result};
use std::f64::consts::{FRAC_PI_4, PI};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::special_bessel_j0.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        j0,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_bessel_j1.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        j1,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_bessel_y0.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        y0,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_bessel_y1.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        y1,
    )
    .in_place(&["self"]),
    Operator::new("aten::i0.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::REAL_BOOL, i0)
        .in_place(&["self"]),
    Operator::new(
        "aten::special_i0.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        i0,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_i0e.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        i0e,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_i1.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        i1,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_i1e.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        i1e,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_modified_bessel_i0.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        i0,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_modified_bessel_i1.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        i1,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_modified_bessel_k0.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        k0,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_modified_bessel_k1.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        k1,
    )
    .in_place(&["self"]),
    Operator::new(
        "aten::special_scaled_modified_bessel_k0.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        k0e,
    )
    .in_place(&["x"]),
    Operator::new(
        "aten::special_scaled_modified_bessel_k1.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        k1e,
    )
    .in_place(&["x"]),
    Operator::new(
        "aten::special_spherical_bessel_j0.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        spherical_j0,
    )
    .in_place(&["x"]),
    Operator::new(
        "aten::special_airy_ai.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        airy,
    )
    .in_place(&["x"]),
];

macro_rules! functions {
    ($($name:ident = |$x:ident| $f:expr;)*) => { $(
        fn $name(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            let fns = elementwise! {
                float(x) => {
                let $x = f64::from(x);
                ($f) as F
            };
            };
            map_float(ctx, args, outs, [Input::Arg(0)], &fns)
        }
    )* };
}

functions! {
    j0 = |x| nan_at_infinity(x, libm::j0);
    j1 = |x| nan_at_infinity(x, libm::j1);
    y0 = |x| nan_at_infinity(x, libm::y0);
    y1 = |x| nan_at_infinity(x, libm::y1);
    i0 = |x| bessel_i(x, 0);
    i1 = |x| bessel_i(x, 1);
    i0e = |x| scaled_i(x.abs(), 0);
    i1e = |x| scaled_i(x.abs(), 1).copysign(x);
    k0 = |x| scaled_k(x, 0) * (-x).exp();
    k1 = |x| scaled_k(x, 1) * (-x).exp();
    k0e = |x| scaled_k(x, 0);
    k1e = |x| scaled_k(x, 1);
    spherical_j0 = |x| sine_ratio(x);
    airy = |x| airy_ai(x);
}

/// `f(x)` for an oscillating function `f`: NaN at infinity, as in PyTorch.
fn nan_at_infinity(x: f64, f: fn(f64) -> f64) -> f64 {
    if x.is_infinite() { f64::NAN } else { f(x) }
}

/// `sin(x) / x`, which is 0 at infinity.
fn sine_ratio(x: f64) -> f64 {
    match x {
        0.0 => 1.0,
        x if x.is_infinite() => 0.0,
        x => x.sin() / x,
    }
}

/// The modified Bessel function of the first kind; NaN at infinity, as in PyTorch.
fn bessel_i(x: f64, order: u32) -> f64 {
    let a = x.abs();
    if a.is_infinite() {
        return f64::NAN;
    }
    // In two steps, since the exponential overflows before the function does.
    let half = (a / 2.0).exp();
    let value = scaled_i(a, order) * half * half;
    if order == 1 { value.copysign(x) } else { value }
}

/// `e^-x I(x)` for `x >= 0`: the power series, whose terms are all positive, or Hankel's asymptotic expansion.
fn scaled_i(x: f64, order: u32) -> f64 {
    let nu = f64::from(order);
    if x > 30.0 {
        return hankel_expansion(x, 4.0 * nu * nu, -1.0) / (2.0 * PI * x).sqrt();
    }
    let quarter = x * x / 4.0;
    let mut term = if order == 0 { 1.0 } else { x / 2.0 };
    let mut sum = term;
    for k in 1..200 {
        let k = f64::from(k);
        term *= quarter / (k * (k + nu));
        sum += term;
        if term <= sum * 1e-17 {
            break;
        }
    }
    sum * (-x).exp()
}

/// The sum of Hankel's asymptotic series `1 + s (m - 1)/(8 x) + s^2 (m - 1)(m - 9)/(2! (8 x)^2) + ...`, up to its smallest
/// term. `m` is four times the square of the order.
fn hankel_expansion(x: f64, m: f64, s: f64) -> f64 {
    let (mut term, mut sum) = (1.0f64, 1.0f64);
    for k in 1..60 {
        let k = f64::from(k);
        let odd = 2.0 * k - 1.0;
        let next = term * s * (m - odd * odd) / (8.0 * k * x);
        if next.abs() >= term.abs() {
            break;
        }
        term = next;
        sum += term;
    }
    sum
}

/// `e^x K(x)`, the modified Bessel function of the second kind: infinite at 0, NaN below.
fn scaled_k(x: f64, order: u32) -> f64 {
    if x == 0.0 {
        return f64::INFINITY;
    }
    if x.is_nan() || x < 0.0 {
        return f64::NAN;
    }
    if x.is_infinite() {
        return 0.0;
    }
    if x > 1.0 { bessel_k_by_integral(x, f64::from(order)) } else { bessel_k_near_zero(x, order) * x.exp() }
}

/// `e^x K(x)` for `x > 1/2` and any order: the integral of `exp(-x (cosh t - 1)) cosh(order t)` over `t > 0`. The trapezoidal
/// rule converges exponentially for this integrand; its step follows the width of the peak at 0.
fn bessel_k_by_integral(x: f64, order: f64) -> f64 {
    let step = (0.7 / x.sqrt()).min(0.25);
    let mut sum = 0.5;
    for i in 1..1000 {
        let t = f64::from(i) * step;
        // `cosh t - 1` without cancellation.
        let half = (t / 2.0).sinh();
        let value = (-2.0 * x * half * half).exp() * (order * t).cosh();
        sum += value;
        if value < sum * 1e-17 {
            break;
        }
    }
    sum * step
}

/// `K(x)` for small `x`, by its series, which contains `ln x`.
fn bessel_k_near_zero(x: f64, order: u32) -> f64 {
    const EULER: f64 = 0.577_215_664_901_532_9;
    let (quarter, log) = (x * x / 4.0, (x / 2.0).ln());
    // Sums of reciprocals up to `k` and up to `k + order`.
    let (mut harmonic, mut shifted) = (0.0, f64::from(order));
    let (mut term, mut sum) = (1.0, 0.0);
    for k in 0..30 {
        let k = f64::from(k);
        sum += term
            * match order {
                0 => harmonic - EULER - log,
                _ => log + EULER - (harmonic + shifted) / 2.0,
            };
        term *= quarter / ((k + 1.0) * (k + 1.0 + f64::from(order)));
        harmonic += 1.0 / (k + 1.0);
        shifted += 1.0 / (k + 1.0 + f64::from(order));
    }
    if order == 0 { sum } else { 1.0 / x + x / 2.0 * sum }
}

/// The Airy function: its Maclaurin series near 0, a modified Bessel function of order 1/3 above, and the asymptotic
/// expansion below. NaN at infinity, as in PyTorch.
fn airy_ai(x: f64) -> f64 {
    const AT_ZERO: f64 = 0.355_028_053_887_817_24;
    const SLOPE: f64 = 0.258_819_403_792_806_8;
    if !x.is_finite() {
        return f64::NAN;
    }
    if x > 2.0 {
        let zeta = 2.0 / 3.0 * x * x.sqrt();
        return (x / 3.0).sqrt() / PI * bessel_k_by_integral(zeta, 1.0 / 3.0) * (-zeta).exp();
    }
    if x < -7.0 {
        return airy_ai_far_below_zero(-x);
    }
    let cube = x * x * x;
    let (mut even, mut odd) = (1.0, x);
    let mut sum = AT_ZERO * even - SLOPE * odd;
    for k in 1..80 {
        let n = 3.0 * f64::from(k);
        even *= cube / (n * (n - 1.0));
        odd *= cube / (n * (n + 1.0));
        sum += AT_ZERO * even - SLOPE * odd;
    }
    sum
}

/// The Airy function at `-x`, for large `x`.
fn airy_ai_far_below_zero(x: f64) -> f64 {
    let zeta = 2.0 / 3.0 * x * x.sqrt();
    // Coefficients of the expansion: `u(k) = u(k - 1) (6k - 5)(6k - 1) / (72 k)`.
    let (mut term, mut parts) = (1.0f64, [1.0, 0.0]);
    for k in 1..40 {
        let n = 6.0 * f64::from(k);
        let next = term * (n - 5.0) * (n - 1.0) / (12.0 * n * zeta);
        if next.abs() >= term.abs() {
            break;
        }
        term = next;
        // The signs repeat with period four: +, +, -, -.
        parts[k as usize % 2] += if k % 4 < 2 { term } else { -term };
    }
    let angle = zeta - FRAC_PI_4;
    (angle.cos() * parts[0] + angle.sin() * parts[1]) / (PI.sqrt() * x.sqrt().sqrt())
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, t};
    use pteron_tensor::ScalarType::{Double, Float};

    fn near(name: &str, x: &[f64], expected: &[f64]) {
        let r = call(&format!("aten::{name}.out"), &[a(&t(&[x.len()], x))], out(Double, &[x.len()])).unwrap();
        for ((x, actual), want) in x.iter().zip(r.storage::<f64>().unwrap()).zip(expected) {
            let fits =
                (actual - want).abs() <= 1e-12 * want.abs().max(1e-3) || actual.is_nan() && want.is_nan();
            assert!(fits || actual == want, "{name}({x}): {actual}, expected {want}");
        }
    }

    #[test]
    fn modified_functions_agree_across_their_methods() {
        // I0(x) K1(x) + I1(x) K0(x) = 1 / x.
        let x: Vec<f64> = (1..200).map(|i| f64::from(i) * 0.37).collect();
        let f = |name: &str| {
            let name = format!("aten::{name}.out");
            call(&name, &[a(&t(&[x.len()], &x))], out(Double, &[x.len()]))
                .unwrap()
                .storage::<f64>()
                .unwrap()
                .to_vec()
        };
        let (i0, i1) = (f("special_i0e"), f("special_i1e"));
        let (k0, k1) = (f("special_scaled_modified_bessel_k0"), f("special_scaled_modified_bessel_k1"));
        for i in 0..x.len() {
            let product = (i0[i] * k1[i] + i1[i] * k0[i]) * x[i];
            assert!((product - 1.0).abs() < 1e-13, "x = {}: {product}", x[i]);
        }
    }

    #[test]
    fn values_and_ends() {
        let inf = f64::INFINITY;
        near(
            "special_modified_bessel_k0",
            &[0.0, -1.0, inf, 0.5],
            &[inf, f64::NAN, 0.0, 0.924_419_071_227_665_9],
        );
        near(
            "special_modified_bessel_k1",
            &[0.5, 3.0],
            &[1.656_441_120_003_300_7, 0.040_156_431_128_194_184],
        );
        near("special_bessel_j0", &[1.0, inf], &[0.765_197_686_557_966_6, f64::NAN]);
        near("special_spherical_bessel_j0", &[0.0, 1.0, inf], &[1.0, 0.841_470_984_807_896_5, 0.0]);
        near(
            "special_airy_ai",
            &[0.0, 1.0, 5.0, -3.0, -10.0],
            &[
                0.355_028_053_887_817_24,
                0.135_292_416_312_881_41,
                0.000_108_344_428_136_074_42,
                -0.378_814_293_677_658_07,
                0.040_241_238_486_441_96,
            ],
        );
    }

    #[test]
    fn integers_become_floats() {
        let r = call("aten::special_bessel_j1.out", &[a(&t(&[1], &[2i64]))], out(Float, &[1])).unwrap();
        assert!((r.storage::<f32>().unwrap()[0] - 0.576_724_8).abs() < 1e-6);
    }
}
