//! Layer norm and RMS norm.

use crate::operands::{Operands, refuse};
use crate::operation::Operation;
use pteron_operator::Result;
use std::fmt;

/// A norm over rows, which span the last dimensions: `(x - mean) / sqrt(variance + eps)` or
/// `x / sqrt(mean(x^2) + eps)`, optionally times a weight and plus a bias with one element for each element of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowNorm {
    /// The number of elements of a row.
    pub elements: usize,
    /// The value added to the variance, or to the mean square of an RMS norm.
    pub eps: f32,
    /// Whether the mean is subtracted: true for a layer norm, false for an RMS norm.
    pub centred: bool,
    /// Whether there is a weight, which is then input 1.
    pub weight: bool,
    /// Whether the last input is the bias; layer norm only.
    pub bias: bool,
}

impl Operation for RowNorm {
    fn name(&self) -> &str {
        if self.centred { "layer_norm" } else { "rms_norm" }
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "elements: {}, eps: {}", self.elements, self.eps)
    }

    fn keeps_rows_apart(&self, operands: &Operands<'_>) -> bool {
        let factors = usize::from(self.weight) + usize::from(self.bias);
        let in_row = operands
            .input(0)
            .is_ok_and(|x| x.sizes()[1..].iter().product::<usize>().is_multiple_of(self.elements));
        in_row && (1..=factors).all(|i| operands.is_constant(i))
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let factors = usize::from(self.weight) + usize::from(self.bias);
        operands.check_counts(1 + factors, 1)?;
        operands.check_all_floats()?;
        operands.check_same_as_output(0)?;
        let x = operands.input(0)?;
        let mut trailing = x.sizes().iter().rev().scan(1usize, |rows, &size| {
            *rows = rows.checked_mul(size)?;
            Some(*rows)
        });
        if self.elements == 0 || !trailing.any(|elements| elements == self.elements) {
            return refuse(format!("{} elements are not the last dimensions of {x}", self.elements));
        }
        if self.bias && !self.centred {
            return refuse("an RMS norm has no bias");
        }
        for i in 1..=factors {
            let factor = operands.input(i)?;
            if factor.numel() != self.elements {
                return refuse(format!("operand {i} is {factor}, expected {} elements", self.elements));
            }
        }
        Ok(())
    }
}
