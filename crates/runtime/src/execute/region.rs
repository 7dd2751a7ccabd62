//! Running lowered regions.

use super::call::{ArgList, Callable, OutList};
use crate::backend::at_node;
use crate::error::ExecuteError;
use crate::plan::State;
use crate::prepare::region::Lowered;
use pteron_engine::Executable;
use pteron_operator::{Arg, KernelContext, Out, Scratch};
use pteron_tensor::{TensorView, TensorViewMut};
use pteron_trace::Tracer;
use smallvec::SmallVec;

impl Lowered {
    /// Runs the region as [`Self::run`] does. An error has the index of the failed instruction and the delegate's node.
    pub(super) fn run_at(
        &mut self,
        state: &mut State,
        scratch: &Scratch,
        ctx: &KernelContext<'_>,
        tracer: Tracer<'_>,
        start: usize,
    ) -> Result<(), (usize, ExecuteError)> {
        self.run(state, scratch, ctx, tracer).map_err(|error| {
            let place = self.executable.failed_at();
            let error = match error {
                ExecuteError::Kernel(error) if place.node.is_some() => at_node(place, error.into()).into(),
                error => error,
            };
            (place.instruction.map_or(start, |i| i as usize), error)
        })
    }

    /// Runs the region on the table of values, and updates the table as the region's instructions would have done.
    fn run(
        &mut self,
        state: &mut State,
        scratch: &Scratch,
        ctx: &KernelContext<'_>,
        tracer: Tracer<'_>,
    ) -> Result<(), ExecuteError> {
        let bound = BoundRegion { executable: &mut self.executable, ctx, tracer };
        state.call(&self.args, &self.outs, &[], scratch, bound)?;
        for (id, sizes) in &self.sizes {
            if let Some(t) = state.values[*id].tensor_mut() {
                t.meta.resize(sizes)?;
            }
        }
        for &(id, scalar) in &self.scalars {
            state.values[id] = scalar.into();
        }
        self.views.iter().try_for_each(|(to, of, sizes)| state.make_view(*to, *of, sizes))
    }
}

struct BoundRegion<'a> {
    executable: &'a mut Executable,
    ctx: &'a KernelContext<'a>,
    tracer: Tracer<'a>,
}

impl Callable for BoundRegion<'_> {
    fn call<'x>(self, args: ArgList<'x>, outs: OutList<'x>) -> Result<OutList<'x>, ExecuteError>
    where
        Self: 'x,
    {
        let inputs: SmallVec<[TensorView<'_>; 8]> =
            args.iter().filter_map(|a| if let Arg::Tensor(t) = a { Some(*t) } else { None }).collect();
        let mut outputs: SmallVec<[TensorViewMut<'_>; 4]> =
            outs.into_iter().filter_map(|o| if let Out::Tensor(t) = o { Some(t) } else { None }).collect();
        self.executable.run(self.ctx, self.tracer, &inputs, &mut outputs)?;
        Ok(outputs.into_iter().map(Out::Tensor).collect())
    }
}
