//! `pteron.register_backend`: delegate backends whose functions are written in Python, for tests and prototypes.

use crate::convert;
use crate::tensor::PyTensor;
use pteron::backend::{
    Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, CallArgument, CompileSpec,
    Delegate, Out,
};
use pteron::{FreeableBuffer, LoadOptions, Registries, TensorView, TensorViewMut};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use std::sync::{PoisonError, RwLock};

/// The registries of the process: those of the library, and the backends that were registered. `None` while there are
/// only those of the library.
static REGISTRIES: RwLock<Option<Registries>> = RwLock::new(None);

/// The library's operators and backends, and the backends that Python programs have registered.
pub(crate) fn registries() -> Registries {
    let registries = REGISTRIES.read().unwrap_or_else(PoisonError::into_inner);
    registries.clone().unwrap_or_default()
}

/// The default options for loading programs, with the operators and backends of [`registries`].
pub(crate) fn load_options() -> LoadOptions {
    registries().load_options()
}

/// Registers a backend for all programs that are opened later; replaces a registered one with the same id.
#[pyfunction]
pub(crate) fn register_backend(id: String, init: Py<PyAny>, execute: Py<PyAny>) -> PyResult<()> {
    if id.is_empty() {
        return Err(PyValueError::new_err("the id of a backend is not empty"));
    }
    let new = registries().backend(PyBackend { id, init, execute });
    *REGISTRIES.write().unwrap_or_else(PoisonError::into_inner) = Some(new);
    Ok(())
}

struct PyBackend {
    id: String,
    init: Py<PyAny>,
    execute: Py<PyAny>,
}

impl Backend for PyBackend {
    fn id(&self) -> &str {
        &self.id
    }

    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        compile_specs: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        Python::attach(|py| {
            let delegate = self.init_delegate(py, ctx, &processed, compile_specs);
            delegate
                .map(|delegate| Box::new(delegate) as Box<dyn Delegate>)
                .map_err(|e| backend_error(py, &e))
        })
    }
}

impl PyBackend {
    fn init_delegate(
        &self,
        py: Python<'_>,
        ctx: &BackendInitContext<'_>,
        processed: &[u8],
        compile_specs: &[CompileSpec<'_>],
    ) -> PyResult<PyDelegate> {
        let specs = PyDict::new(py);
        for spec in compile_specs {
            specs.set_item(spec.key, PyBytes::new(py, spec.value))?;
        }
        let data = PyDict::new(py);
        if let Some(named) = ctx.named_data() {
            for key in named.keys() {
                let bytes = named.data(key).map_err(crate::errors::Failure::from)?;
                data.set_item(key, PyBytes::new(py, &bytes))?;
            }
        }
        let arguments: Vec<Option<(&str, Vec<usize>)>> = ctx
            .arguments()
            .iter()
            .map(|argument| {
                let meta = argument.tensor()?;
                Some((meta.dtype().name(), meta.sizes().to_vec()))
            })
            .collect();
        let context = PyDict::new(py);
        context.set_item("method", ctx.method_name())?;
        context.set_item("arguments", arguments)?;
        context.set_item("num_inputs", ctx.num_inputs())?;
        context.set_item("compile_specs", specs)?;
        context.set_item("named_data", data)?;
        let state = self.init.call1(py, (PyBytes::new(py, processed), context))?;
        let own = match state.bind(py).getattr_opt("num_inputs")? {
            Some(own) => Some(own.extract()?),
            None => ctx.num_inputs(),
        };
        let Some(num_inputs) = own else {
            let count = ctx.arguments().iter().filter(|a| matches!(a, CallArgument::Tensor(_))).count();
            return Err(PyValueError::new_err(format!(
                "the file does not tell how many of the call's {count} tensors are inputs: \
                 give what init returns an attribute `num_inputs`"
            )));
        };
        Ok(PyDelegate { state, execute: self.execute.clone_ref(py), num_inputs })
    }
}

struct PyDelegate {
    state: Py<PyAny>,
    execute: Py<PyAny>,
    num_inputs: usize,
}

impl Delegate for PyDelegate {
    fn num_inputs(&self) -> usize {
        self.num_inputs
    }

