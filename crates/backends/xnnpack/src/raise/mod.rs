//! From a payload to the graph of a call of its delegate.
//!
//! Nodes become operator calls, and where the graph has a kind of node for it, such nodes. Images are `[N, H, W, C]`
//! in a payload and `[N, C, H, W]` in a graph, so a value exists in two forms: as the payload has it, and as an
//! image. A transpose between the two moves nothing; only what needs the other form makes it.

mod batches;
mod decoded;
mod elementwise;
mod emit;
mod image;
mod interface;
mod layout;
mod product;
mod quantized;
mod resize;

#[cfg(feature = "compile")]
pub(crate) use image::SAME_PADDING;
#[cfg(feature = "compile")]
pub(crate) use quantized::nibbles;

use crate::data::Data;
use crate::error::{Error, Result, fail};
use crate::forms::{self, FROM_IMAGE, Forms, HasForms, TO_IMAGE};
use crate::payload::{Datatype, Node, Op, Payload, Role};
use emit::{Emit, In};
use graph::{Graph, ValueId};
use operator::KernelRegistry;
use runtime::GraphRequest;
use std::collections::HashSet;
use tensor::{ScalarType, TensorMeta};
use trace::Place;

/// The type by which a value's elements are stored.
pub(crate) fn scalar_type(datatype: Datatype) -> ScalarType {
    match datatype {
        Datatype::Fp32 | Datatype::Pfp32 => ScalarType::Float,
        Datatype::Fp16 => ScalarType::Half,
        Datatype::Bf16 => ScalarType::BFloat16,
        Datatype::Qint8 | Datatype::Qcint8 | Datatype::Qdint8 | Datatype::Qpint8 => ScalarType::Char,
        Datatype::Quint8 | Datatype::Qcint4 | Datatype::Qbint4 => ScalarType::Byte,
        Datatype::Qint32 | Datatype::Qcint32 | Datatype::Int32 => ScalarType::Int,
    }
}

/// Raises a payload to the graph of a call.
pub(crate) fn raise(
    payload: &Payload,
    data: &Data,
    kernels: &KernelRegistry,
    request: &GraphRequest<'_>,
) -> Result<Graph> {
    let values = vec![Slot::default(); payload.values.len()];
    let mut raise = Raise { payload, data, emit: Emit::new(kernels, request.bytes, &request.budget), values };
    raise.inputs(request.inputs)?;
    for (index, node) in payload.nodes.iter().enumerate() {
        raise.emit.graph.set_origin(Place::node(index as u32));
        raise.node(node).map_err(|e| e.at(payload, index))?;
    }
    raise.emit.graph.set_origin(Place::default());
    raise.outputs(request)?;
    Ok(raise.emit.graph)
}

/// The nodes of a payload that cannot be raised, each with the reason. The results of such a node are taken to be there,
/// so that the nodes behind it are looked at for themselves; nodes that read one of the values `unread`, or what has no
/// form in a graph but by a node that is refused, are not looked at.
pub(crate) fn refused_nodes(
    payload: &Payload,
    data: &Data,
    kernels: &KernelRegistry,
    request: &GraphRequest<'_>,
    unread: &[usize],
) -> Result<Vec<(usize, String)>> {
    let values = vec![Slot::default(); payload.values.len()];
    let mut raise = Raise { payload, data, emit: Emit::new(kernels, request.bytes, &request.budget), values };
    raise.inputs(request.inputs)?;
    let mut unread: HashSet<usize> = unread.iter().copied().collect();
    let mut refused = Vec::new();
    for (index, node) in payload.nodes.iter().enumerate() {
        let is_read = node.inputs.iter().all(|v| !unread.contains(v));
        match if is_read { raise.node(node) } else { Ok(()) } {
            Ok(()) if is_read => continue,
            Ok(()) => {}
            Err(error) => refused.push((index, error.to_string())),
        }
        for &v in &node.outputs {
            if raise.stand_in(v).is_err() {
                unread.insert(v);
            }
        }
    }
    Ok(refused)
}

/// A value of the payload in the graph.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// Its sizes, once they are known.
    dims: Option<Vec<usize>>,
    forms: Forms<ValueId>,
    /// The real value that it quantizes row by row, which is all there is of it.
    by_row: Option<usize>,
    /// The values that it is made of, one behind the other along a dimension.
    joined: Option<(usize, Vec<usize>)>,
}

type Form = forms::Form<ValueId>;

struct Raise<'a> {
    payload: &'a Payload,
    data: &'a Data,
    emit: Emit<'a>,
    values: Vec<Slot>,
}

impl HasForms for Raise<'_> {
    type Id = ValueId;

    fn forms(&mut self, v: usize) -> &mut Forms<ValueId> {
        &mut self.values[v].forms
    }

    fn unwritten(&mut self, v: usize) -> Result<ValueId> {
        self.constant(v)
    }

    fn rank(&self, id: ValueId) -> usize {
        self.emit.meta(id).rank()
    }

    fn permute(&mut self, id: ValueId, order: &[usize; 4]) -> Result<ValueId> {
        self.emit.permute(id, order)
    }

    fn id_of(&self, v: usize) -> u32 {
        self.payload.values[v].id
    }
}

