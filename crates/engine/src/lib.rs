//! Compiles graphs to executables: passes, lowering, steps.
//!
//! ```text
//! Graph of calls ─► passes ─────────────────────────► lower ─► Executable: steps in order
//!                   calls become operations,           weights packed,
//!                   nodes are fused, layouts chosen    workspace planned
//! ```
//!
//! A caller builds an [`pteron_ir::Graph`] of operator calls ([`Call`]), or of this crate's operations ([`OpKind`]), and
//! [`Executable::new`] runs the passes ([`passes::PASSES`]) and lowers it. Kernels declare what their calls mean
//! ([`pteron_operator::Kernel::meaning`]); this crate names no operator. Calls without a declared meaning stay calls. An
//! executable is specialized to the sizes of the values' metas; for other sizes the graph is lowered again.
//!
//! An [`Operation`] says what a node computes: its attributes, the memory layouts that it requires of its operands, what
//! can be fused into it; each is one file of `ops/`. How it is computed is the matter of `cpu/`, which lowers each
//! operation to a step, also one file for each. Another processor would be a folder beside `cpu/` that reads the same
//! operations ([`as_op`]) from a graph after the [portable passes](passes::PORTABLE).
#![forbid(unsafe_code)]

mod check;
mod cpu;
mod dequantized;
pub mod fold;
mod graph;
mod layouts;
mod operands;
mod operation;
mod ops;
pub mod passes;
mod strided;

pub use check::check_node;
pub use cpu::{Executable, PackStore, Packs, StoredWeights, prepare};
pub use graph::{
    Bytes, Call, CallArg, CallOut, Constant, Derivation, Graph, Identity, IntoKind, Kind, Mark, NodeId,
    SharedBytes, SourceId, Type, Value, ValueId,
};
pub use layouts::LayoutReq;
pub use operands::Operands;
pub use operation::{ImageLayouts, OpKind, Operation, as_op, operation};
pub use ops::attention::{Attention, AttentionParts, ViewParts};
pub use ops::cast::Cast;
pub use ops::channel_shuffle::ChannelShuffle;
pub use ops::conv::Convolution;
pub use ops::conv_pass::ConvPass;
pub use ops::global_mean::GlobalMean;
pub use ops::group_factors::GroupFactors;
pub use ops::linear::Linear;
pub use ops::lookup::Lookup;
pub use ops::pointwise::Pointwise;
pub use ops::pool::Pool;
pub use ops::quantize::{Dequantize, Quantize};
pub use ops::quantized_conv::QuantizedConvolution;
pub use ops::quantized_linear::{QuantizedInput, QuantizedLinear};
pub use ops::quantized_product::QuantizedProduct;
pub use ops::quantized_sum::SumOfQuantized;
pub use ops::relayout::{Permute, Relayout, Reshape};
pub use ops::row_norm::RowNorm;
pub use pteron_kernels::compute::{Activation, Affine, ConvParams, Isa, Layout, Pooling, Quantization};
pub use pteron_kernels::compute::{WeightBits, Windows};
pub use pteron_operator::{Binary, Expression, Instr, Unary};
