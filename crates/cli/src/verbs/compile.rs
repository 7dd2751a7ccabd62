use crate::failure::Result;
use crate::general::{GeneralOpts, InputArg, exit_status};
use crate::lowering::LoweringOpts;
use clap::Args;
use pteron::compile;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::run::LoadMode;

/// Compile a torch.export archive (.pt2) to a program (.pte)
///
/// The archive is what `torch.export.save` writes, with or without `run_decompositions()`. Neither Python nor
/// PyTorch is needed, and nothing in it is unpickled. Operators without a kernel are decomposed into operators that
/// have one; those that cannot be decomposed are all listed at once, with the lines of the model that call them.
/// Each model of the archive becomes a method; a single one is called `forward`.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron compile model.pt2 -o model.pte\n",
    "  pteron run model.pte 1x3x224x224xf32\n\n",
    "  # weights in a separate file\n",
    "  pteron compile model.pt2 -o model.pte --external-data weights.ptd\n\n",
    "  # for XNNPACK, here or on the reference runtime\n",
    "  pteron compile model.pt2 -o model.pte --backend xnnpack\n\n",
    "  # int8, calibrated with the pictures or arrays of a folder, as the model takes them; or int8 weights of\n",
    "  # matrix products only\n",
    "  pteron compile model.pt2 -o model.pte --quantize int8 --calibrate photos --preset imagenet --backend xnnpack\n",
    "  pteron compile model.pt2 -o model.pte --quantize dynamic-int8\n\n",
    "  # what users of the program need to know of it (docs/task.md)\n",
    "  pteron compile model.pt2 -o model.pte --resize 256 --crop 224 --preset imagenet --labels classes.txt --license MIT\n\n",
    "  # a dynamic batch fixed to 1, and a sequence bounded; `pteron inspect model.pt2` shows the sizes\n",
    "  pteron compile model.pt2 -o model.pte --size x.0=1 --size x.1=16..512\n\n",
    "  # with a test case for each method, which `pteron verify` runs on any machine\n",
    "  pteron compile model.pt2 -o model.bpte --bundle\n\n",
    "  # the model after each of these passes\n",
    "  pteron compile model.pt2 -o model.pte --print-after read --print-after decompose",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    #[command(flatten)]
    lowering: LoweringOpts,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.lowering.declare_paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let file = pteron_toolbox::run::open(self.input.path(), LoadMode::File)?;
        self.lowering
            .compile(general, &file, None, |operators, options, watch| compile::from_loader(&file, operators, options, watch))
    }
}
