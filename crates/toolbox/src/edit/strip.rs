use super::{Output, finish, revise, tensors_mut};
use crate::Result;
use crate::file::Progress;
use pteron_format::pte::{ExtraTensorInfo, TASK_KEY, is_delegate_sources_key, is_value_names_key};
use pteron_runtime::Program;
use serde::Serialize;

/// The parts to strip besides stack traces.
#[derive(Debug, Clone, Copy, Default)]
pub struct StripOptions {
    /// Also strips the names of inputs and outputs, the names that tensors have in the source model (unless they are keys of external
    /// data), and the description of the Python containers of inputs and outputs.
    pub names: bool,
    /// Also strips the task metadata.
    pub task: bool,
}

/// The result of [`strip`].
#[derive(Debug, Serialize)]
pub struct Stripped {
    /// The number of source frames removed.
    pub frames: usize,
    /// The number of tensor names removed.
    pub names: usize,
    /// The methods that stay as they are, because they are not valid.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub skipped: Vec<String>,
    /// Descriptions of what the edit could not keep.
    pub lost: Vec<String>,
    /// Bytes of the old file.
    pub bytes_before: u64,
    /// Bytes of the new file.
    pub bytes_after: u64,
    /// The new file.
    #[serde(skip)]
    pub program: Output,
}

/// Removes debug information: the source frames of instructions, what delegates were compiled from and, if requested,
/// names. Results and the required `.ptd` entries stay the same. Methods that are not valid are left as they are.
pub fn strip(program: &Program, options: StripOptions, progress: &Progress) -> Result<Stripped> {
    let mut revision = revise(program, progress)?;
    let (mut frames, mut names) = (0, 0);
    for plan in &mut revision.program.execution_plan {
        for chain in &mut plan.chains {
            frames +=
                std::mem::take(&mut chain.stacktrace).iter().map(|list| list.items.len()).sum::<usize>();
        }
        if options.names {
            plan.container_meta_type = None;
        }
    }
    let is_stripped = |key: &str| {
        is_delegate_sources_key(key)
            || options.names && is_value_names_key(key)
            || options.task && key == TASK_KEY
    };
    revision.program.named_data.retain(|entry| !is_stripped(&entry.key));
    if options.names {
        for tensor in tensors_mut(&mut revision.program).filter(|tensor| !tensor.is_external()) {
            let Some(info) = &mut tensor.extra_tensor_info else { continue };
            if info.fully_qualified_name.take().is_some() {
                names += 1;
                if *info == ExtraTensorInfo::default() {
                    tensor.extra_tensor_info = None;
                }
            }
        }
    }
    let skipped = program.tables().invalid_methods().iter();
    let skipped = skipped.map(|method| method.name.clone().unwrap_or_else(|| format!("{}", method.index)));
    let skipped = skipped.collect();
    let (output, lost) = finish(revision, progress)?;
    Ok(Stripped {
        frames,
        names,
        skipped,
        lost,
        bytes_before: program.loader().size(),
        bytes_after: output.bytes(),
        program: output,
    })
}
