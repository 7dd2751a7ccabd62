//! Conversion between Python values (numbers, strings, sequences) and values of programs.

use crate::errors::{Failure, Result as Converted};
use crate::exchange::{Array, Storage};
use crate::tensor::{PyTensor, borrow_array};
use pteron::tensor::TensorMeta;
use pteron::{Bool, Complex, EValue, ScalarType, Tensor, ValueMeta, bf16, f16};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyComplex, PyFloat, PyInt, PyList, PySequence, PyString, PyTuple};
use std::sync::Arc;

/// The maximum nesting depth of sequences, since tensors have at most this rank.
const MAX_DEPTH: usize = 16;

/// An input of a call.
#[expect(
    clippy::large_enum_variant,
    reason = "lives for one call, in which a box would cost more than its moves"
)]
pub(crate) enum Input {
    /// A Python array that is used in place, with the type and layout that a tensor view of its memory has.
    Array(Array, TensorMeta),
    /// A tensor of this package, used in place.
    Tensor(Arc<Storage>),
    /// A value that the call owns: a scalar, a string, a list, or a tensor that was created for the call.
    Value(EValue),
}

impl Input {
    /// Converts an argument to an input as the program declares it.
    pub(crate) fn from_object(object: &Bound<'_, PyAny>, declared: &ValueMeta) -> PyResult<Self> {
        let Some(wanted) = &declared.tensor else { return Ok(Self::Value(to_value(object)?)) };
        let wanted = wanted.meta.dtype();
        if let Ok(tensor) = object.cast_exact::<PyTensor>()
            && tensor.get().storage().meta().dtype() == wanted
        {
            return Ok(Self::Tensor(Arc::clone(tensor.get().storage())));
        }
        let Some(array) = borrow_array(object)? else {
            return Ok(Self::Value(EValue::Tensor(from_sequences(object, Some(wanted))?)));
        };
        let dtype = array.dtype(Some(wanted))?;
        match array.dense_meta(dtype)? {
            Some(meta) => Ok(Self::Array(array, meta)),
            None => Ok(Self::Value(EValue::Tensor(array.gather(dtype)?))),
        }
    }

    /// The input as an owned value; memory that is used in place is copied.
    pub(crate) fn into_value(self) -> Converted<EValue> {
        match self {
            Self::Value(value) => Ok(value),
            Self::Tensor(storage) => Ok(EValue::Tensor(storage.view()?.to_tensor()?)),
            Self::Array(array, meta) => Ok(EValue::Tensor(array.view(&meta)?.to_tensor()?)),
        }
    }
}

