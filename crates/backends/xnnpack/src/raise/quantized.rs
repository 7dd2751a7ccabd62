//! Nodes on quantized values, with the reference's arithmetic: integer accumulation, one multiplication by
//! `input scale * weight scale / output scale`, and rounding of halves to even.
//!
//! Values are kept in units of their own scale where that avoids a rounding: a tensor that is dequantized with a scale
//! of 1 holds integers, which f32 adds and multiplies exactly.

use super::Raise;
use super::decoded::Encoding;
use super::emit::Arg;
use super::image::Spec;
use crate::error::{Error, Result, fail, fail_sizes};
use crate::layout::LayoutViews;
use crate::payload::{Binary, Datatype, Node, Op as NodeOp, Quantization};
use pteron_engine::{Affine, Dequantize, Quantize, QuantizedConvolution, QuantizedInput, QuantizedLinear};
use pteron_engine::{Relayout, SumOfQuantized, ValueId, WeightBits};
use pteron_kernels::compute::{Activation, ConvParams, Layout, PackedWeights, QuantizedConv, QuantizedSum};
use pteron_tensor::memory::{collected, filled};
use pteron_tensor::{ScalarType, Tensor, TensorView};

/// Maximum number of pixels of an 8-bit image whose exact sum can be recovered from its rounded mean: as long as the
/// sum is below 2^22, the error of mean times pixels is less than one half.
const MAX_PIXELS_FROM_MEAN: usize = (1 << 22) / 256;

/// Per-tensor quantization parameters of an 8-bit value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Quantizer {
    pub(super) scale: f32,
    pub(super) zero: i32,
    pub(super) signed: bool,
}

impl Quantizer {
    /// The smallest quantized value of the type.
    pub(super) fn min(&self) -> i32 {
        if self.signed { -128 } else { 0 }
    }

    /// Quantizes a float.
    pub(super) fn quantize(&self, x: f32) -> i32 {
        let number = (x / self.scale).round_ties_even() as i32;
        number.saturating_add(self.zero).clamp(self.min(), self.min() + 255)
    }

    fn affine(&self) -> Affine {
        Affine { scale: self.scale, zero: self.zero }
    }

    /// The parameters that dequantize to units of the scale: the same zero point with scale 1.
    fn unit_affine(&self) -> Affine {
        Affine { scale: 1.0, zero: self.zero }
    }

    /// Quantization with these parameters, clamped to float bounds.
    fn quantization_within(&self, affine: Affine, (low, high): (f32, f32)) -> pteron_engine::Quantization {
        pteron_engine::Quantization { affine, low: self.quantize(low), high: self.quantize(high) }
    }
}

