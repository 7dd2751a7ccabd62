//! Memory that methods lend each other, and methods that are replaced on new data.

use super::Method;
use crate::Result;
use crate::plan::{Storage, Value};
use pteron_format::pte::TensorData;
use pteron_tensor::{AlignedBuffer, Extent};

impl Method {
    /// Swaps the leading planned arenas with `buffers`, as many as there are of both. A module uses this to let its
    /// methods share memory in turn.
    pub(crate) fn swap_memory(&mut self, buffers: &mut [AlignedBuffer]) {
        for (i, buffer) in buffers.iter_mut().enumerate().take(self.planned_arenas) {
            if let Some(arena) = self.state.arenas.arena_mut(i) {
                std::mem::swap(arena, buffer);
            }
        }
    }

    /// Gives the leading planned arenas up for `buffers`, which a module lends to this method and others, and copies
    /// the initial values of the method's tensors into `buffers`. These must be at least as large as the arenas.
    pub(crate) fn move_memory(&mut self, buffers: &mut [AlignedBuffer]) -> Result<()> {
        for extent in self
            .extents_with_data(|data| matches!(data, TensorData::Initial(_) | TensorData::ExternalInitial(_)))
        {
            if let Some(buffer) = buffers.get_mut(extent.arena).filter(|_| extent.arena < self.planned_arenas)
                && let Some(to) = buffer.get_mut(extent.offset..extent.offset.saturating_add(extent.len))
            {
                to.copy_from_slice(self.state.arenas.bytes(extent)?);
            }
        }
        let mut swapped: Vec<AlignedBuffer> = buffers.iter().map(|_| AlignedBuffer::default()).collect();
        self.swap_memory(&mut swapped);
        Ok(())
    }

    /// The extents of tensors whose initial values come from external data.
    fn extents_initialized_by_data(&self) -> impl Iterator<Item = Extent> {
        self.extents_with_data(|data| matches!(data, TensorData::ExternalInitial(_)))
    }

    /// The arena extents of the tensors whose data satisfies `chosen`.
    fn extents_with_data(&self, chosen: impl Fn(&TensorData<'_>) -> bool) -> impl Iterator<Item = Extent> {
        let tables = self.program.tables();
        let values = tables.execution_plan[self.plan].values.iter().zip(&self.state.values);
        values.filter_map(move |(value, state)| match state.tensor()?.home {
            Storage::Arena(extent) if chosen(&tables.tensor_data(value.as_tensor()?)) => Some(extent),
            _ => None,
        })
    }

    /// Fails unless [`Self::replace_by`] can replace this method by `new`.
    pub(crate) fn check_replaceable_by(&self, new: &Method) -> Result<()> {
        for extent in new.extents_initialized_by_data() {
            new.state.arenas.bytes(extent)?;
            self.state.arenas.bytes(extent)?;
        }
        Ok(())
    }

    /// Replaces this method by `new`, the same method loaded on other data, and keeps the mutable state, except for
    /// tensors whose initial values come from the data. Both methods must have the arenas of their plan.
    pub(crate) fn replace_by(&mut self, mut new: Method) -> Result<()> {
        for extent in new.extents_initialized_by_data() {
            let fresh = new.state.arenas.bytes(extent)?;
            self.state.arenas.bytes_mut(extent)?.copy_from_slice(fresh);
        }
        // Constants come from the new data, including those that were folded.
        for (old, fresh) in self.state.values.iter_mut().zip(&mut new.state.values) {
            let constant = |v: &Value| v.tensor().is_some_and(|t| matches!(t.home, Storage::Constant(_)));
            if !constant(old) && !constant(fresh) {
                std::mem::swap(old, fresh);
            }
        }
        std::mem::swap(&mut self.state.arenas, &mut new.state.arenas);
        std::mem::swap(&mut self.input_set, &mut new.input_set);
        std::mem::swap(&mut self.generator, &mut new.generator);
        std::mem::swap(&mut self.tracer, &mut new.tracer);
        std::mem::swap(&mut self.interrupt, &mut new.interrupt);
        *self = new;
        Ok(())
    }
}
