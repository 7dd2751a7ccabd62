//! Chains of convolutions, computed strip by strip.

use super::lowering::{Lower, Lowered, Lowering};
use super::packs::Packed;
use super::step::{Step, Writes, only_output, residual};
use crate::ops::conv::conv_frame;
use crate::ops::conv_chain::ConvChain;
use pteron_kernels::compute::{Activation, Conv, ConvFrame, Link, chain};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::TensorView;
use smallvec::SmallVec;
use std::sync::Arc;

impl Lower for ConvChain {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let out = node.output(0)?;
        let impossible = || Error::invalid("the image sizes of chained convolutions do not match");
        let mut convs = Vec::with_capacity(self.convs.len());
        let (mut slot, mut frame) = (1, conv_frame(node.input(0)?, out, 2));
        for conv in &self.convs {
            let output = conv.params.output_size(frame.input, [0; 3]).ok_or_else(impossible)?;
            frame.output = output;
            let (weights, bias) = conv.packed_weights(node, slot, &frame)?;
            convs.push(ChainedConv { conv: weights, frame, bias, activation: conv.activation });
            slot += 1 + usize::from(conv.bias);
            frame.input = output;
        }
        if frame.input[1..] != out.sizes()[2..] {
            return Err(impossible());
        }
        let residual = self.has_residual().then_some(slot);
        Ok(Lowered::step(
            ConvChainStep { convs, residual: residual.is_some() },
            [0].into_iter().chain(residual),
        ))
    }
}

struct ChainedConv {
    conv: Arc<Packed<Conv>>,
    frame: ConvFrame,
    bias: Option<Vec<f32>>,
    activation: Activation,
}

/// A chain of convolutions that reads the image and optionally the residual; the weights are packed.
struct ConvChainStep {
    convs: Vec<ChainedConv>,
    residual: bool,
}

impl Step for ConvChainStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let links = self.convs.iter().map(|link| Link {
            conv: &link.conv,
            frame: link.frame,
            bias: link.bias.as_deref(),
            activation: link.activation,
        });
        let links: SmallVec<[Link<'_>; 4]> = links.collect();
        let (x, out) = (reads[0].storage::<f32>()?, only_output(&mut writes)?.storage_mut::<f32>()?);
        chain(ctx.pool(), &links, x, out, residual(self.residual, reads)?);
        Ok(())
    }
}
