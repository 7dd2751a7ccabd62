//! Batched matrix multiplications of dynamically quantized rows with constant 8-bit matrices.

use super::Raise;
use super::elementwise::broadcast_sizes;
use super::emit::Arg;
use crate::error::{Result, fail, fail_sizes};
use crate::layout::LayoutViews;
use crate::payload::{Datatype, Node, Quantization};
use pteron_engine::{QuantizedInput, QuantizedLinear, ValueId, WeightBits};
use pteron_kernels::compute::{Activation, PackedWeights};
use pteron_tensor::memory::collected;
use pteron_tensor::{ScalarType, Tensor};

impl Raise<'_> {
    /// A batched matrix product whose first operand (`x`) is dynamically quantized per row. The second operand is
    /// constant int8, with a scale for each column of each matrix.
    pub(super) fn dynamic_batch_mat_mul(&mut self, node: &Node, x: usize, transposed: bool) -> Result<()> {
        let [_, matrices] = node.inputs[..] else { return fail("a node of other than two inputs") };
        let value = &self.payload.values[matrices];
        if value.datatype != Datatype::Qcint8 || self.datatype(node.outputs[0]) != Datatype::Fp32 {
            return Err(self.unsupported_error(node));
        }
        let (a_dims, b_dims) = (self.dims(x), value.dims.clone());
        let (Some((batch_a, &[m, k])), Some((batch_b, &[rows, columns]))) =
            (a_dims.split_last_chunk::<2>(), b_dims.split_last_chunk::<2>())
        else {
            return fail_sizes(format!("a product of {a_dims:?} and {b_dims:?}"));
        };
        let (inner, n) = if transposed { (columns, rows) } else { (rows, columns) };
        if inner != k || k > PackedWeights::MAX_ROWS {
            return fail_sizes(format!("a product of {a_dims:?} and {b_dims:?}"));
        }
        let (count, size) = (batch_b.iter().product::<usize>(), k * n);
        let scales = match &value.quantization {
            quantization @ Quantization::PerChannel { .. } => self.data.scales(quantization)?,
            _ => return Err(self.unsupported_error(node)),
        };
        if scales.len() != count * n {
            return fail(format!("{} scales for {count} matrices of {n} columns", scales.len()));
        }
        let batch = broadcast_sizes(batch_a, batch_b)?;
        let items: usize = batch.iter().product();
        if items == 0 {
            return fail_sizes(format!("a product of no matrices: {a_dims:?} and {b_dims:?}"));
        }
        let rows = self.nhwc(x)?;
        let rows = self.emit.cast(rows, ScalarType::Float)?;
        let mut from = matrix_indices(batch_b, &batch);
        if from.iter().all(|&b| b == 0) {
            // A single matrix multiplies all rows.
            from.truncate(1);
        }
        let each = items / from.len() * m;
        let x = self.batch_items(rows, &batch, items, [m, k])?;
        let x = self.emit.view(x, &[items * m, k])?;
        let bytes = self.data.read_value(value)?;
        let mut parts = Vec::with_capacity(from.len());
        for (item, &b) in from.iter().enumerate() {
            let elements: Vec<i8> = collected(bytes[b * size..][..size].iter().map(|&b| b as i8))?;
            let sizes = if transposed { [n, k] } else { [k, n] };
            let weights = self.emit.computed_constant(Tensor::from_slice(&sizes, &elements)?)?;
            let scales = self.emit.computed_constant(Tensor::from_slice(&[n], &scales[b * n..][..n])?)?;
            let rows = self.emit.slice(x, 0, item * each, each)?;
            parts.push(self.product_with_scales(rows, [weights, scales], transposed, [each, k, n])?);
        }
        let id = match parts[..] {
            [one] => one,
            _ => {
                let args = vec![Arg::Tensors(parts), Arg::Int(0)];
                self.emit.call("aten::cat.out", args, ScalarType::Float, &[items * m, n])?
            }
        };
        let out: Vec<usize> = batch.iter().copied().chain([m, n]).collect();
        let id = self.emit.view(id, &out)?;
        let id = self.as_stored(node, id)?;
        self.set_nhwc(node, id)
    }

    /// The product of `count` rows of `k` elements with one matrix of `n` columns, each of which has a scale.
    fn product_with_scales(
        &mut self,
        rows: ValueId,
        [weights, scales]: [ValueId; 2],
        out_major: bool,
        [count, k, n]: [usize; 3],
    ) -> Result<ValueId> {
        let op = QuantizedLinear {
            input: QuantizedInput::ByFactorOfRow,
            out_major,
            bits: WeightBits::Eight,
            group: k,
            bias: false,
            activation: Activation::Identity,
            output: None,
        };
        self.emit.node(op, vec![rows, weights, scales], ScalarType::Float, &[count, n])
    }
}

/// For each item of `batch`, the index of the matrix that it takes, by broadcasting, from a batch of the sizes `own`.
fn matrix_indices(own: &[usize], batch: &[usize]) -> Vec<usize> {
    let mut from = vec![0];
    for (d, &size) in batch.iter().enumerate() {
        let own = (d + own.len()).checked_sub(batch.len()).map_or(1, |d| own[d]);
        from = from
            .iter()
            .flat_map(|&b| (0..size).map(move |i| b * own + i.min(own.saturating_sub(1))))
            .collect();
    }
    from
}

#[cfg(test)]
mod tests {
    use super::matrix_indices;

    #[test]
    fn matrix_indices_follow_broadcasting() {
        assert_eq!(matrix_indices(&[], &[]), [0]);
        assert_eq!(matrix_indices(&[3], &[3]), [0, 1, 2]);
        assert_eq!(matrix_indices(&[2, 1], &[2, 3]), [0, 0, 0, 1, 1, 1]);
        assert_eq!(matrix_indices(&[3], &[2, 3]), [0, 1, 2, 0, 1, 2]);
        assert_eq!(matrix_indices(&[1, 2], &[3, 2]), [0, 1, 0, 1, 0, 1]);
    }
}
