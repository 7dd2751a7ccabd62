//! `pteron.TrainingModule`: programs that compute gradients.

use crate::call::{arrange_arguments, value_list};
use crate::convert::Input;
use crate::errors::{Failure, Result};
use crate::opened::{Signature, lock};
use crate::settings::{Settings, Source};
use crate::tensor::PyTensor;
use pteron::tensor::TensorView;
use pteron::{
    Adam, AdamOptions, Optimizer, Program, PtdDataMap, Sgd, SgdOptions, TrainingModule, saved_optimizer,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Mutex;

/// A program with methods that compute gradients, and an optimizer for each of these methods.
#[pyclass(frozen, name = "TrainingModule", module = "pteron")]
pub(crate) struct PyTrainingModule {
    program: Program,
    inner: Mutex<Inner>,
}

struct Inner {
    module: TrainingModule,
    optimizers: HashMap<String, Rule>,
    /// The methods that were run at least once, and therefore have gradients.
    run: HashSet<String>,
}

/// The optimizer of a method.
enum Rule {
    Sgd(Sgd),
    Adam(Adam),
}

impl Rule {
    fn new(options: Options) -> Result<Self> {
        Ok(match options {
            Options::Sgd(options) => Self::Sgd(Sgd::new(options)?),
            Options::Adam(options) => Self::Adam(Adam::new(options)?),
        })
    }

    /// The optimizer called `name`, with default hyperparameters, until its state is restored.
    fn from_name(name: &str) -> Result<Self> {
        match name {
            "sgd" => Self::new(Options::Sgd(SgdOptions::default())),
            "adam" => Self::new(Options::Adam(AdamOptions::default())),
            _ => Err(Failure::Input(format!("the optimizer `{name}` of the file is unknown"))),
        }
    }

    /// Sets the hyperparameters. If they are for another kind of optimizer, replaces the optimizer and discards its
    /// state.
    fn set_options(&mut self, options: Options) -> Result<()> {
        match (&mut *self, options) {
            (Self::Sgd(sgd), Options::Sgd(options)) => sgd.set_options(options)?,
            (Self::Adam(adam), Options::Adam(options)) => adam.set_options(options)?,
            _ => *self = Self::new(options)?,
        }
        Ok(())
    }

    fn optimizer(&mut self) -> &mut dyn Optimizer {
        match self {
            Self::Sgd(sgd) => sgd,
            Self::Adam(adam) => adam,
        }
    }

    fn steps(&self) -> u64 {
        match self {
            Self::Sgd(sgd) => sgd.steps(),
            Self::Adam(adam) => adam.steps(),
        }
    }
}

/// The hyperparameters of an optimizer.
#[derive(Clone, Copy)]
enum Options {
    Sgd(SgdOptions),
    Adam(AdamOptions),
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
    fn with_inner<T: Send>(
        &self,
        py: Python<'_>,
        act: impl FnOnce(&mut Inner) -> Result<T> + Send,
    ) -> PyResult<T> {
        Ok(py.detach(|| act(&mut lock(&self.inner)))?)
    }
}

/// Copies tensors, each with its name.
fn copy_tensors(named: Vec<(&str, TensorView<'_>)>) -> Result<Vec<(String, pteron::Tensor)>> {
    named.into_iter().map(|(name, view)| Ok((name.to_owned(), view.to_tensor()?))).collect()
}

fn tensor_dict(py: Python<'_>, tensors: Vec<(String, pteron::Tensor)>) -> PyResult<Bound<'_, PyDict>> {
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
        let (source, settings) = (Source::from_object(source)?, Settings::from_options(options)?);
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

    /// The names of the methods that compute gradients.
    #[getter]
    fn trainable_methods(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        self.with_inner(py, |inner| {
            Ok(inner.module.trainable_methods().into_iter().map(str::to_owned).collect())
        })
    }

    /// Runs the forward and backward pass of a method, and returns the outputs of the forward pass.
    #[pyo3(signature = (*args, method="forward"))]
    fn forward_backward<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
        method: &str,
    ) -> PyResult<Bound<'py, PyList>> {
        let signature = Signature::new(&self.program.method_meta(method).map_err(Failure::from)?)?;
        let inputs = arrange_arguments(&signature, args, None)?;
        let outputs = self.with_inner(py, |inner| {
            let values = inputs.into_iter().map(Input::into_value).collect::<Result<Vec<_>>>()?;
            let outputs = inner.module.execute_forward_backward(method, &values)?;
            inner.run.insert(method.to_owned());
            Ok(outputs)
        })?;
        value_list(py, outputs)
    }

    /// Copies of the method's parameters, by name.
    #[pyo3(signature = (method="forward"))]
    fn parameters<'py>(&self, py: Python<'py>, method: &str) -> PyResult<Bound<'py, PyDict>> {
        tensor_dict(py, self.with_inner(py, |inner| copy_tensors(inner.module.named_parameters(method)?))?)
    }

    /// Copies of the gradients that the last run has computed, by the names of the parameters.
    #[pyo3(signature = (method="forward"))]
    fn gradients<'py>(&self, py: Python<'py>, method: &str) -> PyResult<Bound<'py, PyDict>> {
        tensor_dict(
            py,
            self.with_inner(py, |inner| {
                inner.check_run(method)?;
                copy_tensors(inner.module.named_gradients(method)?)
            })?,
        )
    }

    /// Updates every parameter as `torch.optim.SGD`, `Adam` or `AdamW` do: `optimizer` is `sgd`, `adam` or `adamw`.
    /// Momentum and averages persist between steps, also if hyperparameters change.
    #[pyo3(signature = (
        lr, *, optimizer="sgd", momentum=0.0, dampening=0.0, weight_decay=None, nesterov=false, betas=(0.9, 0.999), eps=1e-8,
        amsgrad=false, method="forward"
    ))]
    fn step(
        &self,
        py: Python<'_>,
        lr: f64,
        optimizer: &str,
        momentum: f64,
        dampening: f64,
        weight_decay: Option<f64>,
        nesterov: bool,
        betas: (f64, f64),
        eps: f64,
        amsgrad: bool,
        method: &str,
    ) -> PyResult<()> {
        let (beta1, beta2) = betas;
        let adam = |defaults: AdamOptions| {
            let weight_decay = weight_decay.unwrap_or(defaults.weight_decay);
            Options::Adam(AdamOptions { lr, beta1, beta2, eps, weight_decay, amsgrad, ..defaults })
        };
        let options = match optimizer {
            "sgd" => {
                let weight_decay = weight_decay.unwrap_or_default();
                Options::Sgd(SgdOptions { lr, momentum, dampening, weight_decay, nesterov })
            }
            "adam" => adam(AdamOptions::default()),
            "adamw" => adam(AdamOptions::adamw()),
            other => {
                let message = format!("there is no optimizer `{other}`: it is `sgd`, `adam` or `adamw`");
                return Err(Failure::Input(message).into());
            }
        };
        self.with_inner(py, |inner| {
            inner.check_run(method)?;
            let Inner { module, optimizers, .. } = inner;
            let rule = match optimizers.entry(method.to_owned()) {
                Entry::Occupied(rule) => {
                    let rule = rule.into_mut();
                    rule.set_options(options)?;
                    rule
                }
                Entry::Vacant(place) => place.insert(Rule::new(options)?),
            };
            Ok(module.step(method, rule.optimizer())?)
        })
    }

    /// The number of steps that the optimizer of a method has taken, those before a checkpoint was loaded among them:
    /// what a schedule of the learning rate depends on.
    #[pyo3(signature = (method="forward"))]
    fn steps(&self, py: Python<'_>, method: &str) -> PyResult<u64> {
        self.with_inner(py, |inner| Ok(inner.optimizers.get(method).map_or(0, Rule::steps)))
    }

    /// Adds the gradients of the last run to the sum since the last step. Call it after each run of a step with
    /// several.
    #[pyo3(signature = (method="forward"))]
    fn accumulate_gradients(&self, py: Python<'_>, method: &str) -> PyResult<()> {
        self.with_inner(py, |inner| {
            inner.check_run(method)?;
            Ok(inner.module.accumulate_gradients(method)?)
        })
    }

    /// Scales the gradients so that their norm is at most `max_norm`, and returns the norm that they had, as
    /// `torch.nn.utils.clip_grad_norm_` does.
    #[pyo3(signature = (max_norm, method="forward"))]
    fn clip_gradient_norm(&self, py: Python<'_>, max_norm: f64, method: &str) -> PyResult<f64> {
        self.with_inner(py, |inner| {
            inner.check_run(method)?;
            Ok(inner.module.clip_gradient_norm(method, max_norm)?)
        })
    }

    /// Limits every element of the gradients to `-max..=max`, as `torch.nn.utils.clip_grad_value_` does.
    #[pyo3(signature = (max, method="forward"))]
    fn clip_gradient_values(&self, py: Python<'_>, max: f32, method: &str) -> PyResult<()> {
        self.with_inner(py, |inner| {
            inner.check_run(method)?;
            Ok(inner.module.clip_gradient_values(method, max)?)
        })
    }

    /// Writes the parameters of a method to a `.ptd` file and, once a step was made, the optimizer's state.
    #[pyo3(signature = (path, method="forward"))]
    fn save_checkpoint(&self, py: Python<'_>, path: PathBuf, method: &str) -> PyResult<()> {
        self.with_inner(py, |inner| {
            let Inner { module, optimizers, .. } = inner;
            match optimizers.get_mut(method) {
                Some(rule) => module.save_training(method, path, rule.optimizer())?,
                None => module.save_checkpoint(method, path)?,
            }
            Ok(())
        })
    }

    /// Loads what `save_checkpoint` has written. A file without the state of an optimizer gives the parameters, and the
    /// next step is the first of its optimizer.
    #[pyo3(signature = (path, method="forward"))]
    fn load_checkpoint(&self, py: Python<'_>, path: PathBuf, method: &str) -> PyResult<()> {
        self.with_inner(py, |inner| {
            match saved_optimizer(&PtdDataMap::open(&path)?, method)? {
                Some(name) => {
                    let mut rule = Rule::from_name(&name)?;
                    inner.module.load_training(method, path, rule.optimizer())?;
                    inner.optimizers.insert(method.to_owned(), rule);
                }
                None => {
                    inner.module.load_checkpoint(method, path)?;
                    inner.optimizers.remove(method);
                }
            }
            inner.run.remove(method);
            Ok(())
        })
    }
}
