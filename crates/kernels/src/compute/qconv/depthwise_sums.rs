//! What the two ways to sum the taps of a depthwise convolution, tap by tap and in quads, have in common.

use super::super::conv::{ConvFrame, ConvParams, ConvWeights};
use std::ops::Range;

/// The maximum number of channels that are summed together.
pub(super) const CHANNELS: usize = 64;

/// The width in pixels of the part of an input line that an output line reads, padding included.
pub(super) fn pixels_read_per_line(p: &ConvParams, frame: &ConvFrame) -> usize {
    (frame.output[2] - 1) * p.stride[2] + (p.kernel[2] - 1) * p.dilation[2] + 1
}

/// The weights of a tap, channel after channel.
pub(super) fn tap_weights(weights: &ConvWeights<'_, i8>, tap: usize) -> impl Iterator<Item = i8> {
    let [channel, _, step] = weights.strides;
    weights.values.get(tap * step..).unwrap_or_default().iter().step_by(channel.max(1)).copied()
}

/// Computes the sums of a line of the output.
pub(super) trait Sums {
    /// Writes the sums of a range of pixels, a row for each, and of a range of channels that begins at a multiple of
    /// [`CHANNELS`].
    fn compute_sums(&self, pixels: Range<usize>, channels: Range<usize>, out: &mut [[i32; CHANNELS]]);
}

/// Computes a line of the output from its sums; the buffer has room for the sums of a tile.
pub(super) type FinishLine<'a> = &'a dyn Fn(usize, &mut [i32], &dyn Sums);
