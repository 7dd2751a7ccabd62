//! What a graph computes: the operations, one file for each, with their attributes, the layouts of their operands, what
//! can be fused into them and what a valid node is. How a processor computes them is no concern of theirs: see
//! [`cpu`](crate::cpu).

pub(crate) mod attention;
pub(crate) mod cast;
pub(crate) mod channel_shuffle;
pub(crate) mod conv;
pub(crate) mod conv_chain;
pub(crate) mod conv_pass;
pub(crate) mod global_mean;
pub(crate) mod group_factors;
pub(crate) mod linear;
pub(crate) mod lookup;
pub(crate) mod pointwise;
pub(crate) mod pool;
pub(crate) mod quantize;
pub(crate) mod quantized_conv;
pub(crate) mod quantized_linear;
pub(crate) mod quantized_product;
pub(crate) mod quantized_sum;
pub(crate) mod relayout;
pub(crate) mod row_norm;
pub(crate) mod viewed;
