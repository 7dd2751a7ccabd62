//! Operator calls that no pass has rewritten, which run their kernels.

use super::{Step, Writes};
use crate::graph::{Call, CallOut};
use operator::{Arg, KernelContext, Result};
use smallvec::SmallVec;
use std::iter::once;
use tensor::{TensorMeta, TensorView};

pub(crate) struct CallStep {
    call: Call,
    /// The input whose memory the only output has, with its meta.
    in_place: Option<(usize, TensorMeta)>,
}

impl CallStep {
    pub(crate) fn new(call: Call) -> Self {
        Self { call, in_place: None }
    }
}

impl Step for CallStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        writes: Writes<'a>,
    ) -> Result<()> {
        let Some((at, meta)) = &self.in_place else { return self.call.execute(ctx, reads, writes) };
        let (before, after) = reads.split_at(*at);
        let view = |view: &TensorView<'a>| Arg::Tensor(*view);
        let inputs = before.iter().map(view).chain(once(Arg::InPlace { out: 0, meta }));
        self.call.execute_on(ctx, inputs.chain(after.iter().map(view)), writes)
    }

    fn overwritable(&self) -> SmallVec<[usize; 2]> {
        match self.call.outs[..] {
            [CallOut::Tensor] => {
                self.call.kernel.in_place().iter().filter_map(|&at| self.call.input_at(at)).collect()
            }
            _ => SmallVec::new(),
        }
    }

    fn overwrite(&mut self, read: usize, meta: &TensorMeta) {
        self.in_place = Some((read, meta.clone()));
    }
}
