//! How a CPU computes a graph: each operation becomes a [`Step`](step::Step), one file for each; weights are packed, the
//! workspace is planned, and the steps run in order. Another kind of processor would have a folder like this one: it
//! would read the same [operations](crate::ops) from a graph after the passes.

mod attention;
mod batch;
mod call;
mod cast;
mod channel_shuffle;
mod compile;
mod conv;
mod conv_chain;
mod conv_pass;
mod descriptions;
mod executable;
mod global_mean;
mod group_factors;
mod linear;
mod lookup;
mod lower;
mod lowering;
mod narrow;
mod operations;
mod pack_store;
mod packs;
mod parts;
mod placed;
mod plan;
mod pointwise;
mod pool;
mod prepared;
mod quantize;
mod quantized_conv;
mod quantized_linear;
mod quantized_product;
mod quantized_sum;
mod relayout;
mod row_norm;
mod step;
mod steps;
mod viewed;
mod weights;

pub(crate) use cast::convert_halves;
pub use executable::Executable;
pub use pack_store::PackStore;
pub use packs::{Packs, StoredWeights};
pub(crate) use pointwise::{InputIndex, Pass};
pub use prepared::prepare;
