//! What the algorithms of a convolution compute from.

use super::super::isa::Isa;
use super::epilogue::ConvEpilogue;
use super::params::{ConvFrame, ConvParams};

/// A convolution of a batch of images, without the weights, which each algorithm packs differently.
#[derive(Clone, Copy)]
pub(super) struct Problem<'a> {
    pub(super) isa: Isa,
    pub(super) p: &'a ConvParams,
    pub(super) frame: &'a ConvFrame,
    /// The input.
    pub(super) x: &'a [f32],
    pub(super) epilogue: &'a ConvEpilogue<'a>,
}

/// Consecutive lines of an image, from line `first` on.
#[derive(Clone, Copy)]
pub(super) struct Window<'a> {
    pub(super) elements: &'a [f32],
    pub(super) first: usize,
}
