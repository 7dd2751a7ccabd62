//! Plain functions over slices: GEMM, convolution, reductions, elementwise maths, quantization. They work on shapes
//! and strides, and know nothing of operators or files.
//!
//! Each function takes the [`Isa`] whose instructions it may use and, if it can run in parallel, a thread pool.
//! Results do not depend on the number of threads. Functions panic only if the shapes or slices passed to them
//! contradict each other: callers validate whatever comes from files.

mod conv;
mod gemm;
mod lookup;
mod mat;
mod math;
mod packed_weights;
mod qconv;
mod qgemm;
mod quantize;
mod quantized_sum;
mod rows;
mod scratch;
mod simd;
mod split;
mod transpose;
mod window;

mod isa {
    pub use pteron_operator::{Feature, Features, Isa};
}

pub use conv::{
    Conv, ConvEpilogue, ConvFrame, ConvParams, ConvWeights, Layout, Link, Method, Tail, can_chain, chain,
    chain_pays, conv,
};
pub use gemm::{
    Activation, Bias, Epilogue, Lhs, PackedA, PackedB, Rhs, WeightStorage, WeightType, bmm, gemm,
};
pub use isa::{Feature, Features, Isa};
pub use lookup::lookup;
pub use mat::{MatMut, MatRef};
pub use math::{
    Binary, Logarithm, Unary, binary, binary_scalar, clamp, logarithm, map_elements, moduli, scale_add,
    unary, unary_in_place,
};
pub use packed_weights::{PackedWeightsReader, WeightBytes, weight_layout};
pub use qconv::{QuantizedConv, QuantizedConvOut, QuantizedImages};
pub use qgemm::{
    PackedWeights, QuantizedEpilogue, QuantizedMatrices, QuantizedOut, QuantizedRows, WeightBits, Weights,
    qgemm, qgemm_batch,
};
pub use quantize::{Affine, Quantization, dequantize, quantize, quantize_row};
pub use quantized_sum::{QuantizedSum, quantized_sum};
pub use rows::{
    Extremes, Ordered, affine, column_means, extremes, group_norm_factors, layer_norm, max, mean, mean_rstd,
    min, min_max, rms_norm, row_means, softmax, softmax_across, softmax_in_place, sum, sum_of_squares,
    wide_sum_of_squares,
};
pub(crate) use simd::{Op, Simd, dispatch};
pub use split::queries_at_once;
pub use transpose::copy;
pub use window::{MaxPoolElement, Pooling, Windows, max_pool, pool_windows};
