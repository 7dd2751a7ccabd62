use crate::failure::{Failure, Result};
use crate::general::{GeneralOpts, OutputArg, exit_status_of_answer};
use crate::registries::registries;
use clap::Args;
use std::fmt::Write;
use std::path::PathBuf;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show::{count, line};
use pteron_toolbox::validate::validate;

/// Find everything that is wrong with programs (.pte) or files of named data (.ptd)
///
/// Every problem is shown with its field, the expected value and the one found. Only the tables of a file are
/// read. For a valid program that this build cannot run, missing operators and backends are listed, but do not
/// count as problems of the file (`pteron ops --file` fails for them).
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron validate model.pte weights.ptd\n\n",
    "  # in a script: silent, only the exit status counts\n",
    "  pteron validate --quiet model.pte && deploy model.pte\n\n",
    "  # for a program\n",
    "  pteron validate model.pte --json",
    exit_status_of_answer!("every file is valid", "a file is not")
))]
pub(crate) struct Opts {
    /// The files to check; `-` is stdin
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// Print nothing
    #[arg(short, long, conflicts_with = "output")]
    quiet: bool,
    /// Print JSON: an array with an object for each file
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.files.iter().for_each(|path| paths.read("", path));
        self.output.declare_paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let (kernels, backends) = (registries().kernels(), registries().backends());
        let mut all = Vec::new();
        for file in &self.files {
            let loader = general.open(file)?;
            all.push(validate(&loader, kernels, backends, general.limits())?);
        }
        let valid = all.iter().all(|v| v.valid);
        if self.json {
            self.output.write_json(&all)?;
        } else if !self.quiet {
            let mut text = String::new();
            for v in &all {
                let _ = match v.problems.len() {
                    0 if v.can_run == Some(false) => {
                        let _ = writeln!(text, "{}: valid, but this build cannot run it", v.file);
                        v.missing.iter().try_for_each(|sentence| writeln!(text, "  {}", line(sentence)))
                    }
                    0 => writeln!(text, "{}: valid", v.file),
                    n => writeln!(text, "{}: {}", v.file, count(n, "problem")),
                };
                for problem in &v.problems {
                    let _ = writeln!(text, "  {}", line(&problem.message));
                }
            }
            self.output.write_text(&text)?;
        }
        if valid { Ok(()) } else { Err(Failure::Reported) }
    }
}