impl Raise<'_> {
    /// The sizes of a value.
    fn dims(&self, v: usize) -> Vec<usize> {
        let known = self.values[v].dims.as_ref();
        known.unwrap_or(&self.payload.values[v].dims).clone()
    }

    /// Gives a value that no node has written, as it was when the program was exported.
    fn stand_in(&mut self, v: usize) -> Result<()> {
        let value = &self.payload.values[v];
        if matches!(value.datatype, Datatype::Qdint8 | Datatype::Qpint8) || value.quantized_by_row {
            return fail(format!("value %{} is known by the node that writes it", value.id));
        }
        let meta = TensorMeta::contiguous(scalar_type(value.datatype), &value.dims)?;
        let id = self.emit.graph.input(meta);
        self.set(v, &value.dims, Form::Plain(id))
    }

    fn datatype(&self, v: usize) -> Datatype {
        self.payload.values[v].datatype
    }

    /// Notes what a value is; `dims` are those that the payload's order gives.
    fn set(&mut self, v: usize, dims: &[usize], form: Form) -> Result<()> {
        let value = &self.payload.values[v];
        if dims.len() != value.dims.len() {
            return fail(format!("value %{} of {dims:?} for {:?}", value.id, value.dims));
        }
        let slot = &mut self.values[v];
        slot.dims = Some(dims.to_vec());
        slot.forms.set(form);
        Ok(())
    }

    /// Notes the only output of a node as it stands in the payload.
    fn set_plain(&mut self, node: &Node, id: ValueId) -> Result<()> {
        let dims = self.emit.sizes(id);
        self.set(node.outputs[0], &dims, Form::Plain(id))
    }

    /// Notes the only output of a node as an image.
    fn set_image(&mut self, node: &Node, id: ValueId) -> Result<()> {
        let sizes = self.emit.sizes(id);
        let dims = FROM_IMAGE.map(|d| sizes[d]);
        self.set(node.outputs[0], &dims, Form::Image(id))
    }

    /// Notes the only output of a node in the form of what it was made of.
    fn set_like(&mut self, node: &Node, like: Form, id: ValueId) -> Result<()> {
        match like {
            Form::Plain(_) => self.set_plain(node, id),
            Form::Image(_) => self.set_image(node, id),
        }
    }

    fn constant(&mut self, v: usize) -> Result<ValueId> {
        let value = &self.payload.values[v];
        if matches!(value.datatype, Datatype::Qcint4 | Datatype::Qbint4)
            || !matches!(value.role, Role::Constant(_))
        {
            return fail(format!("value %{} of {} cannot be read here", value.id, value.datatype.name()));
        }
        let meta = TensorMeta::contiguous(scalar_type(value.datatype), &value.dims)?;
        let constant = self.data.shared(value)?;
        Ok(self.emit.graph.constant(meta, constant))
    }

    fn node(&mut self, node: &Node) -> Result<()> {
        if node
            .inputs
            .iter()
            .any(|&v| self.values[v].by_row.is_some() || self.payload.values[v].quantized_by_row)
        {
            return self.of_rows(node);
        }
        match &node.op {
            Op::Unary(f) => self.unary(node, *f),
            Op::Binary(f) => self.binary(node, *f),
            Op::Convert => self.convert(node),
            Op::Copy => {
                let form = self.form(node.inputs[0])?;
                self.set_like(node, form, form.id())
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

    /// Real results within a node's bounds.
    fn bounded(&mut self, node: &Node, id: ValueId) -> Result<ValueId> {
        let (low, high) = node.bounds;
        let bound = |x: f32| if x.is_finite() { In::Real(f64::from(x)) } else { In::Absent };
        let (dtype, sizes) = (self.emit.dtype(id), self.emit.sizes(id));
        match (low.is_finite(), high.is_finite()) {
            (false, false) => Ok(id),
            (true, false) if low == 0.0 => {
                self.emit.call("aten::relu.out", vec![In::Tensor(id)], dtype, &sizes)
            }
            _ => {
                let args = vec![In::Tensor(id), bound(low), bound(high)];
                self.emit.call("aten::clamp.out", args, dtype, &sizes)
            }
        }
    }

    /// Fails where a node's values are not all of one of the real types.
    fn need_reals(&self, node: &Node) -> Result<()> {
        let types = node.inputs.iter().chain(&node.outputs).map(|&v| self.datatype(v));
        let real = |d: &Datatype| matches!(d, Datatype::Fp32 | Datatype::Fp16 | Datatype::Bf16);
        let found: Vec<Datatype> = types.collect();
        if found.iter().all(|d| real(d) && *d == found[0]) {
            return Ok(());
        }
        Err(self.unsupported(node))
    }

    fn unsupported(&self, node: &Node) -> Error {
        let name = |&v: &usize| self.datatype(v).name();
        let list = |vs: &[usize]| vs.iter().map(name).collect::<Vec<_>>().join(", ");
        Error::new(format!(
            "from {} to {} is not supported here; export the program with other quantization of this operator",
            list(&node.inputs),
            list(&node.outputs)
        ))
    }
}
