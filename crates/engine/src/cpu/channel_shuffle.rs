//! Channel shuffle.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::layouts::image_layout;
use crate::ops::channel_shuffle::ChannelShuffle;
use pteron_kernels::compute::Layout;
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{ScalarType, TensorView};

/// The minimum number of elements that a thread moves.
const GRAIN: usize = 1 << 14;

impl Lower for ChannelShuffle {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let x = node.input(0)?;
        let layout = image_layout(x).filter(|_| self.accepts(x));
        let layout = layout.ok_or_else(|| {
            Error::invalid(format!("the channels of {x} cannot be shuffled in {} groups", self.groups))
        })?;
        let (channels, pixels) = (x.sizes()[1], x.sizes()[2..].iter().product());
        let step = ChannelShuffleStep { groups: self.groups, channels, pixels, layout };
        Ok(Lowered::step(step, [0]))
    }
}

struct ChannelShuffleStep {
    groups: usize,
    channels: usize,
    pixels: usize,
    layout: Layout,
}

impl Step for ChannelShuffleStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let (x, out) = (&reads[0], only_output(&mut writes)?);
        match x.dtype() {
            ScalarType::Float => self.shuffle(ctx, x.storage::<f32>()?, out.storage_mut::<f32>()?),
            _ => self.shuffle(ctx, x.bytes(), out.bytes_mut()),
        }
        Ok(())
    }
}

impl ChannelShuffleStep {
    fn shuffle<T: Copy + Send + Sync>(&self, ctx: &KernelContext<'_>, x: &[T], out: &mut [T]) {
        let Self { groups, channels, pixels, layout } = *self;
        if out.is_empty() {
            return;
        }
        match layout {
            Layout::ChannelsLast => {
                let rows = (GRAIN / channels).max(1);
                ctx.pool().parallel_chunks_mut(out, rows * channels, 1, &|i, out| {
                    let x = &x[i * rows * channels..][..out.len()];
                    for (x, out) in x.chunks_exact(channels).zip(out.chunks_exact_mut(channels)) {
                        shuffle_pixel(x, out, groups);
                    }
                });
            }
            Layout::ChannelsFirst => {
                let each = channels / groups;
                ctx.pool().parallel_chunks_mut(out, pixels, GRAIN / pixels + 1, &|i, out| {
                    let (image, channel) = (i / channels, i % channels);
                    let from = image * channels + channel % groups * each + channel / groups;
                    out.copy_from_slice(&x[from * pixels..][..pixels]);
                });
            }
        }
    }
}

/// Shuffles the channels of one pixel.
fn shuffle_pixel<T: Copy>(x: &[T], out: &mut [T], groups: usize) {
    let each = x.len() / groups;
    if groups == 2 {
        let (first, second) = x.split_at(each);
        for ((out, &a), &b) in out.chunks_exact_mut(2).zip(first).zip(second) {
            out.copy_from_slice(&[a, b]);
        }
        return;
    }
    for (i, out) in out.chunks_exact_mut(groups).enumerate() {
        out.iter_mut().zip(x[i..].iter().step_by(each)).for_each(|(to, &from)| *to = from);
    }
}
