//! The verbs of the command as functions. Each returns its report as JSON, from which Python creates a dataclass.

use crate::backend::registries;
use crate::errors::{Failure, Result};
use crate::progress::progress;
use crate::settings::{Settings, Source};
use pteron::{BackendRegistry, DataLoader, EditLock, KernelRegistry, Limits, PtdDataMap};
use pteron_toolbox::bundle::rebundle;
use pteron_toolbox::edit::{self, MoveOptions, Output, StripOptions};
use pteron_toolbox::file::{File, Progress};
use pteron_toolbox::merge::{MergeOptions, Prefer, merge as merge_files};
use pteron_toolbox::paths::Paths;
use pteron_toolbox::pattern::Pattern;
use pyo3::prelude::*;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The registries and limits with which files are read.
pub(crate) struct Reader {
    pub(crate) kernels: KernelRegistry,
    pub(crate) backends: BackendRegistry,
    limits: Limits,
}

impl Reader {
    pub(crate) fn new() -> Self {
        let registries = registries();
        let (kernels, backends) =
            (KernelRegistry::clone(registries.kernels()), registries.backends().clone());
        Self { kernels, backends, limits: Limits::default() }
    }

    /// Opens a file; a torch.export archive is compiled.
    pub(crate) fn open(&self, source: &Source) -> Result<Arc<dyn DataLoader>> {
        Ok(pteron::compile::program(source.open(false)?, &self.kernels, &self.limits)?)
    }

    /// Opens a program or a file of named data; `verb` is named in errors.
    pub(crate) fn file(&self, loader: &Arc<dyn DataLoader>, verb: &'static str) -> Result<File> {
        Ok(File::open(Arc::clone(loader), verb, &self.limits)?)
    }

    /// Opens a program; `verb` is named in errors.
    pub(crate) fn program(
        &self,
        loader: &Arc<dyn DataLoader>,
        verb: &'static str,
    ) -> Result<pteron::Program> {
        Ok(File::open_program(Arc::clone(loader), verb, &self.limits)?)
    }

    /// Opens a file of named data; `verb` is named in errors.
    fn data(&self, path: &Path, verb: &'static str) -> Result<PtdDataMap> {
        Ok(File::open_data(Source::Path(path.to_owned()).open(false)?, verb, &self.limits)?)
    }
}

/// Serializes a report as JSON.
pub(crate) fn to_json(report: &impl Serialize) -> Result<String> {
    Ok(serde_json::to_string(report)?)
}

/// Fails if an output would overwrite another output, or an input that it is not an edit of. Waits until no other edit
/// of the files that are edited in place is under way; none begins before the locks are dropped.
#[must_use = "the locks end when they are dropped"]
pub(crate) fn check_paths(
    reads: &[&Source],
    edits: &[&PathBuf],
    writes: &[&PathBuf],
) -> Result<Vec<EditLock>> {
    let mut paths = Paths::default();
    let mut read = Vec::new();
    for source in reads {
        if let Source::Path(path) = source {
            paths.read("", path);
            read.push(path.as_path());
        }
    }
    edits.iter().for_each(|path| paths.edit("", path, &read));
    writes.iter().for_each(|path| paths.write("", path));
    paths.check(false).map_err(Failure::Input)?;
    Ok(paths.edited_paths().into_iter().filter_map(|path| EditLock::take(path, || ())).collect())
}

/// Writes a file atomically.
pub(crate) fn write_file(path: &PathBuf, output: &Output) -> Result<()> {
    Ok(pteron::replace_file(path, |out| output.write_to(out))?)
}

/// Writes an edited program atomically; with the test cases of `file`, the original, if that is a bundled program.
pub(crate) fn write_edited(
    path: &PathBuf,
    file: &Arc<dyn DataLoader>,
    edited: &Output,
    progress: &Progress,
) -> Result<()> {
    match rebundle(file, edited, &Limits::default(), progress)? {
        Some(bundle) => write_file(path, &bundle),
        None => write_file(path, edited),
    }
}

