//! The options of `pteron.load`.

use crate::backend::{load_options, registries};
use crate::errors::{Failure, Result};
use crate::exchange::promise_unchanged;
use crate::tensor::PyTensor;
use pteron::compile::Cache;
use pteron::{
    BackendRegistry, BytesLoader, DataLoader, Features, Isa, Limits, LoadOptions, NamedDataMap, Pool,
    available_threads,
};
use pteron_toolbox::run::{LoadMode, open, open_data};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The source of a program.
#[derive(Clone)]
pub(crate) enum Source {
    /// A file.
    Path(PathBuf),
    /// Bytes owned by Python.
    Bytes(Arc<PyBackedBytes>),
}

/// Bytes owned by Python, in the form in which a loader takes them.
struct PythonBytes(Arc<PyBackedBytes>);

impl AsRef<[u8]> for PythonBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Source {
    /// Converts a path, or any object with bytes.
    pub(crate) fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if let Ok(bytes) = object.extract::<PyBackedBytes>() {
            return Ok(Self::Bytes(Arc::new(bytes)));
        }
        if crate::exchange::has_buffer(object) {
            let bytes = object.py().import("builtins")?.call_method1("bytes", (object,))?;
            return Ok(Self::Bytes(Arc::new(bytes.extract().map_err(PyErr::from)?)));
        }
        Ok(Self::Path(object.extract()?))
    }

    /// Opens a loader of the source.
    pub(crate) fn open(&self, mmap: bool) -> Result<Arc<dyn DataLoader>> {
        match self {
            Self::Path(path) => Ok(open(path, load_mode(mmap))?),
            Self::Bytes(bytes) => Ok(Arc::new(BytesLoader::new(PythonBytes(Arc::clone(bytes))))),
        }
    }
}

fn load_mode(mmap: bool) -> LoadMode {
    if mmap { LoadMode::Mmap(promise_unchanged()) } else { LoadMode::LargeBefMapped(promise_unchanged()) }
}

/// What the outputs of a call are converted to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outputs {
    Tensors,
    NumPy,
    Torch,
}

impl Outputs {
    fn parse(name: &str) -> PyResult<Self> {
        match name {
            "tensor" => Ok(Self::Tensors),
            "numpy" => Ok(Self::NumPy),
            "torch" => Ok(Self::Torch),
            other => Err(PyValueError::new_err(format!("outputs is tensor, numpy or torch, not `{other}`"))),
        }
    }

    /// Converts a tensor without a copy; leaves any other value as it is.
    pub(crate) fn convert<'py>(self, value: Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        match self {
            _ if !value.is_instance_of::<PyTensor>() => Ok(value),
            Self::Tensors => Ok(value),
            Self::NumPy => value.call_method0("numpy"),
            Self::Torch => value.py().import("torch")?.call_method1("from_dlpack", (value,)),
        }
    }
}

/// The options of `pteron.load`.
#[derive(Clone)]
pub(crate) struct Settings {
    pub(crate) data: Vec<PathBuf>,
    backends: Option<Vec<String>>,
    /// The number of threads; `None` for the number of cores.
    threads: Option<usize>,
    pub(crate) limits: Limits,
    mmap: bool,
    /// The folder in which compiled programs are cached; `None` for no cache.
    cache: Option<PathBuf>,
    prepare: bool,
    isa: Option<Isa>,
    seed: u64,
    pub(crate) share_memory_arenas: bool,
    /// What outputs are converted to.
    pub(crate) outputs: Outputs,
    /// Whether executions are recorded (`Some`), and if so, whether with all computed tensors (`true`).
    pub(crate) record: Option<bool>,
}

impl Settings {
    /// Parses the keyword arguments of `pteron.load`.
    pub(crate) fn from_options(options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let mut settings = Self {
            data: Vec::new(),
            backends: None,
            threads: None,
            limits: Limits::default(),
            mmap: false,
            cache: None,
            prepare: true,
            isa: None,
            seed: 0,
            share_memory_arenas: false,
            outputs: Outputs::Tensors,
            record: None,
        };
        for (name, value) in options.into_iter().flatten() {
            if value.is_none() {
                continue;
            }
            match name.extract::<&str>()? {
                "data" => settings.data = extract_paths(&value)?,
                "backends" => settings.backends = Some(value.extract()?),
                "threads" => settings.threads = Some(value.extract()?),
                "limits" => settings.limits = extract_limits(&value)?,
                "mmap" => settings.mmap = value.is_truthy()?,
                "cache" => settings.cache = Some(value.extract()?),
                "prepare" => settings.prepare = value.is_truthy()?,
                "isa" => settings.isa = Some(parse_isa(&value.extract::<String>()?)?),
                "seed" => settings.seed = value.extract()?,
                "share_memory_arenas" => settings.share_memory_arenas = value.is_truthy()?,
                "outputs" => settings.outputs = Outputs::parse(value.extract()?)?,
                "record" => settings.record = Some(parse_record(value.extract()?)?),
                other => {
                    let hint = pteron_toolbox::did_you_mean(other, OPTIONS.iter().copied());
                    return Err(pyo3::exceptions::PyTypeError::new_err(format!(
                        "there is no option `{other}`{hint}"
                    )));
                }
            }
        }
        if settings.threads == Some(0) {
            return Err(PyValueError::new_err("threads must be 1 or more"));
        }
        Ok(settings)
    }

