//! Quantization of f32 values to 8 bits, and dequantization.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::ops::quantize::{Dequantize, Quantize};
use pteron_kernels::compute::{Affine, Isa, Quantization, dequantize, quantize};
use pteron_operator::{KernelContext, Result};
use pteron_tensor::{ScalarType, TensorView};

impl Lower for Quantize {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        Ok(Lowered::step(QuantizeStep(self.0, node.isa()), [0]))
    }
}

impl Lower for Dequantize {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        Ok(Lowered::step(DequantizeStep(self.0, node.isa()), [0]))
    }
}

struct QuantizeStep(Quantization, Isa);

impl Step for QuantizeStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        quantize(ctx.pool(), self.1, &self.0, reads[0].storage()?, only_output(&mut writes)?.bytes_mut());
        Ok(())
    }
}

struct DequantizeStep(Affine, Isa);

impl Step for DequantizeStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let x = &reads[0];
        let signed = x.dtype() == ScalarType::Char;
        dequantize(ctx.pool(), self.1, self.0, signed, x.bytes(), only_output(&mut writes)?.storage_mut()?);
        Ok(())
    }
}
