use super::{Output, take_apart, tensors_mut};
use crate::Result;
use crate::file::Progress;
use format::pte::ExtraTensorInfo;
use runtime::Program;
use serde::Serialize;

/// What to strip besides stack traces.
#[derive(Debug, Clone, Copy, Default)]
pub struct StripOptions {
    /// Also strips the names that tensors have in the source model, except those that are keys of external data, and
    /// the description of Python's containers around inputs and outputs.
    pub names: bool,
}

/// The result of [`strip`].
#[derive(Debug, Serialize)]
pub struct Stripped {
    /// The number of source frames removed.
    pub frames: usize,
    /// The number of tensor names removed.
    pub names: usize,
    /// Bytes of the old file.
    pub bytes_before: u64,
    /// Bytes of the new file.
    pub bytes_after: u64,
    /// The new file.
    #[serde(skip)]
    pub program: Output,
}

/// Removes debug information: the source frames of instructions and, if requested, names. Results and the required
/// `.ptd` entries stay the same.
pub fn strip(program: &Program, options: StripOptions, progress: &Progress) -> Result<Stripped> {
    let mut builder = take_apart(program, progress)?;
    let (mut frames, mut names) = (0, 0);
    for plan in &mut builder.execution_plan {
        for chain in &mut plan.chains {
            frames +=
                std::mem::take(&mut chain.stacktrace).iter().map(|list| list.items.len()).sum::<usize>();
        }
        if options.names {
            plan.container_meta_type = None;
        }
    }
    if options.names {
        for tensor in tensors_mut(&mut builder).filter(|tensor| !tensor.is_external()) {
            let Some(info) = &mut tensor.extra_tensor_info else { continue };
            names += usize::from(info.fully_qualified_name.take().is_some());
            if *info == ExtraTensorInfo::default() {
                tensor.extra_tensor_info = None;
            }
        }
    }
    let output = Output::program(builder, progress)?;
    Ok(Stripped {
        frames,
        names,
        bytes_before: program.loader().size(),
        bytes_after: output.bytes(),
        program: output,
    })
}
