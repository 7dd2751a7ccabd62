//! From graphs to what runs: passes, lowering, steps.
//!
//! ```text
//! ir::Graph of calls ─► passes ─────────────────────────────► lower ─► Executable: steps in order
//!                       calls become the graph's own nodes,    weights packed,
//!                       nodes are joined, layouts chosen       workspace planned
//! ```
//!
//! A caller makes an [`ir::Graph`] of operator calls ([`Call`]), or of the kinds of node here where it has them
//! ready ([`Fused`]), and [`Executable::new`] runs the passes ([`passes::PASSES`]) and lowers it. What a call
//! means is said by its kernel ([`operator::Kernel::meaning`]); this crate names no operator. Calls of which
//! nothing is known stay calls. Sizes are those of the values' metas; a graph is lowered again for others.
//!
//! A kind of node is an [`Operation`]: it says how its operands must lie, what can be fused into it, and makes
//! the [`Step`] that runs. Each stands in one file of `steps/` with its step.
#![forbid(unsafe_code)]

mod descriptions;
mod executable;
pub mod fold;
mod graph;
mod layouts;
mod lower;
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
pub use kernels::compute::{Activation, Affine, ConvParams, Isa, Layout, Pooling, Quantization};
pub use kernels::compute::{WeightBits, Windows};
pub use layouts::{Lies, check_layout};
pub use operation::{Fused, Images, Lowered, Lowering, Operation, as_op, operation};
pub use operator::{Binary, Expression, Instr, Unary};
pub use pack_store::PackStore;
pub use packs::{Packs, StoredWeights};
pub use prepared::prepare;
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
