//! Channel shuffle.

use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::{ImageLayouts, Operation};
use pteron_operator::Result;
use pteron_tensor::{ScalarType, TensorMeta};
use std::fmt;

/// Transposes the channels of an image `[N, C, space..]`, taken as a matrix of `groups` rows: channel `i` of group `g`
/// moves to index `i * groups + g`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ChannelShuffle {
    /// The number of groups, a divisor of the number of channels.
    pub groups: usize,
}

impl ChannelShuffle {
    /// Whether the channels of an image with this meta can be shuffled.
    pub fn accepts(&self, image: &TensorMeta) -> bool {
        let has_groups = image.rank() >= 3 && self.groups > 0 && image.sizes()[1].is_multiple_of(self.groups);
        has_groups && matches!(image.dtype(), ScalarType::Float | ScalarType::Char | ScalarType::Byte)
    }
}

impl Operation for ChannelShuffle {
    fn name(&self) -> &str {
        "channel_shuffle"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "groups: {}", self.groups)
    }

    fn operand_layout(&self, i: usize, _: usize) -> LayoutReq {
        if i == 0 { LayoutReq::AnyImage } else { LayoutReq::SameAsInput0 }
    }

    fn keeps_rows_apart(&self, _: &Operands<'_>) -> bool {
        true
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(1, 1)?;
        operands.check_same_as_output(0)?;
        let image = operands.input(0)?;
        if self.accepts(image) {
            return Ok(());
        }
        refuse(format!("the channels of {image} cannot be shuffled in {} groups", self.groups))
    }

    fn image_layouts(&self) -> ImageLayouts {
        ImageLayouts::Follows
    }
}
