//! Global average pooling.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::layouts::image_layout;
use crate::ops::global_mean::GlobalMean;
use pteron_kernels::compute::{Isa, Layout, column_means, row_means};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::TensorView;

impl Lower for GlobalMean {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let x = node.input(0)?;
        let layout = image_layout(x)
            .ok_or_else(|| Error::invalid(format!("the global mean of {x}, which is in no image layout")))?;
        let (pixels, channels) = (x.sizes()[2..].iter().product(), x.sizes()[1]);
        Ok(Lowered::step(GlobalMeanStep { pixels, channels, layout, isa: node.isa() }, [0]))
    }
}

struct GlobalMeanStep {
    pixels: usize,
    channels: usize,
    layout: Layout,
    isa: Isa,
}

impl Step for GlobalMeanStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let (x, out) = (reads[0].storage::<f32>()?, only_output(&mut writes)?.storage_mut::<f32>()?);
        let Self { pixels, channels, layout, isa } = *self;
        if out.is_empty() || pixels == 0 {
            out.fill(f32::NAN);
            return Ok(());
        }
        match layout {
            Layout::ChannelsLast => {
                let images = x.chunks_exact(pixels * channels).zip(out.chunks_exact_mut(channels));
                images.for_each(|(image, means)| column_means(ctx.pool(), isa, image, means));
            }
            Layout::ChannelsFirst => row_means(ctx.pool(), isa, x, out),
        }
        Ok(())
    }
}
