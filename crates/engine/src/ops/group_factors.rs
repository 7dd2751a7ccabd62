//! The per-channel factors of group normalization.

use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::{ImageLayouts, Operation};
use pteron_operator::Result;
use std::fmt;

/// The per-channel factors of group normalization. Inputs: an image `[N, C, space..]`, and optionally weight and bias
/// of `C` elements. Outputs: `scale` and `shift`, `[N, C, 1..]`; the norm is `x * scale + shift`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupFactors {
    /// The number of groups of channels.
    pub groups: usize,
    /// The value added to the variance.
    pub eps: f32,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether there is a bias.
    pub bias: bool,
}

impl Operation for GroupFactors {
    fn name(&self) -> &str {
        "group_factors"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "groups: {}, eps: {}", self.groups, self.eps)
    }

    fn operand_layout(&self, i: usize, _: usize) -> LayoutReq {
        if i == 0 { LayoutReq::AnyImage } else { LayoutReq::RowMajor }
    }

    fn keeps_rows_apart(&self, operands: &Operands<'_>) -> bool {
        (1..=usize::from(self.weight) + usize::from(self.bias)).all(|i| operands.is_constant(i))
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let inputs = 1 + usize::from(self.weight) + usize::from(self.bias);
        operands.check_counts(inputs, 2)?;
        let (x, channels) = operands.check_image()?;
        if self.groups == 0 || !channels.is_multiple_of(self.groups) {
            return refuse(format!("{channels} channels cannot be divided into {} groups", self.groups));
        }
        for i in 1..inputs {
            let vector = operands.input(i)?;
            if vector.numel() != channels {
                return refuse(format!("operand {i} is {vector}, expected {channels} elements"));
            }
        }
        let factors = x.sizes()[0] * channels;
        match (operands.output(0)?.numel(), operands.output(1)?.numel()) == (factors, factors) {
            true => Ok(()),
            false => refuse(format!("the results do not have the {factors} factors of {x}")),
        }
    }

    fn image_layouts(&self) -> ImageLayouts {
        ImageLayouts::Reads
    }
}
