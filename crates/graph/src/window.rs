//! The steps of [`Op::Pool`](crate::Op::Pool) and [`Op::GlobalMean`](crate::Op::GlobalMean).

use crate::layouts::image_layout;
use crate::node::Pool;
use kernels::compute::{ConvFrame, Isa, Layout, column_means, mean, pool_windows};
use operator::{Error, KernelContext, Result};
use tensor::{TensorMeta, TensorView, TensorViewMut};

/// The sizes of images `[N, C, space..]` of so many space dimensions, before and after.
pub(crate) fn frame(x: &TensorMeta, out: &TensorMeta, space: usize) -> ConvFrame {
    let pixels = |meta: &TensorMeta| {
        let mut all = [1; 3];
        all[3 - space..].copy_from_slice(&meta.sizes()[2..]);
        all
    };
    ConvFrame { batch: x.sizes()[0], input: pixels(x), output: pixels(out) }
}

/// Pooling of channels-last images.
pub(crate) struct PoolStep {
    spec: Pool,
    frame: ConvFrame,
    channels: usize,
    isa: Isa,
}

impl PoolStep {
    pub(crate) fn new(spec: Pool, x: &TensorMeta, out: &TensorMeta, isa: Isa) -> Self {
        Self { spec, frame: frame(x, out, 2), channels: x.sizes()[1], isa }
    }

    pub(crate) fn run(
        &self,
        ctx: &KernelContext<'_>,
        x: &TensorView<'_>,
        out: &mut TensorViewMut<'_>,
    ) -> Result<()> {
        let Pool { pooling, windows } = &self.spec;
        let (x, out) = (x.storage()?, out.storage_mut()?);
        pool_windows(ctx.pool(), self.isa, *pooling, windows, &self.frame, self.channels, x, out);
        Ok(())
    }
}

/// The mean over the pixels of each channel of each image.
pub(crate) struct GlobalMeanStep {
    pixels: usize,
    channels: usize,
    layout: Layout,
    isa: Isa,
}

impl GlobalMeanStep {
    pub(crate) fn new(x: &TensorMeta, isa: Isa) -> Result<Self> {
        let layout = image_layout(x)
            .ok_or_else(|| Error::invalid(format!("the mean of an image that lies as {x}")))?;
        Ok(Self { pixels: x.sizes()[2..].iter().product(), channels: x.sizes()[1], layout, isa })
    }

    pub(crate) fn run(&self, x: &TensorView<'_>, out: &mut TensorViewMut<'_>) -> Result<()> {
        let (x, out) = (x.storage::<f32>()?, out.storage_mut::<f32>()?);
        let Self { pixels, channels, layout, isa } = *self;
        match layout {
            Layout::ChannelsLast => {
                let images = x.chunks_exact(pixels * channels).zip(out.chunks_exact_mut(channels));
                images.for_each(|(image, means)| column_means(isa, image, means));
            }
            Layout::ChannelsFirst => {
                let planes = x.chunks_exact(pixels).zip(out);
                planes.for_each(|(plane, out)| *out = mean(isa, plane));
            }
        }
        Ok(())
    }
}
