//! Fused graphs: what a region of operator calls becomes before it runs fast.
//!
//! ```text
//! calls ─► Graph ─► normalize ─► fuse ─► layout ─► join ─► lower ─► Executable
//!          values,   constants    norms,   channels- one pass  weights packed,
//!          nodes     folded       clamps   last      for many  workspace planned
//! ```
//!
//! This is the only place that knows how operators fuse. It knows no file: a caller adds inputs,
//! constants and nodes ([`Graph::input`], [`Graph::constant`], [`Graph::node`]), operator calls as
//! [`Op::Call`], or the graph's own kinds of node where it has them ready. Calls that no pass knows
//! stay calls. Shapes are those of the values' metas; a graph is lowered again for others.
#![forbid(unsafe_code)]

mod attention;
mod bind;
mod cast;
mod executable;
mod graph;
mod group_factors;
mod layouts;
mod lower;
mod node;
mod packs;
mod passes;
mod plan;
mod pointwise;
mod prepared;
mod product;
mod quantized;
mod relayout;
mod step;
mod strided;
mod window;

pub use executable::Executable;
pub use graph::{Constant, Graph, Mark, SharedBytes, Value, ValueId};
pub use kernels::compute::{Affine, Binary, Isa, Quantization, Unary, WeightBits};
pub use node::{Attention, Call, CallArg, CallOut, Convolution, GroupFactors, Linear, Node, Op, Pool};
pub use node::{QuantizedConvolution, QuantizedInput, QuantizedLinear};
pub use packs::Packs;
pub use pointwise::{Instr, Program};
pub use prepared::prepare;
