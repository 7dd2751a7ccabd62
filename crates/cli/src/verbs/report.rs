use super::bef::{BefOpts, bef_bytes};
use crate::call::{CallArgs, Loaded, note_default_inputs, refuse_options};
use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts, OutputArg, exit_status};
use crate::terminal;
use crate::progress;
use crate::registries;
use clap::Args;
use pteron::{BytesLoader, DataLoader};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use pteron_toolbox::bef::{self, Program};
use pteron_toolbox::bundle;
use pteron_toolbox::comparison::{Comparison, ComparisonOptions, compare_programs};
use pteron_toolbox::delegates::NodeKinds;
use pteron_toolbox::diff::{Registries, diff};
use pteron_toolbox::divergence::{self, Against};
use pteron_toolbox::etdump;
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::profile;
use pteron_report::{Measured, ReportData, gather, page};
use pteron_toolbox::run::{default_method, is_program};
use pteron_toolbox::tolerance::{Scope, Tolerance};

/// Write a page (.html) that shows a file: its graph, operators, weights, memory and times
///
/// The page needs nothing but a browser. It shows each method as written and as it runs here, payloads of delegates,
/// source lines, memory over time, and the calls that were not fused; for a BEF program (.bef, .mlir) its functions; for
/// weights (.ptd, .gguf) and ETDumps tables. --profile runs the program and shows the time of every node; --compare runs
/// it prepared and as written, and shows the error of every node; --against runs another program of the same model, too.
/// Otherwise nothing is executed. Inputs are written as for `pteron run`.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron report model.pte -o report.html\n\n",
    "  # with the time of every node\n",
    "  pteron report model.pte x.npy --profile -o report.html\n\n",
    "  # how far apart the results of two programs of a model are\n",
    "  pteron report model.pte --against quantized.pte -o report.html\n\n",
    "  # the differences to another file; the times that another runtime recorded\n",
    "  pteron report old.pte --diff new.pte -o report.html\n",
    "  pteron report model.pte --etdump trace.etdp -o report.html",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    call: CallArgs,
    /// Run the program, and show where the time goes
    #[arg(long)]
    profile: bool,
    /// With --profile, record this many runs [default: 10]
    #[arg(short, long, value_name = "N", requires = "profile")]
    repeat: Option<usize>,
    /// Run the method prepared and as written, and show how much the results differ
    #[arg(long)]
    compare: bool,
    /// Show the times of this recording
    #[arg(long, value_name = "FILE", conflicts_with = "profile")]
    etdump: Option<PathBuf>,
    /// Run this program (.pte, .bpte, .pt2) of the same model on the same inputs, too, by default random ones, and show how far
    /// apart the outputs and layers are
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Show the differences to this file
    #[arg(long, value_name = "FILE")]
    diff: Option<PathBuf>,
    /// Write the data alone, as JSON
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
        self.etdump.iter().for_each(|path| paths.read("--etdump", path));
        self.against.iter().for_each(|path| paths.read("--against", path));
        self.diff.iter().for_each(|path| paths.read("--diff", path));
        match self.json {
            true => self.output.declare_paths(paths),
            false => self.output.declare_binary(paths),
        }
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.call.open(general)?;
        if let Some(program) = bef::open(&*loader)? {
            return self.report_bef(general, program, loader);
        }
        refuse_options("report", loader.name(), "no BEF program", self.bef.bef_options())?;
        if bundle::is_bundled(&*loader)? || is_program(&*loader)? {
            return self.report_program(general, loader);
        }
        let own = self.run_options().into_iter().chain(self.call.method_options());
        refuse_options("report", loader.name(), "no program", own)?;
        let options = registries::load_options().limits(general.limits().clone());
        self.write(&gather(&loader, &options, &Measured::default())?)
    }

    /// The options that apply only to programs that can run, by name, each with whether it was given.
    fn run_options(&self) -> [(&'static str, bool); 5] {
        [
            ("--profile", self.profile),
            ("--compare", self.compare),
            ("--etdump", self.etdump.is_some()),
            ("--against", self.against.is_some()),
            ("--diff", self.diff.is_some()),
        ]
    }

    /// Fails if inputs were given and nothing is run on them.
    fn expect_no_idle_inputs(&self) -> Result {
        let runs = self.profile || self.compare || self.against.is_some();
        match self.call.input_options().into_iter().find(|(_, is_given)| *is_given && !runs) {
            Some((option, _)) => Err(Failure::Usage(format!(
                "{option}: nothing is run without --profile, --compare or --against; give one of them"
            ))),
            None => Ok(()),
        }
    }

    fn report_program(self, general: &GeneralOpts, loader: Arc<dyn DataLoader>) -> Result {
        self.expect_no_idle_inputs()?;
        let loaded = self.call.load_with_sample(general, "report", Arc::clone(&loader), self.repeat.unwrap_or(10))?;
        let comparison = self.against.as_deref().map(|other| self.compare_with(general, &loaded, other)).transpose()?;
        let Loaded { program, options, request, .. } = loaded;
        let backends = Arc::clone(&options.backends);
        let profile = match self.profile {
            true => {
                let profile = profile::profile(&program, &request, false, options.clone())?;
                note_default_inputs(profile.default_inputs.as_ref());
                let nodes = NodeKinds::read(&program, &profile.method, &backends)?;
                Some(profile.report(&program, &options.kernels, &nodes))
            }
            false => None,
        };
        let divergence = match self.compare {
            true => {
                let tolerance = Tolerance { scope: Scope::Network, ..Tolerance::default() };
                let divergence = divergence::find(&program, &request, Against::AsWritten, &tolerance, options.clone())?;
                profile.is_none().then(|| note_default_inputs(divergence.default_inputs.as_ref()));
                Some(divergence)
            }
            false => None,
        };
        let etdump = match &self.etdump {
            Some(path) => Some(etdump::read(&*general::open_uncompiled(path)?, general.limits())?),
            None => None,
        };
        let recorded = match (&etdump, &request.method) {
            (Some(dump), Some(method)) => Some((dump, method.clone())),
            (Some(dump), None) => Some((dump, default_method(&program)?)),
            (None, _) => None,
        };
        let diff = match &self.diff {
            Some(path) => {
                let registries = Registries { kernels: &options.kernels, backends: &backends };
                let other = File::open(general.open(path)?, "report --diff", general.limits())?;
                Some(diff(&File::Program(program), &other, registries, &progress::byte_progress())?)
            }
            None => None,
        };
        let measured = Measured {
            profile: profile.as_ref(),
            etdump: recorded.as_ref().map(|(dump, method)| (*dump, method.as_str())),
            divergence: divergence.as_ref(),
            comparison: comparison.as_ref().map(|(comparison, other)| (comparison, other.as_str())),
            diff: diff.as_ref(),
            ..Measured::default()
        };
        self.write(&gather(&loader, &options, &measured)?)
    }

    /// Compares the program with another one on the same inputs; also returns the name of the other.
    fn compare_with(&self, general: &GeneralOpts, loaded: &Loaded, other: &Path) -> Result<(Comparison, String)> {
        let method = loaded.request.method.clone().map_or_else(|| default_method(&loaded.program), Ok)?;
        let sample = loaded.sample_inputs(&method)?;
        let second = self.call.load_other(general, "report --against", other)?;
        let tolerance = Tolerance { scope: Scope::Network, ..Tolerance::default() };
        let how = ComparisonOptions { method: Some(method), tolerance, min_sqnr: None };
        let comparison = compare_programs(loaded.side(), second.side(), &[sample], &how)?;
        Ok((comparison, other.display().to_string()))
    }

    fn report_bef(self, general: &GeneralOpts, program: Program, loader: Arc<dyn DataLoader>) -> Result {
        let name = loader.name();
        let own = self.run_options().into_iter().skip(1).chain(self.call.method_options());
        refuse_options("report", name, "a BEF program", own)?;
        if !self.profile {
            refuse_options("report", name, "a BEF program, which only --profile runs", self.bef.bef_options())?;
        }
        let is_text = matches!(program, Program::Mlir(_));
        let bytes = bef_bytes(general, program, name)?;
        let file: Arc<dyn DataLoader> = match is_text {
            true => Arc::new(BytesLoader::named(name, bytes.to_vec())),
            false => Arc::clone(&loader),
        };
        let Self { profile, repeat, json, output, bef, .. } = self;
        let times = match profile {
            true => {
                let repeat = repeat.unwrap_or(10);
                let profile = profile::bef::profile(bytes, bef.options(general), repeat, io::sink(), terminal::stderr());
                Some(profile.report(name)?)
            }
            false => None,
        };
        let measured = Measured { bef_profile: times.as_ref(), ..Measured::default() };
        write(&output, json, &gather(&file, &registries::load_options().limits(general.limits().clone()), &measured)?)
    }

    fn write(&self, data: &ReportData) -> Result {
        write(&self.output, self.json, data)
    }
}

fn write(output: &OutputArg, json: bool, data: &ReportData) -> Result {
    match json {
        true => output.write_json(data),
        false => output.write_binary(page(data)?.as_bytes()),
    }
}
