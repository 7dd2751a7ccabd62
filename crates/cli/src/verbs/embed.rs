use crate::failure::Result;
use crate::general::{self, GeneralOpts, InputArg, KeepOpts, OutputArg, exit_status};
use crate::progress;
use clap::Args;
use std::path::PathBuf;
use std::sync::Arc;
use pteron_toolbox::edit;
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show::{bytes, count};

/// Embed the external weights (.ptd) of a program (.pte) in the program
///
/// Blobs become named data of the program, and so do tensors to which it does not refer if it has delegates, which may
/// use them. The output may be the program itself.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron embed code.pte --data weights.ptd -o model.pte",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    /// A file of named data (.ptd); may be given several times
    #[arg(short, long, value_name = "FILE", required = true)]
    data: Vec<PathBuf>,
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
        self.data.iter().for_each(|path| paths.read("--data", path));
        self.output.declare_edit(paths, &[self.input.path()]);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let limits = general.limits();
        let loader = self.input.open(general)?;
        let program = File::open_program(Arc::clone(&loader), "embed", limits)?;
        let data = general.open_data(&self.data, "embed")?;
        let embedded = edit::embed(&program, &data, &progress::byte_progress())?;
        self.keep.check(general, self.input.path(), &embedded.not_kept())?;
        self.output.write_edited(general, &loader, &embedded.program)?;
        let text = format!(
            "{} and {} put into the program, {}",
            count(embedded.tensors.len(), "tensor"),
            count(embedded.named_data.len(), "blob"),
            bytes(embedded.program.bytes())
        );
        general::write_report(&self.output, self.json, &embedded, &text)
    }
}
