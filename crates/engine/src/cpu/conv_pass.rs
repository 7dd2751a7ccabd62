//! A convolution fused with the elementwise pass that follows it.

use super::conv::ConvStep;
use super::lowering::{Lower, Lowered, Lowering};
use super::pointwise::Pass;
use super::step::{Step, Writes};
use crate::ops::conv_pass::ConvPass;
use pteron_kernels::compute::Tail;
use pteron_operator::{KernelContext, Result};
use pteron_tensor::TensorView;
use smallvec::SmallVec;

impl Lower for ConvPass {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let others = self.conv.num_inputs()..node.num_inputs();
        let metas = others.clone().map(|i| node.input(i)).collect::<Result<Vec<_>>>()?;
        let pass = Pass::new_in_place(&self.pass, &metas, node.output(0)?, node.isa());
        let conv = self.conv.build_step(node)?;
        Ok(Lowered::step(ConvPassStep { conv, pass }, self.conv.reads().chain(others)))
    }
}

struct ConvPassStep {
    conv: ConvStep,
    pass: Pass,
}

impl Step for ConvPassStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        writes: Writes<'a>,
    ) -> Result<()> {
        let (own, others) = reads.split_at(self.conv.num_reads());
        // Input 0 is the convolution's result itself, which the pass accesses in place.
        let mut inputs = SmallVec::<[&[f32]; 4]>::from_slice(&[&[]]);
        for other in others {
            inputs.push(other.storage()?);
        }
        let tail = |at: usize, part: &mut [f32]| self.pass.compute_range(&inputs, at, part);
        self.conv.run_with(ctx, own, writes, Some(Tail(&tail)))
    }
}
