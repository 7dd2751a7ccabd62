//! Special functions in terms of elementary ones. Those without a closed form are computed in f64, by series whose
//! error is below f32's precision.

use super::Table;
use super::When::{Always, NoKernel};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, TensorSpec, VarId, VarType};
use pteron_tensor::{Scalar, ScalarType};
use std::f64::consts::{FRAC_1_SQRT_2, LN_2, PI};

pub(super) const RULES: Table = &[
    ("aten.sinc", NoKernel, sinc),
    ("aten.special_sinc", NoKernel, sinc),
    ("aten.special_entr", NoKernel, entropy),
    ("aten.special_xlog1py", NoKernel, xlog1py),
    ("aten.special_ndtr", NoKernel, normal_cdf),
    ("aten.erfinv", NoKernel, erfinv),
    ("aten.special_erfinv", NoKernel, erfinv),
    ("aten.special_ndtri", NoKernel, normal_quantile),
    ("aten.lgamma", NoKernel, lgamma),
    ("aten.special_gammaln", NoKernel, lgamma),
    ("aten.mvlgamma", NoKernel, mvlgamma),
    ("aten.special_multigammaln", NoKernel, mvlgamma),
    ("aten.digamma", NoKernel, digamma),
    ("aten.special_psi", NoKernel, digamma),
    ("aten.special_digamma", NoKernel, digamma),
    ("aten.polygamma", NoKernel, polygamma),
    ("aten.special_polygamma", NoKernel, polygamma),
    ("aten.i0", NoKernel, bessel),
    ("aten.special_i0", NoKernel, bessel),
    ("aten.special_i0e", NoKernel, bessel),
    ("aten.special_i1", NoKernel, bessel),
    ("aten.special_i1e", NoKernel, bessel),
    ("aten.special_modified_bessel_i0", NoKernel, bessel),
    ("aten.special_modified_bessel_i1", NoKernel, bessel),
    ("aten.heaviside", NoKernel, heaviside),
    ("aten.copysign", NoKernel, copysign),
    ("aten.signbit", NoKernel, signbit),
    ("aten.ldexp", Always, ldexp),
    ("aten.float_power", Always, float_power),
    ("aten.isclose", NoKernel, isclose),
    ("aten.allclose", NoKernel, allclose),
    ("aten.isposinf", NoKernel, isposinf_or_isneginf),
    ("aten.isneginf", NoKernel, isposinf_or_isneginf),
    ("aten.isreal", NoKernel, isreal),
    ("aten.angle", NoKernel, angle),
    ("aten.round", NoKernel, round_decimals),
    ("aten.logaddexp2", NoKernel, logaddexp2),
    ("aten.special_log_softmax", Always, log_softmax),
    ("aten.special_softmax", Always, softmax),
    ("aten.special_expit", Always, expit),
    ("aten.special_logit", Always, logit),
    ("aten.special_log1p", Always, log1p),
    ("aten.special_expm1", Always, expm1),
    ("aten.special_exp2", Always, exp2),
    ("aten.special_erf", Always, erf),
    ("aten.special_erfc", Always, erfc),
    ("aten.special_xlogy", Always, xlogy),
    ("aten.special_round", Always, round),
    ("aten.special_logsumexp", Always, logsumexp),
];

macro_rules! aliases {
    ($($rule:ident => $target:literal;)*) => {
        $(fn $rule(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
            super::elementwise::rename_operator(cx, node, $target)
        })*
    };
}

aliases! {
    log_softmax => "aten.log_softmax";
    softmax => "aten.softmax";
    expit => "aten.sigmoid";
    logit => "aten.logit";
    log1p => "aten.log1p";
    expm1 => "aten.expm1";
    exp2 => "aten.exp2";
    erf => "aten.erf";
    erfc => "aten.erfc";
    xlogy => "aten.xlogy";
    round => "aten.round";
    logsumexp => "aten.logsumexp";
}

