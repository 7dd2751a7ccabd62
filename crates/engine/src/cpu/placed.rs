//! Steps with their operands, and the memory of a run.

use super::step::{Step, Writes};
use crate::graph::Constant;
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{Arenas, DimOrder, Extent, TensorMeta, TensorView, TensorViewMut};
use pteron_trace::{EventTracer, Place, SpanKind, Tracer};
use smallvec::SmallVec;
use std::sync::Arc;

/// The alignment, in bytes, of output memory that steps write directly: the size of the widest element type.
const OUTPUT_ALIGNMENT: usize = 16;

/// A value at run time: its meta, and where its bytes are stored.
pub(crate) struct Slot {
    pub(crate) meta: Arc<TensorMeta>,
    pub(crate) source: Source,
    /// The index of the graph output that holds this value, if there is exactly one. In a run whose output tensor has
    /// the value's layout, the value is stored there instead of the workspace.
    pub(crate) output: Option<usize>,
}

/// The memory of one run.
pub(crate) struct Memory<'r, 'a> {
    pub(crate) arena: &'r mut Arenas,
    pub(crate) inputs: &'r [TensorView<'r>],
    /// The output tensors; `None` for outputs that steps do not write directly.
    pub(crate) outputs: &'r mut [Option<TensorViewMut<'a>>],
}

/// The storage of a value.
pub(crate) enum Source {
    /// The value is stored in the workspace.
    Workspace(Extent),
    /// A constant that a step reads unpacked.
    Constant(Constant),
    /// The caller's input with this index.
    Input(usize),
    /// The value has no storage: it is only used in packed form, or not at all.
    None,
}

impl Slot {
    /// Whether a tensor of the same sizes has the value's element type and layout, and memory aligned for any element
    /// type.
    pub(crate) fn matches_layout(&self, out: &TensorViewMut<'_>) -> bool {
        out.dtype() == self.meta.dtype()
            && self.meta.dim_order().same_layout(out.dim_order(), self.meta.sizes())
            && out.bytes().as_ptr().align_offset(OUTPUT_ALIGNMENT) == 0
    }

    /// The value as a tensor; `lent` returns the bytes of a workspace extent.
    pub(crate) fn view<'a>(
        &'a self,
        inputs: &[TensorView<'a>],
        lent: impl FnOnce(Extent) -> pteron_tensor::Result<&'a [u8]>,
    ) -> Result<TensorView<'a>> {
        let bytes = match &self.source {
            Source::Workspace(extent) => lent(*extent)?,
            Source::Constant(constant) => {
                let bytes = constant.bytes().get(..self.meta.nbytes());
                bytes.ok_or_else(|| Error::invalid("a constant has fewer bytes than its shape needs"))?
            }
            Source::Input(i) => inputs[*i].bytes(),
            Source::None => return Err(Error::invalid("a step reads a value that no step computes")),
        };
        Ok(TensorView::new(&self.meta, bytes)?)
    }
}

/// A step with its operands.
pub(crate) struct PlacedStep {
    /// The name of the operator or, for other kinds of node, of the kind.
    pub(crate) name: Box<str>,
    /// The instructions that the step implements; the step's results are those of the last one.
    pub(crate) origins: Box<[Place]>,
    /// The indices of the outputs that are reported to listeners: those in use; none if the step only converts a value.
    pub(crate) reported: SmallVec<[usize; 2]>,
    pub(crate) step: Box<dyn Step>,
    pub(crate) inputs: SmallVec<[usize; 4]>,
    pub(crate) outputs: SmallVec<[usize; 2]>,
    /// Whether an operand of the step is a graph output.
    pub(crate) touches_outputs: bool,
}

impl PlacedStep {
    /// The instruction whose result the step computes.
    pub(crate) fn origin(&self) -> Place {
        self.origins.last().copied().unwrap_or_default()
    }

    /// Prefixes an error with the name of the step.
    #[cold]
    pub(crate) fn with_step_name(&self, error: Error) -> Error {
        Error::invalid(format!("{}: {error}", self.name))
    }

    /// Runs the step and traces it: the span, and the computed values if the listener wants them.
    pub(crate) fn run_traced(
        &self,
        ctx: &KernelContext<'_>,
        (tracer, kind): (Tracer<'_>, SpanKind),
        values: &[Slot],
        mut memory: Memory<'_, '_>,
    ) -> Result<()> {
        let started = tracer.start();
        self.run(ctx, values, &mut memory)?;
        tracer.end(started, kind, &self.name, self.origin());
        match tracer.get().filter(|t| t.wants_values()) {
            Some(listener) => self.report_outputs(listener, values, &memory),
            None => Ok(()),
        }
    }

    /// Reports the values that the step has computed to a listener.
    #[cold]
    fn report_outputs(
        &self,
        listener: &dyn EventTracer,
        values: &[Slot],
        memory: &Memory<'_, '_>,
    ) -> Result<()> {
        if self.origin() == Place::default() {
            return Ok(());
        }
        for &output in &self.reported {
            let Slot { meta, source: Source::Workspace(extent), output: of } = &values[self.outputs[output]]
            else {
                continue;
            };
            let bytes = match of.and_then(|i| memory.outputs[i].as_ref()) {
                Some(out) => out.bytes(),
                None => memory.arena.bytes(*extent)?,
            };
            let tensor = TensorView::new(meta, bytes)?.to_tensor()?;
            let tensor = tensor.to_dim_order(DimOrder::contiguous(meta.rank()))?;
            let (dtype, sizes) = (tensor.dtype().name(), tensor.sizes());
            listener.value(&self.name, self.origin(), output, dtype, sizes, tensor.bytes());
        }
        Ok(())
    }

    fn run(&self, ctx: &KernelContext<'_>, values: &[Slot], memory: &mut Memory<'_, '_>) -> Result<()> {
        let mut loan = memory.arena.lend();
        // A graph output is written by one step and read by others, each through its own borrow.
        let mut lent: SmallVec<[Option<&mut TensorViewMut<'_>>; 2]> = SmallVec::new();
        let mut written: SmallVec<[Option<&mut TensorViewMut<'_>>; 2]> = SmallVec::new();
        if self.touches_outputs {
            lent.extend(memory.outputs.iter_mut().map(Option::as_mut));
            written.extend(self.outputs.iter().map(|&v| values[v].output.and_then(|i| lent[i].take())));
        }
        let mut reads: SmallVec<[TensorView<'_>; 4]> = SmallVec::new();
        for &v in &self.inputs {
            let slot = &values[v];
            let out = slot.output.and_then(|i| lent.get(i)?.as_deref());
            reads.push(match out {
                Some(out) => TensorView::new(&slot.meta, out.bytes())?,
                None => slot.view(memory.inputs, |extent| loan.shared(extent))?,
            });
        }
        // Steps write through copies of the metas: a kernel may resize its outs, but the sizes of a graph are static.
        let mut metas: SmallVec<[TensorMeta; 2]> = SmallVec::new();
        for &v in &self.outputs {
            metas.push(TensorMeta::clone(&values[v].meta));
        }
        let mut writes = Writes::new();
        for (i, (&v, meta)) in self.outputs.iter().zip(&mut metas).enumerate() {
            let bytes = match (written.get_mut(i).and_then(Option::take), &values[v].source) {
                (Some(out), _) => out.bytes_mut(),
                (None, Source::Workspace(extent)) => loan.exclusive(*extent)?,
                _ => return Err(Error::invalid("a step writes a value that has no storage")),
            };
            writes.push(TensorViewMut::new(meta, bytes)?);
        }
        self.step.run(ctx, &reads, writes)
    }
}
