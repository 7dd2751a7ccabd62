//! What graph passes may know of an operator. A row of an operator table declares it, the kernel object carries
//! it, and a kernel that a user puts in another's place declares its own, or nothing: then its calls stay calls.

use crate::{Args, Expression};
use smallvec::SmallVec;
use tensor::Scalar;

/// A list of dimensions or sizes.
pub type Dims = SmallVec<[usize; 4]>;

/// How the results of a call in half precision follow from those of the same call in f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rounding {
    /// Unknown.
    #[default]
    Unknown,
    /// They are the same: results are elements of what is read, or of the same magnitude.
    Exact,
    /// They are the same if the numbers that the call names are of the type of half precision.
    ExactWithNumbers,
    /// They are those of f32, rounded once.
    Once,
    /// They are those of f32, rounded once, of the numbers that the call names, which are rounded to the type before.
    OnceWithNumbers,
}

/// What graph passes may know of an operator beside what a call means ([`Meaning`]).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// It moves or repeats elements of its tensors and computes none.
    pub moves: bool,
    /// Half precision as f32.
    pub rounding: Rounding,
    /// Its kernel takes images in any dim order, each in the same, and writes images in that.
    pub any_layout: bool,
    /// It overwrites every byte of the argument that it writes, though that is not an out: what was there
    /// before is not read.
    pub overwrites: bool,
}

impl Facts {
    /// Nothing known.
    pub const NONE: Self =
        Self { moves: false, rounding: Rounding::Unknown, any_layout: false, overwrites: false };
}

/// Says what a call means, from its arguments: tensors are [`Arg::Spec`](crate::Arg::Spec)s or views. `None`
/// for a call of which nothing is to be known.
pub type MeaningFn = fn(&Args<'_>) -> Option<Meaning>;

/// What a call computes, in terms that passes know: how it lowers to a node. Operands are given by the
/// positions of the arguments; where none is, the only tensor is the first.
///
/// A meaning holds for the general case: passes check types, sizes and layouts themselves.
#[derive(Debug, Clone, PartialEq)]
pub enum Meaning {
    /// An expression over the tensors, which are broadcast.
    Elementwise(Expression),
    /// The elements of the first tensor, in order, under the sizes and in the layout of the result, if they
    /// are as many.
    Same,
    /// A view of the first tensor.
    View(ViewOf),
    /// A product with a matrix, and a bias.
    Product(Product),
    /// The product of two batches of matrices, arguments 0 and 1.
    BatchProduct,
    /// A convolution.
    Convolution(Convolution),
    /// `(x - mean) / sqrt(variance + eps) * weight + bias` for each channel, dimension 1. Arguments 0 to 4:
    /// `x`, weight, bias, mean, variance, of which all but the first may be absent; the first result.
    BatchNorm {
        /// Added to the variance.
        eps: f64,
    },
    /// Group normalisation of images `[N, C, space..]`. Arguments 0 to 2: image, weight, bias, of which the
    /// latter two may be absent; the first result.
    GroupNorm(GroupNorm),
    /// `(x - mean) / sqrt(variance + eps) * weight + bias` over the last dimensions. Arguments 0, 2 and 3: `x`, weight,
    /// bias, of which the latter two may be absent; the first result.
    LayerNorm {
        /// Elements over which mean and variance are taken.
        elements: usize,
        /// Added to the variance.
        eps: f64,
    },
    /// The mean over these dimensions.
    Mean(Dims),
    /// The variance of the whole population over these dimensions; the second result, if there is one, is the mean.
    Variance(Dims),
    /// A pooling of images `[.., H, W]`; the first result.
    Pool(PoolOf),
    /// `e^x / sum(e^x)` along a dimension.
    Softmax(usize),
    /// A tensor of one number.
    Fill(Scalar),
    /// Elements of argument 1 where argument 0 is true, otherwise of argument 2.
    Where,
    /// Whether an element is zero.
    Not,
    /// Whether any element along a dimension is other than zero; the dimension stays, of size one.
    Any(usize),
    /// The largest element along these dimensions, which stay, of size one.
    Largest(Dims),
    /// Whether an element is this number.
    Equals(Scalar),
    /// Real numbers as quantized values.
    Quantize(Affinity),
    /// Quantized values as the real numbers that they stand for.
    Dequantize(Affinity),
    /// The parameters of a quantization, chosen from the elements: the results are scale and zero point.
    ChooseAffinity(Choice),
}

/// See [`Meaning::View`].
#[derive(Debug, Clone, PartialEq)]
pub enum ViewOf {
    /// Dimensions in another order: the `i`th is the input's `dims[i]`th.
    Permute(Dims),
    /// Broadcast to the sizes of the result.
    Expand,
    /// One index of a dimension, which goes.
    Select {
        /// The dimension.
        dim: usize,
        /// The index.
        index: usize,
    },
    /// Every `step`th index of a dimension from `start` to before `end`.
    Slice {
        /// The dimension.
        dim: usize,
        /// The first.
        start: usize,
        /// Where it ends.
        end: usize,
        /// The step, 1 or more.
        step: usize,
    },
}

/// See [`Meaning::Product`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// The argument whose last dimension is summed over.
    pub x: usize,
    /// The rank that `x` must have, if it must.
    pub rank: Option<usize>,
    /// The matrix.
    pub weights: usize,
    /// Whether the matrix is `[out, in]`; otherwise it is `[in, out]`.
    pub out_major: bool,
    /// The argument that is added, broadcast.
    pub bias: Option<usize>,
}

