//! The steps of [`Op::Pool`](crate::Op::Pool) and [`Op::GlobalMean`](crate::Op::GlobalMean).

use crate::node::{Pool, image_layout};
use kernels::compute::{ConvFrame, Isa, Layout, pool_windows};
use operator::{KernelContext, Result};
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
    /// Whether the channels of a pixel lie together.
    last: bool,
}

impl GlobalMeanStep {
    pub(crate) fn new(x: &TensorMeta) -> Self {
        let last = image_layout(x) == Some(Layout::ChannelsLast);
        Self { pixels: x.sizes()[2..].iter().product(), channels: x.sizes()[1], last }
    }

    pub(crate) fn run(&self, x: &TensorView<'_>, out: &mut TensorViewMut<'_>) -> Result<()> {
        let (x, out) = (x.storage::<f32>()?, out.storage_mut::<f32>()?);
        let Self { pixels, channels, last } = *self;
        let factor = 1.0 / pixels as f32;
        if last {
            for (image, sums) in x.chunks_exact(pixels * channels).zip(out.chunks_exact_mut(channels)) {
                sums.fill(0.0);
                for pixel in image.chunks_exact(channels) {
                    sums.iter_mut().zip(pixel).for_each(|(s, p)| *s += p);
                }
                sums.iter_mut().for_each(|s| *s *= factor);
            }
        } else {
            for (plane, mean) in x.chunks_exact(pixels).zip(out) {
                *mean = plane.iter().sum::<f32>() * factor;
            }
        }
        Ok(())
    }
}
