//! Quantized convolution.

use super::conv::{conv_weights, stored_weights};
use super::lowering::{Lower, Lowered, Lowering};
use super::pack_store::ConvPack;
use super::packs::Packed;
use super::quantized_linear::{SumBias, quantize_row_for};
use super::step::{Step, Writes, only_output};
use super::weights::view_of;
use crate::ops::conv::conv_frame;
use crate::ops::quantized_conv::QuantizedConvolution;
use crate::ops::quantized_linear::QuantizedInput;
use pteron_kernels::compute::{ConvFrame, ConvParams, Isa, Layout, Method};
use pteron_kernels::compute::{QuantizedConv, QuantizedConvOut, QuantizedImages};
use pteron_operator::{KernelContext, Result};
use pteron_tensor::{ScalarType, TensorView};
use std::sync::Arc;

impl Lower for QuantizedConvolution {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let (meta, source) = stored_weights(node, 1)?;
        let frame = conv_frame(node.input(0)?, node.output(0)?, self.conv.space);
        let (params, frame) = column_to_row(self.conv.params, frame);
        let (isa, scales) = (node.isa(), node.constant_view(2)?);
        let (layout, method) = (Layout::ChannelsLast, Method::Direct);
        let form = ConvPack { params, layout, order: *meta.dim_order(), method };
        let conv = node.packs.packed_quantized_conv(isa, &source, form, scales.bytes(), || {
            let stored = view_of(&source, &meta)?;
            let weights = conv_weights(&params, &meta, stored.storage()?);
            Ok(QuantizedConv::of(isa, params, &weights, scales.storage()?)?)
        })?;
        let bias = SumBias::of(node, self.conv.bias, 3)?;
        Ok(Lowered::step(QuantizedConvStep { spec: *self, conv, frame, bias, isa }, [0]))
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
    isa: Isa,
}

impl Step for QuantizedConvStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let (x, out) = (&reads[0], only_output(&mut writes)?);
        let activation = self.spec.conv.activation;
        let epilogue = self.bias.epilogue(activation);
        if let QuantizedInput::Quantized(affine) = self.spec.input {
            let images = QuantizedImages { bytes: x.bytes(), signed: x.dtype() == ScalarType::Char, affine };
            let to = match self.spec.output {
                Some(q) => QuantizedConvOut::Quantized(out.bytes_mut(), q),
                None => QuantizedConvOut::Real(out.storage_mut()?),
            };
            self.conv.run(ctx.pool(), &self.frame, images, to, &epilogue);
            return Ok(());
        }
        let images = x.storage::<f32>()?;
        let is_one = matches!(self.spec.input, QuantizedInput::ByTensor { .. });
        let parts = if is_one { 1 } else { self.frame.batch.max(1) };
        let frame = ConvFrame { batch: self.frame.batch / parts, ..self.frame };
        let (each, each_out) = (images.len() / parts, out.as_view().numel() / parts);
        let mut quantized = ctx.scratch::<u8>(each)?;
        for part in 0..parts {
            let at = (ctx.pool(), self.isa);
            let image = &images[part * each..][..each];
            let affine = quantize_row_for(&self.spec.input, at, image, &mut quantized);
            let images = QuantizedImages { bytes: &quantized, signed: true, affine };
            let to = match self.spec.output {
                Some(q) => {
                    QuantizedConvOut::Quantized(&mut out.bytes_mut()[part * each_out..][..each_out], q)
                }
                None => QuantizedConvOut::Real(&mut out.storage_mut()?[part * each_out..][..each_out]),
            };
            self.conv.run(ctx.pool(), &frame, images, to, &epilogue);
        }
        Ok(())
    }
}
