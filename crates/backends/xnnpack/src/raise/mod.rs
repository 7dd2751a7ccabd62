//! Raises a payload to the graph of a delegate call.
//!
//! Nodes become operator calls, or fused graph nodes where the graph has them. Images are NHWC in a payload and NCHW in
//! a graph: see [`layout`].

mod batches;
mod decoded;
mod dynamic;
mod elementwise;
mod emit;
mod image;
mod interface;
mod matmul;
mod movement;
mod quantized;
mod resize;

#[cfg(feature = "compile")]
pub(crate) use decoded::unpack_nibbles;
#[cfg(feature = "compile")]
pub(crate) use image::SAME_PADDING;

use crate::data::Data;
use crate::error::{Error, Result, fail, fail_sizes};
use crate::layout::{self, LayoutCache, LayoutViews, NCHW_TO_NHWC, NHWC_TO_NCHW};
use crate::payload::{Datatype, Node, Op, Payload, Role};
use emit::{Arg, Emit};
use pteron_engine::{Graph, ValueId};
use pteron_operator::KernelRegistry;
use pteron_runtime::GraphRequest;
use pteron_tensor::{ScalarType, TensorMeta};
use pteron_trace::Place;
use std::collections::HashSet;

/// Raises a payload to the graph for a request.
pub(crate) fn raise(
    payload: &Payload,
    data: &Data,
    kernels: &KernelRegistry,
    request: &GraphRequest<'_>,
) -> Result<Graph> {
    let values = vec![Slot::default(); payload.values.len()];
    let mut raise = Raise { payload, data, emit: Emit::new(kernels, request.bytes, &request.budget), values };
    raise.add_inputs(request.inputs)?;
    for (index, node) in payload.nodes.iter().enumerate() {
        raise.emit.graph.set_origin(Place::node(index as u32));
        raise.raise_node(node).map_err(|e| e.at_node(payload, index))?;
    }
    raise.emit.graph.set_origin(Place::default());
    raise.add_outputs(request)?;
    Ok(raise.emit.graph)
}

/// The nodes of a payload that cannot be raised, each with the reason. The outputs of such a node are replaced by
/// placeholders, so that the nodes after it are checked on their own. Nodes that read one of the values `unread`, or an
/// output for which there is no placeholder, are not checked.
pub(crate) fn refused_nodes(
    payload: &Payload,
    data: &Data,
    kernels: &KernelRegistry,
    request: &GraphRequest<'_>,
    unread: &[usize],
) -> Result<Vec<(usize, String)>> {
    let values = vec![Slot::default(); payload.values.len()];
    let mut raise = Raise { payload, data, emit: Emit::new(kernels, request.bytes, &request.budget), values };
    raise.add_inputs(request.inputs)?;
    let mut unread: HashSet<usize> = unread.iter().copied().collect();
    let mut refused = Vec::new();
    for (index, node) in payload.nodes.iter().enumerate() {
        let is_read = node.inputs.iter().all(|v| !unread.contains(v));
        match if is_read { raise.raise_node(node) } else { Ok(()) } {
            Ok(()) if is_read => continue,
            Ok(()) => {}
            Err(error) => refused.push((index, error.to_string())),
        }
        for &v in &node.outputs {
            if raise.add_placeholder(v).is_err() {
                unread.insert(v);
            }
        }
    }
    Ok(refused)
}

/// The graph values for a value of the payload.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// The value's sizes, once they are known.
    dims: Option<Vec<usize>>,
    layouts: LayoutCache<ValueId>,
    /// For a dynamically quantized value, the float value that it quantizes. The quantized value itself has no layout.
    dynamic_source: Option<usize>,
    /// For the result of a concatenation, the dimension and the values that were concatenated.
    concatenated: Option<(usize, Vec<usize>)>,
}

type Layout = layout::Layout<ValueId>;

struct Raise<'a> {
    payload: &'a Payload,
    data: &'a Data,
    emit: Emit<'a>,
    values: Vec<Slot>,
}

