use crate::call::{CallArgs, Loaded, note_zeros};
use crate::failure::Result;
use crate::general::{GeneralOpts, OutputArg, exit_status};
use clap::Args;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use toolbox::profile::{self, chrome, etdump};

/// Run a method and show which operators took the time
///
/// Inputs are written as for `pteron run`. With -v, every step is listed with the shapes of the
/// instruction whose result it computes; several instructions may have become one step.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron profile model.pte\n\n",
    "  # every step, with shapes, as the program is written\n",
    "  pteron profile model.pte -v --no-prepare\n\n",
    "  # a timeline for https://ui.perfetto.dev, a dump for ExecuTorch's Inspector\n",
    "  pteron profile model.pte --trace trace.json --etdump trace.etdp\n\n",
    "  # with everything that is computed on the way\n",
    "  pteron profile model.pte @x.npy --etdump trace.etdp --debug-buffer values.bin",
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
}

impl Opts {
    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let values = self.debug_buffer.is_some();
        let repeat = self.repeat.unwrap_or(if values { 1 } else { 10 });
        let Loaded { program, options, request, .. } = self.call.load(self.call.open()?, repeat)?;
        let kernels = options.kernels.clone();
        let profile = profile::profile(&program, &request, values, options)?;
        note_zeros(profile.zeros.as_ref());
        if let Some(path) = &self.trace {
            write(path, |out| chrome::trace(&profile.recording, out))?;
        }
        if let Some(path) = &self.etdump {
            let (dump, buffer) = etdump::dump(&profile.recording);
            write(path, |out| etdump::write(&dump, out))?;
            if let Some(path) = &self.debug_buffer {
                write(path, |out| out.write_all(&buffer).map_err(toolbox::Error::write(path)))?;
            }
        }
        let report = profile.report(&program, &kernels);
        match self.json {
            true => self.output.write_json(&report),
            false => self.output.write_text(&report.text(general.verbosity() > 0)),
        }
    }
}

fn write(path: &Path, fill: impl FnOnce(&mut dyn Write) -> toolbox::Result<()>) -> Result {
    let mut out = BufWriter::new(File::create(path).map_err(toolbox::Error::write(path))?);
    fill(&mut out)?;
    Ok(out.flush().map_err(toolbox::Error::write(path))?)
}
