//! The images that a convolution reads.

use super::super::conv::{ConvFrame, ConvParams};

/// Segments up to this many bytes are copied as a chunk of this size, if reading and writing past their end is allowed.
pub(super) const CHUNK: usize = 16;

/// Channels-last images, with the convolution that reads them.
#[derive(Clone, Copy)]
pub(super) struct Input<'a> {
    pub(super) p: &'a ConvParams,
    pub(super) frame: &'a ConvFrame,
    pub(super) x: &'a [u8],
    /// The quantized value that is read instead of pixels outside the image, zero, as it is
    /// [copied](super::super::qgemm::conversion).
    pub(super) zero: i32,
    /// The bits in which a quantized value and its copy differ.
    pub(super) flip: u8,
}

impl<'a> Input<'a> {
    /// The byte of a copied zero.
    pub(super) fn zero_byte(&self) -> u8 {
        self.zero as u8
    }

    /// The input line that a line of the output, counted through all images, reads `after` planes and lines after its
    /// first tap; `None` if it is outside the image.
    pub(super) fn line(&self, line: usize, after: [usize; 2]) -> Option<&'a [u8]> {
        let (p, frame) = (self.p, self.frame);
        let at = [line / frame.output[1] % frame.output[0], line % frame.output[1]];
        let mut pixel = line / frame.output[1] / frame.output[0];
        for d in 0..2 {
            let i = (at[d] * p.stride[d] + after[d]).checked_sub(p.padding[d])?;
            if i >= frame.input[d] {
                return None;
            }
            pixel = pixel * frame.input[d] + i;
        }
        let len = frame.input[2] * p.in_channels;
        Some(&self.x[pixel * len..][..len])
    }
}
