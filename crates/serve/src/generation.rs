use crate::metadata::{Signature, TensorSpec};
use crate::repository::Files;
use pteron::tools::task::TaskMetadata;
use pteron::{Module, Program, SharedMethod};
use std::sync::{Arc, Mutex};

/// The loaded instances of the served method.
#[derive(Debug)]
pub(crate) enum Instances {
    /// Copies of the method for concurrent execution, each of which starts with the initial state.
    Shared(Box<SharedMethod>),
    /// A module whose methods share their state, which persists between requests.
    Stateful(Arc<Mutex<Module>>),
}

/// One load of one version of a model: an immutable program with its weights. A swap creates a new generation, and a
/// request is executed by the one that it was checked against.
#[derive(Debug)]
pub struct Generation {
    /// The number of the generation, which is higher than those of all earlier loads by this server.
    pub(crate) number: u64,
    pub(crate) method: Instances,
    pub(crate) program: Program,
    pub(crate) method_name: String,
    pub(crate) signature: Signature,
    pub(crate) task: Option<TaskMetadata>,
    /// The batch sizes, in rows, that are executed, in ascending order; empty if requests are not batched.
    pub(crate) batches: Vec<usize>,
    /// Why requests are not batched, if the options ask for batches.
    pub(crate) unbatched: Option<String>,
    pub(crate) files: Files,
    /// The memory that the generation takes, in bytes: its program and data files, and the planned memory of each worker.
    pub(crate) memory: u64,
}

impl Generation {
    /// The inputs that clients send.
    pub fn inputs(&self) -> impl Iterator<Item = &TensorSpec> {
        self.signature.inputs.iter().map(|(_, spec)| spec)
    }

    pub fn outputs(&self) -> &[TensorSpec] {
        &self.signature.outputs
    }

    /// The task metadata that the program stores.
    pub fn task(&self) -> Option<&TaskMetadata> {
        self.task.as_ref()
    }

    /// The maximum number of rows of a batch; 1 if requests are not batched.
    pub fn max_batch(&self) -> usize {
        self.batches.last().copied().unwrap_or(1)
    }

    /// The memory that the generation takes, in bytes: its program and data files, and the planned memory of each worker.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Whether the model has state that persists from request to request.
    pub(crate) fn has_persistent_state(&self) -> bool {
        matches!(self.method, Instances::Stateful(_))
    }

    pub(crate) fn program(&self) -> &Program {
        &self.program
    }

    pub(crate) fn method_name(&self) -> &str {
        &self.method_name
    }

    /// Why requests are not batched, if the options ask for batches.
    pub fn unbatched_reason(&self) -> Option<&str> {
        self.unbatched.as_deref()
    }

    /// The number of rows to which a batch of `rows` rows is padded: the smallest batch size that fits them.
    pub(crate) fn padded_rows(&self, rows: usize) -> usize {
        self.batches.iter().copied().find(|&size| size >= rows).unwrap_or(rows)
    }
}
