//! What graph passes may assume about an operator. A row of an operator table declares it and the kernel object carries
//! it. A user's kernel that replaces another declares its own facts, or none: then passes leave its calls alone.

use crate::{Args, Expression};
use pteron_tensor::Scalar;
use smallvec::SmallVec;

/// A list of dimensions or sizes.
pub type Dims = SmallVec<[usize; 4]>;

/// How the results of a call in half precision relate to those of the same call in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// Nothing is known about how the half-precision results relate to the f32 results.
    #[default]
    Unknown,
    /// The half-precision results equal the f32 results: each is an element that was read, or has the magnitude of one.
    Exact,
    /// The half-precision and f32 results are equal if the half-precision type represents the call's scalar arguments
    /// exactly.
    ExactWithNumbers,
    /// The half-precision results are the f32 results, rounded once.
    Once,
    /// The half-precision results are the f32 results, rounded once, if the call's scalar arguments are first rounded
    /// to the half-precision type.
    OnceWithNumbers,
}

/// What graph passes may assume about an operator, besides the [`Meaning`] of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Whether the operator only moves or repeats elements of its tensors and computes none.
    pub moves: bool,
    /// How the operator's results in half precision relate to those in f32.
    pub rounding: Rounding,
    /// Whether the kernel accepts images in any dim order, if all have the same one, and writes images in that order.
    pub any_layout: bool,
    /// Whether the operator overwrites every byte of its written argument, although that argument is not an out, and
    /// does not read the previous contents.
    pub overwrites: bool,
}

impl Facts {
    /// The facts of an operator of which nothing is known.
    pub const NONE: Self =
        Self { moves: false, rounding: Rounding::Unknown, any_layout: false, overwrites: false };
}

/// Gives the meaning of a call from its arguments, of which tensors are [`Arg::Spec`](crate::Arg::Spec) or
/// [`Arg::Tensor`](crate::Arg::Tensor). `None` if passes must leave the call alone.
pub type MeaningFn = fn(&Args<'_>) -> Option<Meaning>;

/// What a call computes, in terms that passes understand: how it lowers to a node. Operands are given as argument
/// positions; where none is given, the operand is the first tensor argument.
///
/// A meaning describes the general case: passes check types, sizes and layouts themselves.
#[derive(Debug, Clone, PartialEq)]
pub enum Meaning {
    /// An elementwise expression over the tensors, which are broadcast.
    Elementwise(Expression),
    /// A reshape: the elements of the first tensor, in order, with the sizes and the layout of the result, if the
    /// number of elements is the same.
    Reshape,
    /// A view of the first tensor argument.
    View(ViewOf),
    /// A matrix product with an optional bias.
    MatMul(MatMul),
    /// The batched matrix product of arguments 0 and 1.
    BatchMatMul,
    /// A convolution.
    Convolution(Convolution),
    /// `(x - mean) / sqrt(variance + eps) * weight + bias` for each channel (dimension 1). Arguments 0 to 4 are `x`,
    /// weight, bias, mean and variance; all but `x` may be absent. Only the call's first result is described.
    BatchNorm {
        /// The value added to the variance.
        eps: f64,
    },
    /// Group normalisation of images `[N, C, space..]`. Arguments 0 to 2 are image, weight and bias; weight and bias
    /// may be absent. Only the call's first result is described.
    GroupNorm(GroupNorm),
    /// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimensions. Arguments 0, 2 and 3 are `x`,
    /// weight and bias; weight and bias may be absent. Only the call's first result is described.
    LayerNorm {
        /// The number of elements in each normalized row.
        elements: usize,
        /// The value added to the variance.
        eps: f64,
    },
    /// The mean over these dimensions; over all if there are none.
    Mean(Dims),
    /// The population variance over these dimensions, over all if there are none; a second result is the mean.
    Variance(Dims),
    /// A pooling of images `[.., H, W]`. Only the call's first result is described.
    Pool(Pool2d),
    /// `e^x / sum(e^x)` along this dimension.
    Softmax(usize),
    /// The tensors of argument 0, one after another along this dimension, which counts from the last if it is negative.
    Concatenation(i64),
    /// A tensor with every element equal to this scalar.
    Fill(Scalar),
    /// The elements of argument 1 where argument 0 is true, otherwise those of argument 2.
    Where,
    /// Whether each element is zero: logical not.
    Not,
    /// Whether any element along this dimension is nonzero; the dimension is kept with size one.
    Any(usize),
    /// The largest element along these dimensions, or along all if there are none; they are kept with size one.
    Amax(Dims),
    /// Whether each element equals this scalar.
    Equals(Scalar),
    /// Quantization of real values.
    Quantize(QParams),
    /// Dequantization of quantized values.
    Dequantize(QParams),
    /// Quantization parameters chosen from the elements: the results are scale and zero point.
    ChooseQParams(ChooseQParams),
}

/// The kinds of views of a tensor: see [`Meaning::View`].
#[derive(Debug, Clone, PartialEq)]
pub enum ViewOf {
    /// A permutation: dimension `i` of the result is dimension `dims[i]` of the input.
    Permute(Dims),
    /// Broadcast to the sizes of the result.
    Expand,
    /// Selects one index of a dimension, and removes the dimension.
    Select {
        /// The dimension from which the index is selected.
        dim: usize,
        /// The index that is selected.
        index: usize,
    },
    /// Every `step`th index in `start..end` of a dimension.
    Slice {
        /// The dimension that is sliced.
        dim: usize,
        /// The first index.
        start: usize,
        /// One past the last index.
        end: usize,
        /// The step, at least 1.
        step: usize,
    },
}

/// A matrix product: see [`Meaning::MatMul`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatMul {
    /// The position of the argument that is the left operand; its last dimension is summed over.
    pub x: usize,
    /// The rank that the left operand must have; `None` if it may have any.
    pub rank: Option<usize>,
    /// The position of the argument that is the weight matrix.
    pub weights: usize,
    /// Whether the weight matrix is `[out, in]`; otherwise it is `[in, out]`.
    pub out_major: bool,
    /// The position of the bias argument, which is broadcast; `None` without a bias.
    pub bias: Option<usize>,
}

