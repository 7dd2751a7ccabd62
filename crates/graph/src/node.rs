use crate::graph::ValueId;
use crate::pointwise::Program;
use crate::strided::View;
use kernels::compute::{Activation, Affine, Quantization, WeightBits};
use kernels::compute::{ConvParams, Layout, Pooling, Unary, Windows};
use operator::{Kernel, PreparedKernel};
use std::sync::Arc;
use tensor::Scalar;

/// An operation of a graph with what it reads and writes.
#[derive(Clone)]
pub struct Node {
    /// What it does.
    pub op: Op,
    /// What it reads.
    pub inputs: Vec<ValueId>,
    /// What it writes.
    pub outputs: Vec<ValueId>,
}

/// What a node does.
#[derive(Clone)]
pub enum Op {
    /// An operator call as a program has it. Inputs and outputs stand in the order in which the call
    /// names them.
    Call(Call),
    /// The same bytes under other sizes.
    Reshape,
    /// The same elements in another layout.
    Relayout,
    /// The same elements in another type: f32 of one of half precision, or the other way, rounded to the nearest.
    Cast,
    /// A convolution. Inputs: image, weights, and where they are there, bias and residual. The
    /// weights are `[out, in / groups, kernel..]`, or transposed `[in, out / groups, kernel..]`.
    Conv(Convolution),
    /// `activation(x · w + bias + residual)` over the last dimension of `x`. Inputs: `x`, weights, and
    /// where they are there, bias and residual.
    Linear(Linear),
    /// One pass over elements: a small program run on every element of its inputs.
    Pointwise(Program),
    /// The mean over the space of an image `[N, C, space..]`.
    GlobalMean,
    /// Pooling of a channels-last image.
    Pool(Pool),
    /// `softmax(q k + mask) v` of several heads, each operand a view of an input: `q`, `k`, `v` and, if it
    /// is there, the mask. The output is `[items, queries, heads, values]`.
    Attention(Box<Attention>),
    /// The factors of group normalisation. Inputs: an image `[N, C, space..]`, and where they are there,
    /// weight and bias of `C` elements. Outputs: `scale` and `shift`, `[N, C, 1..]`; the norm is
    /// `x * scale + shift`.
    GroupFactors(GroupFactors),
    /// Reals as 8-bit numbers, in a tensor of `Char` or `Byte`.
    Quantize(Quantization),
    /// The reals that 8-bit numbers stand for.
    Dequantize(Affine),
    /// As [`Op::Linear`] with numbers in place of reals, summed exactly. Inputs: `x`, weights (`Char`, constant),
    /// their scales, and where it is there, the bias. The scales are one for all, one for each output, or for
    /// each group of inner elements one for each output, `[groups, out]`.
    QuantizedLinear(QuantizedLinear),
    /// As [`Op::Conv`], not transposed and without residual, of numbers, summed exactly. Inputs: image
    /// (`Char` or `Byte`), weights (`Char`, constant), one scale for all or one for each output channel, and where
    /// it is there, the bias.
    QuantizedConv(QuantizedConvolution),
}

/// See [`Op::Conv`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Convolution {
    /// Kernel, strides and the rest.
    pub params: ConvParams,
    /// The number of space dimensions of the image: 1, 2 or 3.
    pub space: usize,
    /// The layout of image, residual and output.
    pub layout: Layout,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether there is a residual.
    pub residual: bool,
    /// What is applied last.
    pub activation: Activation,
}

/// See [`Op::Linear`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// Whether the weights are `[out, in]`; otherwise they are `[in, out]`.
    pub out_major: bool,
    /// Whether there is a bias, a value for each output.
    pub bias: bool,
    /// Whether there is a residual of the output's sizes.
    pub residual: bool,
    /// What is applied last.
    pub activation: Activation,
}

/// See [`Op::QuantizedLinear`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedLinear {
    /// What `x` is.
    pub input: QuantizedInput,
    /// Whether the weights are `[out, in]`; otherwise they are `[in, out]`.
    pub out_major: bool,
    /// How wide the weights are kept; of four bits they are -8 to 7.
    pub bits: WeightBits,
    /// Inner elements that share a scale; several groups are of a multiple of 32.
    pub group: usize,
    /// Whether there is a bias, a value for each output.
    pub bias: bool,
    /// What is applied before the result is stored or quantized: then it is no more than bounds.
    pub activation: Activation,
    /// How the result is quantized; otherwise it is f32.
    pub output: Option<Quantization>,
}

/// What comes into an [`Op::QuantizedLinear`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum QuantizedInput {
    /// Numbers, `Char` or `Byte`, that stand for reals so.
    Numbers(Affine),
    /// Reals, quantized by parameters that fit all of them to `low..=high` within `i8`.
    ByTensor {
        /// The least number.
        low: i32,
        /// The greatest number.
        high: i32,
        /// The least scale.
        eps: f32,
    },
    /// Reals, each row quantized by parameters that fit it to `i8`.
    ByRow,
}

/// See [`Op::QuantizedConv`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QuantizedConvolution {
    /// What it is but for the numbers.
    pub conv: Convolution,
    /// What the numbers of the image stand for; the zero point is a number of its type.
    pub input: Affine,
    /// How the result is quantized; otherwise it is f32.
    pub output: Option<Quantization>,
}

