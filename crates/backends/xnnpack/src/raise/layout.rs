//! Nodes that move elements, of any type.

use super::emit::In;
use super::{FROM_IMAGE, Form, Raise, TO_IMAGE};
use crate::error::{Result, fail};
use crate::forms::HasForms;
use crate::payload::{Node, Quantization};

impl Raise<'_> {
    /// Fails where the numbers of a node's values stand for different things.
    fn need_same_numbers(&self, node: &Node) -> Result<()> {
        let of = |v: usize| (self.datatype(v), &self.payload.values[v].quantization);
        let out = of(node.outputs[0]);
        let fits = |&v: &usize| {
            of(v) == out && !matches!(out.1, Quantization::PerChannel { .. } | Quantization::PerGroup { .. })
        };
        if node.inputs.iter().all(fits) { Ok(()) } else { Err(self.unsupported(node)) }
    }

    pub(super) fn transpose(&mut self, node: &Node, perm: &[usize]) -> Result<()> {
        self.need_same_numbers(node)?;
        let (v, out) = (node.inputs[0], node.outputs[0]);
        let from = self.dims(v);
        let dims: Vec<usize> = perm.iter().map(|&d| from[d]).collect();
        match self.form(v)? {
            // An image becomes what it is in the graph.
            Form::Image(id) if *perm == TO_IMAGE => self.set(out, &dims, Form::Plain(id)),
            Form::Image(id) => {
                let perm: Vec<usize> = perm.iter().map(|&d| FROM_IMAGE[d]).collect();
                let id = self.emit.permute(id, &perm)?;
                self.set(out, &dims, Form::Plain(id))
            }
            Form::Plain(id) if *perm == FROM_IMAGE => self.set(out, &dims, Form::Image(id)),
            Form::Plain(id) => {
                let id = self.emit.permute(id, perm)?;
                self.set(out, &dims, Form::Plain(id))
            }
        }
    }

    pub(super) fn reshape(&mut self, node: &Node, sizes: &[usize]) -> Result<()> {
        self.need_same_numbers(node)?;
        let from = self.dims(node.inputs[0]);
        let elements: usize = from.iter().product();
        let others: usize =
            sizes.iter().filter(|n| **n != 0).try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(0);
        let inferred = elements.checked_div(others).unwrap_or(0);
        let dims: Vec<usize> = sizes.iter().map(|&n| if n == 0 { inferred } else { n }).collect();
        if dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) != Some(elements) {
            return fail(format!("{from:?} under the sizes {sizes:?}"));
        }
        let id = self.plain(node.inputs[0])?;
        let id = self.emit.view(id, &dims)?;
        self.set_plain(node, id)
    }

    pub(super) fn slice(&mut self, node: &Node, offsets: &[usize], sizes: &[usize]) -> Result<()> {
        self.need_same_numbers(node)?;
        let (form, dims) = (self.form(node.inputs[0])?, self.dims(node.inputs[0]));
        let mut id = form.id();
        for (d, &whole) in dims.iter().enumerate() {
            // Offsets and sizes that reach beyond the dimension are cut, as the reference does.
            let start = offsets[d].min(whole);
            let left = whole - start;
            let size = if sizes[d] == 0 { left } else { sizes[d].min(left) };
            if size == whole {
                continue;
            }
            id = self.emit.slice(id, form.dim(d), start, size)?;
        }
        self.set_like(node, form, id)
    }

    pub(super) fn pad(&mut self, node: &Node, pre: &[usize], post: &[usize], value: f32) -> Result<()> {
        self.need_same_numbers(node)?;
        let form = self.form(node.inputs[0])?;
        let id = form.id();
        let mut sizes = self.emit.sizes(id);
        let mut around = vec![(0, 0); sizes.len()];
        for d in 0..sizes.len() {
            let at = form.dim(d);
            around[at] = (pre[d], post[d]);
            let padded = sizes[at].checked_add(pre[d]).and_then(|n| n.checked_add(post[d]));
            sizes[at] = padded.filter(|n| *n <= u32::MAX as usize).unwrap_or(usize::MAX);
        }
        if sizes.contains(&usize::MAX) {
            return fail(format!("padding of {pre:?} and {post:?}"));
        }
        // The operator has the last dimension first.
        let pad = around.iter().rev().flat_map(|&(before, behind)| [before as i64, behind as i64]).collect();
        let dtype = self.emit.dtype(id);
        let value = match self.quantizer(node.outputs[0]) {
            Some(q) => In::Int(i64::from(q.number(value))),
            None => In::Real(f64::from(value)),
        };
        let id = self.emit.call(
            "aten::constant_pad_nd.out",
            vec![In::Tensor(id), In::Ints(pad), value],
            dtype,
            &sizes,
        )?;
        self.set_like(node, form, id)
    }

    pub(super) fn concat(&mut self, node: &Node, axis: usize) -> Result<()> {
        self.need_same_numbers(node)?;
        let first = self.dims(node.inputs[0]);
        let mut total = 0usize;
        for &v in &node.inputs {
            let dims = self.dims(v);
            let same = dims.len() == first.len() && (0..dims.len()).all(|d| d == axis || dims[d] == first[d]);
            if !same {
                return fail(format!("{dims:?} behind {first:?} along dimension {axis}"));
            }
            total = total.saturating_add(dims[axis]);
        }
        let is_image =
            |v: &usize| self.values[*v].forms.plain.is_none() && self.values[*v].forms.image.is_some();
        let images = first.len() == 4 && node.inputs.iter().any(is_image);
        let ids = node.inputs.iter().map(|&v| if images { self.image(v) } else { self.plain(v) });
        let ids = ids.collect::<Result<Vec<_>>>()?;
        let form = if images { Form::Image(ids[0]) } else { Form::Plain(ids[0]) };
        let at = form.dim(axis);
        let mut sizes = self.emit.sizes(ids[0]);
        sizes[at] = total;
        let dtype = self.emit.dtype(ids[0]);
        let id =
            self.emit.call("aten::cat.out", vec![In::Tensors(ids), In::Int(at as i64)], dtype, &sizes)?;
        self.set_like(node, form, id)
    }
}
