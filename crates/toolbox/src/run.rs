//! Runs a method once or many times.

use crate::input::{DeclaredInput, GivenInput, InputSpec, type_text};
use crate::picture::Preparation;
use crate::random::random_inputs;
use crate::show::{self, count};
use crate::{Context, Error, Result, stream};
use pteron_clock::Instant;
use pteron_operator::{EValue, Tag};
use pteron_runtime::{
    DataLoader, FileLoader, InputProblem, InputSizes, Limits, LoadOptions, MergedDataMap, Method, MethodMeta,
    MmapLoader, Module, NamedDataMap, Program, PtdDataMap, ValueMeta, arrange_inputs,
};
use pteron_tensor::{DimOrder, Tensor, Unchanged};
use serde::Serialize;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How a file is read: into memory, or memory-mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LoadMode {
    /// Byte ranges are read into memory on demand.
    #[default]
    File,
    /// As [`Self::File`], but BEF programs of [`MAPPED_BEF_BYTES`] or more are mapped.
    LargeBefMapped(Unchanged),
    /// The file is memory-mapped: pages are read on first access, and shared between processes.
    Mmap(Unchanged),
}

/// Size in bytes from which on [`LoadMode::LargeBefMapped`] maps a BEF program. A BEF program is needed as one range, but
/// usually only a small part of it is accessed.
pub const MAPPED_BEF_BYTES: u64 = 256 << 20;

/// Opens a file to load from. A stream is read to its end, whatever the mode.
pub fn open(path: &Path, mode: LoadMode) -> Result<Arc<dyn DataLoader>> {
    if stream::is_stream(path) {
        return stream::open(path);
    }
    let unchanged = match mode {
        LoadMode::Mmap(unchanged) => Some(unchanged),
        LoadMode::LargeBefMapped(unchanged) if is_large_bef(path)? => Some(unchanged),
        LoadMode::LargeBefMapped(_) | LoadMode::File => None,
    };
    Ok(match unchanged {
        Some(unchanged) => Arc::new(MmapLoader::open(path, unchanged)?),
        None => Arc::new(FileLoader::open(path)?),
    })
}

/// Whether a file is a BEF program of [`MAPPED_BEF_BYTES`] or more. It uses a separate loader, so that these reads are not
/// counted as bytes read from the program.
fn is_large_bef(path: &Path) -> Result<bool> {
    let file = FileLoader::open(path)?;
    let is_large = file.size() >= MAPPED_BEF_BYTES;
    Ok(is_large && crate::kind::file_kind(&file).ok().flatten() == Some(pteron_format::FileKind::Bef))
}

/// Whether the file is a `.pte` program.
pub fn is_program(loader: &dyn DataLoader) -> Result<bool> {
    Ok(crate::kind::file_kind(loader)? == Some(pteron_format::FileKind::Pte))
}

/// Fails if the file is not a `.pte` program; the error names its format, and what `verb` takes.
pub fn expect_program(loader: &dyn DataLoader, verb: &'static str, takes: &'static str) -> Result<()> {
    match crate::kind::file_kind(loader)? {
        Some(pteron_format::FileKind::Pte) => Ok(()),
        other => Err(crate::kind::wrong_format(loader, other, verb, takes)),
    }
}

/// Opens `.ptd` files as one map; `None` if there are none.
pub fn open_data(
    files: &[PathBuf],
    mode: LoadMode,
    limits: &Limits,
) -> Result<Option<Arc<dyn NamedDataMap>>> {
    let mut maps: Vec<Arc<dyn NamedDataMap>> = Vec::new();
    for file in files {
        maps.push(Arc::new(PtdDataMap::load(open(file, mode)?, limits)?));
    }
    Ok(match maps.len() {
        0 => None,
        1 => maps.pop(),
        _ => Some(Arc::new(MergedDataMap::new(maps)?)),
    })
}

