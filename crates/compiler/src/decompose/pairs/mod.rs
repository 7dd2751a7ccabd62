//! Complex values as pairs of real tensors, one for the real and one for the imaginary part, where no kernel takes
//! them.
//!
//! The kernels of the reference runtime read complex tensors (`view_as_real`) and transform real ones, but produce none
//! and compute with few. A program that is complex only between `view_as_complex` or a transform and `view_as_real`
//! needs no complex kernels in this form.

mod functions;

use super::spectral::{real_dtype, real_or_imag};
use super::windows::static_size;
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
    /// Whether a complex value exists only as its two parts.
    pub(super) fn contains(&self, var: VarId) -> bool {
        self.0.contains_key(&var)
    }

    /// The real and imaginary parts of a complex value.
    fn get_or_split(&self, cx: &mut Rewriter<'_>, var: VarId) -> Pair {
        match self.0.get(&var) {
            Some(&pair) => pair,
            None => (real_or_imag(cx, var, 0), real_or_imag(cx, var, 1)),
        }
    }

    /// Computes the parts of a node's complex result, or its real result, from the parts of its operands. Keeps the
    /// node if the operator is not known.
    pub(super) fn visit(&mut self, cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
        let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
        if base == "dim_order_ops._to_dim_order_copy" {
            return self.convert(cx, node);
        }
        let Some(name) = base.strip_prefix("aten.") else { return Ok(Outcome::Kept) };
        let operand = |name: &str| node.arg(name).and_then(Argument::var);
        if let (Some(x), &[out]) = (operand("real").or(operand("abs")), &node.outputs[..]) {
            return self.make_complex(cx, node, name, (x, out));
        }
        let (Some(x), &[out]) = (operand("self"), &node.outputs[..]) else {
            return self.concatenate(cx, node, name);
        };
        if name == "where" || name == "masked_fill" {
            return self.choose_by_parts(cx, node, (x, out));
        }
        let is_complex = |cx: &Rewriter<'_>, var: VarId| cx.spec_of(var).dtype.is_complex();
        if name == "view_as_complex" {
            let last = cx.spec_of(x).rank().saturating_sub(1);
            let pair = (cx.select(x, last, 0), cx.select(x, last, 1));
            return Ok(self.record_pair(out, pair));
        }
        if name == "_fft_r2c" {
            let pair = self.fourier_transform(cx, node, (x, None), false)?;
            return Ok(self.record_pair(out, pair));
        }
        let other = operand("other").filter(|&other| is_complex(cx, other));
        if !is_complex(cx, x) {
            // A real operand with a complex one.
            return match (name, other) {
                ("mul", Some(other)) => {
                    let (re, im) = self.get_or_split(cx, other);
                    let pair = (cx.mul(re, x), cx.mul(im, x));
                    Ok(self.record_pair(out, pair))
                }
                ("add", Some(other)) if is_plain_sum(node) => {
                    let (re, im) = self.get_or_split(cx, other);
                    let sum = cx.add(re, x);
                    let im = cx.expand(node, im, cx.spec_of(sum).sizes)?;
                    Ok(self.record_pair(out, (sum, im)))
                }
                ("sub", Some(other)) if is_plain_sum(node) => {
                    let (re, im) = self.get_or_split(cx, other);
                    let re = cx.sub(x, re);
                    let im = cx.unary("aten.neg.default", im);
                    let im = cx.expand(node, im, cx.spec_of(re).sizes)?;
                    Ok(self.record_pair(out, (re, im)))
                }
                ("div", Some(other)) => {
                    let other = self.get_or_split(cx, other);
                    let (re, im) = functions::reciprocal(cx, other);
                    let pair = (cx.mul(re, x), cx.mul(im, x));
                    Ok(self.record_pair(out, pair))
                }
                ("eq" | "ne", Some(_)) => {
                    let (a, b) =
                        (self.split_any(cx, x)?, self.get_or_split(cx, operand("other").unwrap_or(x)));
                    let new = functions::compare(cx, name, a, b);
                    cx.replace_node(node, new)
                }
                ("pow", None) if operand("exponent").is_some_and(|e| is_complex(cx, e)) => {
                    let (z, w) =
                        (self.split_any(cx, x)?, self.get_or_split(cx, operand("exponent").unwrap_or(x)));
                    let pair = functions::pow_with_complex_exponent(cx, z, w)?;
                    Ok(self.record_pair(out, pair))
                }
                _ => Ok(Outcome::Kept),
            };
        }
        match name {
            "view_as_real" => {
                let (re, im) = self.get_or_split(cx, x);
                let rank = cx.spec_of(re).rank();
                let (re, im) = (cx.unsqueeze(node, re, rank)?, cx.unsqueeze(node, im, rank)?);
                let new = cx.cat(&[re, im], rank);
                cx.replace_node(node, new)
            }
            "real" | "imag" => {
                let (re, im) = self.get_or_split(cx, x);
                cx.replace_node(node, if name == "real" { re } else { im })
            }
            "abs" => {
                let pair = self.get_or_split(cx, x);
                let new = functions::modulus(cx, pair);
                cx.replace_node(node, new)
            }
            "angle" => {
                let pair = self.get_or_split(cx, x);
                let new = functions::angle(cx, pair);
                cx.replace_node(node, new)
            }
            "eq" | "ne" if operand("other").is_some() => {
                let (a, b) = (self.get_or_split(cx, x), self.split_any(cx, operand("other").unwrap_or(x))?);
                let new = functions::compare(cx, name, a, b);
                cx.replace_node(node, new)
            }
            "isnan" | "isinf" => {
                let (re, im) = self.get_or_split(cx, x);
                let target = if name == "isnan" { "aten.isnan.default" } else { "aten.isinf.default" };
                let mut part = |x: VarId| {
                    let spec = TensorSpec { dtype: ScalarType::Bool, ..cx.spec_of(x) };
                    cx.emit(target, vec![("self", Argument::Var(x))], spec)
                };
                let (re, im) = (part(re), part(im));
                let new = cx.binary("aten.logical_or.default", re, im);
                cx.replace_node(node, new)
            }
            "mm" | "bmm" => {
                let Some(other) = operand("mat2") else { return Ok(Outcome::Kept) };
                let ((a, b), (c, d)) = (self.get_or_split(cx, x), self.get_or_split(cx, other));
                let (ac, bd) = (cx.matmul(a, c), cx.matmul(b, d));
                let (ad, bc) = (cx.matmul(a, d), cx.matmul(b, c));
                let pair = (cx.sub(ac, bd), cx.add(ad, bc));
                Ok(self.record_pair(out, pair))
            }
            "pow" if operand("exponent").is_some_and(|e| is_complex(cx, e)) => {
                let exponent = operand("exponent").unwrap_or(x);
                let (z, w) = (self.get_or_split(cx, x), self.get_or_split(cx, exponent));
                let pair = functions::pow_with_complex_exponent(cx, z, w)?;
                Ok(self.record_pair(out, pair))
            }
            "constant_pad_nd" => Ok(self.apply_by_parts(cx, node, out)),
            "conj" | "_conj" | "_conj_physical" | "conj_physical" => {
                let (re, im) = self.get_or_split(cx, x);
                let pair = (re, cx.unary("aten.neg.default", im));
                Ok(self.record_pair(out, pair))
            }
            "resolve_conj" | "resolve_neg" | "clone" | "alias" | "detach" | "contiguous" => {
                let pair = self.get_or_split(cx, x);
                Ok(self.record_pair(out, pair))
            }
            "mul" => self.multiply(cx, node, (x, other), out),
            "div" => match (operand("other"), other) {
                (Some(by), None) => {
                    let (re, im) = self.get_or_split(cx, x);
                    let pair = (cx.div(re, by), cx.div(im, by));
                    Ok(self.record_pair(out, pair))
                }
                (None, _) => {
                    let by = cx.float(node, "other", 1.0)?;
                    let (re, im) = self.get_or_split(cx, x);
                    let pair = (cx.div(re, by), cx.div(im, by));
                    Ok(self.record_pair(out, pair))
                }
                (Some(_), Some(by)) => {
                    let ((a, b), (c, d)) = (self.get_or_split(cx, x), self.get_or_split(cx, by));
                    let (ac, bd, bc, ad) = (cx.mul(a, c), cx.mul(b, d), cx.mul(b, c), cx.mul(a, d));
                    let (cc, dd) = (cx.mul(c, c), cx.mul(d, d));
                    let (re, im, size) = (cx.add(ac, bd), cx.sub(bc, ad), cx.add(cc, dd));
                    let pair = (cx.div(re, size), cx.div(im, size));
                    Ok(self.record_pair(out, pair))
                }
            },
            "add" | "sub" if operand("other").is_some() && is_plain_sum(node) => match other {
                Some(_) => Ok(self.apply_by_parts(cx, node, out)),
                None => {
                    let (re, im) = self.get_or_split(cx, x);
                    let real = operand("other").unwrap_or(x);
                    let re = if name == "add" { cx.add(re, real) } else { cx.sub(re, real) };
                    let im = cx.expand(node, im, cx.spec_of(re).sizes)?;
                    Ok(self.record_pair(out, (re, im)))
                }
            },
            "add" | "sub" if is_plain_sum(node) => {
                let number = cx.float(node, "other", 0.0)?;
                let (re, im) = self.get_or_split(cx, x);
                let re = if name == "add" { cx.add(re, number) } else { cx.sub(re, number) };
                Ok(self.record_pair(out, (re, im)))
            }
            "_fft_c2c" => {
                let (re, im) = self.get_or_split(cx, x);
                let inverse = !cx.bool(node, "forward", true)?;
                let pair = self.fourier_transform(cx, node, (re, Some(im)), inverse)?;
                Ok(self.record_pair(out, pair))
            }
            "_fft_c2r" => {
                let new = self.inverse_real_transform(cx, node, x)?;
                cx.replace_node(node, new)
            }
            _ if MOVED.contains(&name) => Ok(self.apply_by_parts(cx, node, out)),
            _ => {
                let pair = self.get_or_split(cx, x);
                match functions::apply_function(cx, node, name, pair)? {
                    Some(pair) => Ok(self.record_pair(out, pair)),
                    None => Ok(Outcome::Kept),
                }
            }
        }
    }

    /// Makes a complex tensor of two real ones: the parts, or (`polar`) the absolute values and angles.
    fn make_complex(
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
        Ok(self.record_pair(out, pair))
    }

    /// `where` with complex operands: chooses the real parts and the imaginary parts separately.
    fn choose_by_parts(
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
                cx.scalar(Scalar::Double(number), cx.spec_of(out).dtype.to_real())?
            }
        };
        let (a, b) = if fills { (other, x) } else { (x, other) };
        let (a, b) = (self.split_cast(cx, a, out)?, self.split_cast(cx, b, out)?);
        let pair = (cx.choose(condition, a.0, b.0), cx.choose(condition, a.1, b.1));
        Ok(self.record_pair(out, pair))
    }

    /// The real and imaginary parts of a real or complex tensor.
    fn split_any(&self, cx: &mut Rewriter<'_>, var: VarId) -> Result<Pair> {
        let dtype = cx.spec_of(var).dtype;
        match dtype.is_complex() {
            true => Ok(self.get_or_split(cx, var)),
            false => {
                let dtype = if dtype.is_floating() { dtype } else { ScalarType::Float };
                Ok((var, cx.scalar(Scalar::Double(0.0), dtype)?))
            }
        }
    }

    /// The real and imaginary parts of a real or complex tensor, in the precision of `out`.
    fn split_cast(&self, cx: &mut Rewriter<'_>, var: VarId, out: VarId) -> Result<Pair> {
        let dtype = cx.spec_of(out).dtype.to_real();
        let (re, im) = self.split_any(cx, var)?;
        Ok((cx.cast(re, dtype), cx.cast(im, dtype)))
    }

    /// Converts from or to a complex type.
    fn convert(&mut self, cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
        let (x, &[out]) = (cx.tensor(node, "self")?, &node.outputs[..]) else { return Ok(Outcome::Kept) };
        match (cx.spec_of(x).dtype.is_complex(), cx.spec_of(out).dtype.is_complex()) {
            (false, false) => Ok(Outcome::Kept),
            (true, false) => {
                let (re, _) = self.get_or_split(cx, x);
                let new = cx.cast(re, cx.spec_of(out).dtype);
                cx.replace_node(node, new)
            }
            (_, true) => {
                let (re, im) = self.split_cast(cx, x, out)?;
                let im = cx.expand(node, im, cx.spec_of(x).sizes)?;
                Ok(self.record_pair(out, (re, im)))
            }
        }
    }

    fn record_pair(&mut self, out: VarId, pair: Pair) -> Outcome {
        self.0.insert(out, pair);
        Outcome::Replaced
    }

    /// Concatenates complex tensors part by part.
    fn concatenate(&mut self, cx: &mut Rewriter<'_>, node: &ExportedNode, name: &str) -> Result<Outcome> {
        let Some(Argument::Vars(tensors)) = node.arg("tensors") else { return Ok(Outcome::Kept) };
        let all_complex = tensors.iter().all(|&var| cx.spec_of(var).dtype.is_complex());
        match (&node.outputs[..], name) {
            (&[out], "cat" | "stack") if all_complex => Ok(self.apply_by_parts(cx, node, out)),
            _ => Ok(Outcome::Kept),
        }
    }

    /// Applies the node's operator to the real parts and to the imaginary parts.
    fn apply_by_parts(&mut self, cx: &mut Rewriter<'_>, node: &ExportedNode, out: VarId) -> Outcome {
        let mut operands: HashMap<VarId, Pair> = HashMap::new();
        for var in node.operands().collect::<Vec<_>>() {
            let is_complex = cx.program.spec(var).is_some_and(|spec| spec.dtype.is_complex());
            if is_complex && !operands.contains_key(&var) {
                let pair = self.get_or_split(cx, var);
                operands.insert(var, pair);
            }
        }
        let spec = cx.spec_of(out);
        let spec = TensorSpec { dtype: real_dtype(spec.dtype), ..spec };
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
            cx.push_node(node);
            new
        };
        let pair = (part("re", |pair| pair.0), part("im", |pair| pair.1));
        self.record_pair(out, pair)
    }

    fn multiply(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        (x, other): (VarId, Option<VarId>),
        out: VarId,
    ) -> Result<Outcome> {
        let (a, b) = self.get_or_split(cx, x);
        let pair = match (other, node.arg("other").and_then(Argument::var)) {
            (Some(other), _) => {
                let other = self.get_or_split(cx, other);
                functions::multiply(cx, (a, b), other)
            }
            (None, Some(real)) => (cx.mul(a, real), cx.mul(b, real)),
            (None, None) => {
                let factor = cx.float(node, "other", 1.0)?;
                (cx.mul(a, factor), cx.mul(b, factor))
            }
        };
        Ok(self.record_pair(out, pair))
    }

    /// The Fourier transform or its inverse, with the node's normalization; the imaginary part is `None` if the input
    /// is real.
    fn fourier_transform(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        (mut re, mut im): (VarId, Option<VarId>),
        inverse: bool,
    ) -> Result<Pair> {
        let rank = cx.spec_of(re).rank();
        let dims = cx.dims(node, "dim", rank)?;
        // The inverse is the conjugate of the forward transform of the conjugate.
        if let (true, Some(part)) = (inverse, im) {
            im = Some(cx.unary("aten.neg.default", part));
        }
        let mut count = 1.0;
        for &dim in dims.iter().rev() {
            count *= static_size(cx, node, cx.spec_of(re).sizes.get(dim))? as f64;
            let (new_re, new_im) = full_spectrum(cx, node, re, dim)?;
            (re, im) = match im {
                None => (new_re, Some(new_im)),
                Some(part) => {
                    let (of_re, of_im) = full_spectrum(cx, node, part, dim)?;
                    (cx.sub(new_re, of_im), Some(cx.add(new_im, of_re)))
                }
            };
        }
        let Some(mut im) = im else { return cx.fail(node, "it transforms no dimension") };
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
    fn inverse_real_transform(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        x: VarId,
    ) -> Result<VarId> {
        let (re, im) = self.get_or_split(cx, x);
        let dims = cx.dims(node, "dim", cx.spec_of(re).rank())?;
        let Some(&last) = dims.last() else { return cx.fail(node, "it transforms no dimension") };
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
            (re, im) = self.fourier_transform(cx, &others_only, (re, Some(im)), true)?;
        }
        let (re, im) = (
            mirror_spectrum(cx, node, re, last, size, false)?,
            mirror_spectrum(cx, node, im, last, size, true)?,
        );
        // The real part of the conjugate of the forward transform of the conjugate.
        let ((a, _), (_, b)) = (full_spectrum(cx, node, re, last)?, full_spectrum(cx, node, im, last)?);
        let sum = cx.add(a, b);
        let mut count = size as f64;
        for &dim in &dims[..dims.len() - 1] {
            count *= static_size(cx, node, cx.spec_of(re).sizes.get(dim))? as f64;
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
fn full_spectrum(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, dim: usize) -> Result<Pair> {
    let size = static_size(cx, node, cx.spec_of(x).sizes.get(dim))?;
    let half = super::spectral::real_transform(cx, x, &[dim], (0, true));
    let (re, im) = (real_or_imag(cx, half, 0), real_or_imag(cx, half, 1));
    Ok((mirror_spectrum(cx, node, re, dim, size, false)?, mirror_spectrum(cx, node, im, dim, size, true)?))
}

/// Extends the first half of a spectrum to all `size` elements of a dimension: the second half mirrors it, negated if
/// `negated` is set.
fn mirror_spectrum(
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
    let spec = cx.spec_of(part);
    let args = vec![("self", Argument::Var(part)), ("dims", Argument::ints(&[dim as i64]))];
    let mut part = cx.emit("aten.flip.default", args, spec);
    if negated {
        part = cx.unary("aten.neg.default", part);
    }
    Ok(cx.cat(&[x, part], dim))
}