    /// A loader of the program or, if there is a cache, of its compiled form in the cache.
    pub(crate) fn loader(&self, source: &Source) -> Result<Arc<dyn DataLoader>> {
        let Some(folder) = &self.cache else { return source.open(self.mmap) };
        let Source::Path(path) = source else {
            return Err(Failure::Input("a cache needs the path of the program, not its bytes".to_owned()));
        };
        let cache = Cache::new(folder, self.isa());
        let cached = cache.program(path, &self.data, registries().kernels())?;
        Source::Path(cached).open(true)
    }

    /// The instruction set that operators may use: as set, or all that this machine has.
    fn isa(&self) -> Isa {
        self.isa.unwrap_or_default()
    }

    /// The options for loading methods.
    pub(crate) fn load_options(&self) -> Result<LoadOptions> {
        self.load_options_of_each(1)
    }

    /// As [`load_options`](Self::load_options), for `executions` that run concurrently and by default share the cores.
    pub(crate) fn load_options_of_each(&self, executions: usize) -> Result<LoadOptions> {
        let threads = self.threads.unwrap_or_else(|| available_threads() / executions.max(1));
        let mut options = load_options().limits(self.limits.clone()).pool(Pool::new(threads));
        if let Some(names) = &self.backends {
            options.backends = Arc::new(select_backends(registries().backends().clone(), names)?);
        }
        if self.cache.is_none() {
            options.data = self.open_data(&self.data)?;
        }
        options.no_prepare = !self.prepare;
        options.isa = self.isa();
        options.seed = self.seed;
        Ok(options)
    }

    /// Opens `.ptd` files as one map; `None` if there are none.
    pub(crate) fn open_data(&self, files: &[PathBuf]) -> Result<Option<Arc<dyn NamedDataMap>>> {
        Ok(open_data(files, load_mode(self.mmap), &self.limits)?)
    }
}

const OPTIONS: [&str; 12] = [
    "data",
    "backends",
    "threads",
    "limits",
    "mmap",
    "cache",
    "prepare",
    "isa",
    "seed",
    "share_memory_arenas",
    "outputs",
    "record",
];

/// Parses `record`. Returns whether tensors are recorded, too.
fn parse_record(name: &str) -> PyResult<bool> {
    match name {
        "times" => Ok(false),
        "values" => Ok(true),
        other => Err(PyValueError::new_err(format!("record is times or values, not `{other}`"))),
    }
}

/// Converts one path, or a sequence of paths.
pub(crate) fn extract_paths(value: &Bound<'_, PyAny>) -> PyResult<Vec<PathBuf>> {
    match value.extract::<PathBuf>() {
        Ok(path) => Ok(vec![path]),
        Err(_) => value.try_iter()?.map(|path| path?.extract()).collect(),
    }
}

/// Parses the name of an instruction set, which this machine must have.
fn parse_isa(name: &str) -> PyResult<Isa> {
    let features = name.parse::<Features>().ok();
    features.and_then(|features| Isa::of(features).ok()).ok_or_else(|| {
        let names: Vec<String> = Isa::available().map(|isa| isa.to_string()).collect();
        PyValueError::new_err(format!("isa is one of {}, not `{name}`", names.join(", ")))
    })
}

/// Removes all backends except the named ones.
fn select_backends(mut all: BackendRegistry, names: &[String]) -> Result<BackendRegistry> {
    if let Some(name) = names.iter().find(|name| all.get(name).is_none()) {
        let hint = pteron_toolbox::did_you_mean(name, all.ids());
        return Err(Failure::Input(format!("there is no backend `{name}`{hint}")));
    }
    all.retain(|id| names.iter().any(|name| name == id));
    Ok(all)
}

/// Converts a Python `pteron.Limits`.
pub(crate) fn extract_limits(value: &Bound<'_, PyAny>) -> PyResult<Limits> {
    let base: String = value.getattr("base")?.extract()?;
    let mut limits = match base.as_str() {
        "default" => Limits::default(),
        "strict" => Limits::strict(),
        "none" => Limits::none(),
        other => {
            return Err(PyValueError::new_err(format!(
                "Limits.base is default, strict or none, not `{other}`"
            )));
        }
    };
    let number = |name: &str| value.getattr(name)?.extract::<Option<u64>>();
    let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    limits.instructions = number("instructions")?.unwrap_or(limits.instructions);
    limits.memory = number("memory")?.unwrap_or(limits.memory);
    limits.arena_bytes = number("arena_bytes")?.unwrap_or(limits.arena_bytes);
    limits.scratch_bytes = number("scratch_bytes")?.map_or(limits.scratch_bytes, size);
    limits.segment_bytes = number("segment_bytes")?.unwrap_or(limits.segment_bytes);
    limits.backend_bytes = number("backend_bytes")?.map_or(limits.backend_bytes, size);
    if let Some(seconds) = value.getattr("time")?.extract::<Option<f64>>()? {
        let time = Duration::try_from_secs_f64(seconds);
        limits.time = Some(time.map_err(|_| PyValueError::new_err("Limits.time is a number of seconds"))?);
    }
    Ok(limits)
}
