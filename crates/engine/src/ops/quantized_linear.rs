//! Quantized matrix multiplication.

use super::conv::write_epilogue;
use crate::graph::Kind;
use crate::operands::{Operands, is_float, refuse};
use crate::operation::{OpKind, Operation};
use pteron_kernels::compute::{Activation, Affine, Quantization};
use pteron_kernels::compute::{PackedWeights, WeightBits};
use pteron_operator::Result;
use pteron_tensor::{ScalarType, TensorMeta};
use std::fmt;
use std::sync::Arc;

/// As [`Linear`](crate::Linear) on quantized values, with exact integer accumulation. Inputs: `x`, weights (`Char`,
/// constant), their scales (constant), and optionally the bias (constant): f32, or `Int` values that are added to the
/// accumulators before these are scaled. There is one scale for all weights, one for each output, or one for each
/// output and group of inner elements, `[groups, out]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedLinear {
    /// The form of `x`, and how it is quantized.
    pub input: QuantizedInput,
    /// Whether the weights are `[out, in]`; otherwise they are `[in, out]`.
    pub out_major: bool,
    /// The bit width of the packed weights; 4-bit weights are in -8..=7.
    pub bits: WeightBits,
    /// The number of inner elements that share a scale. If there are several groups, it is a multiple of 32.
    pub group: usize,
    /// Whether there is a bias, with one value for each column of the result.
    pub bias: bool,
    /// The activation that is applied before the result is stored or quantized; a quantized result allows clamps only.
    pub activation: Activation,
    /// The quantization of the result; `None` if the result is f32.
    pub output: Option<Quantization>,
}

/// The input of a [`QuantizedLinear`] or a [`QuantizedConvolution`](crate::QuantizedConvolution).
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QuantizedInput {
    /// Quantized values, `Char` or `Byte`, with this scale and zero point.
    Quantized(Affine),
    /// f32 values, quantized dynamically per tensor to `low..=high` within `i8`.
    ByTensor {
        /// The minimum quantized value.
        low: i32,
        /// The maximum quantized value.
        high: i32,
        /// The minimum scale.
        eps: f32,
    },
    /// f32 values, quantized dynamically per row (per token) to `i8`, as by
    /// `quantized_decomposed::choose_qparams_per_token_asymmetric`.
    ByRow,
    /// As [`Self::ByRow`], but the inverse scale is computed first and the scale is its reciprocal:
    /// [`quantize_row`](pteron_kernels::compute::quantize_row).
    ByFactorOfRow,
}

impl Operation for QuantizedLinear {
    fn name(&self) -> &str {
        "quantized_linear"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weights: {}, ", if self.out_major { "[out, in]" } else { "[in, out]" })?;
        write!(f, "{:?} bits in groups of {}, input: {:?}", self.bits, self.group, self.input)?;
        write_epilogue(f, false, self.activation)
    }

    fn keeps_rows_apart(&self, operands: &Operands<'_>) -> bool {
        !matches!(self.input, QuantizedInput::ByTensor { .. }) && operands.has_matrix()
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(3 + usize::from(self.bias), 1)?;
        let x = operands.input(0)?;
        let (inner, outer) = operands.check_product(self.out_major, PackedWeights::MAX_ROWS)?;
        let is_one = self.group >= inner;
        if self.group == 0 || !is_one && !self.group.is_multiple_of(PackedWeights::GROUP_UNIT) {
            return refuse(format!("{inner} weights cannot be divided into groups of {}", self.group));
        }
        let groups = inner.div_ceil(self.group);
        check_weights(operands, groups.saturating_mul(outer), is_one)?;
        check_bias(operands, self.bias, outer)?;
        check_input(&self.input, x)?;
        check_output(operands, self.output.as_ref(), self.activation)
    }

    fn with_activation(&self, activation: Activation) -> Option<Arc<dyn Kind>> {
        let activation = self.activation.then(activation)?;
        Some(OpKind::arc(Self { activation, ..*self }))
    }
}

/// Whether a tensor of quantized values is signed.
pub(crate) fn is_signed_8_bit(meta: &TensorMeta) -> Result<bool> {
    match meta.dtype() {
        ScalarType::Char => Ok(true),
        ScalarType::Byte => Ok(false),
        _ => refuse(format!("a tensor is {meta}, expected int8 or uint8")),
    }
}

/// Checks that `x` can be the input.
pub(crate) fn check_input(input: &QuantizedInput, x: &TensorMeta) -> Result<()> {
    let is_float = x.dtype() == ScalarType::Float;
    match *input {
        QuantizedInput::Quantized(affine) => {
            is_signed_8_bit(x)?;
            check_affine(&affine)
        }
        QuantizedInput::ByTensor { low, high, eps } => {
            let is_sound = -128 <= low && low < high && high <= 127 && eps > 0.0 && eps.is_finite();
            match is_sound && is_float {
                true => Ok(()),
                false => {
                    refuse(format!("{x} cannot be quantized to {low}..={high} with the minimum scale {eps}"))
                }
            }
        }
        QuantizedInput::ByRow | QuantizedInput::ByFactorOfRow if !is_float => {
            refuse(format!("the input is {x}, expected float32 to quantize by row"))
        }
        QuantizedInput::ByRow | QuantizedInput::ByFactorOfRow => Ok(()),
    }
}

/// Checks that the scale is finite and the zero point is small enough for accumulators of 32 bits.
fn check_affine(affine: &Affine) -> Result<()> {
    match affine.scale.is_finite() && affine.zero.unsigned_abs() < 1 << 16 {
        true => Ok(()),
        false => refuse(format!("the scale or zero point of {affine:?} is out of range")),
    }
}

/// Checks that the weights are int8 and the scales float32: `count` of them or, if `single_allowed`, one for all.
pub(crate) fn check_weights<'g>(
    operands: &Operands<'g>,
    count: usize,
    single_allowed: bool,
) -> Result<&'g TensorMeta> {
    let (weights, scale_meta) = (operands.constant(1)?, operands.constant(2)?);
    if weights.dtype() != ScalarType::Char {
        return refuse(format!("the weights are {weights}, expected int8"));
    }
    let fits = scale_meta.numel() == count || single_allowed && scale_meta.numel() == 1;
    match fits && scale_meta.dtype() == ScalarType::Float {
        true => Ok(weights),
        false => refuse(format!("the scales are {scale_meta}, expected {count} of float32")),
    }
}

/// Checks the bias, operand 3, if `present`: it is f32, or int32 in the scale of the accumulators.
pub(crate) fn check_bias(operands: &Operands<'_>, present: bool, len: usize) -> Result<()> {
    if !present {
        return Ok(());
    }
    let bias = operands.constant(3)?;
    match bias.numel() == len && matches!(bias.dtype(), ScalarType::Float | ScalarType::Int) {
        true => Ok(()),
        false => refuse(format!("the bias is {bias}, expected {len} constants of float32 or int32")),
    }
}

/// Checks that the result is f32, or quantized with valid parameters and a simple activation.
pub(crate) fn check_output(
    operands: &Operands<'_>,
    output: Option<&Quantization>,
    activation: Activation,
) -> Result<()> {
    let out = operands.output(0)?;
    let is_sound = match output {
        None => is_float(out),
        Some(q) => q.is_sound(is_signed_8_bit(out)?) && activation.is_simple(),
    };
    match is_sound {
        true => Ok(()),
        false => refuse(format!("the result {out} does not support {output:?} with {activation:?}")),
    }
}