/// Converts a scalar, a string or a list; any other object becomes a tensor.
fn to_value(object: &Bound<'_, PyAny>) -> PyResult<EValue> {
    if object.is_none() {
        return Ok(EValue::None);
    }
    if let Ok(value) = object.cast::<PyBool>() {
        return Ok(EValue::Bool(value.is_true()));
    }
    if object.is_instance_of::<PyInt>() {
        return Ok(EValue::Int(object.extract()?));
    }
    if object.is_instance_of::<PyFloat>() {
        return Ok(EValue::Double(object.extract()?));
    }
    if object.is_instance_of::<PyString>() {
        return Ok(EValue::String(object.extract()?));
    }
    if !object.is_instance_of::<PyList>() && !object.is_instance_of::<PyTuple>() {
        return Ok(EValue::Tensor(to_tensor(object, None, None)?));
    }
    let items: Vec<Bound<'_, PyAny>> = object.try_iter()?.collect::<PyResult<_>>()?;
    let all = |is: fn(&Bound<'_, PyAny>) -> bool| !items.is_empty() && items.iter().all(is);
    Ok(match () {
        () if all(|i| i.is_instance_of::<PyBool>()) => EValue::ListBool(object.extract()?),
        () if items.is_empty() || all(|i| i.is_instance_of::<PyInt>()) => EValue::ListInt(object.extract()?),
        () if all(|i| i.is_instance_of::<PyInt>() || i.is_instance_of::<PyFloat>()) => {
            EValue::ListDouble(object.extract()?)
        }
        () => EValue::ListTensor(items.iter().map(|i| to_tensor(i, None, None)).collect::<PyResult<_>>()?),
    })
}

/// Copies an array, bytes, or numbers in nested sequences to a tensor.
pub(crate) fn to_tensor(
    object: &Bound<'_, PyAny>,
    dtype: Option<ScalarType>,
    shape: Option<&[usize]>,
) -> PyResult<Tensor> {
    let tensor = match borrow_array(object)? {
        None => from_sequences(object, dtype)?,
        Some(array) => {
            let own = array.dtype(dtype)?;
            let gathered = match array.dense_meta(own)? {
                Some(meta) => array.view(&meta).and_then(|view| view.to_tensor()).map_err(Failure::from)?,
                None => array.gather(own)?,
            };
            return Ok(reinterpret(gathered, dtype, shape)?);
        }
    };
    Ok(reinterpret(tensor, dtype, shape)?)
}

/// Reinterprets bytes as elements of type `dtype`, if given, and reshapes to `shape`, if given.
fn reinterpret(tensor: Tensor, dtype: Option<ScalarType>, shape: Option<&[usize]>) -> Converted<Tensor> {
    let wanted = dtype.unwrap_or(tensor.dtype());
    if wanted == tensor.dtype() && shape.is_none_or(|shape| *shape == **tensor.sizes()) {
        return Ok(tensor);
    }
    if wanted != tensor.dtype() && tensor.dtype() != ScalarType::Byte {
        let message = format!("the elements are {}, not {wanted}", tensor.dtype());
        return Err(Failure::Input(message));
    }
    let flat = [tensor.nbytes() / wanted.size()];
    let meta = TensorMeta::contiguous(wanted, shape.unwrap_or(&flat))?;
    let order = pteron::DimOrder::contiguous(tensor.sizes().rank());
    Ok(Tensor::from_bytes(meta, tensor.to_dim_order(order)?.bytes())?)
}

/// Creates a tensor from a number, or from numbers in nested sequences.
fn from_sequences(object: &Bound<'_, PyAny>, dtype: Option<ScalarType>) -> PyResult<Tensor> {
    let mut shape = Vec::new();
    let mut leaves = Vec::new();
    flatten(object, 0, &mut shape, &mut leaves)?;
    let dtype = dtype.unwrap_or_else(|| default_dtype(&leaves));
    let mut bytes = Vec::new();
    for leaf in &leaves {
        push_number(dtype, leaf, &mut bytes)?;
    }
    let tensor = TensorMeta::contiguous(dtype, &shape).and_then(|meta| Tensor::from_bytes(meta, &bytes));
    Ok(tensor.map_err(Failure::from)?)
}

fn flatten<'py>(
    object: &Bound<'py, PyAny>,
    depth: usize,
    shape: &mut Vec<usize>,
    leaves: &mut Vec<Bound<'py, PyAny>>,
) -> PyResult<()> {
    let sequence = match object.cast::<PySequence>() {
        Ok(sequence) if !object.is_instance_of::<PyString>() => sequence,
        _ => {
            if depth != shape.len() {
                return Err(PyValueError::new_err("the sequences are of different depths"));
            }
            leaves.push(object.clone());
            return Ok(());
        }
    };
    let len = sequence.len()?;
    if depth == MAX_DEPTH {
        return Err(PyValueError::new_err(format!("a tensor has at most {MAX_DEPTH} dimensions")));
    }
    if depth == shape.len() && leaves.is_empty() {
        shape.push(len);
    }
    if shape.get(depth) != Some(&len) {
        return Err(PyValueError::new_err("the sequences are of different lengths"));
    }
    for item in sequence.try_iter()? {
        flatten(&item?, depth + 1, shape, leaves)?;
    }
    Ok(())
}