/// The operand in the type of the result, or in f32 for half precision.
fn float_operand(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<VarId> {
    let (x, want) = (super::elementwise::self_operand(cx, node)?, cx.result_spec(node)?.dtype);
    let is_half = matches!(want, ScalarType::Half | ScalarType::BFloat16);
    Ok(cx.cast(x, if is_half { ScalarType::Float } else { want }))
}

fn replace_with_cast(cx: &mut Rewriter<'_>, node: &ExportedNode, value: VarId) -> Result<Outcome> {
    let want = cx.result_spec(node)?.dtype;
    let new = cx.cast(value, want);
    cx.replace_node(node, new)
}

/// Applies `f` to the operand in f64, and casts the result to the node's type.
fn compute_in_f64(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    f: impl FnOnce(&mut Rewriter<'_>, VarId) -> Result<VarId>,
) -> Result<Outcome> {
    let x = super::elementwise::self_operand(cx, node)?;
    let wide = cx.cast(x, ScalarType::Double);
    let value = f(cx, wide)?;
    replace_with_cast(cx, node, value)
}

/// A 0-d constant in the type of `x`.
fn constant_like(cx: &mut Rewriter<'_>, x: VarId, value: f64) -> Result<VarId> {
    let dtype = cx.spec_of(x).dtype;
    cx.scalar(Scalar::Double(value), dtype)
}

/// `c0 + c1 x + c2 x^2 + ...`
fn polynomial(cx: &mut Rewriter<'_>, x: VarId, coefficients: &[f64]) -> VarId {
    let Some((&last, rest)) = coefficients.split_last() else { return x };
    let Some((&next, rest)) = rest.split_last() else {
        let none = cx.mul(x, 0.0);
        return cx.add(none, last);
    };
    let first = cx.mul(x, last);
    let mut sum = cx.add(first, next);
    for &c in rest.iter().rev() {
        let product = cx.mul(sum, x);
        sum = cx.add(product, c);
    }
    sum
}

/// `sin(pi x) / (pi x)`.
fn sinc(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = float_operand(cx, node)?;
    let turned = cx.mul(x, PI);
    let sin = cx.unary("aten.sin.default", turned);
    let ratio = cx.div(sin, turned);
    let zero = cx.compare("aten.eq.Scalar", x, 0.0);
    let one = constant_like(cx, x, 1.0)?;
    let new = cx.choose(zero, one, ratio);
    replace_with_cast(cx, node, new)
}

/// `-x log(x)`, 0 at 0 and -inf below.
fn entropy(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = float_operand(cx, node)?;
    let log = cx.unary("aten.log.default", x);
    let product = cx.mul(x, log);
    let down = cx.unary("aten.neg.default", product);
    let is_zero = cx.compare("aten.eq.Scalar", x, 0.0);
    let below = cx.compare("aten.lt.Scalar", x, 0.0);
    let (zero, low) = (constant_like(cx, x, 0.0)?, constant_like(cx, x, f64::NEG_INFINITY)?);
    let new = cx.choose(is_zero, zero, down);
    let new = cx.choose(below, low, new);
    replace_with_cast(cx, node, new)
}

/// An operand that may be a tensor or a scalar, as a tensor.
fn tensor_or_number(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    name: &str,
    dtype: ScalarType,
) -> Result<VarId> {
    match cx.optional_tensor(node, name) {
        Some(x) => Ok(cx.cast(x, dtype)),
        None => {
            let value = cx.float(node, name, 0.0)?;
            cx.scalar(Scalar::Double(value), dtype)
        }
    }
}

fn xlog1py(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let want = cx.result_spec(node)?.dtype;
    let (x, y) = (tensor_or_number(cx, node, "self", want)?, tensor_or_number(cx, node, "other", want)?);
    let log = cx.unary("aten.log1p.default", y);
    let product = cx.mul(x, log);
    let none = cx.compare("aten.eq.Scalar", x, 0.0);
    let defined = cx.compare("aten.eq.Tensor", y, y);
    let zero_where = cx.compare("aten.logical_and.default", none, defined);
    let zero = constant_like(cx, product, 0.0)?;
    let new = cx.choose(zero_where, zero, product);
    cx.replace_node(node, new)
}

/// `ndtr`, as `erfc(-x / sqrt 2) / 2`. PyTorch computes `(1 + erf(x / sqrt 2)) / 2`, which cancels in the lower tail.
fn normal_cdf(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    compute_in_f64(cx, node, |cx, x| {
        let scaled = cx.mul(x, -FRAC_1_SQRT_2);
        let erfc = cx.unary("aten.erfc.default", scaled);
        Ok(cx.mul(erfc, 0.5))
    })
}

/// `erfinv` by Winitzki's closed-form approximation, refined by Newton's method.
fn emit_erfinv(cx: &mut Rewriter<'_>, x: VarId) -> Result<VarId> {
    const A: f64 = 0.147;
    let squares = cx.mul(x, x);
    let down = cx.unary("aten.neg.default", squares);
    let log = cx.unary("aten.log1p.default", down);
    let half = cx.mul(log, 0.5);
    let base = cx.add(half, 2.0 / (PI * A));
    let square = cx.mul(base, base);
    let part = cx.mul(log, 1.0 / A);
    let inside = cx.sub(square, part);
    let root = cx.unary("aten.sqrt.default", inside);
    let way = cx.sub(root, base);
    let size = cx.unary("aten.sqrt.default", way);
    let sign = cx.unary("aten.sign.default", x);
    let start = cx.mul(size, sign);
    let mut y = start;
    for _ in 0..3 {
        let erf = cx.unary("aten.erf.default", y);
        let wrong = cx.sub(erf, x);
        let squares = cx.mul(y, y);
        let power = cx.unary("aten.exp.default", squares);
        let slope = cx.mul(power, PI.sqrt() / 2.0);
        let step = cx.mul(wrong, slope);
        y = cx.sub(y, step);
    }
    // At -1 and 1 the steps give NaN, but the first approximation is already the exact infinity.
    let size = cx.unary("aten.abs.default", x);
    let inner = cx.compare("aten.lt.Scalar", size, 1.0);
    Ok(cx.choose(inner, y, start))
}

fn erfinv(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    compute_in_f64(cx, node, emit_erfinv)
}

/// Rational approximations of the quantiles of the normal distribution, from Cephes' `ndtri`, as PyTorch has it:
/// numerators and denominators, lowest power first.
const QUANTILES: [(&[f64], &[f64]); 3] = [
    (
        &[-1.2391658386738125, 13.931260938727968, -56.67628574690703, 98.00107541859997, -59.96335010141079],
        &[
            -1.1833162112133,
            15.90562251262117,
            -82.03722561683334,
            200.26021238006066,
            -225.46268785411937,
            86.36024213908905,
            4.676279128988815,
            1.9544885833814176,
            1.0,
        ],
    ),
    (
        &[
            -0.0008574567851546854,
            -0.03504246268278482,
            -0.1402560791713545,
            2.1866330685079025,
            14.684956192885803,
            44.08050738932008,
            57.16281922464213,
            31.525109459989388,
            4.0554489230596245,
        ],
        &[
            -0.0009332594808954574,
            -0.03808064076915783,
            -0.14218292285478779,
            2.504649462083094,
            15.04253856929075,
            41.3172038254672,
            45.39076351288792,
            15.779988325646675,
            1.0,
        ],
    ),
    (
        &[
            6.239745391849833e-09,
            2.6580697468673755e-06,
            0.00030158155350823543,
            0.012371663481782003,
            0.20148538954917908,
            1.3330346081580755,
            3.9388102529247444,
            6.915228890689842,
            3.2377489177694603,
        ],
        &[
            6.790194080099813e-09,
            2.8924786474538068e-06,
            0.00032801446468212774,
            0.013420400608854318,
            0.21623699359449663,
            1.3770209948908132,
            3.6798356385616087,
            6.02427039364742,
            1.0,
        ],
    ),
];

/// `ndtri`: computes the quantile of `p`, the probability of the smaller tail, and flips its sign in the upper tail.
fn normal_quantile(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let ratio = |cx: &mut Rewriter<'_>, x: VarId, (numerator, denominator): (&[f64], &[f64])| {
        let (numerator, denominator) = (polynomial(cx, x, numerator), polynomial(cx, x, denominator));
        cx.div(numerator, denominator)
    };
    compute_in_f64(cx, node, |cx, x| {
        let down = cx.unary("aten.neg.default", x);
        let above = cx.add(down, 1.0);
        let is_low = cx.compare("aten.le.Scalar", x, 0.5);
        let p = cx.choose(is_low, x, above);
        // Near the mean: `sqrt(2 pi) (d + d^3 R(d^2))` with `d = p - 1/2`.
        let distance = cx.sub(p, 0.5);
        let squares = cx.mul(distance, distance);
        let inner = ratio(cx, squares, QUANTILES[0]);
        let inner = cx.mul(inner, squares);
        let inner = cx.mul(inner, distance);
        let inner = cx.add(inner, distance);
        let inner = cx.mul(inner, (2.0 * PI).sqrt());
        // Far from it: `log(t) / t - t + R(1 / t) / t` with `t = sqrt(-2 log p)`.
        let log = cx.unary("aten.log.default", p);
        let double = cx.mul(log, -2.0);
        let t = cx.unary("aten.sqrt.default", double);
        let one = cx.unary("aten.reciprocal.default", t);
        let [near, far] = [QUANTILES[1], QUANTILES[2]].map(|terms| ratio(cx, one, terms));
        let is_near = cx.compare("aten.lt.Scalar", t, 8.0);
        let outer = cx.choose(is_near, near, far);
        let log = cx.unary("aten.log.default", t);
        let outer = cx.add(outer, log);
        let outer = cx.mul(outer, one);
        let outer = cx.sub(outer, t);
        let is_inner = cx.compare("aten.gt.Scalar", p, (-2f64).exp());
        let quantile = cx.choose(is_inner, inner, outer);
        let (none, infinite) =
            (cx.compare("aten.eq.Scalar", p, 0.0), constant_like(cx, x, f64::NEG_INFINITY)?);
        let quantile = cx.choose(none, infinite, quantile);
        let mirrored = cx.unary("aten.neg.default", quantile);
        Ok(cx.choose(is_low, quantile, mirrored))
    })
}

/// The logarithm of the gamma function by Lanczos' approximation with g = 7, for arguments of at least 1/2.
fn log_gamma_above_half(cx: &mut Rewriter<'_>, x: VarId) -> VarId {
    const LANCZOS: [f64; 8] = [
        676.5203681218851,
        -1259.1392167224028,
        771.3234287776531,
        -176.6150291621406,
        12.507343278686905,
        -0.13857109526572012,
        9.984369578019572e-6,
        1.5056327351493116e-7,
    ];
    let less = cx.sub(x, 1.0);
    let mut sum: Option<VarId> = None;
    for (i, c) in LANCZOS.iter().enumerate() {
        let under = cx.add(less, (i + 1) as f64);
        let one = cx.unary("aten.reciprocal.default", under);
        let term = cx.mul(one, *c);
        sum = Some(match sum {
            Some(sum) => cx.add(sum, term),
            None => cx.add(term, 0.999_999_999_999_809_9),
        });
    }
    let sum = sum.unwrap_or(less);
    let t = cx.add(less, 7.5);
    let log_t = cx.unary("aten.log.default", t);
    let exponent = cx.add(less, 0.5);
    let power = cx.mul(log_t, exponent);
    let power = cx.sub(power, t);
    let log = cx.unary("aten.log.default", sum);
    let sum = cx.add(power, log);
    cx.add(sum, 0.5 * (2.0 * PI).ln())
}

/// The logarithm of the absolute value of the gamma function; below 1/2 by the reflection formula.
fn log_gamma(cx: &mut Rewriter<'_>, x: VarId) -> Result<VarId> {
    let down = cx.unary("aten.neg.default", x);
    let mirrored = cx.add(down, 1.0);
    let is_low = cx.compare("aten.lt.Scalar", x, 0.5);
    let above = cx.choose(is_low, mirrored, x);
    let value = log_gamma_above_half(cx, above);
    let floor = cx.unary("aten.floor.default", x);
    let fraction = cx.sub(x, floor);
    let turned = cx.mul(fraction, PI);
    let sin = cx.unary("aten.sin.default", turned);
    let log = cx.unary("aten.log.default", sin);
    let down = cx.unary("aten.neg.default", log);
    let pi = cx.add(down, PI.ln());
    let reflected = cx.sub(pi, value);
    let value = cx.choose(is_low, reflected, value);
    let size = cx.unary("aten.abs.default", x);
    let is_infinite = cx.compare("aten.eq.Scalar", size, f64::INFINITY);
    let infinite = constant_like(cx, x, f64::INFINITY)?;
    Ok(cx.choose(is_infinite, infinite, value))
}

fn lgamma(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    compute_in_f64(cx, node, log_gamma)
}

fn mvlgamma(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let p = cx.int(node, "p", 1)?;
    if !(1..=64).contains(&p) {
        return cx.fail(node, format!("a gamma function of dimension {p}"));
    }
    compute_in_f64(cx, node, |cx, x| {
        let mut sum: Option<VarId> = None;
        for j in 0..p {
            let at = cx.sub(x, j as f64 / 2.0);
            let term = log_gamma(cx, at)?;
            sum = Some(sum.map_or(term, |sum| cx.add(sum, term)));
        }
        let constant = (p * (p - 1)) as f64 / 4.0 * PI.ln();
        Ok(cx.add(sum.unwrap_or(x), constant))
    })
}

/// Shifts the argument up by recurrence to where the asymptotic series holds; reflects negative arguments.
fn digamma(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    const STEPS: i64 = 8;
    compute_in_f64(cx, node, |cx, x| {
        let is_low = cx.compare("aten.lt.Scalar", x, 0.0);
        let down = cx.unary("aten.neg.default", x);
        let mirrored = cx.add(down, 1.0);
        let above = cx.choose(is_low, mirrored, x);
        let mut terms: Option<VarId> = None;
        for k in 0..STEPS {
            let at = cx.add(above, k as f64);
            let term = cx.unary("aten.reciprocal.default", at);
            terms = Some(terms.map_or(term, |sum| cx.add(sum, term)));
        }
        let z = cx.add(above, STEPS as f64);
        let one = cx.unary("aten.reciprocal.default", z);
        let square = cx.mul(one, one);
        let series = polynomial(
            cx,
            square,
            &[0.0, 1.0 / 12.0, -1.0 / 120.0, 1.0 / 252.0, -1.0 / 240.0, 5.0 / 660.0, -691.0 / 32760.0],
        );
        let log = cx.unary("aten.log.default", z);
        let half = cx.mul(one, 0.5);
        let value = cx.sub(log, half);
        let value = cx.sub(value, series);
        let value = terms.map_or(value, |terms| cx.sub(value, terms));
        let floor = cx.unary("aten.floor.default", x);
        let fraction = cx.sub(x, floor);
        let turned = cx.mul(fraction, PI);
        let tangent = cx.unary("aten.tan.default", turned);
        let cotangent = cx.unary("aten.reciprocal.default", tangent);
        let part = cx.mul(cotangent, PI);
        let reflected = cx.sub(value, part);
        let value = cx.choose(is_low, reflected, value);
        let pole = cx.compare("aten.eq.Scalar", fraction, 0.0);
        let low_pole = cx.compare("aten.logical_and.default", pole, is_low);
        let nan = constant_like(cx, x, f64::NAN)?;
        Ok(cx.choose(low_pole, nan, value))
    })
}

/// Derivatives of the digamma function: the Hurwitz zeta function by the Euler-Maclaurin formula.
fn polygamma(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    const STEPS: i64 = 12;
    /// The Bernoulli numbers B2, B4, ..., each divided by the factorial of its index.
    const BERNOULLI: [f64; 6] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30240.0,
        -1.0 / 1209600.0,
        1.0 / 47900160.0,
        -691.0 / 1307674368000.0,
    ];
    let order = cx.int(node, "n", 0)?;
    if order == 0 {
        return digamma(cx, node);
    }
    if !(1..=64).contains(&order) {
        return cx.fail(node, format!("the derivative {order} of the digamma function"));
    }
    compute_in_f64(cx, node, |cx, x| {
        let s = (order + 1) as f64;
        let mut sum: Option<VarId> = None;
        for k in 0..STEPS {
            let at = cx.add(x, k as f64);
            let term = cx.pow(at, -s);
            sum = Some(sum.map_or(term, |sum| cx.add(sum, term)));
        }
        let z = cx.add(x, STEPS as f64);
        let power = cx.pow(z, 1.0 - s);
        let tail = cx.mul(power, 1.0 / (s - 1.0));
        let power = cx.pow(z, -s);
        let half = cx.mul(power, 0.5);
        let mut value = cx.add(tail, half);
        let mut factor = s;
        for (j, b) in BERNOULLI.iter().enumerate() {
            let exponent = s + 2.0 * j as f64 + 1.0;
            let power = cx.pow(z, -exponent);
            let term = cx.mul(power, b * factor);
            value = cx.add(value, term);
            factor *= exponent * (exponent + 1.0);
        }
        let value = sum.map_or(value, |sum| cx.add(value, sum));
        let factorial: f64 = (1..=order).map(|i| i as f64).product();
        let sign = if order % 2 == 1 { 1.0 } else { -1.0 };
        Ok(cx.mul(value, sign * factorial))
    })
}

