//! Builds a payload: values in one or both layouts, constants, nodes.

use super::call::{Reason, floats, is_channels_last, is_constant};
use super::quantized::{Affine, QuantizationMap};
use crate::layout::{LayoutCache, NCHW_TO_NHWC, NHWC_TO_NCHW};
use crate::payload::{Constant, Datatype, Node, Op, Payload, Quantization, Role, Value};
use pteron_exported::delegate::NamedBytes;
use pteron_exported::{Argument, ExportedProgram, VarId};
use pteron_format::Digest;
use pteron_ir::{SharedBytes, reopen_or_share};
use pteron_tensor::ScalarType;
use std::collections::HashMap;
use std::sync::Arc;

/// Alignment of constants in the file, in bytes.
const ALIGNMENT: u64 = 16;

/// A payload under construction.
pub(super) struct Builder<'p> {
    pub(super) part: &'p ExportedProgram,
    quantization: &'p QuantizationMap<'p>,
    /// For each value of the partition, the payload values that hold it in NHWC and in NCHW order, as far as they
    /// exist.
    layouts: HashMap<VarId, LayoutCache<usize>>,
    /// The external ids of the partition's outputs.
    outputs: HashMap<VarId, u32>,
    payload: Payload,
    named: Vec<NamedBytes>,
    by_key: HashMap<String, usize>,
    /// Dynamically quantized values, by the value that they quantize and the number of dimensions that share a scale.
    pub(super) dynamic_values: HashMap<(usize, usize), usize>,
    /// The debug handle for new nodes.
    pub(super) handle: u32,
}

impl<'p> Builder<'p> {
    pub(super) fn new(
        part: &'p ExportedProgram,
        quantization: &'p QuantizationMap<'p>,
    ) -> Result<Self, Reason> {
        let payload = Payload {
            identifier: *b"XN01",
            header: None,
            version: "0".to_owned(),
            values: Vec::new(),
            nodes: Vec::new(),
            constants: vec![Constant::Payload(0..0)],
            inputs: Vec::new(),
            outputs: Vec::new(),
        };
        let inputs = part.graph.inputs.len() as u32;
        let outputs = part.graph.outputs.iter().filter_map(Argument::var);
        let outputs = outputs.zip(inputs..).collect();
        let mut builder = Self {
            part,
            quantization,
            layouts: HashMap::new(),
            outputs,
            payload,
            named: Vec::new(),
            by_key: HashMap::new(),
            dynamic_values: HashMap::new(),
            handle: 0,
        };
        for (id, &input) in (0..).zip(&part.graph.inputs) {
            // Payloads list the dimensions of inputs and outputs in memory order.
            let dims = builder.dims(input)?;
            let is_image = part.spec(input).is_some_and(is_channels_last);
            let dims = if is_image { NCHW_TO_NHWC.map(|d| dims[d]).to_vec() } else { dims };
            let value = builder.add_typed_value(input, dims, Role::Input(id))?;
            let layouts = builder.layouts.entry(input).or_default();
            *if is_image { &mut layouts.nhwc } else { &mut layouts.nchw } = Some(value);
            builder.payload.inputs.push(value);
        }
        Ok(builder)
    }

    /// Adds the outputs to the payload, and returns the payload and its named data.
    pub(super) fn finish(mut self) -> Result<(Payload, Vec<NamedBytes>), Reason> {
        for output in self.part.graph.outputs.iter().filter_map(Argument::var) {
            let value =
                if self.is_nhwc_output(output) { self.as_nhwc(output)? } else { self.as_nchw(output)? };
            self.payload.outputs.push(value);
        }
        Ok((self.payload, self.named))
    }

    /// Whether `var` is returned as an NHWC image if it is an output of the payload.
    pub(super) fn is_nhwc_output(&self, var: VarId) -> bool {
        self.part.spec(var).is_some_and(is_channels_last)
    }

    /// The role of a payload value for `var`, in image layout or not: an output if `var` leaves the payload in that
    /// layout, internal otherwise.
    fn role(&self, var: VarId, is_image: bool) -> Role {
        let id = self.outputs.get(&var).filter(|_| self.is_nhwc_output(var) == is_image);
        id.map_or(Role::Internal, |&id| Role::Output(id))
    }

    /// The upper bounds of a tensor's sizes.
    pub(super) fn dims(&self, var: VarId) -> Result<Vec<usize>, Reason> {
        let name = &self.part.var(var).name;
        let spec = self.part.spec(var).ok_or_else(|| format!("%{name} is no tensor"))?;
        let max = spec.sizes.iter().map(|size| usize::try_from(size.bounds(&self.part.ranges).max));
        max.collect::<Result<_, _>>().map_err(|_| format!("%{name} has a size without a bound"))
    }

