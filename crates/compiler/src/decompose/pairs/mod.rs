//! Complex values as pairs of real tensors, one for the real and one for the imaginary part, where no kernel takes
//! them.
//!
//! The kernels of the reference runtime read complex tensors (`view_as_real`) and transform real ones, but produce none
//! and compute with few. A program that is complex only between `view_as_complex` or a transform and `view_as_real`
//! needs no complex kernels in this form.

mod functions;

use super::spectral::{component, real_of};
use super::windows::known;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::{Scalar, ScalarType};
use std::collections::HashMap;

/// The real and imaginary parts of complex values that no node produces any more.
#[derive(Default)]
pub(super) struct Pairs(HashMap<VarId, Pair>);

/// The real and the imaginary part.
type Pair = (VarId, VarId);

impl Pairs {
    /// Whether a value exists only as its parts.
    pub(super) fn holds(&self, var: VarId) -> bool {
        self.0.contains_key(&var)
    }

    /// The parts of a complex value.
    fn of(&self, cx: &mut Rewriter<'_>, var: VarId) -> Pair {
        match self.0.get(&var) {
            Some(&pair) => pair,
            None => (component(cx, var, 0), component(cx, var, 1)),
        }
    }

    /// Computes the parts of a node's complex result, or its real result, from the parts of its operands. Keeps the
    /// node if the operator is not known.
    pub(super) fn visit(&mut self, cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
        let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
        if base == "dim_order_ops._to_dim_order_copy" {
            return self.converted(cx, node);
        }
        let Some(name) = base.strip_prefix("aten.") else { return Ok(Outcome::Kept) };
        let operand = |name: &str| node.arg(name).and_then(Argument::var);
        if let (Some(x), &[out]) = (operand("real").or(operand("abs")), &node.outputs[..]) {
            return self.made(cx, node, name, (x, out));
        }
        let (Some(x), &[out]) = (operand("self"), &node.outputs[..]) else {
            return self.joined(cx, node, name);
        };
        if name == "where" || name == "masked_fill" {
            return self.chosen(cx, node, (x, out));
        }
        let is_complex = |cx: &Rewriter<'_>, var: VarId| cx.of(var).dtype.is_complex();
        if name == "view_as_complex" {
            let last = cx.of(x).rank().saturating_sub(1);
            let pair = (cx.select(x, last, 0), cx.select(x, last, 1));
            return Ok(self.note(out, pair));
        }
        if name == "_fft_r2c" {
            let pair = self.transformed(cx, node, (x, None), false)?;
            return Ok(self.note(out, pair));
        }
        let other = operand("other").filter(|&other| is_complex(cx, other));
        if !is_complex(cx, x) {
            // A real operand with a complex one.
            return match (name, other) {
                ("mul", Some(other)) => {
                    let (re, im) = self.of(cx, other);
                    let pair = (cx.mul(re, x), cx.mul(im, x));
                    Ok(self.note(out, pair))
                }
                ("add", Some(other)) if is_plain_sum(node) => {
                    let (re, im) = self.of(cx, other);
                    let sum = cx.add(re, x);
                    let im = cx.expand(node, im, cx.of(sum).sizes)?;
                    Ok(self.note(out, (sum, im)))
                }
                ("sub", Some(other)) if is_plain_sum(node) => {
                    let (re, im) = self.of(cx, other);
                    let re = cx.sub(x, re);
                    let im = cx.unary("aten.neg.default", im);
                    let im = cx.expand(node, im, cx.of(re).sizes)?;
                    Ok(self.note(out, (re, im)))
                }
                ("div", Some(other)) => {
                    let other = self.of(cx, other);
                    let (re, im) = functions::reciprocal(cx, other);
                    let pair = (cx.mul(re, x), cx.mul(im, x));
                    Ok(self.note(out, pair))
                }
                ("eq" | "ne", Some(_)) => {
                    let (a, b) = (self.as_complex(cx, x)?, self.of(cx, operand("other").unwrap_or(x)));
                    let new = functions::compare(cx, name, a, b);
                    cx.done(node, new)
                }
                ("pow", None) if operand("exponent").is_some_and(|e| is_complex(cx, e)) => {
                    let (z, w) = (self.as_complex(cx, x)?, self.of(cx, operand("exponent").unwrap_or(x)));
                    let pair = functions::power_of(cx, z, w)?;
                    Ok(self.note(out, pair))
                }
                _ => Ok(Outcome::Kept),
            };
        }
        match name {
            "view_as_real" => {
                let (re, im) = self.of(cx, x);
                let rank = cx.of(re).rank();
                let (re, im) = (cx.unsqueeze(node, re, rank)?, cx.unsqueeze(node, im, rank)?);
                let new = cx.cat(&[re, im], rank);
                cx.done(node, new)
            }
            "real" | "imag" => {
                let (re, im) = self.of(cx, x);
                cx.done(node, if name == "real" { re } else { im })
            }
            "abs" => {
                let pair = self.of(cx, x);
                let new = functions::modulus(cx, pair);
                cx.done(node, new)
            }
            "angle" => {
                let pair = self.of(cx, x);
                let new = functions::angle(cx, pair);
                cx.done(node, new)
            }
            "eq" | "ne" if operand("other").is_some() => {
                let (a, b) = (self.of(cx, x), self.as_complex(cx, operand("other").unwrap_or(x))?);
                let new = functions::compare(cx, name, a, b);
                cx.done(node, new)
            }
            "isnan" | "isinf" => {
                let (re, im) = self.of(cx, x);
                let target = if name == "isnan" { "aten.isnan.default" } else { "aten.isinf.default" };
                let mut part = |x: VarId| {
                    let spec = TensorSpec { dtype: ScalarType::Bool, ..cx.of(x) };
                    cx.emit(target, vec![("self", Argument::Var(x))], spec)
                };
                let (re, im) = (part(re), part(im));
                let new = cx.binary("aten.logical_or.default", re, im);
                cx.done(node, new)
            }
            "mm" | "bmm" => {
                let Some(other) = operand("mat2") else { return Ok(Outcome::Kept) };
                let ((a, b), (c, d)) = (self.of(cx, x), self.of(cx, other));
                let (ac, bd) = (cx.product(a, c), cx.product(b, d));
                let (ad, bc) = (cx.product(a, d), cx.product(b, c));
                let pair = (cx.sub(ac, bd), cx.add(ad, bc));
                Ok(self.note(out, pair))
            }
            "pow" if operand("exponent").is_some_and(|e| is_complex(cx, e)) => {
                let exponent = operand("exponent").unwrap_or(x);
                let (z, w) = (self.of(cx, x), self.of(cx, exponent));
                let pair = functions::power_of(cx, z, w)?;
                Ok(self.note(out, pair))
            }
            "constant_pad_nd" => Ok(self.each(cx, node, out)),
            "conj" | "_conj" | "_conj_physical" | "conj_physical" => {
                let (re, im) = self.of(cx, x);
                let pair = (re, cx.unary("aten.neg.default", im));
                Ok(self.note(out, pair))
            }
            "resolve_conj" | "resolve_neg" | "clone" | "alias" | "detach" | "contiguous" => {
                let pair = self.of(cx, x);
                Ok(self.note(out, pair))
            }
            "mul" => self.multiplied(cx, node, (x, other), out),
            "div" => match (operand("other"), other) {
                (Some(by), None) => {
                    let (re, im) = self.of(cx, x);
                    let pair = (cx.div(re, by), cx.div(im, by));
                    Ok(self.note(out, pair))
                }
                (None, _) => {
                    let by = cx.float(node, "other", 1.0)?;
                    let (re, im) = self.of(cx, x);
                    let pair = (cx.div(re, by), cx.div(im, by));
                    Ok(self.note(out, pair))
                }
                (Some(_), Some(by)) => {
                    let ((a, b), (c, d)) = (self.of(cx, x), self.of(cx, by));
                    let (ac, bd, bc, ad) = (cx.mul(a, c), cx.mul(b, d), cx.mul(b, c), cx.mul(a, d));
                    let (cc, dd) = (cx.mul(c, c), cx.mul(d, d));
                    let (re, im, size) = (cx.add(ac, bd), cx.sub(bc, ad), cx.add(cc, dd));
                    let pair = (cx.div(re, size), cx.div(im, size));
                    Ok(self.note(out, pair))
                }
            },
            "add" | "sub" if operand("other").is_some() && is_plain_sum(node) => match other {
                Some(_) => Ok(self.each(cx, node, out)),
                None => {
                    let (re, im) = self.of(cx, x);
                    let real = operand("other").unwrap_or(x);
                    let re = if name == "add" { cx.add(re, real) } else { cx.sub(re, real) };
                    let im = cx.expand(node, im, cx.of(re).sizes)?;
                    Ok(self.note(out, (re, im)))
                }
            },
            "add" | "sub" if is_plain_sum(node) => {
                let number = cx.float(node, "other", 0.0)?;
                let (re, im) = self.of(cx, x);
                let re = if name == "add" { cx.add(re, number) } else { cx.sub(re, number) };
                Ok(self.note(out, (re, im)))
            }
            "_fft_c2c" => {
                let (re, im) = self.of(cx, x);
                let inverse = !cx.bool(node, "forward", true)?;
                let pair = self.transformed(cx, node, (re, Some(im)), inverse)?;
                Ok(self.note(out, pair))
            }
            "_fft_c2r" => {
                let new = self.back_to_real(cx, node, x)?;
                cx.done(node, new)
            }
            _ if MOVED.contains(&name) => Ok(self.each(cx, node, out)),
            _ => {
                let pair = self.of(cx, x);
                match functions::of_one(cx, node, name, pair)? {
                    Some(pair) => Ok(self.note(out, pair)),
                    None => Ok(Outcome::Kept),
                }
            }
        }
    }