/// Modified Bessel functions of the first kind, by their power series up to 16 and their asymptotic series above.
fn bessel(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let name = node.target.clone();
    let is_first = name.contains("i1");
    let scaled = name.contains("i0e") || name.contains("i1e");
    compute_in_f64(cx, node, |cx, x| {
        let size = cx.unary("aten.abs.default", x);
        let order = f64::from(u8::from(is_first));
        // The terms `(x/2)^2k / (k! (k + order)!)`, enough of them for arguments up to 16.
        let bounded = cx.clamp(size, None, Some(16.0));
        let half = cx.mul(bounded, 0.5);
        let squares = cx.mul(half, half);
        let mut coefficients = vec![1.0];
        for k in 1..40 {
            let k = f64::from(k);
            let last: f64 = coefficients[coefficients.len() - 1];
            coefficients.push(last / (k * (k + order)));
        }
        let mut near = polynomial(cx, squares, &coefficients);
        if is_first {
            near = cx.mul(near, half);
        }
        let down = cx.unary("aten.neg.default", size);
        let decay = cx.unary("aten.exp.default", down);
        let near = if scaled { cx.mul(near, decay) } else { near };
        // Above 16: `e^x / sqrt(2 pi x)` times a series in `1 / x`.
        let large = cx.clamp(size, Some(16.0), None);
        let one = cx.unary("aten.reciprocal.default", large);
        let mu = 4.0 * order * order;
        let mut coefficients = vec![1.0];
        for k in 1..14 {
            let odd = f64::from(2 * k - 1);
            let last: f64 = coefficients[coefficients.len() - 1];
            coefficients.push(-last * (mu - odd * odd) / (8.0 * f64::from(k)));
        }
        let series = polynomial(cx, one, &coefficients);
        let root = cx.mul(large, 2.0 * PI);
        let root = cx.unary("aten.rsqrt.default", root);
        let mut far = cx.mul(series, root);
        if !scaled {
            let growth = cx.unary("aten.exp.default", large);
            far = cx.mul(far, growth);
        }
        let is_near = cx.compare("aten.le.Scalar", size, 16.0);
        let value = cx.choose(is_near, near, far);
        if !is_first {
            return Ok(value);
        }
        let sign = cx.unary("aten.sign.default", x);
        Ok(cx.mul(value, sign))
    })
}

