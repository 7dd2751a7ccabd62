//! Functions that profile, compare and compile programs, and run BEF programs.

use crate::backend::registries;
use crate::call;
use crate::convert::Input;
use crate::errors::{Failure, Result};
use crate::graph;
use crate::opened::{OpenProgram, Signature};
use crate::settings::Source;
use crate::tools::{Reader, check_paths, parse_settings, to_json};
use pteron::compile::exported::{Bounds, CompileBudget, ExportedProgram};
use pteron::compile::{
    self, Compiled, Delegation, OperatorTable, Options, QuantizationGoal, QuantizationReport, Quantize,
    Quantizer, SizeBounds,
};
use pteron::data::LoaderReader;
use pteron::{BytesLoader, EValue, Isa, Limits, NamedDataMap};
use pteron_toolbox::bef;
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::comparison::{self, ComparisonOptions, Eager, EagerValue, Side};
use pteron_toolbox::delegates::NodeKinds;
use pteron_toolbox::divergence::{self, Against};
use pteron_toolbox::profile::{Recording, chrome, etdump};
use pteron_toolbox::random;
use pteron_toolbox::run::Request;
use pteron_toolbox::task::TaskMetadata;
use pteron_toolbox::tolerance::{Scope, Tolerance};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use serde_json::json as object;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// An opened program, and a call of one of its methods.
struct Call {
    opened: OpenProgram,
    options: pteron::LoadOptions,
    request: Request,
}

impl Call {
    fn side(&self) -> Side<'_> {
        Side { program: &self.opened.program, options: &self.options }
    }
}

/// Opens a program, and converts the inputs of a call; without inputs, zeros are used.
fn open_call(
    source: &Bound<'_, PyAny>,
    inputs: Option<&Bound<'_, PyTuple>>,
    method: Option<String>,
    options: &Bound<'_, PyDict>,
) -> PyResult<Call> {
    let py = source.py();
    let (source, settings) = (Source::from_object(source)?, parse_settings(options)?);
    let (opened, options) =
        py.detach(|| -> Result<_> { Ok((OpenProgram::new(&source, &settings)?, settings.load_options()?)) })?;
    let method = method.map_or_else(|| opened.default_method(), Ok)?;
    let values = match inputs {
        None => None,
        Some(inputs) => {
            Some(owned_values(call::arrange_arguments(&*opened.signature(&method)?, inputs, None)?)?)
        }
    };
    let request = Request { method: Some(method), values, ..Request::default() };
    Ok(Call { opened, options, request })
}

/// Copies inputs that are used in place to owned values.
fn owned_values(inputs: Vec<Input>) -> Result<Vec<EValue>> {
    inputs.into_iter().map(Input::into_value).collect()
}

/// Profiles a method, and returns the report as JSON.
#[pyfunction]
pub(crate) fn profile(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    inputs: Option<&Bound<'_, PyTuple>>,
    method: Option<String>,
    repeat: usize,
    outputs: (Option<PathBuf>, Option<PathBuf>, Option<PathBuf>),
    options: &Bound<'_, PyDict>,
) -> PyResult<String> {
    let (trace, etdump, debug_buffer) = outputs;
    let read = Source::from_object(source)?;
    let Call { opened, options, mut request } = open_call(source, inputs, method, options)?;
    request.repeat = repeat;
    let done: Result<String> = py.detach(|| {
        let outputs: Vec<&PathBuf> = [&trace, &etdump, &debug_buffer].into_iter().flatten().collect();
        check_paths(&[&read], &[], &outputs)?;
        let (kernels, backends) = (Arc::clone(&options.kernels), Arc::clone(&options.backends));
        let profile =
            pteron_toolbox::profile::profile(&opened.program, &request, debug_buffer.is_some(), options)?;
        let nodes = NodeKinds::read(&opened.program, &profile.method, &backends)?;
        if let Some(path) = &trace {
            pteron::replace_file(path, |out| chrome::trace(&profile.recording, out))?;
        }
        write_dump(&profile.recording, &nodes, etdump.as_ref(), debug_buffer.as_ref())?;
        to_json(&profile.report(&opened.program, &kernels, &nodes))
    });
    Ok(done?)
}