    /// A complex number made of two real ones: its parts, or its absolute value and its angle.
    fn made(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        name: &str,
        (x, out): (VarId, VarId),
    ) -> Result<Outcome> {
        let sizes = cx.spec(node, out)?.sizes;
        let pair = match name {
            "complex" => (x, cx.tensor(node, "imag")?),
            "polar" => {
                let angle = cx.tensor(node, "angle")?;
                functions::polar(cx, x, angle)
            }
            _ => return Ok(Outcome::Kept),
        };
        let pair = (cx.expand(node, pair.0, sizes.clone())?, cx.expand(node, pair.1, sizes)?);
        Ok(self.note(out, pair))
    }

    /// Chooses between complex tensors, or between a complex and a real one, part by part.
    fn chosen(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        (x, out): (VarId, VarId),
    ) -> Result<Outcome> {
        if !cx.spec(node, out)?.dtype.is_complex() {
            return Ok(Outcome::Kept);
        }
        let fills = node.arg("mask").is_some();
        let condition = cx.tensor(node, if fills { "mask" } else { "condition" })?;
        let name = if fills { "value" } else { "other" };
        let other = match cx.optional_tensor(node, name) {
            Some(other) => other,
            None => {
                let number = cx.float(node, name, 0.0)?;
                cx.number(Scalar::Double(number), cx.of(out).dtype.to_real())?
            }
        };
        let (a, b) = if fills { (other, x) } else { (x, other) };
        let (a, b) = (self.parts(cx, a, out)?, self.parts(cx, b, out)?);
        let pair = (cx.choose(condition, a.0, b.0), cx.choose(condition, a.1, b.1));
        Ok(self.note(out, pair))
    }

