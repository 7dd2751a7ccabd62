//! `.ptd` files from and to dicts.

use crate::convert;
use crate::errors::{Failure, Result};
use crate::exchange::{Array, Storage};
use crate::progress::progress;
use crate::settings::Source;
use crate::tensor::{PyTensor, borrow_array};
use crate::tools::check_paths;
use pteron::format::container::Blob;
use pteron::format::ptd::{Builder, Entry, Prepared, TensorLayout};
use pteron::tensor::TensorMeta;
use pteron::{Limits, NamedDataMap, PtdDataMap, Tensor};
use pteron_toolbox::file::{File, Progress};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

/// The maximum alignment of segments, in bytes.
const MAX_ALIGNMENT: u64 = 1 << 30;

/// The number of bytes that are written between two reports of progress.
const CHUNK: usize = 1 << 20;

/// The contents of an entry to be written. Arrays are used in place.
enum EntryContents {
    Bytes(Vec<u8>),
    Array(Box<Array>, TensorMeta),
    Tensor(Arc<Storage>),
    Copied(Tensor),
}

impl EntryContents {
    fn from_object(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        if object.is_instance_of::<PyBytes>() || object.is_instance_of::<PyByteArray>() {
            return Ok(Self::Bytes(object.extract()?));
        }
        if let Ok(tensor) = object.cast_exact::<PyTensor>() {
            return Ok(Self::Tensor(Arc::clone(tensor.get().storage())));
        }
        let Some(array) = borrow_array(object)? else {
            return Ok(Self::Copied(convert::to_tensor(object, None, None)?));
        };
        let dtype = array.dtype(None)?;
        Ok(match array.dense_meta(dtype)? {
            Some(meta) => Self::Array(Box::new(array), meta),
            None => Self::Copied(array.gather(dtype)?),
        })
    }

    fn meta(&self) -> Option<&TensorMeta> {
        match self {
            Self::Bytes(_) => None,
            Self::Array(_, meta) => Some(meta),
            Self::Tensor(storage) => Some(storage.meta()),
            Self::Copied(tensor) => Some(tensor.meta()),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            _ => self.meta().map_or(0, TensorMeta::nbytes),
        }
    }

    fn write(&self, out: &mut dyn io::Write, progress: &Progress) -> io::Result<()> {
        let (array, storage);
        let bytes = match self {
            Self::Bytes(bytes) => bytes,
            Self::Array(lent, meta) => {
                array = lent.view(meta).map_err(io::Error::other)?;
                array.bytes()
            }
            Self::Tensor(shared) => {
                storage = shared.view().map_err(io::Error::other)?;
                storage.bytes()
            }
            Self::Copied(tensor) => tensor.bytes(),
        };
        bytes.chunks(CHUNK).try_for_each(|chunk| {
            out.write_all(chunk)?;
            progress.advance(chunk.len() as u64);
            Ok(())
        })
    }
}

/// Creates an entry of a `.ptd` file: a tensor with its type, sizes and dim order, or plain bytes.
fn make_entry(key: String, contents: EntryContents, progress: &Progress) -> Result<Entry<'static>> {
    let layout = match contents.meta() {
        None => None,
        Some(meta) => {
            let size = |&size: &usize| {
                i32::try_from(size)
                    .map_err(|_| Failure::Input(format!("`{key}`: {size} is no size of a tensor")))
            };
            Some(TensorLayout {
                scalar_type: meta.dtype() as i8,
                sizes: meta.sizes().iter().map(size).collect::<Result<_>>()?,
                dim_order: meta.dim_order().to_vec(),
            })
        }
    };
    let (len, progress) = (contents.len() as u64, progress.clone());
    let blob = Blob::stream(len, move |out| contents.write(out, &progress));
    Ok(Entry { key, layout, blob, alignment: 1 })
}

