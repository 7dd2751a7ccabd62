use super::REPORT_VERSION;
use crate::Result;
use crate::convert::gguf_head;
use pteron_format::gguf::Value;
use pteron_runtime::{DataLoader, Limits};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;

/// The contents of a `.gguf` file.
#[derive(Debug, Clone, Serialize)]
pub struct GgufReport {
    /// The version of the report's schema.
    pub report: u32,
    pub file: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// Bytes that were read for the report, not counting those that identified the format.
    pub bytes_read: u64,
    /// The version of the format.
    pub version: u32,
    /// The metadata: pairs of key and value. For an array, only its length and first values.
    pub metadata: Vec<(String, serde_json::Value)>,
    /// The tensors, in the order of the file.
    pub tensors: Vec<GgufTensorReport>,
}

/// A tensor of a `.gguf` file.
#[derive(Debug, Clone, Serialize)]
pub struct GgufTensorReport {
    pub name: String,
    /// The tensor's element or block type: `F32`, `Q8_0`.
    pub kind: &'static str,
    /// The tensor's sizes, outermost first.
    pub sizes: Vec<u64>,
    /// The tensor's size in bytes.
    pub bytes: u64,
}

pub(super) fn report(loader: &Arc<dyn DataLoader>, limits: &Limits) -> Result<GgufReport> {
    let before = loader.bytes_loaded();
    let file = gguf_head(loader, limits)?;
    let tensors = file.tensors.into_iter().map(|t| GgufTensorReport {
        name: t.name,
        kind: t.kind.name(),
        sizes: t.sizes,
        bytes: t.data.end - t.data.start,
    });
    Ok(GgufReport {
        report: REPORT_VERSION,
        file: loader.name().to_owned(),
        bytes: loader.size(),
        version: file.version,
        metadata: file.metadata.into_iter().map(|(key, v)| (key, value_json(&v))).collect(),
        tensors: tensors.collect(),
        bytes_read: loader.bytes_loaded().saturating_sub(before),
    })
}

fn value_json(v: &Value) -> serde_json::Value {
    match v {
        Value::Unsigned(v) => json!(v),
        Value::Signed(v) => json!(v),
        Value::Float(v) => json!(v),
        Value::Bool(v) => json!(v),
        Value::String(v) => json!(v),
        Value::Array { len, first } => {
            json!({"len": len, "first": first.iter().map(value_json).collect::<Vec<_>>()})
        }
        _ => serde_json::Value::Null,
    }
}
