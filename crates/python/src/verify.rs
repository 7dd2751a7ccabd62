//! Runs conformance cases, and compares their outputs with the recorded ones.

use crate::backend::registries;
use crate::errors::Result;
use crate::runs::delegations;
use crate::tools::parse_settings;
use pteron::compile;
use pteron_verify::{Convert, Counts, Options, Setting, archive_cases, check_all, find};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// Which programs of the cases are run: the programs or the archives, compiled for `backends`, then recompiled for each
/// backend of `retarget`.
#[derive(FromPyObject)]
pub(crate) struct Programs {
    archives: bool,
    backends: Vec<String>,
    native: bool,
    retarget: Vec<String>,
    undelegated: bool,
}

impl Programs {
    fn converter(&self) -> Result<Convert> {
        let archive = compile::Options {
            delegation: delegations(&self.backends, self.native)?,
            memory: pteron::Limits::default().memory,
            ..compile::Options::default()
        };
        let again = self.retarget.iter().map(|name| delegations(std::slice::from_ref(name), false));
        let again = again.collect::<Result<Vec<_>>>()?;
        let registries = registries();
        Ok(Arc::new(move |program| Ok(compile::converted(program, &registries, &archive, &again)?)))
    }
}

/// Runs cases, and returns their outcomes as JSON. With `matrix` each is run under every setting. `callback` is called
/// with the name of each case, its outcome and the reason.
#[pyfunction]
pub(crate) fn verify(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    programs: Programs,
    tolerances: (Option<f64>, Option<f64>),
    ways: (bool, Option<usize>),
    options: &Bound<'_, PyDict>,
    callback: Option<Py<PyAny>>,
) -> PyResult<String> {
    let ((matrix, jobs), (atol, rtol)) = (ways, tolerances);
    if jobs == Some(0) {
        return Err(PyValueError::new_err("jobs must be 1 or more"));
    }
    let settings = parse_settings(options)?;
    let done: Result<String> = py.detach(|| {
        let mut cases = Vec::new();
        for path in &paths {
            cases.extend(find(path)?);
        }
        if programs.archives {
            cases = archive_cases(&cases)?;
        }
        let jobs = jobs.unwrap_or_else(pteron::available_threads);
        let load = settings.load_options_of_each(jobs)?;
        let convert = programs.converter()?;
        let ways = if matrix { Setting::all().into_iter().map(Some).collect() } else { vec![None] };
        let mut counts = Counts::default();
        let mut outcomes = Vec::new();
        for way in ways {
            let options = Options {
                load: way.map_or_else(|| load.clone(), |way: Setting| way.apply(&load)),
                undelegated: programs.undelegated,
                atol,
                rtol,
                convert: Some(Arc::clone(&convert)),
                observe: None,
            };
            counts.merge(check_all(&cases, &options, jobs, |case, outcome| {
                let mut outcome = json!(outcome);
                outcome["case"] = json!(case.name);
                outcome["way"] = json!(way.map(|way| way.to_string()));
                report_outcome(callback.as_ref(), &outcome);
                outcomes.push(outcome);
            }));
        }
        Ok(json!({"counts": counts, "cases": outcomes}).to_string())
    });
    Ok(done?)
}

/// Calls the function, if there is one, with an outcome. An exception that it raises is printed by
/// `sys.unraisablehook`.
fn report_outcome(function: Option<&Py<PyAny>>, outcome: &Value) {
    let Some(function) = function else { return };
    let field = |name: &str| outcome[name].as_str();
    Python::attach(|py| {
        let called = function.call1(py, (field("case"), field("outcome"), field("reason")));
        if let Err(error) = called {
            error.write_unraisable(py, Some(function.bind(py)));
        }
    });
}
