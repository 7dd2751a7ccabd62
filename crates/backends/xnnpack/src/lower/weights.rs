//! Quantized weights and biases as constants of a payload, and dynamically quantized inputs.

use super::build::Builder;
use super::call::{Reason, floats};
use super::quantized::{Activation, Affine, Per, QuantizedOp, Weights};
use crate::payload::{Datatype, Op, Quantization, Scales};
use pteron_exported::VarId;
use pteron_tensor::bf16;
use std::sync::Arc;

impl Builder<'_> {
    /// The inputs of a quantized linear layer: input, weights and bias. `weight` is the dequantized weight tensor.
    pub(super) fn quantized_linear_inputs(
        &mut self,
        quantized: &QuantizedOp,
        weight: VarId,
        bias: Option<VarId>,
    ) -> Result<Vec<usize>, Reason> {
        let weights = &quantized.weights;
        let dims = self.dims(weight)?;
        let input = match quantized.activation {
            Activation::Static(int8, _) => self.as_nchw(int8)?,
            Activation::Dynamic(x) => self.quantized_rows(x)?,
        };
        let filter = match weights.per {
            Per::Group(_) | Per::Channel { four_bits: true, .. } => self.int4_weights(weights, dims)?,
            _ => {
                let bytes = self.part.row_major_bytes(weights.elements);
                let value =
                    self.add_constant(bytes.map_or_else(Vec::new, |data| data.bytes().to_vec()), dims);
                self.set_weights(value, weights, 0);
                value
            }
        };
        let mut inputs = vec![input, filter];
        if let Some(bias) = bias {
            inputs.push(match quantized.activation {
                Activation::Static(_, input) => self.quantized_bias(bias, input, weights),
                Activation::Dynamic(_) => self.as_nchw(bias)?,
            });
        }
        Ok(inputs)
    }

    /// A float value, dynamically quantized per row.
    fn quantized_rows(&mut self, x: VarId) -> Result<usize, Reason> {
        let input = self.as_nchw(x)?;
        Ok(self.dynamically_quantized(input, 1))
    }

    /// A batch of images, each dynamically quantized with parameters of its own.
    pub(super) fn quantized_images(&mut self, x: VarId) -> Result<usize, Reason> {
        let input = self.as_nhwc(x)?;
        Ok(self.dynamically_quantized(input, 3))
    }

    /// A dynamically quantized value, whose last `num_nonbatch_dims` dimensions share a scale.
    fn dynamically_quantized(&mut self, input: usize, num_nonbatch_dims: usize) -> usize {
        if let Some(&known) = self.dynamic_values.get(&(input, num_nonbatch_dims)) {
            return known;
        }
        let dims = self.dims_of_value(input).to_vec();
        let value = self.add_temporary(dims, input);
        self.set_type(value, Datatype::Qdint8, Quantization::PerToken { num_nonbatch_dims });
        self.add_node(Op::Convert, vec![input], vec![value]);
        self.dynamic_values.insert((input, num_nonbatch_dims), value);
        value
    }

    /// 8-bit weights whose elements were permuted; `channel` is the channel dimension.
    pub(super) fn int8_weights(
        &mut self,
        weights: &Weights,
        elements: &[f32],
        dims: Vec<usize>,
        channel: usize,
    ) -> usize {
        let value = self.add_constant(elements.iter().map(|&n| n as i8 as u8).collect(), dims);
        self.set_weights(value, weights, channel);
        value
    }

    fn set_weights(&mut self, value: usize, weights: &Weights, channel: usize) {
        match weights.per {
            Per::Tensor => {
                let quantization = Quantization::PerTensor { scale: weights.scales[0], zero_point: 0 };
                self.set_type(value, Datatype::Qint8, quantization);
            }
            _ => {
                let scales = self.scales(&weights.scales);
                let quantization = Quantization::PerChannel { scales, channel_dim: channel };
                self.set_type(value, Datatype::Qcint8, quantization);
            }
        }
    }

    fn scales(&mut self, scales: &[f32]) -> Scales {
        let bytes: Vec<u8> = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        Scales::Constant { index: self.add_constant_bytes("scale_", Arc::new(bytes)), count: scales.len() }
    }

    /// 4-bit weights: two values per byte, low nibble first, with an offset of 8. Rows are padded to whole bytes.
    fn int4_weights(&mut self, weights: &Weights, dims: Vec<usize>) -> Result<usize, Reason> {
        let &[_, columns] = &dims[..] else { return Err("weights of four bits are no matrix".to_owned()) };
        let elements = self.part.row_major_bytes(weights.elements);
        let bytes = elements.as_ref().map_or(&[][..], |data| data.bytes());
        let number = |byte: &u8| (*byte as i8 + 8) as u8 & 15;
        let packed = bytes.chunks(columns.max(1)).flat_map(|row| {
            row.chunks(2).map(move |pair| number(&pair[0]) | pair.get(1).map_or(8, number) << 4)
        });
        let value = self.add_constant(packed.collect(), dims);
        match weights.per {
            Per::Group(group_size) => {
                // The reference's runtime reads group scales as bf16.
                let halves = weights.scales.iter().map(|&scale| bf16::from_f32(scale));
                let bytes: Vec<u8> = halves.flat_map(|half| half.to_bits().to_le_bytes()).collect();
                let scales = Scales::Constant {
                    index: self.add_constant_bytes("scale_", Arc::new(bytes)),
                    count: weights.scales.len(),
                };
                let quantization = Quantization::PerGroup { scales, channel_dim: 0, group_size };
                self.set_type(value, Datatype::Qbint4, quantization);
            }
            _ => {
                let scales = self.scales(&weights.scales);
                let quantization = Quantization::PerChannel { scales, channel_dim: 0 };
                self.set_type(value, Datatype::Qcint4, quantization);
            }
        }
        Ok(value)
    }

    /// A bias quantized with the scale of the accumulators: input scale times weight scale.
    pub(super) fn quantized_bias(&mut self, bias: VarId, input: Affine, weights: &Weights) -> usize {
        let dequantized = floats(self.part, bias);
        let scales: Vec<f32> = weights.scales.iter().map(|scale| scale * input.scale).collect();
        let scale = |i: usize| scales[if scales.len() == 1 { 0 } else { i % scales.len() }];
        let quantized =
            dequantized.iter().enumerate().map(|(i, real)| (real / scale(i)).round_ties_even() as i32);
        let bytes = quantized.flat_map(i32::to_le_bytes).collect();
        let value = self.add_constant(bytes, vec![dequantized.len()]);
        if weights.per == Per::Tensor {
            let quantization = Quantization::PerTensor { scale: scales[0], zero_point: 0 };
            self.set_type(value, Datatype::Qint32, quantization);
        } else {
            let scales = self.scales(&scales);
            self.set_type(value, Datatype::Qcint32, Quantization::PerChannel { scales, channel_dim: 0 });
        }
        value
    }
}
