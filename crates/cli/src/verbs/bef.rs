use super::translate::require_translated;
use crate::failure::{Failure, Result};
use crate::general::{GeneralOpts, InputArg, MAX_THREADS, exit_status};
use crate::terminal;
use clap::{Args, Subcommand};
use pteron::FreeableBuffer;
use pteron_toolbox::bef::{self, Program, Queue, RunOptions};
use pteron_toolbox::paths::Paths;

/// Run a BEF program: `pteron bef run` is `pteron run` for such files
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron bef run program.bef --work-queue mt:4",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run the functions of a BEF program (.bef), or of MLIR text (.mlir), which is translated first
    #[command(after_long_help = concat!(
        "Examples:\n",
        "  pteron bef run program.bef\n",
        "  pteron bef run program.mlir --functions main,other --work-queue mt:4\n",
        "  pteron bef run program.mlir --functions 'add(1, 2)'",
        exit_status!()
    ))]
    Run {
        #[command(flatten)]
        input: InputArg,
        #[command(flatten)]
        options: RunBefOpts,
    },
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        let Verb::Run { input, .. } = &self.verb;
        input.declare_paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let Verb::Run { input, options } = self.verb;
        let loader = input.open_uncompiled()?;
        match bef::open(&*loader)? {
            Some(program) => options.run(general, program, loader.name()),
            None => Err(bef::wrong_format(&*loader, "bef run", "BEF programs (.bef) and MLIR text (.mlir)").into()),
        }
    }
}

/// Options for running a BEF program.
#[derive(Debug, Args)]
pub(crate) struct BefOpts {
    /// Run these functions, in this order, instead of all that take no arguments; `f(1, 2.5)` passes arguments
    #[arg(help_heading = "Options for BEF programs", long, value_name = "NAMES")]
    functions: Vec<String>,
    /// The work queue for tasks: `s` for the calling thread only, or `mt:N` for N threads [default: s]
    #[arg(help_heading = "Options for BEF programs", long, value_name = "QUEUE", value_parser = parse_queue)]
    work_queue: Option<Queue>,
    /// Run this function before the others
    #[arg(help_heading = "Options for BEF programs", long, value_name = "NAME")]
    init: Option<String>,
}

impl BefOpts {
    /// The options for BEF programs, by name, each with whether it was given.
    pub(crate) fn bef_options(&self) -> impl Iterator<Item = (&'static str, bool)> + use<> {
        let all = [
            ("--functions", !self.functions.is_empty()),
            ("--work-queue", self.work_queue.is_some()),
            ("--init", self.init.is_some()),
        ];
        all.into_iter()
    }

    pub(crate) fn options(self, general: &GeneralOpts) -> RunOptions {
        let mut options = RunOptions {
            functions: self.functions.iter().flat_map(|list| split_calls(list)).collect(),
            init: self.init,
            queue: self.work_queue.unwrap_or_default(),
            ..RunOptions::default()
        };
        general.bounds().apply_to_bef(&mut options);
        options
    }
}

/// Options for running a BEF program and printing its results.
#[derive(Debug, Args)]
pub(crate) struct RunBefOpts {
    #[command(flatten)]
    options: BefOpts,
    /// Print the error codes of results that are errors
    #[arg(help_heading = "Options for BEF programs", long)]
    print_error_code: bool,
}

impl RunBefOpts {
    /// The options for BEF programs, by name, each with whether it was given.
    pub(crate) fn bef_options(&self) -> impl Iterator<Item = (&'static str, bool)> + use<> {
        self.options.bef_options().chain([("--print-error-code", self.print_error_code)])
    }

    /// Runs a BEF program, or MLIR text, which is translated first.
    pub(crate) fn run(self, general: &GeneralOpts, program: Program, name: &str) -> Result {
        let options = RunOptions { print_error_code: self.print_error_code, ..self.options.options(general) };
        match bef::run(bef_bytes(general, program, name)?, &options, terminal::stdout(), terminal::stderr()) {
            0 => Ok(()),
            _ => Err(Failure::Reported),
        }
    }
}

/// The bytes of a BEF program; MLIR text is translated first.
pub(crate) fn bef_bytes(general: &GeneralOpts, program: Program, name: &str) -> Result<FreeableBuffer> {
    match program {
        Program::Bef(bytes) => Ok(bytes),
        Program::Mlir(source) => {
            let options = general.bounds().translation_options(&source, name).map_err(|why| Failure::Failed(why.into()))?;
            let bytes = require_translated(bef::to_bef(&source, name, options))?;
            Ok(FreeableBuffer::from_bytes(&bytes).map_err(pteron_toolbox::Error::from)?)
        }
    }
}

/// Splits a list of functions at the commas that are not within parentheses.
fn split_calls(list: &str) -> Vec<String> {
    let mut depth = 0usize;
    let pieces = list.split(|c| {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    pieces.map(|call| call.trim().to_owned()).collect()
}

/// Parses `s`, `mt` or `mt:N`; also accepts `mstd` and `mstd:N`, the reference's names for `mt`.
fn parse_queue(text: &str) -> Result<Queue, String> {
    let (name, threads) = match text.split_once(':') {
        Some((name, threads)) => (name, Some(threads.split(',').next().unwrap_or(threads))),
        None => (text, None),
    };
    match (name, threads) {
        ("s", None) => Ok(Queue::SingleThreaded),
        ("mt" | "mstd", None) => Ok(Queue::MultiThreaded(pteron::available_threads())),
        ("mt" | "mstd", Some(n)) => match n.parse() {
            Ok(n @ 1..=MAX_THREADS) => Ok(Queue::MultiThreaded(n)),
            _ => Err(format!("`{n}` is no number of threads (1 to {MAX_THREADS})")),
        },
        _ => Err("a work queue is `s` or `mt:N`".to_owned()),
    }
}
