//! Converts a payload back to operators of an exported program: the inverse of `lower`.
//!
//! All values are float here: a quantized value is quantized and dequantized again after the node that writes it, in
//! the form of quantized exported programs (`quantized_decomposed`). Images are NHWC in a payload and NCHW in a
//! program, so a value has two layouts, as in `raise`; the second is added when a node needs it. Sizes are derived from
//! the sizes of the call's inputs, symbolic or not.

mod elementwise;
mod emit;
mod image;
mod interface;
mod keyed_bytes;
mod matmul;
mod movement;
mod quantized;

use crate::data::Data;
use crate::delegate::inputs_of_calls;
use crate::error::{Error, Result, fail};
use crate::layout::{self, LayoutCache, LayoutViews, NCHW_TO_NHWC, NHWC_TO_NCHW};
use crate::payload::{Node, Op, Payload};
use crate::{BACKEND_ID, XnnpackBackend};
use keyed_bytes::KeyedBytes;
use pteron_exported::delegate::{DelegationError, LoweredCall, Recover};
use pteron_exported::{ExportedProgram, Size, VarId};
use pteron_operator::Budget;
use pteron_runtime::{FreeableBuffer, Limits, PayloadBackend};

/// Converts payloads back to operators.
#[derive(Debug, Clone, Copy, Default)]
pub struct XnnpackRecover;

impl Recover for XnnpackRecover {
    fn backend_id(&self) -> &str {
        BACKEND_ID
    }

    fn num_inputs(&self, processed: &[u8]) -> Result<usize, DelegationError> {
        read(processed).and_then(|payload| inputs_of_calls(&payload)).map_err(delegation_error)
    }

    fn recover(&self, call: &LoweredCall<'_>) -> Result<ExportedProgram, DelegationError> {
        recover(call).map_err(delegation_error)
    }
}

fn delegation_error(error: Error) -> DelegationError {
    DelegationError::Recover { backend_id: BACKEND_ID.to_owned(), problem: error.to_string() }
}

fn read(processed: &[u8]) -> Result<Payload> {
    XnnpackBackend::read(processed).map_err(Error::new)
}

fn recover(call: &LoweredCall<'_>) -> Result<ExportedProgram> {
    let payload = read(call.processed)?;
    let bytes = FreeableBuffer::from_bytes(call.processed).map_err(|e| Error::new(e.to_string()))?;
    let memory = Budget::new(Limits::default().memory);
    let data = Data::load(&payload, &bytes, Some(&KeyedBytes(call.named_data)), &memory)?;
    let mut program = ExportedProgram::new("payload");
    program.ranges = call.ranges.clone();
    let values = vec![Slot::default(); payload.values.len()];
    let mut recovery = Recovery { payload: &payload, data, program, values, has_payload_sizes: false };
    recovery.add_inputs(call.inputs)?;
    for (index, node) in payload.nodes.iter().enumerate() {
        recovery.recover_node(node).map_err(|e| e.at_node(&payload, index))?;
    }
    recovery.add_outputs(call.outputs)?;
    Ok(recovery.program)
}

/// The program's values for a value of the payload.
#[derive(Debug, Clone, Default)]
struct Slot {
    /// The value's sizes in the payload's order, once they are known.
    sizes: Option<Vec<Size>>,
    /// The dequantized value, in the layouts in which it is available.
    layouts: LayoutCache<VarId>,
    /// The quantized value, if the value is quantized, in the layout in which it was computed.
    quantized: Option<Layout>,
}

type Layout = layout::Layout<VarId>;

struct Recovery<'a> {
    payload: &'a Payload,
    data: Data,
    program: ExportedProgram,
    values: Vec<Slot>,
    /// Whether the call's specs list sizes in the payload's order, whatever their dim order is.
    has_payload_sizes: bool,
}

impl LayoutViews for Recovery<'_> {
    type Id = VarId;

    fn layouts(&mut self, v: usize) -> &mut LayoutCache<VarId> {
        &mut self.values[v].layouts
    }

    fn load_constant(&mut self, v: usize) -> Result<VarId> {
        self.constant(v)
    }

    fn rank(&self, id: VarId) -> usize {
        self.spec(id).rank()
    }

    fn rank_of(&mut self, v: usize) -> Result<usize> {
        Ok(self.sizes(v)?.len())
    }

    fn permute(&mut self, id: VarId, order: &[usize]) -> Result<VarId> {
        Recovery::permute(self, id, order)
    }

    fn per_channel(&mut self, vector: VarId) -> Result<VarId> {
        match &self.spec(vector).sizes[..] {
            [channels] if *channels != Size::Int(1) => {
                let sizes = vec![channels.clone(), Size::Int(1), Size::Int(1)];
                self.view(vector, sizes)
            }
            _ => Ok(vector),
        }
    }

    fn payload_id(&self, v: usize) -> u32 {
        self.payload.values[v].id
    }
}

