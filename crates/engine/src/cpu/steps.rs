//! The steps of a graph over a planned workspace.

use super::placed::{Memory, PlacedStep, Slot};
use pteron_operator::{Error, KernelContext, Reservation, Result};
use pteron_tensor::{AlignedBuffer, Arenas, TensorMeta, TensorView, TensorViewMut};
use pteron_trace::{Place, SpanKind, Tracer};
use smallvec::SmallVec;
use std::sync::Arc;

/// The name of the workspaces in errors about an exhausted memory budget.
pub(crate) const WORKSPACE: &str = "its workspaces";

/// Steps in execution order, packed weights, and a workspace with an offset for every value.
pub(crate) struct Steps {
    pub(crate) steps: Arc<[PlacedStep]>,
    pub(crate) values: Arc<[Slot]>,
    /// The indices of the graph's inputs in `values`.
    pub(crate) inputs: Arc<[usize]>,
    pub(crate) outputs: Arc<[usize]>,
    pub(crate) arena: Arenas,
    pub(crate) workspace: usize,
    /// The span kind with which steps are traced.
    pub(crate) kind: SpanKind,
    pub(crate) reservation: Reservation,
    /// The instruction of the last step that was started: after a failed run, of the one that failed or was
    /// interrupted.
    pub(crate) failed: Place,
}

impl Steps {
    /// The same steps and packed weights with a workspace of its own.
    pub(crate) fn fork(&self) -> Result<Self> {
        let reservation = self.reservation.try_clone(WORKSPACE)?;
        let mut arena = Arenas::new();
        arena.push(AlignedBuffer::zeroed_long_lived(self.workspace)?);
        Ok(Self {
            steps: Arc::clone(&self.steps),
            values: Arc::clone(&self.values),
            inputs: Arc::clone(&self.inputs),
            outputs: Arc::clone(&self.outputs),
            arena,
            workspace: self.workspace,
            kind: self.kind,
            reservation,
            failed: Place::default(),
        })
    }

    /// The metas of the inputs, in the order of the graph's inputs.
    pub(crate) fn input_metas(&self) -> SmallVec<[Arc<TensorMeta>; 4]> {
        self.inputs.iter().map(|&v| Arc::clone(&self.values[v].meta)).collect()
    }

    /// Copies of the metas of the outputs, in the order of the graph's outputs.
    pub(crate) fn output_metas(&self) -> SmallVec<[TensorMeta; 2]> {
        self.outputs.iter().map(|&v| TensorMeta::clone(&self.values[v].meta)).collect()
    }

    /// Runs the steps. `inputs` and `outputs` are in the order of the graph's inputs and outputs, and must have their
    /// metas; outputs may have other layouts.
    pub(crate) fn run(
        &mut self,
        ctx: &KernelContext<'_>,
        tracer: Tracer<'_>,
        inputs: &[TensorView<'_>],
        outputs: &mut [TensorViewMut<'_>],
    ) -> Result<()> {
        check_counts([inputs.len(), outputs.len()], [self.inputs.len(), self.outputs.len()])?;
        for (view, &input) in inputs.iter().zip(&*self.inputs) {
            check_input(view.meta(), &self.values[input].meta)?;
        }
        let mut direct: SmallVec<[Option<TensorViewMut<'_>>; 2]> = SmallVec::new();
        for (&v, out) in self.outputs.iter().zip(&mut *outputs) {
            let slot = &self.values[v];
            out.resize(slot.meta.sizes())?;
            direct.push((slot.output.is_some() && slot.matches_layout(out)).then(|| out.reborrow()));
        }
        for step in &*self.steps {
            let memory = Memory { arena: &mut self.arena, inputs, outputs: &mut direct };
            // Set before the step runs, which may unwind.
            self.failed = step.origin();
            if let Err(error) = step.run_traced(ctx, (tracer, self.kind), &self.values, memory) {
                return Err(step.with_step_name(error));
            }
            pteron_pool::checkpoint();
        }
        let is_written: SmallVec<[bool; 2]> = direct.iter().map(Option::is_some).collect();
        drop(direct);
        for ((&v, out), is_written) in self.outputs.iter().zip(outputs).zip(is_written) {
            if !is_written {
                self.values[v].view(inputs, |extent| self.arena.bytes(extent))?.relayout(out)?;
            }
        }
        Ok(())
    }
}

/// Checks the numbers of inputs and outputs.
pub(crate) fn check_counts(given: [usize; 2], expected: [usize; 2]) -> Result<()> {
    match given == expected {
        true => Ok(()),
        false => Err(Error::invalid("the numbers of inputs or outputs differ from the graph's")),
    }
}

/// Checks the element type, sizes and layout of an input.
pub(crate) fn check_input(given: &TensorMeta, expected: &TensorMeta) -> Result<()> {
    let sizes = expected.sizes();
    let same = given.sizes() == sizes && given.dtype() == expected.dtype();
    match same && given.dim_order().same_layout(expected.dim_order(), sizes) {
        true => Ok(()),
        false => {
            Err(Error::invalid(format!("the input is {given}, and the graph was lowered for {expected}")))
        }
    }
}
