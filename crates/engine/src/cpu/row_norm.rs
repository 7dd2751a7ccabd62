//! Layer norm and RMS norm.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::ops::row_norm::RowNorm;
use pteron_kernels::compute::{Isa, layer_norm, rms_norm};
use pteron_operator::{KernelContext, Result};
use pteron_tensor::TensorView;

impl Lower for RowNorm {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        Ok(Lowered::step(RowNormStep { norm: *self, isa: node.isa() }, 0..node.num_inputs()))
    }
}

struct RowNormStep {
    norm: RowNorm,
    isa: Isa,
}

impl Step for RowNormStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let RowNorm { elements, eps, centred, weight, bias } = self.norm;
        let (x, out) = (reads[0].storage::<f32>()?, only_output(&mut writes)?.storage_mut::<f32>()?);
        let mut factors = reads[1..].iter();
        let mut next = |there: bool| {
            let factor = if there { factors.next() } else { None };
            factor.map(|v| v.storage::<f32>()).transpose()
        };
        let weight = next(weight)?;
        if centred {
            let bias = next(bias)?;
            layer_norm(ctx.pool(), self.isa, eps, elements, x, (weight, bias), out);
        } else {
            rms_norm(ctx.pool(), self.isa, eps, elements, x, weight, out);
        }
        Ok(())
    }
}
