//! Indexing of tensors as NumPy and PyTorch do, by integers, slices and `...`. Results are copies.

use super::PyTensor;
use crate::convert;
use crate::errors::Failure;
use pteron::Tensor;
use pteron::tensor::TensorMeta;
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::{PyEllipsis, PySlice, PyTuple};

/// The elements that are taken of a dimension: the index of the first, the step, and how many; `None` for a single one, whose dimension is
/// dropped.
struct Range {
    start: usize,
    step: isize,
    len: Option<usize>,
}

/// Converts one index of a dimension.
fn range(index: &Bound<'_, PyAny>, size: usize) -> PyResult<Range> {
    if let Ok(slice) = index.cast::<PySlice>() {
        let found = slice.indices(isize::try_from(size).unwrap_or(isize::MAX))?;
        let start = usize::try_from(found.start).unwrap_or(0);
        return Ok(Range { start, step: found.step, len: Some(found.slicelength) });
    }
    let wrong = || {
        PyTypeError::new_err("a tensor is indexed by integers, slices and `...`; NumPy and PyTorch take more")
    };
    let at: isize = index.call_method0("__index__").map_err(|_| wrong())?.extract()?;
    let from_end = if at < 0 { at.checked_add_unsigned(size) } else { Some(at) };
    match from_end.and_then(|at| usize::try_from(at).ok()).filter(|&at| at < size) {
        Some(start) => Ok(Range { start, step: 1, len: None }),
        None => Err(PyIndexError::new_err(format!("index {at} is outside a dimension of {size}"))),
    }
}

/// The elements taken of each dimension.
fn ranges(index: &Bound<'_, PyAny>, sizes: &[usize]) -> PyResult<Vec<Range>> {
    let items: Vec<Bound<'_, PyAny>> = match index.cast::<PyTuple>() {
        Ok(tuple) => tuple.iter().collect(),
        Err(_) => vec![index.clone()],
    };
    let dots = items.iter().position(|item| item.is_instance_of::<PyEllipsis>());
    let given = items.len() - usize::from(dots.is_some());
    if given > sizes.len() {
        let message = format!("{given} indices are given, the tensor has {} dimensions", sizes.len());
        return Err(PyIndexError::new_err(message));
    }
    let dots = dots.unwrap_or(items.len());
    let whole = |size: &usize| Range { start: 0, step: 1, len: Some(*size) };
    let behind = items.len().saturating_sub(dots + 1);
    let mut ranges = Vec::with_capacity(sizes.len());
    for (item, &size) in items[..dots].iter().zip(sizes) {
        ranges.push(range(item, size)?);
    }
    ranges.extend(sizes[dots..sizes.len() - behind].iter().map(whole));
    for (item, &size) in items[items.len() - behind..].iter().zip(&sizes[sizes.len() - behind..]) {
        ranges.push(range(item, size)?);
    }
    Ok(ranges)
}

/// The chosen elements of a row-major tensor; a number if no dimension is left.
pub(super) fn item<'py>(tensor: &Tensor, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let sizes: Vec<usize> = tensor.sizes().to_vec();
    let ranges = ranges(index, &sizes)?;
    let shape: Vec<usize> = ranges.iter().filter_map(|range| range.len).collect();
    let meta = TensorMeta::contiguous(tensor.dtype(), &shape).map_err(Failure::from)?;
    let mut bytes = Vec::with_capacity(meta.nbytes());
    copy(tensor.bytes(), &sizes, &ranges, tensor.dtype().size(), &mut bytes);
    let found = Tensor::from_bytes(meta, &bytes).map_err(Failure::from)?;
    match shape.is_empty() {
        true => convert::nested_list(index.py(), &found),
        false => Ok(PyTensor::new(found).into_pyobject(index.py())?.into_any()),
    }
}

/// Appends the elements that `ranges` choose of a row-major tensor of `sizes`, each of `width` bytes.
fn copy(bytes: &[u8], sizes: &[usize], ranges: &[Range], width: usize, out: &mut Vec<u8>) {
    let (Some(range), Some((_, inner))) = (ranges.first(), sizes.split_first()) else {
        out.extend_from_slice(&bytes[..width]);
        return;
    };
    let len = inner.iter().product::<usize>() * width;
    for i in 0..range.len.unwrap_or(1) {
        let at = range.start.wrapping_add_signed(range.step.wrapping_mul(i as isize)) * len;
        copy(&bytes[at..at + len], inner, &ranges[1..], width, out);
    }
}
