use super::REPORT_VERSION;
use crate::convert::arrays_of;
use crate::{Result, show};
use pteron_format::FileKind;
use pteron_runtime::{DataLoader, Limits};
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The contents of a file of arrays: `.safetensors`, `.npz` or `.npy`.
#[derive(Debug, Clone, Serialize)]
pub struct ArraysReport {
    /// The version of the report's schema.
    pub report: u32,
    pub file: String,
    /// Its size in bytes.
    pub bytes: u64,
    /// Bytes that were read for the report, without those that identified the format.
    pub bytes_read: u64,
    /// The metadata of a `.safetensors` file.
    pub metadata: BTreeMap<String, String>,
    /// The arrays, in the order of the file.
    pub tensors: Vec<ArrayReport>,
}

/// An array of a file.
#[derive(Debug, Clone, Serialize)]
pub struct ArrayReport {
    /// Its name; empty for the only array of a `.npy` file.
    pub name: String,
    /// Its scalar type, sizes and dim order, if it is not row-major: `float32[2, 3]`.
    #[serde(rename = "type")]
    pub ty: String,
    /// Its size in bytes.
    pub bytes: u64,
}

/// Reports the arrays of a file of this kind; `None` for a zip archive of other files.
pub(super) fn report(
    loader: &Arc<dyn DataLoader>,
    kind: FileKind,
    limits: &Limits,
) -> Result<Option<ArraysReport>> {
    let before = loader.bytes_loaded();
    let Some((entries, metadata)) = arrays_of(loader, kind, limits)? else { return Ok(None) };
    let tensors = entries.into_iter().map(|entry| ArrayReport {
        ty: entry.layout.as_ref().map_or_else(|| "bytes".to_owned(), show::layout),
        bytes: entry.blob.len(),
        name: entry.key,
    });
    Ok(Some(ArraysReport {
        report: REPORT_VERSION,
        file: loader.name().to_owned(),
        bytes: loader.size(),
        tensors: tensors.collect(),
        metadata,
        bytes_read: loader.bytes_loaded().saturating_sub(before),
    }))
}
