//! Quantization in the recovered program: quantize and dequantize pairs after nodes, weights, and dynamic quantization
//! with parameters chosen per row.

use super::emit::NamedArg;
use super::{Layout, Recovery};
use crate::error::{Result, fail};
use crate::layout::LayoutViews;
use crate::payload::{Datatype, Node, Quantization, Role, Value};
use crate::raise::unpack_nibbles;
use pteron_exported::{Argument, ConstantTensor, Size, TensorSpec, VarId};
use pteron_ir::SharedBytes;
use pteron_tensor::ScalarType;
use pteron_tensor::memory::filled;
use std::sync::Arc;

/// The lowest and highest value of an 8-bit type: 0 and 255 for `Byte`, otherwise -128 and 127.
fn quant_range(dtype: ScalarType) -> (i64, i64) {
    if dtype == ScalarType::Byte { (0, 255) } else { (-128, 127) }
}

/// The last arguments of quantize and dequantize operators: the range and type of the quantized values.
fn quant_args(dtype: ScalarType, (low, high): (i64, i64)) -> [NamedArg; 3] {
    [("quant_min", Argument::Int(low)), ("quant_max", Argument::Int(high)), ("dtype", Argument::Dtype(dtype))]
}

/// Scale, zero point and type of an 8-bit value with per-tensor quantization; `None` for other values.
fn per_tensor(value: &Value) -> Option<(f32, i32, ScalarType)> {
    match (value.datatype, &value.quantization) {
        (Datatype::Qint8 | Datatype::Quint8, Quantization::PerTensor { scale, zero_point }) => {
            Some((*scale, *zero_point, value.datatype.scalar_type()))
        }
        _ => None,
    }
}

