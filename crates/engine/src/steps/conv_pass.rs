//! A convolution fused with the elementwise pass that follows it.

use super::conv::{ConvStep, Convolution, check_floats};
use super::pointwise::Pass;
use super::{Step, Writes};
use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::{Lowered, Lowering, Operation};
use pteron_kernels::compute::{Layout, Tail};
use pteron_operator::{Expression, KernelContext, Result};
use pteron_tensor::TensorView;
use smallvec::SmallVec;
use std::fmt;

/// A convolution and an elementwise expression of its result, computed in place on each part of the result while it is
/// in cache. Inputs: those of the convolution, then those of the expression without its first, which is the result of
/// the convolution.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvPass {
    /// The convolution.
    pub conv: Convolution,
    /// The expression of its result.
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
        let own = self.conv.inputs();
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
        let others = self.pass.inputs().max(1) - 1;
        operands.count(own + others, 1)?;
        (own..own + others).try_for_each(|i| operands.broadcasts(i))
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let others = self.conv.inputs()..node.inputs();
        let metas = others.clone().map(|i| node.input(i)).collect::<Result<Vec<_>>>()?;
        let pass = Pass::in_place(&self.pass, &metas, node.output(0)?, node.isa());
        let conv = self.conv.step(node)?;
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
        let (own, others) = reads.split_at(self.conv.reads());
        // Input 0 is the convolution's result itself, which the pass accesses in place.
        let mut inputs = SmallVec::<[&[f32]; 4]>::from_slice(&[&[]]);
        for other in others {
            inputs.push(other.storage()?);
        }
        let tail = |at: usize, part: &mut [f32]| self.pass.part(&inputs, at, part);
        self.conv.run_with(ctx, own, writes, Some(Tail(&tail)))
    }
}
