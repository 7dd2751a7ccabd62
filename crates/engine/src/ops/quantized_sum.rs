//! Addition of quantized values.

use super::quantized_linear::is_signed_8_bit;
use crate::operands::{Operands, refuse};
use crate::operation::Operation;
use pteron_kernels::compute::QuantizedSum;
use pteron_operator::Result;
use std::fmt;

/// Elementwise addition of two quantized tensors with the sizes and element type of the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumOfQuantized(pub QuantizedSum);

impl Operation for SumOfQuantized {
    fn name(&self) -> &str {
        "quantized_sum"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let QuantizedSum { factors, zeros, shift, zero, low, high, .. } = self.0;
        write!(f, "factors: {factors:?}, shift: {shift}, zeros: {zeros:?}, zero: {zero}, {low}..={high}")
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(2, 1)?;
        operands.check_same_as_output(0)?;
        operands.check_same_as_output(1)?;
        let out = operands.output(0)?;
        let QuantizedSum { low, high, signed: is_signed, .. } = self.0;
        let least = if is_signed { -128 } else { 0 };
        let is_sound = least <= low && low <= high && high <= least + 255;
        match is_sound && is_signed_8_bit(out)? == is_signed {
            true => Ok(()),
            false => refuse(format!("{out} cannot hold sums clamped to {low}..={high}")),
        }
    }
}