/// A call of a method, the runs that repeat it, and what is loaded before and saved after it.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// The method; by default `forward`, or the only one.
    pub method: Option<String>,
    /// The inputs; if empty, zeros or random values (`seed`), and the values that the exporter fixed.
    pub inputs: Vec<GivenInput>,
    /// The seed of the values of tensors if no inputs are given: see [`random_inputs`]. `None` for zeros.
    pub seed: Option<u64>,
    /// The preprocessing of picture inputs.
    pub pictures: Preparation,
    /// The inputs as values. If given, they take precedence over `inputs`.
    pub values: Option<Vec<EValue>>,
    /// The number of additional runs, which are timed.
    pub repeat: usize,
    /// The path of the checkpoint from which the method starts, if any.
    pub restore: Option<PathBuf>,
    /// The path to which a checkpoint is saved after the last run, if any.
    pub checkpoint: Option<PathBuf>,
    /// Whether the methods share the memory of their state: see [`Module::share_memory_arenas`].
    pub share_memory_arenas: bool,
    /// Calls of methods that precede this call, in this order.
    pub before: Vec<CallSpec>,
}

/// A call of a method. Parsed from the name of the method and its inputs, separated by spaces.
#[derive(Debug, Clone, PartialEq)]
pub struct CallSpec {
    pub method: String,
    /// The inputs of the call; if empty, the same defaults as for [`Request::inputs`].
    pub inputs: Vec<GivenInput>,
}

impl FromStr for CallSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let method = words.next().ok_or("expected the name of a method, and its inputs")?.to_owned();
        Ok(Self { method, inputs: words.map(str::parse).collect::<Result<_, _>>()? })
    }
}

#[derive(Debug)]
pub struct RunResult {
    /// The method that ran.
    pub method: String,
    /// The inputs that were used because none were given.
    pub default_inputs: Option<DefaultInputs>,
    /// The outputs of the first run.
    pub outputs: Vec<EValue>,
    /// The time to load the method.
    pub load: Duration,
    /// The latencies of the additional runs; `None` if there were none.
    pub latency: Option<Latency>,
}

/// The times of runs. A run includes setting the inputs; the outputs are left in place.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    /// The number of runs.
    pub runs: usize,
    /// The minimum, in milliseconds.
    pub min_ms: f64,
    /// The median, in milliseconds.
    pub median_ms: f64,
    /// The 99th percentile, in milliseconds.
    pub p99_ms: f64,
}

impl Latency {
    /// The statistics of these durations; `None` if there are none.
    pub fn from_durations(mut times: Vec<Duration>) -> Option<Self> {
        times.sort_unstable();
        let last = times.len().checked_sub(1)?;
        let at = |q: f64| times[((last as f64) * q).ceil() as usize].as_secs_f64() * 1e3;
        Some(Self { runs: times.len(), min_ms: at(0.0), median_ms: at(0.5), p99_ms: at(0.99) })
    }
}

/// The method to run by default: `forward`, or the only one of the program.
pub fn default_method(program: &Program) -> Result<String> {
    let names: Vec<&str> = program.method_names().collect();
    match program.default_method()? {
        Some(name) => Ok(name.to_owned()),
        None => Err(Error::input(format!(
            "the program has no method `forward`; name one of its methods with `--method`: {}",
            names.join(", ")
        ))),
    }
}

