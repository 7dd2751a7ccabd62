//! A graph ready to run: its steps, for the whole tensors or for a part of the batch at a time.

use super::parts::Parts;
use super::steps::Steps;
use pteron_operator::{KernelContext, Result};
use pteron_tensor::{TensorView, TensorViewMut};
use pteron_trace::{Place, SpanKind, Tracer};

/// A graph ready to run: steps in execution order, packed weights, and workspaces.
pub struct Executable(pub(super) Body);

pub(super) enum Body {
    /// Each step computes its result for all rows of the batch.
    Whole(Steps),
    /// All steps run for a part of the batch before they run for the next.
    Parts(Parts),
}

impl Executable {
    /// An executable that shares the steps and their packed weights, with its own workspace.
    pub fn fork(&self) -> Result<Self> {
        Ok(Self(match &self.0 {
            Body::Whole(steps) => Body::Whole(steps.fork()?),
            Body::Parts(parts) => Body::Parts(parts.fork()?),
        }))
    }

    /// Marks the executable as a delegate's: its steps are traced as [`SpanKind::DelegateStep`], within the delegate's
    /// call.
    #[must_use]
    pub fn traced_as_delegate(mut self) -> Self {
        match &mut self.0 {
            Body::Whole(steps) => steps.kind = SpanKind::DelegateStep,
            Body::Parts(parts) => parts.trace_as(SpanKind::DelegateStep),
        }
        self
    }

    /// The size of the workspaces in bytes.
    pub fn workspace_bytes(&self) -> usize {
        match &self.0 {
            Body::Whole(steps) => steps.workspace,
            Body::Parts(parts) => parts.workspace_bytes(),
        }
    }

    /// The number of steps.
    pub fn num_steps(&self) -> usize {
        self.steps().len()
    }

    /// The steps in order, each with its name and the instructions that it implements; a step computes the result of
    /// the last of them.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = (&str, &[Place])> {
        let steps = match &self.0 {
            Body::Whole(steps) => &steps.steps,
            Body::Parts(parts) => parts.steps(),
        };
        steps.iter().map(|step| (&*step.name, &*step.origins))
    }

    /// After a run that failed or was interrupted, the instruction of the step at which it stopped, if the graph
    /// records instructions.
    pub fn failed_at(&self) -> Place {
        match &self.0 {
            Body::Whole(steps) => steps.failed,
            Body::Parts(parts) => parts.failed_at(),
        }
    }

    /// Runs the steps. `inputs` and `outputs` are in the order of the graph's inputs and outputs, and must have their
    /// metas; outputs may have other layouts.
    pub fn run(
        &mut self,
        ctx: &KernelContext<'_>,
        tracer: Tracer<'_>,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<()> {
        match &mut self.0 {
            Body::Whole(steps) => steps.run(ctx, tracer, inputs, outputs),
            Body::Parts(parts) => parts.run(ctx, tracer, inputs, outputs),
        }
    }
}
