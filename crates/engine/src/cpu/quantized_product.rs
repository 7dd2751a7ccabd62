//! Products of two computed quantized matrices.

use super::lowering::{Lower, Lowered, Lowering};
use super::quantized_linear::{quantize_row_for, quantize_rows};
use super::step::{Step, Writes, only_output};
use crate::ops::quantized_linear::QuantizedInput;
use crate::ops::quantized_product::QuantizedProduct;
use pteron_kernels::compute::{Isa, MatMut, QuantizedMatrices, QuantizedOut, QuantizedRows, qgemm_batch};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{ScalarType, TensorView};

impl Lower for QuantizedProduct {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let (count, k, n) = match **node.input(1)?.sizes() {
            [k, n] => (1, k, n),
            [count, k, n] => (count, k, n),
            _ => return Err(Error::invalid("an operand of a quantized product is no batch of matrices")),
        };
        let rows = node.output(0)?.numel() / n.max(1);
        let step = ProductStep { spec: *self, count, sizes: (rows, k, n), isa: node.isa() };
        Ok(Lowered::step(step, [0, 1]))
    }
}

struct ProductStep {
    spec: QuantizedProduct,
    /// The number of products.
    count: usize,
    /// The number of rows of all products, the inner size, and the number of columns.
    sizes: (usize, usize, usize),
    isa: Isa,
}

impl Step for ProductStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let (a, out) = (&reads[0], only_output(&mut writes)?);
        let (rows, k, n) = self.sizes;
        let b = QuantizedMatrices {
            values: reads[1].storage::<i8>()?,
            scale: self.spec.right_scale,
            count: self.count,
        };
        let to = match self.spec.output {
            Some(q) => QuantizedOut::Quantized(MatMut::new(out.bytes_mut(), rows, n), q),
            None => QuantizedOut::Real(MatMut::new(out.storage_mut()?, rows, n)),
        };
        let (pool, isa) = (ctx.pool(), self.isa);
        if let QuantizedInput::Quantized(affine) = self.spec.left {
            let a = QuantizedRows::new(a.bytes(), a.dtype() == ScalarType::Char, rows, k, affine);
            return Ok(qgemm_batch(pool, isa, a, b, to)?);
        }
        let dequantized = a.storage::<f32>()?;
        let mut quantized = ctx.scratch::<u8>(dequantized.len())?;
        if let QuantizedInput::ByTensor { .. } = self.spec.left {
            let affine = quantize_row_for(&self.spec.left, (pool, isa), dequantized, &mut quantized);
            let a = QuantizedRows::new(&quantized, true, rows, k, affine);
            return Ok(qgemm_batch(pool, isa, a, b, to)?);
        }
        let params = quantize_rows(&self.spec.left, (pool, isa), (rows, k), dequantized, &mut quantized)?;
        let a = QuantizedRows::with_row_params(&quantized, true, rows, k, &params);
        Ok(qgemm_batch(pool, isa, a, b, to)?)
    }
}
