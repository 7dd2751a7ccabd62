//! Pooling of channels-last images.

use super::conv::frame;
use super::{Step, Writes, only};
use crate::layouts::LayoutReq;
use crate::operands::{Operands, refuse};
use crate::operation::{Lowered, Lowering, Operation};
use pteron_kernels::compute::{
    ConvFrame, Isa, Layout, MaxPoolElement, Pooling, Windows, max_pool, pool_windows,
};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{Element, ScalarType, TensorView, TensorViewMut};
use std::fmt;

/// Pooling of a channels-last f32 image. An 8-bit integer image supports only [`Pooling::Max`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Pool {
    /// The reduction of a window.
    pub pooling: Pooling,
    /// The windows.
    pub windows: Windows,
}

impl Operation for Pool {
    fn name(&self) -> &str {
        "pool"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Windows { kernel, stride, .. } = &self.windows;
        write!(f, "{:?}, kernel: {:?}, stride: {:?}", self.pooling, &kernel[1..], &stride[1..])
    }

    fn operand_layout(&self, _: usize, _: usize) -> LayoutReq {
        LayoutReq::Image(Layout::ChannelsLast)
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
            return refuse(format!("pooling of the image {x} does not give {out}"));
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
                return refuse(format!("{:?} of {x} do not give {out}", self.windows));
            }
        }
        Ok(())
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let (x, out) = (node.input(0)?, node.output(0)?);
        if x.dtype() != ScalarType::Float && self.pooling != Pooling::Max {
            return Err(Error::invalid(format!("{:?} pooling does not support {}", self.pooling, x.dtype())));
        }
        let step = PoolStep { spec: *self, frame: frame(x, out, 2), channels: x.sizes()[1], isa: node.isa() };
        Ok(Lowered::step(step, [0]))
    }
}

struct PoolStep {
    spec: Pool,
    frame: ConvFrame,
    channels: usize,
    isa: Isa,
}

impl Step for PoolStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let (x, out) = (reads[0], only(&mut writes)?);
        match x.dtype() {
            ScalarType::Char => self.max_pool::<i8>(ctx, x, out),
            ScalarType::Byte => self.max_pool::<u8>(ctx, x, out),
            _ => {
                let Pool { pooling, windows } = &self.spec;
                let (x, out) = (x.storage()?, out.storage_mut()?);
                pool_windows(ctx.pool(), self.isa, *pooling, windows, &self.frame, self.channels, x, out);
                Ok(())
            }
        }
    }
}

impl PoolStep {
    fn max_pool<T: MaxPoolElement + Element>(
        &self,
        ctx: &KernelContext<'_>,
        x: TensorView<'_>,
        out: &mut TensorViewMut<'_>,
    ) -> Result<()> {
        let (x, out) = (x.storage::<T>()?, out.storage_mut()?);
        let windows = &self.spec.windows;
        max_pool(ctx.pool(), self.isa, windows, &self.frame, self.channels, x, out);
        Ok(())
    }
}
