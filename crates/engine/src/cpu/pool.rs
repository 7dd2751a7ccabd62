//! Pooling of channels-last images.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::ops::conv::conv_frame;
use crate::ops::pool::Pool;
use pteron_kernels::compute::{ConvFrame, Isa, MaxPoolElement, Pooling, max_pool, pool_windows};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{Element, ScalarType, TensorView, TensorViewMut};

impl Lower for Pool {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let (x, out) = (node.input(0)?, node.output(0)?);
        if x.dtype() != ScalarType::Float && self.pooling != Pooling::Max {
            return Err(Error::invalid(format!("{:?} pooling does not support {}", self.pooling, x.dtype())));
        }
        let step =
            PoolStep { spec: *self, frame: conv_frame(x, out, 2), channels: x.sizes()[1], isa: node.isa() };
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
        let (x, out) = (reads[0], only_output(&mut writes)?);
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