impl Raise<'_> {
    /// The quantization parameters of a value, if it is 8-bit with per-tensor quantization.
    pub(super) fn quantizer(&self, v: usize) -> Option<Quantizer> {
        let value = &self.payload.values[v];
        let signed = match value.datatype {
            Datatype::Qint8 => true,
            Datatype::Quint8 => false,
            _ => return None,
        };
        match value.quantization {
            Quantization::PerTensor { scale, zero_point } => {
                Some(Quantizer { scale, zero: zero_point, signed })
            }
            _ => None,
        }
    }

    fn dequantize(&mut self, id: ValueId, affine: Affine) -> Result<ValueId> {
        let sizes = self.emit.sizes(id);
        self.emit.node(Dequantize(affine), vec![id], ScalarType::Float, &sizes)
    }

    fn quantize(&mut self, id: ValueId, q: Quantizer, affine: Affine, bounds: (f32, f32)) -> Result<ValueId> {
        let id = self.emit.cast(id, ScalarType::Float)?;
        let (sizes, dtype) =
            (self.emit.sizes(id), if q.signed { ScalarType::Char } else { ScalarType::Byte });
        self.emit.node(Quantize(q.quantization_within(affine, bounds)), vec![id], dtype, &sizes)
    }

    /// Dequantizes value `v`, of which `id` is the graph value in any layout. Float values are returned unchanged.
    pub(super) fn dequantize_value(&mut self, v: usize, id: ValueId) -> Result<ValueId> {
        match (self.quantizer(v), self.datatype(v)) {
            (Some(q), _) => self.dequantize(id, q.affine()),
            (None, Datatype::Fp32 | Datatype::Fp16 | Datatype::Bf16) => Ok(id),
            (None, other) => fail(format!("an input of {} is not supported here", other.name())),
        }
    }

    /// As [`Self::dequantize_value`], but quantized values are returned in units of their scale.
    pub(super) fn dequantize_to_units(&mut self, v: usize, id: ValueId) -> Result<ValueId> {
        match self.quantizer(v) {
            Some(q) => self.dequantize(id, q.unit_affine()),
            None => self.dequantize_value(v, id),
        }
    }

    /// Converts a node's float result to the type and quantization of its output, clamped to the node's bounds.
    pub(super) fn as_stored(&mut self, node: &Node, id: ValueId) -> Result<ValueId> {
        match self.quantizer(node.outputs[0]) {
            Some(_) => self.as_stored_within(node, id, node.bounds),
            None => {
                let id = self.clamp_to_bounds(node, id)?;
                self.as_stored_within(node, id, node.bounds)
            }
        }
    }

    /// Converts a node's float result to the type and quantization of its output. Only quantized outputs are clamped
    /// to `bounds`.
    pub(super) fn as_stored_within(
        &mut self,
        node: &Node,
        id: ValueId,
        bounds: (f32, f32),
    ) -> Result<ValueId> {
        let out = node.outputs[0];
        match (self.quantizer(out), self.datatype(out)) {
            (Some(q), _) => self.quantize(id, q, q.affine(), bounds),
            (None, Datatype::Fp32 | Datatype::Fp16 | Datatype::Bf16) => {
                self.emit.cast(id, self.datatype(out).scalar_type())
            }
            _ => Err(self.unsupported_error(node)),
        }
    }

    /// Quantizes a node's result, which is in units of its output's scale, and clamps it to the node's bounds.
    pub(super) fn as_stored_from_units(&mut self, node: &Node, id: ValueId, q: Quantizer) -> Result<ValueId> {
        self.quantize(id, q, q.unit_affine(), node.bounds)
    }

    /// Clamps quantized values to a node's bounds, without requantization.
    pub(super) fn clamp_quantized(&mut self, node: &Node, id: ValueId, q: Quantizer) -> Result<ValueId> {
        if !node.is_bounded() {
            return Ok(id);
        }
        let units = self.dequantize(id, q.unit_affine())?;
        let (low, high) = (q.quantize(node.bounds.0) - q.zero, q.quantize(node.bounds.1) - q.zero);
        let (sizes, args) = (
            self.emit.sizes(units),
            vec![Arg::Tensor(units), Arg::Double(f64::from(low)), Arg::Double(f64::from(high))],
        );
        let id = self.emit.call("aten::clamp.out", args, ScalarType::Float, &sizes)?;
        self.as_stored_from_units(node, id, q)
    }

    /// Sums, differences and products of quantized values, with the reference's arithmetic. `None` for other nodes.
    pub(super) fn quantized_binary(
        &mut self,
        node: &Node,
        f: Binary,
        ids: [ValueId; 2],
        sizes: &[usize],
    ) -> Result<Option<ValueId>> {
        let [a, b] = node.inputs[..] else { return Ok(None) };
        let (Some(qa), Some(qb), Some(out)) =
            (self.quantizer(a), self.quantizer(b), self.quantizer(node.outputs[0]))
        else {
            return Ok(None);
        };
        if f == Binary::Multiply {
            let (x, y) =
                (self.dequantize(ids[0], qa.unit_affine())?, self.dequantize(ids[1], qb.unit_affine())?);
            let factors = vec![Arg::Tensor(x), Arg::Tensor(y)];
            let id = self.emit.call("aten::mul.out", factors, ScalarType::Float, sizes)?;
            let id = self.multiply(id, qa.scale * qb.scale / out.scale)?;
            return self.as_stored_from_units(node, id, out).map(Some);
        }
        if !matches!(f, Binary::Add | Binary::Subtract) {
            return Ok(None);
        }
        let sign = if f == Binary::Add { 1.0 } else { -1.0 };
        let factors = QuantizedSum::factors(qa.scale / out.scale, sign * qb.scale / out.scale);
        let Some((factors, shift)) = factors.filter(|_| qa.signed == out.signed && qb.signed == out.signed)
        else {
            return Ok(None);
        };
        let sum = QuantizedSum {
            factors,
            zeros: [qa.zero, qb.zero],
            shift,
            zero: out.zero,
            low: out.quantize(node.bounds.0),
            high: out.quantize(node.bounds.1),
            signed: out.signed,
        };
        let ids = vec![self.emit.expand(ids[0], sizes)?, self.emit.expand(ids[1], sizes)?];
        let dtype = self.emit.dtype(ids[0]);
        self.emit.node(SumOfQuantized(sum), ids, dtype, sizes).map(Some)
    }

    /// The mean over height and width of a quantized image, as the output stores it: the sum in units of the scale,
    /// which is an integer, times the reciprocal of the number of pixels, times the ratio of the scales, where each
    /// product is rounded to f32. The zero point is added before halves are rounded to even.
    pub(super) fn quantized_mean(&mut self, node: &Node, image: ValueId, from: Quantizer) -> Result<ValueId> {
        let Some(to) = self.quantizer(node.outputs[0]) else { return Err(self.unsupported_error(node)) };
        let x = self.dequantize_to_units(node.inputs[0], image)?;
        let sizes = self.emit.sizes(x);
        let args = vec![Arg::Tensor(x), Arg::Ints(vec![2, 3]), Arg::Bool(true), Arg::Absent];
        let (out, pixels) = ([sizes[0], sizes[1], 1, 1], sizes[2] * sizes[3]);
        let sum = if pixels <= MAX_PIXELS_FROM_MEAN {
            // The graph has an efficient step for means of images. Mean times pixels, rounded, is the exact sum.
            let mean = self.emit.call("aten::mean.out", args, ScalarType::Float, &out)?;
            let near = self.multiply(mean, pixels as f32)?;
            self.emit.call("aten::round.out", vec![Arg::Tensor(near)], ScalarType::Float, &out)?
        } else {
            self.emit.call("aten::sum.IntList_out", args, ScalarType::Float, &out)?
        };
        let mean = self.multiply(sum, 1.0 / pixels as f32)?;
        let mean = self.multiply(mean, from.scale / to.scale)?;
        let zero = self.add_scalar_constant(to.zero as f32)?;
        let args = vec![Arg::Tensor(mean), Arg::Tensor(zero), Arg::Int(1)];
        let id = self.emit.call("aten::add.out", args, ScalarType::Float, &out)?;
        self.quantize(id, to, Affine { scale: 1.0, zero: 0 }, node.bounds)
    }

    fn add_scalar_constant(&mut self, x: f32) -> Result<ValueId> {
        self.emit.computed_constant(Tensor::from_slice(&[1], &[x])?)
    }

    fn multiply(&mut self, id: ValueId, factor: f32) -> Result<ValueId> {
        let (sizes, factor) = (self.emit.sizes(id), self.add_scalar_constant(factor)?);
        self.emit.call("aten::mul.out", vec![Arg::Tensor(id), Arg::Tensor(factor)], ScalarType::Float, &sizes)
    }

    pub(super) fn convert(&mut self, node: &Node) -> Result<()> {
        let (v, out) = (node.inputs[0], node.outputs[0]);
        if let Quantization::PerToken { num_nonbatch_dims } = self.payload.values[out].quantization {
            if !matches!(self.datatype(v), Datatype::Fp32 | Datatype::Fp16 | Datatype::Bf16) {
                return Err(self.unsupported_error(node));
            }
            let dims = self.dims(v);
            if num_nonbatch_dims > dims.len() {
                return fail(format!(
                    "{num_nonbatch_dims} dimensions that share parameters of {}",
                    dims.len()
                ));
            }
            let slot = &mut self.values[out];
            (slot.dims, slot.dynamic_source) = (Some(dims), Some(v));
            return Ok(());
        }
        let layout = self.available_layout(v)?;
        let id = layout.id();
        if self.payload.values[v].quantization == self.payload.values[out].quantization
            && self.datatype(v) == self.datatype(out)
        {
            return self.set_like(node, layout, id);
        }
        if let (Some(from), Some(to)) = (self.quantizer(v), self.quantizer(out))
            && let Some(id) = self.quantized_leaky_relu(node, id, 1.0, (from, to))?
        {
            return self.set_like(node, layout, id);
        }
        let x = self.dequantize_value(v, id)?;
        let id = self.as_stored_within(node, x, (f32::NEG_INFINITY, f32::INFINITY))?;
        self.set_like(node, layout, id)
    }

    /// Raises a node that has a dynamically quantized input.
    pub(super) fn raise_dynamically_quantized(&mut self, node: &Node) -> Result<()> {
        // No graph node has the quantized values of such an input: the convert node before only recorded the float
        // value (`Slot::dynamic_source`), and each reader quantizes it on its own. Linear layers do it row by row, and
        // most convolutions image by image, inside of one node. Others read an image that is quantized and
        // dequantized again.
        let source = |s: &Self, v: usize| s.values[v].dynamic_source.unwrap_or(v);
        if node.inputs[1..].iter().any(|&v| self.values[v].dynamic_source.is_some()) {
            return Err(self.unsupported_error(node));
        }
        let v = node.inputs[0];
        let shared = match self.payload.values[v].quantization {
            Quantization::PerToken { num_nonbatch_dims } => num_nonbatch_dims,
            _ => 1,
        };
        let x = source(self, v);
        match &node.op {
            NodeOp::FullyConnected { transposed: false } if shared == 1 => self.dynamic_linear(node, x),
            NodeOp::BatchMatMul { transposed } if shared == 1 => {
                self.dynamic_batch_mat_mul(node, x, *transposed)
            }
            NodeOp::Conv(conv) if shared == 3 => {
                let image = match self.is_dynamic_convolution(node, conv) {
                    true => self.nchw(x).and_then(|id| self.emit.cast(id, ScalarType::Float))?,
                    false => self.dynamically_quantized_image(x)?,
                };
                self.values[v].layouts.nchw = Some(image);
                self.convolution(node, conv)
            }
            NodeOp::DepthwiseConv(conv) if shared == 3 => {
                self.values[v].layouts.nchw = Some(self.dynamically_quantized_image(x)?);
                self.depthwise(node, conv)
            }
            NodeOp::ConvTranspose(conv) if shared == 3 => {
                self.values[v].layouts.nchw = Some(self.dynamically_quantized_image(x)?);
                self.transposed_convolution(node, conv)
            }
            _ => Err(self.unsupported_error(node)),
        }
    }

    fn dynamic_linear(&mut self, node: &Node, x: usize) -> Result<()> {
        let (filter, mut dims) = (node.inputs[1], self.dims(x));
        let value = &self.payload.values[filter];
        let &[outputs, inputs] = &value.dims[..] else { return Err(self.unsupported_error(node)) };
        if dims.last() != Some(&inputs) {
            return fail_sizes(format!("an input of {dims:?} for {inputs} inputs"));
        }
        if inputs > PackedWeights::MAX_ROWS {
            return fail(format!("{inputs} inputs are not supported here"));
        }
        let scales = self.data.scales(&value.quantization)?;
        let (bits, group) = match (value.datatype, &value.quantization) {
            (Datatype::Qint8, Quantization::PerTensor { zero_point: 0, .. }) => (WeightBits::Eight, inputs),
            (Datatype::Qcint8, Quantization::PerChannel { channel_dim: 0, .. }) => {
                (WeightBits::Eight, inputs)
            }
            (Datatype::Qcint4, Quantization::PerChannel { channel_dim: 0, .. }) => (WeightBits::Four, inputs),
            (Datatype::Qbint4, Quantization::PerGroup { group_size, .. }) => (WeightBits::Four, *group_size),
            _ => return Err(self.unsupported_error(node)),
        };
        let groups = inputs.div_ceil(group.max(1)).max(1);
        if scales.len() != groups * outputs && !(scales.len() == 1 && groups == 1) {
            return fail(format!("{} scales for {groups} groups of {outputs} outputs", scales.len()));
        }
        // From `[out, groups]` to `[groups, out]`.
        let by_group: Vec<f32> = match scales.len() == 1 || groups == 1 {
            true => scales,
            false => {
                let mut by_group = filled(groups * outputs, 0.0)?;
                for (g, to) in by_group.chunks_exact_mut(outputs.max(1)).enumerate() {
                    to.iter_mut()
                        .zip(scales[g..].iter().step_by(groups))
                        .for_each(|(to, &scale)| *to = scale);
                }
                by_group
            }
        };
        let weights = match bits {
            WeightBits::Eight => self.nhwc(filter)?,
            WeightBits::Four => self.decoded_weights(value, Encoding::Nibbles)?,
        };
        let scales = self.emit.computed_constant(Tensor::from_slice(&[by_group.len()], &by_group)?)?;
        let nhwc = self.nhwc(x)?;
        let mut ids = vec![self.emit.cast(nhwc, ScalarType::Float)?, weights, scales];
        if let Some(&bias) = node.inputs.get(2) {
            ids.push(self.float_bias(node, bias)?);
        }
        let op = QuantizedLinear {
            input: QuantizedInput::ByFactorOfRow,
            out_major: true,
            bits,
            group,
            bias: ids.len() > 3,
            activation: Activation::Identity,
            output: None,
        };
        let last = dims.len() - 1;
        dims[last] = outputs;
        let id = self.emit.node(op, ids, ScalarType::Float, &dims)?;
        let id = self.as_stored(node, id)?;
        self.set_nhwc(node, id)
    }

    /// A float bias as an f32 constant.
    pub(super) fn float_bias(&mut self, node: &Node, bias: usize) -> Result<ValueId> {
        if self.payload.values[bias].constant_index().is_none() || self.datatype(bias).is_quantized() {
            return Err(self.unsupported_error(node));
        }
        let nhwc = self.nhwc(bias)?;
        if self.emit.dtype(nhwc) == ScalarType::Float {
            return Ok(nhwc);
        }
        let view = self.emit.graph.view(nhwc).ok_or_else(|| Error::new("a bias without bytes"))?;
        let wide: Vec<f32> = match view.dtype() {
            ScalarType::Half => view.storage::<pteron_tensor::f16>()?.iter().map(|x| x.to_f32()).collect(),
            ScalarType::BFloat16 => {
                view.storage::<pteron_tensor::bf16>()?.iter().map(|x| x.to_f32()).collect()
            }
            other => return fail(format!("a bias of {other}")),
        };
        self.emit.computed_constant(Tensor::from_slice(&[wide.len()], &wide)?)
    }

    /// Stored int8 weights of a convolution in the graph's order.
    pub(super) fn filter_of(&mut self, spec: &Spec, elements: ValueId) -> Result<ValueId> {
        let meta = spec.filter.meta(ScalarType::Char)?;
        let stored = self.emit.graph.value(elements).constant().cloned();
        let stored = stored.ok_or_else(|| Error::new("weights without bytes"))?;
        let stored = self.emit.graph.constant(meta, stored);
        self.emit.node(Relayout, vec![stored], ScalarType::Char, &spec.filter.sizes)
    }

    /// The input image of a convolution, dynamically quantized with parameters for each batch item, and dequantized.
    fn dynamically_quantized_image(&mut self, x: usize) -> Result<ValueId> {
        let nhwc = self.nhwc(x)?;
        let nhwc = self.emit.cast(nhwc, ScalarType::Float)?;
        let dims = self.dims(x);
        let Some((&items, each)) = dims.split_first() else { return fail("an image without dimensions") };
        let sizes = [items, each.iter().product()];
        let rows = self.emit.view(nhwc, &sizes)?;
        let (char, float) = (Arg::Int(ScalarType::Char as i64), Arg::Int(ScalarType::Float as i64));
        let name = "quantized_decomposed::choose_qparams_per_token_asymmetric.out";
        let outs = [(ScalarType::Double, &[items, 1][..]), (ScalarType::Long, &[items, 1][..])];
        let params = self.emit.call_with_outputs(name, vec![Arg::Tensor(rows), char.clone()], &outs)?;
        let with = |id: ValueId| {
            let operands = [id, params[0], params[1]].map(Arg::Tensor).into_iter();
            operands.chain([Arg::Int(-128), Arg::Int(127), char.clone()]).collect::<Vec<_>>()
        };
        let name = "quantized_decomposed::quantize_per_token.out";
        let elements = self.emit.call(name, with(rows), ScalarType::Char, &sizes)?;
        let name = "quantized_decomposed::dequantize_per_token.out";
        let args = with(elements).into_iter().chain([float]).collect();
        let floats = self.emit.call(name, args, ScalarType::Float, &sizes)?;
        let floats = self.emit.view(floats, &dims)?;
        self.emit.permute(floats, &super::NHWC_TO_NCHW)
    }

    /// Dequantized constant 8-bit weights, per tensor or per channel, in stored order.
    pub(super) fn dequantized_weights(&self, node: &Node, v: usize) -> Result<Vec<f64>> {
        let value = &self.payload.values[v];
        let channel = match (value.datatype, &value.quantization) {
            (Datatype::Qint8, Quantization::PerTensor { zero_point: 0, .. }) => None,
            (Datatype::Qcint8, Quantization::PerChannel { channel_dim, .. }) => Some(*channel_dim),
            _ => return Err(self.unsupported_error(node)),
        };
        let scales = self.data.scales(&value.quantization)?;
        let (channels, inner) = match channel {
            None => (1, 1),
            Some(d) => (value.dims[d], value.dims[d + 1..].iter().product::<usize>()),
        };
        if scales.len() != channels {
            return fail(format!("{} scales for {channels} channels", scales.len()));
        }
        let len: usize = value.dims.iter().product();
        let bytes = self.data.read_value(value)?;
        let bytes = bytes.iter().take(len);
        Ok(bytes
            .enumerate()
            .map(|(i, &b)| f64::from(b as i8) * f64::from(scales[i / inner % channels]))
            .collect())
    }

    pub(super) fn quantized_linear(&mut self, node: &Node, transposed: bool) -> Result<()> {
        let (v, filter) = (node.inputs[0], node.inputs[1]);
        let (Some(from), Some(to)) = (self.quantizer(v), self.quantizer(node.outputs[0])) else {
            return Err(self.unsupported_error(node));
        };
        let mut dims = self.dims(v);
        let weights = self.dims(filter);
        let (outputs, inputs) = if transposed { (weights[1], weights[0]) } else { (weights[0], weights[1]) };
        if inputs > PackedWeights::MAX_ROWS {
            return fail(format!("{inputs} inputs are not supported here"));
        }
        let scales = self.requantization(node, filter, usize::from(transposed), outputs, from, to)?;
        let Some(weights) = self.int8_weights(filter)? else {
            return self.integer_linear(node, transposed, &scales);
        };
        let mut ids = vec![self.nhwc(v)?, weights];
        ids.push(self.emit.computed_constant(Tensor::from_slice(&[scales.len()], &scales)?)?);
        if let Some(&bias) = node.inputs.get(2) {
            let bias = self.int32_bias(node, bias)?;
            ids.push(self.emit.computed_constant(Tensor::from_slice(&[bias.len()], &bias)?)?);
        }
        let op = QuantizedLinear {
            input: QuantizedInput::Quantized(from.unit_affine()),
            out_major: !transposed,
            bits: WeightBits::Eight,
            group: inputs,
            bias: ids.len() > 3,
            activation: Activation::Identity,
            output: Some(to.quantization_within(to.unit_affine(), node.bounds)),
        };
        let last = dims.len() - 1;
        dims[last] = outputs;
        let dtype = if to.signed { ScalarType::Char } else { ScalarType::Byte };
        let id = self.emit.node(op, ids, dtype, &dims)?;
        self.set_nhwc(node, id)
    }

    /// Constant weights as int8 with zero point 0, in stored order. `None` if their zero point does not allow that.
    fn int8_weights(&mut self, v: usize) -> Result<Option<ValueId>> {
        match (self.datatype(v), self.weight_zero_point(v)) {
            (Datatype::Quint8, 128) => {
                self.decoded_weights(&self.payload.values[v], Encoding::Offset).map(Some)
            }
            (Datatype::Quint8, _) => Ok(None),
            _ => self.nhwc(v).map(Some),
        }
    }

    /// The zero point of weights.
    fn weight_zero_point(&self, v: usize) -> i32 {
        match self.payload.values[v].quantization {
            Quantization::PerTensor { zero_point, .. } => zero_point,
            _ => 0,
        }
    }

    /// Constant weights in units of their scale (minus the zero point), in stored order.
    fn integer_weights(&self, v: usize) -> Result<Vec<f64>> {
        let (value, zero) = (&self.payload.values[v], self.weight_zero_point(v));
        let bytes = self.data.read_value(value)?;
        let bytes = bytes.iter().take(value.dims.iter().product());
        let number = |&b: &u8| {
            if value.datatype == Datatype::Quint8 { i32::from(b) } else { i32::from(b as i8) }
        };
        Ok(collected(bytes.map(|b| f64::from(number(b) - zero)))?)
    }

    /// A linear layer of quantized values for which the graph has no node: computed on integers in f64.
    fn integer_linear(&mut self, node: &Node, transposed: bool, scales: &[f32]) -> Result<()> {
        let (v, filter) = (node.inputs[0], node.inputs[1]);
        let (Some(from), Some(to)) = (self.quantizer(v), self.quantizer(node.outputs[0])) else {
            return Err(self.unsupported_error(node));
        };
        let mut dims = self.dims(v);
        let x = self.nhwc(v)?;
        let x = self.dequantize(x, from.unit_affine())?;
        let x = self.emit.cast(x, ScalarType::Double)?;
        let weights = Tensor::from_slice(&self.dims(filter), &self.integer_weights(filter)?)?;
        let mut weights = self.emit.computed_constant(weights)?;
        if transposed {
            weights = self.emit.permute(weights, &[1, 0])?;
        }
        let last = dims.len() - 1;
        dims[last] = self.emit.sizes(weights)[0];
        let bias = match node.inputs.get(2) {
            Some(&bias) => {
                let bias: Vec<f64> = self.int32_bias(node, bias)?.iter().map(|&x| f64::from(x)).collect();
                Arg::Tensor(self.emit.computed_constant(Tensor::from_slice(&[bias.len()], &bias)?)?)
            }
            None => Arg::Absent,
        };
        let args = vec![Arg::Tensor(x), Arg::Tensor(weights), bias];
        let id = self.emit.call("aten::linear.out", args, ScalarType::Double, &dims)?;
        let id = self.emit.cast(id, ScalarType::Float)?;
        let scales = self.emit.computed_constant(Tensor::from_slice(&[scales.len()], scales)?)?;
        let args = vec![Arg::Tensor(id), Arg::Tensor(scales)];
        let id = self.emit.call("aten::mul.out", args, ScalarType::Float, &dims)?;
        let id = self.as_stored_from_units(node, id, to)?;
        self.set_nhwc(node, id)
    }

    /// The requantization multipliers of the accumulators: one for each output, or one for all.
    fn requantization(
        &self,
        node: &Node,
        filter: usize,
        channel: usize,
        outputs: usize,
        from: Quantizer,
        to: Quantizer,
    ) -> Result<Vec<f32>> {
        let value = &self.payload.values[filter];
        let known = match (value.datatype, &value.quantization) {
            (Datatype::Qint8, Quantization::PerTensor { zero_point: 0, .. }) => true,
            (Datatype::Quint8, Quantization::PerTensor { .. }) => !from.signed,
            (Datatype::Qcint8, Quantization::PerChannel { channel_dim, .. }) => *channel_dim == channel,
            _ => false,
        };
        if !known || value.constant_index().is_none() {
            return Err(self.unsupported_error(node));
        }
        let scales = self.data.scales(&value.quantization)?;
        if scales.len() != 1 && scales.len() != outputs {
            return fail(format!("{} scales for {outputs} outputs", scales.len()));
        }
        let scales = collected(scales.iter().map(|scale| from.scale * scale / to.scale))?;
        match scales.iter().find(|s| !s.is_finite()) {
            Some(s) => fail(format!("scales that together are {s}")),
            None => Ok(scales),
        }
    }

    /// An int32 bias, which is added to the accumulators.
    fn int32_bias(&self, node: &Node, bias: usize) -> Result<Vec<i32>> {
        let value = &self.payload.values[bias];
        if !matches!(value.datatype, Datatype::Qint32 | Datatype::Qcint32 | Datatype::Int32) {
            return Err(self.unsupported_error(node));
        }
        let bytes = self.data.read_value(value)?;
        let words = bytes.chunks_exact(4).take(value.dims.iter().product());
        Ok(collected(words.map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])))?)
    }

    pub(super) fn quantized_convolution(&mut self, node: &Node, x: ValueId, spec: &Spec) -> Result<ValueId> {
        let (v, filter) = (node.inputs[0], node.inputs[1]);
        let (Some(from), Some(to)) = (self.quantizer(v), self.quantizer(node.outputs[0])) else {
            return Err(self.unsupported_error(node));
        };
        let outputs = spec.conv.outputs();
        let channel = if matches!(node.op, NodeOp::DepthwiseConv(_)) { 3 } else { 0 };
        let scales = self.requantization(node, filter, channel, outputs, from, to)?;
        let params = conv_params(spec);
        let sizes = self.emit.sizes(x);
        let elements = sizes.iter().chain(&spec.out).all(|&n| n > 0);
        let elements = self.int8_weights(filter)?.filter(|_| elements && QuantizedConv::supports(&params));
        let Some(elements) = elements else { return self.integer_convolution(node, x, spec, &scales) };
        let mut ids = vec![x, self.filter_of(spec, elements)?];
        ids.push(self.emit.computed_constant(Tensor::from_slice(&[scales.len()], &scales)?)?);
        if let Some(&bias) = node.inputs.get(2) {
            let bias = self.int32_bias(node, bias)?;
            ids.push(self.emit.computed_constant(Tensor::from_slice(&[bias.len()], &bias)?)?);
        }
        let conv = pteron_engine::Convolution { bias: ids.len() > 3, ..convolution_of(spec) };
        let output = Some(to.quantization_within(to.unit_affine(), node.bounds));
        let op = QuantizedConvolution { conv, input: QuantizedInput::Quantized(from.unit_affine()), output };
        let dtype = if to.signed { ScalarType::Char } else { ScalarType::Byte };
        self.emit.node(op, ids, dtype, &spec.out)
    }

    /// A convolution of quantized values for which the graph has no node: computed on integers in f32, or in f64 if
    /// sums may exceed the 24 bits of f32.
    fn integer_convolution(
        &mut self,
        node: &Node,
        x: ValueId,
        spec: &Spec,
        scales: &[f32],
    ) -> Result<ValueId> {
        let (v, filter) = (node.inputs[0], node.inputs[1]);
        let (Some(from), Some(to)) = (self.quantizer(v), self.quantizer(node.outputs[0])) else {
            return Err(self.unsupported_error(node));
        };
        let bias = match node.inputs.get(2) {
            Some(&bias) => Some(self.int32_bias(node, bias)?),
            None => None,
        };
        let weights = self.integer_weights(filter)?;
        let dtype = if spec.max_abs_sum(&weights, bias.as_deref()) < 2f64.powi(24) {
            ScalarType::Float
        } else {
            ScalarType::Double
        };
        let x = self.dequantize(x, from.unit_affine())?;
        let x = self.emit.cast(x, dtype)?;
        let weights = self.stored_filter(spec, dtype, &weights)?;
        let bias = match bias {
            Some(bias) => {
                let bias: Vec<f64> = bias.iter().map(|&x| f64::from(x)).collect();
                Arg::Tensor(self.emit.computed_constant(float_tensor(dtype, &[bias.len()], &bias)?)?)
            }
            None => Arg::Absent,
        };
        let args = [Arg::Tensor(x), Arg::Tensor(weights), bias].into_iter().chain(spec.args()).collect();
        let id = self.emit.call("aten::convolution.out", args, dtype, &spec.out)?;
        let id = self.emit.cast(id, ScalarType::Float)?;
        let scales = self.emit.computed_constant(Tensor::from_slice(&[scales.len(), 1, 1], scales)?)?;
        let args = vec![Arg::Tensor(id), Arg::Tensor(scales)];
        let id = self.emit.call("aten::mul.out", args, ScalarType::Float, &spec.out)?;
        self.as_stored_from_units(node, id, to)
    }

    /// Computed weights, given in stored order, in the graph's layout.
    pub(super) fn stored_filter(
        &mut self,
        spec: &Spec,
        dtype: ScalarType,
        elements: &[f64],
    ) -> Result<ValueId> {
        let meta = spec.filter.meta(dtype)?;
        let flat = float_tensor(dtype, &[meta.numel()], elements)?;
        let stored = TensorView::new(&meta, flat.bytes())?.to_tensor()?;
        let stored = self.emit.computed_constant(stored)?;
        self.in_graph_layout(spec, stored)
    }
}

