//! The payload of an XNNPACK delegate: values, nodes and constants, read and verified.
//!
//! ```text
//! 0   00 00 00 00  "XH00"  u16 length  u32 flatbuffer offset, size  u32 constants' offset  u64 their size
//! 32  flatbuffer "XN00" or "XN01":  XNNGraph { xvalues, xnodes, constant_data, .. }
//! ..  constants that are neither named data nor in the flatbuffer
//! ```
//!
//! The oldest payloads have no header. A [`Payload`] has been verified: ids refer to values, each value is defined
//! exactly once and before its uses, and constants are in bounds. Sizes are those of the example inputs with which
//! the program was exported; sizes at run time follow from the inputs.

mod check;
mod contents;
mod elementwise;
mod fields;
mod graph;
mod header;
mod node;
mod read;
mod read_node;
mod schema;
mod value;
mod write;

pub use elementwise::{Aten, Binary, Fixed, Parameter, Unary};
pub use header::Header;
pub use node::{Conv, Node, Op, Pool};
pub use value::{Constant, Datatype, Quantization, Role, Scales, Value};

use pteron_format::{Limits, Result};
use pteron_runtime::PayloadContents;

/// Maximum rank of a value.
pub const MAX_RANK: usize = 6;
/// Maximum number of external values (inputs and outputs) of a payload.
pub const MAX_EXTERNALS: u32 = 4096;

/// A verified payload.
#[derive(Debug, Clone, PartialEq)]
pub struct Payload {
    /// The flatbuffer's identifier: `XN00` or `XN01`.
    pub identifier: [u8; 4],
    /// The header, if there is one.
    pub header: Option<Header>,
    /// The version that the writer gave the graph.
    pub version: String,
    /// The values. Nodes refer to them by index.
    pub values: Vec<Value>,
    /// The nodes, in topological order.
    pub nodes: Vec<Node>,
    /// The constants that values and their scales refer to by index. The first entry is reserved.
    pub constants: Vec<Constant>,
    /// The values that are inputs, in the order of their external ids.
    pub inputs: Vec<usize>,
    /// The values that are outputs, in the order of their external ids.
    pub outputs: Vec<usize>,
}

impl Payload {
    /// Reads and verifies a payload. Errors give offsets into `bytes`.
    pub fn read(bytes: &[u8], limits: &Limits) -> Result<Self> {
        read::payload(bytes, limits)
    }

    /// Serializes the payload, with a header. `source` contains the bytes that [`Constant::Payload`] ranges refer to:
    /// the bytes that the payload was read from, or a buffer that its maker filled.
    ///
    /// # Errors
    /// A constant is out of the bounds of `source`, a size is 2^32 or more, or the flatbuffer would be too large.
    pub fn to_bytes(&self, source: &[u8]) -> Result<Vec<u8>> {
        write::serialize(self, source)
    }

    /// The values with types, shapes, quantization and locations, and the nodes. The result's `Display` is an
    /// operator listing.
    pub fn contents(&self) -> PayloadContents {
        contents::contents(self)
    }
}
