//! A convolution fused with the elementwise pass that follows it.

use super::conv::{Convolution, check_floats};
use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::Operation;
use pteron_kernels::compute::Layout;
use pteron_operator::{Expression, Result};
use std::fmt;

/// A convolution and an elementwise expression of its result, computed in place on each part of the result while it is
/// in cache. Inputs: those of the convolution, then those of the expression without its first, which is the result of
/// the convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvPass {
    /// The convolution.
    pub conv: Convolution,
    /// The elementwise expression that is applied to the convolution's result.
    pub pass: Expression,
}

impl Operation for ConvPass {
    fn name(&self) -> &str {
        "conv"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.conv.attributes(f)?;
        write!(f, ", then: {}", self.pass)
    }

    fn operand_layout(&self, i: usize, inputs: usize) -> LayoutReq {
        let own = self.conv.num_inputs();
        match i {
            _ if i < own => self.conv.operand_layout(i, own),
            _ if i < inputs => LayoutReq::Any,
            _ => self.conv.operand_layout(i, inputs),
        }
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let own = check_floats(&self.conv, operands)?;
        if self.conv.layout != Layout::ChannelsLast {
            return refuse("an elementwise pass requires a channels-last convolution");
        }
        // Input 0 of the pass is the convolution's result.
        let others = self.pass.num_inputs().max(1) - 1;
        operands.check_counts(own + others, 1)?;
        (own..own + others).try_for_each(|i| operands.check_broadcasts(i))
    }
}
