//! Operator calls that no pass has rewritten, which run their kernels.

use super::{Step, Writes};
use crate::graph::Call;
use operator::{KernelContext, Result};
use tensor::TensorView;

pub(crate) struct CallStep(pub(crate) Call);

impl Step for CallStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        writes: Writes<'a>,
    ) -> Result<()> {
        self.0.execute(ctx, reads, writes)
    }
}