/// Writes a recording as an ETDump, and its tensors as a debug buffer.
fn write_dump(
    recording: &Recording,
    nodes: &NodeKinds,
    etdump: Option<&PathBuf>,
    debug_buffer: Option<&PathBuf>,
) -> Result<()> {
    if etdump.is_none() && debug_buffer.is_none() {
        return Ok(());
    }
    let (dump, buffer) = etdump::dump(recording, nodes)?;
    if let Some(path) = etdump {
        pteron::replace_file(path, |out| etdump::write(&dump, out))?;
    }
    if let Some(path) = debug_buffer {
        let fill =
            |out: &mut dyn std::io::Write| out.write_all(&buffer).map_err(pteron_toolbox::Error::write(path));
        pteron::replace_file(path, fill)?;
    }
    Ok(())
}

/// Writes the executions that a program opened with `record` has recorded since the last call.
pub(crate) fn write_recording(
    opened: &OpenProgram,
    etdump: &PathBuf,
    debug_buffer: Option<&PathBuf>,
) -> Result<()> {
    let recorder = opened.recorder.as_ref();
    let recorder =
        recorder.ok_or_else(|| Failure::Input("the program was not opened to be recorded".to_owned()))?;
    let nodes = NodeKinds::read(&opened.program, &opened.default_method()?, registries().backends())?;
    check_paths(&[], &[], &std::iter::once(etdump).chain(debug_buffer).collect::<Vec<_>>())?;
    write_dump(&recorder.finish(), &nodes, Some(etdump), debug_buffer)
}

/// Compares a run of a prepared method with a run without preparation, and returns the comparison as JSON.
#[pyfunction]
pub(crate) fn compare(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    inputs: Option<&Bound<'_, PyTuple>>,
    method: Option<String>,
    explicit: Option<(f64, f64)>,
    options: &Bound<'_, PyDict>,
) -> PyResult<String> {
    let Call { opened, options, request } = open_call(source, inputs, method, options)?;
    let done: Result<String> = py.detach(|| {
        let tolerance = Tolerance { scope: Scope::Network, explicit, ..Tolerance::default() };
        to_json(&divergence::find(&opened.program, &request, Against::AsWritten, &tolerance, options)?)
    });
    Ok(done?)
}

/// Compares the outputs of two programs on samples, by default on a random one, and returns the comparison as JSON.
#[pyfunction]
pub(crate) fn compare_programs(
    py: Python<'_>,
    sources: [Bound<'_, PyAny>; 2],
    samples: Option<Vec<Bound<'_, PyTuple>>>,
    method: Option<String>,
    bounds: (Option<(f64, f64)>, Option<f64>),
    options: &Bound<'_, PyDict>,
) -> PyResult<String> {
    let [a, b] = &sources;
    let a = open_call(a, None, method.clone(), options)?;
    let b = open_call(b, None, method, options)?;
    let method = a.request.method.clone().map_or_else(|| a.opened.default_method(), Ok)?;
    let samples = match samples {
        Some(samples) => {
            let signature = a.opened.signature(&method)?;
            let sample = |sample: &Bound<'_, PyTuple>| {
                Ok(owned_values(call::arrange_arguments(&signature, sample, None)?)?)
            };
            samples.iter().map(sample).collect::<PyResult<Vec<_>>>()?
        }
        None => vec![random::random_inputs(&a.opened.program, &method, 0).map_err(Failure::from)?],
    };
    let done: Result<String> = py.detach(|| {
        let (explicit, min_sqnr) = bounds;
        let tolerance = Tolerance { scope: Scope::Network, explicit, ..Tolerance::default() };
        let how = ComparisonOptions { method: Some(method), tolerance, min_sqnr };
        to_json(&comparison::compare_programs(a.side(), b.side(), &samples, &how)?)
    });
    Ok(done?)
}