/// See [`Meaning::Convolution`]: of argument 0, images `[N, C, space..]`, with the weights of argument 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Convolution {
    /// The argument that is added, an element for each output channel.
    pub bias: Option<usize>,
    /// For each dimension of space, or one for all.
    pub stride: Dims,
    /// Likewise.
    pub padding: Dims,
    /// Likewise.
    pub dilation: Dims,
    /// Whether it is the transpose of a convolution.
    pub transposed: bool,
    /// Pixels added to the output at one end, of a transposed convolution.
    pub output_padding: Dims,
    /// Groups of channels.
    pub groups: usize,
}

/// See [`Meaning::GroupNorm`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupNorm {
    /// Items of the batch.
    pub batch: usize,
    /// Channels.
    pub channels: usize,
    /// Pixels of an image.
    pub pixels: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f64,
}

/// See [`Meaning::Pool`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolOf {
    /// What is taken of a window.
    pub taken: Taken,
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// Pixels from one window to the next.
    pub stride: [usize; 2],
    /// Pixels before the first and after the last.
    pub padding: [usize; 2],
    /// Pixels from one pixel of a window to the next.
    pub dilation: [usize; 2],
    /// Whether a last window that is not whole counts.
    pub ceil: bool,
}

/// What a pooling takes of a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The greatest pixel.
    Greatest,
    /// The mean of the pixels in the image.
    Mean,
    /// The mean of the pixels in the image and its padding.
    MeanOfPadded,
    /// The sum of the pixels, divided by this.
    SumOver(i64),
}

/// How quantized values stand for real numbers: `(value - zero) * scale`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Affinity {
    /// By numbers of the call; values are clamped to `low..=high`.
    Known {
        /// The scale.
        scale: f64,
        /// The zero point.
        zero: i64,
        /// The least value.
        low: i64,
        /// The greatest value.
        high: i64,
    },
    /// By two vectors, one element of each for every index along a dimension.
    ByAxis {
        /// The argument that holds the scales.
        scales: usize,
        /// The argument that holds the zero points; zero if there is none.
        zeros: Option<usize>,
        /// The dimension.
        axis: usize,
    },
    /// By arguments 1 and 2, scale and zero point, tensors that an earlier call computed in this way; values
    /// are clamped to `low..=high`.
    Computed {
        /// Whether there is one for each row.
        by_row: bool,
        /// The least value.
        low: i64,
        /// The greatest value.
        high: i64,
    },
}

/// See [`Meaning::ChooseAffinity`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Choice {
    /// One scale and zero point, which fit all elements to `low..=high`.
    ByTensor {
        /// The least value.
        low: i64,
        /// The greatest value.
        high: i64,
        /// The least scale.
        eps: f64,
    },
    /// One of each for every row, which fit it to `i8`.
    ByRow,
}

/// A dimension that may be counted from the end, of so many; `None` if there is no such.
pub fn wrap(dim: i64, rank: usize) -> Option<usize> {
    let dim = if dim < 0 { dim.checked_add(i64::try_from(rank).ok()?)? } else { dim };
    usize::try_from(dim).ok().filter(|&d| d < rank)
}
