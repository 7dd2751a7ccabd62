//! Making the delegates of a method.

use super::Loader;
use crate::backend::{BackendInitContext, BackendMemory, CallArguments, CompileSpec, DelegateEntry, guarded};
use crate::convert::usize_of;
use crate::limits::memory_limit_error;
use crate::open::{CountedDataMap, MergedDataMap, PteDataMap};
use crate::{BackendError, BackendOptions, Error, FreeableBuffer, NamedDataMap, Purpose, Result};
use pteron_format::pte;
use pteron_operator::Kernel;
use pteron_trace::Tracer;
use std::sync::Arc;

impl Loader<'_> {
    /// Creates the delegates, in the order of the plan.
    pub(super) fn load_delegates(
        &mut self,
        tracer: Tracer<'_>,
        kernels: &[Option<Arc<dyn Kernel>>],
    ) -> Result<Vec<DelegateEntry>> {
        if self.plan.delegates.is_empty() {
            return Ok(Vec::new());
        }
        let mut alignments = crate::open::own_data::alignments(self.program, self.name)?;
        let own = PteDataMap::new(self.program.clone());
        let mut maps: Vec<Arc<dyn NamedDataMap>> = self.options.data.iter().cloned().collect();
        if !self.program.tables().named_data.is_empty() {
            maps.push(Arc::new(own));
        }
        let named_data = match maps.len() {
            0 => None,
            _ => {
                let aligned = std::mem::take(&mut alignments.data);
                Some(CountedDataMap::new(MergedDataMap::new(maps)?, self.budget.clone(), aligned))
            }
        };
        let named_data = named_data.as_ref().map(|m| m as &dyn NamedDataMap);
        let (plan, program) = (self.plan, self.program);
        let data = |t| program.tables().tensor_data(t);
        let calls = CallArguments::first_calls(plan, &self.state, kernels, data);
        let mut entries = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            let alignment = u32::try_from(index).ok().and_then(|index| alignments.payloads.get(&index));
            let alignment = alignment.map_or(Ok(1), |&alignment| usize_of(alignment))?;
            entries.push(self.load_delegate(index, call.as_ref(), alignment, named_data, tracer)?);
        }
        Ok(entries)
    }

    /// Creates a delegate. `call` is its first call, `alignment` the alignment of its payload in memory, in bytes.
    fn load_delegate(
        &mut self,
        index: usize,
        call: Option<&CallArguments<'_>>,
        alignment: usize,
        named_data: Option<&dyn NamedDataMap>,
        tracer: Tracer<'_>,
    ) -> Result<DelegateEntry> {
        let delegate = &self.plan.delegates[index];
        let backend = self
            .options
            .backends
            .get(&delegate.id)
            .ok_or_else(|| self.error(format!("delegate {index}"), "its backend is not registered"))?;
        let processed = self.load_payload(delegate)?;
        let processed =
            processed.aligned(alignment, "its aligned payloads", &self.budget).map_err(memory_limit_error)?;
        let specs: Vec<_> =
            delegate.compile_specs.iter().map(|s| CompileSpec { key: &s.key, value: &s.value }).collect();
        let no_specs = BackendOptions::new();
        let ctx = BackendInitContext {
            method: self.name,
            call,
            named_data,
            specs: self.options.backend_options.get(&delegate.id).unwrap_or(&no_specs),
            tracer,
            pool: &self.options.pool,
            isa: self.options.isa,
            memory: BackendMemory::new(self.options.limits.backend_bytes, &self.budget),
        };
        let make = || -> Result<DelegateEntry, BackendError> {
            let handle = guarded(|| backend.init(&ctx, processed, &specs))?;
            let entry = DelegateEntry::new(delegate.id.as_str().into(), handle)?;
            let checked = call.map_or(Ok(()), |call| call.check_num_inputs(entry.num_inputs));
            checked.map_err(BackendError::new).map(|()| entry)
        };
        let entry = pteron_pool::interruptible(make).unwrap_or_else(|why| Err(why.into()));
        let interruption = || self.options.interrupt.as_ref().and_then(|interrupt| interrupt.check().err());
        let interrupted = entry.as_ref().err().and_then(BackendError::interrupted).or_else(interruption);
        if let Some(source) = interrupted {
            let place = Some(format!("delegate {index} of `{}`", delegate.id));
            return Err(Error::Interrupted { method: self.name.to_string(), place, source });
        }
        let entry = entry.map_err(|source| Error::BackendInit {
            method: self.name.to_string(),
            backend: delegate.id.clone(),
            index,
            source_frame: call.and_then(|call| {
                let (chain, instruction) = call.place;
                self.program.place(self.meta.plan_index(), chain, instruction).source_frame
            }),
            source,
        })?;
        self.reservations.extend(ctx.memory.into_reservations());
        Ok(entry)
    }

    /// Loads the payload of a delegate. Its bytes are charged to the budget if loading allocates memory.
    fn load_payload(&self, delegate: &pte::BackendDelegate) -> Result<FreeableBuffer> {
        let range = self.meta.payload_range(delegate);
        let payload = usize_of(range.end.saturating_sub(range.start))?;
        let reservation = match self.program.loader().takes_memory() {
            true => Some(self.budget.take("its payloads", payload).map_err(memory_limit_error)?),
            false => None,
        };
        let processed = self.program.load_range(range, Purpose::Backend(&delegate.id))?;
        Ok(match reservation {
            Some(reservation) => processed.with_reservation(reservation),
            None => processed,
        })
    }
}
