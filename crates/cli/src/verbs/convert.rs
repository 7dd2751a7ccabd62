use crate::failure::Result;
use crate::general::{GeneralOpts, InputArg, OutputArg, exit_status};
use crate::progress;
use clap::Args;
use pteron::Limits;
use toolbox::paths::Paths;
use toolbox::run::LoadMode;

/// Convert named data (.ptd) to .safetensors, and .safetensors or .npz to .ptd
///
/// Which way is said by the file. The metadata of the .safetensors file remembers which entries were no
/// tensors and which were not row-major, so that the way back gives the same .ptd.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron convert weights.ptd -o weights.safetensors\n",
    "  pteron convert weights.safetensors -o weights.ptd\n",
    "  pteron convert arrays.npz -o weights.ptd",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn paths(&self, paths: &mut Paths) {
        self.input.paths(paths);
        self.output.paths_of_binary(paths);
    }

    pub(crate) fn run(self, _: &GeneralOpts) -> Result {
        let loader = self.input.open(LoadMode::File)?;
        let converted = toolbox::convert::convert(loader, &Limits::default(), &progress::of_bytes())?;
        self.output.write_file(&converted)
    }
}
