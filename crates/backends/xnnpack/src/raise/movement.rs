//! Nodes that move elements of any type: transpose, reshape, slice, pad, concat.

use super::Raise;
use super::emit::Arg;
use crate::error::{Result, fail, fail_sizes};
use crate::layout::LayoutViews;
use crate::payload::{Node, Quantization};

/// A concatenation of more parts than this is not flattened into another one, so that lists of parts stay short.
const MAX_PARTS: usize = 64;

impl Raise<'_> {
    /// Fails unless all values of a node have the same type and quantization, which must not be per channel or group.
    fn check_same_quantization(&self, node: &Node) -> Result<()> {
        let of = |v: usize| (self.datatype(v), &self.payload.values[v].quantization);
        let out = of(node.outputs[0]);
        let fits = |&v: &usize| {
            of(v) == out && !matches!(out.1, Quantization::PerChannel { .. } | Quantization::PerGroup { .. })
        };
        if node.inputs.iter().all(fits) { Ok(()) } else { Err(self.unsupported_error(node)) }
    }

    pub(super) fn transpose(&mut self, node: &Node, perm: &[usize]) -> Result<()> {
        self.check_same_quantization(node)?;
        let layout = self.transposed_layout(node.inputs[0], perm)?;
        self.set_like(node, layout, layout.id())
    }

    pub(super) fn reshape(&mut self, node: &Node, sizes: &[usize]) -> Result<()> {
        self.check_same_quantization(node)?;
        let from = self.dims(node.inputs[0]);
        let elements: usize = from.iter().product();
        let others: usize =
            sizes.iter().filter(|n| **n != 0).try_fold(1usize, |n, &d| n.checked_mul(d)).unwrap_or(0);
        let inferred = elements.checked_div(others).unwrap_or(0);
        let dims: Vec<usize> = sizes.iter().map(|&n| if n == 0 { inferred } else { n }).collect();
        if dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d)) != Some(elements) {
            return fail_sizes(format!("{from:?} under the sizes {sizes:?}"));
        }
        let id = self.nhwc(node.inputs[0])?;
        let id = self.emit.view(id, &dims)?;
        self.set_nhwc(node, id)
    }

    pub(super) fn slice(&mut self, node: &Node, offsets: &[usize], sizes: &[usize]) -> Result<()> {
        self.check_same_quantization(node)?;
        let (layout, dims) = (self.available_layout(node.inputs[0])?, self.dims(node.inputs[0]));
        let mut id = layout.id();
        for (d, &full) in dims.iter().enumerate() {
            // Offsets and sizes past the end are clamped, as in the reference.
            let start = offsets[d].min(full);
            let left = full - start;
            let size = if sizes[d] == 0 { left } else { sizes[d].min(left) };
            if size == full {
                continue;
            }
            id = self.emit.slice(id, layout.dim(d), start, size)?;
        }
        self.set_like(node, layout, id)
    }

    pub(super) fn pad(&mut self, node: &Node, pre: &[usize], post: &[usize], value: f32) -> Result<()> {
        self.check_same_quantization(node)?;
        let layout = self.available_layout(node.inputs[0])?;
        let id = layout.id();
        let mut sizes = self.emit.sizes(id);
        let mut around = vec![(0, 0); sizes.len()];
        for d in 0..sizes.len() {
            let at = layout.dim(d);
            around[at] = (pre[d], post[d]);
            let padded = sizes[at].checked_add(pre[d]).and_then(|n| n.checked_add(post[d]));
            sizes[at] = padded.filter(|n| *n <= u32::MAX as usize).unwrap_or(usize::MAX);
        }
        if sizes.contains(&usize::MAX) {
            return fail(format!("padding of {pre:?} and {post:?}"));
        }
        // The operator's padding starts with the last dimension.
        let pad = around.iter().rev().flat_map(|&(before, behind)| [before as i64, behind as i64]).collect();
        let dtype = self.emit.dtype(id);
        let value = match self.quantizer(node.outputs[0]) {
            Some(q) => Arg::Int(i64::from(q.quantize(value))),
            None => Arg::Double(f64::from(value)),
        };
        let id = self.emit.call(
            "aten::constant_pad_nd.out",
            vec![Arg::Tensor(id), Arg::Ints(pad), value],
            dtype,
            &sizes,
        )?;
        self.set_like(node, layout, id)
    }

    pub(super) fn concat(&mut self, node: &Node, axis: usize) -> Result<()> {
        self.check_same_quantization(node)?;
        let inputs = self.concat_parts(node, axis);
        let first = self.dims(node.inputs[0]);
        let mut total = 0usize;
        for &v in &inputs {
            let dims = self.dims(v);
            let same = dims.len() == first.len() && (0..dims.len()).all(|d| d == axis || dims[d] == first[d]);
            if !same {
                return fail_sizes(format!("{dims:?} behind {first:?} along dimension {axis}"));
            }
            total = total.saturating_add(dims[axis]);
        }
        let (ids, layout) = self.to_common_layout(&inputs)?;
        let at = layout.dim(axis);
        let mut sizes = self.emit.sizes(ids[0]);
        sizes[at] = total;
        let dtype = self.emit.dtype(ids[0]);
        let id =
            self.emit.call("aten::cat.out", vec![Arg::Tensors(ids), Arg::Int(at as i64)], dtype, &sizes)?;
        self.values[node.outputs[0]].concatenated = Some((axis, inputs));
        self.set_like(node, layout, id)
    }

    /// The values that a node concatenates. Inputs that are concatenations along the same dimension are replaced by
    /// their parts: a node has at most five inputs, so exporters write trees of nodes.
    fn concat_parts(&self, node: &Node, axis: usize) -> Vec<usize> {
        let mut parts = Vec::with_capacity(node.inputs.len());
        for v in &node.inputs {
            match &self.values[*v].concatenated {
                Some((along, joined)) if *along == axis && joined.len() <= MAX_PARTS => parts.extend(joined),
                _ => parts.push(*v),
            }
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::super::raise;
    use crate::data::Data;
    use crate::payload::{Datatype, Node, Op, Payload, Quantization, Role, Value};
    use pteron_operator::Budget;
    use pteron_runtime::{FreeableBuffer, GraphRequest};
    use pteron_tensor::{ScalarType, TensorMeta};

    /// Concatenates three inputs along one dimension, and the result three times along another. Returns the number of
    /// inputs of the last call.
    fn joined(along: usize, then: usize) -> usize {
        let value = |id: u32, dims: &[usize], role| Value {
            id,
            datatype: Datatype::Fp32,
            dims: dims.to_vec(),
            role,
            quantization: Quantization::None,
            quantized_by_row: false,
        };
        let mut values: Vec<_> = (0..3).map(|i| value(i, &[2, 2], Role::Input(i))).collect();
        let mut sizes = [2, 2];
        sizes[along] *= 3;
        values.push(value(3, &sizes, Role::Internal));
        sizes[then] += 2 * sizes[then];
        values.push(value(4, &sizes, Role::Output(3)));
        let node = |axis: usize, inputs: &[usize], output: usize| Node {
            op: Op::Concat { axis },
            name: "Concatenate3",
            inputs: inputs.to_vec(),
            outputs: vec![output],
            bounds: (f32::NEG_INFINITY, f32::INFINITY),
            flags: 0,
            debug_handle: 0,
        };
        let payload = Payload {
            identifier: *b"XN01",
            header: None,
            version: String::new(),
            values,
            nodes: vec![node(along, &[0, 1, 2], 3), node(then, &[3, 3, 3], 4)],
            constants: Vec::new(),
            inputs: vec![0, 1, 2],
            outputs: vec![4],
        };
        let meta = |sizes: &[usize]| TensorMeta::contiguous(ScalarType::Float, sizes).unwrap();
        let (inputs, outputs) = (vec![meta(&[2, 2]); 3], [meta(&sizes)]);
        let bytes = FreeableBuffer::from_bytes(&[]).unwrap();
        let data = Data::load(&payload, &bytes, None, &Budget::default()).unwrap();
        let request = GraphRequest::new(&inputs, &outputs, usize::MAX);
        let mut graph = raise(&payload, &data, &pteron_kernels::registry(), &request).unwrap();
        graph.sweep();
        let last = graph.order().into_iter().next_back().unwrap();
        assert_eq!(graph.node(last).name(), "aten::cat.out");
        graph.node(last).inputs().len()
    }

    #[test]
    fn nested_concatenations_along_one_dimension_are_flattened() {
        assert_eq!([joined(0, 0), joined(1, 1)], [9, 9]);
        assert_eq!([joined(0, 1), joined(1, 0)], [3, 3]);
    }
}