/// A value that a model has computed: the node's name, its operator, its source line, and the value as an array.
type Computed<'py> = (String, String, Option<String>, Bound<'py, PyAny>);

/// Compares a program with the values and outputs that a model has computed, and returns the comparison as JSON.
#[pyfunction]
pub(crate) fn compare_with_eager(
    py: Python<'_>,
    eager: (Vec<Computed<'_>>, Vec<Vec<Bound<'_, PyAny>>>),
    program: &Bound<'_, PyAny>,
    samples: Vec<Bound<'_, PyTuple>>,
    method: Option<String>,
    bounds: (Option<(f64, f64)>, Option<f64>),
    options: &Bound<'_, PyDict>,
) -> PyResult<String> {
    let program = open_call(program, None, method, options)?;
    let method = program.request.method.clone().map_or_else(|| program.opened.default_method(), Ok)?;
    let signature = program.opened.signature(&method)?;
    let sample =
        |sample: &Bound<'_, PyTuple>| Ok(owned_values(call::arrange_arguments(&signature, sample, None)?)?);
    let samples = samples.iter().map(sample).collect::<PyResult<Vec<_>>>()?;
    let value = |(node, operator, source, array): Computed<'_>| {
        Ok(EagerValue { node, operator, source, tensor: crate::convert::to_tensor(&array, None, None)? })
    };
    let output = |array: Bound<'_, PyAny>| Ok(EValue::Tensor(crate::convert::to_tensor(&array, None, None)?));
    let eager = Eager {
        values: eager.0.into_iter().map(value).collect::<PyResult<_>>()?,
        outputs: eager
            .1
            .into_iter()
            .map(|outputs| outputs.into_iter().map(output).collect())
            .collect::<PyResult<_>>()?,
    };
    let done: Result<String> = py.detach(|| {
        let (explicit, min_sqnr) = bounds;
        let tolerance = Tolerance { scope: Scope::Network, explicit, ..Tolerance::default() };
        let how = ComparisonOptions { method: Some(method), tolerance, min_sqnr };
        to_json(&comparison::compare_with_eager(eager, program.side(), &samples, &how)?)
    });
    Ok(done?)
}

/// The name that stands for no backend.
const NO_BACKEND: &str = "none";

/// The delegation to the backend of this name; `None` for the name `none`.
fn delegation(name: &str, native: bool) -> Result<Option<Delegation>> {
    let registries = registries();
    match registries.delegation_to(name, native.then(Isa::detect)) {
        None if name == NO_BACKEND => Ok(None),
        None => {
            let known = registries.delegations().into_iter().map(|(name, _)| name);
            let hint = pteron_toolbox::did_you_mean(name, known.chain([NO_BACKEND]));
            Err(Failure::Input(format!("there is no backend `{name}` to compile for{hint}")))
        }
        delegation => Ok(delegation),
    }
}

/// The delegations to the backends of these names, in order.
pub(crate) fn delegations(names: &[String], native: bool) -> Result<Vec<Delegation>> {
    names.iter().filter_map(|name| delegation(name, native).transpose()).collect()
}

/// Parses the name of a quantization scheme.
fn parse_scheme(name: Option<&str>) -> Result<Option<Quantize>> {
    Ok(Some(match name {
        None => return Ok(None),
        // The quantizer finds the value ranges.
        Some("int8") => Quantize::Static(BTreeMap::new()),
        Some("dynamic-int8") => Quantize::Dynamic,
        Some("8da4w") => Quantize::FourBits { group: 32 },
        Some(other) => match other.strip_prefix("8da4w:").and_then(|group| group.parse().ok()) {
            Some(group) => Quantize::FourBits { group },
            None => {
                let message = format!("quantize is int8, dynamic-int8 or 8da4w[:GROUP], not `{other}`");
                return Err(Failure::Input(message));
            }
        },
    }))
}

