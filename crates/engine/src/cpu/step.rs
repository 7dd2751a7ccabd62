//! What runs: the interface of steps.

use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{TensorMeta, TensorView, TensorViewMut};
use smallvec::SmallVec;

/// The tensors that a step writes, in the order of its node's outputs.
pub(super) type Writes<'a> = SmallVec<[TensorViewMut<'a>; 2]>;

/// A node lowered for the sizes of its graph, ready to run.
pub(crate) trait Step: Send + Sync {
    /// Runs the step. `reads` are the inputs that [`crate::Lowered::Step`] names.
    ///
    /// # Errors
    /// The elements are invalid, or there is not enough memory.
    fn run<'a>(&'a self, ctx: &KernelContext<'_>, reads: &[TensorView<'a>], writes: Writes<'a>)
    -> Result<()>;

    /// The indices of the reads that the only output may overwrite in place.
    fn overwritable_reads(&self) -> SmallVec<[usize; 2]> {
        SmallVec::new()
    }

    /// Gives the only output the memory of a read that is [overwritable](Self::overwritable_reads) and has the output's
    /// meta. [`Self::run`] then gets only the other reads, and an output that holds the elements of this read.
    fn overwrite(&mut self, read: usize, meta: &TensorMeta) {
        let _ = (read, meta);
    }
}

/// The only output of a step.
pub(crate) fn only_output<'w, 'a>(writes: &'w mut Writes<'a>) -> Result<&'w mut TensorViewMut<'a>> {
    match &mut writes[..] {
        [out] => Ok(out),
        _ => Err(Error::invalid("a node does not have exactly one output")),
    }
}

/// The residual of a step, the last tensor that the step reads; `None` unless `present`.
pub(crate) fn residual<'a>(present: bool, reads: &[TensorView<'a>]) -> Result<Option<&'a [f32]>> {
    let last = reads.last().filter(|_| present);
    Ok(last.map(|r| r.storage::<f32>()).transpose()?)
}
