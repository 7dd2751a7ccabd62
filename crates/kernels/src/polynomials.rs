//! Orthogonal polynomials by their recurrences, with PyTorch's values at the ends of their domains.

use crate::support::map::{Input, elementwise, map_float};
use num_traits::Float;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::special_chebyshev_polynomial_t.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_t,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_t.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_t,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_t.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_t,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_u.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_u,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_u.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_u,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_u.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_u,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_v.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_v,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_v.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_v,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_v.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_v,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_w.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_w,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_w.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_w,
    ),
    Operator::new(
        "aten::special_chebyshev_polynomial_w.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        chebyshev_w,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_t.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_t,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_t.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_t,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_t.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_t,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_u.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_u,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_u.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_u,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_u.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_u,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_v.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_v,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_v.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_v,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_v.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_v,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_w.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_w,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_w.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_w,
    ),
    Operator::new(
        "aten::special_shifted_chebyshev_polynomial_w.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        shifted_chebyshev_w,
    ),
    Operator::new(
        "aten::special_hermite_polynomial_h.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        hermite_h,
    ),
    Operator::new(
        "aten::special_hermite_polynomial_h.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        hermite_h,
    ),
    Operator::new(
        "aten::special_hermite_polynomial_h.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        hermite_h,
    ),
    Operator::new(
        "aten::special_hermite_polynomial_he.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        hermite_he,
    ),
    Operator::new(
        "aten::special_hermite_polynomial_he.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        hermite_he,
    ),
    Operator::new(
        "aten::special_hermite_polynomial_he.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        hermite_he,
    ),
    Operator::new(
        "aten::special_laguerre_polynomial_l.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        laguerre,
    ),
    Operator::new(
        "aten::special_laguerre_polynomial_l.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        laguerre,
    ),
    Operator::new(
        "aten::special_laguerre_polynomial_l.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        laguerre,
    ),
    Operator::new(
        "aten::special_legendre_polynomial_p.out(Tensor x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        legendre,
    ),
    Operator::new(
        "aten::special_legendre_polynomial_p.x_scalar_out(Scalar x, Tensor n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        legendre,
    ),
    Operator::new(
        "aten::special_legendre_polynomial_p.n_scalar_out(Tensor x, Scalar n, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::REAL_BOOL,
        legendre,
    ),
];

macro_rules! functions {
    ($($f:ident,)*) => { $(
        fn $f(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
            let inputs = [Input::of_arg(args, 0)?, Input::of_arg(args, 1)?];
            map_float(ctx, args, outs, inputs, &elementwise! { float(x, n) => formula::$f(x, n) })
        }
    )* };
}

functions! {
    chebyshev_t,
    chebyshev_u,
    chebyshev_v,
    chebyshev_w,
    shifted_chebyshev_t,
    shifted_chebyshev_u,
    shifted_chebyshev_v,
    shifted_chebyshev_w,
    hermite_h,
    hermite_he,
    laguerre,
    legendre,
}

/// The highest degree of a recurrence; above it the result is NaN.
const MAX_DEGREE: i64 = 1 << 20;

/// The polynomial of degree `n`, which may be fractional and is truncated; zero for degrees that are negative, NaN or
/// not in the range of i64. `first` and `second` are those of degree 0 and 1. `next` computes that of degree `k + 1`
/// from `k` and those of degree `k` and `k - 1`.
fn recurrence<F: Float>(n: F, first: F, second: F, next: impl Fn(F, F, F) -> F) -> F {
    let degree = n.to_i64().unwrap_or(-1);
    match degree {
        ..0 => return F::zero(),
        0 => return first,
        _ if degree > MAX_DEGREE => return F::nan(),
        _ => pteron_pool::progress(degree as usize),
    }
    let (mut before, mut value, mut k) = (first, second, F::one());
    for _ in 1..degree {
        if value.is_nan() {
            break;
        }
        (before, value) = (value, next(k, value, before));
        k = k + F::one();
    }
    value
}

mod formula {
    use super::recurrence;
    use num_traits::Float;

    fn two<F: Float>() -> F {
        F::one() + F::one()
    }

    fn chebyshev<F: Float>(x: F, n: F, second: F) -> F {
        recurrence(n, F::one(), second, |_, value, before| (x + x) * value - before)
    }

