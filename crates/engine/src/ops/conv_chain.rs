//! Chains of convolutions, computed strip by strip.

use super::conv::Convolution;
use crate::layouts::LayoutReq;
use crate::operation::Operation;
use pteron_kernels::compute::Layout;
use std::fmt;

/// A chain of 2-d channels-last convolutions, each applied to the result of the one before. Inputs: the image, the
/// weights (constant) and optional bias (constant) of each convolution, and optionally the residual of the last.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ConvChain {
    /// At least two convolutions. Only the last may have a residual.
    pub(crate) convs: Vec<Convolution>,
}

impl ConvChain {
    /// Whether the last convolution has a residual.
    pub(crate) fn has_residual(&self) -> bool {
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
        let image = i == 0 || i >= inputs || self.has_residual() && i + 1 == inputs;
        if image { LayoutReq::Image(Layout::ChannelsLast) } else { LayoutReq::RowMajor }
    }
}
