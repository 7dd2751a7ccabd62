//! Quantization of f32 values to 8 bits, and dequantization.

use crate::operands::{Operands, refuse};
use crate::operation::Operation;
use pteron_kernels::compute::{Affine, Quantization};
use pteron_operator::Result;
use pteron_tensor::ScalarType;
use std::fmt;

/// Quantizes f32 values to `Char` or `Byte`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quantize(pub Quantization);

/// Dequantizes `Char` or `Byte` values to f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dequantize(pub Affine);

impl Operation for Quantize {
    fn name(&self) -> &str {
        "quantize"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Quantization { affine, low, high } = self.0;
        write!(f, "scale: {}, zero: {}, {low}..={high}", affine.scale, affine.zero)
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_same_sizes()?;
        let to = operands.output(0)?.dtype();
        let is_byte = matches!(to, ScalarType::Char | ScalarType::Byte);
        let is_sound = is_byte && self.0.is_sound(to == ScalarType::Char);
        match is_sound && operands.input(0)?.dtype() == ScalarType::Float {
            true => Ok(()),
            false => refuse(format!("{to} does not support the quantization {:?}", self.0)),
        }
    }
}

impl Operation for Dequantize {
    fn name(&self) -> &str {
        "dequantize"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "scale: {}, zero: {}", self.0.scale, self.0.zero)
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_same_sizes()?;
        let from = operands.input(0)?.dtype();
        let is_byte = matches!(from, ScalarType::Char | ScalarType::Byte);
        match is_byte
            && operands.output(0)?.dtype() == ScalarType::Float
            && self.0.zero.unsigned_abs() < 1 << 16
        {
            true => Ok(()),
            false => refuse(format!("{from} cannot be dequantized by {:?}", self.0)),
        }
    }
}
