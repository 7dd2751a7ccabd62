//! The payload of an XNNPACK delegate: values, nodes and constants, read and verified.
//!
//! ```text
//! 0   00 00 00 00  "XH00"  u16 length  u32 flatbuffer offset, size  u32 constants' offset  u64 their size
//! 32  flatbuffer "XN00" or "XN01":  XNNGraph { xvalues, xnodes, constant_data, .. }
//! ..  constants that are neither named data nor in the flatbuffer
//! ```
//!
//! The header is absent in the oldest payloads. What a [`Payload`] says has been checked: ids refer to values,
//! values are defined before they are used and once, and constants lie in the payload. Sizes are those of the
//! example with which the program was exported; sizes at run time follow from the inputs.

mod check;
mod contents;
mod header;
mod node;
mod read;
mod value;
mod write;

pub use header::Header;
pub use node::{Binary, Conv, Node, Op, Pool, Unary};
pub use value::{Constant, Datatype, Quantization, Role, Scales, Value};

use format::{Limits, Result};
use runtime::PayloadContents;

/// The most dimensions that a value has.
pub const MAX_RANK: usize = 6;
/// The most external values that a payload has.
pub const MAX_EXTERNALS: u32 = 4096;

/// A payload, verified.
#[derive(Debug, Clone, PartialEq)]
pub struct Payload {
    /// The flatbuffer's identifier: `XN00` or `XN01`.
    pub identifier: [u8; 4],
    /// Where its parts lie, if it has a header.
    pub header: Option<Header>,
    /// The version that the writer gave the graph.
    pub version: String,
    /// The values. Nodes name them by their index here.
    pub values: Vec<Value>,
    /// The nodes, in an order in which they can run.
    pub nodes: Vec<Node>,
    /// Bytes that values and their scales refer to by index. The first is reserved.
    pub constants: Vec<Constant>,
    /// The values that are inputs, in the order of their external ids.
    pub inputs: Vec<usize>,
    /// The values that are outputs, in the order of their external ids.
    pub outputs: Vec<usize>,
}

impl Payload {
    /// Reads and verifies a payload. Errors name bytes of `bytes`.
    pub fn read(bytes: &[u8], limits: &Limits) -> Result<Self> {
        read::payload(bytes, limits)
    }

    /// The payload as bytes, with a header. `source` has the bytes that [`Constant::Payload`] names: those from which the
    /// payload was read, or others that whoever made it gathered.
    ///
    /// # Errors
    /// A constant that is not of the source, sizes of 2^32 and up, or more than a flatbuffer holds.
    pub fn to_bytes(&self, source: &[u8]) -> Result<Vec<u8>> {
        write::bytes(self, source)
    }

    /// Values with types, shapes, quantization and places, and nodes. As text it is an operator listing.
    pub fn contents(&self) -> PayloadContents {
        contents::contents(self)
    }
}
