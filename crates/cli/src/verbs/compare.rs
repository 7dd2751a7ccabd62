use crate::call::{CallArgs, Loaded, note_zeros};
use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts, OutputArg, exit_status_of_answer};
use clap::Args;
use std::path::PathBuf;
use pteron_toolbox::divergence::{self, Against};
use pteron_toolbox::etdump;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::tolerance::{Scope, Tolerance};

/// Find the first instruction at which two runs of a method diverge
///
/// The method is run prepared and as written, on the same inputs, and the results of its instructions are
/// compared one by one. An instruction that was fused into a later one has no separate result: with -v it
/// is listed as fused. With --etdump, the run is compared with a recorded one, by Pteron
/// (`pteron profile --etdump --debug-buffer`) or by ExecuTorch with intermediate outputs; --no-prepare
/// then compares the run as written. Inputs are written as for `pteron run`.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron compare model.pte x.npy\n\n",
    "  # every value that was compared\n",
    "  pteron compare model.pte x.npy -v\n\n",
    "  # with a run recorded by ExecuTorch\n",
    "  pteron compare model.pte x.npy --etdump trace.etdp --debug-buffer values.bin",
    exit_status_of_answer!("the runs agree", "they diverge")
))]
pub(crate) struct Opts {
    #[command(flatten)]
    call: CallArgs,
    /// Compare with this recording
    #[arg(long, value_name = "FILE", requires = "debug_buffer")]
    etdump: Option<PathBuf>,
    /// The bytes of the recording's tensors
    #[arg(long, value_name = "FILE", requires = "etdump")]
    debug_buffer: Option<PathBuf>,
    /// Allow this absolute difference [default: 1e-4 of a tensor's largest element]
    #[arg(long, value_name = "X")]
    atol: Option<f64>,
    /// Allow this difference relative to the other run's value
    #[arg(long, value_name = "X")]
    rtol: Option<f64>,
    /// Print JSON: every value that was compared
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn paths(&self, paths: &mut Paths) {
        self.call.paths(paths);
        self.etdump.iter().for_each(|path| paths.read("--etdump", path));
        self.debug_buffer.iter().for_each(|path| paths.read("--debug-buffer", path));
        self.output.paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let Loaded { program, options, request, .. } = self.call.load(general, "compare", self.call.open(general)?, 1)?;
        if options.no_prepare && self.etdump.is_none() {
            let message = "--no-prepare compares the run as written with itself; name a recording with --etdump";
            return Err(Failure::Usage(message.to_owned()));
        }
        let explicit = self.atol.or(self.rtol).map(|_| (self.atol.unwrap_or(0.0), self.rtol.unwrap_or(0.0)));
        let tolerance = Tolerance { scope: Scope::Network, explicit, ..Tolerance::default() };
        let recorded = match (&self.etdump, &self.debug_buffer) {
            (Some(dump), Some(buffer)) => {
                let dump = etdump::read(&*general::open_plain(dump)?, general.limits())?;
                Some((dump, pteron_toolbox::stream::read(buffer)?))
            }
            _ => None,
        };
        let against = match &recorded {
            Some((dump, buffer)) => Against::Recorded { dump, buffer },
            None => Against::AsWritten,
        };
        let found = divergence::find(&program, &request, against, &tolerance, options)?;
        note_zeros(found.zeros.as_ref());
        match self.json {
            true => self.output.write_json(&found)?,
            false => self.output.write_text(&found.text(general.verbosity() > 0))?,
        }
        if found.first.is_some() { Err(Failure::Reported) } else { Ok(()) }
    }
}