/// Loads a method and runs it.
pub fn run(program: &Program, request: &Request, options: LoadOptions) -> Result<RunResult> {
    let ResolvedCall { method: name, inputs, default_inputs } = request.resolve(program)?;
    let limits = options.limits.clone();
    let start = Instant::now();
    let mut module = Module::new(program.clone(), options);
    if request.share_memory_arenas {
        module.share_memory_arenas()?;
    }
    module.load_method(&name)?;
    let load = start.elapsed();
    for call in &request.before {
        // The values, if there are any, are the inputs of the last call.
        let call = Request {
            method: Some(call.method.clone()),
            inputs: call.inputs.clone(),
            values: None,
            ..request.clone()
        };
        let ResolvedCall { method, inputs, .. } = call.resolve(program)?;
        module.execute(&method, &inputs)?;
    }
    module.with_method(&name, |method| {
        if let Some(file) = &request.restore {
            method.restore(&PtdDataMap::load(open(file, LoadMode::File)?, &limits)?)?;
        }
        let outputs = method.execute(&inputs)?;
        let mut times = Vec::new();
        for _ in 0..request.repeat {
            let start = Instant::now();
            run_once(method, &inputs)?;
            times.try_reserve(1).map_err(|_| pteron_tensor::Error::OutOfMemory(size_of_val(&*times)))?;
            times.push(start.elapsed());
        }
        if let Some(file) = &request.checkpoint {
            method.save_checkpoint(file)?;
        }
        Ok(RunResult {
            method: name.clone(),
            default_inputs,
            outputs,
            load,
            latency: Latency::from_durations(times),
        })
    })
}

/// Makes the inputs of a method from their specifications.
///
/// # Errors
/// If they do not match the method's inputs, or cannot be read.
pub fn input_values(
    program: &Program,
    method: &str,
    inputs: Vec<GivenInput>,
    pictures: &Preparation,
) -> Result<Vec<EValue>> {
    let (method, pictures) = (Some(method.to_owned()), pictures.clone());
    Ok(Request { method, inputs, pictures, ..Request::default() }.resolve(program)?.inputs)
}

/// The inputs of a call that gives none. They print as `zeros, 1x1x8x8xf32`.
#[derive(Debug, Clone, Serialize)]
pub struct DefaultInputs {
    /// The seed of the values of tensors; `None` for zeros.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// A description of each input, such as `1x1x8x8xf32`.
    pub inputs: Vec<String>,
}

impl fmt::Display for DefaultInputs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.seed {
            Some(seed) => write!(f, "random values of seed {seed}, ")?,
            None => f.write_str("zeros, ")?,
        }
        f.write_str(&self.inputs.join(" "))
    }
}

/// A method and the values that it is called with.
pub(crate) struct ResolvedCall {
    /// The method's name.
    pub(crate) method: String,
    pub(crate) inputs: Vec<EValue>,
    /// The inputs that are used because none were given.
    pub(crate) default_inputs: Option<DefaultInputs>,
}

impl Request {
    /// Resolves the method's name and creates the values of its inputs.
    pub(crate) fn resolve(&self, program: &Program) -> Result<ResolvedCall> {
        let method = match &self.method {
            Some(name) => name.clone(),
            None => default_method(program)?,
        };
        if let Some(values) = &self.values {
            let inputs = values.iter().map(EValue::try_clone).collect::<Result<_, _>>()?;
            return Ok(ResolvedCall { method, inputs, default_inputs: None });
        }
        let meta = program.method_meta(&method)?;
        let declared = meta.inputs();
        let (inputs, default_inputs) = match self.inputs.is_empty() && !declared.is_empty() {
            true => {
                let inputs = match self.seed {
                    Some(seed) => random_inputs(program, &method, seed)?,
                    None => zero_inputs(&declared)?,
                };
                let descriptions = declared.iter().map(default_text).collect();
                (inputs, Some(DefaultInputs { seed: self.seed, inputs: descriptions }))
            }
            false => {
                let allowed = meta.input_sizes()?.map(Arc::new);
                (resolve_given_inputs(&meta, &declared, allowed, &self.inputs, &self.pictures)?, None)
            }
        };
        Ok(ResolvedCall { method, inputs, default_inputs })
    }
}

/// Sets the inputs and runs the method; the outputs stay in its memory.
pub(crate) fn run_once(method: &mut Method, inputs: &[EValue]) -> Result<()> {
    for (i, input) in inputs.iter().enumerate() {
        method.set_input(i, input)?;
    }
    Ok(method.run()?)
}

