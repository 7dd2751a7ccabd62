//! Products of two computed quantized matrices.

use super::quantized_linear::{QuantizedInput, check_input, check_output};
use crate::operands::{Operands, refuse};
use crate::operation::Operation;
use pteron_kernels::compute::{Activation, PackedWeights, Quantization};
use pteron_operator::Result;
use pteron_tensor::ScalarType;
use std::fmt;

/// The matrix product of two quantized inputs, with exact integer accumulation: of `[m, k]` and `[k, n]`, or batches of these with three
/// dimensions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedProduct {
    /// The form of the first input, and how it is quantized.
    pub left: QuantizedInput,
    /// The scale of the second input, of `Char` values whose zero point is 0.
    pub right_scale: f32,
    /// The quantization of the result; `None` if the result is f32.
    pub output: Option<Quantization>,
}

impl Operation for QuantizedProduct {
    fn name(&self) -> &str {
        "quantized_product"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "input: {:?}, scale: {}", self.left, self.right_scale)?;
        match self.output {
            Some(q) => write!(f, ", output: scale {}, zero {}", q.affine.scale, q.affine.zero),
            None => Ok(()),
        }
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(2, 1)?;
        let (a, b, out) = (operands.input(0)?, operands.input(1)?, operands.output(0)?);
        check_input(&self.left, a)?;
        let (a_sizes, b_sizes) = (a.sizes(), b.sizes());
        let fits = are_factors(a_sizes, b_sizes, out.sizes());
        let inner = b_sizes.len().checked_sub(2).map_or(0, |at| b_sizes[at]);
        if !fits || inner > PackedWeights::MAX_ROWS || b.dtype() != ScalarType::Char {
            return refuse(format!("{out} is no product of the quantized {a} and {b}"));
        }
        if !self.right_scale.is_finite() {
            return refuse(format!("the scale {} is not finite", self.right_scale));
        }
        check_output(operands, self.output.as_ref(), Activation::Identity)
    }
}

/// Whether matrices of the first and the second sizes, or batches of them, have products of the sizes `out`.
pub(crate) fn are_factors(a: &[usize], b: &[usize], out: &[usize]) -> bool {
    match (a, b) {
        (&[m, k], &[rows, n]) => k == rows && out == [m, n],
        (&[batch, m, k], &[count, rows, n]) => batch == count && k == rows && out == [batch, m, n],
        _ => false,
    }
}
