use super::bef::{BefOpts, bef_bytes};
use crate::call::{CallArgs, Loaded, note_default_inputs, refuse_options};
use crate::failure::{Failure, Result};
use crate::general::{GeneralOpts, OutputArg, exit_status};
use crate::terminal;
use clap::Args;
use std::io::{self, Write};
use std::path::PathBuf;
use pteron_toolbox::bef::Program;
use pteron_toolbox::delegates::NodeKinds;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::profile::{self, chrome, etdump};

/// Run a method and show which operators took the time, or the functions of a BEF program and which
/// kernels did
///
/// Inputs are written as for `pteron run`. With -v, every step is listed with the shapes of the
/// instruction whose result it computes; several instructions may be fused into one step.
///
/// For a BEF program (.bef) or MLIR text (.mlir), every function that takes no arguments is run: once as
/// a warm-up that is not reported, and not again after an unexpected error. The total time of kernels that
/// call functions, such as `tfrt.call`, `tfrt.if` and `tfrt.repeat`, includes the kernels of the callee;
/// shares, and the time per call, are of their self time. Recording makes short kernels slower; the report
/// says by how much. The output of the program is discarded; with -v it goes to stderr, and every kernel
/// call site is listed with its source. Recording stops after 4,000,000 calls.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron profile model.pte\n\n",
    "  # every step, with shapes, as the program is written\n",
    "  pteron profile model.pte -v --no-prepare\n\n",
    "  # a timeline for https://ui.perfetto.dev, a dump for ExecuTorch's Inspector\n",
    "  pteron profile model.pte --trace trace.json --etdump trace.etdp\n\n",
    "  # with all intermediate tensors\n",
    "  pteron profile model.pte x.npy --etdump trace.etdp --debug-buffer values.bin\n\n",
    "  # the kernels of a BEF program on four threads, and a timeline of them\n",
    "  pteron profile program.bef --work-queue mt:4 --trace trace.json",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    call: CallArgs,
    /// Record this many runs [default: 10, or 1 with --debug-buffer]
    #[arg(short, long, value_name = "N")]
    repeat: Option<usize>,
    /// Write a timeline that Chrome and Perfetto show
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write an ETDump, which ExecuTorch's Inspector reads
    #[arg(long, value_name = "FILE")]
    etdump: Option<PathBuf>,
    /// Record every tensor that is computed, and write their bytes to this file
    #[arg(long, value_name = "FILE", requires = "etdump")]
    debug_buffer: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: OutputArg,
    #[command(flatten)]
    bef: BefOpts,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.call.declare_paths(paths);
        self.trace.iter().for_each(|path| paths.write("--trace", path));
        self.etdump.iter().for_each(|path| paths.write("--etdump", path));
        self.debug_buffer.iter().for_each(|path| paths.write("--debug-buffer", path));
        self.output.declare_paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.call.open(general)?;
        if let Some(program) = pteron_toolbox::bef::open(&*loader)? {
            return self.run_bef(program, loader.name(), general);
        }
        refuse_options("profile", loader.name(), "no BEF program", self.bef.bef_options())?;
        let values = self.debug_buffer.is_some();
        let repeat = self.repeat.unwrap_or(if values { 1 } else { 10 });
        let Loaded { program, options, request, .. } = self.call.load_with_sample(general, "profile", loader, repeat)?;
        let (kernels, backends) = (options.kernels.clone(), options.backends.clone());
        let profile = profile::profile(&program, &request, values, options)?;
        note_default_inputs(profile.default_inputs.as_ref());
        let nodes = NodeKinds::read(&program, &profile.method, &backends)?;
        if let Some(path) = &self.trace {
            self.output.write_other(path, |out| chrome::trace(&profile.recording, out))?;
        }
        if let Some(path) = &self.etdump {
            let (dump, buffer) = etdump::dump(&profile.recording, &nodes)?;
            self.output.write_other(path, |out| etdump::write(&dump, out))?;
            if let Some(path) = &self.debug_buffer {
                self.output.write_other(path, |out| out.write_all(&buffer).map_err(pteron_toolbox::Error::write(path)))?;
            }
        }
        let report = profile.report(&program, &kernels, &nodes);
        match self.json {
            true => self.output.write_json(&report),
            false => self.output.write_text(&report.text(general.verbosity() > 0)),
        }
    }

    fn run_bef(self, program: Program, name: &str, general: &GeneralOpts) -> Result {
        let verbose = general.verbosity() > 0;
        let own = [("--etdump", self.etdump.is_some()), ("--debug-buffer", self.debug_buffer.is_some())];
        let own = own.into_iter().chain(self.call.method_options());
        refuse_options("profile", name, "a BEF program", own)?;
        let stdout: Box<dyn Write + Send> = if verbose { Box::new(terminal::stderr()) } else { Box::new(io::sink()) };
        let program = bef_bytes(general, program, name)?;
        let repeat = self.repeat.unwrap_or(10);
        let profile = profile::bef::profile(program, self.bef.options(general), repeat, stdout, terminal::stderr());
        if profile.exit_code == 0 || profile.has_runs() {
            if let Some(path) = &self.trace {
                self.output.write_other(path, |out| chrome::trace(&profile.recording, out))?;
            }
            let report = profile.report(name)?;
            match self.json {
                true => self.output.write_json(&report)?,
                false => self.output.write_text(&report.text(verbose))?,
            }
        }
        match profile.exit_code {
            0 => Ok(()),
            _ => Err(Failure::Reported),
        }
    }
}