/// See [`Op::Pool`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pool {
    /// What is taken of a window.
    pub pooling: Pooling,
    /// The windows.
    pub windows: Windows,
}

/// See [`Op::Attention`]. Recognised by a pass; there is no other way to make one.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// `[items * heads, queries, width]`, `[items * heads, width, keys]`, `[items * heads, keys, values]`.
    pub(crate) views: [View; 3],
    /// `[items * heads, queries, keys]`.
    pub(crate) mask: Option<View>,
    /// A factor of the product of queries and keys, before the mask.
    pub(crate) factor: f32,
    /// Whether a query all of whose scores are negative infinity gives zeros.
    pub(crate) safe: bool,
    /// What rounds every result on the way, where the program computes in half precision.
    pub(crate) rounding: Option<Unary>,
    pub(crate) items: usize,
    pub(crate) heads: usize,
}

/// See [`Op::GroupFactors`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupFactors {
    /// Groups of channels.
    pub groups: usize,
    /// Added to the variance.
    pub eps: f32,
    /// Whether there is a weight.
    pub weight: bool,
    /// Whether there is a bias.
    pub bias: bool,
}

/// A call of an operator by its kernel.
#[derive(Clone)]
pub struct Call {
    /// The kernel.
    pub kernel: Arc<dyn Kernel>,
    /// What the call's preparation made, if it made anything.
    pub prepared: Option<Arc<dyn PreparedKernel>>,
    /// What stands at each position of the schema.
    pub args: Vec<CallArg>,
    /// The outs, in the order of [`operator::Outs`].
    pub outs: Vec<CallOut>,
}

/// An argument of a call.
#[derive(Debug, Clone)]
pub enum CallArg {
    /// Absent.
    None,
    /// A number or boolean.
    Scalar(Scalar),
    /// A string.
    Str(Arc<str>),
    /// Integers.
    Ints(Vec<i64>),
    /// Floating-point numbers.
    Doubles(Arc<[f64]>),
    /// Booleans.
    Bools(Arc<[bool]>),
    /// The next input of the node.
    Tensor,
    /// The next so many inputs of the node.
    Tensors(usize),
    /// Inputs of the node, some absent.
    OptionalTensors(Vec<bool>),
    /// This out.
    Out(usize),
}

/// An out of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOut {
    /// The next output of the node.
    Tensor,
    /// The next so many outputs of the node.
    Tensors(usize),
}

impl Op {
    /// A name for listings: the operator's, or the node kind's.
    pub fn name(&self) -> &str {
        match self {
            Self::Call(call) => &call.kernel.schema().name,
            Self::Reshape => "reshape",
            Self::Relayout => "relayout",
            Self::Cast => "cast",
            Self::Conv(_) => "conv",
            Self::Linear(_) => "linear",
            Self::Pointwise(_) => "pointwise",
            Self::GlobalMean => "global_mean",
            Self::Pool(_) => "pool",
            Self::Attention(_) => "attention",
            Self::GroupFactors(_) => "group_factors",
            Self::Quantize(_) => "quantize",
            Self::Dequantize(_) => "dequantize",
            Self::QuantizedLinear(_) => "quantized_linear",
            Self::QuantizedConv(_) => "quantized_conv",
        }
    }

    /// The call, if it is one.
    pub fn as_call(&self) -> Option<&Call> {
        if let Self::Call(call) = self { Some(call) } else { None }
    }
}

impl Call {
    /// The operator's full name.
    pub fn name(&self) -> &str {
        &self.kernel.schema().name
    }

    /// A number at a position, if it is one.
    pub fn scalar(&self, position: usize) -> Option<Scalar> {
        if let Some(CallArg::Scalar(s)) = self.args.get(position) { Some(*s) } else { None }
    }

    /// A number at a position as an integer.
    pub fn int(&self, position: usize) -> Option<i64> {
        if let Some(Scalar::Int(v)) = self.scalar(position) { Some(v) } else { None }
    }

    /// A boolean at a position.
    pub fn bool(&self, position: usize) -> Option<bool> {
        match self.scalar(position)? {
            Scalar::Bool(v) => Some(v),
            Scalar::Int(v) => Some(v != 0),
            Scalar::Double(_) => None,
        }
    }

    /// Integers at a position.
    pub fn ints(&self, position: usize) -> Option<&[i64]> {
        if let Some(CallArg::Ints(v)) = self.args.get(position) { Some(v) } else { None }
    }

    /// Which input of the node stands at a position.
    pub fn input_at(&self, position: usize) -> Option<usize> {
        let before: usize = self.args.get(..position)?.iter().map(CallArg::inputs).sum();
        matches!(self.args.get(position)?, CallArg::Tensor).then_some(before)
    }

    /// Whether there is nothing at a position.
    pub fn is_none(&self, position: usize) -> bool {
        matches!(self.args.get(position), None | Some(CallArg::None))
    }
}

impl CallArg {
    /// How many inputs of the node it takes.
    pub fn inputs(&self) -> usize {
        match self {
            Self::Tensor => 1,
            Self::Tensors(n) => *n,
            Self::OptionalTensors(present) => present.iter().filter(|p| **p).count(),
            _ => 0,
        }
    }
}
