//! Table lookup: a function of one 8-bit value.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::ops::lookup::Lookup;
use pteron_kernels::compute::{Isa, lookup};
use pteron_operator::{KernelContext, Result};
use pteron_tensor::TensorView;
use std::sync::Arc;

impl Lower for Lookup {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        Ok(Lowered::step(LookupStep(Arc::clone(&self.0), node.isa()), [0]))
    }
}

struct LookupStep(Arc<[u8; 256]>, Isa);

impl Step for LookupStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        lookup(ctx.pool(), self.1, &self.0, reads[0].bytes(), only_output(&mut writes)?.bytes_mut());
        Ok(())
    }
}
