//! Addition of quantized values.

use super::{Step, Writes, only};
use crate::operation::{Lowered, Lowering, Operation};
use kernels::compute::{Isa, QuantizedSum, quantized_sum};
use operator::{KernelContext, Result};
use std::fmt;
use tensor::TensorView;

/// Elementwise addition of two quantized tensors with the sizes and element type of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumOfQuantized(pub QuantizedSum);

impl Operation for SumOfQuantized {
    fn name(&self) -> &str {
        "quantized_sum"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuantizedSum { factors, zeros, shift, zero, low, high, .. } = self.0;
        write!(f, "factors: {factors:?}, shift: {shift}, zeros: {zeros:?}, zero: {zero}, {low}..={high}")
    }

    fn is_elementwise(&self) -> bool {
        true
    }

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
        quantized_sum(ctx.pool(), self.1, &self.0, a, b, only(&mut writes)?.bytes_mut());
        Ok(())
    }
}
