//! Operations on images: convolution, pooling, global mean, group norm factors.

use super::words::{activation, activation_text, expression, expression_texts};
use super::{Operands, Stored};
use crate::error::{Result, fail};
use crate::payload::{Fields, Record};
use graph::{ConvParams, ConvPass, Convolution, GlobalMean, GroupFactors, Layout, Pool, Pooling, Windows};
use tensor::{ScalarType, TensorMeta};

/// The maximum of kernel sizes, strides, paddings and dilations, so that sums of extents do not overflow.
const MAX_EXTENT: usize = 1 << 30;

pub(super) fn write_conv(conv: &Convolution, record: &mut Record) {
    let params = &conv.params;
    record.size("in_channels", params.in_channels).size("out_channels", params.out_channels);
    record.size("groups", params.groups).sizes("kernel", &params.kernel).sizes("stride", &params.stride);
    record.sizes("padding", &params.padding).sizes("dilation", &params.dilation);
    record.flag("transposed", params.transposed).size("space", conv.space);
    record.flag("channels_last", conv.layout == Layout::ChannelsLast);
    record.flag("bias", conv.bias).flag("residual", conv.residual);
    record.text("activation", activation_text(conv.activation));
}

pub(super) fn read_conv(fields: &Fields<'_>) -> Result<Convolution> {
    Ok(Convolution {
        params: ConvParams {
            in_channels: fields.size("in_channels")?,
            out_channels: fields.size("out_channels")?,
            groups: fields.size("groups")?,
            kernel: fields.sizes("kernel")?,
            stride: fields.sizes("stride")?,
            padding: fields.sizes("padding")?,
            dilation: fields.sizes("dilation")?,
            transposed: fields.flag("transposed")?,
        },
        space: fields.size("space")?,
        layout: if fields.flag("channels_last")? { Layout::ChannelsLast } else { Layout::ChannelsFirst },
        bias: fields.flag("bias")?,
        residual: fields.flag("residual")?,
        activation: activation(fields.text("activation")?)?,
    })
}

/// Checks the parameters of a convolution, and the sizes of its image, weights and result.
pub(super) fn check_conv(conv: &Convolution, operands: &Operands<'_>) -> Result<()> {
    let ConvParams { in_channels, out_channels, groups, kernel, stride, padding, dilation, .. } = conv.params;
    let space = conv.space;
    if !(1..=3).contains(&space) {
        return fail(format!("the convolution has {space} spatial dimensions, expected 1 to 3"));
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
        return fail(
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
        return fail(format!("the weights are {weights}, expected the sizes {expected:?}"));
    }
    let fits = x.rank() == 2 + space
        && out.rank() == 2 + space
        && x.sizes()[0] == out.sizes()[0]
        && x.sizes()[1] == in_channels
        && out.sizes()[1] == out_channels;
    match fits {
        true => Ok(()),
        false => fail(format!("a convolution of the image {x} does not give {out}")),
    }
}

/// Checks the operands and result of an f32 convolution. Returns the number of operands that it must have, unchecked.
fn check_floats(conv: &Convolution, operands: &Operands<'_>) -> Result<usize> {
    let count = 2 + usize::from(conv.bias) + usize::from(conv.residual);
    check_conv(conv, operands)?;
    let all = [operands.input(0)?, operands.input(1)?, operands.output(0)?];
    if let Some(meta) = all.into_iter().find(|meta| operands.is_not_float(meta)) {
        return fail(format!("{meta} where float32 is expected"));
    }
    if conv.bias {
        operands.vector(2, conv.params.out_channels)?;
    }
    if conv.residual {
        operands.same_as_output(count - 1)?;
    }
    Ok(count)
}

impl Stored for Convolution {
    const KERNEL: &'static str = "pteron.conv";

    fn write(&self, record: &mut Record) {
        write_conv(self, record);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        read_conv(fields)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(check_floats(self, operands)?, 1)
    }
}

impl Stored for ConvPass {
    const KERNEL: &'static str = "pteron.conv_pass";

    fn write(&self, record: &mut Record) {
        write_conv(&self.conv, record);
        record.texts("pass", expression_texts(&self.pass));
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self { conv: read_conv(fields)?, pass: expression(&fields.texts("pass")?)? })
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let own = check_floats(&self.conv, operands)?;
        if self.conv.layout != Layout::ChannelsLast {
            return fail("an elementwise pass requires a channels-last convolution");
        }
        // Input 0 of the pass is the convolution's result.
        let others = self.pass.inputs().max(1) - 1;
        operands.count(own + others, 1)?;
        (own..own + others).try_for_each(|i| operands.broadcasts(i))
    }
}

impl Stored for Pool {
    const KERNEL: &'static str = "pteron.pool";

