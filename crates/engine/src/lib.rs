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
//! An [`Operation`] declares the memory layout that it requires of its operands and what can be fused into it, and
//! creates the [`Step`] that runs. Each operation is in one file of `steps/` with its step.
#![forbid(unsafe_code)]

mod descriptions;
mod executable;
pub mod fold;
mod graph;
mod layouts;
mod lower;
mod operands;
mod operation;
mod pack_store;
mod packs;
pub mod passes;
mod plan;
mod prepared;
mod steps;
mod strided;

pub use executable::Executable;
pub use graph::{
    Bytes, Call, CallArg, CallOut, Constant, Derivation, Graph, Identity, IntoKind, Kind, Mark, NodeId,
    SharedBytes, SourceId, Type, Value, ValueId,
};
pub use layouts::{LayoutReq, check_node};
pub use operands::Operands;
pub use operation::{Images, Lowered, Lowering, OpKind, Operation, as_op, operation};
pub use pack_store::PackStore;
pub use packs::{Packs, StoredWeights};
pub use prepared::prepare;
pub use pteron_kernels::compute::{Activation, Affine, ConvParams, Isa, Layout, Pooling, Quantization};
pub use pteron_kernels::compute::{WeightBits, Windows};
pub use pteron_operator::{Binary, Expression, Instr, Unary};
pub use steps::attention::{Attention, AttentionParts, ViewParts};
pub use steps::cast::Cast;
pub use steps::channel_shuffle::ChannelShuffle;
pub use steps::conv::Convolution;
pub use steps::conv_pass::ConvPass;
pub use steps::global_mean::GlobalMean;
pub use steps::group_factors::GroupFactors;
pub use steps::linear::Linear;
pub use steps::lookup::Lookup;
pub use steps::pointwise::Pointwise;
pub use steps::pool::Pool;
pub use steps::quantize::{Dequantize, Quantize};
pub use steps::quantized_conv::QuantizedConvolution;
pub use steps::quantized_linear::{QuantizedInput, QuantizedLinear};
pub use steps::quantized_sum::SumOfQuantized;
pub use steps::relayout::{Permute, Relayout, Reshape};
pub use steps::row_norm::RowNorm;
pub use steps::{Step, Writes};
