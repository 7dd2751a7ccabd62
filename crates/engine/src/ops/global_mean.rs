//! Global average pooling.

use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::{ImageLayouts, Operation};
use pteron_operator::Result;

/// The mean over all spatial dimensions of an image `[N, C, space..]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalMean;

impl Operation for GlobalMean {
    fn name(&self) -> &str {
        "global_mean"
    }

    fn operand_layout(&self, i: usize, _: usize) -> LayoutReq {
        if i == 0 { LayoutReq::AnyImage } else { LayoutReq::RowMajor }
    }

    fn keeps_rows_apart(&self, _: &Operands<'_>) -> bool {
        true
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(1, 1)?;
        let ((x, channels), out) = (operands.check_image()?, operands.output(0)?);
        if out.numel() == x.sizes()[0] * channels {
            return Ok(());
        }
        refuse(format!("the global mean of {x} does not give {out}"))
    }

    fn image_layouts(&self) -> ImageLayouts {
        ImageLayouts::Reads
    }
}