    fn write(&self, record: &mut Record) {
        let Windows { kernel, stride, padding, dilation } = &self.windows;
        record
            .sizes("kernel", kernel)
            .sizes("stride", stride)
            .sizes("padding", padding)
            .sizes("dilation", dilation);
        record.text(
            "pooling",
            match self.pooling {
                Pooling::Max => "max",
                Pooling::Mean => "mean",
                Pooling::MeanOfPadded => "mean_of_padded",
                Pooling::Sum(_) => "sum",
            },
        );
        if let Pooling::Sum(factor) = self.pooling {
            record.float("factor", factor);
        }
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        let pooling = match fields.text("pooling")? {
            "max" => Pooling::Max,
            "mean" => Pooling::Mean,
            "mean_of_padded" => Pooling::MeanOfPadded,
            "sum" => Pooling::Sum(fields.float("factor")?),
            other => return fail(format!("unknown pooling `{other}`")),
        };
        let windows = Windows {
            kernel: fields.sizes("kernel")?,
            stride: fields.sizes("stride")?,
            padding: fields.sizes("padding")?,
            dilation: fields.sizes("dilation")?,
        };
        Ok(Self { pooling, windows })
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(1, 1)?;
        let (x, out) = (operands.input(0)?, operands.output(0)?);
        let is_byte = matches!(x.dtype(), ScalarType::Char | ScalarType::Byte);
        if self.pooling != Pooling::Max || !is_byte || x.dtype() != out.dtype() {
            operands.all_floats()?;
        }
        let Windows { kernel, stride, padding, dilation } = &self.windows;
        let fits = x.rank() == 4 && out.rank() == 4 && x.sizes()[..2] == out.sizes()[..2];
        let is_flat = (kernel[0], stride[0], padding[0], dilation[0]) == (1, 1, 0, 1);
        if !fits || !is_flat || x.numel() == 0 {
            return fail(format!("pooling of the image {x} does not give {out}"));
        }
        for d in 1..3 {
            // Windows begin within the image or the padding before it, and are no larger than the padded image.
            let (from, to) = (x.sizes()[1 + d], out.sizes()[1 + d]);
            let reach = dilation[d].saturating_mul(kernel[d].max(1) - 1) + 1;
            let last = to.saturating_sub(1).saturating_mul(stride[d]);
            let is_sound = kernel[d] > 0
                && stride[d] > 0
                && dilation[d] > 0
                && padding[d] <= kernel[d].saturating_mul(dilation[d])
                && padding[d] <= from.saturating_add(reach)
                && reach <= from + 2 * padding[d]
                && last < from + padding[d];
            if !is_sound {
                return fail(format!("{:?} of {x} do not give {out}", self.windows));
            }
        }
        Ok(())
    }
}

/// The input, which must be a non-empty f32 image, and its number of channels.
fn image<'g>(operands: &Operands<'g>) -> Result<(&'g TensorMeta, usize)> {
    operands.all_floats()?;
    let x = operands.input(0)?;
    if x.rank() < 3 || x.numel() == 0 {
        return fail(format!("{x} is not a non-empty image"));
    }
    Ok((x, x.sizes()[1]))
}

impl Stored for GlobalMean {
    const KERNEL: &'static str = "pteron.global_mean";

    fn write(&self, _: &mut Record) {}

    fn read(_: &Fields<'_>) -> Result<Self> {
        Ok(Self)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(1, 1)?;
        let ((x, channels), out) = (image(operands)?, operands.output(0)?);
        if out.numel() == x.sizes()[0] * channels {
            return Ok(());
        }
        fail(format!("the global mean of {x} does not give {out}"))
    }
}

impl Stored for GroupFactors {
    const KERNEL: &'static str = "pteron.group_factors";

    fn write(&self, record: &mut Record) {
        record.size("groups", self.groups).float("eps", self.eps);
        record.flag("weight", self.weight).flag("bias", self.bias);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self {
            groups: fields.size("groups")?,
            eps: fields.float("eps")?,
            weight: fields.flag("weight")?,
            bias: fields.flag("bias")?,
        })
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let inputs = 1 + usize::from(self.weight) + usize::from(self.bias);
        operands.count(inputs, 2)?;
        let (x, channels) = image(operands)?;
        if self.groups == 0 || !channels.is_multiple_of(self.groups) {
            return fail(format!("{channels} channels cannot be divided into {} groups", self.groups));
        }
        for i in 1..inputs {
            let vector = operands.input(i)?;
            if vector.numel() != channels {
                return fail(format!("operand {i} is {vector}, expected {channels} elements"));
            }
        }
        let factors = x.sizes()[0] * channels;
        match (operands.output(0)?.numel(), operands.output(1)?.numel()) == (factors, factors) {
            true => Ok(()),
            false => fail(format!("the results do not have the {factors} factors of {x}")),
        }
    }
}
