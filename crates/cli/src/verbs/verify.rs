use crate::backend::{self, BackendName, TargetCpu};
use crate::failure::{Failure, Result};
use crate::general::{self, ExecutionOpts, GeneralOpts, exit_status_of_answer};
use crate::terminal;
use crate::registries::{self, registries};
use clap::Args;
use pteron_demo_backend::DemoBackend;
use indicatif::{ProgressBar, ProgressStyle};
use pteron::{Protected, compile};
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use pteron_toolbox::paths::Paths;
use pteron_toolbox::show;
use pteron_verify::{self as verify, Case, Counts, Options, Outcome, Setting};

/// Run conformance cases and compare their outputs with the recorded ones
///
/// A case is a folder with a case.json or a cases.json; for any other folder, every case in it is run.
/// Each failing case is shown with the reason, and the last line has the counts. Cases are set aside if
/// their recorded outputs are no reference: the reference differs from PyTorch or failed, or the outputs
/// are random.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron verify corpus/tiny/*\n\n",
    "  # the test cases of a bundled program\n",
    "  pteron verify model.bpte\n\n",
    "  # without the programs that need a backend\n",
    "  pteron verify --undelegated corpus\n\n",
    "  # with every instruction set, prepared and as written, on one and two threads\n",
    "  pteron verify --matrix corpus/ops\n\n",
    "  # with XNNPACK payloads converted to operators\n",
    "  pteron verify --retarget none corpus/models\n\n",
    "  # how far off is it?\n",
    "  pteron verify corpus/models/mlp --rtol 1e-7 --atol 0",
    exit_status_of_answer!("no case fails", "a case fails")
))]
pub(crate) struct Opts {
    /// Folders of cases, their case.json or cases.json files, or bundled programs (.bpte)
    #[arg(value_name = "CASE", required = true)]
    cases: Vec<PathBuf>,
    /// Skip programs with delegates
    #[arg(long)]
    undelegated: bool,
    /// Register the demonstration backend BackendWithCompilerDemo
    #[arg(long)]
    demo_backends: bool,
    /// Allow this absolute difference, instead of each case's tolerance
    #[arg(long, value_name = "X")]
    atol: Option<f64>,
    /// Allow this difference relative to the expected value, instead of each case's tolerance
    #[arg(long, value_name = "X")]
    rtol: Option<f64>,
    #[command(flatten)]
    execution: ExecutionOpts,
    /// Run every case under every setting: prepared and as written, with every instruction set of this
    /// machine, on one thread and on two
    #[arg(long, conflicts_with_all = ["threads", "isa", "no_prepare"])]
    matrix: bool,
    /// Let the methods of a program share the memory of their state, as the option of `run` does; cases whose case.json
    /// has `"share_memory_arenas": true` do so without it
    #[arg(long)]
    share_memory_arenas: bool,
    /// Run the torch.export archives (.pt2) beside the programs of the cases instead of the programs
    #[arg(long)]
    archives: bool,
    /// Backends to which parts of the archives' programs are delegated, in order of preference
    #[arg(long, value_parser = BackendName::parser(), value_delimiter = ',', default_value = "none", value_name = "BACKEND", requires = "archives")]
    backend: Vec<BackendName>,
    /// Also store weights packed for a machine (backend bef)
    #[arg(long, value_enum, default_value_t, value_name = "CPU", requires = "archives")]
    target_cpu: TargetCpu,
    /// Recompile the programs for this backend, without their source, and run the result; if given several times,
    /// recompile for each backend in turn
    #[arg(long, value_parser = BackendName::parser(), value_name = "BACKEND")]
    retarget: Vec<BackendName>,
    /// Write a line for each output of each run: setting, case, number of the run and of the output, SHA-256 of its type,
    /// sizes, layout and bytes. The files of two builds that compute the same are the same once they are sorted
    #[arg(long, value_name = "FILE")]
    digests: Option<PathBuf>,
    /// Print JSON: the counts, and the outcome of every case
    #[arg(long)]
    json: bool,
    /// Number of cases that run concurrently [default: the number of cores, but at most one per 256 MiB of
    /// free memory]
    #[arg(short, long, value_name = "N", value_parser = general::parse_threads)]
    jobs: Option<NonZeroUsize>,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.cases.iter().for_each(|path| paths.read("", path));
        self.digests.iter().for_each(|path| paths.write("--digests", path));
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let mut cases = Vec::new();
        for path in &self.cases {
            cases.extend(verify::find(path)?);
        }
        cases.iter_mut().for_each(|case| case.share_memory_arenas |= self.share_memory_arenas);
        if self.archives {
            cases = verify::archive_cases(&cases).map_err(|e| Failure::Usage(format!("--archives: {e}")))?;
        }
        let mut backends = general::backends();
        if self.demo_backends {
            backends.register(DemoBackend).map_err(|e| Failure::Failed(Box::new(e)))?;
        }
        let mut load = registries::load_options().backends(backends).limits(general.limits().clone());
        load.interrupt = general.bounds().interrupt();
        let concurrent = self.jobs.or(NonZeroUsize::new(pteron::available_threads())).unwrap_or(NonZeroUsize::MIN);
        let settings = if self.matrix { Setting::all() } else { vec![self.execution.setting_of_each(concurrent)?] };
        let delegation = backend::delegations(&self.backend, self.target_cpu)?;
        let compile = compile::Options { delegation, memory: general.limits().memory, ..compile::Options::default() };
        let retarget = self.retarget.iter().map(|name| backend::delegations(std::slice::from_ref(name), TargetCpu::None));
        let retarget = retarget.collect::<Result<Vec<_>>>()?;
        let convert: verify::Convert =
            Arc::new(move |program| Ok(compile::converted(program, registries(), &compile, &retarget)?));
        let digests = Arc::new(Mutex::new(String::new()));
        let mut total = Counts::default();
        let mut reports = Vec::new();
        for setting in &settings {
            let load = setting.apply(&load);
            let convert = Some(Arc::clone(&convert));
            let observe = self.digests.is_some().then(|| observer(&digests, setting.to_string()));
            let options = Options { load, undelegated: self.undelegated, atol: self.atol, rtol: self.rtol, convert, observe };
            let way = if self.matrix { format!("{setting}: ") } else { String::new() };
            let (counts, outcomes) = self.check(&cases, &options, &way, general)?;
            total.merge(counts);
            if self.json {
                let mut report = json!({"counts": counts, "cases": outcomes});
                if self.matrix {
                    report["setting"] = json!(setting);
                }
                reports.push(report);
            } else if self.matrix {
                writeln!(terminal::stdout(), "{way}{}", counts_line(&counts))?;
            }
        }

