//! Running a method.

use super::Method;
use crate::execute::Runner;
use crate::{Error, Result};
use pteron_clock::Instant;
use pteron_pool::Interrupt;
use pteron_trace::{Place, SpanKind, Tracer};

impl Method {
    /// Runs every chain of the method, in order.
    pub(super) fn run_chains(&mut self) -> Result<()> {
        let tracer = Tracer::from(self.tracer.as_deref());
        let started = tracer.start();
        let handle = match (&self.interrupt, self.limits.time) {
            (None, None) => None,
            (handle, None) => handle.clone(),
            (handle, Some(time)) => {
                let handle = handle.clone().unwrap_or_default();
                // A time limit beyond the range of the clock is no limit.
                Some(Instant::now().checked_add(time).map_or(handle.clone(), |end| handle.until(end)))
            }
        };
        let _armed = handle.as_ref().map(Interrupt::arm);
        let mut runner = Runner {
            state: &mut self.state,
            delegates: &mut self.delegates,
            regions: &mut self.regions,
            packs: &mut self.packs,
            scratch: &self.scratch,
            generator: &self.generator,
            pool: &self.pool,
            isa: self.isa,
            method: &self.name,
            operators: &self.operators,
            chains: &self.chains,
            backend_bytes: self.limits.backend_bytes,
            limit: self.limits.instructions,
            left: self.limits.instructions,
            interrupt: handle.as_ref(),
            at: 0,
            tracer,
        };
        if let Err((chain, instruction, source)) = runner.run() {
            let place = self.program.place(self.plan, chain, instruction);
            return Err(Error::Execute {
                method: self.name.to_string(),
                at: Box::new(place),
                source: Box::new(source),
            });
        }
        tracer.end(started, SpanKind::Execute, &self.name, Place::default());
        Ok(())
    }
}
