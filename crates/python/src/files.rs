//! Functions that derive files from a file: reports, parts, bundles, translations.

use crate::call;
use crate::convert::Input;
use crate::errors::{Failure, Result};
use crate::opened::OpenProgram;
use crate::progress::progress;
use crate::settings::{Settings, Source};
use crate::tools::{Reader, check_nothing_lost, check_paths, patterns, to_json, write_edited, write_file};
use pteron::bef::mlir;
use pteron_report::{Measured, gather, page};
use pteron_toolbox::bef::{self, Program, Translation};
use pteron_toolbox::bundle::Bundle;
use pteron_toolbox::edit;
use pteron_toolbox::extract::Selection;
use pteron_toolbox::run::Request;
use pteron_toolbox::task::TaskMetadata;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::path::{Path, PathBuf};

/// Replaces the values of a weight by those of a `.npy` file.
#[pyfunction]
pub(crate) fn set_weight(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    name: &str,
    array: PathBuf,
    output: PathBuf,
    strict: bool,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (source, progress) = (Source::from_object(source)?, progress(callback));
    let done: Result<String> = py.detach(|| {
        drop(check_paths(&[&Source::Path(array.clone())], &[], &[&output])?);
        let _locks = check_paths(&[&source], &[&output], &[])?;
        let reader = Reader::new();
        let loader = reader.open(&source)?;
        let set = edit::set_weight(&reader.file(&loader, "set-weight")?, name, &array, &progress)?;
        check_nothing_lost(strict, name, &set.lost)?;
        write_edited(&output, &loader, &set.file, &progress)?;
        to_json(&set)
    });
    Ok(done?)
}

/// Replaces the task metadata of a program by that in JSON.
#[pyfunction]
pub(crate) fn set_task(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    task: &str,
    output: PathBuf,
    strict: bool,
    callback: Option<Py<PyAny>>,
) -> PyResult<()> {
    let (source, progress) = (Source::from_object(source)?, progress(callback));
    let done: Result<()> = py.detach(|| {
        let _locks = check_paths(&[&source], &[&output], &[])?;
        let reader = Reader::new();
        let loader = reader.open(&source)?;
        let program = reader.program(&loader, "set-task")?;
        let task = TaskMetadata::parse(task).map_err(Failure::Input)?;
        let set = edit::set_task(&program, task, &progress)?;
        check_nothing_lost(strict, "the program", &set.lost)?;
        write_edited(&output, &loader, &set.program, &progress)
    });
    Ok(done?)
}

/// Lists parts of a file, and writes them to a folder if one is given.
#[pyfunction]
pub(crate) fn extract(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    folder: Option<PathBuf>,
    kinds: Vec<String>,
    names: Option<Vec<String>>,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    let (source, progress) = (Source::from_object(source)?, progress(callback));
    let mut selection = Selection::default();
    for kind in &kinds {
        match kind.as_str() {
            "segments" => selection.segments = true,
            "delegates" => selection.delegates = true,
            "named_data" => selection.named_data = true,
            "constants" => selection.constants = true,
            other => {
                let hint =
                    pteron_toolbox::did_you_mean(other, ["segments", "delegates", "named_data", "constants"]);
                return Err(Failure::Input(format!("there are no parts `{other}`{hint}")).into());
            }
        }
    }
    let done: Result<String> = py.detach(|| {
        let reader = Reader::new();
        let file = reader.file(&reader.open(&source)?, "extract")?;
        let selection = if kinds.is_empty() { Selection::PARTS } else { selection };
        let mut parts = pteron_toolbox::extract::extract(&file, selection, &reader.backends, &progress)?;
        if let Some(names) = &names {
            pteron_toolbox::extract::retain_named(&mut parts, &patterns(names))?;
        }
        if let Some(folder) = &folder {
            let paths: Vec<PathBuf> = parts.iter().map(|part| folder.join(&part.path)).collect();
            drop(check_paths(&[&source], &[], &paths.iter().collect::<Vec<_>>())?);
            for (part, path) in parts.iter().zip(&paths) {
                let parent = path.parent().unwrap_or(folder);
                std::fs::create_dir_all(parent).map_err(pteron_toolbox::Error::write(parent))?;
                write_file(path, &part.output)?;
            }
        }
        to_json(&parts)
    });
    Ok(done?)
}

