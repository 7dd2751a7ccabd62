//! Functions of complex numbers in real arithmetic.

use super::Pair;
use crate::Result;
use crate::rewrite::Rewriter;
use pteron_exported::{ExportedNode, VarId};
use pteron_tensor::Scalar;

/// Applies the unary operator `name` to a complex number; `None` if the operator has no rule.
pub(super) fn apply_function(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    name: &str,
    (a, b): Pair,
) -> Result<Option<Pair>> {
    Ok(Some(match name {
        "exp" => exp(cx, (a, b)),
        "log" => log(cx, (a, b)),
        "sqrt" => sqrt(cx, (a, b))?,
        "rsqrt" => {
            let root = sqrt(cx, (a, b))?;
            reciprocal(cx, root)
        }
        "reciprocal" => reciprocal(cx, (a, b)),
        "square" => multiply(cx, (a, b), (a, b)),
        "sgn" => sign(cx, (a, b))?,
        "sigmoid" => {
            let minus = (cx.unary("aten.neg.default", a), cx.unary("aten.neg.default", b));
            let (re, im) = exp(cx, minus);
            let under = (cx.add(re, 1.0), im);
            reciprocal(cx, under)
        }
        // sin(a + bi) = sin a cosh b + i cos a sinh b, and likewise for the others.
        "sin" => products_of_parts(cx, ["sin", "cosh", "cos", "sinh"], (a, b), false),
        "cos" => products_of_parts(cx, ["cos", "cosh", "sin", "sinh"], (a, b), true),
        "sinh" => products_of_parts(cx, ["sinh", "cos", "cosh", "sin"], (a, b), false),
        "cosh" => products_of_parts(cx, ["cosh", "cos", "sinh", "sin"], (a, b), false),
        "tanh" => tanh(cx, (a, b)),
        "tan" => {
            // tan(z) = -i tanh(iz)
            let turned = cx.unary("aten.neg.default", b);
            let (re, im) = tanh(cx, (turned, a));
            (im, cx.unary("aten.neg.default", re))
        }
        "pow" => return pow_with_real_exponent(cx, node, (a, b)).map(Some),
        _ => return Ok(None),
    }))
}

fn unary(cx: &mut Rewriter<'_>, name: &str, x: VarId) -> VarId {
    let target = match name {
        "sin" => "aten.sin.default",
        "cos" => "aten.cos.default",
        "sinh" => "aten.sinh.default",
        _ => "aten.cosh.default",
    };
    cx.unary(target, x)
}

/// `f(a) g(b) + i h(a) k(b)`; the imaginary part is negated if `negated` is set.
fn products_of_parts(cx: &mut Rewriter<'_>, [f, g, h, k]: [&str; 4], (a, b): Pair, negated: bool) -> Pair {
    let (fa, gb, ha, kb) = (unary(cx, f, a), unary(cx, g, b), unary(cx, h, a), unary(cx, k, b));
    let im = cx.mul(ha, kb);
    (cx.mul(fa, gb), if negated { cx.unary("aten.neg.default", im) } else { im })
}

/// The absolute value.
pub(super) fn modulus(cx: &mut Rewriter<'_>, (a, b): Pair) -> VarId {
    let (aa, bb) = (cx.mul(a, a), cx.mul(b, b));
    let sum = cx.add(aa, bb);
    cx.unary("aten.sqrt.default", sum)
}

pub(super) fn angle(cx: &mut Rewriter<'_>, (a, b): Pair) -> VarId {
    cx.binary("aten.atan2.default", b, a)
}

/// The number with this absolute value and angle.
pub(super) fn polar(cx: &mut Rewriter<'_>, modulus: VarId, angle: VarId) -> Pair {
    let (cos, sin) = (cx.unary("aten.cos.default", angle), cx.unary("aten.sin.default", angle));
    (cx.mul(modulus, cos), cx.mul(modulus, sin))
}

fn exp(cx: &mut Rewriter<'_>, (a, b): Pair) -> Pair {
    let size = cx.unary("aten.exp.default", a);
    polar(cx, size, b)
}

fn log(cx: &mut Rewriter<'_>, z: Pair) -> Pair {
    let size = modulus(cx, z);
    (cx.unary("aten.log.default", size), angle(cx, z))
}

pub(super) fn multiply(cx: &mut Rewriter<'_>, (a, b): Pair, (c, d): Pair) -> Pair {
    let (ac, bd, ad, bc) = (cx.mul(a, c), cx.mul(b, d), cx.mul(a, d), cx.mul(b, c));
    (cx.sub(ac, bd), cx.add(ad, bc))
}

