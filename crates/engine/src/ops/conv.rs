//! 1-d, 2-d and 3-d convolutions.

use crate::graph::Kind;
use crate::layouts::LayoutReq;
use crate::operands::{Operands, is_float, refuse};
use crate::operation::{ImageLayouts, OpKind, Operation};
use pteron_kernels::compute::{Activation, ConvFrame, ConvParams, Layout};
use pteron_operator::Result;
use pteron_tensor::TensorMeta;
use std::fmt;
use std::sync::Arc;

/// A convolution. Inputs: image, weights (constant), and optionally bias (constant) and residual. The weights are
/// `[out, in / groups, kernel..]`, or transposed `[in, out / groups, kernel..]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Convolution {
    /// Channels, groups, kernel, strides, padding and dilation.
    pub params: ConvParams,
    /// The number of spatial dimensions of the image: 1, 2 or 3.
    pub space: usize,
    /// The layout of image, residual and output.
    pub layout: Layout,
    /// Whether there is a bias.
    pub bias: bool,
    /// Whether there is a residual.
    pub residual: bool,
    /// The activation, which is applied last.
    pub activation: Activation,
}

impl Operation for Convolution {
    fn name(&self) -> &str {
        "conv"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ConvParams { kernel, stride, groups, transposed, .. } = &self.params;
        let space = 3 - self.space..;
        write!(f, "kernel: {:?}, stride: {:?}", &kernel[space.clone()], &stride[space])?;
        if *groups > 1 {
            write!(f, ", groups: {groups}")?;
        }
        if *transposed {
            write!(f, ", transposed")?;
        }
        write_epilogue(f, self.residual, self.activation)
    }

    fn operand_layout(&self, i: usize, inputs: usize) -> LayoutReq {
        let last = self.residual && i + 1 == inputs;
        if i == 0 || last || i >= inputs { LayoutReq::Image(self.layout) } else { LayoutReq::RowMajor }
    }

    fn keeps_rows_apart(&self, operands: &Operands<'_>) -> bool {
        operands.has_computed_residual(self.residual)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(check_floats(self, operands)?, 1)
    }

    fn with_activation(&self, activation: Activation) -> Option<Arc<dyn Kind>> {
        let activation = self.activation.then(activation)?;
        Some(OpKind::arc(Self { activation, ..*self }))
    }

    fn with_residual(&self) -> Option<Arc<dyn Kind>> {
        let free = self.activation == Activation::Identity && !self.residual;
        free.then(|| OpKind::arc(Self { residual: true, ..*self }))
    }

    fn image_layouts(&self) -> ImageLayouts {
        match self.layout {
            Layout::ChannelsFirst => ImageLayouts::Prefers {
                kind: OpKind::arc(Self { layout: Layout::ChannelsLast, ..*self }),
                residual: self.residual,
            },
            Layout::ChannelsLast => ImageLayouts::None,
        }
    }
}

/// The maximum of kernel sizes, strides, paddings and dilations, so that sums of extents do not overflow.
const MAX_EXTENT: usize = 1 << 30;

/// Checks the parameters of a convolution, and the sizes of its image, weights and result.
pub(crate) fn check_conv(conv: &Convolution, operands: &Operands<'_>) -> Result<()> {
    let ConvParams { in_channels, out_channels, groups, kernel, stride, padding, dilation, .. } = conv.params;
    let space = conv.space;
    if !(1..=3).contains(&space) {
        return refuse(format!("the convolution has {space} spatial dimensions, expected 1 to 3"));
    }
    let unused = ..3 - space;
    let (is_one, is_zero) =
        (|v: &[usize]| v.iter().all(|&n| n == 1), |v: &[usize]| v.iter().all(|&n| n == 0));
    let is_small = |v: &[usize], least| v.iter().all(|n| (least..=MAX_EXTENT).contains(n));
    let is_sound = in_channels > 0
        && out_channels > 0
        && groups > 0
        && in_channels.is_multiple_of(groups)
        && out_channels.is_multiple_of(groups)
        && is_small(&kernel, 1)
        && is_small(&stride, 1)
        && is_small(&dilation, 1)
        && is_small(&padding, 0)
        && is_one(&kernel[unused])
        && is_one(&stride[unused])
        && is_one(&dilation[unused])
        && is_zero(&padding[unused]);
    if !is_sound {
        return refuse(
            "the channels, groups, kernel, stride, padding or dilation of the convolution are invalid",
        );
    }
    let (x, weights, out) = (operands.input(0)?, operands.constant(1)?, operands.output(0)?);
    let (major, minor) = match conv.params.transposed {
        true => (in_channels, out_channels / groups),
        false => (out_channels, in_channels / groups),
    };
    let expected = [&[major, minor], &kernel[3 - space..]].concat();
    if **weights.sizes() != *expected {
        return refuse(format!("the weights are {weights}, expected the sizes {expected:?}"));
    }
    let fits = x.rank() == 2 + space
        && out.rank() == 2 + space
        && x.sizes()[0] == out.sizes()[0]
        && x.sizes()[1] == in_channels
        && out.sizes()[1] == out_channels;
    match fits {
        true => Ok(()),
        false => refuse(format!("a convolution of the image {x} does not give {out}")),
    }
}

/// Checks the operands and result of an f32 convolution. Returns the number of operands, which the caller checks.
pub(crate) fn check_floats(conv: &Convolution, operands: &Operands<'_>) -> Result<usize> {
    let count = 2 + usize::from(conv.bias) + usize::from(conv.residual);
    check_conv(conv, operands)?;
    let all = [operands.input(0)?, operands.input(1)?, operands.output(0)?];
    if let Some(meta) = all.into_iter().find(|meta| !is_float(meta)) {
        return refuse(format!("{meta} where float32 is expected"));
    }
    if conv.bias {
        operands.check_vector(2, conv.params.out_channels)?;
    }
    if conv.residual {
        operands.check_same_as_output(count - 1)?;
    }
    Ok(count)
}

impl Convolution {
    /// The number of inputs of a node that computes the convolution.
    pub(crate) fn num_inputs(&self) -> usize {
        2 + usize::from(self.bias) + usize::from(self.residual)
    }
}

/// Writes the attributes of an epilogue (residual and activation) for listings.
pub(crate) fn write_epilogue(
    f: &mut fmt::Formatter<'_>,
    residual: bool,
    activation: Activation,
) -> fmt::Result {
    if residual {
        write!(f, ", residual")?;
    }
    match activation {
        Activation::Identity => Ok(()),
        other => write!(f, ", activation: {other:?}"),
    }
}

/// The input and output sizes of a convolution of images `[N, C, space..]` with this number of spatial dimensions.
pub(crate) fn conv_frame(x: &TensorMeta, out: &TensorMeta, space: usize) -> ConvFrame {
    let pixels = |meta: &TensorMeta| {
        let mut all = [1; 3];
        all[3 - space..].copy_from_slice(&meta.sizes()[2..]);
        all
    };
    ConvFrame { batch: x.sizes()[0], input: pixels(x), output: pixels(out) }
}