    /// The angle with the cosine `x` and the truncated degree, if `x` is within (-1, 1) and the degree is above
    /// `above`: then the trigonometric form is more accurate.
    fn trigonometric_angle<F: Float>(x: F, n: F, above: i32) -> Option<(F, F)> {
        let within = x.abs() < F::one() && n > F::from(above)?;
        within.then(|| (x.acos(), n.trunc()))
    }

    pub(super) fn chebyshev_t<F: Float>(x: F, n: F) -> F {
        match trigonometric_angle(x, n, 6) {
            Some((angle, n)) => (n * angle).cos(),
            None => chebyshev(x, n, x),
        }
    }

    pub(super) fn chebyshev_u<F: Float>(x: F, n: F) -> F {
        match trigonometric_angle(x, n, 8) {
            Some((angle, n)) => ((n + F::one()) * angle).sin() / angle.sin(),
            None => chebyshev(x, n, x + x),
        }
    }

    pub(super) fn chebyshev_v<F: Float>(x: F, n: F) -> F {
        match trigonometric_angle(x, n, 8) {
            Some((angle, n)) => ((n + F::one() / two()) * angle).cos() / (angle / two()).cos(),
            None => chebyshev(x, n, x + x - F::one()),
        }
    }

    pub(super) fn chebyshev_w<F: Float>(x: F, n: F) -> F {
        match trigonometric_angle(x, n, 8) {
            Some((angle, n)) => ((n + F::one() / two()) * angle).sin() / (angle / two()).sin(),
            None => chebyshev(x, n, x + x + F::one()),
        }
    }

    pub(super) fn shifted_chebyshev_t<F: Float>(x: F, n: F) -> F {
        chebyshev_t(x + x - F::one(), n)
    }

    pub(super) fn shifted_chebyshev_u<F: Float>(x: F, n: F) -> F {
        chebyshev_u(x + x - F::one(), n)
    }

    pub(super) fn shifted_chebyshev_v<F: Float>(x: F, n: F) -> F {
        chebyshev_v(x + x - F::one(), n)
    }

    pub(super) fn shifted_chebyshev_w<F: Float>(x: F, n: F) -> F {
        chebyshev_w(x + x - F::one(), n)
    }

    pub(super) fn hermite_h<F: Float>(x: F, n: F) -> F {
        recurrence(n, F::one(), x + x, |k, value, before| (x + x) * value - two::<F>() * k * before)
    }

    pub(super) fn hermite_he<F: Float>(x: F, n: F) -> F {
        recurrence(n, F::one(), x, |k, value, before| x * value - k * before)
    }

    pub(super) fn laguerre<F: Float>(x: F, n: F) -> F {
        let next = |k: F, value: F, before: F| ((k + k + F::one() - x) * value - k * before) / (k + F::one());
        recurrence(n, F::one(), F::one() - x, next)
    }

    pub(super) fn legendre<F: Float>(x: F, n: F) -> F {
        let next = |k: F, value: F, before: F| ((k + k + F::one()) * x * value - k * before) / (k + F::one());
        recurrence(n, F::one(), x, next)
    }
}

#[cfg(test)]
mod tests {
    use super::formula::*;

    #[test]
    fn values_of_low_and_high_degree() {
        let near = |actual: f64, expected: f64| {
            assert!((actual - expected).abs() < 1e-10 * expected.abs().max(1.0), "{actual}")
        };
        near(chebyshev_t(0.3, 4.0), 8.0 * 0.3f64.powi(4) - 8.0 * 0.09 + 1.0);
        near(chebyshev_t(0.3, 40.0), (40.0 * 0.3f64.acos()).cos());
        near(chebyshev_u(2.0, 3.0), 8.0 * 8.0 - 4.0 * 2.0);
        near(chebyshev_v(1.0, 12.0), 1.0);
        near(chebyshev_w(-1.0, 12.0), 1.0);
        near(shifted_chebyshev_t(0.65, 2.0), -0.82);
        near(hermite_h(1.5, 3.0), 8.0 * 3.375 - 18.0);
        near(hermite_he(1.5, 3.0), 3.375 - 4.5);
        near(laguerre(0.5, 2.0), 0.125);
        near(legendre(0.5, 3.0), -0.4375);
        assert_eq!((legendre(0.5, -1.0), legendre(0.5, 0.9)), (0.0, 1.0));
        assert!(legendre(0.5f64, 1e18).is_nan() && chebyshev_t(0.5, f64::NAN) == 0.0);
    }
}
