use super::REPORT_VERSION;
use crate::Result;
use pteron_runtime::{DataLoader, Limits, NamedDataMap, PtdDataMap};
use serde::Serialize;
use std::sync::Arc;

/// The contents of a `.ptd` file.
#[derive(Debug, Clone, Serialize)]
pub struct FlatTensorReport {
    /// The version of the report's schema.
    pub report: u32,
    pub file: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// Bytes that were read for the report, not counting those that identified the format.
    pub bytes_read: u64,
    /// The version of the file's schema.
    pub version: u32,
    /// The sizes of the segments, in bytes.
    pub segments: Vec<u64>,
    /// The entries, in the order of the file.
    pub entries: Vec<EntryReport>,
}

/// One entry of a `.ptd` file.
#[derive(Debug, Clone, Serialize)]
pub struct EntryReport {
    pub key: String,
    /// The index of the segment that contains the entry.
    pub segment: u32,
    /// The entry's size in bytes.
    pub bytes: u64,
    /// The scalar type of a tensor; absent for a blob.
    pub dtype: Option<String>,
    /// The sizes of a tensor; absent for a blob.
    pub sizes: Option<Vec<i32>>,
    /// The dim order of a tensor; absent for a blob.
    pub dim_order: Option<Vec<u8>>,
}

pub(super) fn report(loader: &Arc<dyn DataLoader>, limits: &Limits) -> Result<FlatTensorReport> {
    let before = loader.bytes_loaded();
    let map = PtdDataMap::load(Arc::clone(loader), limits)?;
    let file = map.tables();
    let entries = file.named_data.iter().map(|e| {
        let layout = e.tensor_layout.as_ref();
        let segment = file.segments.get(e.segment_index as usize).map_or(0, |s| s.size);
        EntryReport {
            key: e.key.clone(),
            segment: e.segment_index,
            bytes: layout.and_then(|l| l.nbytes()).unwrap_or(segment.saturating_sub(e.segment_offset)),
            dtype: layout.map(|l| super::program::dtype_name(l.scalar_type)),
            sizes: layout.map(|l| l.sizes.clone()),
            dim_order: layout.map(|l| l.dim_order.clone()),
        }
    });
    Ok(FlatTensorReport {
        report: REPORT_VERSION,
        file: map.name().to_owned(),
        bytes: loader.size(),
        version: file.version,
        segments: file.segments.iter().map(|s| s.size).collect(),
        entries: entries.collect(),
        bytes_read: loader.bytes_loaded().saturating_sub(before),
    })
}
