use crate::failure::{Failure, Result};
use crate::general::{GeneralOpts, InputArg, OutputArg, exit_status_of_answer};
use crate::registries::registries;
use clap::Args;
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::plan::{plan, plan_of, text};
use pteron_toolbox::show::count;

/// Show the memory plan of a program (.pte): the offsets and lifetimes of tensors in its arenas
///
/// A row of the chart is a block of memory, a column a range of instructions, from before the first to after the
/// last. Delegates are listed with the constants and the nodes of their payloads, which are not in the arenas. With
/// --check, the exit status says whether the plan is sound: no two tensors that are live at the same time overlap.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron plan model.pte\n\n",
    "  # is a live tensor overwritten?\n",
    "  pteron plan model.pte --check",
    exit_status_of_answer!("done; with --check, the plan is sound", "with --check, a live tensor is overwritten")
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    /// Only this method
    #[arg(short, long)]
    method: Option<String>,
    /// Fail if live tensors are overwritten; print only these
    #[arg(long)]
    check: bool,
    /// Do not shorten long charts
    #[arg(short, long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.output.declare_paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let program = File::open_program(self.input.open(general)?, "plan", general.limits())?;
        let (kernels, backends) = (registries().kernels(), registries().backends());
        let report = match &self.method {
            Some(method) => plan_of(&program, method, kernels, backends)?,
            None => plan(&program, kernels, backends)?,
        };
        if self.json {
            self.output.write_json(&report)?;
        } else if !self.check {
            self.output.write_text(&text(&report, self.all))?;
        } else {
            let arenas: usize = report.methods.iter().map(|method| method.arenas.len()).sum();
            let overlaps = pteron_toolbox::plan::overlaps_text(&report);
            let methods = count(report.methods.len(), "method");
            self.output.write_text(&match overlaps.as_str() {
                "" => format!("{}: no overlap in {} of {methods}", report.file, count(arenas, "arena")),
                overlaps => format!("{}:\n{overlaps}", report.file),
            })?;
        }
        if self.check && !report.is_sound() { Err(Failure::Reported) } else { Ok(()) }
    }
}
