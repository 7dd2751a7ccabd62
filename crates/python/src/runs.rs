//! Functions that profile, compare and compile programs, and run BEF programs.

use crate::backend::registries;
use crate::call;
use crate::convert::Input;
use crate::errors::{Failure, Result};
use crate::graph;
use crate::opened::{OpenProgram, Signature, lock};
use crate::settings::Source;
use crate::tools::{Reader, check_paths, parse_settings, to_json};
use pteron::compile::exported::{CompileBudget, ExportedProgram};
use pteron::compile::{self, Calibration, Compiled, Delegation, OperatorTable, Options, Quantize};
use pteron::data::LoaderReader;
use pteron::{BytesLoader, EValue, Isa, Limits, NamedDataMap};
use pteron_toolbox::bef;
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::comparison::{self, ComparisonOptions, Side};
use pteron_toolbox::delegates::NodeKinds;
use pteron_toolbox::divergence::{self, Against};
use pteron_toolbox::profile::{Recording, chrome, etdump};
use pteron_toolbox::random;
use pteron_toolbox::run::Request;
use pteron_toolbox::tolerance::{Scope, Tolerance};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use serde_json::json as object;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// An open program, and a call of one of its methods.
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

/// Copies inputs to owned values.
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

/// Writes the recorded executions of a program that was opened with `record`.
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

/// Compares a prepared run with one as written, and returns the comparison as JSON.
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

/// Compares two programs on samples, by default a random one, and returns the comparison as JSON.
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

/// The name that stands for no backend.
const NO_BACKEND: &str = "none";

/// The delegation to a backend by name; `None` for `none`.
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

/// The delegations to backends by name, in order.
pub(crate) fn delegations(names: &[String], native: bool) -> Result<Vec<Delegation>> {
    names.iter().filter_map(|name| delegation(name, native).transpose()).collect()
}

/// Parses the name of a quantization scheme.
fn parse_scheme(name: Option<&str>) -> Result<Option<Quantize>> {
    Ok(Some(match name {
        None => return Ok(None),
        // Calibration replaces this by `Quantize::Static`.
        Some("int8") => Quantize::Observe,
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

/// The arguments of a compilation.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Lowering {
    backends: Vec<String>,
    native: bool,
    all_operators: bool,
    quantize: Option<String>,
    external_data: Option<PathBuf>,
    data: Vec<PathBuf>,
    methods: Vec<String>,
    source_frames: bool,
    alignment: u64,
    segment_alignment: Option<u64>,
    constant_alignment: Option<u64>,
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
            methods: self.methods.clone(),
            source_frames: self.source_frames,
            memory: Limits::default().memory,
        })
    }
}

/// Compiles graphs or an archive, or recompiles a program, and writes the result, or returns its bytes. The samples are calls
/// for calibration.
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
    match (&job.options.quantize, samples) {
        (Some(Quantize::Observe), Some(samples)) if !samples.is_empty() => job.calibrate(py, &samples)?,
        (Some(Quantize::Observe), _) => {
            let message = "int8 needs calls to find ranges of values: calibrate=[(input, …), …]";
            return Err(Failure::Input(message.to_owned()).into());
        }
        (_, Some(_)) => return Err(Failure::Input("calibrate is for quantize=\"int8\"".to_owned()).into()),
        _ => {}
    }
    let done: Result<_> = py.detach(|| {
        let compiled = job.compile(&job.options)?;
        if let Some(path) = &lowering.external_data {
            let file = compiled.named_data()?;
            pteron::replace_file(path, |out| file.write_to(out).map_err(Failure::from))?;
        }
        let report = compile_report(&compiled).to_string();
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

/// The source of a compilation.
enum CompileInput {
    Graphs(Vec<ExportedProgram>),
    File(Source),
}

/// The opened source of a compilation.
enum OpenedInput {
    Graphs(Vec<ExportedProgram>),
    Archive,
    /// A program, and its external data, if any.
    Program(Option<Arc<dyn NamedDataMap>>),
}

/// A compilation: its source and options.
struct Compilation {
    /// The source file, of which constants may be parts.
    file: Arc<dyn pteron::DataLoader>,
    /// The bundle of the source program, whose test cases are kept.
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

    fn compile(&self, options: &Options) -> Result<Compiled> {
        let mut watch = |_: &str, _: &str, _: &ExportedProgram| {};
        Ok(match &self.origin {
            OpenedInput::Graphs(programs) => {
                let mut programs = programs.clone();
                programs.iter_mut().for_each(|program| program.budget = CompileBudget::new(options.memory));
                compile::compile_exported(programs, &self.table, options, &mut watch)?
            }
            OpenedInput::Archive => compile::from_loader(&self.file, &self.table, options, &mut watch)?,
            OpenedInput::Program(data) => {
                let file = Arc::clone(&self.file);
                compile::from_program(file, data.as_ref(), (&self.known, &self.table), options, &mut watch)?
            }
        })
    }

    /// Writes the compiled program, bundled with the test cases of the source, if it is bundled.
    fn write(&mut self, compiled: &Compiled, out: &mut dyn std::io::Write) -> Result<()> {
        let Some(bundle) = self.bundle.take() else { return Ok(compiled.program.write_to(out)?) };
        let program = compile::in_memory(Arc::clone(&self.file), compiled);
        let has = |name: &str| compiled.methods.iter().any(|method| method.name == name);
        Ok(bundle.with_program(&*program, has)?.write(out)?)
    }

    /// Calibrates: finds the value ranges over the sample calls.
    fn calibrate(&mut self, py: Python<'_>, samples: &[Bound<'_, PyTuple>]) -> PyResult<()> {
        let mut calibration = py.detach(|| -> Result<_> {
            let observe = Options { delegation: Vec::new(), external_data: false, ..self.options.clone() };
            let observing = self.compile(&observe)?;
            let names: Vec<&str> = observing.methods.iter().map(|method| method.name.as_str()).collect();
            let name = match names[..] {
                [only] => only,
                _ if names.contains(&"forward") => "forward",
                _ => return Err(Failure::Input("name one method to calibrate with methods=[…]".to_owned())),
            };
            let calibration = Calibration::new(&self.file, &observing, name)?;
            let signature = Signature::new(&calibration.program().method_meta(name)?)?;
            Ok((calibration, signature))
        })?;
        for sample in samples {
            let inputs = owned_values(call::arrange_arguments(&calibration.1, sample, None)?)?;
            py.detach(|| -> Result<()> { Ok(calibration.0.run(&inputs)?) })?;
        }
        self.options.quantize = Some(Quantize::Static(calibration.0.ranges()));
        Ok(())
    }
}

fn compile_report(compiled: &Compiled) -> serde_json::Value {
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
            "left": m.left.iter().map(|left| object!({
                "operator": left.target, "nodes": left.count, "reason": left.reason, "backend": left.backend_id,
                "places": left.nodes.iter().map(|node| object!({
                    "name": node.name, "line": node.line,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

/// A shared buffer for the text that a program prints.
#[derive(Clone, Default)]
struct Text(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Text {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        lock(&self.0).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Text {
    fn read(&self) -> String {
        String::from_utf8_lossy(&lock(&self.0)).into_owned()
    }
}

/// Runs functions of a BEF program, or all that take no arguments. Returns the exit code, the output and the errors.
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
        let (out, errors) = (Text::default(), Text::default());
        let status = bef::run(program, &options, out.clone(), errors.clone());
        Ok((status, out.read(), errors.read()))
    });
    Ok(done?)
}
