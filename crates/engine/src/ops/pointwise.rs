//! Fused elementwise operators: an [`Expression`] computes one f32 output element from one element of each input.

use crate::layouts::LayoutReq;
use crate::operands::{Operands, is_float, refuse};
use crate::operation::{ImageLayouts, Operation};
use pteron_operator::{Expression, Result};
use std::fmt;

/// An elementwise expression of its inputs, which are broadcast to the output.
#[derive(Debug, Clone, PartialEq)]
pub struct Pointwise(pub Expression);

impl Operation for Pointwise {
    fn name(&self) -> &str {
        "pointwise"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }

    fn operand_layout(&self, _: usize, _: usize) -> LayoutReq {
        LayoutReq::Any
    }

    fn keeps_rows_apart(&self, operands: &Operands<'_>) -> bool {
        let Ok(out) = operands.output(0) else { return false };
        operands.inputs().iter().enumerate().all(|(i, x)| match operands.is_constant(i) {
            true => x.rank() < out.rank() || x.sizes().first() == Some(&1),
            false => x.rank() == out.rank(),
        })
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let inputs = operands.inputs().len();
        operands.check_counts(inputs, 1)?;
        if self.0.num_inputs() > inputs || !is_float(operands.output(0)?) {
            return refuse(format!(
                "an expression of {} inputs has {inputs} operands, or its result is not float32",
                self.0.num_inputs()
            ));
        }
        (0..inputs).try_for_each(|i| operands.check_broadcasts(i))?;
        operands.check_broadcast_result()
    }

    fn image_layouts(&self) -> ImageLayouts {
        ImageLayouts::Follows
    }
}
