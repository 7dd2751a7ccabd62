use crate::failure::Result;
use crate::general::{self, GeneralOpts, InputArg, KeepOpts, NamesArg, OutputArg, exit_status};
use crate::progress;
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use pteron_toolbox::edit::{self, MoveOptions};
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show::{bytes, count};

/// Move the weights of a program (.pte) into a file of named data (.ptd)
///
/// Moves constants, and the named data in which delegates keep their weights. The key of a constant is its name
/// in the model or, if it has none, the SHA-256 of its bytes. `pteron embed` is the inverse. The output may be
/// the program itself.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron externalize model.pte -o code.pte --data weights.ptd\n",
    "  pteron run code.pte --data weights.ptd 2x2xf32=1\n\n",
    "  # keep small constants in the program\n",
    "  pteron externalize model.pte -o code.pte --data weights.ptd --at-least 1024",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    /// Write the weights to this file
    #[arg(short, long, value_name = "FILE")]
    data: PathBuf,
    /// Move only weights of at least this many bytes
    #[arg(long, value_name = "BYTES", default_value_t = 0)]
    at_least: u64,
    /// Also move the initial values of mutable tensors
    #[arg(long)]
    initial: bool,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    names: NamesArg,
    #[command(flatten)]
    keep: KeepOpts,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        paths.write("--data", &self.data);
        self.output.declare_edit(paths, &[self.input.path()]);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.input.open(general)?;
        let program = File::open_program(Arc::clone(&loader), "externalize", general.limits())?;
        let names = self.names.patterns();
        let options = MoveOptions { at_least: self.at_least, initial: self.initial, names };
        let moved = edit::externalize(&program, &options, &progress::byte_progress())?;
        self.keep.check(general, self.input.path(), &moved.lost)?;
        // Write the weights first: a program without its weights is useless, weights without the program are not.
        general::write_file(&self.data, self.output.protected(), &moved.data)?;
        self.output.write_edited(general, &loader, &moved.program)?;
        let text = format!(
            "{} of {} moved to {}, {}; the program has {}",
            bytes(moved.bytes),
            count(moved.keys.len(), "weight"),
            self.data.display(),
            bytes(moved.data.bytes()),
            bytes(moved.program.bytes())
        );
        general::write_report(&self.output, self.json, &moved, &text)
    }
}