impl LayoutViews for Raise<'_> {
    type Id = ValueId;

    fn layouts(&mut self, v: usize) -> &mut LayoutCache<ValueId> {
        &mut self.values[v].layouts
    }

    fn load_constant(&mut self, v: usize) -> Result<ValueId> {
        self.constant(v)
    }

    fn rank(&self, id: ValueId) -> usize {
        self.emit.meta(id).rank()
    }

    fn rank_of(&mut self, v: usize) -> Result<usize> {
        Ok(self.payload.values[v].dims.len())
    }

    fn permute(&mut self, id: ValueId, order: &[usize]) -> Result<ValueId> {
        self.emit.permute(id, order)
    }

    fn per_channel(&mut self, vector: ValueId) -> Result<ValueId> {
        match self.emit.sizes(vector)[..] {
            [channels] if channels != 1 => self.emit.view(vector, &[channels, 1, 1]),
            _ => Ok(vector),
        }
    }

    fn payload_id(&self, v: usize) -> u32 {
        self.payload.values[v].id
    }
}

impl Raise<'_> {
    /// The sizes of a value.
    fn dims(&self, v: usize) -> Vec<usize> {
        let known = self.values[v].dims.as_ref();
        known.unwrap_or(&self.payload.values[v].dims).clone()
    }

    /// Adds a placeholder for a value, with its sizes at export. Fails for dynamically quantized values.
    fn add_placeholder(&mut self, v: usize) -> Result<()> {
        let value = &self.payload.values[v];
        if matches!(value.datatype, Datatype::Qdint8 | Datatype::Qpint8) || value.quantized_by_row {
            return fail(format!("value %{} is known by the node that writes it", value.id));
        }
        let meta = TensorMeta::contiguous(value.datatype.scalar_type(), &value.dims)?;
        let id = self.emit.graph.input(meta);
        self.set_layout(v, &value.dims, Layout::Nhwc(id))
    }

    fn datatype(&self, v: usize) -> Datatype {
        self.payload.values[v].datatype
    }

    /// Records a layout of a value; `dims` are its sizes in the payload's order.
    fn set_layout(&mut self, v: usize, dims: &[usize], layout: Layout) -> Result<()> {
        let value = &self.payload.values[v];
        if dims.len() != value.dims.len() {
            return fail_sizes(format!("value %{} of {dims:?} for {:?}", value.id, value.dims));
        }
        let slot = &mut self.values[v];
        slot.dims = Some(dims.to_vec());
        slot.layouts.set(layout);
        Ok(())
    }

    /// Records `id` as the only output of a node, in the payload's dimension order.
    fn set_nhwc(&mut self, node: &Node, id: ValueId) -> Result<()> {
        let dims = self.emit.sizes(id);
        self.set_layout(node.outputs[0], &dims, Layout::Nhwc(id))
    }

    /// Records `id` as the only output of a node, which is an NCHW image.
    fn set_nchw(&mut self, node: &Node, id: ValueId) -> Result<()> {
        let sizes = self.emit.sizes(id);
        let dims = NCHW_TO_NHWC.map(|d| sizes[d]);
        self.set_layout(node.outputs[0], &dims, Layout::Nchw(id))
    }

    /// Records `id` as the only output of a node, in the same layout as `like`.
    fn set_like(&mut self, node: &Node, like: Layout, id: ValueId) -> Result<()> {
        match like {
            Layout::Nhwc(_) => self.set_nhwc(node, id),
            Layout::Nchw(_) => self.set_nchw(node, id),
        }
    }

    fn constant(&mut self, v: usize) -> Result<ValueId> {
        let value = &self.payload.values[v];
        if matches!(value.datatype, Datatype::Qcint4 | Datatype::Qbint4)
            || !matches!(value.role, Role::Constant(_))
        {
            return fail(format!("value %{} of {} cannot be read here", value.id, value.datatype.name()));
        }
        let meta = TensorMeta::contiguous(value.datatype.scalar_type(), &value.dims)?;
        let constant = self.data.graph_constant(value)?;
        Ok(self.emit.graph.constant(meta, constant))
    }

    fn raise_node(&mut self, node: &Node) -> Result<()> {
        if node
            .inputs
            .iter()
            .any(|&v| self.values[v].dynamic_source.is_some() || self.payload.values[v].quantized_by_row)
        {
            return self.raise_dynamically_quantized(node);
        }
        match &node.op {
            Op::Unary(f) => self.unary(node, *f),
            Op::Binary(f) => self.binary(node, *f),
            Op::Convert => self.convert(node),
            Op::Copy => {
                let layout = self.available_layout(node.inputs[0])?;
                self.set_like(node, layout, layout.id())
            }
            Op::Softmax => self.softmax(node),
            Op::PRelu => self.prelu(node),
            Op::FullyConnected { transposed } => self.fully_connected(node, *transposed),
            Op::Conv(conv) => self.convolution(node, conv),
            Op::DepthwiseConv(conv) => self.depthwise(node, conv),
            Op::ConvTranspose(conv) => self.transposed_convolution(node, conv),
            Op::AvgPool(pool) => self.avg_pool(node, pool),
            Op::MaxPool(pool) => self.max_pool(node, pool),
            Op::ArgMaxPool(pool) => self.arg_max_pool(node, pool),
            Op::GlobalAvgPool { keep_dims } => self.global_avg_pool(node, *keep_dims),
            Op::Transpose { perm } => self.transpose(node, perm),
            Op::Reshape { sizes } => self.reshape(node, sizes),
            Op::Slice { offsets, sizes } => self.slice(node, offsets, sizes),
            Op::Pad { pre, post, value } => self.pad(node, pre, post, *value),
            Op::Concat { axis } => self.concat(node, *axis),
            Op::ResizeBilinear { height, width, align_corners, legacy } => {
                self.resize(node, [*height, *width], *align_corners, *legacy)
            }
            Op::BatchMatMul { transposed } => self.batch_mat_mul(node, *transposed),
            Op::ScaledDotProductAttention => fail("no runtime has this kind of node"),
        }
    }

    /// Clamps float results to a node's bounds.
    fn clamp_to_bounds(&mut self, node: &Node, id: ValueId) -> Result<ValueId> {
        let (low, high) = node.bounds;
        let bound = |x: f32| if x.is_finite() { Arg::Double(f64::from(x)) } else { Arg::Absent };
        let (dtype, sizes) = (self.emit.dtype(id), self.emit.sizes(id));
        match (low.is_finite(), high.is_finite()) {
            (false, false) => Ok(id),
            (true, false) if low == 0.0 => {
                self.emit.call("aten::relu.out", vec![Arg::Tensor(id)], dtype, &sizes)
            }
            _ => {
                let args = vec![Arg::Tensor(id), bound(low), bound(high)];
                self.emit.call("aten::clamp.out", args, dtype, &sizes)
            }
        }
    }

    /// Fails unless all values of a node have the same float type.
    fn check_same_float_type(&self, node: &Node) -> Result<()> {
        self.check_float_types(node)?;
        let mut types = node.inputs.iter().chain(&node.outputs).map(|&v| self.datatype(v));
        let first = types.next();
        if types.all(|d| Some(d) == first) { Ok(()) } else { Err(self.unsupported_error(node)) }
    }

    /// Fails unless all values of a node have float types.
    fn check_float_types(&self, node: &Node) -> Result<()> {
        let is_float =
            |&v: &usize| matches!(self.datatype(v), Datatype::Fp32 | Datatype::Fp16 | Datatype::Bf16);
        if node.inputs.iter().chain(&node.outputs).all(is_float) {
            Ok(())
        } else {
            Err(self.unsupported_error(node))
        }
    }

    /// The type that a node of float operands computes in: the type that all operands and the output have, or float32
    /// if they differ. Exporters keep static weights of half-precision networks in float32.
    fn common_type(&self, node: &Node, operands: &[ValueId]) -> ScalarType {
        let to = self.datatype(node.outputs[0]).scalar_type();
        if operands.iter().all(|&id| self.emit.dtype(id) == to) { to } else { ScalarType::Float }
    }

    fn unsupported_error(&self, node: &Node) -> Error {
        let name = |&v: &usize| self.datatype(v).name();
        let list = |vs: &[usize]| vs.iter().map(name).collect::<Vec<_>>().join(", ");
        Error::new(format!(
            "from {} to {} is not supported here; export the program with other quantization of this operator",
            list(&node.inputs),
            list(&node.outputs)
        ))
    }
}