    /// The parts of a tensor, real or complex.
    fn as_complex(&self, cx: &mut Rewriter<'_>, var: VarId) -> Result<Pair> {
        let dtype = cx.of(var).dtype;
        match dtype.is_complex() {
            true => Ok(self.of(cx, var)),
            false => {
                let dtype = if dtype.is_floating() { dtype } else { ScalarType::Float };
                Ok((var, cx.number(Scalar::Double(0.0), dtype)?))
            }
        }
    }

    /// The parts of a tensor, real or complex, in the precision of `out`.
    fn parts(&self, cx: &mut Rewriter<'_>, var: VarId, out: VarId) -> Result<Pair> {
        let dtype = cx.of(out).dtype.to_real();
        let (re, im) = self.as_complex(cx, var)?;
        Ok((cx.cast(re, dtype), cx.cast(im, dtype)))
    }

    /// A conversion from or to a complex type.
    fn converted(&mut self, cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
        let (x, &[out]) = (cx.tensor(node, "self")?, &node.outputs[..]) else { return Ok(Outcome::Kept) };
        match (cx.of(x).dtype.is_complex(), cx.of(out).dtype.is_complex()) {
            (false, false) => Ok(Outcome::Kept),
            (true, false) => {
                let (re, _) = self.of(cx, x);
                let new = cx.cast(re, cx.of(out).dtype);
                cx.done(node, new)
            }
            (_, true) => {
                let (re, im) = self.parts(cx, x, out)?;
                let im = cx.expand(node, im, cx.of(x).sizes)?;
                Ok(self.note(out, (re, im)))
            }
        }
    }

