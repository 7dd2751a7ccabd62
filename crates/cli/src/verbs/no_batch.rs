use crate::failure::{Failure, Result};
use crate::general::{GeneralOpts, exit_status};
use clap::Args;
use pteron_toolbox::paths::Paths;
use std::ffi::OsString;

/// Execute a program over the rows of Parquet and Arrow files (this build lacks it: the cargo feature `batch` adds it)
#[derive(Debug, Args)]
#[command(disable_help_flag = true, hide = true)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  cargo install --path crates/cli --features batch\n",
    "  pteron batch model.pte rows.parquet -o results",
    exit_status!()
))]
pub(crate) struct Opts {
    /// The arguments of the verb, whatever they are.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<OsString>,
}

impl Opts {
    pub(crate) fn declare_paths(&self, _: &mut Paths) {}

    pub(crate) fn run(self, _: &GeneralOpts) -> Result {
        Err(Failure::Usage(
            "this build of pteron reads no Parquet and Arrow files: build it with `cargo build --release --features batch`, or \
             `cargo install --path crates/cli --features batch` (docs/batches.md)"
                .to_owned(),
        ))
    }
}
