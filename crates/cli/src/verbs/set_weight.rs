use crate::failure::Result;
use crate::general::{self, GeneralOpts, InputArg, KeepOpts, OutputArg, exit_status};
use crate::progress;
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use pteron_toolbox::edit;
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show::count;

/// Replace the values of a weight of a program (.pte) or of named data (.ptd)
///
/// The array must have the weight's type and shape. Other weights that shared the old bytes keep their
/// values. The output may be the file itself, which is replaced when the new one is complete.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron set-weight weights.ptd linear.bias bias.npy -o weights.ptd\n\n",
    "  # an unnamed constant, by its index in `pteron print model.pte`\n",
    "  pteron set-weight model.pte 3 bias.npy -o new.pte",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    /// The weight: its name in the model, its key, or the index of a constant
    name: String,
    /// A NumPy array (.npy)
    #[arg(value_name = "ARRAY")]
    array: PathBuf,
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
        paths.read("", &self.array);
        self.output.declare_edit(paths, &[self.input.path()]);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.input.open(general)?;
        let file = File::open(Arc::clone(&loader), "set-weight", general.limits())?;
        let set = edit::set_weight(&file, &self.name, &self.array, &progress::byte_progress())?;
        self.keep.check(general, self.input.path(), &set.lost)?;
        self.output.write_edited(general, &loader, &set.file)?;
        let text = format!("{} is set, {} of {}", self.name, count(set.tensors, "tensor"), set.layout);
        general::write_report(&self.output, self.json, &set, &text)
    }
}
