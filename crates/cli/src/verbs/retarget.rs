use crate::failure::Result;
use crate::general::{GeneralOpts, InputArg, KeepOpts, exit_status};
use crate::lowering::LoweringOpts;
use crate::registries::registries;
use clap::Args;
use pteron::Program;
use pteron::compile::{self, OperatorTable};
use std::path::PathBuf;
use std::sync::Arc;
use pteron_toolbox::bundle::unbundle;
use pteron_toolbox::edit;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::run::{LoadMode, open_data};

/// Recompile a program (.pte) for other backends, without the model's source
///
/// XNNPACK delegates are converted back to operators, which can then be delegated again. Dynamic sizes, state,
/// branches, loops, weights, source frames, alignments and the test cases of bundled programs (.bpte) are preserved. Programs with delegates of other backends, and those
/// whose jumps are not of the form that exporters write, are refused.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  # operators instead of delegates\n",
    "  pteron retarget model_xnnpack.pte --backend none -o model.pte\n\n",
    "  # an old program in the current form\n",
    "  pteron retarget old.pte --backend xnnpack -o new.pte\n\n",
    "  # with a static batch instead of a dynamic one\n",
    "  pteron retarget dynamic.pte --size x.0=1 --backend xnnpack -o static.pte\n\n",
    "  # the operators that a delegate computes\n",
    "  pteron retarget model_xnnpack.pte --print-after read -o /dev/null",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    /// A file of external weights of the program (.ptd); may be given several times
    #[arg(short, long, value_name = "FILE")]
    data: Vec<PathBuf>,
    #[command(flatten)]
    keep: KeepOpts,
    #[command(flatten)]
    lowering: LoweringOpts,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.data.iter().for_each(|path| paths.read("--data", path));
        self.lowering.declare_paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let original = self.input.open(general)?;
        let file = unbundle(Arc::clone(&original), general.limits())?;
        pteron_toolbox::run::expect_program(&*file, "retarget", "programs (.pte, .bpte)")?;
        let program = Program::load(Arc::clone(&file), general.limits()).map_err(pteron_toolbox::Error::from)?;
        self.keep.check(general, self.input.path(), &edit::lost_by_recompiling(&program)?)?;
        let data = open_data(&self.data, LoadMode::File, general.limits())?;
        let known = OperatorTable::all(registries().kernels());
        self.lowering.compile(general, &file, Some(&*original), |operators, options, watch| {
            let (tables, recoverers) = ((&known, operators), registries().recoverers());
            compile::from_program_with(Arc::clone(&file), data.as_ref(), tables, recoverers, options, watch)
        })
    }
}