impl Recovery<'_> {
    /// Converts a node's float result to its output's type: the result is quantized and dequantized again, or cast.
    pub(super) fn as_stored(&mut self, node: &Node, v: usize, layout: Layout) -> Result<Layout> {
        let value = &self.payload.values[v];
        if let Some((scale, zero, dtype)) = per_tensor(value) {
            let sizes = self.spec(layout.id()).sizes.clone();
            let args = std::iter::once(("input", Argument::Var(layout.id())))
                .chain(affine_args(scale, zero))
                .chain(quant_args(dtype, quant_range(dtype)))
                .collect();
            let target = "quantized_decomposed.quantize_per_tensor.default";
            let quantized = self.emit(target, args, dtype, sizes);
            return self.dequantize_value(v, layout.with_id(quantized));
        }
        match value.datatype {
            Datatype::Fp32 | Datatype::Fp16 | Datatype::Bf16 => {
                let var = self.cast(layout.id(), value.datatype.scalar_type());
                Ok(layout.with_id(var))
            }
            _ => Err(self.unsupported_error(node)),
        }
    }

    /// Dequantizes a stored value. Float values are returned unchanged.
    pub(super) fn dequantize_value(&mut self, v: usize, layout: Layout) -> Result<Layout> {
        let value = &self.payload.values[v];
        let Some((scale, zero, dtype)) = per_tensor(value) else {
            return match value.datatype {
                Datatype::Fp32 | Datatype::Fp16 | Datatype::Bf16 => Ok(layout),
                other => fail(format!("value %{} of {} is not given", value.id, other.name())),
            };
        };
        self.values[v].quantized = Some(layout);
        let sizes = self.spec(layout.id()).sizes.clone();
        let args = std::iter::once(("input", Argument::Var(layout.id())))
            .chain(affine_args(scale, zero))
            .chain(quant_args(dtype, quant_range(dtype)))
            .collect();
        let target = "quantized_decomposed.dequantize_per_tensor.default";
        Ok(layout.with_id(self.emit(target, args, ScalarType::Float, sizes)))
    }

    pub(super) fn convert(&mut self, node: &Node) -> Result<()> {
        let out = node.outputs[0];
        let layout = self.available_layout(node.inputs[0])?;
        match self.payload.values[out].quantization {
            Quantization::PerToken { num_nonbatch_dims } => {
                let nhwc = self.nhwc(node.inputs[0])?;
                let dequantized = self.dynamically_quantized(nhwc, num_nonbatch_dims)?;
                self.set_layout(out, Layout::Nhwc(dequantized))
            }
            _ => self.store(node, layout),
        }
    }

    /// Quantizes a float value dynamically, with parameters chosen over the last `shared` dimensions, and dequantizes
    /// it.
    fn dynamically_quantized(&mut self, x: VarId, shared: usize) -> Result<VarId> {
        let sizes = self.spec(x).sizes.clone();
        let Some((batch, row)) =
            sizes.len().checked_sub(shared).filter(|_| shared > 0).map(|n| sizes.split_at(n))
        else {
            return fail(format!("{shared} dimensions that share parameters of {}", sizes.len()));
        };
        let x = self.cast(x, ScalarType::Float);
        // The operators choose parameters over the last dimension only.
        let row_len = row.iter().fold(Size::Int(1), |n, size| n.mul(size));
        let rows: Vec<Size> = batch.iter().cloned().chain([row_len]).collect();
        let flat = self.view(x, rows.clone())?;
        let chosen: Vec<Size> = batch.iter().cloned().chain([Size::Int(1)]).collect();
        let spec = |dtype| TensorSpec::contiguous(dtype, chosen.clone());
        let target = "quantized_decomposed.choose_qparams_per_token_asymmetric.default";
        let args = vec![("input", Argument::Var(flat)), ("dtype", Argument::Dtype(ScalarType::Char))];
        let params = self.emit_outputs(target, args, vec![spec(ScalarType::Double), spec(ScalarType::Long)]);
        let with = |var: VarId| -> Vec<NamedArg> {
            let vars = [("input", var), ("scales", params[0]), ("zero_points", params[1])];
            let vars = vars.map(|(name, var)| (name, Argument::Var(var)));
            vars.into_iter().chain(quant_args(ScalarType::Char, (-128, 127))).collect()
        };
        let target = "quantized_decomposed.quantize_per_token.default";
        let quantized = self.emit(target, with(flat), ScalarType::Char, rows.clone());
        let mut args = with(quantized);
        args.push(("output_dtype", Argument::Dtype(ScalarType::Float)));
        let target = "quantized_decomposed.dequantize_per_token.default";
        let dequantized = self.emit(target, args, ScalarType::Float, rows);
        self.view(dequantized, sizes)
    }

    /// A dequantized constant in the payload's dimension order.
    pub(super) fn constant(&mut self, v: usize) -> Result<VarId> {
        let rank = self.payload.values[v].dims.len();
        let perm: Vec<usize> = (0..rank).collect();
        let var = self.permuted_constant(v, &perm)?;
        self.set_layout(v, Layout::Nhwc(var))?;
        Ok(var)
    }

    /// Dequantized weights with permuted dimensions. Quantized 8-bit values are permuted before they are dequantized,
    /// 4-bit values after.
    pub(super) fn weights(&mut self, node: &Node, v: usize, perm: &[usize]) -> Result<VarId> {
        if self.payload.values[v].constant_index().is_none() {
            let nhwc = self.nhwc(v)?;
            return self.permute(nhwc, perm);
        }
        if self.payload.values[v].dims.len() != perm.len() {
            return Err(self.unsupported_error(node));
        }
        self.permuted_constant(v, perm)
    }

    fn permuted_constant(&mut self, v: usize, perm: &[usize]) -> Result<VarId> {
        let payload = self.payload;
        let value = &payload.values[v];
        if !matches!(value.role, Role::Constant(_)) {
            return fail(format!("value %{} is read before a node writes it", value.id));
        }
        match (value.datatype, &value.quantization) {
            (Datatype::Fp32 | Datatype::Fp16 | Datatype::Bf16, Quantization::None) => {
                let stored = self.stored_constant(v)?;
                self.permute(stored, perm)
            }
            (Datatype::Qint8 | Datatype::Quint8, Quantization::PerTensor { scale, zero_point }) => {
                let stored = self.stored_constant(v)?;
                let quantized = self.permute(stored, perm)?;
                let dtype = self.dtype(quantized);
                let (sizes, bounds) = (self.spec(quantized).sizes.clone(), quant_range(dtype));
                let args = std::iter::once(("input", Argument::Var(quantized)))
                    .chain(affine_args(*scale, *zero_point))
                    .chain(quant_args(dtype, bounds))
                    .collect();
                let target = "quantized_decomposed.dequantize_per_tensor.default";
                Ok(self.emit(target, args, ScalarType::Float, sizes))
            }
            (Datatype::Qcint8, Quantization::PerChannel { channel_dim, .. }) => {
                let stored = self.stored_constant(v)?;
                let quantized = self.permute(stored, perm)?;
                let axis = perm.iter().position(|d| d == channel_dim).unwrap_or(0);
                let scales = self.data.scales(&value.quantization)?;
                self.dequantized_by_channel(quantized, &scales, axis, (-128, 127))
            }
            (Datatype::Qcint4, Quantization::PerChannel { channel_dim: 0, .. }) => {
                let scales = self.data.scales(&value.quantization)?;
                let quantized = self.unpack_int4(value)?;
                let dequantized = self.dequantized_by_channel(quantized, &scales, 0, (-8, 7))?;
                self.permute(dequantized, perm)
            }
            (Datatype::Qbint4, Quantization::PerGroup { group_size, .. }) => {
                let scales = self.data.scales(&value.quantization)?;
                let quantized = self.unpack_int4(value)?;
                let sizes = self.spec(quantized).sizes.clone();
                let rows = [scales.len() as i64, *group_size as i64];
                let elements = sizes.iter().try_fold(1i64, |n, size| n.checked_mul(size.known()?));
                if elements.is_none() || elements != rows[0].checked_mul(rows[1]) {
                    return fail(format!(
                        "value %{} has {} scales for groups of {group_size}",
                        value.id, rows[0]
                    ));
                }
                let quantized = self.view(quantized, rows.map(Size::Int).to_vec())?;
                let dequantized = self.dequantized_by_channel(quantized, &scales, 0, (-8, 7))?;
                let dequantized = self.view(dequantized, sizes)?;
                self.permute(dequantized, perm)
            }
            (Datatype::Qint32 | Datatype::Qcint32, quantization) if perm.len() == 1 => {
                let scales = self.data.scales(quantization)?;
                if scales.len() != 1 && scales.len() != value.dims[0] {
                    return fail(format!("{} scales for {} channels", scales.len(), value.dims[0]));
                }
                let bytes = self.data.read_value(value)?;
                let words = bytes.as_chunks::<4>().0.iter().take(value.dims[0]);
                let scale = |i: usize| scales[if scales.len() == 1 { 0 } else { i % scales.len() }];
                let dequantized: Vec<f32> =
                    words.enumerate().map(|(i, b)| i32::from_le_bytes(*b) as f32 * scale(i)).collect();
                Ok(self.float_constant(&dequantized))
            }
            _ => fail(format!("constant %{} of {} has no other form", value.id, value.datatype.name())),
        }
    }

    /// The elements of a 4-bit constant, unpacked to one byte each.
    fn unpack_int4(&mut self, value: &Value) -> Result<VarId> {
        let &[rows, columns] = &value.dims[..] else {
            return fail(format!("value %{} of four bits is no matrix", value.id));
        };
        let mut bytes = filled(rows * columns, 0)?;
        unpack_nibbles(&self.data.read_value(value)?, columns, &mut bytes);
        Ok(self.add_constant_tensor(None, ScalarType::Char, &value.dims, Arc::new(bytes)))
    }

    fn dequantized_by_channel(
        &mut self,
        quantized: VarId,
        scales: &[f32],
        axis: usize,
        bounds: (i64, i64),
    ) -> Result<VarId> {
        let sizes = self.spec(quantized).sizes.clone();
        let channels = sizes.get(axis).and_then(Size::known).unwrap_or(0);
        let scales = if scales.len() == 1 { vec![scales[0]; channels as usize] } else { scales.to_vec() };
        if scales.len() as i64 != channels {
            return fail(format!("{} scales for {channels} channels", scales.len()));
        }
        let zeros: Vec<u8> = vec![0; 8 * scales.len()];
        let zeros = self.add_constant_tensor(None, ScalarType::Long, &[scales.len()], Arc::new(zeros));
        let scales = self.float_constant(&scales);
        let args = [("input", quantized), ("scales", scales), ("zero_points", zeros)]
            .map(|(name, var)| (name, Argument::Var(var)))
            .into_iter()
            .chain([("axis", Argument::Int(axis as i64))])
            .chain(quant_args(ScalarType::Char, bounds))
            .collect();
        let target = "quantized_decomposed.dequantize_per_channel.default";
        Ok(self.emit(target, args, ScalarType::Float, sizes))
    }

    /// A constant as it is stored, without dequantization.
    fn stored_constant(&mut self, v: usize) -> Result<VarId> {
        let payload = self.payload;
        let value = &payload.values[v];
        let bytes = Arc::new(self.data.read_value(value)?);
        let key = value.constant_index().and_then(|index| match &payload.constants[index] {
            crate::payload::Constant::Named { key, .. } => Some(key.as_str()),
            crate::payload::Constant::Payload(_) => None,
        });
        Ok(self.add_constant_tensor(key, value.datatype.scalar_type(), &value.dims, bytes))
    }

    /// A 1D float constant.
    fn float_constant(&mut self, elements: &[f32]) -> VarId {
        let bytes: Vec<u8> = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.add_constant_tensor(None, ScalarType::Float, &[elements.len()], Arc::new(bytes))
    }

    fn add_constant_tensor(
        &mut self,
        name: Option<&str>,
        dtype: ScalarType,
        dims: &[usize],
        bytes: SharedBytes,
    ) -> VarId {
        let nbytes = dims.iter().product::<usize>() * dtype.size();
        let spec = TensorSpec::contiguous(dtype, dims.iter().map(|&n| Size::Int(n as i64)).collect());
        let var = format!("c{}", self.program.num_vars());
        let data = ConstantTensor { name: name.map(Into::into), bytes, range: 0..nbytes };
        self.program.add_constant(var, spec, data)
    }
}

/// The scale and zero point as arguments.
fn affine_args(scale: f32, zero: i32) -> [NamedArg; 2] {
    [("scale", Argument::Float(f64::from(scale))), ("zero_point", Argument::Int(i64::from(zero)))]
}
