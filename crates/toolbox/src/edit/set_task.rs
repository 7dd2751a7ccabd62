use super::{Output, finish, revise};
use crate::Result;
use crate::file::Progress;
use crate::task::TaskMetadata;
use pteron_format::container::Blob;
use pteron_format::pte::{NamedBlob, TASK_KEY};
use pteron_runtime::Program;
use serde::Serialize;

/// The result of [`set_task`].
#[derive(Debug, Serialize)]
pub struct TaskSet {
    /// The metadata of the new file.
    pub task: TaskMetadata,
    /// What could not be kept.
    pub lost: Vec<String>,
    /// The new file.
    #[serde(skip)]
    pub program: Output,
}

/// Replaces the task metadata of a program. Empty metadata is not stored.
///
/// # Errors
/// The metadata is not valid, or larger than a program can store.
pub fn set_task(program: &Program, task: TaskMetadata, progress: &Progress) -> Result<TaskSet> {
    let text = task.to_json()?;
    let mut revision = revise(program, progress)?;
    revision.program.named_data.retain(|entry| entry.key != TASK_KEY);
    if !task.is_empty() {
        let blob = Blob::bytes(text.into_bytes());
        revision.add_named_data(NamedBlob { key: TASK_KEY.to_owned(), blob, alignment: 1 });
    }
    let (output, lost) = finish(revision, progress)?;
    Ok(TaskSet { task, lost, program: output })
}