/// The arguments of a compilation, from a Python dict.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Lowering {
    backends: Vec<String>,
    native: bool,
    all_operators: bool,
    quantize: Option<String>,
    weights: Option<String>,
    min_sqnr: Option<f64>,
    min_agreement: Option<f64>,
    keep_float: Vec<String>,
    external_data: Option<PathBuf>,
    data: Vec<PathBuf>,
    methods: Vec<String>,
    source_frames: bool,
    alignment: u64,
    segment_alignment: Option<u64>,
    constant_alignment: Option<u64>,
    sizes: Vec<(String, i64, i64)>,
    task: Option<String>,
}

impl Lowering {
    fn options(&self) -> Result<Options> {
        Ok(Options {
            alignment: self.alignment,
            segment_alignment: self.segment_alignment,
            constant_alignment: self.constant_alignment,
            delegation: delegations(&self.backends, self.native)?,
            external_data: self.external_data.is_some(),
            quantize: parse_scheme(self.quantize.as_deref())?,
            weights: self.weights.as_deref().map(|name| name.parse().map_err(Failure::Input)).transpose()?,
            keep_float: self.keep_float.iter().cloned().collect(),
            methods: self.methods.clone(),
            source_frames: self.source_frames,
            sizes: self.sizes.iter().map(size_bounds).collect(),
            task: self.task.as_deref().map(stored_task).transpose()?,
            memory: Limits::default().memory,
        })
    }
}

fn size_bounds((name, min, max): &(String, i64, i64)) -> SizeBounds {
    SizeBounds { name: name.clone(), bounds: Bounds { min: *min, max: *max } }
}

/// Converts task metadata to the JSON that a program stores.
fn stored_task(task: &str) -> Result<String> {
    Ok(TaskMetadata::parse(task).map_err(Failure::Input)?.to_json()?)
}

/// Compiles graphs or an archive, or recompiles a program, and writes the result, or returns its bytes. The samples are
/// calls for calibration.
#[pyfunction]
pub(crate) fn compile_to<'py>(
    py: Python<'py>,
    source: &Bound<'py, PyAny>,
    output: Option<PathBuf>,
    lowering: Lowering,
    samples: Option<Vec<Bound<'py, PyTuple>>>,
) -> PyResult<(String, Option<Bound<'py, PyBytes>>)> {
    let from = match graph::graph_programs(source)? {
        Some(programs) => CompileInput::Graphs(programs),
        None => CompileInput::File(Source::from_object(source)?),
    };
    let mut job = py.detach(|| -> Result<_> {
        let writes: Vec<&PathBuf> = output.iter().chain(&lowering.external_data).collect();
        let reads = if let CompileInput::File(source) = &from { vec![source] } else { Vec::new() };
        check_paths(&reads, &[], &writes)?;
        Compilation::new(from, &lowering)
    })?;
    let mut measured = None;
    let is_measured = job.options.quantize.is_some() || job.options.weights.is_some();
    match (&job.options.quantize, samples) {
        (_, Some(samples)) if is_measured && !samples.is_empty() => {
            let goal =
                QuantizationGoal { min_sqnr: lowering.min_sqnr, min_agreement: lowering.min_agreement };
            measured = Some(job.calibrate(py, &samples, goal)?);
        }
        (Some(Quantize::Static(_)), _) => {
            let message = "int8 needs calls to find ranges of values: calibrate=[(input, …), …]";
            return Err(Failure::Input(message.to_owned()).into());
        }
        (_, Some(_)) => return Err(Failure::Input("calibrate is for quantize and weights".to_owned()).into()),
        _ if lowering.min_sqnr.is_some() || lowering.min_agreement.is_some() => {
            let message = "min_sqnr and min_agreement are measured on calls: calibrate=[(input, …), …]";
            return Err(Failure::Input(message.to_owned()).into());
        }
        _ => {}
    }
    let done: Result<_> = py.detach(|| {
        let compiled = job.compile(&job.options)?;
        if let Some(path) = &lowering.external_data {
            let file = compiled.named_data()?;
            pteron::replace_file(path, |out| file.write_to(out).map_err(Failure::from))?;
        }
        let report = compile_report(&compiled, measured.as_ref()).to_string();
        let Some(output) = &output else {
            let mut bytes = Vec::new();
            job.write(&compiled, &mut bytes)?;
            return Ok((report, Some(bytes)));
        };
        pteron::replace_file(output, |out| job.write(&compiled, out))?;
        Ok((report, None))
    });
    let (report, bytes) = done?;
    Ok((report, bytes.map(|bytes| PyBytes::new(py, &bytes))))
}