/// 0 below zero, 1 above, and `values` at zero.
fn heaviside(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, values, want) = (cx.tensor(node, "self")?, cx.tensor(node, "values")?, cx.result_spec(node)?);
    let above = cx.compare("aten.gt.Scalar", x, 0);
    let step = cx.cast(above, want.dtype);
    let zero = cx.compare("aten.eq.Scalar", x, 0);
    let values = cx.cast(values, want.dtype);
    let new = cx.choose(zero, values, step);
    cx.replace_node(node, new)
}

/// A mask of the elements that are negative, including negative zero.
fn negative_mask(cx: &mut Rewriter<'_>, x: VarId) -> VarId {
    let below = cx.compare("aten.lt.Scalar", x, 0);
    if !cx.spec_of(x).dtype.is_floating() {
        return below;
    }
    let one = cx.unary("aten.reciprocal.default", x);
    let below_infinity = cx.compare("aten.lt.Scalar", one, 0);
    cx.compare("aten.logical_or.default", below, below_infinity)
}

fn copysign(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let want = cx.result_spec(node)?.dtype;
    let (x, sign) = (tensor_or_number(cx, node, "self", want)?, tensor_or_number(cx, node, "other", want)?);
    let size = cx.unary("aten.abs.default", x);
    let down = cx.unary("aten.neg.default", size);
    let is_negative = negative_mask(cx, sign);
    let new = cx.choose(is_negative, down, size);
    cx.replace_node(node, new)
}

