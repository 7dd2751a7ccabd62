//! Convolutions of quantized values.

use super::conv::{Convolution, frame, stored_weights, weights_of};
use super::quantized_linear::SumBias;
use super::{Step, Writes, only};
use crate::graph::Kind;
use crate::layouts::Lies;
use crate::operation::{Fused, Images, Lowered, Lowering, Operation, viewed};
use crate::pack_store::ConvForm;
use crate::packs::Packed;
use kernels::compute::{Activation, Affine, ConvFrame, ConvParams, Layout, Method, Quantization};
use kernels::compute::{QuantizedConv, QuantizedConvOut, QuantizedImages};
use operator::{KernelContext, Result};
use std::fmt;
use std::sync::Arc;
use tensor::{ScalarType, TensorView};

/// As [`Convolution`], not transposed and without residual, of quantized values, summed exactly. Inputs: image
/// (`Char` or `Byte`), weights (`Char`, constant), one scale for all or one for each output channel (constant), and
/// where it is there, the bias (constant): of f32, or as `Int` values that are added to the sums before these are
/// scaled.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedConvolution {
    /// What it is but for the quantized values.
    pub conv: Convolution,
    /// What the values of the image stand for; the zero point is a number of its type.
    pub input: Affine,
    /// How the result is quantized; otherwise it is f32.
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

    fn lies(&self, i: usize, inputs: usize) -> Lies {
        if i == 0 || i >= inputs { Lies::Image(Layout::ChannelsLast) } else { Lies::Plain }
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let (meta, source) = stored_weights(node, 1)?;
        let frame = frame(node.input(0)?, node.output(0)?, self.conv.space);
        let (params, frame) = along_lines(self.conv.params, frame);
        let (isa, scales) = (node.isa(), node.constant(2)?);
        let (layout, method) = (Layout::ChannelsLast, Method::Direct);
        let form = ConvForm { params, layout, order: *meta.dim_order(), method };
        let conv = node.packs.quantized_conv(isa, &source, form, scales.bytes(), || {
            let stored = viewed(&source, &meta)?;
            let weights = weights_of(&params, &meta, stored.storage()?);
            Ok(QuantizedConv::of(isa, params, &weights, scales.storage()?)?)
        })?;
        let bias = SumBias::of(node, self.conv.bias, 3)?;
        Ok(Lowered::step(QuantizedConvStep { spec: *self, conv, frame, bias }, [0]))
    }

    fn with_activation(&self, activation: Activation) -> Option<Arc<dyn Kind>> {
        let activation = self.conv.activation.then(activation)?;
        Some(Fused::kind(Self { conv: Convolution { activation, ..self.conv }, ..*self }))
    }

    fn images(&self) -> Images {
        match self.conv.layout {
            Layout::ChannelsFirst => {
                let conv = Convolution { layout: Layout::ChannelsLast, ..self.conv };
                Images::Prefers { kind: Fused::kind(Self { conv, ..*self }), residual: false }
            }
            Layout::ChannelsLast => Images::None,
        }
    }
}

/// The same convolution with height and width exchanged, of images of one column: neighbouring pixels of a line are read
/// together, those of a column one by one.
fn along_lines(mut params: ConvParams, mut frame: ConvFrame) -> (ConvParams, ConvFrame) {
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