/// Writes entries to a `.ptd` file at `path`, or returns the bytes of the file if there is no path.
#[pyfunction]
pub(crate) fn save_data<'py>(
    py: Python<'py>,
    entries: Vec<(String, Bound<'py, PyAny>)>,
    path: Option<PathBuf>,
    alignment: u64,
    share: bool,
    callback: Option<Py<PyAny>>,
) -> PyResult<Option<Bound<'py, PyBytes>>> {
    let progress = progress(callback);
    if !alignment.is_power_of_two() || alignment > MAX_ALIGNMENT {
        let message = format!("alignment is a power of two of at most {MAX_ALIGNMENT}, not {alignment}");
        return Err(Failure::Input(message).into());
    }
    let mut builder = Builder::new();
    (builder.segment_alignment, builder.share) = (alignment, share);
    for (key, object) in entries {
        builder.entries.push(make_entry(key, EntryContents::from_object(&object)?, &progress)?);
    }
    let done: Result<Option<Vec<u8>>> = py.detach(|| {
        check_paths(&[], &[], &path.iter().collect::<Vec<_>>())?;
        let prepared = builder.prepare()?;
        progress.begin("writing", prepared.header().file_len);
        match &path {
            None => file_bytes(&prepared).map(Some),
            Some(path) => {
                pteron::replace_file(path, |out| prepared.write_to(out).map_err(Failure::from))?;
                Ok(None)
            }
        }
    });
    Ok(done?.map(|bytes| PyBytes::new(py, &bytes)))
}

fn file_bytes(prepared: &Prepared<'_>) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    prepared.write_to(&mut bytes)?;
    Ok(bytes)
}

/// The contents of an entry that was read from a file.
enum ReadEntry {
    Bytes(Vec<u8>),
    Tensor(Box<Tensor>),
}

/// Reads entries of a `.ptd` file: those with the given keys, or all of them.
#[pyfunction]
pub(crate) fn load_data<'py>(
    py: Python<'py>,
    source: &Bound<'py, PyAny>,
    keys: Option<Vec<String>>,
    callback: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyDict>> {
    let (source, progress) = (Source::from_object(source)?, progress(callback));
    let read: Result<Vec<(String, ReadEntry)>> = py.detach(|| {
        let map = File::open_data(source.open(false)?, "load_data", &Limits::default())?;
        let keys =
            keys.unwrap_or_else(|| map.tables().named_data.iter().map(|entry| entry.key.clone()).collect());
        let mut bytes = 0u64;
        for key in &keys {
            require_entry(&map, key)?;
            bytes = bytes.saturating_add(map.nbytes(key)?);
        }
        progress.begin("reading", bytes);
        keys.into_iter().map(|key| read_entry(&map, &key, &progress).map(|entry| (key, entry))).collect()
    });
    let dict = PyDict::new(py);
    for (key, entry) in read? {
        match entry {
            ReadEntry::Bytes(bytes) => dict.set_item(key, PyBytes::new(py, &bytes))?,
            ReadEntry::Tensor(tensor) => dict.set_item(key, PyTensor::new(*tensor))?,
        }
    }
    Ok(dict)
}

/// Fails if the file has no entry with this key.
fn require_entry(map: &PtdDataMap, key: &str) -> Result<()> {
    if map.contains(key) {
        return Ok(());
    }
    let like = pteron_toolbox::did_you_mean(key, map.keys());
    Err(Failure::Input(format!("{}: there is no entry `{key}`{like}", map.name())))
}

fn read_entry(map: &PtdDataMap, key: &str, progress: &Progress) -> Result<ReadEntry> {
    let entry = match map.tensor_layout(key)? {
        None => ReadEntry::Bytes(map.data(key)?.to_vec()),
        Some(meta) => {
            let mut tensor = Tensor::zeros(meta)?;
            map.load_data_into(key, tensor.view_mut().bytes_mut())?;
            ReadEntry::Tensor(Box::new(tensor))
        }
    };
    progress.advance(map.nbytes(key)?);
    Ok(entry)
}