/// Resolves inputs given by position or name; inputs that the exporter fixed may be omitted.
fn resolve_given_inputs(
    meta: &MethodMeta<'_>,
    declared: &[ValueMeta],
    allowed: Option<Arc<InputSizes>>,
    given_inputs: &[GivenInput],
    pictures: &Preparation,
) -> Result<Vec<EValue>> {
    let method = meta.name();
    let named = given_inputs.iter().filter_map(|input| Some((input.name.clone()?, &input.value)));
    let positional: Vec<&InputSpec> =
        given_inputs.iter().filter(|input| input.name.is_none()).map(|input| &input.value).collect();
    let names = meta.value_names()?;
    let specs = arrange_inputs(method, declared, &names.inputs, positional.into_iter(), named);
    let specs = specs.map_err(|error| match error {
        pteron_runtime::Error::Input { problem: InputProblem::Count { .. }, .. } => {
            wrong_count_error(method, declared, given_inputs.len())
        }
        other => other.into(),
    })?;
    let mut inputs = Vec::with_capacity(declared.len());
    for (i, (value, spec)) in declared.iter().zip(specs).enumerate() {
        inputs.push(match (spec, &value.traced) {
            (None, fixed) => fixed.clone().unwrap_or(EValue::None),
            (Some(spec), _) => {
                let declared = DeclaredInput::new(method, i, value, allowed.clone());
                match spec.resolve(&declared, pictures) {
                    // This error already names the method and the input.
                    Err(e @ Error::Runtime(pteron_runtime::Error::Input { .. })) => return Err(e),
                    resolved => resolved.context(|| format!("input {i} of method `{method}`"))?,
                }
            }
        });
    }
    Ok(inputs)
}

fn wrong_count_error(method: &str, declared: &[ValueMeta], num_given: usize) -> Error {
    let list: Vec<String> = declared.iter().map(default_text).collect();
    Error::input(format!(
        "method `{method}` takes {}, {} given: {}",
        count(declared.len(), "input"),
        match num_given {
            1 => "1 was".to_owned(),
            n => format!("{n} were"),
        },
        if list.is_empty() { "run it without".to_owned() } else { format!("give it {}", list.join(" ")) }
    ))
}

fn zero_inputs(declared: &[ValueMeta]) -> Result<Vec<EValue>> {
    let default = |d: &ValueMeta| match (&d.tensor, &d.traced) {
        (Some(t), _) => Ok(EValue::Tensor(Tensor::zeros(t.meta.clone())?)),
        (None, Some(fixed)) => Ok(fixed.clone()),
        (None, None) => Ok(EValue::None),
    };
    declared.iter().map(default).collect()
}

fn default_text(declared: &ValueMeta) -> String {
    match (&declared.tensor, &declared.traced) {
        (Some(t), _) => type_text(t.meta.dtype(), t.meta.sizes()),
        (None, Some(EValue::String(s))) => format!("{s:?}"),
        (None, Some(EValue::Int(v))) => v.to_string(),
        (None, Some(EValue::Bool(v))) => v.to_string(),
        (None, Some(EValue::Double(v))) => format!("{v:?}"),
        (None, _) => match declared.tag {
            Tag::None => "none".to_owned(),
            tag => tag.to_string(),
        },
    }
}

/// One of the largest elements of a row.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Ranked<'l> {
    /// The index of the element in its row.
    pub index: usize,
    pub value: f64,
    /// The label of the element's index, if there are labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<&'l str>,
}

/// The largest elements of each row.
#[derive(Debug, Clone, PartialEq)]
pub struct Top<'l> {
    ranked: Vec<Ranked<'l>>,
    /// The number of elements kept per row.
    each: usize,
}

impl<'l> Top<'l> {
    /// The largest elements of each row, in descending order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = &[Ranked<'l>]> {
        self.ranked.chunks(self.each)
    }
}