fn default_dtype(leaves: &[Bound<'_, PyAny>]) -> ScalarType {
    let all = |is: fn(&Bound<'_, PyAny>) -> bool| !leaves.is_empty() && leaves.iter().all(is);
    match () {
        () if all(|v| v.is_instance_of::<PyBool>()) => ScalarType::Bool,
        () if all(|v| v.is_instance_of::<PyInt>()) => ScalarType::Long,
        () if leaves.iter().any(|v| v.is_instance_of::<PyComplex>()) => ScalarType::ComplexFloat,
        () => ScalarType::Float,
    }
}

/// Appends the bytes of one element of type `dtype`.
fn push_number(dtype: ScalarType, number: &Bound<'_, PyAny>, bytes: &mut Vec<u8>) -> PyResult<()> {
    macro_rules! native {
        ($type:ty) => {
            bytes.extend(number.extract::<$type>()?.to_ne_bytes())
        };
    }
    match dtype {
        ScalarType::Byte => native!(u8),
        ScalarType::Char => native!(i8),
        ScalarType::Short => native!(i16),
        ScalarType::Int => native!(i32),
        ScalarType::Long => native!(i64),
        ScalarType::UInt16 => native!(u16),
        ScalarType::UInt32 => native!(u32),
        ScalarType::UInt64 => native!(u64),
        ScalarType::Float => native!(f32),
        ScalarType::Double => native!(f64),
        ScalarType::Half => bytes.extend(f16::from_f64(number.extract()?).to_ne_bytes()),
        ScalarType::BFloat16 => bytes.extend(bf16::from_f64(number.extract()?).to_ne_bytes()),
        ScalarType::Bool => bytes.push(u8::from(number.is_truthy()?)),
        ScalarType::ComplexFloat | ScalarType::ComplexDouble => {
            let complex = number.call_method0("__complex__").or_else(|_| number.call_method0("conjugate"))?;
            let parts: [f64; 2] = [complex.getattr("real")?.extract()?, complex.getattr("imag")?.extract()?];
            for part in parts {
                match dtype {
                    ScalarType::ComplexFloat => bytes.extend((part as f32).to_ne_bytes()),
                    _ => bytes.extend(part.to_ne_bytes()),
                }
            }
        }
        other => {
            return Err(PyTypeError::new_err(format!(
                "numbers cannot be made {other}; give an array, or bytes"
            )));
        }
    }
    Ok(())
}

/// Converts an output of a method to a Python object.
pub(crate) fn to_python<'py>(py: Python<'py>, value: EValue) -> PyResult<Bound<'py, PyAny>> {
    let tensor = |tensor: Tensor| PyTensor::new(tensor).into_pyobject(py);
    Ok(match value {
        EValue::None => py.None().into_bound(py),
        EValue::Tensor(t) => tensor(t)?.into_any(),
        EValue::String(v) => v.into_pyobject(py)?.into_any(),
        EValue::Double(v) => v.into_pyobject(py)?.into_any(),
        EValue::Int(v) => v.into_pyobject(py)?.into_any(),
        EValue::Bool(v) => v.into_pyobject(py)?.to_owned().into_any(),
        EValue::ListBool(v) => v.into_pyobject(py)?,
        EValue::ListDouble(v) => v.into_pyobject(py)?,
        EValue::ListInt(v) => v.into_pyobject(py)?,
        EValue::ListTensor(v) => {
            PyList::new(py, v.into_iter().map(tensor).collect::<Result<Vec<_>, _>>()?)?.into_any()
        }
        EValue::ListOptionalTensor(v) => {
            let all = v.into_iter().map(|t| t.map(tensor).transpose()).collect::<Result<Vec<_>, _>>()?;
            PyList::new(py, all)?.into_any()
        }
    })
}

/// The elements of a row-major tensor as nested lists; a number for a tensor without dimensions.
pub(crate) fn nested_list<'py>(py: Python<'py>, tensor: &Tensor) -> PyResult<Bound<'py, PyAny>> {
    macro_rules! lists {
        ($type:ty, $convert:expr) => {{
            let all = tensor.as_slice::<$type>().map_err(Failure::from)?;
            let convert: fn($type) -> _ = $convert;
            nested_lists(py, tensor.sizes(), 0, &|i| {
                Ok(convert(all[i]).into_pyobject(py)?.to_owned().into_any())
            })
        }};
    }
    match tensor.dtype() {
        ScalarType::Byte => lists!(u8, |v| v),
        ScalarType::Char => lists!(i8, |v| v),
        ScalarType::Short => lists!(i16, |v| v),
        ScalarType::Int => lists!(i32, |v| v),
        ScalarType::Long => lists!(i64, |v| v),
        ScalarType::UInt16 => lists!(u16, |v| v),
        ScalarType::UInt32 => lists!(u32, |v| v),
        ScalarType::UInt64 => lists!(u64, |v| v),
        ScalarType::Half => lists!(f16, f16::to_f64),
        ScalarType::BFloat16 => lists!(bf16, bf16::to_f64),
        ScalarType::Float => lists!(f32, f64::from),
        ScalarType::Double => lists!(f64, |v| v),
        ScalarType::Bool => lists!(Bool, Bool::get),
        ScalarType::ComplexFloat | ScalarType::ComplexDouble => {
            let part = |i: usize| match tensor.dtype() {
                ScalarType::ComplexFloat => {
                    let v = tensor.as_slice::<Complex<f32>>().map_err(Failure::from)?[i];
                    Ok((f64::from(v.re), f64::from(v.im)))
                }
                _ => {
                    let v = tensor.as_slice::<Complex<f64>>().map_err(Failure::from)?[i];
                    Ok::<_, PyErr>((v.re, v.im))
                }
            };
            nested_lists(py, tensor.sizes(), 0, &|i| {
                let (re, im) = part(i)?;
                Ok(PyComplex::from_doubles(py, re, im).into_any())
            })
        }
        other => Err(PyTypeError::new_err(format!(
            "elements of type {other} are no numbers of Python's; use `tobytes`"
        ))),
    }
}

fn nested_lists<'py>(
    py: Python<'py>,
    sizes: &[usize],
    first: usize,
    element: &dyn Fn(usize) -> PyResult<Bound<'py, PyAny>>,
) -> PyResult<Bound<'py, PyAny>> {
    let Some((&n, inner)) = sizes.split_first() else { return element(first) };
    let step: usize = inner.iter().product();
    let list = PyList::empty(py);
    for i in 0..n {
        list.append(nested_lists(py, inner, first + i * step, element)?)?;
    }
    Ok(list.into_any())
}
