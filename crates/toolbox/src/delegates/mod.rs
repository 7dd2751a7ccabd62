//! The payloads of a program's delegates: nodes and tensors if the backend can read them, otherwise size and magic.

mod kinds;
mod text;

pub use kinds::NodeKinds;
pub use text::text;

use crate::Result;
use crate::inspect::sniff_payload;
use pteron_format::pte::{BackendDelegate, ExecutionPlan};
use pteron_runtime::{
    BackendRegistry, FreeableBuffer, PayloadBytes, PayloadContents, PayloadRole, PayloadValue, Program,
    Purpose,
};
use serde::Serialize;

/// Number of bytes at the start of a payload that are searched for a magic.
const HEAD: usize = 64;

/// A delegate and its payload.
#[derive(Debug, Clone, Serialize)]
pub struct DelegatePayload {
    pub method: String,
    /// The delegate's index in the method's delegate table.
    pub index: usize,
    /// The backend's id.
    pub backend: String,
    /// `INLINE` or `SEGMENT`.
    pub location: String,
    /// The payload's index among the inline payloads or among the segments.
    pub number: u32,
    /// Bytes of the payload.
    pub bytes: u64,
    /// The format of the payload, recognised by its first bytes; `None` if it is not known.
    pub magic: Option<String>,
    /// The MLIR text of the payload, if the payload is a BEF program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mlir: Option<String>,
    /// The nodes and tensors of the payload, if its backend is registered and can read and list it.
    pub contents: Option<Contents>,
    /// Why `contents` is absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The nodes and tensors of a payload.
#[derive(Debug, Clone, Serialize)]
pub struct Contents {
    /// The name and version of the format.
    pub format: String,
    /// The tensors.
    pub values: Vec<ValueReport>,
    /// The nodes, in execution order.
    pub nodes: Vec<NodeReport>,
    /// The contents as the backend reported them, from which `values` and `nodes` are derived.
    #[serde(skip)]
    pub read: PayloadContents,
}

/// A tensor of a payload.
#[derive(Debug, Clone, Serialize)]
pub struct ValueReport {
    /// The tensor's name, in the format's notation.
    pub name: String,
    /// The type of the tensor's elements, in the format's notation.
    pub dtype: String,
    /// The tensor's sizes for the example inputs of the export.
    pub sizes: Vec<usize>,
    /// The tensor's quantization parameters; absent if it is not quantized.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantization: Option<String>,
    /// Where the tensor's quantization scales are, if they are stored separately.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scales: Option<Source>,
    /// `input`, `output`, `constant` or `internal`.
    pub role: &'static str,
    /// The tensor's index among the arguments of a call, if it is an input or output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub argument: Option<usize>,
    /// Where the bytes of a constant are; absent if the tensor is not a constant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Source>,
}

/// Location of constant bytes: in the payload, or in named data.
#[derive(Debug, Clone, Serialize)]
pub struct Source {
    /// The offset of the bytes in the payload, if they are in the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// The key of the bytes in the named data, if they are in named data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// The number of bytes.
    pub bytes: u64,
}

/// A node of a payload.
#[derive(Debug, Clone, Serialize)]
pub struct NodeReport {
    /// The node's kind, in the format's notation.
    pub kind: String,
    /// Names of the values that the node reads.
    pub inputs: Vec<String>,
    /// Names of the values that the node writes.
    pub outputs: Vec<String>,
    /// The node's parameters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub attributes: String,
    /// The node's id in the exporter's debug maps, if the payload records it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub debug_handle: Option<u32>,
}

/// Reads all payloads of a program, in the order of the methods' delegate tables.
pub fn payloads(program: &Program, backends: &BackendRegistry) -> Result<Vec<DelegatePayload>> {
    let mut all = Vec::new();
    for plan in &program.tables().execution_plan {
        for (index, delegate) in plan.delegates.iter().enumerate() {
            all.push(payload(program, plan, index, delegate, backends)?);
        }
    }
    Ok(all)
}

/// Reads one payload of a program.
pub fn payload(
    program: &Program,
    plan: &ExecutionPlan,
    index: usize,
    delegate: &BackendDelegate,
    backends: &BackendRegistry,
) -> Result<DelegatePayload> {
    let bytes = read_payload(program, delegate)?;
    let (contents, problem) = match backends.get(&delegate.id).and_then(|backend| backend.contents(&bytes)) {
        Some(Ok(read)) => (Some(Contents::new(read)), None),
        Some(Err(error)) => (None, Some(error.to_string())),
        None => (None, Some("nothing here shows payloads of this backend".to_owned())),
    };
    Ok(DelegatePayload {
        method: plan.name.clone(),
        index,
        backend: delegate.id.clone(),
        location: delegate.processed.location.name().to_owned(),
        number: delegate.processed.index,
        bytes: bytes.len() as u64,
        magic: sniff_payload(&bytes[..bytes.len().min(HEAD)]).map(str::to_owned),
        mlir: mlir_text(&bytes, &plan.name),
        contents,
        problem,
    })
}

/// The MLIR text of a payload, if it is a valid BEF program.
#[cfg(feature = "bef")]
fn mlir_text(bytes: &[u8], name: &str) -> Option<String> {
    use crate::bef::{Translation, to_text};
    match bytes.starts_with(&pteron_bef::HEADER).then(|| to_text(bytes, name, Default::default()))?.ok()? {
        Translation::Done(text) => Some(text),
        Translation::Refused(_) => None,
    }
}

#[cfg(not(feature = "bef"))]
fn mlir_text(_: &[u8], _: &str) -> Option<String> {
    None
}

/// The bytes of a payload.
pub(crate) fn read_payload(program: &Program, delegate: &BackendDelegate) -> Result<FreeableBuffer> {
    let range = program.tables().delegate_data(delegate);
    Ok(program.load_range(range, Purpose::Backend(&delegate.id))?)
}

impl Contents {
    fn new(read: PayloadContents) -> Self {
        let names = |list: &[usize]| -> Vec<String> {
            list.iter().filter_map(|&v| read.values.get(v)).map(|value| value.name.clone()).collect()
        };
        let nodes = read.nodes.iter().map(|node| NodeReport {
            kind: node.kind.clone(),
            inputs: names(&node.inputs),
            outputs: names(&node.outputs),
            attributes: node.attributes.clone(),
            debug_handle: node.debug_handle,
        });
        Self {
            format: read.format.clone(),
            values: read.values.iter().map(ValueReport::new).collect(),
            nodes: nodes.collect(),
            read,
        }
    }
}

impl ValueReport {
    fn new(value: &PayloadValue) -> Self {
        let (role, argument, data) = match &value.role {
            PayloadRole::Input(index) => ("input", Some(*index), None),
            PayloadRole::Output(index) => ("output", Some(*index), None),
            PayloadRole::Constant(bytes) => ("constant", None, Some(Source::new(bytes))),
            PayloadRole::Internal => ("internal", None, None),
        };
        Self {
            name: value.name.clone(),
            dtype: value.dtype.clone(),
            sizes: value.sizes.clone(),
            quantization: Some(value.quantization.clone()).filter(|text| !text.is_empty()),
            scales: value.scales.as_ref().map(Source::new),
            role,
            argument,
            data,
        }
    }
}

impl Source {
    fn new(bytes: &PayloadBytes) -> Self {
        let (offset, key) = match bytes {
            PayloadBytes::Payload(range) => (Some(range.start), None),
            PayloadBytes::Named(key, _) => (None, Some(key.clone())),
        };
        Self { offset, key, bytes: bytes.len() }
    }
}
