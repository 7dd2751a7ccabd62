use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts, exit_status};
use clap::Args;
use demo_backend::DemoBackend;
use indicatif::{ProgressBar, ProgressStyle};
use pteron::Pool;
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use toolbox::show;
use toolbox::verify::{self, Options, Outcome};

/// Run conformance cases and compare what comes out with what is recorded
///
/// A case is a folder with a case.json or a cases.json; of any other folder, every case in it is run.
/// Each case that fails is shown with its reason, and the last line counts them. Set aside are cases
/// with runs that the record cannot judge: where the reference departs from PyTorch or failed, and
/// random values.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron verify corpus/tiny/*\n\n",
    "  # without the programs that need a backend\n",
    "  pteron verify --undelegated corpus\n\n",
    "  # how far off is it?\n",
    "  pteron verify corpus/models/mlp --rtol 1e-7 --atol 0",
    exit_status!()
))]
pub(crate) struct Opts {
    /// Folders of cases, or their case.json or cases.json files
    #[arg(value_name = "CASE", required = true)]
    cases: Vec<PathBuf>,
    /// Leave out programs with delegates
    #[arg(long)]
    undelegated: bool,
    /// Register the demonstration backend BackendWithCompilerDemo
    #[arg(long)]
    demo_backends: bool,
    /// Allow this absolute difference, in the place of every case's own
    #[arg(long, value_name = "X")]
    atol: Option<f64>,
    /// Allow this difference relative to the expected value, in the place of every case's own
    #[arg(long, value_name = "X")]
    rtol: Option<f64>,
    /// Run instructions as they stand: pack no weights, fuse no operators
    #[arg(long)]
    no_prepare: bool,
    /// Threads that each case's kernels split their work over
    #[arg(long, value_name = "N", default_value = "1")]
    threads: NonZeroUsize,
    /// Print JSON: the counts, and the outcome of every case
    #[arg(long)]
    json: bool,
    /// Cases that run at a time [default: as many as there are cores]
    #[arg(short, long, value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

impl Opts {
    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let mut cases = Vec::new();
        for path in &self.cases {
            cases.extend(verify::find(path)?);
        }
        let mut backends = general::backends();
        if self.demo_backends {
            backends.register(DemoBackend).map_err(|e| Failure::Failed(Box::new(e)))?;
        }
        let mut load = pteron::load_options().backends(backends);
        load.pool = Pool::new(self.threads.get());
        load.no_prepare = self.no_prepare;
        let options =
            Options { load, undelegated: self.undelegated, atol: self.atol, rtol: self.rtol };

        let bar = progress(cases.len());
        let style = general.stdout_style();
        let (bad, aside) = (style.error("FAIL"), style.note("aside"));
        let mut closed = None;
        let mut outcomes = Vec::new();
        let jobs = self.jobs.or_else(|| std::thread::available_parallelism().ok());
        let counts = verify::check_all(&cases, &options, jobs.map_or(1, NonZeroUsize::get), |case, outcome| {
            if self.json {
                outcomes.push(json!({"case": case.name, "result": outcome}));
                return bar.inc(1);
            }
            let line = match outcome {
                Outcome::Failed(why) => Some(format!("{bad} {}: {why}", case.name)),
                Outcome::SetAside(why) if general.verbosity() > 0 => {
                    Some(format!("{aside} {}: {why}", case.name))
                }
                Outcome::Passed if general.verbosity() > 1 => {
                    Some(format!("{} {}", style.good("pass"), case.name))
                }
                _ => None,
            };
            if let Some(line) = line {
                let written = bar.suspend(|| writeln!(io::stdout(), "{line}"));
                if let Err(e) = written {
                    closed.get_or_insert(e);
                }
            }
            bar.inc(1);
        });
        bar.finish_and_clear();
        if let Some(e) = closed {
            return Err(e.into());
        }

        let mut out = io::stdout().lock();
        if self.json {
            let report = json!({"counts": counts, "cases": outcomes});
            serde_json::to_writer_pretty(&mut out, &report).map_err(io::Error::from)?;
            writeln!(out)?;
            return if counts.failed == 0 { Ok(()) } else { Err(Failure::Reported) };
        }
        if counts.skipped > 0 {
            writeln!(out, "{} with delegates left out", show::count(counts.skipped, "case"))?;
        }
        writeln!(
            out,
            "{} passed, {} failed, {} set aside",
            counts.passed, counts.failed, counts.set_aside
        )?;
        if counts.failed == 0 { Ok(()) } else { Err(Failure::Reported) }
    }
}

/// A bar on stderr if that is a terminal, nothing otherwise.
fn progress(cases: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(cases as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} cases, {eta} left") {
        bar.set_style(style);
    }
    bar
}
