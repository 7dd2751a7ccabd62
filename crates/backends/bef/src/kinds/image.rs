//! Operations on images: convolution, pooling, global mean, group norm factors.

use super::Stored;
use super::text::{activation_text, expression_texts, parse_activation, parse_expression};
use crate::error::{Result, fail};
use crate::payload::{Fields, Record};
use pteron_engine::{
    ConvParams, ConvPass, Convolution, GlobalMean, GroupFactors, Layout, Pool, Pooling, Windows,
};

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
        activation: parse_activation(fields.text("activation")?)?,
    })
}

impl Stored for Convolution {
    const KERNEL: &'static str = "pteron.conv";

    fn write(&self, record: &mut Record) {
        write_conv(self, record);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        read_conv(fields)
    }
}

impl Stored for ConvPass {
    const KERNEL: &'static str = "pteron.conv_pass";

    fn write(&self, record: &mut Record) {
        write_conv(&self.conv, record);
        record.texts("pass", expression_texts(&self.pass));
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self { conv: read_conv(fields)?, pass: parse_expression(&fields.texts("pass")?)? })
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
}

impl Stored for GlobalMean {
    const KERNEL: &'static str = "pteron.global_mean";

    fn write(&self, _: &mut Record) {}

    fn read(_: &Fields<'_>) -> Result<Self> {
        Ok(Self)
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
}
