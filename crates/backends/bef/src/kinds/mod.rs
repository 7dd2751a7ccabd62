//! The graph's own kinds of node, as payloads hold them: how each is written, read and checked.
//!
//! A kind is a type that implements [`Stored`] and a row of [`KINDS`]. Passes make nodes whose operands fit; those of a
//! payload are checked before anything looks at them.

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

/// A kind of node that payloads hold.
trait Stored: Operation + Sized {
    /// Its kernel.
    const KERNEL: &'static str;

    /// Writes what it is.
    fn write(&self, record: &mut Record);

    /// Reads it. Sizes are any numbers below 2^31.
    fn read(fields: &Fields<'_>) -> Result<Self>;

    /// Whether a node of it can run: its operands are as many as they must be, of the types and sizes that the step
    /// takes for granted. How they lie is checked elsewhere.
    fn check(&self, operands: &Operands<'_>) -> Result<()>;
}

/// What a node reads and writes.
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

    /// An input whose bytes are known.
    fn constant(&self, i: usize) -> Result<&'g TensorMeta> {
        let meta = self.input(i)?;
        match self.graph.is_constant(self.graph.node(self.node).inputs()[i]) {
            true => Ok(meta),
            false => fail(format!("operand {i} is no constant")),
        }
    }

    fn output(&self, i: usize) -> Result<&'g TensorMeta> {
        let value = self.graph.node(self.node).outputs().get(i);
        value.map(|&v| self.graph.meta(v)).ok_or_else(|| Error::new("too few results"))
    }

    /// Fails if there are other numbers of operands and results.
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

    /// Fails if an operand or a result is not of float32.
    fn all_floats(&self) -> Result<()> {
        let node = self.graph.node(self.node);
        let mut all = node.inputs().iter().chain(node.outputs()).map(|&v| self.graph.meta(v));
        match all.find(|meta| self.is_not_float(meta)) {
            Some(meta) => fail(format!("{meta} where float32 is expected")),
            None => Ok(()),
        }
    }

    /// Fails if an operand is no constant of so many float32.
    fn vector(&self, i: usize, len: usize) -> Result<()> {
        let meta = self.constant(i)?;
        match meta.numel() == len && !self.is_not_float(meta) {
            true => Ok(()),
            false => fail(format!("operand {i} is {meta}, expected {len} constants of float32")),
        }
    }

    /// Fails if a constant of `i8` has numbers that do not fit four bits.
    fn small_numbers(&self, i: usize) -> Result<()> {
        let value = self.graph.node(self.node).inputs()[i];
        let view = self.graph.view(value).ok_or_else(|| Error::new("weights without bytes"))?;
        match view.storage::<i8>()?.iter().all(|number| (-8..8).contains(number)) {
            true => Ok(()),
            false => fail("weights of four bits that are not -8 to 7"),
        }
    }

    /// Fails if an operand is not of the type and the sizes of the result.
    fn same_as_output(&self, i: usize) -> Result<()> {
        let (meta, out) = (self.input(i)?, self.output(0)?);
        match meta.dtype() == out.dtype() && meta.sizes() == out.sizes() {
            true => Ok(()),
            false => fail(format!("operand {i} is {meta}, the result {out}")),
        }
    }

    /// Checks the residual, the last operand, if there is one.
    fn residual(&self, there: bool) -> Result<()> {
        let last = self.graph.node(self.node).inputs().len().saturating_sub(1);
        if there { self.same_as_output(last) } else { Ok(()) }
    }

    /// Fails if an operand is not of float32, or of sizes that do not broadcast to those of the result.
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

/// How a kind is stored.
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

/// The kinds.
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

/// The kernel of a kind and its attributes. `None` if payloads do not hold it.
pub(crate) fn write(kind: &dyn Kind) -> Option<(&'static str, Record)> {
    let operation: &dyn Any = kind.downcast_ref::<Fused>()?.operation();
    KINDS.iter().find_map(|row| Some((row.kernel, (row.write)(operation)?)))
}

/// The kind of a kernel with these attributes.
pub(crate) fn read(kernel: &str, fields: &Fields<'_>) -> Result<Arc<dyn Kind>> {
    match KINDS.iter().find(|row| row.kernel == kernel) {
        Some(row) => (row.read)(fields),
        None => fail("no kernel of payloads has this name"),
    }
}

/// Checks a node that was read.
pub(crate) fn check(graph: &Graph, node: NodeId) -> Result<()> {
    let Some(fused) = graph.node(node).kind_as::<Fused>() else { return Ok(()) };
    let operation: &dyn Any = fused.operation();
    let operands = Operands { graph, node };
    match KINDS.iter().find_map(|row| (row.check)(operation, &operands)) {
        Some(outcome) => outcome?,
        None => return fail("no payload holds this kind of node"),
    }
    Ok(graph::check_layout(graph, node)?)
}