fn signbit(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let new = negative_mask(cx, x);
    cx.replace_node(node, new)
}

/// `x * 2^other`.
fn ldexp(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let want = cx.result_spec(node)?.dtype;
    let (x, exponent) = (cx.tensor(node, "self")?, tensor_or_number(cx, node, "other", want)?);
    let x = cx.cast(x, want);
    let spec = cx.spec_of(exponent);
    let args = vec![("self", Argument::Float(2.0)), ("exponent", Argument::Var(exponent))];
    let power = cx.emit("aten.pow.Scalar", args, spec);
    let new = cx.mul(x, power);
    cx.replace_node(node, new)
}

/// `pow` in f64.
fn float_power(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let want = cx.result_spec(node)?;
    if want.dtype.is_complex() {
        return Ok(Outcome::Kept);
    }
    let mut power = node.clone();
    power.target = node.target.replacen("aten.float_power", "aten.pow", 1).into();
    for (_, arg) in &mut power.args {
        match arg {
            Argument::Var(v) => *v = cx.cast(*v, want.dtype),
            Argument::Int(v) => *arg = Argument::Float(*v as f64),
            _ => {}
        }
    }
    cx.push_node(power);
    Ok(Outcome::Replaced)
}

/// Whether `|self - other| <= atol + rtol |other|`; equal elements are always close, infinities too.
fn close_mask(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<VarId> {
    let (a, b) = (cx.tensor(node, "self")?, cx.tensor(node, "other")?);
    let dtype = cx.spec_of(a).dtype;
    let wide = if dtype.is_floating() { dtype } else { ScalarType::Double };
    let (x, y) = (cx.cast(a, wide), cx.cast(b, wide));
    let (rtol, atol) = (cx.float(node, "rtol", 1e-5)?, cx.float(node, "atol", 1e-8)?);
    let same = cx.compare("aten.eq.Tensor", x, y);
    let way = cx.sub(x, y);
    let way = cx.unary("aten.abs.default", way);
    let size = cx.unary("aten.abs.default", y);
    let part = cx.mul(size, rtol);
    let allowed = cx.add(part, atol);
    let near = cx.compare("aten.le.Tensor", way, allowed);
    let finite = cx.compare("aten.lt.Scalar", way, f64::INFINITY);
    let near = cx.compare("aten.logical_and.default", near, finite);
    let mut new = cx.compare("aten.logical_or.default", same, near);
    if cx.bool(node, "equal_nan", false)? {
        let (p, q) = (cx.nan_mask(x), cx.nan_mask(y));
        let both = cx.compare("aten.logical_and.default", p, q);
        new = cx.compare("aten.logical_or.default", new, both);
    }
    Ok(new)
}

fn isclose(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let new = close_mask(cx, node)?;
    cx.replace_node(node, new)
}

/// Whether all elements are close: a 0-d tensor, as ExecuTorch's kernel makes it, or a bool, as PyTorch's operator
/// does.
fn allclose(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let new = close_mask(cx, node)?;
    let spec = TensorSpec::contiguous(ScalarType::Bool, Vec::new());
    let new = cx.emit("aten.all.default", vec![("self", Argument::Var(new))], spec);
    match node.outputs.first().map(|&v| &cx.program.var(v).ty) {
        Some(VarType::Bool) => {
            Ok(cx.retarget(node, "aten._local_scalar_dense.default", vec![("self", Argument::Var(new))]))
        }
        _ => cx.replace_node(node, new),
    }
}

fn isposinf_or_isneginf(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, sizes) = (cx.tensor(node, "self")?, cx.result_spec(node)?.sizes);
    if !cx.spec(node, x)?.dtype.is_floating() {
        let new = cx.full(node, sizes, Argument::Bool(false), ScalarType::Bool)?;
        return cx.replace_node(node, new);
    }
    let end = if node.target.contains("pos") { f64::INFINITY } else { f64::NEG_INFINITY };
    let new = cx.compare("aten.eq.Scalar", x, end);
    cx.replace_node(node, new)
}