/// With `strict`, fails if there are things in `file` that an edit could not keep, which `lost` lists.
pub(crate) fn check_nothing_lost(strict: bool, file: &str, lost: &[String]) -> Result<()> {
    if strict {
        edit::refuse_losses(file, lost)?;
    }
    Ok(())
}

/// Converts names, in which `*` and `?` are wildcards, to patterns.
pub(crate) fn patterns(names: &[String]) -> Vec<Pattern> {
    names.iter().map(Pattern::new).collect()
}

/// The contents of a file as JSON.
#[pyfunction]
pub(crate) fn inspect(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<String> {
    let source = Source::from_object(source)?;
    let done: Result<String> = py.detach(|| {
        let reader = Reader::new();
        let loader = reader.open(&source)?;
        to_json(&pteron_toolbox::inspect::inspect(
            &loader,
            &reader.kernels,
            &reader.backends,
            &reader.limits,
        )?)
    });
    Ok(done?)
}

/// Validates a file, and returns all its problems as JSON.
#[pyfunction]
pub(crate) fn validate(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<String> {
    let source = Source::from_object(source)?;
    let done: Result<String> = py.detach(|| {
        let reader = Reader::new();
        let loader = reader.open(&source)?;
        to_json(&pteron_toolbox::validate::validate(
            &loader,
            &reader.kernels,
            &reader.backends,
            &reader.limits,
        )?)
    });
    Ok(done?)
}

/// The operators and backends that a file needs, as JSON.
#[pyfunction]
pub(crate) fn requirements(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<String> {
    let source = Source::from_object(source)?;
    let done: Result<String> = py.detach(|| {
        let reader = Reader::new();
        let loader = reader.open(&source)?;
        to_json(&pteron_toolbox::ops::requirements(
            &loader,
            &reader.kernels,
            &reader.backends,
            &reader.limits,
        )?)
    });
    Ok(done?)
}

/// The operators of this build as JSON.
#[pyfunction]
pub(crate) fn operators(py: Python<'_>) -> PyResult<String> {
    Ok(py.detach(|| to_json(&pteron_toolbox::ops::supported(registries().kernels())))?)
}

/// The ids of the backends of this build.
#[pyfunction]
pub(crate) fn backends() -> Vec<String> {
    registries().backends().ids().map(str::to_owned).collect()
}

/// The memory plan of a program, or of one of its methods, as JSON.
#[pyfunction]
pub(crate) fn plan(py: Python<'_>, source: &Bound<'_, PyAny>, method: Option<String>) -> PyResult<String> {
    let source = Source::from_object(source)?;
    let done: Result<String> = py.detach(|| {
        let reader = Reader::new();
        let program = reader.program(&reader.open(&source)?, "plan")?;
        let (kernels, backends) = (&reader.kernels, &reader.backends);
        to_json(&match &method {
            Some(method) => pteron_toolbox::plan::plan_of(&program, method, kernels, backends)?,
            None => pteron_toolbox::plan::plan(&program, kernels, backends)?,
        })
    });
    Ok(done?)
}

/// The listing of a file as text.
#[pyfunction]
pub(crate) fn listing(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<String> {
    let source = Source::from_object(source)?;
    let done: Result<String> = py.detach(|| {
        let reader = Reader::new();
        let file = File::open(reader.open(&source)?, "print", &reader.limits)?;
        Ok(pteron_toolbox::print::print(&file, pteron_toolbox::print::PrintOptions::default())?)
    });
    Ok(done?)
}

/// The differences between two files as JSON.
#[pyfunction]
pub(crate) fn diff(
    py: Python<'_>,
    a: &Bound<'_, PyAny>,
    b: &Bound<'_, PyAny>,
    meaning: bool,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (a, b, progress) = (Source::from_object(a)?, Source::from_object(b)?, progress(callback));
    let done: Result<String> = py.detach(|| {
        let reader = Reader::new();
        let (a, b) = (reader.open(&a)?, reader.open(&b)?);
        let (file_a, file_b) = (reader.file(&a, "diff")?, reader.file(&b, "diff")?);
        let registries =
            pteron_toolbox::diff::Registries { kernels: &reader.kernels, backends: &reader.backends };
        let mut report = pteron_toolbox::diff::diff(&file_a, &file_b, registries, &progress)?;
        report.differences.extend(pteron_toolbox::diff::diff_test_cases(&*a, &*b, &reader.limits)?);
        to_json(&if meaning { report.only_meaning() } else { report })
    });
    Ok(done?)
}

/// Removes the source frames of a program and, if `names` is set, the names of tensors.
#[pyfunction]
pub(crate) fn strip(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    output: PathBuf,
    names: bool,
    strict: bool,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (source, progress) = (Source::from_object(source)?, progress(callback));
    let done: Result<String> = py.detach(|| {
        let _locks = check_paths(&[&source], &[&output], &[])?;
        let reader = Reader::new();
        let file = reader.open(&source)?;
        let program = reader.program(&file, "strip")?;
        let stripped = edit::strip(&program, StripOptions { names, ..StripOptions::default() }, &progress)?;
        check_nothing_lost(strict, program.loader().name(), &stripped.lost)?;
        write_edited(&output, &file, &stripped.program, &progress)?;
        to_json(&stripped)
    });
    Ok(done?)
}

/// Moves weights of a program to a `.ptd` file.
#[pyfunction]
pub(crate) fn externalize(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    output: PathBuf,
    data: PathBuf,
    options: (u64, bool, Vec<String>),
    strict: bool,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (source, progress) = (Source::from_object(source)?, progress(callback));
    let done: Result<String> = py.detach(|| {
        let _locks = check_paths(&[&source], &[&output], &[&data])?;
        let reader = Reader::new();
        let file = reader.open(&source)?;
        let program = reader.program(&file, "externalize")?;
        let (at_least, initial, names) = options;
        let options = MoveOptions { at_least, initial, names: patterns(&names) };
        let moved = edit::externalize(&program, &options, &progress)?;
        check_nothing_lost(strict, program.loader().name(), &moved.lost)?;
        // Write the weights first: a program without its weights is useless, weights without the program are not.
        write_file(&data, &moved.data)?;
        write_edited(&output, &file, &moved.program, &progress)?;
        to_json(&moved)
    });
    Ok(done?)
}

/// Embeds external weights in a program.
#[pyfunction]
pub(crate) fn embed(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    data: Vec<PathBuf>,
    output: PathBuf,
    strict: bool,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (source, progress) = (Source::from_object(source)?, progress(callback));
    let done: Result<String> = py.detach(|| {
        let files: Vec<Source> = data.iter().cloned().map(Source::Path).collect();
        drop(check_paths(&files.iter().collect::<Vec<_>>(), &[], &[&output])?);
        let _locks = check_paths(&[&source], &[&output], &[])?;
        let reader = Reader::new();
        let maps = data.iter().map(|path| reader.data(path, "embed")).collect::<Result<Vec<_>>>()?;
        let file = reader.open(&source)?;
        let program = reader.program(&file, "embed")?;
        let embedded = edit::embed(&program, &maps, &progress)?;
        check_nothing_lost(strict, program.loader().name(), &embedded.not_kept())?;
        write_edited(&output, &file, &embedded.program, &progress)?;
        to_json(&embedded)
    });
    Ok(done?)
}

/// Moves the weights that programs have in common into one file, and writes new programs.
#[pyfunction]
pub(crate) fn dedupe(
    py: Python<'_>,
    programs: Vec<PathBuf>,
    outputs: Vec<PathBuf>,
    data: PathBuf,
    at_least: u64,
    strict: bool,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    let progress = progress(callback);
    let done: Result<String> = py.detach(|| {
        let sources: Vec<Source> = programs.iter().cloned().map(Source::Path).collect();
        if outputs.len() != sources.len() {
            return Err(Failure::Input("dedupe takes an output for each program".to_owned()));
        }
        let _locks =
            check_paths(&sources.iter().collect::<Vec<_>>(), &outputs.iter().collect::<Vec<_>>(), &[&data])?;
        let reader = Reader::new();
        let files = sources.iter().map(|source| reader.open(source)).collect::<Result<Vec<_>>>()?;
        let open = |file| reader.program(file, "dedupe");
        let shared = edit::dedupe(&files.iter().map(open).collect::<Result<Vec<_>>>()?, at_least, &progress)?;
        for member in &shared.programs {
            check_nothing_lost(strict, &member.file, &member.lost)?;
        }
        // Write the weights first: if a later write fails, every program on disk can still be run.
        write_file(&data, &shared.data)?;
        for ((file, member), output) in files.iter().zip(&shared.programs).zip(&outputs) {
            write_edited(output, file, &member.program, &progress)?;
        }
        to_json(&shared)
    });
    Ok(done?)
}

/// Merges files of named data into one.
#[pyfunction]
pub(crate) fn merge(
    py: Python<'_>,
    files: Vec<PathBuf>,
    output: PathBuf,
    options: (Vec<String>, Vec<(String, String)>, Option<String>, bool),
    strict: bool,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    let progress = progress(callback);
    let done: Result<String> = py.detach(|| {
        let sources: Vec<Source> = files.iter().cloned().map(Source::Path).collect();
        let _locks = check_paths(&sources.iter().collect::<Vec<_>>(), &[&output], &[])?;
        let (names, rename, prefer, share) = options;
        let prefer = match prefer.as_deref() {
            None => None,
            Some("first") => Some(Prefer::First),
            Some("last") => Some(Prefer::Last),
            Some(other) => {
                return Err(Failure::Input(format!("prefer is `first` or `last`, not `{other}`")));
            }
        };
        let options = MergeOptions { names: patterns(&names), rename, prefer, share };
        let reader = Reader::new();
        let maps = files.iter().map(|path| reader.data(path, "merge")).collect::<Result<Vec<_>>>()?;
        let merged = merge_files(&maps, &options, &progress)?;
        check_nothing_lost(strict, "the merged file", &merged.lost)?;
        write_file(&output, &merged.data)?;
        to_json(&merged)
    });
    Ok(done?)
}

/// Converts weights to the format of the output's extension. Returns the number of bytes written.
#[pyfunction]
pub(crate) fn convert(
    py: Python<'_>,
    source: PathBuf,
    output: PathBuf,
    keep_quantized: bool,
    strict: bool,
    callback: Option<Py<PyAny>>,
) -> PyResult<u64> {
    let progress: Progress = progress(callback);
    let done: Result<u64> = py.detach(|| {
        let source = Source::Path(source);
        let _locks = check_paths(&[&source], &[], &[&output])?;
        let to = pteron_toolbox::convert::Format::from_path(&output).ok_or_else(|| {
            Failure::Input(format!("{}: weights are written as .ptd, .safetensors or .npz", output.display()))
        })?;
        let options = pteron_toolbox::convert::Options { keep_quantized };
        let limits = Limits::default();
        let converted =
            pteron_toolbox::convert::convert(&source.open(false)?, to, options, &limits, &progress)?;
        check_nothing_lost(strict, &output.display().to_string(), &converted.lost)?;
        write_file(&output, &converted.file)?;
        Ok(converted.file.bytes())
    });
    Ok(done?)
}

/// Parses the options of functions that run programs.
pub(crate) fn parse_settings(options: &Bound<'_, pyo3::types::PyDict>) -> PyResult<Settings> {
    Settings::from_options(Some(options))
}
