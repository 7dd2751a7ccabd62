//! The per-channel factors of group normalization.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes};
use crate::layouts::image_layout;
use crate::ops::group_factors::GroupFactors;
use pteron_kernels::compute::{Isa, Layout, group_norm_factors};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{TensorMeta, TensorView};

impl Lower for GroupFactors {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let step = GroupFactorsStep::new(*self, node.input(0)?, node.isa())?;
        Ok(Lowered::step(step, 0..node.num_inputs()))
    }
}

/// Computes a group norm's factors for images of one shape and layout.
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
