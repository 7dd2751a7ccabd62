//! `pteron.TrainingModule`: programs that compute gradients.

use crate::convert::Input;
use crate::errors::{Failure, Result};
use crate::module::{inputs, list};
use crate::opened::{Signature, lock};
use crate::settings::{Settings, Source};
use crate::tensor::PyTensor;
use pteron::tensor::TensorView;
use pteron::{Program, Sgd, SgdOptions, TrainingModule};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Mutex;

/// A program whose methods compute gradients, and an optimizer for each method.
#[pyclass(frozen, name = "TrainingModule", module = "pteron")]
pub(crate) struct PyTrainingModule {
    program: Program,
    inner: Mutex<Inner>,
}

struct Inner {
    module: TrainingModule,
    optimizers: HashMap<String, Sgd>,
    /// The methods that were run, and therefore have gradients.
    run: HashSet<String>,
}

impl Inner {
    fn check_run(&self, method: &str) -> Result<()> {
        match self.run.contains(method) {
            true => Ok(()),
            false => {
                let message =
                    format!("method `{method}` has no gradients yet: call `forward_backward` first");
                Err(Failure::Input(message))
            }
        }
    }
}

impl PyTrainingModule {
    fn with<T: Send>(&self, py: Python<'_>, act: impl FnOnce(&mut Inner) -> Result<T> + Send) -> PyResult<T> {
        Ok(py.detach(|| act(&mut lock(&self.inner)))?)
    }
}

/// Copies tensors.
fn copies(named: Vec<(&str, TensorView<'_>)>) -> Result<Vec<(String, pteron::Tensor)>> {
    named.into_iter().map(|(name, view)| Ok((name.to_owned(), view.to_tensor()?))).collect()
}

fn dict(py: Python<'_>, tensors: Vec<(String, pteron::Tensor)>) -> PyResult<Bound<'_, PyDict>> {
    let dict = PyDict::new(py);
    for (name, tensor) in tensors {
        dict.set_item(name, PyTensor::new(tensor))?;
    }
    Ok(dict)
}

#[pymethods]
impl PyTrainingModule {
    #[new]
    #[pyo3(signature = (source, **options))]
    fn py_new(source: &Bound<'_, PyAny>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let py = source.py();
        let (source, settings) = (Source::of(source)?, Settings::of(options)?);
        let open = || -> Result<_> {
            let options = settings.load_options()?;
            let program = Program::load(settings.loader(&source)?, &options.limits)?;
            let module = TrainingModule::new(program.clone(), options);
            Ok((program, module))
        };
        let (program, module) = py.detach(open)?;
        Ok(Self {
            program,
            inner: Mutex::new(Inner { module, optimizers: HashMap::new(), run: HashSet::new() }),
        })
    }

    /// The methods that compute gradients.
    #[getter]
    fn trainable_methods(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with(py, |inner| Ok(inner.module.trainable_methods().into_iter().map(str::to_owned).collect()))
    }

    /// Runs the forward and backward pass of a method, and returns the outputs of the model.
    #[pyo3(signature = (*args, method="forward"))]
    fn forward_backward<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        method: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let signature = Signature::of(&self.program.method_meta(method).map_err(Failure::from)?);
        let inputs = inputs(&signature, args, None)?;
        let outputs = self.with(py, |inner| {
            let values = inputs.into_iter().map(Input::into_value).collect::<Result<Vec<_>>>()?;
            let outputs = inner.module.execute_forward_backward(method, &values)?;
            inner.run.insert(method.to_owned());
            Ok(outputs)
        })?;
        list(py, outputs)
    }

    /// Copies of the parameters, by name.
    #[pyo3(signature = (method="forward"))]
    fn parameters<'py>(&self, py: Python<'py>, method: &str) -> PyResult<Bound<'py, PyDict>> {
        dict(py, self.with(py, |inner| copies(inner.module.named_parameters(method)?))?)
    }

    /// Copies of the gradients of the last run, by the names of their parameters.
    #[pyo3(signature = (method="forward"))]
    fn gradients<'py>(&self, py: Python<'py>, method: &str) -> PyResult<Bound<'py, PyDict>> {
        dict(
            py,
            self.with(py, |inner| {
                inner.check_run(method)?;
                copies(inner.module.named_gradients(method)?)
            })?,
        )
    }

    /// Updates every parameter as `torch.optim.SGD` does. Momentum persists between steps.
    #[pyo3(signature = (lr, *, momentum=0.0, dampening=0.0, weight_decay=0.0, nesterov=false, method="forward"))]
    fn step(
        &self,
        py: Python<'_>,
        lr: f64,
        momentum: f64,
        dampening: f64,
        weight_decay: f64,
        nesterov: bool,
        method: &str,
    ) -> PyResult<()> {
        self.with(py, |inner| {
            inner.check_run(method)?;
            let options = SgdOptions { lr, momentum, dampening, weight_decay, nesterov };
            let known = inner.optimizers.get(method).map(|sgd| SgdOptions { lr, ..*sgd.options() });
            if known != Some(options) {
                inner.optimizers.insert(method.to_owned(), Sgd::new(options)?);
            }
            let Inner { module, optimizers, .. } = inner;
            let Some(sgd) = optimizers.get_mut(method) else { return Ok(()) };
            sgd.set_lr(lr);
            Ok(module.step(method, sgd)?)
        })
    }

    /// Writes the parameters to a `.ptd` file.
    #[pyo3(signature = (path, method="forward"))]
    fn save_checkpoint(&self, py: Python<'_>, path: PathBuf, method: &str) -> PyResult<()> {
        self.with(py, |inner| Ok(inner.module.save_checkpoint(method, path)?))
    }

    /// Loads parameters written by `save_checkpoint`.
    #[pyo3(signature = (path, method="forward"))]
    fn load_checkpoint(&self, py: Python<'_>, path: PathBuf, method: &str) -> PyResult<()> {
        self.with(py, |inner| Ok(inner.module.load_checkpoint(method, path)?))
    }
}
