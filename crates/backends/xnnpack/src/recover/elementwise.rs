//! Elementwise nodes, and softmax.

use super::{Layout, Recovery};
use crate::error::{Result, fail};
use crate::layout::LayoutViews;
use crate::payload::{Binary, Node, Unary};
use pteron_exported::{Argument, Size};

impl Recovery<'_> {
    pub(super) fn unary(&mut self, node: &Node, f: Unary) -> Result<()> {
        let layout = self.available_layout(node.inputs[0])?;
        let more = match (f, f.parameter()) {
            (Unary::Clamp, _) => return self.store_bounded(node, layout),
            (Unary::Square, _) => vec![("exponent", Argument::Int(2))],
            (_, Some(parameter)) => vec![(parameter.argument, Argument::Float(f64::from(parameter.value)))],
            (_, None) => Vec::new(),
        };
        let var = self.emit_like(f.aten().targets[0], layout.id(), more);
        self.store(node, layout.with_id(var))
    }

    pub(super) fn binary(&mut self, node: &Node, f: Binary) -> Result<()> {
        let [a, b] = node.inputs[..] else { return fail("a node of other than two inputs") };
        let ([x, y], layout) = self.broadcast_operands([a, b])?;
        let sizes = broadcast_sizes(&self.spec(x).sizes, &self.spec(y).sizes)?;
        let dtype = self.dtype(x);
        if self.dtype(y) != dtype {
            return Err(self.unsupported_error(node));
        }
        let args = vec![("self", Argument::Var(x)), ("other", Argument::Var(y))];
        let var = self.emit(f.aten().targets[0], args, dtype, sizes);
        match f.is_bounded() {
            true => self.store_bounded(node, layout.with_id(var)),
            false => self.store(node, layout.with_id(var)),
        }
    }

    pub(super) fn prelu(&mut self, node: &Node) -> Result<()> {
        let [v, slope] = node.inputs[..] else { return fail("a node of other than two inputs") };
        let sizes = self.sizes(slope)?;
        let slopes = sizes.last().cloned().unwrap_or(Size::Int(1));
        if sizes.iter().rev().skip(1).any(|size| *size != Size::Int(1)) {
            return Err(self.unsupported_error(node));
        }
        let slope = self.nhwc(slope)?;
        let slope = self.view(slope, vec![slopes])?;
        let rank = self.sizes(v)?.len();
        // For the operator, channels are the second dimension.
        let (layout, back) = match rank {
            4 => (Layout::Nchw(self.nchw(v)?), None),
            0..=2 => (self.available_layout(v)?, None),
            _ => {
                let mut perm: Vec<usize> = (0..rank).collect();
                perm.swap(1, rank - 1);
                let nhwc = self.nhwc(v)?;
                (Layout::Nhwc(self.permute(nhwc, &perm)?), Some(perm))
            }
        };
        let mut var =
            self.emit_like("aten.prelu.default", layout.id(), vec![("weight", Argument::Var(slope))]);
        if let Some(perm) = back {
            var = self.permute(var, &perm)?;
        }
        self.store(node, layout.with_id(var))
    }

    pub(super) fn softmax(&mut self, node: &Node) -> Result<()> {
        let x = self.nhwc(node.inputs[0])?;
        let more = vec![("dim", Argument::Int(-1)), ("half_to_float", Argument::Bool(false))];
        let var = self.emit_like("aten._softmax.default", x, more);
        self.store(node, Layout::Nhwc(var))
    }
}

/// The broadcast sizes of two values. Unknown sizes are assumed to fit.
pub(super) fn broadcast_sizes(a: &[Size], b: &[Size]) -> Result<Vec<Size>> {
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