impl Recovery<'_> {
    fn recover_node(&mut self, node: &Node) -> Result<()> {
        match &node.op {
            Op::Unary(f) => self.unary(node, *f),
            Op::Binary(f) => self.binary(node, *f),
            Op::Convert => self.convert(node),
            Op::Copy => {
                let layout = self.available_layout(node.inputs[0])?;
                self.store(node, layout)
            }
            Op::Softmax => self.softmax(node),
            Op::PRelu => self.prelu(node),
            Op::FullyConnected { transposed } => self.fully_connected(node, *transposed),
            Op::BatchMatMul { transposed } => self.batch_mat_mul(node, *transposed),
            Op::Conv(conv) => self.convolution(node, conv, &NHWC_TO_NCHW),
            Op::DepthwiseConv(conv) => self.convolution(node, conv, &[3, 0, 1, 2]),
            Op::ConvTranspose(conv) => self.transposed_convolution(node, conv),
            Op::AvgPool(pool) => self.avg_pool(node, pool),
            Op::MaxPool(pool) => self.max_pool(node, pool),
            Op::GlobalAvgPool { keep_dims } => self.global_avg_pool(node, *keep_dims),
            Op::ResizeBilinear { height, width, align_corners, legacy: false } => {
                self.resize(node, [*height, *width], *align_corners)
            }
            Op::Transpose { perm } => self.transpose(node, perm),
            Op::Reshape { sizes } => self.reshape(node, sizes),
            Op::Slice { offsets, sizes } => self.slice(node, offsets, sizes),
            Op::Pad { pre, post, value } => self.pad(node, pre, post, *value),
            Op::Concat { axis } => self.concat(node, *axis),
            Op::ArgMaxPool(_) | Op::ResizeBilinear { .. } | Op::ScaledDotProductAttention => {
                fail("no operator computes the same")
            }
        }
    }

    /// The sizes of a value in the payload's order.
    fn sizes(&mut self, v: usize) -> Result<Vec<Size>> {
        if self.values[v].sizes.is_none() {
            self.constant(v)?;
        }
        let sizes = self.values[v].sizes.clone();
        sizes.ok_or_else(|| Error::new(format!("value %{} is not there", self.payload.values[v].id)))
    }

    /// Records a dequantized layout of a value.
    fn set_layout(&mut self, v: usize, layout: Layout) -> Result<()> {
        let value = &self.payload.values[v];
        let sizes = self.spec(layout.id()).sizes.clone();
        let sizes = match layout {
            Layout::Nchw(_) => NCHW_TO_NHWC.map(|d| sizes[d].clone()).to_vec(),
            Layout::Nhwc(_) => sizes,
        };
        if sizes.len() != value.dims.len() {
            return fail(format!(
                "value %{} of {} dimensions has {}",
                value.id,
                sizes.len(),
                value.dims.len()
            ));
        }
        let slot = &mut self.values[v];
        slot.sizes = Some(sizes);
        slot.layouts.set(layout);
        Ok(())
    }

    /// Records the result of a node with one output, after conversion to the type and quantization of the output.
    fn store(&mut self, node: &Node, layout: Layout) -> Result<()> {
        let out = node.outputs[0];
        let layout = self.as_stored(node, out, layout)?;
        self.set_layout(out, layout)
    }

    /// As [`Self::store`], with the result clamped to the node's bounds.
    fn store_bounded(&mut self, node: &Node, layout: Layout) -> Result<()> {
        let var = self.clamp(layout.id(), node.bounds);
        self.store(node, layout.with_id(var))
    }

    fn unsupported_error(&self, node: &Node) -> Error {
        let name = |&v: &usize| self.payload.values[v].datatype.name();
        let list = |vs: &[usize]| vs.iter().map(name).collect::<Vec<_>>().join(", ");
        Error::new(format!("no operator computes {} from {}", list(&node.outputs), list(&node.inputs)))
    }
}
