//! What the payload node of a supported node needs.

use super::quantized::{Affine, QuantizationMap};
use crate::payload::{Binary, Conv, Pool, Unary};
use pteron_exported::VarId;

/// A node that the backend supports.
pub(super) enum Match {
    /// Fused into a quantized linear layer or convolution: it dequantizes the weights or dynamically quantizes the
    /// input.
    Fused,
    /// Quantization to int8.
    Quantize(VarId),
    /// Dequantization from int8, which is added when a node needs the result.
    Dequantize,
    /// A copy into another layout.
    Relayout(VarId),
    Unary(Unary, VarId),
    /// A clamp, a ReLU or a hardtanh.
    Clamp {
        x: VarId,
        low: f32,
        high: f32,
    },
    Binary(Binary, Operand, Operand),
    Softmax(VarId),
    /// A linear layer with constant weights (fully connected).
    Linear {
        x: VarId,
        weight: VarId,
        bias: Option<VarId>,
        transposed: bool,
    },
    /// A batched matrix multiplication.
    BatchMatMul(VarId, VarId),
    Conv(ConvMatch),
    /// Batch normalization, reduced to a scale and a shift of each channel.
    BatchNorm {
        x: VarId,
        scale: Vec<f32>,
        shift: Vec<f32>,
    },
    MaxPool(VarId, Pool),
    AvgPool(VarId, Pool),
    /// The maximum of an image over height or width, without that dimension.
    SpatialMax(VarId, Pool),
    SpatialMean(VarId),
    Resize {
        x: VarId,
        align_corners: bool,
    },
    Transpose {
        x: VarId,
        perm: Vec<usize>,
    },
    Reshape(VarId),
    Concat {
        tensors: Vec<VarId>,
        axis: usize,
    },
    /// A slice. If the result has fewer dimensions, the sliced one has size 1 and is dropped.
    Slice {
        x: VarId,
        axis: usize,
        start: usize,
    },
    Pad {
        x: VarId,
        pre: Vec<usize>,
        post: Vec<usize>,
        value: f32,
    },
}

/// A 2D convolution, or a 1D convolution as a 2D one of width 1.
pub(super) struct ConvMatch {
    pub(super) x: VarId,
    pub(super) weight: VarId,
    pub(super) bias: Option<VarId>,
    pub(super) attributes: Conv,
    pub(super) is_transposed: bool,
    /// Whether the convolution is 1D, with 3D input and result.
    pub(super) is_1d: bool,
}

impl ConvMatch {
    /// Whether the convolution is depthwise.
    pub(super) fn is_depthwise(&self) -> bool {
        !self.is_transposed && self.attributes.group_inputs == 1 && self.attributes.groups > 1
    }
}

/// An operand of an elementwise node.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    Var(VarId),
    Number(f32),
}

impl Match {
    /// `Some` if a node can compute on quantized values, which requires that all of its operands are dequantized. The inner value is the
    /// quantization that the result must have, or `None` if the node can requantize its result.
    pub(super) fn quantized_result(&self, quantization: &QuantizationMap<'_>) -> Option<Option<Affine>> {
        let of = |var: &VarId| quantization.dequantized_source(*var).map(|(_, affine)| affine);
        let moved = |var: &VarId| of(var).map(Some);
        match self {
            Self::Linear { x, .. } | Self::SpatialMean(x) => of(x).map(|_| None),
            Self::Conv(conv) => of(&conv.x).map(|_| None),
            Self::Binary(
                Binary::Add | Binary::Subtract | Binary::Multiply,
                Operand::Var(a),
                Operand::Var(b),
            ) => of(a).and(of(b)).map(|_| None),
            Self::Clamp { x, .. }
            | Self::MaxPool(x, _)
            | Self::Transpose { x, .. }
            | Self::Reshape(x)
            | Self::Slice { x, .. } => moved(x),
            Self::Concat { tensors, .. } => {
                let first = of(tensors.first()?)?;
                tensors.iter().all(|var| of(var) == Some(first)).then_some(Some(first))
            }
            _ => None,
        }
    }

    /// This match, with each dequantized operand replaced by the quantized value that it comes from.
    pub(super) fn with_quantized_operands(self, quantization: &QuantizationMap<'_>) -> Self {
        let of = |var: VarId| quantization.dequantized_source(var).map_or(var, |(int8, _)| int8);
        let operand = |operand| match operand {
            Operand::Var(var) => Operand::Var(of(var)),
            number => number,
        };
        match self {
            Self::Linear { x, weight, bias, transposed } => {
                Self::Linear { x: of(x), weight, bias, transposed }
            }
            Self::Conv(conv) => Self::Conv(ConvMatch { x: of(conv.x), ..conv }),
            Self::SpatialMean(x) => Self::SpatialMean(of(x)),
            Self::Binary(f, a, b) => Self::Binary(f, operand(a), operand(b)),
            Self::Clamp { x, low, high } => Self::Clamp { x: of(x), low, high },
            Self::MaxPool(x, pool) => Self::MaxPool(of(x), pool),
            Self::Transpose { x, perm } => Self::Transpose { x: of(x), perm },
            Self::Reshape(x) => Self::Reshape(of(x)),
            Self::Slice { x, axis, start } => Self::Slice { x: of(x), axis, start },
            Self::Concat { tensors, axis } => {
                Self::Concat { tensors: tensors.into_iter().map(of).collect(), axis }
            }
            other => other,
        }
    }
}
