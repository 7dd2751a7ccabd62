//! The steps of an executable.

use crate::attention::AttentionStep;
use crate::bind;
use crate::cast;
use crate::executable::{Slot, Source};
use crate::group_factors::GroupFactorsStep;
use crate::node::Call;
use crate::pointwise::Pass;
use crate::product::{ConvStep, LinearStep};
use crate::quantized::QuantizedStep;
use crate::relayout::RelayoutStep;
use crate::window::{GlobalMeanStep, PoolStep};
use operator::{Error, KernelContext, Result};
use smallvec::SmallVec;
use tensor::{Arenas, DimOrder, TensorMeta, TensorView, TensorViewMut};
use trace::{EventTracer, Place, SpanKind, Tracer};

/// A kernel of an executable.
pub(crate) struct Step {
    /// The operator's name, or the node kind's.
    pub(crate) name: Box<str>,
    /// The instruction whose result it computes.
    pub(crate) origin: Place,
    /// Which outputs listeners are told of: those that somebody reads, in the first form in which they exist.
    pub(crate) reported: SmallVec<[usize; 2]>,
    pub(crate) action: Action,
    pub(crate) inputs: SmallVec<[usize; 4]>,
    pub(crate) outputs: SmallVec<[usize; 2]>,
}

/// What a step does.
pub(crate) enum Action {
    Call(Box<Call>),
    Relayout(RelayoutStep),
    Cast,
    Pool(Box<PoolStep>),
    Conv(Box<ConvStep>),
    Linear(Box<LinearStep>),
    Pointwise(Box<Pass>),
    GlobalMean(GlobalMeanStep),
    GroupFactors(GroupFactorsStep),
    Attention(Box<AttentionStep>),
    Quantized(Box<QuantizedStep>),
}

impl Step {
    /// An error with the name of the step it comes from.
    #[cold]
    pub(crate) fn named(&self, error: Error) -> Error {
        Error::invalid(format!("{}: {error}", self.name))
    }

    /// Tells a listener what the step has computed of an instruction's result.
    #[cold]
    pub(crate) fn report(&self, listener: &dyn EventTracer, values: &[Slot], arena: &Arenas) -> Result<()> {
        if self.origin == Place::default() {
            return Ok(());
        }
        for &output in &self.reported {
            let Slot { meta, source: Source::Workspace(extent) } = &values[self.outputs[output]] else {
                continue;
            };
            let tensor = TensorView::new(meta, arena.bytes(*extent)?)?.to_tensor()?;
            let tensor = tensor.to_dim_order(DimOrder::contiguous(meta.rank()))?;
            let (dtype, sizes) = (tensor.dtype().name(), tensor.sizes());
            listener.value(&self.name, self.origin, output, dtype, sizes, tensor.bytes());
        }
        Ok(())
    }

    /// Runs the step and reports it to the tracer: the span, and the values if the listener wants them.
    pub(crate) fn traced(
        &self,
        ctx: &KernelContext<'_>,
        tracer: Tracer<'_>,
        values: &[Slot],
        arena: &mut Arenas,
        inputs: &[TensorView<'_>],
    ) -> Result<()> {
        let started = tracer.start();
        self.run(ctx, values, arena, inputs)?;
        tracer.end(started, SpanKind::Kernel, &self.name, self.origin);
        match tracer.get().filter(|t| t.wants_values()) {
            Some(listener) => self.report(listener, values, arena),
            None => Ok(()),
        }
    }

    fn run(
        &self,
        ctx: &KernelContext<'_>,
        values: &[Slot],
        arena: &mut Arenas,
        inputs: &[TensorView<'_>],
    ) -> Result<()> {
        let mut loan = arena.lend();
        let mut reads: SmallVec<[TensorView<'_>; 4]> = SmallVec::new();
        for &v in &self.inputs {
            reads.push(values[v].view(inputs, |extent| loan.shared(extent))?);
        }
        // A call may resize what it writes; here all sizes are known and stay.
        let mut metas: SmallVec<[TensorMeta; 2]> =
            self.outputs.iter().map(|&v| values[v].meta.clone()).collect();
        let mut writes: SmallVec<[TensorViewMut<'_>; 2]> = SmallVec::new();
        for (&v, meta) in self.outputs.iter().zip(&mut metas) {
            let Source::Workspace(extent) = values[v].source else {
                return Err(Error::invalid("a step writes a value that has no place"));
            };
            writes.push(TensorViewMut::new(meta, loan.exclusive(extent)?)?);
        }
        if let Action::Call(call) = &self.action {
            return bind::execute(call, ctx, &reads, writes);
        }
        if let Action::GroupFactors(step) = &self.action {
            return step.run(ctx, &reads, &mut writes);
        }
        let [out] = &mut writes[..] else { return Err(Error::invalid("a node without its one output")) };
        match &self.action {
            Action::Call(_) | Action::GroupFactors(_) => {}
            Action::Relayout(step) => step.run(ctx, &reads[0], out)?,
            Action::Cast => cast::run(ctx, &reads[0], out)?,
            Action::Pool(step) => step.run(ctx, &reads[0], out)?,
            Action::Conv(step) => step.run(ctx, &reads, out)?,
            Action::Linear(step) => step.run(ctx, &reads, out)?,
            Action::Attention(step) => step.run(ctx, &reads, out)?,
            Action::Quantized(step) => step.run(ctx, &reads[0], out)?,
            Action::Pointwise(pass) => pass.run_all(ctx, &reads, out)?,
            Action::GlobalMean(step) => step.run(&reads[0], out)?,
        }
        Ok(())
    }
}
