use crate::failure::{Failure, Result};
use crate::general::{GeneralOpts, OutputArg, exit_status_of_answer};
use crate::progress;
use crate::registries::registries;
use clap::Args;
use pteron::DataLoader;
use std::path::PathBuf;
use std::sync::Arc;
use pteron_toolbox::diff::{Registries, diff, diff_test_cases};
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;

/// Show what differs between two programs (.pte) or two files of named data (.ptd), by meaning
///
/// Compares methods, instructions, values, nodes and tensors of delegates, named data, and the bytes of weights.
/// Offsets in the file and indices of values do not matter.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron diff old.pte new.pte\n\n",
    "  # do they compute the same? Ignores headers, alignments, memory plans, names, source frames\n",
    "  pteron diff --meaning model.pte stripped.pte",
    exit_status_of_answer!("no difference", "they differ")
))]
pub(crate) struct Opts {
    /// The first file
    a: PathBuf,
    /// The second file
    b: PathBuf,
    /// Show only differences that can change the results
    #[arg(long)]
    meaning: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        paths.read("", &self.a);
        paths.read("", &self.b);
        self.output.declare_paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let (kernels, backends) = (registries().kernels(), registries().backends());
        let registries = Registries { kernels, backends };
        let (a, b) = (general.open(&self.a)?, general.open(&self.b)?);
        let file = |loader: &Arc<dyn DataLoader>| File::open(Arc::clone(loader), "diff", general.limits());
        let mut report = diff(&file(&a)?, &file(&b)?, registries, &progress::byte_progress())?;
        report.differences.extend(diff_test_cases(&*a, &*b, general.limits())?);
        if self.meaning {
            report = report.only_meaning();
        }
        match self.json {
            true => self.output.write_json(&report)?,
            false => self.output.write_text(&report.text())?,
        }
        if report.differences.is_empty() { Ok(()) } else { Err(Failure::Reported) }
    }
}
