use crate::call::{CallArgs, Loaded, note_default_inputs};
use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts, OutputArg, exit_status_of_answer, parse_decibels};
use clap::Args;
use std::path::{Path, PathBuf};
use pteron_toolbox::comparison::{ComparisonOptions, compare_programs};
use pteron_toolbox::divergence::{self, Against};
use pteron_toolbox::etdump;
use pteron_toolbox::etrecord::Etrecord;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::tolerance::{Scope, Tolerance};

/// Compare two programs, or two runs of one
///
/// With two programs (.pte, .bpte or .pt2) of one model, both run on the same inputs, by default random ones: how far apart
/// are the outputs, and the layers that both have, and at which of them do they part? For a program before and after an
/// edit, lowered and not, quantized and not. Programs that compute with other precision agree if the signal-to-noise ratio
/// of their outputs is at least 20 dB.
///
/// With one program, the method is run prepared and as written, on the same inputs, and the results of its instructions are
/// compared one by one. An instruction that was fused into a later one has no separate result: with -v it
/// is listed as fused. With --etdump, the run is compared with a recorded one, by Pteron
/// (`pteron profile --etdump --debug-buffer`) or by ExecuTorch with intermediate outputs; --no-prepare
/// then compares the run as written. Inputs are written as for `pteron run`.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  # is the quantized program still the model?\n",
    "  pteron compare model.pt2 model-int8.pte --inputs-from samples\n\n",
    "  # what did an edit change?\n",
    "  pteron compare old.pte new.pte x.npy -v\n\n",
    "  # a program prepared and as written\n",
    "  pteron compare model.pte x.npy\n\n",
    "  # with a run recorded by ExecuTorch\n",
    "  pteron compare model.pte x.npy --etdump trace.etdp --debug-buffer values.bin --etrecord etrecord.bin",
    exit_status_of_answer!("the programs or runs agree", "they differ")
))]
pub(crate) struct Opts {
    #[command(flatten)]
    call: CallArgs,
    /// Two programs agree if the signal-to-noise ratio of each output is at least this, in decibels
    #[arg(long, value_name = "DB", conflicts_with_all = ["atol", "rtol"], value_parser = parse_decibels)]
    min_sqnr: Option<f64>,
    /// Compare with this recording
    #[arg(long, value_name = "FILE", requires = "debug_buffer")]
    etdump: Option<PathBuf>,
    /// The bytes of the recording's tensors
    #[arg(long, value_name = "FILE", requires = "etdump")]
    debug_buffer: Option<PathBuf>,
    /// Name the nodes of the exported graph by the ETRecord that was made with the program
    #[arg(long, value_name = "FILE", requires = "etdump")]
    etrecord: Option<PathBuf>,
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
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.call.declare_paths(paths);
        self.etdump.iter().for_each(|path| paths.read("--etdump", path));
        self.debug_buffer.iter().for_each(|path| paths.read("--debug-buffer", path));
        self.etrecord.iter().for_each(|path| paths.read("--etrecord", path));
        self.output.declare_paths(paths);
    }

    pub(crate) fn run(mut self, general: &GeneralOpts) -> Result {
        match self.call.take_program() {
            Some(other) => self.compare_with(general, &other),
            None if self.min_sqnr.is_some() => {
                let message = "--min-sqnr compares two programs; name the other one after the first";
                Err(Failure::Usage(message.to_owned()))
            }
            None => self.compare_runs(general),
        }
    }

    /// Compares the program with another program, `other`.
    fn compare_with(self, general: &GeneralOpts, other: &Path) -> Result {
        if self.etdump.is_some() {
            return Err(Failure::Usage("--etdump compares runs of one program, two are given".to_owned()));
        }
        let first = self.call.load(general, "compare", self.call.open(general)?, 0)?;
        let second = self.call.load_other(general, "compare", other)?;
        let method = first.method()?;
        let samples = match self.call.samples(&first)? {
            Some(samples) => {
                let inputs = (0..samples.len()).map(|i| samples.inputs(i, &first.program, &method));
                inputs.collect::<Result<Vec<_>>>()?
            }
            None => vec![first.sample_inputs(&method)?],
        };
        let options_of = ComparisonOptions {
            method: Some(method),
            tolerance: self.tolerance(),
            min_sqnr: self.min_sqnr,
        };
        let comparison = compare_programs(first.side(), second.side(), &samples, &options_of)?;
        match self.json {
            true => self.output.write_json(&comparison)?,
            false => self.output.write_text(&comparison.text(general.verbosity() > 0))?,
        }
        if comparison.agree { Ok(()) } else { Err(Failure::Reported) }
    }

    fn tolerance(&self) -> Tolerance {
        let explicit = self.atol.or(self.rtol).map(|_| (self.atol.unwrap_or(0.0), self.rtol.unwrap_or(0.0)));
        Tolerance { scope: Scope::Network, explicit, ..Tolerance::default() }
    }

    /// Compares a run of the program with a run as written (unprepared), or with a recording.
    fn compare_runs(self, general: &GeneralOpts) -> Result {
        let Loaded { program, options, request, .. } = self.call.load_with_sample(general, "compare", self.call.open(general)?, 1)?;
        if options.no_prepare && self.etdump.is_none() {
            let message = "--no-prepare compares the run as written with itself; name a recording with --etdump";
            return Err(Failure::Usage(message.to_owned()));
        }
        let tolerance = self.tolerance();
        let recorded = match (&self.etdump, &self.debug_buffer) {
            (Some(dump), Some(buffer)) => {
                let dump = etdump::read(&*general::open_uncompiled(dump)?, general.limits())?;
                Some((dump, pteron_toolbox::stream::read(buffer)?))
            }
            _ => None,
        };
        let record = match &self.etrecord {
            Some(path) => Some(Etrecord::read(&general::open_uncompiled(path)?, general.limits())?),
            None => None,
        };
        let against = match &recorded {
            Some((dump, buffer)) => Against::Recorded { dump, buffer, record: record.as_ref() },
            None => Against::AsWritten,
        };
        let divergence = divergence::find(&program, &request, against, &tolerance, options)?;
        note_default_inputs(divergence.default_inputs.as_ref());
        match self.json {
            true => self.output.write_json(&divergence)?,
            false => self.output.write_text(&divergence.text(general.verbosity() > 0))?,
        }
        if divergence.first.is_some() { Err(Failure::Reported) } else { Ok(()) }
    }
}
