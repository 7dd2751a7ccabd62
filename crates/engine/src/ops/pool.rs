//! Pooling of channels-last images.

use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::Operation;
use pteron_kernels::compute::{Layout, Pooling, Windows};
use pteron_operator::Result;
use pteron_tensor::ScalarType;
use std::fmt;

/// Pooling of a channels-last f32 image. An 8-bit integer image supports only [`Pooling::Max`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pool {
    /// How a window is reduced.
    pub pooling: Pooling,
    /// Sizes, strides, padding and dilation of the windows.
    pub windows: Windows,
}

impl Operation for Pool {
    fn name(&self) -> &str {
        "pool"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Windows { kernel, stride, .. } = &self.windows;
        write!(f, "{:?}, kernel: {:?}, stride: {:?}", self.pooling, &kernel[1..], &stride[1..])
    }

    fn operand_layout(&self, _: usize, _: usize) -> LayoutReq {
        LayoutReq::Image(Layout::ChannelsLast)
    }

    fn keeps_rows_apart(&self, _: &Operands<'_>) -> bool {
        true
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(1, 1)?;
        let (x, out) = (operands.input(0)?, operands.output(0)?);
        let is_byte = matches!(x.dtype(), ScalarType::Char | ScalarType::Byte);
        if self.pooling != Pooling::Max || !is_byte || x.dtype() != out.dtype() {
            operands.check_all_floats()?;
        }
        let Windows { kernel, stride, padding, dilation } = &self.windows;
        let fits = x.rank() == 4 && out.rank() == 4 && x.sizes()[..2] == out.sizes()[..2];
        let is_flat = (kernel[0], stride[0], padding[0], dilation[0]) == (1, 1, 0, 1);
        if !fits || !is_flat || x.numel() == 0 {
            return refuse(format!("pooling of the image {x} does not give {out}"));
        }
        for d in 1..3 {
            // Windows begin within the image or the padding before it, and are no larger than the padded image.
            let (from, to) = (x.sizes()[1 + d], out.sizes()[1 + d]);
            let reach = dilation[d].saturating_mul(kernel[d].max(1) - 1) + 1;
            let last = to.saturating_sub(1).saturating_mul(stride[d]);
            let is_sound = kernel[d] > 0
                && stride[d] > 0
                && dilation[d] > 0
                && padding[d] <= kernel[d].saturating_mul(dilation[d])
                && padding[d] <= from.saturating_add(reach)
                && reach <= from + 2 * padding[d]
                && last < from + padding[d];
            if !is_sound {
                return refuse(format!("{:?} of {x} do not give {out}", self.windows));
            }
        }
        Ok(())
    }
}
