//! Addition of quantized values.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::ops::quantized_sum::SumOfQuantized;
use pteron_kernels::compute::{Isa, QuantizedSum, quantized_sum};
use pteron_operator::{KernelContext, Result};
use pteron_tensor::TensorView;

impl Lower for SumOfQuantized {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        Ok(Lowered::step(SumStep(self.0, node.isa()), [0, 1]))
    }
}

struct SumStep(QuantizedSum, Isa);

impl Step for SumStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let (a, b) = (reads[0].bytes(), reads[1].bytes());
        quantized_sum(ctx.pool(), self.1, &self.0, a, b, only_output(&mut writes)?.bytes_mut());
        Ok(())
    }
}