        if let Some(path) = &self.digests {
            let text = digests.lock().unwrap_or_else(PoisonError::into_inner);
            let write = |out: &mut dyn Write| Ok(out.write_all(text.as_bytes())?);
            general::write_file_with(path, Protected::Keep, write)?;
        }
        if self.json {
            let report = if self.matrix { json!(reports) } else { reports.remove(0) };
            general::write_stdout(|out| general::write_json_line(out, &report))?;
        } else {
            let mut out = terminal::stdout();
            if total.skipped > 0 {
                writeln!(out, "{} with delegates left out", show::count(total.skipped, "case"))?;
            }
            writeln!(out, "{}", counts_line(&total))?;
        }
        if total.failed == 0 { Ok(()) } else { Err(Failure::Reported) }
    }

    /// Runs the cases under one setting. Prints the outcomes that the verbosity asks for; with --json, collects all
    /// instead.
    fn check(
        &self,
        cases: &[Case],
        options: &Options,
        way: &str,
        general: &GeneralOpts,
    ) -> Result<(Counts, Vec<serde_json::Value>)> {
        let bar = progress_bar(cases.len());
        let style = general.stdout_style();
        let (bad, aside) = (style.error("FAIL"), style.note("aside"));
        let mut closed = None;
        let mut outcomes = Vec::new();
        let jobs = self.jobs.map_or_else(default_jobs, NonZeroUsize::get);
        let counts = verify::check_all(cases, options, jobs, |case, outcome| {
            if self.json {
                outcomes.push(json!({"case": case.name, "result": outcome}));
                return bar.inc(1);
            }
            let line = match outcome {
                Outcome::Failed(why) => Some(format!("{bad} {way}{}", show::message(&format!("{}: {why}", case.name)))),
                Outcome::SetAside(why) if general.verbosity() > 0 => {
                    Some(format!("{aside} {way}{}", show::message(&format!("{}: {why}", case.name))))
                }
                Outcome::Passed if general.verbosity() > 1 => {
                    Some(format!("{} {way}{}", style.success("pass"), show::line(&case.name)))
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
        closed.map_or(Ok((counts, outcomes)), |e| Err(e.into()))
    }
}

/// A callback that appends a line for each output to `digests`: setting, case, run, output index and digest.
fn observer(digests: &Arc<Mutex<String>>, setting: String) -> verify::Observe {
    let digests = Arc::clone(digests);
    Arc::new(move |case, run, outputs| {
        let lines: String = outputs
            .iter()
            .enumerate()
            .map(|(i, value)| format!("{setting}\t{}\t{run}\t{i}\t{}\n", show::line(&case.name), verify::digest(value)))
            .collect();
        digests.lock().unwrap_or_else(PoisonError::into_inner).push_str(&lines);
    })
}

fn counts_line(counts: &Counts) -> String {
    format!("{} passed, {} failed, {} set aside", counts.passed, counts.failed, counts.set_aside)
}

/// A progress bar on stderr if that is a terminal, a hidden one otherwise.
fn progress_bar(cases: usize) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(cases as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {pos}/{len} cases, {eta} left") {
        bar.set_style(style);
    }
    bar
}

/// The free memory, or address space under `ulimit -v`, per concurrent case. The system allocator alone reserves up to
/// 128 MiB of address space for each thread.
const JOB_BYTES: u64 = 256 << 20;

/// The default number of cases that run concurrently.
fn default_jobs() -> usize {
    let room = pteron::free_memory().map_or(u64::MAX, |free| free / JOB_BYTES);
    pteron::available_threads().min(usize::try_from(room).unwrap_or(usize::MAX)).max(1)
}
