//! Quantized convolution.

use super::conv::{Convolution, check_conv};
use super::quantized_linear::{
    QuantizedInput, check_bias, check_input, check_output, check_weights, is_signed_8_bit,
};
use crate::graph::Kind;
use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::{ImageLayouts, OpKind, Operation};
use pteron_kernels::compute::QuantizedConv;
use pteron_kernels::compute::{Activation, Layout, Quantization};
use pteron_operator::Result;
use std::fmt;
use std::sync::Arc;

/// As [`Convolution`] on quantized values, not transposed and without residual, with exact integer accumulation.
/// Inputs: image, weights (`Char`, constant), one scale for all weights or one for each output
/// channel (constant), and optionally the bias (constant): f32, or `Int` values that are added to the accumulators
/// before these are scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedConvolution {
    /// The parameters of the convolution.
    pub conv: Convolution,
    /// The form of the images, and how they are quantized: a row is an image. The zero point of quantized values is in range of their
    /// type.
    pub input: QuantizedInput,
    /// The quantization of the result; `None` if the result is f32.
    pub output: Option<Quantization>,
}

impl Operation for QuantizedConvolution {
    fn name(&self) -> &str {
        "quantized_conv"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.conv.attributes(f)?;
        match self.input {
            QuantizedInput::Quantized(affine) => {
                write!(f, ", scale: {}, zero: {}", affine.scale, affine.zero)
            }
            dynamic => write!(f, ", input: {dynamic:?}"),
        }
    }

    fn operand_layout(&self, i: usize, inputs: usize) -> LayoutReq {
        if i == 0 || i >= inputs { LayoutReq::Image(Layout::ChannelsLast) } else { LayoutReq::RowMajor }
    }

    fn keeps_rows_apart(&self, _: &Operands<'_>) -> bool {
        matches!(self.input, QuantizedInput::Quantized(_))
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(3 + usize::from(self.conv.bias), 1)?;
        check_conv(&self.conv, operands)?;
        let channels = self.conv.params.out_channels;
        check_weights(operands, channels, true)?;
        check_bias(operands, self.conv.bias, channels)?;
        if self.conv.residual || !QuantizedConv::supports(&self.conv.params) {
            return refuse("this convolution has no quantized form");
        }
        check_input(&self.input, operands.input(0)?)?;
        if let QuantizedInput::Quantized(affine) = self.input {
            let least = if is_signed_8_bit(operands.input(0)?)? { -128 } else { 0 };
            if !(least..=least + 255).contains(&affine.zero) {
                return refuse(format!("the zero point {} is out of range of the input", affine.zero));
            }
        }
        check_output(operands, self.output.as_ref(), self.conv.activation)
    }

    fn with_activation(&self, activation: Activation) -> Option<Arc<dyn Kind>> {
        let activation = self.conv.activation.then(activation)?;
        Some(OpKind::arc(Self { conv: Convolution { activation, ..self.conv }, ..*self }))
    }

    fn image_layouts(&self) -> ImageLayouts {
        match self.conv.layout {
            Layout::ChannelsFirst => {
                let conv = Convolution { layout: Layout::ChannelsLast, ..self.conv };
                ImageLayouts::Prefers { kind: OpKind::arc(Self { conv, ..*self }), residual: false }
            }
            Layout::ChannelsLast => ImageLayouts::None,
        }
    }
}
