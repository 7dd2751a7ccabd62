//! Serialization of operations: how payloads write, read and check each of them.
//!
//! An operation in payloads is a type that implements [`Stored`], with a row of [`KINDS`]. Nodes from passes are valid
//! by construction; those from a payload are checked before they are used.

mod element;
mod image;
mod layout;
mod norm;
mod product;
mod quantized;
mod words;

use crate::error::{Error, Result, fail};
use crate::payload::{Fields, Record};
use graph::{Fused, Graph, Kind, NodeId, Operation};
use std::any::Any;
use std::sync::Arc;
use tensor::{ScalarType, TensorMeta};

/// An operation that payloads can contain.
trait Stored: Operation + Sized {
    /// The name of its kernel in the BEF file.
    const KERNEL: &'static str;

    /// Writes its attributes.
    fn write(&self, record: &mut Record);

    /// Reads its attributes. Sizes may be any integers below 2^31.
    fn read(fields: &Fields<'_>) -> Result<Self>;

    /// Checks that a node can run: that its operands have the number, types and sizes that the step assumes. Layouts
    /// are checked separately.
    fn check(&self, operands: &Operands<'_>) -> Result<()>;
}

/// The operands and results of a node.
struct Operands<'g> {
    graph: &'g Graph,
    node: NodeId,
}

impl<'g> Operands<'g> {
    fn input(&self, i: usize) -> Result<&'g TensorMeta> {
        let value = self.graph.node(self.node).inputs().get(i);
        value.map(|&v| self.graph.meta(v)).ok_or_else(|| Error::new("too few operands"))
    }

    fn inputs(&self) -> Vec<&'g TensorMeta> {
        self.graph.node(self.node).inputs().iter().map(|&v| self.graph.meta(v)).collect()
    }

    /// An input, which must be a constant.
    fn constant(&self, i: usize) -> Result<&'g TensorMeta> {
        let meta = self.input(i)?;
        match self.graph.is_constant(self.graph.node(self.node).inputs()[i]) {
            true => Ok(meta),
            false => fail(format!("operand {i} is not a constant")),
        }
    }

    fn output(&self, i: usize) -> Result<&'g TensorMeta> {
        let value = self.graph.node(self.node).outputs().get(i);
        value.map(|&v| self.graph.meta(v)).ok_or_else(|| Error::new("too few results"))
    }

    /// Checks the numbers of operands and results.
    fn count(&self, inputs: usize, outputs: usize) -> Result<()> {
        let node = self.graph.node(self.node);
        let found = (node.inputs().len(), node.outputs().len());
        if found == (inputs, outputs) {
            return Ok(());
        }
        fail(format!("{} operands and {} results, expected {inputs} and {outputs}", found.0, found.1))
    }

    fn is_not_float(&self, meta: &TensorMeta) -> bool {
        meta.dtype() != ScalarType::Float
    }

    /// Checks that all operands and results are float32.
    fn all_floats(&self) -> Result<()> {
        let node = self.graph.node(self.node);
        let mut all = node.inputs().iter().chain(node.outputs()).map(|&v| self.graph.meta(v));
        match all.find(|meta| self.is_not_float(meta)) {
            Some(meta) => fail(format!("{meta} where float32 is expected")),
            None => Ok(()),
        }
    }

    /// Checks that an operand is a float32 constant with `len` elements.
    fn vector(&self, i: usize, len: usize) -> Result<()> {
        let meta = self.constant(i)?;
        match meta.numel() == len && !self.is_not_float(meta) {
            true => Ok(()),
            false => fail(format!("operand {i} is {meta}, expected {len} constants of float32")),
        }
    }

    /// Checks that the values of an `i8` constant fit 4 bits.
    fn four_bit_values(&self, i: usize) -> Result<()> {
        let value = self.graph.node(self.node).inputs()[i];
        let view =
            self.graph.view(value).ok_or_else(|| Error::new("the bytes of the weights cannot be loaded"))?;
        match view.storage::<i8>()?.iter().all(|number| (-8..8).contains(number)) {
            true => Ok(()),
            false => fail("4-bit weights are outside of -8..=7"),
        }
    }

    /// Checks that an operand has the type and sizes of the result.
    fn same_as_output(&self, i: usize) -> Result<()> {
        let (meta, out) = (self.input(i)?, self.output(0)?);
        match meta.dtype() == out.dtype() && meta.sizes() == out.sizes() {
            true => Ok(()),
            false => fail(format!("operand {i} is {meta}, the result {out}")),
        }
    }

    /// Checks the residual, which is the last operand, if `present`.
    fn residual(&self, present: bool) -> Result<()> {
        let last = self.graph.node(self.node).inputs().len().saturating_sub(1);
        if present { self.same_as_output(last) } else { Ok(()) }
    }

    /// Checks that an operand is float32 and broadcasts to the result.
    fn broadcasts(&self, i: usize) -> Result<()> {
        let (meta, out) = (self.input(i)?, self.output(0)?);
        let lead = out.rank().checked_sub(meta.rank());
        let fits = |lead: usize| {
            let sizes = meta.sizes().iter().zip(&out.sizes()[lead..]);
            sizes.into_iter().all(|(from, to)| from == to || *from == 1)
        };
        match lead.is_some_and(fits) && !self.is_not_float(meta) {
            true => Ok(()),
            false => fail(format!("operand {i}, {meta}, does not broadcast to {out}")),
        }
    }
}

/// The serialization of an operation.
struct Row {
    kernel: &'static str,
    write: fn(&dyn Any) -> Option<Record>,
    read: fn(&Fields<'_>) -> Result<Arc<dyn Kind>>,
    check: fn(&dyn Any, &Operands<'_>) -> Option<Result<()>>,
}

const fn row<K: Stored>() -> Row {
    Row {
        kernel: K::KERNEL,
        write: |operation| {
            let mut record = Record::default();
            operation.downcast_ref::<K>()?.write(&mut record);
            Some(record)
        },
        read: |fields| Ok(Fused::kind(K::read(fields)?)),
        check: |operation, operands| Some(operation.downcast_ref::<K>()?.check(operands)),
    }
}

/// All operations that payloads can contain.
const KINDS: &[Row] = &[
    row::<graph::Attention>(),
    row::<graph::Cast>(),
    row::<graph::ChannelShuffle>(),
    row::<graph::ConvPass>(),
    row::<graph::Convolution>(),
    row::<graph::Dequantize>(),
    row::<graph::GlobalMean>(),
    row::<graph::GroupFactors>(),
    row::<graph::Linear>(),
    row::<graph::Lookup>(),
    row::<graph::Permute>(),
    row::<graph::Pointwise>(),
    row::<graph::Pool>(),
    row::<graph::Quantize>(),
    row::<graph::QuantizedConvolution>(),
    row::<graph::QuantizedLinear>(),
    row::<graph::Relayout>(),
    row::<graph::Reshape>(),
    row::<graph::RowNorm>(),
    row::<graph::SumOfQuantized>(),
];

/// The kernel and attributes of a node kind. `None` if payloads cannot contain it.
pub(crate) fn write(kind: &dyn Kind) -> Option<(&'static str, Record)> {
    let operation: &dyn Any = kind.downcast_ref::<Fused>()?.operation();
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
    let Some(fused) = graph.node(node).kind_as::<Fused>() else { return Ok(()) };
    let operation: &dyn Any = fused.operation();
    let operands = Operands { graph, node };
    match KINDS.iter().find_map(|row| (row.check)(operation, &operands)) {
        Some(outcome) => outcome?,
        None => return fail("payloads cannot contain this kind of node"),
    }
    Ok(graph::check_layout(graph, node)?)
}