    fn note(&mut self, out: VarId, pair: Pair) -> Outcome {
        self.0.insert(out, pair);
        Outcome::Replaced
    }

    /// Concatenates complex tensors part by part.
    fn joined(&mut self, cx: &mut Rewriter<'_>, node: &ExportedNode, name: &str) -> Result<Outcome> {
        let Some(Argument::Vars(tensors)) = node.arg("tensors") else { return Ok(Outcome::Kept) };
        let all_complex = tensors.iter().all(|&var| cx.of(var).dtype.is_complex());
        match (&node.outputs[..], name) {
            (&[out], "cat" | "stack") if all_complex => Ok(self.each(cx, node, out)),
            _ => Ok(Outcome::Kept),
        }
    }

    /// Applies the node's operator to the real parts and to the imaginary parts.
    fn each(&mut self, cx: &mut Rewriter<'_>, node: &ExportedNode, out: VarId) -> Outcome {
        let mut operands: HashMap<VarId, Pair> = HashMap::new();
        for var in node.operands().collect::<Vec<_>>() {
            let is_complex = cx.program.spec(var).is_some_and(|spec| spec.dtype.is_complex());
            if is_complex && !operands.contains_key(&var) {
                let pair = self.of(cx, var);
                operands.insert(var, pair);
            }
        }
        let spec = cx.of(out);
        let spec = TensorSpec { dtype: real_of(spec.dtype), ..spec };
        let name = cx.program.var(out).name.to_string();
        let mut part = |suffix: &str, which: fn(&Pair) -> VarId| {
            let new = cx.program.add_var(format!("{name}_{suffix}"), VarType::Tensor(spec.clone()));
            let mut node = ExportedNode { outputs: vec![new], ..node.clone() };
            for (name, arg) in &mut node.args {
                arg.map_vars(&mut |var| operands.get(&var).map_or(var, which));
                // A real fill value.
                if suffix == "im" && &**name == "value" {
                    *arg = Argument::Int(0);
                }
            }
            cx.put(node);
            new
        };
        let pair = (part("re", |pair| pair.0), part("im", |pair| pair.1));
        self.note(out, pair)
    }

    fn multiplied(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        (x, other): (VarId, Option<VarId>),
        out: VarId,
    ) -> Result<Outcome> {
        let (a, b) = self.of(cx, x);
        let pair = match (other, node.arg("other").and_then(Argument::var)) {
            (Some(other), _) => {
                let other = self.of(cx, other);
                functions::multiply(cx, (a, b), other)
            }
            (None, Some(real)) => (cx.mul(a, real), cx.mul(b, real)),
            (None, None) => {
                let factor = cx.float(node, "other", 1.0)?;
                (cx.mul(a, factor), cx.mul(b, factor))
            }
        };
        Ok(self.note(out, pair))
    }

    /// The Fourier transform or its inverse, with the node's normalization; the imaginary part is `None` if the input
    /// is real.
    fn transformed(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        (mut re, mut im): (VarId, Option<VarId>),
        inverse: bool,
    ) -> Result<Pair> {
        let rank = cx.of(re).rank();
        let dims = cx.dims(node, "dim", rank)?;
        // The inverse is the conjugate of the forward transform of the conjugate.
        if let (true, Some(part)) = (inverse, im) {
            im = Some(cx.unary("aten.neg.default", part));
        }
        let mut count = 1.0;
        for &dim in dims.iter().rev() {
            count *= known(cx, node, cx.of(re).sizes.get(dim))? as f64;
            let (new_re, new_im) = along(cx, node, re, dim)?;
            (re, im) = match im {
                None => (new_re, Some(new_im)),
                Some(part) => {
                    let (of_re, of_im) = along(cx, node, part, dim)?;
                    (cx.sub(new_re, of_im), Some(cx.add(new_im, of_re)))
                }
            };
        }
        let Some(mut im) = im else { return cx.wrong(node, "it transforms no dimension") };
        let factor = match cx.int(node, "normalization", 0)? {
            1 => 1.0 / f64::sqrt(count),
            2 => 1.0 / count,
            _ => 1.0,
        };
        if inverse {
            im = cx.unary("aten.neg.default", im);
        }
        if factor != 1.0 {
            (re, im) = (cx.mul(re, factor), cx.mul(im, factor));
        }
        Ok((re, im))
    }

