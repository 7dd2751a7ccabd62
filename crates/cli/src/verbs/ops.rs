use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts, OutputArg, exit_status};
use clap::Args;
use pteron::{Limits, Program};
use std::fmt::Write;
use std::path::PathBuf;
use toolbox::ops::{needed, supported};
use toolbox::run::LoadMode;
use toolbox::show::{count, table};

/// List the operators that this build has, or what a program needs and this build lacks
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  # every operator, with its schema and types\n",
    "  pteron ops\n\n",
    "  # those with `conv` in their name\n",
    "  pteron ops conv\n\n",
    "  # what a program needs; fails if something is missing\n",
    "  pteron ops --file model.pte",
    exit_status!()
))]
pub(crate) struct Opts {
    /// Show only operators with this in their name
    #[arg(value_name = "TEXT")]
    filter: Option<String>,
    /// Show what this program needs; exit with 1 if an operator is missing. `-` is stdin
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn run(self, _: &GeneralOpts) -> Result {
        match &self.file {
            Some(file) => self.of_program(general::open(file, LoadMode::File)?),
            None => self.of_build(),
        }
    }

    fn wanted(&self, name: &str) -> bool {
        self.filter.as_deref().is_none_or(|text| name.contains(text))
    }

    fn of_build(&self) -> Result {
        let mut all = supported(&pteron::kernel_registry());
        all.retain(|op| self.wanted(&op.name));
        if self.json {
            return self.output.write_json(&all);
        }
        let mut text = String::new();
        for op in &all {
            let _ = writeln!(text, "{}", op.schema);
            if !op.dtypes.is_empty() {
                let _ = writeln!(text, "    {}", op.dtypes.join(", "));
            }
        }
        let _ = writeln!(text, "{}", count(all.len(), "operator"));
        self.output.write_text(&text)
    }

    fn of_program(&self, loader: std::sync::Arc<dyn pteron::DataLoader>) -> Result {
        let name = loader.name().to_owned();
        let program = Program::load(loader, &Limits::default()).map_err(toolbox::Error::from)?;
        let mut all = needed(&program, &pteron::kernel_registry())?;
        all.retain(|op| self.wanted(&op.name));
        let missing = all.iter().filter(|op| !op.available).count();
        if self.json {
            self.output.write_json(&all)?;
        } else {
            let rows = all.iter().map(|op| {
                let note = match (op.available, op.similar.as_slice()) {
                    (true, _) => String::new(),
                    (false, []) => "missing".to_owned(),
                    (false, similar) => format!("missing; there is {}", similar.join(", ")),
                };
                vec![op.calls.to_string(), op.name.clone(), note]
            });
            let mut text = table(rows.collect(), "><<", 0);
            let _ = match missing {
                0 => writeln!(text, "{name}: nothing is missing of {}", count(all.len(), "operator")),
                n => writeln!(text, "{name}: {n} of {} missing", count(all.len(), "operator")),
            };
            self.output.write_text(&text)?;
        }
        if missing == 0 { Ok(()) } else { Err(Failure::Reported) }
    }
}
