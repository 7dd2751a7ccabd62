//! Quantized convolution.

use super::conv::{Convolution, check_conv, frame, stored_weights, weights_of};
use super::quantized_linear::{SumBias, check_affine, check_bias, check_output, check_weights, signed};
use super::{Step, Writes, only};
use crate::graph::Kind;
use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::{Images, Lowered, Lowering, OpKind, Operation, view_of};
use crate::pack_store::ConvPack;
use crate::packs::Packed;
use pteron_kernels::compute::{Activation, Affine, ConvFrame, ConvParams, Layout, Method, Quantization};
use pteron_kernels::compute::{QuantizedConv, QuantizedConvOut, QuantizedImages};
use pteron_operator::{KernelContext, Result};
use pteron_tensor::{ScalarType, TensorView};
use std::fmt;
use std::sync::Arc;

/// As [`Convolution`] on quantized values, not transposed and without residual, with exact integer accumulation.
/// Inputs: image (`Char` or `Byte`), weights (`Char`, constant), one scale for all weights or one for each output
/// channel (constant), and optionally the bias (constant): f32, or `Int` values that are added to the accumulators
/// before these are scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedConvolution {
    /// The parameters of the convolution.
    pub conv: Convolution,
    /// The scale and zero point of the image; the zero point is in range of the image's element type.
    pub input: Affine,
    /// The quantization of the result; `None` if the result is f32.
    pub output: Option<Quantization>,
}

impl Operation for QuantizedConvolution {
    fn name(&self) -> &str {
        "quantized_conv"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.conv.attributes(f)?;
        write!(f, ", scale: {}, zero: {}", self.input.scale, self.input.zero)
    }

    fn operand_layout(&self, i: usize, inputs: usize) -> LayoutReq {
        if i == 0 || i >= inputs { LayoutReq::Image(Layout::ChannelsLast) } else { LayoutReq::RowMajor }
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(3 + usize::from(self.conv.bias), 1)?;
        check_conv(&self.conv, operands)?;
        let channels = self.conv.params.out_channels;
        check_weights(operands, channels, true)?;
        check_bias(operands, self.conv.bias, channels)?;
        if self.conv.residual || !QuantizedConv::supports(&self.conv.params) {
            return refuse("this convolution has no quantized form");
        }
        check_affine(&self.input)?;
        let least = if signed(operands.input(0)?)? { -128 } else { 0 };
        if !(least..=least + 255).contains(&self.input.zero) {
            return refuse(format!("the zero point {} is out of range of the input", self.input.zero));
        }
        check_output(operands, self.output.as_ref(), self.conv.activation)
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let (meta, source) = stored_weights(node, 1)?;
        let frame = frame(node.input(0)?, node.output(0)?, self.conv.space);
        let (params, frame) = column_to_row(self.conv.params, frame);
        let (isa, scales) = (node.isa(), node.constant(2)?);
        let (layout, method) = (Layout::ChannelsLast, Method::Direct);
        let form = ConvPack { params, layout, order: *meta.dim_order(), method };
        let conv = node.packs.quantized_conv(isa, &source, form, scales.bytes(), || {
            let stored = view_of(&source, &meta)?;
            let weights = weights_of(&params, &meta, stored.storage()?);
            Ok(QuantizedConv::of(isa, params, &weights, scales.storage()?)?)
        })?;
        let bias = SumBias::of(node, self.conv.bias, 3)?;
        Ok(Lowered::step(QuantizedConvStep { spec: *self, conv, frame, bias }, [0]))
    }

    fn with_activation(&self, activation: Activation) -> Option<Arc<dyn Kind>> {
        let activation = self.conv.activation.then(activation)?;
        Some(OpKind::arc(Self { conv: Convolution { activation, ..self.conv }, ..*self }))
    }

    fn images(&self) -> Images {
        match self.conv.layout {
            Layout::ChannelsFirst => {
                let conv = Convolution { layout: Layout::ChannelsLast, ..self.conv };
                Images::Prefers { kind: OpKind::arc(Self { conv, ..*self }), residual: false }
            }
            Layout::ChannelsLast => Images::None,
        }
    }
}

/// Turns the convolution of a one-column image into that of a one-row image by swapping height and width: neighbouring
/// pixels of a row are loaded together, those of a column one by one.
fn column_to_row(mut params: ConvParams, mut frame: ConvFrame) -> (ConvParams, ConvFrame) {
    let is_column = frame.input[2] == 1 && frame.output[2] == 1;
    if is_column && params.kernel[2] == 1 && params.padding[2] == 0 {
        let ConvParams { kernel, stride, padding, dilation, .. } = &mut params;
        let all = [kernel, stride, padding, dilation, &mut frame.input, &mut frame.output];
        all.into_iter().for_each(|sizes| sizes.swap(1, 2));
    }
    (params, frame)
}

struct QuantizedConvStep {
    spec: QuantizedConvolution,
    conv: Arc<Packed<QuantizedConv>>,
    frame: ConvFrame,
    bias: SumBias,
}

impl Step for QuantizedConvStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let (x, out) = (&reads[0], only(&mut writes)?);
        let activation = self.spec.conv.activation;
        let epilogue = self.bias.epilogue(activation);
        let signed = x.dtype() == ScalarType::Char;
        let images = QuantizedImages { bytes: x.bytes(), signed, affine: self.spec.input };
        let to = match self.spec.output {
            Some(q) => QuantizedConvOut::Quantized(out.bytes_mut(), q),
            None => QuantizedConvOut::Real(out.storage_mut()?),
        };
        self.conv.run(ctx.pool(), &self.frame, images, to, &epilogue);
        Ok(())
    }
}
