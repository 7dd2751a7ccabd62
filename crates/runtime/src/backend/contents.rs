//! A backend's description of a payload: its nodes and tensors, and which nodes the backend supports.

use pteron_tensor::ScalarType;
use std::fmt::{self, Display, Write};
use std::ops::Range;

/// The nodes and tensors of a payload.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PayloadContents {
    /// The payload format and its version.
    pub format: String,
    /// The tensors.
    pub values: Vec<PayloadValue>,
    /// The nodes in execution order. [`pteron_trace::Place::node`] is an index into this list.
    pub nodes: Vec<PayloadNode>,
}

/// A tensor of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadValue {
    /// The tensor's name in the payload's format, such as `%3`.
    pub name: String,
    /// The element type, by its name in the payload's format.
    pub dtype: String,
    /// The number of bits of an element.
    pub bits: u32,
    /// The scalar type of the stored elements. `None` if several elements share a byte.
    pub scalar_type: Option<ScalarType>,
    /// The tensor's sizes for the example inputs with which the program was exported.
    pub sizes: Vec<usize>,
    /// The tensor's quantization parameters, except separately stored scales. Empty if the tensor is not quantized.
    pub quantization: String,
    /// The quantization scales, if they are stored as constant bytes of their own.
    pub scales: Option<PayloadBytes>,
    /// Whether the tensor is an input, an output, a constant or an intermediate value.
    pub role: PayloadRole,
}

/// The role of a payload's tensor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayloadRole {
    /// Read from the delegate call's argument of this index.
    Input(usize),
    /// Written to the delegate call's argument of this index.
    Output(usize),
    /// A constant with these bytes.
    Constant(PayloadBytes),
    /// An intermediate value, written and read by nodes.
    Internal,
}

/// Where constant bytes of a payload are stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum PayloadBytes {
    /// A byte range of the payload.
    Payload(Range<u64>),
    /// Named data of the program or of a `.ptd` file: the key, and the number of bytes that the payload declares.
    Named(String, u64),
}

/// An operation of a payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PayloadNode {
    /// The node's kind, by its name in the payload's format.
    pub kind: String,
    /// The values that the node reads, as indices into [`PayloadContents::values`].
    pub inputs: Vec<usize>,
    /// The values that the node writes, as indices into [`PayloadContents::values`].
    pub outputs: Vec<usize>,
    /// The node's parameters as text. Empty if the node has none.
    pub attributes: String,
    /// The node's id in the exporter's debug maps, if the payload records it.
    pub debug_handle: Option<u32>,
}

/// Which nodes of a payload a backend does not support.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PayloadSupport {
    /// The unsupported nodes, in execution order.
    pub refused: Vec<RefusedNode>,
    /// Keys of named data that were not found. The nodes that read them were not checked.
    pub absent: Vec<String>,
}

/// A node that a backend does not support.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedNode {
    /// The node's index in [`PayloadContents::nodes`].
    pub node: usize,
    /// The node's kind, by its name in the payload's format.
    pub kind: String,
    /// Why the backend does not support the node.
    pub reason: String,
}

impl PayloadValue {
    /// The tensor's type, sizes and quantization: `qint8[1, 8] (scale 0.5, zero point 3)`.
    pub fn type_text(&self) -> String {
        let mut text = format!("{}{:?}", self.dtype, self.sizes);
        if !self.quantization.is_empty() {
            let _ = write!(text, " ({})", self.quantization);
        }
        text
    }

    fn location_text(&self) -> String {
        let mut text = match &self.role {
            PayloadRole::Input(index) => format!("input {index}"),
            PayloadRole::Output(index) => format!("output {index}"),
            PayloadRole::Constant(bytes) => format!("constant: {bytes}"),
            PayloadRole::Internal => String::new(),
        };
        if let Some(scales) = &self.scales {
            let _ = write!(text, "{}scales: {scales}", if text.is_empty() { "" } else { "; " });
        }
        text
    }
}

impl PayloadBytes {
    /// The number of constant bytes.
    pub fn len(&self) -> u64 {
        match self {
            Self::Payload(range) => range.end.saturating_sub(range.start),
            Self::Named(_, len) => *len,
        }
    }

    /// Whether there are no constant bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Display for PayloadBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Payload(range) => write!(f, "bytes {}..{} of the payload", range.start, range.end),
            Self::Named(key, _) => write!(f, "named data {key}"),
        }
    }
}

impl PayloadContents {
    /// A node as a line of a listing: `FullyConnected(%0, %2) -> %1 fp32[2, 4], at least 0`.
    pub fn node_text(&self, node: &PayloadNode) -> String {
        let names = |list: &[usize], text: &dyn Fn(&PayloadValue) -> String| -> String {
            let values = list.iter().filter_map(|&index| self.values.get(index));
            values.map(text).collect::<Vec<_>>().join(", ")
        };
        let mut out = format!("{}({})", node.kind, names(&node.inputs, &|value| value.name.clone()));
        let typed = |value: &PayloadValue| format!("{} {}{:?}", value.name, value.dtype, value.sizes);
        let _ = write!(out, " -> {}", names(&node.outputs, &typed));
        if !node.attributes.is_empty() {
            let _ = write!(out, ", {}", node.attributes);
        }
        out
    }
}

/// A listing of the payload: one line per value and per node.
impl Display for PayloadContents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let (values, nodes) = (count(self.values.len(), "value"), count(self.nodes.len(), "node"));
        writeln!(f, "{}: {values}, {nodes}", self.format)?;
        writeln!(f, "values")?;
        let rows: Vec<[String; 3]> = self
            .values
            .iter()
            .map(|value| [value.name.clone(), value.type_text(), value.location_text()])
            .collect();
        let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let (first, second) = (width(0), width(1));
        for [name, kind, place] in &rows {
            let line = format!("  {name:<first$}  {kind:<second$}  {place}");
            writeln!(f, "{}", line.trim_end())?;
        }
        writeln!(f, "nodes")?;
        let width = self.nodes.len().saturating_sub(1).to_string().len();
        for (index, node) in self.nodes.iter().enumerate() {
            write!(f, "  {index:>width$}  {}", self.node_text(node))?;
            if let Some(handle) = node.debug_handle {
                write!(f, "  ; debug handle {handle}")?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
