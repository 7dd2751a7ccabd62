//! Operator calls that no pass has rewritten, which run their kernels.

use super::step::{Step, Writes};
use crate::graph::{Call, CallOut};
use pteron_operator::{Arg, KernelContext, Result};
use pteron_tensor::{TensorMeta, TensorView};
use smallvec::SmallVec;

pub(crate) struct CallStep {
    call: Call,
    /// The index and the meta of the input that the only output overwrites; `None` if the call is not in place.
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
        let in_place = self.in_place.as_ref().map(|(at, meta)| (*at, Arg::InPlace { out: 0, meta }));
        self.call.execute_in_place(ctx, reads, in_place, writes)
    }

    fn overwritable_reads(&self) -> SmallVec<[usize; 2]> {
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