    fn add_value(&mut self, dims: Vec<usize>, role: Role) -> usize {
        let index = self.payload.values.len();
        self.payload.values.push(Value {
            id: index as u32,
            datatype: Datatype::Fp32,
            dims,
            role,
            quantization: Quantization::None,
            quantized_by_row: false,
        });
        index
    }

    /// Adds a payload value for a value of the partition, with its quantization if it is int8.
    fn add_typed_value(&mut self, var: VarId, dims: Vec<usize>, role: Role) -> Result<usize, Reason> {
        let is_int8 = self.is_int8(var);
        let affine = self.quantization.affine_of(var).filter(|_| is_int8);
        if is_int8 != affine.is_some() {
            return Err(format!("nothing says what the numbers of %{} stand for", self.part.var(var).name));
        }
        let value = self.add_value(dims, role);
        if let Some(Affine { scale, zero }) = affine {
            let quantization = Quantization::PerTensor { scale, zero_point: zero };
            self.set_type(value, Datatype::Qint8, quantization);
        }
        Ok(value)
    }

    /// Whether a value of the partition is int8.
    pub(super) fn is_int8(&self, var: VarId) -> bool {
        self.part.spec(var).is_some_and(|spec| spec.dtype == ScalarType::Char)
    }

    pub(super) fn set_type(&mut self, value: usize, datatype: Datatype, quantization: Quantization) {
        let value = &mut self.payload.values[value];
        (value.datatype, value.quantization) = (datatype, quantization);
    }

    /// Adds an intermediate value with the type and quantization of the payload value `like`.
    pub(super) fn add_temporary(&mut self, dims: Vec<usize>, like: usize) -> usize {
        let value = self.add_value(dims, Role::Internal);
        let Value { datatype, quantization, .. } = self.payload.values[like].clone();
        self.set_type(value, datatype, quantization);
        value
    }

    /// Adds a constant value with these bytes.
    pub(super) fn add_constant(&mut self, bytes: Vec<u8>, dims: Vec<usize>) -> usize {
        let index = self.add_constant_bytes("", Arc::new(bytes));
        self.add_value(dims, Role::Constant(index))
    }

    /// Adds a constant with these bytes, unless there is one already, and returns the constant's index. The key of the constant is `prefix`
    /// followed by the SHA-256 of the bytes.
    pub(super) fn add_constant_bytes(&mut self, prefix: &str, bytes: SharedBytes) -> usize {
        let key = format!("{prefix}{}", Digest::hex_digest(reopen_or_share(&bytes).bytes()));
        let size = bytes.len() as u64;
        *self.by_key.entry(key.clone()).or_insert_with(|| {
            self.payload.constants.push(Constant::Named { key: key.clone(), size });
            self.named.push(NamedBytes { key, bytes, alignment: ALIGNMENT });
            self.payload.constants.len() - 1
        })
    }

    /// The quantized value that a value of the partition dequantizes.
    fn quantized_of(&self, var: VarId) -> Option<VarId> {
        self.quantization.dequantized_source(var).map(|(int8, _)| int8)
    }

    /// Whether the payload already has a value for a value of the partition.
    fn is_defined(&self, var: VarId) -> bool {
        self.layouts.get(&var).is_some_and(|layouts| layouts.nhwc.is_some() || layouts.nchw.is_some())
    }

    /// Adds a constant value with these float elements.
    pub(super) fn add_float_constant(&mut self, elements: &[f32], dims: Vec<usize>) -> usize {
        self.add_constant(elements.iter().flat_map(|x| x.to_le_bytes()).collect(), dims)
    }

    /// A value of the partition in its original dimension order.
    pub(super) fn as_nchw(&mut self, var: VarId) -> Result<usize, Reason> {
        // In the order of their cost: the value itself, a transpose of the image, a conversion of the int8 value (which
        // is left out when all users compute on the int8 value), and a constant, which is stored when a node reads it.
        let layouts = self.layouts.get(&var).copied().unwrap_or_default();
        if let Some(value) = layouts.nchw {
            return Ok(value);
        }
        if let Some(image) = layouts.nhwc {
            let value = self.define_nchw(var)?;
            self.add_node(Op::Transpose { perm: NHWC_TO_NCHW.to_vec() }, vec![image], vec![value]);
            return Ok(value);
        }
        if let Some(int8) = self.quantized_of(var) {
            let (input, value) = (self.as_nchw(int8)?, self.define_nchw(var)?);
            self.add_node(Op::Convert, vec![input], vec![value]);
            return Ok(value);
        }
        let dims = self.dims(var)?;
        let index = self.add_constant_bytes("", self.bytes_of(var)?);
        let value = self.add_typed_value(var, dims, Role::Constant(index))?;
        self.layouts.entry(var).or_default().nchw = Some(value);
        Ok(value)
    }

