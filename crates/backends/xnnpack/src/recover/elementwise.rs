//! Elementwise nodes, and softmax.

use super::{Form, Recovery};
use crate::error::{Result, fail};
use crate::forms::HasForms;
use crate::payload::{Binary, Node, Unary};
use pteron_ir::exported::{Argument, Size, VarId};

impl Recovery<'_> {
    pub(super) fn unary(&mut self, node: &Node, f: Unary) -> Result<()> {
        let form = self.form(node.inputs[0])?;
        let more = match (f, f.parameter()) {
            (Unary::Clamp, _) => return self.store_bounded(node, form),
            (Unary::Square, _) => vec![("exponent", Argument::Int(2))],
            (_, Some(parameter)) => vec![(parameter.argument, Argument::Float(f64::from(parameter.value)))],
            (_, None) => Vec::new(),
        };
        let var = self.like(f.aten().targets[0], form.id(), more);
        self.store(node, form.with(var))
    }

    pub(super) fn binary(&mut self, node: &Node, f: Binary) -> Result<()> {
        let [a, b] = node.inputs[..] else { return fail("a node of other than two inputs") };
        let ([x, y], form) = self.together([a, b])?;
        let sizes = broadcast(&self.spec(x).sizes, &self.spec(y).sizes)?;
        let dtype = self.dtype(x);
        if self.dtype(y) != dtype {
            return Err(self.unsupported(node));
        }
        let args = vec![("self", Argument::Var(x)), ("other", Argument::Var(y))];
        let var = self.emit(f.aten().targets[0], args, dtype, sizes);
        match f.is_bounded() {
            true => self.store_bounded(node, form.with(var)),
            false => self.store(node, form.with(var)),
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
