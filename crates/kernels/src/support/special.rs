//! Special functions that the standard library lacks.
#![allow(clippy::excessive_precision, reason = "coefficients are written as published")]

/// Evaluates a polynomial; the constant coefficient comes first.
fn polynomial(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().rev().fold(0.0, |sum, c| sum * x + c)
}

/// The error function, by the rational approximations of Sun's fdlibm; accurate to within an ulp.
pub(crate) fn erf(x: f64) -> f64 {
    let a = x.abs();
    if a < 0.84375 {
        return x + x * erf_near_zero(x);
    }
    (1.0 - erfc_tail(a)).copysign(x)
}

/// The complementary error function `1 - erf(x)`, accurate also where [`erf`] is near one.
pub(crate) fn erfc(x: f64) -> f64 {
    let a = x.abs();
    if a < 0.84375 {
        return 1.0 - (x + x * erf_near_zero(x));
    }
    if x < 0.0 { 2.0 - erfc_tail(a) } else { erfc_tail(a) }
}

/// `erf(x) / x - 1` for `x` of a magnitude below 0.84375.
fn erf_near_zero(x: f64) -> f64 {
    const P: [f64; 5] = [
        1.28379167095512558561e-01,
        -3.25042107247001499370e-01,
        -2.84817495755985104766e-02,
        -5.77027029648944159157e-03,
        -2.37630166566501626084e-05,
    ];
    const Q: [f64; 6] = [
        1.0,
        3.97917223959155352819e-01,
        6.50222499887672944485e-02,
        5.08130628187576562776e-03,
        1.32494738004321644526e-04,
        -3.96022827877536812320e-06,
    ];
    polynomial(x * x, &P) / polynomial(x * x, &Q)
}

/// `1 - erf(a)` for `a` of at least 0.84375.
fn erfc_tail(a: f64) -> f64 {
    const NEAR_ONE: f64 = 8.45062911510467529297e-01;
    const PA: [f64; 7] = [
        -2.36211856075265944077e-03,
        4.14856118683748331666e-01,
        -3.72207876035701323847e-01,
        3.18346619901161753674e-01,
        -1.10894694282396677476e-01,
        3.54783043256182359371e-02,
        -2.16637559486879084300e-03,
    ];
    const QA: [f64; 7] = [
        1.0,
        1.06420880400844228286e-01,
        5.40397917702171048937e-01,
        7.18286544141962662868e-02,
        1.26171219808761642112e-01,
        1.36370839120290507362e-02,
        1.19844998467991074170e-02,
    ];
    const RA: [f64; 8] = [
        -9.86494403484714822705e-03,
        -6.93858572707181764372e-01,
        -1.05586262253232909814e+01,
        -6.23753324503260060396e+01,
        -1.62396669462573470355e+02,
        -1.84605092906711035994e+02,
        -8.12874355063065934246e+01,
        -9.81432934416914548592e+00,
    ];
    const SA: [f64; 9] = [
        1.0,
        1.96512716674392571292e+01,
        1.37657754143519042600e+02,
        4.34565877475229228821e+02,
        6.45387271733267880336e+02,
        4.29008140027567833386e+02,
        1.08635005541779435134e+02,
        6.57024977031928170135e+00,
        -6.04244152148580987438e-02,
    ];
    const RB: [f64; 7] = [
        -9.86494292470009928597e-03,
        -7.99283237680523006574e-01,
        -1.77579549177547519889e+01,
        -1.60636384855821916062e+02,
        -6.37566443368389627722e+02,
        -1.02509513161107724954e+03,
        -4.83519191608651397019e+02,
    ];
    const SB: [f64; 8] = [
        1.0,
        3.03380607434824582924e+01,
        3.25792512996573918826e+02,
        1.53672958608443695994e+03,
        3.19985821950859553908e+03,
        2.55305040643316442583e+03,
        4.74528541206955367215e+02,
        -2.24409524465858183362e+01,
    ];
    if a < 1.25 {
        let s = a - 1.0;
        return 1.0 - NEAR_ONE - polynomial(s, &PA) / polynomial(s, &QA);
    }
    if a >= 28.0 {
        return 0.0;
    }
    let s = 1.0 / (a * a);
    let ratio = if a < 1.0 / 0.35 {
        polynomial(s, &RA) / polynomial(s, &SA)
    } else {
        polynomial(s, &RB) / polynomial(s, &SB)
    };
    // The square of the leading bits is exact, so that the exponential does not amplify a rounding error.
    let z = f64::from_bits(a.to_bits() & 0xffff_ffff_0000_0000);
    (-z * z - 0.5625).exp() * ((z - a) * (z + a) + ratio).exp() / a
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_and_its_complement() {
        let near = |a: f64, b: f64| assert!((a - b).abs() <= 4e-16 * b.abs(), "{a} {b}");
        near(erf(0.1), 0.1124629160182849);
        near(erf(-0.1), -0.1124629160182849);
        near(erfc(0.1), 0.8875370839817152);
        near(erf(0.5), 0.5204998778130465);
        near(erf(-0.5), -0.5204998778130465);
        near(erfc(0.5), 0.4795001221869535);
        near(erf(0.84), 0.7651427114549946);
        near(erf(-0.84), -0.7651427114549946);
        near(erfc(0.84), 0.23485728854500548);
        near(erf(0.9), 0.7969082124228322);
        near(erf(-0.9), -0.7969082124228322);
        near(erfc(0.9), 0.20309178757716786);
        near(erf(1.2), 0.9103139782296353);
        near(erf(-1.2), -0.9103139782296353);
        near(erfc(1.2), 0.08968602177036465);
        near(erf(1.3), 0.9340079449406524);
        near(erf(-1.3), -0.9340079449406524);
        near(erfc(1.3), 0.06599205505934755);
        near(erf(2.0), 0.9953222650189527);
        near(erf(-2.0), -0.9953222650189527);
        near(erfc(2.0), 0.004677734981047265);
        near(erf(2.8), 0.9999249868053346);
        near(erf(-2.8), -0.9999249868053346);
        near(erfc(2.8), 7.501319466545911e-05);
        near(erf(3.0), 0.9999779095030014);
        near(erf(-3.0), -0.9999779095030014);
        near(erfc(3.0), 2.2090496998585438e-05);
        near(erf(5.0), 0.9999999999984626);
        near(erf(-5.0), -0.9999999999984626);
        near(erfc(5.0), 1.5374597944280351e-12);
        near(erfc(26.0), 5.663192408856143e-296);
        assert_eq!((erf(f64::INFINITY), erfc(f64::INFINITY), erfc(f64::NEG_INFINITY)), (1.0, 0.0, 2.0));
        assert!(erf(f64::NAN).is_nan() && erfc(f64::NAN).is_nan());
    }
}
