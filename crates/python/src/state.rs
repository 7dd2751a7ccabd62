//! Copies of the state of a method.

use crate::convert;
use crate::errors::{Failure, Result as Read};
use crate::tensor::PyTensor;
use pteron::tensor::TensorMeta;
use pteron::{Error, FreeableBuffer, Method, NamedDataMap, Result, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use std::collections::BTreeMap;

/// The tensors of a method that persist between executions, by name.
pub(crate) struct State(BTreeMap<String, Tensor>);

impl State {
    /// A copy of a method's state.
    pub(crate) fn copy_of(method: &Method) -> Read<Self> {
        let tensors = method.state().map(|(key, view)| Ok((key, view.to_tensor()?)));
        Ok(Self(tensors.collect::<Read<_>>()?))
    }

    /// Converts the state to a dict of tensors.
    pub(crate) fn into_dict(self, py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
        let dict = PyDict::new(py);
        for (key, tensor) in self.0 {
            dict.set_item(key, PyTensor::new(tensor))?;
        }
        Ok(dict)
    }

    /// Converts a mapping of names to tensors or arrays; those named in `metas` get the types and dim orders given
    /// there.
    pub(crate) fn from_mapping(
        mapping: &Bound<'_, PyAny>,
        metas: &BTreeMap<String, TensorMeta>,
    ) -> PyResult<Self> {
        let mut tensors = BTreeMap::new();
        for item in mapping.cast::<PyMapping>()?.items()? {
            let (key, value): (String, Bound<'_, PyAny>) = item.extract()?;
            let wanted = metas.get(&key);
            let mut tensor = convert::to_tensor(&value, wanted.map(TensorMeta::dtype), None)?;
            if let Some(meta) = wanted
                && meta.rank() == tensor.rank()
            {
                tensor = tensor.to_dim_order(*meta.dim_order()).map_err(Failure::from)?;
            }
            tensors.insert(key, tensor);
        }
        Ok(Self(tensors))
    }

    fn tensor(&self, key: &str) -> Result<&Tensor> {
        let missing = || Error::NoSuchKey { key: key.to_owned(), source_name: self.name().to_owned() };
        self.0.get(key).ok_or_else(missing)
    }
}

impl NamedDataMap for State {
    fn tensor_layout(&self, key: &str) -> Result<Option<TensorMeta>> {
        Ok(Some(self.tensor(key)?.meta().clone()))
    }

    fn data(&self, key: &str) -> Result<FreeableBuffer> {
        let tensor = self.tensor(key)?;
        // Users of a `NamedDataMap` expect little-endian bytes, as in files.
        let mut bytes = tensor.bytes().to_vec();
        if cfg!(target_endian = "big") {
            bytes.chunks_exact_mut(tensor.dtype().to_real().size()).for_each(<[u8]>::reverse);
        }
        FreeableBuffer::from_bytes(&bytes)
    }

    fn contains(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    fn keys(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        Box::new(self.0.keys().map(String::as_str))
    }

    fn name(&self) -> &str {
        "the state"
    }
}
