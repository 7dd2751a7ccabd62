use super::{Output, take_apart, tensors_mut};
use crate::Result;
use crate::file::Progress;
use format::pte::ExtraTensorInfo;
use runtime::Program;
use serde::Serialize;

/// What to strip besides stack traces.
#[derive(Debug, Clone, Copy, Default)]
pub struct StripOptions {
    /// Also the names that tensors have in the source model, but for those that a `.ptd` is searched for,
    /// and Python's containers around inputs and outputs.
    pub names: bool,
}

/// What was stripped.
#[derive(Debug, Serialize)]
pub struct Stripped {
    /// Source frames that were left out.
    pub frames: usize,
    /// Names of tensors that were left out.
    pub names: usize,
    /// Bytes of the old file.
    pub bytes_before: u64,
    /// Bytes of the new one.
    pub bytes_after: u64,
    /// The new file.
    #[serde(skip)]
    pub program: Output,
}

/// Leaves out what only people and tools read: the source frames of instructions, and names if asked for.
/// What the program computes, and which `.ptd` entries it needs, stays.
pub fn strip(program: &Program, options: StripOptions, progress: &Progress) -> Result<Stripped> {
    let mut builder = take_apart(program, progress);
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
