//! The extension module `pteron._pteron` of the Python package `pteron`, which wraps the crate `pteron`. The public
//! Python API is in `python/pteron`.
#![deny(unsafe_code)]

mod backend;
mod batch;
mod call;
mod convert;
mod data;
mod errors;
#[allow(unsafe_code)]
mod exchange;
mod files;
mod graph;
mod interrupt;
mod meta;
mod module;
mod opened;
mod picture;
mod progress;
mod runs;
mod settings;
mod state;
mod tensor;
mod tools;
mod training;
mod verify;

use pyo3::prelude::*;

/// How many inputs and how many outputs have been copied so far in this process.
#[pyfunction]
fn copies() -> (u64, u64) {
    exchange::COPIES.counts()
}

#[pymodule]
fn _pteron(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add("__version__", env!("CARGO_PKG_VERSION"))?;
    m.add_class::<tensor::PyTensor>()?;
    m.add_class::<module::PyModule>()?;
    m.add_class::<module::PyMethod>()?;
    m.add_function(wrap_pyfunction!(copies, m)?)?;
    m.add_function(wrap_pyfunction!(note_fork, m)?)?;
    m.add_function(wrap_pyfunction!(backend::register_backend, m)?)?;
    m.add_class::<graph::PyGraph>()?;
    m.add_class::<graph::PyValue>()?;
    m.add_class::<training::PyTrainingModule>()?;
    m.add_class::<batch::PyBatchRunner>()?;
    m.add_class::<batch::PyArrowArray>()?;
    m.add_class::<batch::PyArrowStream>()?;
    m.add_class::<batch::PyArrowTable>()?;
    m.add_function(wrap_pyfunction!(picture::decode_picture, m)?)?;
    add_tools(m)
}

/// Adds the Python functions that do what the verbs of the command do.
fn add_tools(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(tools::inspect, m)?)?;
    m.add_function(wrap_pyfunction!(tools::validate, m)?)?;
    m.add_function(wrap_pyfunction!(tools::requirements, m)?)?;
    m.add_function(wrap_pyfunction!(tools::operators, m)?)?;
    m.add_function(wrap_pyfunction!(tools::backends, m)?)?;
    m.add_function(wrap_pyfunction!(tools::plan, m)?)?;
    m.add_function(wrap_pyfunction!(tools::listing, m)?)?;
    m.add_function(wrap_pyfunction!(tools::diff, m)?)?;
    m.add_function(wrap_pyfunction!(tools::strip, m)?)?;
    m.add_function(wrap_pyfunction!(tools::externalize, m)?)?;
    m.add_function(wrap_pyfunction!(tools::embed, m)?)?;
    m.add_function(wrap_pyfunction!(tools::dedupe, m)?)?;
    m.add_function(wrap_pyfunction!(tools::merge, m)?)?;
    m.add_function(wrap_pyfunction!(tools::convert, m)?)?;
    m.add_function(wrap_pyfunction!(data::save_data, m)?)?;
    m.add_function(wrap_pyfunction!(data::load_data, m)?)?;
    m.add_function(wrap_pyfunction!(files::set_weight, m)?)?;
    m.add_function(wrap_pyfunction!(files::set_task, m)?)?;
    m.add_function(wrap_pyfunction!(files::extract, m)?)?;
    m.add_function(wrap_pyfunction!(files::bundle, m)?)?;
    m.add_function(wrap_pyfunction!(files::report, m)?)?;
    m.add_function(wrap_pyfunction!(files::translate, m)?)?;
    m.add_function(wrap_pyfunction!(files::bef_functions, m)?)?;
    m.add_function(wrap_pyfunction!(runs::profile, m)?)?;
    m.add_function(wrap_pyfunction!(runs::compare, m)?)?;
    m.add_function(wrap_pyfunction!(runs::compare_programs, m)?)?;
    m.add_function(wrap_pyfunction!(runs::compare_with_eager, m)?)?;
    m.add_function(wrap_pyfunction!(runs::compile_to, m)?)?;
    m.add_function(wrap_pyfunction!(runs::run_bef, m)?)?;
    m.add_function(wrap_pyfunction!(verify::verify, m)?)?;
    Ok(())
}

/// Records that this process is the child of a fork. Must be called in the child after each fork.
#[pyfunction]
fn note_fork() {
    opened::note_fork();
}
