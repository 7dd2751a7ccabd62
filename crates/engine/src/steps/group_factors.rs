//! The per-channel factors of group normalization.

use super::{Step, Writes};
use crate::layouts::{LayoutReq, image_layout};
use crate::operands::{Operands, refuse};
use crate::operation::{Images, Lowered, Lowering, Operation};
use pteron_kernels::compute::{Isa, Layout, group_norm_factors};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{TensorMeta, TensorView};
use std::fmt;

/// The per-channel factors of group normalization. Inputs: an image `[N, C, space..]`, and optionally weight and bias
/// of `C` elements. Outputs: `scale` and `shift`, `[N, C, 1..]`; the norm is `x * scale + shift`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupFactors {
    /// The number of groups of channels.
    pub groups: usize,
    /// The value added to the variance.
    pub eps: f32,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Operation for GroupFactors {
    fn name(&self) -> &str {
        "group_factors"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "groups: {}, eps: {}", self.groups, self.eps)
    }

    fn operand_layout(&self, i: usize, _: usize) -> LayoutReq {
        if i == 0 { LayoutReq::AnyImage } else { LayoutReq::RowMajor }
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let inputs = 1 + usize::from(self.weight) + usize::from(self.bias);
        operands.count(inputs, 2)?;
        let (x, channels) = operands.image()?;
        if self.groups == 0 || !channels.is_multiple_of(self.groups) {
            return refuse(format!("{channels} channels cannot be divided into {} groups", self.groups));
        }
        for i in 1..inputs {
            let vector = operands.input(i)?;
            if vector.numel() != channels {
                return refuse(format!("operand {i} is {vector}, expected {channels} elements"));
            }
        }
        let factors = x.sizes()[0] * channels;
        match (operands.output(0)?.numel(), operands.output(1)?.numel()) == (factors, factors) {
            true => Ok(()),
            false => refuse(format!("the results do not have the {factors} factors of {x}")),
        }
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let step = GroupFactorsStep::new(*self, node.input(0)?, node.isa())?;
        Ok(Lowered::step(step, 0..node.inputs()))
    }

    fn images(&self) -> Images {
        Images::Reads
    }
}

/// The factors for images of one shape and layout.
pub(crate) struct GroupFactorsStep {
    spec: GroupFactors,
    channels: usize,
    pixels: usize,
    layout: Layout,
    isa: Isa,
}

impl GroupFactorsStep {
    pub(crate) fn new(spec: GroupFactors, x: &TensorMeta, isa: Isa) -> Result<Self> {
        let layout = image_layout(x).ok_or_else(|| {
            Error::invalid(format!("group norm factors of {x}, which is in no image layout"))
        })?;
        Ok(Self { spec, channels: x.sizes()[1], pixels: x.sizes()[2..].iter().product(), layout, isa })
    }
}

impl Step for GroupFactorsStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let [scale, shift] = &mut writes[..] else {
            return Err(Error::invalid("group norm factors do not have exactly two outputs"));
        };
        let mut vectors = reads[1..].iter().map(|r| r.storage::<f32>());
        let weight = if self.spec.weight { vectors.next().transpose()? } else { None };
        let bias = if self.spec.bias { vectors.next().transpose()? } else { None };
        group_norm_factors(
            ctx.pool(),
            self.isa,
            self.spec.eps,
            (self.channels, self.pixels, self.spec.groups),
            self.layout,
            reads[0].storage()?,
            (weight, bias),
            (scale.storage_mut()?, shift.storage_mut()?),
        );
        Ok(())
    }
}
