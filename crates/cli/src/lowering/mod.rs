//! Options and functions of the verbs that write compiled programs: `compile` and `retarget`.

mod bundled;
mod calibration;
mod report;

use crate::backend::{self, BackendName, TargetCpu};
use crate::failure::{Failure, Result};
use crate::general::{self, GeneralOpts, OutputArg, parse_decibels};
use crate::pictures::PictureOpts;
use crate::progress::{self, Steps};
use crate::registries::registries;
use crate::task::TaskOpts;
use crate::terminal::say_lines;
use clap::{Args, ValueEnum};
use pteron::compile::exported::{Bounds, ExportedProgram, PrintOptions};
use pteron::compile::{
    self, Compiled, OperatorTable, Options, QuantizationGoal, QuantizationReport, Quantize, Quantizer,
    SizeBounds, WeightType, expect_pass,
};
use pteron::{DataLoader, Program};
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::run::is_program;
use pteron_toolbox::show::{self, count};
use pteron_toolbox::task::{self, TaskMetadata};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// The progress message while the program is compiled, which is the last step.
const COMPILING: &str = "compiling";

/// Options of the compiler, and the output files.
#[derive(Debug, Args)]
pub(crate) struct LoweringOpts {
    /// Backends to which parts of the program are delegated, in order of preference
    #[arg(long, value_parser = BackendName::parser(), value_delimiter = ',', default_value = "none", value_name = "BACKEND")]
    backend: Vec<BackendName>,
    /// Also store weights packed for a machine, which uses them in place (backend bef)
    #[arg(long, value_enum, default_value_t, value_name = "CPU")]
    target_cpu: TargetCpu,
    /// Quantize to int8 with the ranges of --calibrate (int8), or only matrix products, whose inputs are quantized at run
    /// time: with int8 weights (dynamic-int8), or with 4-bit weights in groups of GROUP, by default 32 (8da4w)
    #[arg(long, value_name = "int8|dynamic-int8|8da4w[:GROUP]", value_parser = parse_scheme)]
    quantize: Option<Scheme>,
    /// Store the weights of layers and embeddings that are float32, after --quantize and --backend, in half precision (f16,
    /// bf16), or as 8-bit integers with a scale for each output (int8). The program computes in float32
    #[arg(long, value_name = "f16|bf16|int8")]
    weights: Option<WeightType>,
    /// Sample inputs to find value ranges and to measure the program that --quantize or --weights gives: a folder of arrays (.npy), images, and folders with one
    /// file for each input, by the names of the inputs or in order of their names; or files of named arrays (.npz, .safetensors),
    /// whose first dimension may count samples
    #[arg(long, value_name = "PATH")]
    calibrate: Option<PathBuf>,
    #[command(flatten)]
    pictures: PictureOpts,
    #[command(flatten)]
    task: TaskOpts,
    /// Fix a dynamic size (`--size s77=1`), or narrow its bounds (`--size x.1=16..512`): a symbol, or a dimension of an input
    /// by its name or position, as `inspect` shows them; may be repeated
    #[arg(long, value_name = "NAME=N|A..B", value_parser = parse_size_bounds)]
    size: Vec<SizeBounds>,
    /// Keep as many nodes in float as it takes for each output to have this signal-to-noise ratio, in decibels, on the inputs
    /// of --calibrate
    #[arg(long, value_name = "DB", requires_all = ["quantize", "calibrate"], value_parser = parse_decibels)]
    min_sqnr: Option<f64>,
    /// The same until the largest element of this share of the rows of each output, from 0 to 1, stays at its position
    #[arg(long, value_name = "SHARE", requires_all = ["quantize", "calibrate"], value_parser = parse_share)]
    min_agreement: Option<f64>,
    /// The share of the multiplications that may stay in float under int8: the layers that add the most noise to the outputs for
    /// their multiplications
    #[arg(long, value_name = "SHARE", requires_all = ["quantize", "calibrate"], value_parser = parse_share, default_value_t = compile::FLOAT_BUDGET)]
    float_budget: f64,
    /// Nodes that are not quantized, by the names in the report; may be repeated
    #[arg(long, value_name = "NODE", value_delimiter = ',', requires = "quantize")]
    keep_float: Vec<String>,
    /// Which operators the program may call
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    operators: Operators,
    /// Write the weights to this file of named data (.ptd)
    #[arg(long, value_name = "FILE")]
    external_data: Option<PathBuf>,
    /// Compile only this method (in an archive, this model); may be repeated [default: all of them]
    #[arg(short, long, value_name = "NAME")]
    method: Vec<String>,
    /// Alignment of tensors in memory
    #[arg(long, value_name = "BYTES", default_value_t = 16)]
    alignment: u64,
    /// Alignment of the segments of the program, and of those of --external-data [default: that of the program that is
    /// recompiled, or 128]
    #[arg(long, value_name = "BYTES")]
    segment_alignment: Option<u64>,
    /// Write a bundled program (.bpte) with a test case for each method: the inputs that the model was exported with, or
    /// random ones, and the outputs that the program computes from them here. What is made of a bundled program has the test
    /// cases that it had
    #[arg(long)]
    bundle: bool,
    /// Keep source locations in the program, for errors and profiles
    #[arg(long)]
    source_frames: bool,
    /// Print the program after this pass to stderr; may be repeated
    #[arg(long, value_name = "PASS")]
    print_after: Vec<String>,
    /// Print the report as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    pub(crate) output: OutputArg,
}