    /// A 4D value of the partition as an NHWC image.
    pub(super) fn as_nhwc(&mut self, var: VarId) -> Result<usize, Reason> {
        let layouts = self.layouts.get(&var).copied().unwrap_or_default();
        if let Some(value) = layouts.nhwc {
            return Ok(value);
        }
        if let (None, Some(int8)) = (layouts.nchw, self.quantized_of(var)) {
            let (input, value) = (self.as_nhwc(int8)?, self.define_nhwc(var)?);
            self.add_node(Op::Convert, vec![input], vec![value]);
            return Ok(value);
        }
        let value = match layouts.nchw {
            // Constants are transposed now, so that no runtime has to do it.
            None if is_constant(self.part, var) && !self.is_int8(var) => {
                let dims = self.dims(var)?;
                let elements = permute_elements(&floats(self.part, var), &dims, &NCHW_TO_NHWC);
                self.add_float_constant(&elements, NCHW_TO_NHWC.map(|d| dims[d]).to_vec())
            }
            _ => {
                let (nchw, value) = (self.as_nchw(var)?, self.define_nhwc(var)?);
                self.add_node(Op::Transpose { perm: NCHW_TO_NHWC.to_vec() }, vec![nchw], vec![value]);
                value
            }
        };
        self.layouts.entry(var).or_default().nhwc = Some(value);
        Ok(value)
    }

    /// Whether a value is available as an NHWC image only.
    pub(super) fn is_only_nhwc(&self, var: VarId) -> bool {
        if let (false, Some(int8)) = (self.is_defined(var), self.quantized_of(var)) {
            return self.is_only_nhwc(int8);
        }
        self.layouts.get(&var).is_some_and(|layouts| layouts.nhwc.is_some() && layouts.nchw.is_none())
    }

    /// Adds a value for a node to write, in the original dimension order.
    pub(super) fn define_nchw(&mut self, var: VarId) -> Result<usize, Reason> {
        let (dims, role) = (self.dims(var)?, self.role(var, false));
        let value = self.add_typed_value(var, dims, role)?;
        self.layouts.entry(var).or_default().nchw = Some(value);
        Ok(value)
    }

    /// Adds a value for a node to write, as an NHWC image.
    pub(super) fn define_nhwc(&mut self, var: VarId) -> Result<usize, Reason> {
        let (dims, role) = (self.dims(var)?, self.role(var, true));
        let value = self.add_typed_value(var, NCHW_TO_NHWC.map(|d| dims[d]).to_vec(), role)?;
        self.layouts.entry(var).or_default().nhwc = Some(value);
        Ok(value)
    }

    pub(super) fn dims_of_value(&self, value: usize) -> &[usize] {
        &self.payload.values[value].dims
    }

    fn bytes_of(&self, var: VarId) -> Result<SharedBytes, Reason> {
        self.part.row_major_bytes(var).ok_or_else(|| format!("%{} is not defined", self.part.var(var).name))
    }

    pub(super) fn add_node(&mut self, op: Op, inputs: Vec<usize>, outputs: Vec<usize>) {
        self.add_bounded_node(op, inputs, outputs, None);
    }

    pub(super) fn add_bounded_node(
        &mut self,
        op: Op,
        inputs: Vec<usize>,
        outputs: Vec<usize>,
        bounds: Option<(f32, f32)>,
    ) {
        let node = Node::new(op, inputs, outputs);
        let bounds = bounds.unwrap_or(node.bounds);
        self.payload.nodes.push(Node { bounds, debug_handle: self.handle, ..node });
    }
}

/// The elements of a tensor of these sizes with permuted dimensions: `perm` gives for each dimension of the result the
/// dimension of the input.
pub(super) fn permute_elements(from: &[f32], dims: &[usize], perm: &[usize]) -> Vec<f32> {
    let mut strides = vec![1; dims.len()];
    for d in (1..dims.len()).rev() {
        strides[d - 1] = strides[d] * dims[d];
    }
    let (sizes, steps): (Vec<usize>, Vec<usize>) = perm.iter().map(|&d| (dims[d], strides[d])).unzip();
    let mut to = Vec::with_capacity(from.len());
    let mut index = vec![0; sizes.len()];
    let mut at = 0;
    for _ in 0..from.len() {
        to.push(from[at]);
        for d in (0..sizes.len()).rev() {
            index[d] += 1;
            at += steps[d];
            if index[d] < sizes[d] {
                break;
            }
            at -= steps[d] * sizes[d];
            index[d] = 0;
        }
    }
    to
}