/// Adds a test case to a program and writes it as a bundled program. Returns the number of cases of the method.
#[pyfunction]
pub(crate) fn bundle(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    inputs: Option<&Bound<'_, PyTuple>>,
    method: Option<String>,
    output: PathBuf,
    options: &Bound<'_, PyDict>,
) -> PyResult<usize> {
    let (source, settings) = (Source::from_object(source)?, Settings::from_options(Some(options))?);
    let opened = py.detach(|| OpenProgram::new(&source, &settings))?;
    let name = method.map_or_else(|| opened.default_method(), Ok)?;
    let values = match inputs {
        None => None,
        Some(inputs) => {
            let inputs = call::arrange_arguments(&*opened.signature(&name)?, inputs, None)?;
            Some(inputs.into_iter().map(Input::into_value).collect::<Result<Vec<_>>>()?)
        }
    };
    let done: Result<usize> = py.detach(|| {
        let _locks = check_paths(&[&source], &[&output], &[])?;
        let mut bundle = match opened.bundle {
            Some(bundle) => bundle,
            None => Bundle::new(&**opened.program.loader())?,
        };
        let request = Request { method: Some(name.clone()), values, ..Request::default() };
        bundle.add(&request, settings.load_options()?)?;
        pteron::replace_file(&output, |out| bundle.write(out))?;
        let suites = bundle.suites.iter().filter(|suite| suite.method_name == name);
        Ok(suites.map(|suite| suite.test_cases.len()).sum())
    });
    Ok(done?)
}

/// Writes, atomically, an HTML page that shows a file.
#[pyfunction]
pub(crate) fn report(
    py: Python<'_>,
    source: &Bound<'_, PyAny>,
    output: PathBuf,
    options: &Bound<'_, PyDict>,
) -> PyResult<()> {
    let (source, settings) = (Source::from_object(source)?, Settings::from_options(Some(options))?);
    let done: Result<()> = py.detach(|| {
        let _locks = check_paths(&[&source], &[], &[&output])?;
        let options = settings.load_options()?;
        let page = page(&gather(&Reader::new().open(&source)?, &options, &Measured::default())?)?;
        Ok(pteron::replace_file(&output, |out| {
            out.write_all(page.as_bytes()).map_err(pteron_toolbox::Error::write(&output))
        })?)
    });
    Ok(done?)
}

/// The result of a translation, or an error that contains its diagnostics.
fn translation_result<T>(name: &str, translation: Translation<T>) -> Result<T> {
    match translation {
        Translation::Done(done) => Ok(done),
        Translation::Refused(why) => {
            let why: Vec<String> = why.iter().map(ToString::to_string).collect();
            Err(pteron_toolbox::Error::bad_file(Path::new(name), why.join("\n")).into())
        }
    }
}

/// Translates MLIR text to the bytes of a BEF program, and a BEF program to text.
#[pyfunction]
pub(crate) fn translate<'py>(
    py: Python<'py>,
    source: &Bound<'py, PyAny>,
    form: (bool, bool, bool),
) -> PyResult<Bound<'py, PyAny>> {
    let (optional_sections, locations, generic) = form;
    let source = Source::from_object(source)?;
    enum Translated {
        Bytes(Vec<u8>),
        Text(String),
    }
    let done: Result<Translated> = py.detach(|| {
        let loader = source.open(false)?;
        let name = loader.name();
        Ok(match bef::open(&*loader)? {
            Some(Program::Mlir(text)) => {
                let options = mlir::Options { optional_sections, ..mlir::Options::default() };
                Translated::Bytes(translation_result(name, bef::to_bef(&text, name, options))?)
            }
            Some(Program::Bef(bytes)) => {
                let print = mlir::PrintOptions { locations, generic };
                Translated::Text(translation_result(name, bef::to_text(&bytes, name, print)?)?)
            }
            None => {
                return Err(bef::wrong_format(
                    &*loader,
                    "translate",
                    "BEF programs (.bef) and MLIR text (.mlir)",
                )
                .into());
            }
        })
    });
    Ok(match done? {
        Translated::Bytes(bytes) => PyBytes::new(py, &bytes).into_any(),
        Translated::Text(text) => text.into_pyobject(py)?.into_any(),
    })
}

/// The functions of a BEF program as JSON; `None` if the file is not a BEF program.
#[pyfunction]
pub(crate) fn bef_functions(py: Python<'_>, source: &Bound<'_, PyAny>) -> PyResult<Option<String>> {
    let source = Source::from_object(source)?;
    let done: Result<Option<String>> = py.detach(|| {
        let loader = source.open(false)?;
        let Some(Program::Bef(bytes)) = bef::open(&*loader)? else { return Ok(None) };
        Ok(Some(to_json(&bef::report(&bytes, loader.name())?)?))
    });
    Ok(done?)
}
