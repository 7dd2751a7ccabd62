//! Translates the nodes of a partition to nodes of its payload.

use super::build::{Builder, permute_elements};
use super::call::{Reason, floats, is_constant};
use super::matched::{ConvMatch, Match, Operand};
use super::quantized::{Activation, QuantizedOp};
use crate::layout::{NCHW_TO_NHWC, NHWC_TO_NCHW};
use crate::payload::{Binary, Op, Pool, Unary};
use pteron_exported::{ExportedProgram, VarId};

/// The value that a payload node writes, and the operators that are fused into it.
pub(super) struct Target<'u> {
    /// The value that the payload node writes.
    pub(super) var: VarId,
    /// The batch normalization after a convolution: scale and shift of each channel.
    pub(super) norm: Option<(Vec<f32>, Vec<f32>)>,
    /// The minimum and maximum to which the result is clamped.
    pub(super) bounds: Option<(f32, f32)>,
    /// The node as a quantized linear layer or convolution, if it is one.
    pub(super) quantized: Option<&'u QuantizedOp>,
    /// Whether operands and result are quantized values.
    pub(super) on_quantized: bool,
}

impl Builder<'_> {
    /// Adds the payload nodes that compute a node.
    pub(super) fn add_match(&mut self, matched: Match, target: Target<'_>) -> Result<(), Reason> {
        let to = target.var;
        match matched {
            // A dequantized value is added when a node needs it.
            Match::Fused | Match::Dequantize => Ok(()),
            Match::Relayout(x) => self.add_relayout(x, to),
            Match::Quantize(x) => self.add_elementwise(Op::Convert, x, to, None),
            Match::Unary(f, x) => self.add_elementwise(Op::Unary(f), x, to, None),
            Match::Clamp { x, low, high } => {
                self.add_elementwise(Op::Unary(Unary::Clamp), x, to, Some((low, high)))
            }
            Match::Binary(f, a, b) => self.add_binary(f, a, b, &target),
            Match::BatchNorm { x, scale, shift } => self.add_batch_norm(x, &scale, &shift, to),
            Match::Softmax(x) => self.add_nchw_node(Op::Softmax, &[x], to),
            Match::BatchMatMul(a, b) => {
                self.add_nchw_node(Op::BatchMatMul { transposed: false }, &[a, b], to)
            }
            Match::Linear { x, weight, bias, transposed } => {
                let inputs = match target.quantized {
                    Some(quantized) => self.quantized_linear_inputs(quantized, weight, bias)?,
                    None => {
                        let mut inputs = vec![self.as_nchw(x)?, self.as_nchw(weight)?];
                        inputs.extend(bias.map(|bias| self.as_nchw(bias)).transpose()?);
                        inputs
                    }
                };
                let output = self.define_nchw(to)?;
                self.add_bounded_node(Op::FullyConnected { transposed }, inputs, vec![output], target.bounds);
                Ok(())
            }
            Match::Conv(conv) => self.add_convolution(&conv, &target),
            Match::MaxPool(x, pool) => self.add_nhwc_node(Op::MaxPool(pool), x, &target),
            Match::AvgPool(x, pool) => self.add_nhwc_node(Op::AvgPool(pool), x, &target),
            Match::SpatialMax(x, pool) => self.add_spatial_max(x, pool, to),
            Match::SpatialMean(x) => self.add_nhwc_node(Op::GlobalAvgPool { keep_dims: true }, x, &target),
            Match::Resize { x, align_corners } => {
                let dims = self.dims(to)?;
                let op = Op::ResizeBilinear { height: dims[2], width: dims[3], align_corners, legacy: false };
                self.add_nhwc_node(op, x, &target)
            }
            Match::Transpose { x, perm } => self.add_nchw_node(Op::Transpose { perm }, &[x], to),
            Match::Reshape(x) => {
                let sizes = self.reshape_sizes(to);
                self.add_nchw_node(Op::Reshape { sizes }, &[x], to)
            }
            Match::Concat { tensors, axis } => self.add_concat(&tensors, axis, to),
            Match::Slice { x, axis, start } => self.add_slice(x, axis, start, to),
            Match::Pad { x, pre, post, value } => {
                if self.is_only_nhwc(x) {
                    let (pre, post) =
                        (NCHW_TO_NHWC.map(|d| pre[d]).to_vec(), NCHW_TO_NHWC.map(|d| post[d]).to_vec());
                    return self.add_nhwc_node(Op::Pad { pre, post, value }, x, &target);
                }
                self.add_nchw_node(Op::Pad { pre, post, value }, &[x], to)
            }
        }
    }

    /// A copy that leaves the payload in its own layout: it converts a value that is available in the other layout
    /// only.
    fn add_relayout(&mut self, x: VarId, to: VarId) -> Result<(), Reason> {
        let from_image = self.is_only_nhwc(x);
        let input = if from_image { self.as_nhwc(x)? } else { self.as_nchw(x)? };
        let to_image = self.is_nhwc_output(to);
        let output = if to_image { self.define_nhwc(to)? } else { self.define_nchw(to)? };
        let op = match (from_image, to_image) {
            (true, false) => Op::Transpose { perm: NHWC_TO_NCHW.to_vec() },
            (false, true) => Op::Transpose { perm: NCHW_TO_NHWC.to_vec() },
            _ => Op::Copy,
        };
        self.add_node(op, vec![input], vec![output]);
        Ok(())
    }

    fn add_nchw_node(&mut self, op: Op, inputs: &[VarId], to: VarId) -> Result<(), Reason> {
        let inputs = inputs.iter().map(|&x| self.as_nchw(x)).collect::<Result<_, _>>()?;
        let output = self.define_nchw(to)?;
        self.add_node(op, inputs, vec![output]);
        Ok(())
    }

    fn add_nhwc_node(&mut self, op: Op, x: VarId, target: &Target<'_>) -> Result<(), Reason> {
        let input = self.as_nhwc(x)?;
        let output = self.define_nhwc(target.var)?;
        self.add_bounded_node(op, vec![input], vec![output], target.bounds);
        Ok(())
    }

    /// A maximum over height or width: max pooling, then a transpose to NCHW, then a reshape that drops the pooled
    /// dimension.
    fn add_spatial_max(&mut self, x: VarId, pool: Pool, to: VarId) -> Result<(), Reason> {
        let input = self.as_nhwc(x)?;
        let [batch, height, width, channels] = self.dims_of_value(input)[..] else {
            return Err("its image is not of 4 dimensions".to_owned());
        };
        let [height, width] = [height - pool.window[0] + 1, width - pool.window[1] + 1];
        let pooled = self.add_temporary(vec![batch, height, width, channels], input);
        self.add_node(Op::MaxPool(pool), vec![input], vec![pooled]);
        let turned = self.add_temporary(vec![batch, channels, height, width], input);
        self.add_node(Op::Transpose { perm: NHWC_TO_NCHW.to_vec() }, vec![pooled], vec![turned]);
        let sizes = self.reshape_sizes(to);
        let output = self.define_nchw(to)?;
        self.add_node(Op::Reshape { sizes }, vec![turned], vec![output]);
        Ok(())
    }

    fn add_elementwise(
        &mut self,
        op: Op,
        x: VarId,
        to: VarId,
        bounds: Option<(f32, f32)>,
    ) -> Result<(), Reason> {
        let (input, output) = match self.is_only_nhwc(x) {
            true => (self.as_nhwc(x)?, self.define_nhwc(to)?),
            false => (self.as_nchw(x)?, self.define_nchw(to)?),
        };
        self.add_bounded_node(op, vec![input], vec![output], bounds);
        Ok(())
    }

    /// Adds a binary node: in NHWC order if an operand exists only so and the others are 4D or constant, else in
    /// original order.
    fn add_binary(&mut self, f: Binary, a: Operand, b: Operand, target: &Target<'_>) -> Result<(), Reason> {
        let of = |operand| if let Operand::Var(var) = operand { Some(var) } else { None };
        let vars: Vec<VarId> = [a, b].into_iter().filter_map(of).collect();
        let rank = |var: VarId| self.part.spec(var).map_or(0, |spec| spec.rank());
        let can = |&var: &VarId| {
            rank(var) == 4 || is_constant(self.part, var) && rank(var) <= 4 && !self.is_int8(var)
        };
        let as_nhwc = vars.iter().any(|&var| self.is_only_nhwc(var)) && vars.iter().all(can);
        let mut inputs = Vec::with_capacity(2);
        for operand in [a, b] {
            inputs.push(match operand {
                Operand::Number(number) => self.add_float_constant(&[number], vec![1]),
                Operand::Var(var) if !as_nhwc => self.as_nchw(var)?,
                Operand::Var(var) if rank(var) == 4 => self.as_nhwc(var)?,
                Operand::Var(var) => {
                    let mut dims = vec![1; 4 - rank(var)];
                    dims.extend(self.dims(var)?);
                    let elements = permute_elements(&floats(self.part, var), &dims, &NCHW_TO_NHWC);
                    self.add_float_constant(&elements, NCHW_TO_NHWC.map(|d| dims[d]).to_vec())
                }
            });
        }
        let output = if as_nhwc { self.define_nhwc(target.var)? } else { self.define_nchw(target.var)? };
        self.add_bounded_node(Op::Binary(f), inputs, vec![output], target.bounds);
        Ok(())
    }

    fn add_batch_norm(&mut self, x: VarId, scale: &[f32], shift: &[f32], to: VarId) -> Result<(), Reason> {
        let is_1d = self.dims(x)?.len() == 3;
        let input = if is_1d { self.as_nchw(x)? } else { self.as_nhwc(x)? };
        let channels = if is_1d { vec![scale.len(), 1] } else { vec![scale.len()] };
        let (scale, shift) =
            (self.add_float_constant(scale, channels.clone()), self.add_float_constant(shift, channels));
        let dims = self.dims_of_value(input).to_vec();
        let scaled = self.add_temporary(dims, input);
        self.add_node(Op::Binary(Binary::Multiply), vec![input, scale], vec![scaled]);
        let output = if is_1d { self.define_nchw(to)? } else { self.define_nhwc(to)? };
        self.add_node(Op::Binary(Binary::Add), vec![scaled, shift], vec![output]);
        Ok(())
    }

    fn add_convolution(&mut self, conv: &ConvMatch, target: &Target<'_>) -> Result<(), Reason> {
        let attributes = conv.attributes;
        let outputs = attributes.outputs();
        let [kh, kw] = attributes.kernel;
        let weights = match target.quantized {
            Some(quantized) => int8_elements(self.part, quantized.weights.elements),
            None => floats(self.part, conv.weight),
        };
        let (groups, ins, outs) = (attributes.groups, attributes.group_inputs, attributes.group_outputs);
        // [out, kh, kw, in / groups]
        let mut weights = match conv.is_transposed {
            true => permute_elements(&weights, &[groups, ins, outs, kh, kw], &[0, 2, 3, 4, 1]),
            false => permute_elements(&weights, &[outputs, ins, kh, kw], &NCHW_TO_NHWC),
        };
        let mut bias = match conv.bias {
            Some(bias) => floats(self.part, bias),
            None => vec![0.0; outputs],
        };
        if let Some((scale, shift)) = &target.norm {
            let of_output = weights.len() / outputs;
            for (output, weights) in weights.chunks_mut(of_output).enumerate() {
                weights.iter_mut().for_each(|w| *w *= scale[output]);
                bias[output] = bias[output] * scale[output] + shift[output];
            }
        }
        let (op, dims) = if conv.is_depthwise() {
            weights = permute_elements(&weights, &[outputs, kh, kw], &[1, 2, 0]);
            (Op::DepthwiseConv(attributes), vec![1, kh, kw, outputs])
        } else if conv.is_transposed {
            (Op::ConvTranspose(attributes), vec![outputs, kh, kw, ins])
        } else {
            (Op::Conv(attributes), vec![outputs, kh, kw, ins])
        };
        if let Some(quantized) = target.quantized {
            let channel = if conv.is_depthwise() { 3 } else { 0 };
            let filter = self.int8_weights(&quantized.weights, &weights, dims, channel);
            let input = match quantized.activation {
                Activation::Static(..) => self.convolution_input(conv)?,
                Activation::Dynamic(x) => self.quantized_images(x)?,
            };
            let mut inputs = vec![input, filter];
            match (conv.bias, quantized.activation) {
                (Some(bias), Activation::Static(_, input)) => {
                    inputs.push(self.quantized_bias(bias, input, &quantized.weights));
                }
                (Some(_), Activation::Dynamic(_)) => {
                    inputs.push(self.add_float_constant(&bias, vec![outputs]))
                }
                (None, _) => {}
            }
            return self.add_convolution_node(op, inputs, conv, target);
        }
        let mut inputs = vec![self.convolution_input(conv)?, self.add_float_constant(&weights, dims)];
        if conv.bias.is_some() || target.norm.is_some() {
            inputs.push(self.add_float_constant(&bias, vec![outputs]));
        }
        self.add_convolution_node(op, inputs, conv, target)
    }

    /// The payload value of a convolution's input image. A 1D convolution reads an image of width 1.
    fn convolution_input(&mut self, conv: &ConvMatch) -> Result<usize, Reason> {
        if !conv.is_1d {
            return self.as_nhwc(conv.x);
        }
        let nchw = self.as_nchw(conv.x)?;
        let mut sizes = self.reshape_sizes(conv.x);
        sizes.push(1);
        let mut dims = self.dims(conv.x)?;
        dims.push(1);
        let widened = self.add_temporary(dims.clone(), nchw);
        self.add_node(Op::Reshape { sizes }, vec![nchw], vec![widened]);
        let image = self.add_temporary(NCHW_TO_NHWC.map(|d| dims[d]).to_vec(), nchw);
        self.add_node(Op::Transpose { perm: NCHW_TO_NHWC.to_vec() }, vec![widened], vec![image]);
        Ok(image)
    }

    /// Adds a convolution whose input comes from [`Self::convolution_input`].
    fn add_convolution_node(
        &mut self,
        op: Op,
        inputs: Vec<usize>,
        conv: &ConvMatch,
        target: &Target<'_>,
    ) -> Result<(), Reason> {
        if !conv.is_1d {
            let output = self.define_nhwc(target.var)?;
            self.add_bounded_node(op, inputs, vec![output], target.bounds);
            return Ok(());
        }
        let output = self.define_nchw(target.var)?;
        let mut dims = self.dims(target.var)?;
        dims.push(1);
        let image = self.add_temporary(NCHW_TO_NHWC.map(|d| dims[d]).to_vec(), output);
        self.add_bounded_node(op, inputs, vec![image], target.bounds);
        let widened = self.add_temporary(dims, output);
        self.add_node(Op::Transpose { perm: NHWC_TO_NCHW.to_vec() }, vec![image], vec![widened]);
        let sizes = self.reshape_sizes(target.var);
        self.add_node(Op::Reshape { sizes }, vec![widened], vec![output]);
        Ok(())
    }

    /// The sizes for a reshape: 0 for the size that is computed at run time.
    fn reshape_sizes(&self, to: VarId) -> Vec<usize> {
        let sizes = self.part.spec(to).map_or(&[][..], |spec| &spec.sizes);
        sizes.iter().map(|size| size.known().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)).collect()
    }

    /// Adds a concatenation, split into nodes of at most five inputs.
    fn add_concat(&mut self, tensors: &[VarId], axis: usize, to: VarId) -> Result<(), Reason> {
        let as_nhwc = tensors.iter().all(|&x| self.is_only_nhwc(x));
        let axis = if as_nhwc { NCHW_TO_NHWC.iter().position(|&d| d == axis).unwrap_or(axis) } else { axis };
        let mut inputs = Vec::with_capacity(tensors.len());
        for &x in tensors {
            inputs.push(if as_nhwc { self.as_nhwc(x)? } else { self.as_nchw(x)? });
        }
        while inputs.len() > 5 {
            let first: Vec<usize> = inputs.drain(..5).collect();
            let mut dims = self.dims_of_value(first[0]).to_vec();
            dims[axis] = first.iter().map(|&v| self.dims_of_value(v)[axis]).sum();
            let joined = self.add_temporary(dims, first[0]);
            self.add_node(Op::Concat { axis }, first, vec![joined]);
            inputs.insert(0, joined);
        }
        let output = if as_nhwc { self.define_nhwc(to)? } else { self.define_nchw(to)? };
        self.add_node(Op::Concat { axis }, inputs, vec![output]);
        Ok(())
    }

    /// Adds a slice. If the result has fewer dimensions, the sliced dimension is dropped.
    fn add_slice(&mut self, x: VarId, axis: usize, start: usize, to: VarId) -> Result<(), Reason> {
        let spec = |var| self.part.spec(var).map_or(&[][..], |spec| &spec.sizes);
        let (from, result) = (spec(x), spec(to));
        let dropped = result.len() < from.len();
        // A size of 0 means the rest of the dimension: all of it, since the offset is 0.
        let mut sizes: Vec<usize> =
            from.iter().map(|size| size.known().and_then(|n| usize::try_from(n).ok()).unwrap_or(0)).collect();
        sizes[axis] = if dropped { 1 } else { self.reshape_sizes(to)[axis] };
        let mut offsets = vec![0; sizes.len()];
        offsets[axis] = start;
        if !dropped && self.is_only_nhwc(x) {
            let (offsets, sizes) =
                (NCHW_TO_NHWC.map(|d| offsets[d]).to_vec(), NCHW_TO_NHWC.map(|d| sizes[d]).to_vec());
            let target = Target { var: to, norm: None, bounds: None, quantized: None, on_quantized: false };
            return self.add_nhwc_node(Op::Slice { offsets, sizes }, x, &target);
        }
        if !dropped {
            return self.add_nchw_node(Op::Slice { offsets, sizes }, &[x], to);
        }
        let mut dims = self.dims(x)?;
        dims[axis] = 1;
        let input = self.as_nchw(x)?;
        let cut = self.add_temporary(dims, input);
        self.add_node(Op::Slice { offsets, sizes }, vec![input], vec![cut]);
        let sizes = self.reshape_sizes(to);
        let output = self.define_nchw(to)?;
        self.add_node(Op::Reshape { sizes }, vec![cut], vec![output]);
        Ok(())
    }
}

/// The elements of an int8 constant in row-major order.
fn int8_elements(program: &ExportedProgram, var: VarId) -> Vec<f32> {
    let Some(bytes) = program.row_major_bytes(var) else { return Vec::new() };
    bytes.bytes().iter().map(|&byte| f32::from(byte as i8)).collect()
}
