use crate::failure::Result;
use crate::general::{self, GeneralOpts, InputArg, KeepOpts, OutputArg, exit_status};
use crate::progress;
use clap::Args;
use std::sync::Arc;
use pteron_toolbox::edit::{self, StripOptions};
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show::{bytes, count};

/// Remove from a program (.pte) what only people and tools read: source frames and names
///
/// The program computes the same, and keeps the names under which it looks up weights in .ptd files.
/// The output may be the file itself, which is replaced when the new one is complete.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron strip model.pte -o small.pte\n\n",
    "  # also the names of tensors and the Python containers of inputs and outputs\n",
    "  pteron strip model.pte --names -o small.pte",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    /// Also remove the names of tensors and the Python containers of inputs and outputs
    #[arg(long)]
    names: bool,
    /// Also remove the task metadata: preprocessing, labels, licence, provenance
    #[arg(long)]
    task: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    keep: KeepOpts,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.output.declare_edit(paths, &[self.input.path()]);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.input.open(general)?;
        let program = File::open_program(Arc::clone(&loader), "strip", general.limits())?;
        let stripped = edit::strip(&program, StripOptions { names: self.names, task: self.task }, &progress::byte_progress())?;
        self.keep.check(general, self.input.path(), &stripped.lost)?;
        self.output.write_edited(general, &loader, &stripped.program)?;
        let mut text = format!(
            "{} and {} left out: {} instead of {}",
            count(stripped.frames, "source frame"),
            count(stripped.names, "name"),
            bytes(stripped.bytes_after),
            bytes(stripped.bytes_before)
        );
        for method in &stripped.skipped {
            text.push_str(&format!("; `{method}`, which is not valid, stays as it is"));
        }
        general::write_report(&self.output, self.json, &stripped, &text)
    }
}