/// What is compiled: graphs, or a file.
enum CompileInput {
    Graphs(Vec<ExportedProgram>),
    File(Source),
}

/// What is compiled, once opened: graphs, an archive, or a program.
enum OpenedInput {
    Graphs(Vec<ExportedProgram>),
    Archive,
    /// A program, with its external weights, if it has any.
    Program(Option<Arc<dyn NamedDataMap>>),
}

/// A compilation: its source and options.
struct Compilation {
    /// The loader of the source file, of which constants of the compiled program may be parts.
    file: Arc<dyn pteron::DataLoader>,
    /// The bundle that contains the source program, if it is bundled; its test cases are kept.
    bundle: Option<Bundle>,
    origin: OpenedInput,
    known: OperatorTable,
    table: OperatorTable,
    options: Options,
}

impl Compilation {
    fn new(from: CompileInput, lowering: &Lowering) -> Result<Self> {
        let (reader, options) = (Reader::new(), lowering.options()?);
        let mut bundle = None;
        let (file, origin) = match from {
            CompileInput::Graphs(programs) => {
                let file: Arc<dyn pteron::DataLoader> =
                    Arc::new(BytesLoader::named("the graph".to_owned(), Vec::new()));
                (file, OpenedInput::Graphs(graph::select_methods(programs, &options)?))
            }
            CompileInput::File(source) => {
                let file = source.open(false)?;
                bundle = Bundle::open_if_bundled(&*file, &Limits::default())?;
                let file = bundle.as_ref().map_or(file, Bundle::program);
                let origin = match compile::pt2::is_archive(LoaderReader::new(&file)) {
                    true => OpenedInput::Archive,
                    false => {
                        let mode = pteron_toolbox::run::LoadMode::File;
                        OpenedInput::Program(pteron_toolbox::run::open_data(
                            &lowering.data,
                            mode,
                            &Limits::default(),
                        )?)
                    }
                };
                (file, origin)
            }
        };
        let known = OperatorTable::all(&reader.kernels);
        let table = match lowering.all_operators {
            true => OperatorTable::all(&reader.kernels),
            false => OperatorTable::portable(&reader.kernels),
        };
        Ok(Self { file, bundle, origin, known, table, options })
    }

    fn compile(&self, options: &Options) -> pteron::Result<Compiled> {
        let mut watch = |_: &str, _: &str, _: &ExportedProgram| {};
        Ok(match &self.origin {
            OpenedInput::Graphs(programs) => {
                let mut programs = programs.clone();
                programs.iter_mut().for_each(|program| program.budget = CompileBudget::new(options.memory));
                let compiled = compile::compile_exported(programs, &self.table, options, &mut watch);
                let failure = |source| pteron::Error::Compile {
                    file: self.file.name().to_owned(),
                    source: Box::new(source),
                };
                compiled.map_err(failure)?
            }
            OpenedInput::Archive => compile::from_loader(&self.file, &self.table, options, &mut watch)?,
            OpenedInput::Program(data) => {
                let file = Arc::clone(&self.file);
                compile::from_program(file, data.as_ref(), (&self.known, &self.table), options, &mut watch)?
            }
        })
    }

    /// Writes the compiled program; if the source is bundled, as a bundle with the source's test cases.
    fn write(&mut self, compiled: &Compiled, out: &mut dyn std::io::Write) -> Result<()> {
        let Some(bundle) = self.bundle.take() else { return Ok(compiled.program.write_to(out)?) };
        let program = compile::in_memory(Arc::clone(&self.file), compiled);
        let has = |name: &str| compiled.methods.iter().any(|method| method.name == name);
        Ok(bundle.with_program(&*program, has)?.write(out)?)
    }

