//! Chains of convolutions, computed strip by strip.

use super::conv::{self, Convolution};
use super::{Step, Writes, only, residual};
use crate::layouts::LayoutReq;
use crate::operation::{Lowered, Lowering, Operation};
use crate::packs::Packed;
use pteron_kernels::compute::{Activation, Conv, ConvFrame, Layout, Link, chain};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::TensorView;
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// A chain of 2-d channels-last convolutions, each applied to the result of the one before. Inputs: the image, the
/// weights (constant) and optional bias (constant) of each convolution, and optionally the residual of the last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConvChain {
    /// At least two convolutions. Only the last may have a residual.
    pub(crate) convs: Vec<Convolution>,
}

impl ConvChain {
    fn residual(&self) -> bool {
        self.convs.last().is_some_and(|conv| conv.residual)
    }
}

impl Operation for ConvChain {
    fn name(&self) -> &str {
        "conv"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, conv) in self.convs.iter().enumerate() {
            f.write_str(if i == 0 { "" } else { ", then " })?;
            conv.attributes(f)?;
        }
        Ok(())
    }

    fn operand_layout(&self, i: usize, inputs: usize) -> LayoutReq {
        let image = i == 0 || i >= inputs || self.residual() && i + 1 == inputs;
        if image { LayoutReq::Image(Layout::ChannelsLast) } else { LayoutReq::RowMajor }
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let out = node.output(0)?;
        let impossible = || Error::invalid("the image sizes of chained convolutions do not match");
        let mut convs = Vec::with_capacity(self.convs.len());
        let (mut slot, mut frame) = (1, conv::frame(node.input(0)?, out, 2));
        for conv in &self.convs {
            let output = conv.params.output_size(frame.input, [0; 3]).ok_or_else(impossible)?;
            frame.output = output;
            let (weights, bias) = conv.weights(node, slot, &frame)?;
            convs.push(ChainedConv { conv: weights, frame, bias, activation: conv.activation });
            slot += 1 + usize::from(conv.bias);
            frame.input = output;
        }
        if frame.input[1..] != out.sizes()[2..] {
            return Err(impossible());
        }
        let residual = self.residual().then_some(slot);
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

/// Reads the image and optionally the residual.
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
        let (x, out) = (reads[0].storage::<f32>()?, only(&mut writes)?.storage_mut::<f32>()?);
        chain(ctx.pool(), &links, x, out, residual(self.residual, reads)?);
        Ok(())
    }
}