pub(super) fn reciprocal(cx: &mut Rewriter<'_>, (a, b): Pair) -> Pair {
    let (aa, bb) = (cx.mul(a, a), cx.mul(b, b));
    let size = cx.add(aa, bb);
    let im = cx.div(b, size);
    (cx.div(a, size), cx.unary("aten.neg.default", im))
}

/// The principal root. With `t = sqrt((|z| + |a|) / 2)` it is `t + i b / 2t` on the right half plane and
/// `|b| / 2t + i t`, with the sign of `b`, on the left one; neither form cancels.
fn sqrt(cx: &mut Rewriter<'_>, (a, b): Pair) -> Result<Pair> {
    let size = modulus(cx, (a, b));
    let across = cx.unary("aten.abs.default", a);
    let sum = cx.add(size, across);
    let half = cx.mul(sum, 0.5);
    let root = cx.unary("aten.sqrt.default", half);
    let is_zero = cx.compare("aten.eq.Scalar", root, 0.0);
    let twice = cx.mul(root, 2.0);
    let quotient = cx.div(b, twice);
    let zero = cx.scalar(Scalar::Double(0.0), cx.spec_of(a).dtype)?;
    let other = cx.choose(is_zero, zero, quotient);
    let right = cx.compare("aten.ge.Scalar", a, 0.0);
    let height = cx.unary("aten.abs.default", other);
    let down = cx.compare("aten.lt.Scalar", b, 0.0);
    let minus = cx.unary("aten.neg.default", root);
    let signed = cx.choose(down, minus, root);
    Ok((cx.choose(right, root, height), cx.choose(right, other, signed)))
}

/// `z / |z|`; zero for zero.
fn sign(cx: &mut Rewriter<'_>, (a, b): Pair) -> Result<Pair> {
    let size = modulus(cx, (a, b));
    let is_zero = cx.compare("aten.eq.Scalar", size, 0.0);
    let one = cx.scalar(Scalar::Double(1.0), cx.spec_of(a).dtype)?;
    let size = cx.choose(is_zero, one, size);
    Ok((cx.div(a, size), cx.div(b, size)))
}

/// `(sinh 2a + i sin 2b) / (cosh 2a + cos 2b)`, with `a` bounded: beyond 20, the real part is 1 in f64.
fn tanh(cx: &mut Rewriter<'_>, (a, b): Pair) -> Pair {
    let bounded = cx.clamp(a, Some(-20.0), Some(20.0));
    let (a2, b2) = (cx.mul(bounded, 2.0), cx.mul(b, 2.0));
    let (sinh, cosh) = (cx.unary("aten.sinh.default", a2), cx.unary("aten.cosh.default", a2));
    let (sin, cos) = (cx.unary("aten.sin.default", b2), cx.unary("aten.cos.default", b2));
    let under = cx.add(cosh, cos);
    (cx.div(sinh, under), cx.div(sin, under))
}

/// A power with a real exponent, a number or a tensor.
fn pow_with_real_exponent(cx: &mut Rewriter<'_>, node: &ExportedNode, z: Pair) -> Result<Pair> {
    let (size, turn) = (modulus(cx, z), angle(cx, z));
    match node.arg("exponent").and_then(pteron_exported::Argument::var) {
        Some(exponent) => {
            let turned = cx.mul(turn, exponent);
            let size = cx.binary("aten.pow.Tensor_Tensor", size, exponent);
            Ok(polar(cx, size, turned))
        }
        None => {
            let exponent = cx.float(node, "exponent", 1.0)?;
            let turned = cx.mul(turn, exponent);
            let size = cx.pow(size, exponent);
            Ok(polar(cx, size, turned))
        }
    }
}

/// A power with a complex exponent: `exp(w log z)`; zero to any power is zero.
pub(super) fn pow_with_complex_exponent(cx: &mut Rewriter<'_>, z: Pair, exponent: Pair) -> Result<Pair> {
    let size = modulus(cx, z);
    let is_zero = cx.compare("aten.eq.Scalar", size, 0.0);
    let logarithm = log(cx, z);
    let product = multiply(cx, logarithm, exponent);
    let (re, im) = exp(cx, product);
    let zero = cx.scalar(Scalar::Double(0.0), cx.spec_of(re).dtype)?;
    Ok((cx.choose(is_zero, zero, re), cx.choose(is_zero, zero, im)))
}

/// A mask of the complex elements that are equal (`name` is `eq`) or differ (`ne`).
pub(super) fn compare(cx: &mut Rewriter<'_>, name: &str, (a, b): Pair, (c, d): Pair) -> VarId {
    let (target, joined) = match name {
        "eq" => ("aten.eq.Tensor", "aten.logical_and.default"),
        _ => ("aten.ne.Tensor", "aten.logical_or.default"),
    };
    let (re, im) = (cx.compare(target, a, c), cx.compare(target, b, d));
    cx.binary(joined, re, im)
}