    /// Calibrates with the sample calls, and keeps as many nodes in float as the goal takes.
    fn calibrate(
        &mut self,
        py: Python<'_>,
        samples: &[Bound<'_, PyTuple>],
        goal: QuantizationGoal,
    ) -> PyResult<QuantizationReport> {
        let compile = |_: &str, options: &Options| self.compile(options);
        let (quantizer, signature) = py.detach(|| -> Result<_> {
            let quantizer =
                Quantizer::new(&self.file, self.options.clone(), pteron::load_options(), &compile)?;
            let signature = Signature::new(&quantizer.program().method_meta(quantizer.method())?)?;
            Ok((quantizer, signature))
        })?;
        let inputs = samples
            .iter()
            .map(|sample| Ok(owned_values(call::arrange_arguments(&signature, sample, None)?)?));
        let inputs = inputs.collect::<PyResult<Vec<_>>>()?;
        let quantized = py.detach(|| -> Result<_> { Ok(quantizer.run(&inputs, goal, &|_| {})?) })?;
        self.options = quantized.options;
        Ok(quantized.report)
    }
}

fn compile_report(compiled: &Compiled, measured: Option<&QuantizationReport>) -> serde_json::Value {
    object!({
        "file_bytes": compiled.program.header().file_len,
        "methods": compiled.methods.iter().map(|m| object!({
            "name": m.name, "operators": m.operators, "arena_bytes": m.arena_bytes, "constant_bytes": m.constant_bytes,
            "delegates": m.delegates.iter().map(|delegate| object!({
                "backend": delegate.backend_id, "operators": delegate.operators,
                "payload_bytes": delegate.payload_bytes, "named_bytes": delegate.named_bytes,
            })).collect::<Vec<_>>(),
            "quantized": m.layers.iter().map(|layer| object!({
                "name": layer.name, "operator": layer.target, "weight_error": layer.weight_error,
            })).collect::<Vec<_>>(),
            "float": m.float.iter().map(|node| object!({
                "name": node.name, "operator": node.target, "reason": node.reason,
            })).collect::<Vec<_>>(),
            "narrow_weights": m.narrow_weights.iter().map(|weight| object!({
                "name": weight.name, "bytes": weight.bytes, "error": weight.error,
            })).collect::<Vec<_>>(),
            "wide_weights": m.wide_weights.iter().map(|weight| object!({
                "name": weight.name, "reason": weight.reason,
            })).collect::<Vec<_>>(),
            "left": m.left.iter().map(|left| object!({
                "operator": left.target, "nodes": left.count, "reason": left.reason, "backend": left.backend_id,
                "places": left.nodes.iter().map(|node| object!({
                    "name": node.name, "line": node.line,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "measured": measured.map(|report| object!({
            "samples": report.samples, "outputs": report.outputs, "kept": report.kept,
            "multiplications": report.multiplications, "bytes": report.bytes, "seconds": report.seconds,
        })),
    })
}

/// Runs the named functions of a BEF program, or all without arguments. Returns the exit code, stdout and stderr.
#[pyfunction]
pub(crate) fn run_bef(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    functions: Vec<String>,
    threads: Option<usize>,
) -> PyResult<(i32, String, String)> {
    let source = Source::from_object(source)?;
    let done: Result<_> = py.detach(|| {
        let loader = source.open(false)?;
        let Some(bef::Program::Bef(program)) = bef::open(&*loader)? else {
            return Err(bef::wrong_format(&*loader, "run_bef", "BEF programs (.bef)").into());
        };
        let queue = threads.map_or(bef::Queue::SingleThreaded, bef::Queue::MultiThreaded);
        let options = bef::RunOptions { functions, queue, ..bef::RunOptions::default() };
        let bef::CapturedRun { exit_code, output, errors } = bef::run_captured(program, &options);
        Ok((exit_code, output, errors))
    });
    Ok(done?)
}
