//! The step of [`Op::GroupFactors`](crate::Op::GroupFactors).

use crate::layouts::image_layout;
use crate::node::GroupFactors;
use kernels::compute::{Isa, Layout, group_norm_factors};
use operator::{Error, KernelContext, Result};
use tensor::{TensorMeta, TensorView, TensorViewMut};

/// Group norm factors of images of one shape and layout.
pub(crate) struct GroupFactorsStep {
    spec: GroupFactors,
    channels: usize,
    pixels: usize,
    layout: Layout,
    isa: Isa,
}

impl GroupFactorsStep {
    pub(crate) fn new(spec: GroupFactors, x: &TensorMeta, isa: Isa) -> Result<Self> {
        let layout = image_layout(x)
            .ok_or_else(|| Error::invalid(format!("group norm factors of an image that lies as {x}")))?;
        Ok(Self { spec, channels: x.sizes()[1], pixels: x.sizes()[2..].iter().product(), layout, isa })
    }

    pub(crate) fn run(
        &self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'_>],
        writes: &mut [TensorViewMut<'_>],
    ) -> Result<()> {
        let [scale, shift] = writes else {
            return Err(Error::invalid("group norm factors without their two outputs"));
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
