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
    /// A node whose results have no bounds, with the flags that its operation says.
    pub fn new(op: Op, inputs: Vec<usize>, outputs: Vec<usize>) -> Self {
        let flags = match op {
            Op::FullyConnected { transposed: true } | Op::BatchMatMul { transposed: true } => 1,
            Op::ResizeBilinear { align_corners, legacy, .. } => {
                u32::from(align_corners) << 3 | u32::from(legacy) << 2
            }
            Op::GlobalAvgPool { keep_dims: true } => 0x40,
            _ => 0,
        };
        let bounds = (f32::NEG_INFINITY, f32::INFINITY);
        Self { name: op.kind(inputs.len()).1, op, inputs, outputs, bounds, flags, debug_handle: 0 }
    }

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

impl Op {
    /// Its number in the schema's union, and the name there without `XNN`; `inputs` is how many values it reads.
    pub(super) fn kind(&self, inputs: usize) -> (u8, &'static str) {
        match self {
            Self::Unary(f) => f.kind(),
            Self::Binary(f) => f.kind(),
            Self::FullyConnected { .. } => (2, "FullyConnected"),
            Self::Softmax => (3, "Softmax"),
            Self::Transpose { .. } => (5, "StaticTranspose"),
            Self::Conv(_) => (7, "Conv2d"),
            Self::ResizeBilinear { .. } => (9, "StaticResizeBilinear2D"),
            Self::Pad { .. } => (10, "StaticConstantPad"),
            Self::AvgPool(_) => (11, "AvgPooling2d"),
            Self::DepthwiseConv(_) => (13, "DepthwiseConv2d"),
            Self::MaxPool(_) => (14, "MaxPooling2d"),
            Self::Convert => (18, "Convert"),
            Self::GlobalAvgPool { .. } => (19, "GlobalAvgPooling2d"),
            Self::Reshape { .. } => (20, "StaticReshape"),
            Self::ArgMaxPool(_) => (21, "ArgMaxPooling2d"),
            Self::PRelu => (31, "PReLU"),
            Self::Concat { .. } if inputs == 2 => (32, "Concatenate2"),
            Self::Concat { .. } if inputs == 3 => (33, "Concatenate3"),
            Self::Concat { .. } if inputs == 4 => (34, "Concatenate4"),
            Self::Concat { .. } => (38, "Concatenate5"),
            Self::Slice { .. } => (35, "StaticSlice"),
            Self::ScaledDotProductAttention => (36, "ScaledDotProductAttention"),
            Self::BatchMatMul { .. } => (37, "BatchMatrixMultiply"),
            Self::ConvTranspose(_) => (39, "ConvTranspose2d"),
            Self::Copy => (46, "Copy"),
        }
    }
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

impl Unary {
    fn kind(self) -> (u8, &'static str) {
        match self {
            Self::Sigmoid => (4, "Sigmoid"),
            Self::Clamp => (6, "Clamp"),
            Self::Floor => (17, "Floor"),
            Self::SquareRoot => (22, "SquareRoot"),
            Self::Ceiling => (23, "Ceiling"),
            Self::Hardswish => (24, "Hardswish"),
            Self::LeakyRelu { .. } => (25, "LeakyReLU"),
            Self::Negate => (27, "Negate"),
            Self::Square => (28, "Square"),
            Self::Elu { .. } => (29, "ELU"),
            Self::Abs => (30, "Abs"),
            Self::ReciprocalSquareRoot => (40, "ReciprocalSquareRoot"),
            Self::Log => (41, "Log"),
            Self::Gelu => (42, "Gelu"),
            Self::Tanh => (43, "Tanh"),
            Self::Exp => (44, "Exp"),
            Self::Sin => (45, "Sin"),
            Self::Cos => (47, "Cos"),
        }
    }
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

impl Binary {
    fn kind(self) -> (u8, &'static str) {
        match self {
            Self::Add => (1, "Add"),
            Self::Divide => (8, "Div"),
            Self::Minimum => (12, "Minimum"),
            Self::Multiply => (15, "Multiply"),
            Self::Subtract => (16, "Subtract"),
            Self::Maximum => (26, "Maximum"),
        }
    }
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
