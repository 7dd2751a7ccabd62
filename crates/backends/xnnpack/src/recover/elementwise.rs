//! Elementwise nodes, and softmax.

use super::emit::Arg;
use super::{Form, Recovery};
use crate::error::{Result, fail};
use crate::forms::HasForms;
use crate::payload::{Binary, Node, Unary};
use pteron_exported::{Argument, Size, VarId};

impl Recovery<'_> {
    pub(super) fn unary(&mut self, node: &Node, f: Unary) -> Result<()> {
        let form = self.form(node.inputs[0])?;
        let real = |name, x: f32| -> Vec<Arg> { vec![(name, Argument::Float(f64::from(x)))] };
        let (target, more) = match f {
            Unary::Clamp => return self.store_bounded(node, form),
            Unary::Abs => ("aten.abs.default", vec![]),
            Unary::Ceiling => ("aten.ceil.default", vec![]),
            Unary::Cos => ("aten.cos.default", vec![]),
            Unary::Elu { alpha } => ("aten.elu.default", real("alpha", alpha)),
            Unary::Exp => ("aten.exp.default", vec![]),
            Unary::Floor => ("aten.floor.default", vec![]),
            Unary::Gelu => ("aten.gelu.default", vec![]),
            Unary::Hardswish => ("aten.hardswish.default", vec![]),
            Unary::LeakyRelu { slope } => ("aten.leaky_relu.default", real("negative_slope", slope)),
            Unary::Log => ("aten.log.default", vec![]),
            Unary::Negate => ("aten.neg.default", vec![]),
            Unary::ReciprocalSquareRoot => ("aten.rsqrt.default", vec![]),
            Unary::Sigmoid => ("aten.sigmoid.default", vec![]),
            Unary::Sin => ("aten.sin.default", vec![]),
            Unary::Square => ("aten.pow.Tensor_Scalar", vec![("exponent", Argument::Int(2))]),
            Unary::SquareRoot => ("aten.sqrt.default", vec![]),
            Unary::Tanh => ("aten.tanh.default", vec![]),
        };
        let var = self.like(target, form.id(), more);
        self.store(node, form.with(var))
    }

    pub(super) fn binary(&mut self, node: &Node, f: Binary) -> Result<()> {
        let [a, b] = node.inputs[..] else { return fail("a node of other than two inputs") };
        let ([x, y], form) = self.together([a, b])?;
        let target = match f {
            Binary::Add => "aten.add.Tensor",
            Binary::Subtract => "aten.sub.Tensor",
            Binary::Multiply => "aten.mul.Tensor",
            Binary::Divide => "aten.div.Tensor",
            Binary::Maximum => "aten.maximum.default",
            Binary::Minimum => "aten.minimum.default",
        };
        let sizes = broadcast(&self.spec(x).sizes, &self.spec(y).sizes)?;
        let dtype = self.dtype(x);
        if self.dtype(y) != dtype {
            return Err(self.unsupported(node));
        }
        let args = vec![("self", Argument::Var(x)), ("other", Argument::Var(y))];
        let var = self.emit(target, args, dtype, sizes);
        match f {
            // In the reference, these two have no bounds.
            Binary::Maximum | Binary::Minimum => self.store(node, form.with(var)),
            _ => self.store_bounded(node, form.with(var)),
        }
    }

    /// Two values in a common form: as NCHW images if one is only available so and the other can be converted.
    fn together(&mut self, inputs: [usize; 2]) -> Result<([VarId; 2], Form)> {
        let is_image =
            |s: &Self, v: usize| s.values[v].forms.plain.is_none() && s.values[v].forms.image.is_some();
        let sizes = [self.sizes(inputs[0])?, self.sizes(inputs[1])?];
        let images = inputs.iter().any(|&v| is_image(self, v));
        if !images || sizes.iter().any(|s| !matches!(s.len(), 0 | 1 | 4)) {
            let vars = [self.plain(inputs[0])?, self.plain(inputs[1])?];
            return Ok((vars, Form::Plain(vars[0])));
        }
        let mut vars = Vec::with_capacity(2);
        for (&v, sizes) in inputs.iter().zip(&sizes) {
            vars.push(match &sizes[..] {
                [_, _, _, _] => self.image(v)?,
                [channels] if *channels != Size::Int(1) => {
                    let plain = self.plain(v)?;
                    self.view(plain, vec![channels.clone(), Size::Int(1), Size::Int(1)])?
                }
                _ => self.plain(v)?,
            });
        }
        Ok(([vars[0], vars[1]], Form::Image(vars[0])))
    }

    pub(super) fn prelu(&mut self, node: &Node) -> Result<()> {
        let [v, slope] = node.inputs[..] else { return fail("a node of other than two inputs") };
        let sizes = self.sizes(slope)?;
        let slopes = sizes.last().cloned().unwrap_or(Size::Int(1));
        if sizes.iter().rev().skip(1).any(|size| *size != Size::Int(1)) {
            return Err(self.unsupported(node));
        }
        let slope = self.plain(slope)?;
        let slope = self.view(slope, vec![slopes])?;
        let rank = self.sizes(v)?.len();
        // For the operator, channels are the second dimension.
        let (form, back) = match rank {
            4 => (Form::Image(self.image(v)?), None),
            0..=2 => (self.form(v)?, None),
            _ => {
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.swap(1, rank - 1);
                let plain = self.plain(v)?;
                (Form::Plain(self.permute(plain, &perm)?), Some(perm))
            }
        };
        let mut var = self.like("aten.prelu.default", form.id(), vec![("weight", Argument::Var(slope))]);
        if let Some(perm) = back {
            var = self.permute(var, &perm)?;
        }
        self.store(node, form.with(var))
    }

    pub(super) fn softmax(&mut self, node: &Node) -> Result<()> {
        let x = self.plain(node.inputs[0])?;
        let more = vec![("dim", Argument::Int(-1)), ("half_to_float", Argument::Bool(false))];
        let var = self.like("aten._softmax.default", x, more);
        self.store(node, Form::Plain(var))
    }
}

/// The broadcast sizes of two values. Unknown sizes are assumed to fit.
pub(super) fn broadcast(a: &[Size], b: &[Size]) -> Result<Vec<Size>> {
    let rank = a.len().max(b.len());
    let one = Size::Int(1);
    let size = |dims: &[Size], d: usize| {
        (d + dims.len()).checked_sub(rank).map_or_else(|| one.clone(), |d| dims[d].clone())
    };
    let both = |d: usize| match (size(a, d), size(b, d)) {
        (x, y) if x == one => Some(y),
        (x, y) if y == one || x == y => Some(x),
        (x @ Size::Int(_), Size::Sym(_)) | (Size::Sym(_), x) => Some(x),
        (Size::Int(_), Size::Int(_)) => None,
    };
    let sizes: Option<Vec<Size>> = (0..rank).map(both).collect();
    sizes.map_or_else(|| fail("values whose sizes do not broadcast"), Ok)
}
