//! The operations and the steps that they lower to, one file for each.

pub(crate) mod attention;
pub(crate) mod call;
pub(crate) mod cast;
pub(crate) mod channel_shuffle;
pub(crate) mod conv;
pub(crate) mod conv_chain;
pub(crate) mod conv_pass;
pub(crate) mod global_mean;
pub(crate) mod group_factors;
pub(crate) mod linear;
pub(crate) mod lookup;
pub(crate) mod pointwise;
pub(crate) mod pool;
pub(crate) mod quantize;
pub(crate) mod quantized_conv;
pub(crate) mod quantized_linear;
pub(crate) mod quantized_sum;
pub(crate) mod relayout;
pub(crate) mod row_norm;
pub(crate) mod viewed;

use crate::executable::{Memory, Slot, Source};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{DimOrder, TensorMeta, TensorView, TensorViewMut};
use pteron_trace::{EventTracer, Place, SpanKind, Tracer};
use smallvec::SmallVec;

/// The tensors that a step writes, in the order of its node's outputs.
pub type Writes<'a> = SmallVec<[TensorViewMut<'a>; 2]>;

/// A node lowered for the sizes of its graph, ready to run.
pub trait Step: Send + Sync {
    /// Runs it. `reads` are the inputs that [`crate::Lowered::Step`] names.
    ///
    /// # Errors
    /// The elements are invalid, or there is not enough memory.
    fn run<'a>(&'a self, ctx: &KernelContext<'_>, reads: &[TensorView<'a>], writes: Writes<'a>)
    -> Result<()>;

    /// The reads whose memory the only output may have.
    fn overwritable(&self) -> SmallVec<[usize; 2]> {
        SmallVec::new()
    }

    /// Gives the only output the memory of a read that is [overwritable](Self::overwritable) and has the output's meta.
    /// [`Self::run`] then gets the other reads only, and the output with the elements of this one.
    fn overwrite(&mut self, read: usize, meta: &TensorMeta) {
        let _ = (read, meta);
    }
}

/// The only output of a step.
pub(crate) fn only<'w, 'a>(writes: &'w mut Writes<'a>) -> Result<&'w mut TensorViewMut<'a>> {
    match &mut writes[..] {
        [out] => Ok(out),
        _ => Err(Error::invalid("a node does not have exactly one output")),
    }
}

/// The residual of a step, which is the last tensor that it reads, if `present`.
pub(crate) fn residual<'a>(present: bool, reads: &[TensorView<'a>]) -> Result<Option<&'a [f32]>> {
    let last = reads.last().filter(|_| present);
    Ok(last.map(|r| r.storage::<f32>()).transpose()?)
}

/// A step with its operands.
pub(crate) struct PlacedStep {
    /// The operator's name, or the node kind's.
    pub(crate) name: Box<str>,
    /// The instructions that it implements; its results are those of the last.
    pub(crate) origins: Box<[Place]>,
    /// The outputs that are reported to listeners: those that are used, before any conversion.
    pub(crate) reported: SmallVec<[usize; 2]>,
    pub(crate) step: Box<dyn Step>,
    pub(crate) inputs: SmallVec<[usize; 4]>,
    pub(crate) outputs: SmallVec<[usize; 2]>,
    /// Whether any of these values is a graph output.
    pub(crate) touches_outputs: bool,
}

impl PlacedStep {
    /// The instruction whose result it computes.
    pub(crate) fn origin(&self) -> Place {
        self.origins.last().copied().unwrap_or_default()
    }

    /// Prefixes an error with the name of the step.
    #[cold]
    pub(crate) fn named(&self, error: Error) -> Error {
        Error::invalid(format!("{}: {error}", self.name))
    }

    /// Runs the step and traces it: the span, and the computed values if the listener wants them.
    pub(crate) fn traced(
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
            Some(listener) => self.report(listener, values, &memory),
            None => Ok(()),
        }
    }

    /// Reports the values that the step has computed to a listener.
    #[cold]
    fn report(&self, listener: &dyn EventTracer, values: &[Slot], memory: &Memory<'_, '_>) -> Result<()> {
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
