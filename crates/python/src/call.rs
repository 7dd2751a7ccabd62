//! Calls of methods with Python's arguments.

use crate::convert::{Input, to_python};
use crate::errors::{Failure, Result as Done};
use crate::exchange::{Array, COPIES};
use crate::interrupt::run_interruptible;
use crate::opened::{OpenProgram, Signature};
use crate::tensor::borrow_array;
use pteron::{EValue, InputProblem, Method, arrange_inputs};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};

/// Converts values of a program to a list.
pub(crate) fn value_list<'py>(py: Python<'py>, values: Vec<EValue>) -> PyResult<Bound<'py, PyList>> {
    let values = values.into_iter().map(|v| to_python(py, v)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, values)
}

/// Calls a method and returns its outputs; outputs for which `out` has an array are written to that array.
pub(crate) fn call_method<'py>(
    py: Python<'py>,
    opened: &OpenProgram,
    signature: &Signature,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
    out: Option<&Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyList>> {
    let inputs = arrange_arguments(signature, args, kwargs)?;
    let Some(out) = out else {
        let values = run_interruptible(py, &signature.last_time, |handle| {
            opened.with_interrupt(signature, handle, |method| {
                let values = execute(method, &inputs)?;
                opened.end_event_block();
                Ok(values)
            })
        })?;
        let values = values.into_iter().map(|value| opened.outputs.convert(to_python(py, value)?));
        return PyList::new(py, values.collect::<PyResult<Vec<_>>>()?);
    };
    let targets = output_arrays(signature, out)?;
    let arrays =
        targets.iter().map(|t| t.as_ref().map_or(Ok(None), array_or_error)).collect::<PyResult<Vec<_>>>()?;
    let values = run_interruptible(py, &signature.last_time, |handle| {
        opened.with_interrupt(signature, handle, |method| {
            let values = execute_into(method, &inputs, &arrays)?;
            opened.end_event_block();
            Ok(values)
        })
    })?;
    let results = PyList::empty(py);
    for (target, value) in targets.into_iter().zip(values) {
        match target {
            Some(target) => results.append(target)?,
            None => results.append(opened.outputs.convert(to_python(py, value)?)?)?,
        }
    }
    Ok(results)
}

/// The inputs of a call, in the order of the method's inputs. Inputs that the exporter fixed may be omitted.
pub(crate) fn arrange_arguments<'py>(
    signature: &Signature,
    args: &Bound<'py, PyTuple>,
    kwargs: Option<&Bound<'py, PyDict>>,
) -> PyResult<Vec<Input>> {
    let declared = &signature.inputs;
    if args.len() == declared.len() && kwargs.is_none() {
        return args.iter().zip(declared).map(|(arg, declared)| Input::from_object(&arg, declared)).collect();
    }
    let named: Vec<(String, Bound<'py, PyAny>)> = kwargs
        .into_iter()
        .flatten()
        .map(|(name, value)| Ok((name.extract()?, value)))
        .collect::<PyResult<_>>()?;
    let arranged = arrange_inputs(&signature.name, declared, &signature.names, args.iter(), named);
    let arranged = arranged.map_err(|error| match error {
        pteron::Error::Input { problem: problem @ InputProblem::Twice { .. }, .. } => {
            PyTypeError::new_err(problem.to_string())
        }
        other => Failure::from(other).into(),
    })?;
    let value = |(object, declared): (Option<Bound<'py, PyAny>>, &pteron::ValueMeta)| match object {
        Some(object) => Input::from_object(&object, declared),
        None => Ok(Input::Value(declared.traced.clone().unwrap_or(EValue::None))),
    };
    arranged.into_iter().zip(declared).map(value).collect()
}

fn set_and_run(method: &mut Method, inputs: &[Input]) -> Done<()> {
    for (i, input) in inputs.iter().enumerate() {
        match input {
            Input::Array(array, meta) => method.set_input_tensor(i, array.view(meta)?)?,
            Input::Tensor(storage) => method.set_input_tensor(i, storage.view()?)?,
            Input::Value(value) => method.set_input(i, value)?,
        }
    }
    Ok(method.run()?)
}

/// Executes a method, and returns copies of its outputs.
pub(crate) fn execute(method: &mut Method, inputs: &[Input]) -> Done<Vec<EValue>> {
    set_and_run(method, inputs)?;
    (0..method.num_outputs()).map(|i| copy_output(method, i)).collect()
}

fn copy_output(method: &Method, i: usize) -> Done<EValue> {
    let value = method.output(i)?;
    if matches!(value, EValue::Tensor(_)) {
        COPIES.count_output();
    }
    Ok(value)
}

/// Executes a method. Outputs that have an array in `arrays` are written to it, and returned as `None`.
fn execute_into(method: &mut Method, inputs: &[Input], arrays: &[Option<Array>]) -> Done<Vec<EValue>> {
    set_and_run(method, inputs)?;
    for (i, array) in arrays.iter().enumerate() {
        if let Some(array) = array {
            let tensor = method.output_tensor(i)?;
            array.check_room(i, tensor.dtype(), tensor.sizes())?;
        }
    }
    let mut values = Vec::with_capacity(arrays.len());
    for (i, array) in arrays.iter().enumerate() {
        values.push(match array {
            Some(array) => {
                array.write(i, method.output_tensor(i)?)?;
                EValue::None
            }
            None => copy_output(method, i)?,
        });
    }
    Ok(values)
}

/// The array for each output, if there is one. `out` is an array, or a sequence of arrays and `None`, one for each
/// output.
fn output_arrays<'py>(
    signature: &Signature,
    out: &Bound<'py, PyAny>,
) -> PyResult<Vec<Option<Bound<'py, PyAny>>>> {
    let targets: Vec<Option<Bound<'py, PyAny>>> =
        match out.is_instance_of::<PyList>() || out.is_instance_of::<PyTuple>() {
            true => out.extract()?,
            false => vec![Some(out.clone())],
        };
    if targets.len() != signature.outputs {
        return Err(PyValueError::new_err(format!(
            "method `{}` gives {}, `out` has {}",
            signature.name,
            pteron_toolbox::show::count(signature.outputs, "output"),
            targets.len()
        )));
    }
    Ok(targets)
}

fn array_or_error(target: &Bound<'_, PyAny>) -> PyResult<Option<Array>> {
    match borrow_array(target)? {
        Some(array) => array.refuse_copy_of(target).map(Some),
        None => Err(PyTypeError::new_err("`out` takes arrays that can be written to")),
    }
}