    /// The inverse transform of a half spectrum; its result is real.
    fn back_to_real(&mut self, cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<VarId> {
        let (re, im) = self.of(cx, x);
        let dims = cx.dims(node, "dim", cx.of(re).rank())?;
        let Some(&last) = dims.last() else { return cx.wrong(node, "it transforms no dimension") };
        let size = usize::try_from(cx.int(node, "last_dim_size", 0)?).unwrap_or(0);
        let others: Vec<i64> = dims[..dims.len() - 1].iter().map(|&d| d as i64).collect();
        let (mut re, mut im) = (re, im);
        // Only the last dimension is halved; the inverse transform of the others is complex and comes first.
        if !others.is_empty() {
            let mut others_only = node.clone();
            for (name, arg) in &mut others_only.args {
                match &**name {
                    "dim" => *arg = Argument::ints(&others),
                    "normalization" => *arg = Argument::Int(0),
                    _ => {}
                }
            }
            (re, im) = self.transformed(cx, &others_only, (re, Some(im)), true)?;
        }
        let (re, im) =
            (mirrored(cx, node, re, last, size, false)?, mirrored(cx, node, im, last, size, true)?);
        // The real part of the conjugate of the forward transform of the conjugate.
        let ((a, _), (_, b)) = (along(cx, node, re, last)?, along(cx, node, im, last)?);
        let sum = cx.add(a, b);
        let mut count = size as f64;
        for &dim in &dims[..dims.len() - 1] {
            count *= known(cx, node, cx.of(re).sizes.get(dim))? as f64;
        }
        Ok(match cx.int(node, "normalization", 0)? {
            1 => cx.mul(sum, 1.0 / count.sqrt()),
            2 => cx.mul(sum, 1.0 / count),
            _ => sum,
        })
    }
}

/// Operators that move elements or combine them with real factors: they apply to each part by itself.
const MOVED: &[&str] = &[
    "view",
    "_unsafe_view",
    "reshape",
    "permute",
    "transpose",
    "t",
    "expand",
    "slice",
    "select",
    "unsqueeze",
    "squeeze",
    "index",
    "index_select",
    "gather",
    "roll",
    "flip",
    "repeat",
    "neg",
    "sum",
    "mean",
    "cumsum",
    "diagonal",
    "tril",
    "triu",
    "unfold",
    "as_strided",
    "scatter",
    "scatter_add",
    "index_put",
    "index_add",
    "slice_scatter",
    "select_scatter",
    "diagonal_scatter",
    "reflection_pad1d",
    "reflection_pad2d",
    "reflection_pad3d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
];

/// Whether `alpha` is absent or 1.
fn is_plain_sum(node: &ExportedNode) -> bool {
    matches!(node.arg("alpha"), None | Some(Argument::Int(1)))
}

/// The full spectrum of a real tensor along one dimension, from the half spectrum that the kernel computes.
fn along(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, dim: usize) -> Result<Pair> {
    let size = known(cx, node, cx.of(x).sizes.get(dim))?;
    let half = super::spectral::forward_real(cx, x, &[dim], (0, true));
    let (re, im) = (component(cx, half, 0), component(cx, half, 1));
    Ok((mirrored(cx, node, re, dim, size, false)?, mirrored(cx, node, im, dim, size, true)?))
}

/// Extends the first half of a spectrum to all `size` elements of a dimension: the second half mirrors it, negated if
/// `negated` is set.
fn mirrored(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    dim: usize,
    size: usize,
    negated: bool,
) -> Result<VarId> {
    let tail = size.saturating_sub(size / 2 + 1);
    if tail == 0 {
        return Ok(x);
    }
    let part = cx.slice(node, x, dim, (&Size::Int(1), &Size::Int(tail as i64 + 1)))?;
    let spec = cx.of(part);
    let args = vec![("self", Argument::Var(part)), ("dims", Argument::ints(&[dim as i64]))];
    let mut part = cx.emit("aten.flip.default", args, spec);
    if negated {
        part = cx.unary("aten.neg.default", part);
    }
    Ok(cx.cat(&[x, part], dim))
}
