//! Convolutions of images that are quantized with parameters chosen at run time.

use super::Raise;
use super::image::Spec;
use super::quantized::convolution_of;
use crate::error::{Result, fail};
use crate::layout::LayoutViews;
use crate::payload::{Conv, Datatype, Node, Op as NodeOp, Quantization};
use pteron_engine::{QuantizedConvolution, QuantizedInput, ValueId};
use pteron_kernels::compute::PackedWeights;
use pteron_tensor::{ScalarType, Tensor};

impl Raise<'_> {
    /// Whether a convolution with a dynamically quantized input becomes one node.
    pub(super) fn is_dynamic_convolution(&self, node: &Node, conv: &Conv) -> bool {
        let value = &self.payload.values[node.inputs[1]];
        let is_known = match (value.datatype, &value.quantization) {
            (Datatype::Qint8, Quantization::PerTensor { zero_point: 0, .. }) => true,
            (Datatype::Qcint8, Quantization::PerChannel { channel_dim, .. }) => *channel_dim == 0,
            _ => false,
        };
        let taps = conv.kernel.iter().fold(conv.group_inputs, |n, &size| n.saturating_mul(size));
        let is_float = self.quantizer(node.outputs[0]).is_none();
        let has_elements = self.dims(node.inputs[0]).iter().all(|&n| n > 0);
        let is_full = conv.groups == 1 || conv.group_inputs > 1;
        matches!(node.op, NodeOp::Conv(_))
            && is_known
            && is_float
            && is_full
            && has_elements
            && taps <= PackedWeights::MAX_ROWS
            && value.constant_index().is_some()
    }

    /// A convolution of float images that it quantizes, each with parameters of its own.
    pub(super) fn dynamic_convolution(&mut self, node: &Node, x: ValueId, spec: &Spec) -> Result<ValueId> {
        let filter = node.inputs[1];
        let (scales, outputs) =
            (self.data.scales(&self.payload.values[filter].quantization)?, spec.conv.outputs());
        if scales.len() != 1 && scales.len() != outputs {
            return fail(format!("{} scales for {outputs} outputs", scales.len()));
        }
        let elements = self.nhwc(filter)?;
        let mut ids = vec![x, self.filter_of(spec, elements)?];
        ids.push(self.emit.computed_constant(Tensor::from_slice(&[scales.len()], &scales)?)?);
        if let Some(&bias) = node.inputs.get(2) {
            ids.push(self.float_bias(node, bias)?);
        }
        let conv = pteron_engine::Convolution { bias: ids.len() > 3, ..convolution_of(spec) };
        let op = QuantizedConvolution { conv, input: QuantizedInput::ByRow, output: None };
        let id = self.emit.node(op, ids, ScalarType::Float, &spec.out)?;
        self.as_stored(node, id)
    }
}
