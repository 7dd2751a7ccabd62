//! Matrix multiplications: fully connected and batched.

use super::Raise;
use super::elementwise::broadcast_sizes;
use super::emit::Arg;
use crate::error::{Result, fail, fail_sizes};
use crate::layout::LayoutViews;
use crate::payload::Node;
use pteron_engine::ValueId;

impl Raise<'_> {
    pub(super) fn fully_connected(&mut self, node: &Node, transposed: bool) -> Result<()> {
        let (v, filter) = (node.inputs[0], node.inputs[1]);
        let mut dims = self.dims(v);
        let weights = self.dims(filter);
        let (outputs, inputs) = if transposed { (weights[1], weights[0]) } else { (weights[0], weights[1]) };
        if dims.last() != Some(&inputs) {
            return fail_sizes(format!("an input of {dims:?} for {inputs} inputs"));
        }
        if self.quantizer(v).is_some() {
            return self.quantized_linear(node, transposed);
        }
        self.check_float_types(node)?;
        let to = self.datatype(node.outputs[0]).scalar_type();
        let mut ids = node.inputs.iter().map(|&v| self.nhwc(v)).collect::<Result<Vec<_>>>()?;
        let dtype = self.common_type(node, &ids);
        for id in &mut ids {
            *id = self.emit.cast(*id, dtype)?;
        }
        let rows = dims[..dims.len() - 1].iter().product();
        let last = dims.len() - 1;
        dims[last] = outputs;
        let id = match transposed {
            false => self.linear(&ids, &dims)?,
            true => self.matmul(&ids, [rows, inputs, outputs])?,
        };
        let id = self.emit.view(id, &dims)?;
        let id = self.clamp_to_bounds(node, id)?;
        let id = self.emit.cast(id, to)?;
        self.set_nhwc(node, id)
    }

    /// Computes `x wᵀ + bias`.
    fn linear(&mut self, ids: &[ValueId], out: &[usize]) -> Result<ValueId> {
        let dtype = self.emit.dtype(ids[0]);
        let bias = ids.get(2).map_or(Arg::Absent, |&b| Arg::Tensor(b));
        self.emit.call("aten::linear.out", vec![Arg::Tensor(ids[0]), Arg::Tensor(ids[1]), bias], dtype, out)
    }

    /// Computes `x w + bias` for 2D operands.
    fn matmul(&mut self, ids: &[ValueId], [rows, inputs, outputs]: [usize; 3]) -> Result<ValueId> {
        let dtype = self.emit.dtype(ids[0]);
        let x = self.emit.view(ids[0], &[rows, inputs])?;
        let (x, w) = (Arg::Tensor(x), Arg::Tensor(ids[1]));
        match ids.get(2) {
            Some(&bias) => {
                let args = vec![Arg::Tensor(bias), x, w, Arg::Int(1), Arg::Int(1)];
                self.emit.call("aten::addmm.out", args, dtype, &[rows, outputs])
            }
            None => self.emit.call("aten::mm.out", vec![x, w], dtype, &[rows, outputs]),
        }
    }

    pub(super) fn batch_mat_mul(&mut self, node: &Node, transposed: bool) -> Result<()> {
        self.check_same_float_type(node)?;
        let [a, b] = node.inputs[..] else { return fail("a node of other than two inputs") };
        let (a_dims, b_dims) = (self.dims(a), self.dims(b));
        let (Some((batch_a, &[m, k])), Some((batch_b, &[rows, columns]))) =
            (a_dims.split_last_chunk::<2>(), b_dims.split_last_chunk::<2>())
        else {
            return fail_sizes(format!("a product of {a_dims:?} and {b_dims:?}"));
        };
        let (inner, n) = if transposed { (columns, rows) } else { (rows, columns) };
        if inner != k {
            return fail_sizes(format!("a product of {a_dims:?} and {b_dims:?}"));
        }
        let batch = broadcast_sizes(batch_a, batch_b)?;
        let items: usize = batch.iter().product();
        let (x, mut y) = (self.nhwc(a)?, self.nhwc(b)?);
        if transposed {
            let mut perm: Vec<usize> = (0..b_dims.len()).collect();
            perm.swap(b_dims.len() - 2, b_dims.len() - 1);
            y = self.emit.permute(y, &perm)?;
        }
        let x = self.batch_items(x, &batch, items, [m, k])?;
        let y = self.batch_items(y, &batch, items, [k, n])?;
        let dtype = self.emit.dtype(x);
        let id =
            self.emit.call("aten::bmm.out", vec![Arg::Tensor(x), Arg::Tensor(y)], dtype, &[items, m, n])?;
        let out: Vec<usize> = batch.iter().copied().chain([m, n]).collect();
        let id = self.emit.view(id, &out)?;
        self.set_nhwc(node, id)
    }

    /// Broadcasts matrices to a batch and flattens the batch dimensions: `[items, rows, columns]`.
    pub(super) fn batch_items(
        &mut self,
        id: ValueId,
        batch: &[usize],
        items: usize,
        matrix: [usize; 2],
    ) -> Result<ValueId> {
        let batched: Vec<usize> = batch.iter().copied().chain(matrix).collect();
        let own: usize = self.emit.sizes(id).iter().product();
        let id =
            if own == batched.iter().product::<usize>() { id } else { self.emit.expand(id, &batched)? };
        self.emit.view(id, &[items, matrix[0], matrix[1]])
    }
}