/// A convolution of argument 0, images `[N, C, space..]`, with argument 1, the weights: see [`Meaning::Convolution`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Convolution {
    /// The position of the bias argument, which has one element for each output channel; `None` without a bias.
    pub bias: Option<usize>,
    /// The stride for each spatial dimension, or one for all.
    pub stride: Dims,
    /// The padding for each spatial dimension, or one for all.
    pub padding: Dims,
    /// The dilation for each spatial dimension, or one for all.
    pub dilation: Dims,
    /// Whether it is a transposed convolution.
    pub transposed: bool,
    /// The output padding of a transposed convolution: pixels added at one end of the output.
    pub output_padding: Dims,
    /// The number of channel groups.
    pub groups: usize,
}

/// A group normalisation: see [`Meaning::GroupNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNorm {
    /// The batch size.
    pub batch: usize,
    /// The number of channels.
    pub channels: usize,
    /// The number of pixels of an image.
    pub pixels: usize,
    /// The number of channel groups.
    pub groups: usize,
    /// The value added to the variance.
    pub eps: f64,
}

/// A pooling in two dimensions: see [`Meaning::Pool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool2d {
    /// How a window is reduced.
    pub reduce: PoolReduce,
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// Vertical and horizontal stride.
    pub stride: [usize; 2],
    /// Vertical and horizontal padding, on each side.
    pub padding: [usize; 2],
    /// Vertical and horizontal dilation.
    pub dilation: [usize; 2],
    /// Whether the output size is rounded up (`ceil_mode`), so that a last partial window is included.
    pub ceil: bool,
}

/// How a pooling reduces a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PoolReduce {
    /// Max pooling.
    Max,
    /// Average pooling.
    Avg {
        /// Whether padding pixels count as zeros; otherwise the average is over pixels inside the image only.
        count_include_pad: bool,
    },
    /// The sum of the pixels, divided by this number (`divisor_override`).
    SumDiv(i64),
}

/// Affine quantization: a quantized value represents the real number `(value - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QParams {
    /// Parameters given as scalars of the call; values are clamped to `low..=high`.
    PerTensor {
        /// The scale.
        scale: f64,
        /// The zero point.
        zero: i64,
        /// The smallest quantized value.
        low: i64,
        /// The largest quantized value.
        high: i64,
    },
    /// Per-channel parameters: two vectors with an element for every index along a dimension.
    PerChannel {
        /// The position of the argument that holds the scales.
        scales: usize,
        /// The position of the argument that holds the zero points; `None` if they are all zero.
        zeros: Option<usize>,
        /// The dimension of the tensor whose indices select scale and zero point.
        axis: usize,
    },
    /// Dynamic parameters: scale and zero point are the tensors of arguments 1 and 2, which an earlier call computed
    /// ([`ChooseQParams`]); values are clamped to `low..=high`.
    Dynamic {
        /// Whether there is a scale and a zero point for each row (per-token quantization).
        by_row: bool,
        /// The smallest quantized value.
        low: i64,
        /// The largest quantized value.
        high: i64,
    },
}

/// How scale and zero point are chosen: see [`Meaning::ChooseQParams`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ChooseQParams {
    /// One scale and zero point that map the range of all elements to `low..=high`.
    PerTensor {
        /// The smallest quantized value.
        low: i64,
        /// The largest quantized value.
        high: i64,
        /// The smallest scale.
        eps: f64,
    },
    /// A scale and a zero point for each row, which map the range of the row to that of `i8`.
    PerToken,
}

/// The index of dimension `dim` of a tensor of this rank, where a negative `dim` counts from the end. `None` if it is
/// out of range.
pub fn wrap(dim: i64, rank: usize) -> Option<usize> {
    let dim = if dim < 0 { dim.checked_add(i64::try_from(rank).ok()?)? } else { dim };
    usize::try_from(dim).ok().filter(|&d| d < rank)
}
