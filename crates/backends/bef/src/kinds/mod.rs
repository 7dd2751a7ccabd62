//! Serialization of operations: how payloads write and read each of them.
//!
//! An operation in payloads is a type that implements [`Stored`], with a row of [`KINDS`]. Whether a node can run is
//! the operation's own rule ([`pteron_engine::check_node`]), which holds for nodes from passes and from payloads.

mod element;
mod image;
mod layout;
mod matmul;
mod norm;
mod quantized;
mod text;

use crate::error::{Result, fail};
use crate::payload::{Fields, Record};
use pteron_engine::{Graph, Kind, NodeId, OpKind, Operation};
use std::any::Any;
use std::sync::Arc;

/// An operation that payloads can contain.
trait Stored: Operation + Sized {
    /// The name of the operation's kernel in the BEF file.
    const KERNEL: &'static str;

    /// Writes the operation's attributes.
    fn write(&self, record: &mut Record);

    /// Reads the operation's attributes. Sizes may be any integers from 0 to 2^31 - 1.
    fn read(fields: &Fields<'_>) -> Result<Self>;

    /// Checks the elements of constants that the operation relies on. Their types and sizes have been checked before.
    fn check_elements(&self, graph: &Graph, node: NodeId) -> Result<()> {
        let _ = (graph, node);
        Ok(())
    }
}

/// The serialization of an operation.
struct Row {
    kernel: &'static str,
    write: fn(&dyn Any) -> Option<Record>,
    read: fn(&Fields<'_>) -> Result<Arc<dyn Kind>>,
    check_elements: fn(&dyn Any, &Graph, NodeId) -> Option<Result<()>>,
}

const fn row<K: Stored>() -> Row {
    Row {
        kernel: K::KERNEL,
        write: |operation| {
            let mut record = Record::default();
            operation.downcast_ref::<K>()?.write(&mut record);
            Some(record)
        },
        read: |fields| Ok(OpKind::arc(K::read(fields)?)),
        check_elements: |operation, graph, node| {
            Some(operation.downcast_ref::<K>()?.check_elements(graph, node))
        },
    }
}

/// All operations that payloads can contain.
const KINDS: &[Row] = &[
    row::<pteron_engine::Attention>(),
    row::<pteron_engine::Cast>(),
    row::<pteron_engine::ChannelShuffle>(),
    row::<pteron_engine::ConvPass>(),
    row::<pteron_engine::Convolution>(),
    row::<pteron_engine::Dequantize>(),
    row::<pteron_engine::GlobalMean>(),
    row::<pteron_engine::GroupFactors>(),
    row::<pteron_engine::Linear>(),
    row::<pteron_engine::Lookup>(),
    row::<pteron_engine::Permute>(),
    row::<pteron_engine::Pointwise>(),
    row::<pteron_engine::Pool>(),
    row::<pteron_engine::Quantize>(),
    row::<pteron_engine::QuantizedConvolution>(),
    row::<pteron_engine::QuantizedLinear>(),
    row::<pteron_engine::QuantizedProduct>(),
    row::<pteron_engine::Relayout>(),
    row::<pteron_engine::Reshape>(),
    row::<pteron_engine::RowNorm>(),
    row::<pteron_engine::SumOfQuantized>(),
];

/// The kernel and attributes of a node kind. `None` if payloads cannot contain it.
pub(crate) fn write(kind: &dyn Kind) -> Option<(&'static str, Record)> {
    let operation: &dyn Any = kind.downcast_ref::<OpKind>()?.operation();
    KINDS.iter().find_map(|row| Some((row.kernel, (row.write)(operation)?)))
}

/// The node kind of a kernel with these attributes.
pub(crate) fn read(kernel: &str, fields: &Fields<'_>) -> Result<Arc<dyn Kind>> {
    match KINDS.iter().find(|row| row.kernel == kernel) {
        Some(row) => (row.read)(fields),
        None => fail("payloads have no kernel with this name"),
    }
}

/// Checks a node from a payload.
pub(crate) fn check(graph: &Graph, node: NodeId) -> Result<()> {
    let Some(fused) = graph.node(node).kind_as::<OpKind>() else { return Ok(()) };
    pteron_engine::check_node(graph, node)?;
    let operation: &dyn Any = fused.operation();
    match KINDS.iter().find_map(|row| (row.check_elements)(operation, graph, node)) {
        Some(outcome) => outcome,
        None => fail("payloads cannot contain this kind of node"),
    }
}
