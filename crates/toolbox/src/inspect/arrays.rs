use super::REPORT_VERSION;
use crate::convert::{npz_entries, safetensors_entries};
use crate::{Error, Result, npy, show};
use pteron_format::ptd::Entry;
use pteron_runtime::{DataLoader, Limits, LoaderReader};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The contents of a file of arrays: `.safetensors`, `.npz` or `.npy`.
#[derive(Debug, Clone, Serialize)]
pub struct ArraysReport {
    /// The version of the report's schema.
    pub report: u32,
    pub file: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// Bytes that were read for the report, not counting those that identified the format.
    pub bytes_read: u64,
    /// The metadata of a `.safetensors` file.
    pub metadata: BTreeMap<String, String>,
    /// The arrays, in the order of the file.
    pub tensors: Vec<ArrayReport>,
}

/// An array of a file.
#[derive(Debug, Clone, Serialize)]
pub struct ArrayReport {
    /// The array's name; empty for the only array of a `.npy` file.
    pub name: String,
    /// The scalar type, the sizes, and the dim order unless it is row-major: `float32[2, 3]`.
    #[serde(rename = "type")]
    pub ty: String,
    /// The array's size in bytes.
    pub bytes: u64,
}

/// Reports a `.safetensors` file.
pub(super) fn safetensors_report(loader: &Arc<dyn DataLoader>) -> Result<ArraysReport> {
    let before = loader.bytes_loaded();
    let (entries, metadata) = safetensors_entries(loader)?;
    Ok(report(loader, before, entries.into_iter().map(entry_report).collect(), metadata))
}

/// Reports an `.npz`; `None` for a zip archive of other files.
pub(super) fn npz_report(loader: &Arc<dyn DataLoader>, limits: &Limits) -> Result<Option<ArraysReport>> {
    let before = loader.bytes_loaded();
    let entries = npz_entries(loader, limits)?;
    Ok(entries.map(|entries| {
        report(loader, before, entries.into_iter().map(entry_report).collect(), BTreeMap::new())
    }))
}

/// Reports a `.npy` file.
pub(super) fn npy_report(loader: &Arc<dyn DataLoader>) -> Result<ArraysReport> {
    let before = loader.bytes_loaded();
    let array = npy::Array::open(LoaderReader::new(loader));
    let array = array.map_err(|problem| Error::bad_file(loader.name(), problem))?;
    let (ty, bytes) = (array.meta().to_string(), array.meta().nbytes() as u64);
    Ok(report(loader, before, vec![ArrayReport { name: String::new(), ty, bytes }], BTreeMap::new()))
}

fn entry_report(entry: Entry<'_>) -> ArrayReport {
    ArrayReport {
        ty: entry.layout.as_ref().map_or_else(|| "bytes".to_owned(), show::layout),
        bytes: entry.blob.len(),
        name: entry.key,
    }
}

/// The report of a file of which `before` bytes had been read.
fn report(
    loader: &Arc<dyn DataLoader>,
    before: u64,
    tensors: Vec<ArrayReport>,
    metadata: BTreeMap<String, String>,
) -> ArraysReport {
    ArraysReport {
        report: REPORT_VERSION,
        file: loader.name().to_owned(),
        bytes: loader.size(),
        tensors,
        metadata,
        bytes_read: loader.bytes_loaded().saturating_sub(before),
    }
}
