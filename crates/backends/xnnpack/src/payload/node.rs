/// An operation of a payload.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// The name of its kind in the schema, without `XNN`.
    pub name: &'static str,
    /// The values it reads, by index: of products and convolutions input, filter and, where there is one, bias.
    pub inputs: Vec<usize>,
    /// The values it writes, by index.
    pub outputs: Vec<usize>,
    /// Bounds of its results.
    pub bounds: (f32, f32),
    /// Flags as the file has them; those that matter are in `op`.
    pub flags: u32,
    /// The id by which debuggers know it.
    pub debug_handle: u32,
}

impl Node {
    /// Whether results have a bound.
    pub fn is_bounded(&self) -> bool {
        self.bounds != (f32::NEG_INFINITY, f32::INFINITY)
    }
}

/// What a node does. Images are `[N, H, W, C]`.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// An elementwise function; results are within the node's bounds.
    Unary(Unary),
    /// An elementwise function of two values that are broadcast to each other.
    Binary(Binary),
    /// Another type, or other quantization.
    Convert,
    /// The same elements.
    Copy,
    /// Softmax over the last dimension.
    Softmax,
    /// `x` where it is positive, else `x` times the slope of its channel, the last dimension.
    PRelu,
    /// `x wᵀ + bias` over the last dimension; filters are `[out, in]`.
    FullyConnected {
        /// Whether filters are `[in, out]`.
        transposed: bool,
    },
    /// A convolution; filters are `[out, kh, kw, in / groups]`.
    Conv(Conv),
    /// A convolution of each channel by itself; filters are `[1, kh, kw, out]`.
    DepthwiseConv(Conv),
    /// A transposed convolution; filters are `[out, kh, kw, in / groups]`.
    ConvTranspose(Conv),
    /// The mean of each window's pixels that are not padding.
    AvgPool(Pool),
    /// The greatest of each window.
    MaxPool(Pool),
    /// The greatest of each window, and its index in the window. Windows do not overlap.
    ArgMaxPool(Pool),
    /// The mean over the space of an image.
    GlobalAvgPool {
        /// Whether the space stays, as two dimensions of 1.
        keep_dims: bool,
    },
    /// Dimensions in another order.
    Transpose {
        /// For each dimension of the result the input's.
        perm: Vec<usize>,
    },
    /// The same elements under other sizes.
    Reshape {
        /// The sizes. At most one is 0, which follows from the number of elements.
        sizes: Vec<usize>,
    },
    /// A part.
    Slice {
        /// Where it starts in each dimension.
        offsets: Vec<usize>,
        /// Its sizes. 0 is the rest of the dimension.
        sizes: Vec<usize>,
    },
    /// A value around a value.
    Pad {
        /// Elements before, in each dimension.
        pre: Vec<usize>,
        /// Elements after, in each dimension.
        post: Vec<usize>,
        /// The value.
        value: f32,
    },
    /// Values one after the other.
    Concat {
        /// Along which dimension.
        axis: usize,
    },
    /// Bilinear interpolation.
    ResizeBilinear {
        /// Height of the result.
        height: usize,
        /// Width of the result.
        width: usize,
        /// Whether corners are centres of pixels.
        align_corners: bool,
        /// Whether pixels are points at whole coordinates.
        legacy: bool,
    },
    /// Products of matrices, the other dimensions being broadcast.
    BatchMatMul {
        /// Whether the second's last two dimensions are exchanged.
        transposed: bool,
    },
    /// Attention: in the schema, but no runtime has it.
    ScaledDotProductAttention,
}

/// See [`Op::Unary`].
#[derive(Debug, Clone, Copy, PartialEq)]
#[expect(missing_docs, reason = "the schema's own names")]
pub enum Unary {
    Abs,
    Ceiling,
    Clamp,
    Cos,
    Elu { alpha: f32 },
    Exp,
    Floor,
    Gelu,
    Hardswish,
    LeakyRelu { slope: f32 },
    Log,
    Negate,
    ReciprocalSquareRoot,
    Sigmoid,
    Sin,
    Square,
    SquareRoot,
    Tanh,
}

/// See [`Op::Binary`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the schema's own names")]
pub enum Binary {
    Add,
    Divide,
    Maximum,
    Minimum,
    Multiply,
    Subtract,
}

/// A convolution over height and width, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Conv {
    /// Zeros above, right, below and left.
    pub padding: [usize; 4],
    /// Rows and columns of the kernel.
    pub kernel: [usize; 2],
    /// Steps between windows; of a transposed convolution between their results.
    pub stride: [usize; 2],
    /// Steps between the elements of a window.
    pub dilation: [usize; 2],
    /// Input channels of each group.
    pub group_inputs: usize,
    /// Output channels of each group.
    pub group_outputs: usize,
    /// Groups of channels.
    pub groups: usize,
    /// Rows and columns that are added to a transposed convolution's result.
    pub adjustment: [usize; 2],
}

impl Conv {
    /// Channels of the image.
    pub fn inputs(&self) -> usize {
        self.groups * self.group_inputs
    }

    /// Channels of the result.
    pub fn outputs(&self) -> usize {
        self.groups * self.group_outputs
    }
}

/// A pooling over height and width, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Pixels that are not there above, right, below and left.
    pub padding: [usize; 4],
    /// Rows and columns of a window.
    pub window: [usize; 2],
    /// Steps between windows.
    pub stride: [usize; 2],
    /// Steps between the pixels of a window.
    pub dilation: [usize; 2],
}