/// The operators that a program may call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Operators {
    /// Portable ones as far as they suffice; the report names the others, which the reference runtime lacks
    #[default]
    Auto,
    /// Only those of ExecuTorch's portable and optimized kernels: the program runs on the reference runtime, too
    Portable,
    /// Every operator of Pteron
    All,
}

/// Parses `NAME=N` or `NAME=A..B`.
fn parse_size_bounds(text: &str) -> Result<SizeBounds, String> {
    let number = |text: &str| text.trim().parse().ok().filter(|&n: &i64| n >= 0);
    let parsed = text.rsplit_once('=').and_then(|(name, bounds)| {
        let (min, max) = bounds.split_once("..").unwrap_or((bounds, bounds));
        let bounds = Bounds { min: number(min)?, max: number(max)? };
        Some(SizeBounds { name: name.trim().to_owned(), bounds })
    });
    let parsed = parsed.filter(|size| size.bounds.min <= size.bounds.max);
    parsed.ok_or_else(|| "a size is fixed with `NAME=8`, or bounded with `NAME=16..512`".to_owned())
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "it is a number from 0 to 1".to_owned())
}

/// A quantization scheme.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Scheme {
    Static,
    Dynamic,
    FourBits { group: usize },
}

fn parse_scheme(text: &str) -> Result<Scheme, String> {
    match text.split_once(':') {
        None if text == "int8" => Ok(Scheme::Static),
        None if text == "dynamic-int8" => Ok(Scheme::Dynamic),
        None if text == "8da4w" => Ok(Scheme::FourBits { group: 32 }),
        Some(("8da4w", group)) => match group.parse() {
            Ok(group) => Ok(Scheme::FourBits { group }),
            Err(_) => Err(format!("`{group}` is no group size: it is a number of weights")),
        },
        _ => Err("the schemes are `int8`, `dynamic-int8` and `8da4w`".to_owned()),
    }
}