    fn execute(
        &mut self,
        _: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        Python::attach(|py| self.call_python(py, inputs, outputs).map_err(|e| backend_error(py, &e)))
    }
}

impl PyDelegate {
    fn call_python(&self, py: Python<'_>, inputs: &[Arg<'_>], outputs: &mut [Out<'_>]) -> PyResult<()> {
        let mut args = vec![self.state.clone_ref(py)];
        for input in inputs {
            args.push(argument_object(py, input)?);
        }
        let results = self.execute.call1(py, PyTuple::new(py, args)?)?;
        let results = results.bind(py);
        let results: Vec<Bound<'_, PyAny>> = match results.cast::<PyTuple>() {
            Ok(several) => several.iter().collect(),
            Err(_) if results.is_none() => Vec::new(),
            Err(_) => vec![results.clone()],
        };
        if results.len() != outputs.len() {
            return Err(PyValueError::new_err(format!(
                "execute returned {} arrays, the call has {} outputs",
                results.len(),
                outputs.len()
            )));
        }
        for (index, (result, out)) in results.iter().zip(outputs).enumerate() {
            match out {
                Out::Tensor(out) => copy_to_output(result, out, index)?,
                Out::Scalar(scalar) => *scalar = Some(extract_scalar(result)?),
                _ => return Err(PyValueError::new_err(format!("output {index} is no tensor"))),
            }
        }
        Ok(())
    }
}

/// Converts an input of a delegate's call to a Python object: a copied tensor, a number, or `None`.
fn argument_object(py: Python<'_>, input: &Arg<'_>) -> PyResult<Py<PyAny>> {
    let copy = |view: &TensorView<'_>| -> PyResult<Py<PyAny>> {
        let tensor = view.to_tensor().map_err(crate::errors::Failure::from)?;
        Ok(Py::new(py, PyTensor::new(tensor))?.into_any())
    };
    Ok(match input {
        Arg::Tensor(view) => copy(view)?,
        Arg::Int(value) => value.into_pyobject(py)?.into_any().unbind(),
        Arg::Double(value) => value.into_pyobject(py)?.into_any().unbind(),
        Arg::Bool(value) => value.into_pyobject(py)?.to_owned().into_any().unbind(),
        Arg::None => py.None(),
        _ => return Err(PyValueError::new_err("a delegate takes tensors and numbers")),
    })
}

/// Copies what a backend returned to output number `index`, whose sizes become those of the result.
fn copy_to_output(result: &Bound<'_, PyAny>, out: &mut TensorViewMut<'_>, index: usize) -> PyResult<()> {
    let tensor = convert::to_tensor(result, None, None)?;
    if tensor.dtype() != out.dtype() {
        return Err(PyValueError::new_err(format!(
            "output {index} is {}, execute returned {}",
            out.dtype(),
            tensor.dtype()
        )));
    }
    out.resize(tensor.sizes()).map_err(crate::errors::Failure::from)?;
    tensor.view().relayout(out).map_err(crate::errors::Failure::from)?;
    Ok(())
}

fn extract_scalar(result: &Bound<'_, PyAny>) -> PyResult<pteron::Scalar> {
    if result.is_instance_of::<pyo3::types::PyBool>() {
        return Ok(pteron::Scalar::Bool(result.extract()?));
    }
    match result.extract::<i64>() {
        Ok(value) => Ok(pteron::Scalar::Int(value)),
        Err(_) => Ok(pteron::Scalar::Double(result.extract()?)),
    }
}

/// Converts an exception from a backend's Python function to an error that names the line that raised it.
fn backend_error(py: Python<'_>, error: &PyErr) -> BackendError {
    let line = error.traceback(py).and_then(|traceback| {
        let mut last = traceback.into_any();
        while let Ok(Some(next)) = last.getattr_opt("tb_next")
            && !next.is_none()
        {
            last = next;
        }
        let line: usize = last.getattr("tb_lineno").ok()?.extract().ok()?;
        let code = last.getattr("tb_frame").ok()?.getattr("f_code").ok()?;
        let file: String = code.getattr("co_filename").ok()?.extract().ok()?;
        Some(format!(" ({file}:{line})"))
    });
    BackendError::new(format!("{error}{}", line.unwrap_or_default()))
}