fn isreal(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, sizes) = (cx.tensor(node, "self")?, cx.result_spec(node)?.sizes);
    if cx.spec(node, x)?.dtype.is_complex() {
        return Ok(Outcome::Kept);
    }
    let new = cx.full(node, sizes, Argument::Bool(true), ScalarType::Bool)?;
    cx.replace_node(node, new)
}

/// The angle of real numbers: pi for negative ones, otherwise 0.
fn angle(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, want) = (cx.tensor(node, "self")?, cx.result_spec(node)?.dtype);
    if cx.spec(node, x)?.dtype.is_complex() {
        return Ok(Outcome::Kept);
    }
    let below = cx.compare("aten.lt.Scalar", x, 0);
    let (pi, zero) = (cx.scalar(Scalar::Double(PI), want)?, cx.scalar(Scalar::Double(0.0), want)?);
    let mut new = cx.choose(below, pi, zero);
    if cx.spec_of(x).dtype.is_floating() {
        let nan = cx.nan_mask(x);
        new = cx.choose(nan, x, new);
    }
    cx.replace_node(node, new)
}

/// Rounds to `decimals` decimal places, which may be negative.
fn round_decimals(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, decimals) = (cx.tensor(node, "self")?, cx.int(node, "decimals", 0)?);
    let scale = 10f64.powi(decimals.unsigned_abs().min(300) as i32);
    let moved = match decimals {
        0 => x,
        d if d > 0 => cx.mul(x, scale),
        _ => cx.div(x, scale),
    };
    let rounded = cx.unary("aten.round.default", moved);
    let new = match decimals {
        0 => rounded,
        d if d > 0 => cx.div(rounded, scale),
        _ => cx.mul(rounded, scale),
    };
    cx.replace_node(node, new)
}

fn logaddexp2(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, y) = (cx.tensor(node, "self")?, cx.tensor(node, "other")?);
    let (x, y) = (cx.mul(x, LN_2), cx.mul(y, LN_2));
    let sum = super::scan::log_add_exp(cx, x, y)?;
    let new = cx.div(sum, LN_2);
    cx.replace_node(node, new)
}