impl LoweringOpts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.calibrate.iter().for_each(|path| paths.folder("--calibrate", path));
        self.external_data.iter().for_each(|path| paths.write("--external-data", path));
        self.task.declare_paths(paths);
        self.output.declare_binary(paths);
    }

    /// Compiles, and writes the program and its external data or test cases, as the options say. If the program in `file` is
    /// that of the bundled program `bundle`, writes one with the same test cases.
    pub(crate) fn compile(
        &self,
        general: &GeneralOpts,
        file: &Arc<dyn DataLoader>,
        bundle: Option<&dyn DataLoader>,
        compile: impl Fn(&OperatorTable, &Options, compile::Watch<'_>) -> pteron::Result<Compiled> + Sync,
    ) -> Result {
        for pass in &self.print_after {
            expect_pass(pass).map_err(|e| Failure::Usage(format!("--print-after: {e}")))?;
        }
        let registry = Arc::clone(registries().kernels());
        let operators = match self.operators {
            Operators::Auto => OperatorTable::preferring_portable(&registry),
            Operators::Portable => OperatorTable::portable(&registry),
            Operators::All => OperatorTable::all(&registry),
        };
        let compile = |what: &str, options: &Options| {
            let steps = Steps::new(None);
            let mut watch = |method: &str, pass: &str, program: &ExportedProgram| {
                steps.step(format!("{what} {method}: {pass} done"));
                if what == COMPILING && self.print_after.iter().any(|p| p == pass) {
                    let listing = program.listing(PrintOptions { source: true, ..PrintOptions::default() });
                    let heading = format!("# {} after {pass}", show::name(method));
                    steps.suspend(|| say_lines(&format!("{heading}\n{listing}")));
                }
            };
            compile(&operators, options, &mut watch)
        };
        let mut options = Options { task: self.task_metadata(general, file)?, ..self.options(general)? };
        let mut measured = None;
        if let Some(folder) = &self.calibrate {
            let load = registries().load_options().limits(general.limits().clone());
            let quantizer =
                Quantizer::new(file, options, load, &compile)?.with_float_budget(self.float_budget);
            let goal = QuantizationGoal { min_sqnr: self.min_sqnr, min_agreement: self.min_agreement };
            let quantized = calibration::run(&quantizer, folder, &self.pictures, goal, general.limits())?;
            (options, measured) = (quantized.options, Some(quantized.report));
        }
        let compiled = compile(COMPILING, &options).map_err(pteron_toolbox::Error::from)?;
        let bundle = match bundle {
            Some(file) => Bundle::open_if_bundled(file, general.limits())?,
            None => None,
        };
        self.write(general, file, bundle, &compiled)?;
        let json = report::json(&compiled, measured.as_ref());
        general::write_report(&self.output, self.json, &json, &self.text(&compiled, measured.as_ref()))
    }

    /// The task metadata of the new program: that of the source, as far as the options do not replace it.
    fn task_metadata(&self, general: &GeneralOpts, file: &Arc<dyn DataLoader>) -> Result<Option<String>> {
        let archived = compile::archived_task(file).map_err(pteron_toolbox::Error::from)?;
        let source = match archived {
            Some(text) => Some(
                TaskMetadata::parse(&text).map_err(|e| pteron_toolbox::Error::bad_file(file.name(), e))?,
            ),
            None if is_program(&**file)? => {
                let program = Program::load(Arc::clone(file), general.limits());
                task::of(&program.map_err(pteron_toolbox::Error::from)?)?
            }
            None => None,
        };
        let task = self.task.metadata(&self.pictures, source)?;
        Ok(if task.is_empty() { None } else { Some(task.to_json()?) })
    }

    /// The compiler options, without the value ranges, which calibration finds.
    fn options(&self, general: &GeneralOpts) -> Result<Options> {
        let quantize = match (self.quantize, &self.calibrate) {
            (Some(Scheme::Static), None) => {
                return Err(Failure::Usage("--quantize int8 needs --calibrate DIR".to_owned()));
            }
            (None, Some(_)) if self.weights.is_none() => {
                return Err(Failure::Usage("--calibrate is for --quantize or --weights".to_owned()));
            }
            (Some(Scheme::Dynamic), _) => Some(Quantize::Dynamic),
            (Some(Scheme::FourBits { group }), _) => Some(Quantize::FourBits { group }),
            // Calibration finds the value ranges.
            (Some(Scheme::Static), Some(_)) => Some(Quantize::Static(BTreeMap::new())),
            (None, _) => None,
        };
        Ok(Options {
            alignment: self.alignment,
            segment_alignment: self.segment_alignment,
            constant_alignment: None,
            source_frames: self.source_frames,
            external_data: self.external_data.is_some(),
            methods: self.method.clone(),
            delegation: backend::delegations(&self.backend, self.target_cpu)?,
            quantize,
            weights: self.weights,
            sizes: self.size.clone(),
            keep_float: self.keep_float.iter().cloned().collect(),
            memory: general.limits().memory,
            ..Options::default()
        })
    }

    fn write(
        &self,
        general: &GeneralOpts,
        file: &Arc<dyn DataLoader>,
        bundle: Option<Bundle>,
        compiled: &Compiled,
    ) -> Result {
        let fail = |e: compile::Error| Failure::Failed(Box::new(e));
        if let Some(path) = &self.external_data {
            let data = compiled.named_data().map_err(fail)?;
            self.output.write_other(path, |out| {
                let mut out = progress::progress_writer(out, data.header().file_len);
                data.write_to(&mut out).map_err(|e| fail(e.into()))
            })?;
        }
        if self.bundle || bundle.is_some() {
            let bundle = match bundle {
                Some(bundle) => bundled::rebundle(bundle, file, compiled)?,
                None => bundled::bundle_compiled(general, file, compiled)?,
            };
            return self.output.write_binary_with(|out| Ok(bundle.write(out)?));
        }
        self.output.write_binary_with(|out| {
            let mut out = progress::progress_writer(out, compiled.program.header().file_len);
            compiled.program.write_to(&mut out).map_err(|e| fail(e.into()))
        })
    }

    /// The report on the compiled program as text.
    fn text(&self, compiled: &Compiled, measured: Option<&QuantizationReport>) -> String {
        let delegated = !self.backend.iter().any(BackendName::is_none);
        let text = report::text(compiled, delegated, measured);
        match &self.external_data {
            Some(path) => {
                let moved = count(compiled.external.len() + compiled.external_data.len(), "weight");
                format!("{text}; {moved} in {}", path.display())
            }
            None => text,
        }
    }
}