/// A tensor of float64 if `dtype` is that, otherwise of float32.
fn float_tensor(dtype: ScalarType, sizes: &[usize], elements: &[f64]) -> Result<Tensor> {
    Ok(match dtype {
        ScalarType::Double => Tensor::from_slice(sizes, elements)?,
        _ => Tensor::from_slice(sizes, &collected(elements.iter().map(|&x| x as f32))?)?,
    })
}

/// A convolution without bias and activation.
pub(super) fn convolution_of(spec: &Spec) -> pteron_engine::Convolution {
    pteron_engine::Convolution {
        params: conv_params(spec),
        space: 2,
        layout: Layout::ChannelsFirst,
        bias: false,
        residual: false,
        activation: Activation::Identity,
    }
}

/// The parameters of a convolution for the compute core.
fn conv_params(spec: &Spec) -> ConvParams {
    let three = |[h, w]: [usize; 2], depth: usize| [depth, h, w];
    ConvParams {
        in_channels: spec.conv.inputs(),
        out_channels: spec.conv.outputs(),
        groups: spec.conv.groups,
        kernel: three(spec.conv.kernel, 1),
        stride: three(spec.conv.stride, 1),
        padding: three(spec.padding, 0),
        dilation: three(spec.conv.dilation, 1),
        transposed: spec.filter.transposed,
    }
}