impl Serialize for Top<'_> {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.rows())
    }
}

/// The `k` largest elements along the last dimension, for every row. NaN counts as negative infinity; equal elements
/// are ordered by index.
pub fn top_k<'l>(tensor: &Tensor, k: usize, labels: &'l [String]) -> Result<Top<'l>> {
    let tensor = tensor.to_dim_order(DimOrder::contiguous(tensor.rank()))?;
    let value = show::numbers(&tensor)
        .ok_or_else(|| Error::input(format!("the elements of a {} have no order", tensor.meta())))?;
    let width = tensor.sizes().last().copied().unwrap_or(1).max(1);
    if !labels.is_empty() && labels.len() != width {
        return Err(Error::input(format!("there are {} labels for {width} classes", labels.len())));
    }
    let each = k.clamp(1, width);
    let out_of_memory =
        |n: usize| pteron_tensor::Error::OutOfMemory(n.saturating_mul(size_of::<Ranked<'_>>()));
    let (mut ranked, mut heap) = (Vec::new(), BinaryHeap::new());
    let all = tensor.numel() / width * each;
    ranked.try_reserve_exact(all).map_err(|_| out_of_memory(all))?;
    heap.try_reserve_exact(each + 1).map_err(|_| out_of_memory(each))?;
    for row in 0..tensor.numel() / width {
        for index in 0..width {
            let value = value(row * width + index);
            // A min-heap: the smallest of the kept elements is on top.
            heap.push(Reverse(Order(value, Reverse(index))));
            if heap.len() > each {
                heap.pop();
            }
        }
        let start = ranked.len();
        while let Some(Reverse(Order(value, Reverse(index)))) = heap.pop() {
            ranked.push(Ranked { index, value, label: labels.get(index).map(String::as_str) });
        }
        ranked[start..].reverse();
    }
    Ok(Top { ranked, each })
}

/// A value and its index, ordered by ascending value, then by descending index.
struct Order(f64, Reverse<usize>);

impl Order {
    fn value(&self) -> f64 {
        // The sum makes -0 and 0 equal.
        if self.0.is_nan() { f64::NEG_INFINITY } else { self.0 + 0.0 }
    }
}

impl Ord for Order {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.value().total_cmp(&other.value()).then(self.1.cmp(&other.1))
    }
}

impl PartialOrd for Order {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Order {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Order {}

/// Reads labels, one per line. Trailing empty lines are ignored.
pub fn read_labels(path: &Path) -> Result<Vec<String>> {
    let text = stream::read_text(path)?;
    Ok(text.trim_end().lines().map(|l| l.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latencies_are_order_statistics() {
        let ms = |n: u64| Duration::from_millis(n);
        let l = Latency::from_durations((1..=100).rev().map(ms).collect()).unwrap();
        assert_eq!((l.runs, l.min_ms, l.median_ms, l.p99_ms), (100, 1.0, 51.0, 100.0));
        assert!(Latency::from_durations(Vec::new()).is_none());
    }

    #[test]
    fn the_largest_come_first() {
        let t = Tensor::from_slice(&[2, 3], &[0.1f32, 0.7, 0.2, f32::NAN, -1.0, 3.0]).unwrap();
        let labels = ["a", "b", "c"].map(str::to_owned);
        let top = top_k(&t, 2, &labels).unwrap();
        let names: Vec<Vec<&str>> =
            top.rows().map(|r| r.iter().map(|x| x.label.unwrap()).collect()).collect();
        assert_eq!(names, [["b", "c"], ["c", "b"]]);
        let zeros = Tensor::from_slice(&[2], &[-0.0f32, 0.0]).unwrap();
        assert_eq!(top_k(&zeros, 1, &[]).unwrap().rows().next().unwrap()[0].index, 0);
        assert!(top_k(&t, 2, &labels[..2]).unwrap_err().to_string().contains("2 labels for 3 classes"));
    }
}
