//! What is applied to the sums of a convolution.

use super::super::gemm::Activation;
use std::ops::Range;

/// A function that is applied to a result part by part, while a part is in the caches: it is called once with every
/// element of the result, in contiguous parts of any length, with the index of a part's first element. Several
/// threads may call it concurrently.
#[derive(Clone, Copy)]
pub struct Tail<'a>(pub &'a (dyn Fn(usize, &mut [f32]) + Sync));

impl std::fmt::Debug for Tail<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tail")
    }
}

/// The approximate number of elements of the output that a tail is applied to at once.
pub(super) const TAIL_PART: usize = 1 << 13;

/// The epilogue of a convolution: `tail(activation(sum + bias + residual))`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvEpilogue<'a> {
    /// The bias: one value for each output channel.
    pub bias: Option<&'a [f32]>,
    /// The residual: images of the output's sizes and layout, which are added to the sums.
    pub residual: Option<&'a [f32]>,
    /// The function that is applied to each result.
    pub activation: Activation,
    /// Applied last. Channels-last results of a convolution that is not transposed, and has one group or is depthwise
    /// (of at most 128 taps), are passed to it as they are computed; other results once they are complete.
    pub tail: Option<Tail<'a>>,
}

impl ConvEpilogue<'_> {
    /// This epilogue, restricted to a range of the output's elements.
    pub(super) fn for_elements(&self, elements: Range<usize>) -> Self {
        Self { residual: self.residual.map(|r| &r[elements]), ..*self }
    }
}
