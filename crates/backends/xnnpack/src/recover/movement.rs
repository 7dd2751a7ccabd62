//! Nodes that move elements: transpose, reshape, slice, pad, concat.

use super::emit::ints;
use super::{Layout, Recovery};
use crate::error::{Result, fail};
use crate::layout::LayoutViews;
use crate::payload::Node;
use pteron_exported::{Argument, Size, SymOp, VarId};

impl Recovery<'_> {
    pub(super) fn transpose(&mut self, node: &Node, perm: &[usize]) -> Result<()> {
        let layout = self.transposed_layout(node.inputs[0], perm)?;
        self.store(node, layout)
    }

    pub(super) fn reshape(&mut self, node: &Node, new: &[usize]) -> Result<()> {
        let from = self.sizes(node.inputs[0])?;
        let inferred = inferred_size(&from, new);
        let size = |&n: &usize| if n == 0 { inferred.clone() } else { Size::Int(n as i64) };
        let sizes: Vec<Size> = new.iter().map(size).collect();
        let x = self.nhwc(node.inputs[0])?;
        let known = |sizes: &[Size]| sizes.iter().try_fold(1i64, |n, size| n.checked_mul(size.known()?));
        if let (Some(have), Some(want)) = (known(&from), known(&sizes))
            && have != want
        {
            return fail(format!("{have} elements under the sizes {new:?}"));
        }
        let var = self.view(x, sizes)?;
        self.store(node, Layout::Nhwc(var))
    }

    pub(super) fn slice(&mut self, node: &Node, offsets: &[usize], new: &[usize]) -> Result<()> {
        let full = self.sizes(node.inputs[0])?;
        let layout = self.available_layout(node.inputs[0])?;
        let mut var = layout.id();
        for (d, size) in full.iter().enumerate() {
            let (start, length) = (offsets[d] as i64, new[d] as i64);
            // Offsets and sizes past the end are clamped, as in the reference.
            let (end, length) = match size.known() {
                Some(size) => {
                    let start = start.min(size);
                    let end = if length == 0 { size } else { size.min(start.saturating_add(length)) };
                    (end, Size::Int(end - start))
                }
                None if length == 0 => (i64::MAX, size.add(&Size::Int(-start))),
                None => (start.saturating_add(length), Size::Int(length)),
            };
            if length == *size {
                continue;
            }
            let mut sizes = self.spec(var).sizes.clone();
            sizes[layout.dim(d)] = length;
            let numbers = [("dim", layout.dim(d) as i64), ("start", start), ("end", end), ("step", 1)];
            let args = numbers.map(|(name, n)| (name, Argument::Int(n)));
            let args = std::iter::once(("self", Argument::Var(var))).chain(args).collect();
            let dtype = self.dtype(var);
            var = self.emit("aten.slice.Tensor", args, dtype, sizes);
        }
        self.store(node, layout.with_id(var))
    }

    pub(super) fn pad(&mut self, node: &Node, pre: &[usize], post: &[usize], value: f32) -> Result<()> {
        let layout = self.available_layout(node.inputs[0])?;
        let mut around = vec![(0, 0); pre.len()];
        for d in 0..pre.len() {
            around[layout.dim(d)] = (pre[d], post[d]);
        }
        let var = self.pad_value(layout.id(), &around, value);
        self.store(node, layout.with_id(var))
    }

    /// Pads a value: `around` gives for each dimension the padding before and after.
    pub(super) fn pad_value(&mut self, x: VarId, around: &[(usize, usize)], value: f32) -> VarId {
        if around.iter().all(|pair| *pair == (0, 0)) {
            return x;
        }
        let mut sizes = self.spec(x).sizes.clone();
        for (size, (before, behind)) in sizes.iter_mut().zip(around) {
            *size = size.add(&Size::Int((before + behind) as i64));
        }
        // The operator's padding starts with the last dimension.
        let pad = ints(around.iter().rev().flat_map(|&(before, behind)| [before, behind]));
        let value = Argument::Float(f64::from(value));
        let args = vec![("self", Argument::Var(x)), ("pad", pad), ("value", value)];
        let dtype = self.dtype(x);
        self.emit("aten.constant_pad_nd.default", args, dtype, sizes)
    }

    pub(super) fn concat(&mut self, node: &Node, axis: usize) -> Result<()> {
        let (vars, layout) = self.to_common_layout(&node.inputs)?;
        let dim = layout.dim(axis);
        let mut sizes = self.spec(vars[0]).sizes.clone();
        for &var in &vars[1..] {
            let (Some(total), Some(more)) = (sizes.get(dim), self.spec(var).sizes.get(dim)) else {
                return fail(format!("no dimension {axis} to concatenate along"));
            };
            sizes[dim] = total.add(more);
        }
        let dtype = self.dtype(vars[0]);
        let args = vec![("tensors", Argument::Vars(vars)), ("dim", Argument::Int(dim as i64))];
        let var = self.emit("aten.cat.default", args, dtype, sizes);
        self.store(node, layout.with_id(var))
    }
}

/// The size that a reshape to `new` infers for its dimension of size 0.
fn inferred_size(from: &[Size], new: &[usize]) -> Size {
    let divisor = new.iter().filter(|n| **n != 0).fold(1i64, |all, &n| all.saturating_mul(n as i64));
    let known = from.iter().filter_map(Size::known).fold(1i64, i64::saturating_mul);
    let computed = from.iter().filter(|size| size.known().is_none());
    if divisor > 0 && known % divisor == 0 {
        return computed.fold(Size::Int(known / divisor), |n, size| n.mul(size));
    }
    let all = computed.fold(Size::Int(known), |n, size| n.mul(size));
    all.combine(SymOp::FloorDiv, &Size::Int(divisor.max(1)))
}
