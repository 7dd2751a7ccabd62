use super::elementwise::{Binary, Unary};

/// An operation of a payload.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The operation that the node computes, with its parameters.
    pub op: Op,
    /// The name of the node's kind in the schema, without `XNN`.
    pub name: &'static str,
    /// The values that the node reads, by index. Fully connected nodes and convolutions read input, filter and an optional bias.
    pub inputs: Vec<usize>,
    /// The values that the node writes, by index.
    pub outputs: Vec<usize>,
    /// Minimum and maximum to which the node's results are clamped, if this kind of node clamps.
    pub bounds: (f32, f32),
    /// The raw flags of the file. `op` holds those that it depends on, except for TensorFlow's `SAME` padding.
    pub flags: u32,
    /// The node's id in the exporter's debug maps.
    pub debug_handle: u32,
}

impl Node {
    /// Whether the node clamps its results to bounds.
    pub fn is_bounded(&self) -> bool {
        self.bounds != (f32::NEG_INFINITY, f32::INFINITY)
    }
}

/// The operation of a node. Images are NHWC.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// An elementwise function of one value.
    Unary(Unary),
    /// An elementwise function of two values, with broadcasting.
    Binary(Binary),
    /// Conversion to another type or quantization.
    Convert,
    /// A copy of the input.
    Copy,
    /// Softmax over the last dimension.
    Softmax,
    /// `x` where it is positive, else `x` times the slope of its channel. Channels are the last dimension.
    PRelu,
    /// `x wᵀ + bias` over the last dimension; filters are `[out, in]`.
    FullyConnected {
        /// Whether filters are `[in, out]`.
        transposed: bool,
    },
    /// A convolution; filters are `[out, kh, kw, in / groups]`.
    Conv(Conv),
    /// A depthwise convolution; filters are `[1, kh, kw, out]`.
    DepthwiseConv(Conv),
    /// A transposed convolution; filters are `[out, kh, kw, in / groups]`.
    ConvTranspose(Conv),
    /// Average pooling over the pixels of each window; padding does not count.
    AvgPool(Pool),
    /// Max pooling over the pixels of each window.
    MaxPool(Pool),
    /// Max pooling with the index of each maximum in its window. Windows do not overlap.
    ArgMaxPool(Pool),
    /// The mean over height and width.
    GlobalAvgPool {
        /// Whether height and width are kept as dimensions of size 1.
        keep_dims: bool,
    },
    /// A permutation of the dimensions.
    Transpose {
        /// For each dimension of the result the dimension of the input.
        perm: Vec<usize>,
    },
    /// A reshape: the elements of the input with other sizes.
    Reshape {
        /// The sizes. At most one is 0 and is inferred from the number of elements.
        sizes: Vec<usize>,
    },
    /// A slice of consecutive elements in each dimension.
    Slice {
        /// The slice's start in each dimension.
        offsets: Vec<usize>,
        /// The slice's sizes. 0 means the rest of the dimension.
        sizes: Vec<usize>,
    },
    /// Padding with a constant.
    Pad {
        /// The number of elements added at the start of each dimension.
        pre: Vec<usize>,
        /// The number of elements added at the end of each dimension.
        post: Vec<usize>,
        /// The padding value.
        value: f32,
    },
    /// Concatenation of 2 to 5 values.
    Concat {
        /// The dimension along which values are concatenated.
        axis: usize,
    },
    /// Bilinear interpolation of an image to a new size.
    ResizeBilinear {
        /// Height of the result.
        height: usize,
        /// Width of the result.
        width: usize,
        /// Whether the centers of the corner pixels of input and result are aligned.
        align_corners: bool,
        /// Whether pixels are points at integer coordinates (TensorFlow's legacy mode).
        legacy: bool,
    },
    /// Batched matrix multiplication; the batch dimensions are broadcast.
    BatchMatMul {
        /// Whether the second operand is transposed.
        transposed: bool,
    },
    /// Attention. The schema has it, but no runtime implements it.
    ScaledDotProductAttention,
}

/// The parameters of a 2D convolution. Pairs are height, then width.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Conv {
    /// Zero padding at the top, right, bottom and left.
    pub padding: [usize; 4],
    /// The kernel size.
    pub kernel: [usize; 2],
    /// The stride; for a transposed convolution the stride in the result.
    pub stride: [usize; 2],
    /// The distance between the taps of a kernel or window.
    pub dilation: [usize; 2],
    /// Input channels per group.
    pub group_inputs: usize,
    /// Output channels per group.
    pub group_outputs: usize,
    /// The number of groups.
    pub groups: usize,
    /// Rows and columns added to the result of a transposed convolution.
    pub adjustment: [usize; 2],
}

impl Conv {
    /// The number of input channels of all groups.
    pub fn inputs(&self) -> usize {
        self.groups * self.group_inputs
    }

    /// The number of output channels of all groups.
    pub fn outputs(&self) -> usize {
        self.groups * self.group_outputs
    }
}

/// The parameters of a 2D pooling. Pairs are height, then width.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pool {
    /// Padding at the top, right, bottom and left. Padded positions do not count in any window.
    pub padding: [usize; 4],
    /// The window size.
    pub window: [usize; 2],
    /// The distance between windows.
    pub stride: [usize; 2],
    /// The distance between the taps of a kernel or window.
    pub dilation: [usize; 2],
}
