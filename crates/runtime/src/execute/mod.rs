//! Executing a method: the loop over its instructions.

pub(crate) mod call;
mod region;
mod state;

use crate::BackendError;
use crate::backend::{BackendExecutionContext, BackendMemory, Delegate, DelegateEntry, guarded};
use crate::error::ExecuteError;
use crate::plan::{Chain, DelegateCall, Id, Instr, KernelCall, OutRef, RegionCall, State, Storage};
use crate::prepare::region::{LoweringContext, Region, RunMode};
use call::{ArgList, Callable, OutList};
use pteron_engine::Packs;
use pteron_operator::{Args, Generator, Isa, KernelContext, Out, Outs, Scratch};
use pteron_pool::{Interrupt, Pool};
use pteron_tensor::DimOrder;
use pteron_trace::{Place, SpanKind, Tracer, Within};
use smallvec::SmallVec;
use std::sync::atomic::{AtomicBool, Ordering};

/// The parts of a method that an execution uses.
pub(crate) struct Runner<'a> {
    pub(crate) state: &'a mut State,
    pub(crate) delegates: &'a mut [DelegateEntry],
    pub(crate) regions: &'a mut [Region],
    pub(crate) packs: &'a mut Packs,
    pub(crate) scratch: &'a Scratch,
    pub(crate) generator: &'a Generator,
    pub(crate) pool: &'a Pool,
    pub(crate) isa: Isa,
    pub(crate) method: &'a str,
    pub(crate) operators: &'a [Box<str>],
    pub(crate) chains: &'a [Chain],
    pub(crate) backend_bytes: usize,
    /// The maximum number of instructions of one execution.
    pub(crate) limit: u64,
    /// The number of instructions that this execution may still run.
    pub(crate) left: u64,
    pub(crate) interrupt: Option<&'a Interrupt>,
    /// The index of the current instruction in its chain.
    pub(crate) at: usize,
    pub(crate) tracer: Tracer<'a>,
}

impl<'a> Runner<'a> {
    /// Runs every chain, in order. An error has the index of the chain and that of the instruction.
    pub(crate) fn run(&mut self) -> Result<(), (usize, usize, ExecuteError)> {
        for (index, chain) in self.chains.iter().enumerate() {
            self.at = 0;
            let ran = pteron_pool::interruptible(|| self.run_chain_unless_interrupted(index, chain));
            let ran = ran.unwrap_or_else(|why| Err((self.at, why.into())));
            ran.map_err(|(instruction, source)| (index, instruction, source))?;
        }
        Ok(())
    }

    /// The context that is passed to kernels.
    fn context(&self) -> KernelContext<'a> {
        KernelContext::new(self.pool, self.scratch, self.generator).with_isa(self.isa)
    }

    /// Fails if the execution was interrupted.
    fn check_interrupt(&self) -> Result<(), ExecuteError> {
        Ok(self.interrupt.map_or(Ok(()), Interrupt::check)?)
    }

    /// Runs one chain, unless the execution was interrupted.
    fn run_chain_unless_interrupted(
        &mut self,
        index: usize,
        chain: &Chain,
    ) -> Result<(), (usize, ExecuteError)> {
        self.check_interrupt().map_err(|e| (0, e))?;
        self.run_chain(index, chain)
    }

    /// Runs one chain. An error has the index of the instruction that failed.
    fn run_chain(&mut self, index: usize, chain: &Chain) -> Result<(), (usize, ExecuteError)> {
        let mut next = 0;
        while let Some(instr) = chain.instrs.get(next) {
            self.at = next;
            // A region counts as all of its instructions.
            let cost = match instr {
                Instr::Region(region) => (region.next - next) as u64,
                _ => 1,
            };
            if self.left < cost {
                return Err((next + self.left as usize, ExecuteError::TooManyInstructions(self.limit)));
            }
            self.left -= cost;
            let place = Place::instruction(index as u32, next as u32);
            next = match instr {
                Instr::Region(region) => {
                    self.run_region(region, chain, place)?;
                    region.next
                }
                _ => self.run_instr(instr, place).map_err(|e| (next, e))?.unwrap_or(next + 1),
            };
        }
        Ok(())
    }

    /// Runs a region. An error has the index of the instruction that failed.
    fn run_region(
        &mut self,
        instr: &RegionCall,
        chain: &Chain,
        place: Place,
    ) -> Result<(), (usize, ExecuteError)> {
        let ctx = self.context();
        let start = place.instruction.unwrap_or_default() as usize;
        let Self { regions, state, scratch, tracer, .. } = self;
        let region = match &mut regions[instr.region] {
            Region::Fixed(lowered) => {
                lowered.run_at(state, scratch, &ctx, *tracer, start)?;
                return self.check_interrupt().map_err(|e| (start, e));
            }
            Region::Dynamic(region) => region,
        };
        let mut mode = region.choose_mode(state);
        if mode == RunMode::Record && region.is_determined_by_graphs() {
            mode = self.lower_region(instr, &ctx, place).map_or(RunMode::Interpret, RunMode::Lowered);
        }
        let Self { regions, state, scratch, tracer, .. } = self;
        if let (RunMode::Lowered(index), Region::Dynamic(region)) = (mode, &mut regions[instr.region])
            && let Some(lowered) = region.specialization(index)
        {
            match lowered.run_at(state, scratch, &ctx, *tracer, start) {
                Err((at, ExecuteError::Interrupted(why))) => return Err((at, why.into())),
                Err(_) => {}
                Ok(()) => return self.check_interrupt().map_err(|e| (start, e)),
            }
        }
        for i in start..instr.next {
            let at = Place { instruction: Some(i as u32), ..place };
            let next = if i == start { &*instr.first } else { &chain.instrs[i] };
            self.at = i;
            self.run_instr(next, at).map_err(|e| (i, e))?;
            if let (RunMode::Record, Instr::Kernel(call)) = (mode, next)
                && let Region::Dynamic(region) = &mut self.regions[instr.region]
            {
                region.record(self.state, call);
            }
        }
        match (mode, &mut self.regions[instr.region]) {
            (RunMode::Record, _) => {
                self.lower_region(instr, &ctx, place);
            }
            // The instructions succeeded although the specialization failed.
            (RunMode::Lowered(index), Region::Dynamic(region)) => region.invalidate(index),
            _ => {}
        }
        Ok(())
    }

    /// Lowers a dynamic region for the recorded sizes and scalars. Returns the specialization's index if that succeeds.
    fn lower_region(&mut self, instr: &RegionCall, ctx: &KernelContext<'_>, place: Place) -> Option<usize> {
        let Region::Dynamic(region) = &mut self.regions[instr.region] else { return None };
        let started = self.tracer.start();
        let Self { state, chains, delegates, packs, .. } = self;
        let index = region.lower(&instr.first, LoweringContext { state, chains, delegates, ctx, packs });
        self.tracer.end(started, SpanKind::Prepare, self.method, place);
        index
    }

    fn call_kernel(&mut self, call: &KernelCall, place: Place) -> Result<(), ExecuteError> {
        let started = self.tracer.start();
        let ctx = self.context();
        let in_place = call.kernel.in_place();
        self.state.call(&call.args, &call.outs, in_place, self.scratch, BoundKernel { call, ctx })?;
        let name = &self.operators[call.operator];
        self.tracer.end(started, SpanKind::Kernel, name, place);
        self.report_values(name, place, &call.outs)
    }

    /// Calls an opaque delegate, or one whose call is in no region.
    fn call_delegate(&mut self, call: &DelegateCall, place: Place) -> Result<(), ExecuteError> {
        let started = self.tracer.start();
        let kernels = self.context();
        let within = self.tracer.get().map(|tracer| Within::new(tracer, place));
        let must_resize = self.state.reset_dynamic_outputs(call);
        let entry = &mut self.delegates[call.delegate];
        let ctx = BackendExecutionContext {
            method: self.method,
            tracer: within.as_ref().map(|within| within as _).into(),
            kernels: &kernels,
            packs: self.packs,
            memory: BackendMemory::new(self.backend_bytes, self.packs.budget()),
        };
        let name = entry.backend.clone();
        let Some(delegate) = entry.delegate.as_deref_mut() else {
            return Err(BackendError::new("the delegate was replaced by a region").into());
        };
        let resized: SmallVec<[AtomicBool; 3]> = must_resize.iter().map(|_| AtomicBool::new(false)).collect();
        let bound = BoundDelegate { delegate, ctx, resized: &resized };
        self.state.call(&call.args, &call.outs, &[], self.scratch, bound)?;
        let is_resized = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if let Some(output) = (0..resized.len()).find(|&i| must_resize[i] && !is_resized(&resized[i])) {
            return Err(BackendError::new(format!(
                "output {output} has dynamic sizes, and the delegate has not called `resize` for it"
            ))
            .into());
        }
        self.tracer.end(started, SpanKind::Delegate, &name, place);
        self.report_values(&name, place, &call.outs)
    }

    /// Runs one instruction. Returns the target if it is a jump that is taken. Fails if the execution is to end, even
    /// if the instruction has run, so that the error names the instruction that took the time.
    fn run_instr(&mut self, instr: &Instr, place: Place) -> Result<Option<usize>, ExecuteError> {
        let next = self.run_instr_ignoring_interrupt(instr, place)?;
        self.check_interrupt().map(|()| next)
    }

    fn run_instr_ignoring_interrupt(
        &mut self,
        instr: &Instr,
        place: Place,
    ) -> Result<Option<usize>, ExecuteError> {
        match instr {
            Instr::Kernel(call) => self.call_kernel(call, place)?,
            Instr::Folded(call) => self.report_values(&self.operators[call.operator], place, &call.outs)?,
            Instr::Delegate(call) => self.call_delegate(call, place)?,
            // Regions are run by `run_chain`.
            Instr::Region(_) => {}
            Instr::Move { from, to } => self.state.move_value(*from, *to),
            Instr::JumpFalse { condition, target } => {
                if !self.state.is_true(*condition)? {
                    return Ok(Some(*target));
                }
            }
            Instr::Free(id) => {
                if let Some(t) = self.state.values[*id].tensor_mut() {
                    t.storage = Storage::Nowhere;
                }
            }
        }
        Ok(None)
    }

    /// Gives the tracer copies of the tensors that an instruction has written, if it wants values.
    fn report_values(&self, name: &str, place: Place, outs: &[OutRef]) -> Result<(), ExecuteError> {
        let Some(tracer) = self.tracer.get().filter(|t| t.wants_values()) else { return Ok(()) };
        let mut output = 0;
        for out in outs {
            let ids: &[Id] = match out {
                OutRef::Tensor(id) | OutRef::View { to: id, .. } => std::slice::from_ref(id),
                OutRef::Tensors(ids) => ids,
                OutRef::Scalar(_) => &[],
            };
            for &id in ids {
                let tensor = self
                    .state
                    .copy_tensor(id)?
                    .to_dim_order(DimOrder::contiguous(self.state.view(id)?.rank()))?;
                let dtype = tensor.dtype().name();
                tracer.value(name, place, output, dtype, tensor.sizes(), tensor.bytes());
                output += 1;
            }
        }
        Ok(())
    }
}

struct BoundKernel<'a> {
    call: &'a KernelCall,
    ctx: KernelContext<'a>,
}

impl Callable for BoundKernel<'_> {
    fn call<'x>(self, args: ArgList<'x>, outs: OutList<'x>) -> Result<OutList<'x>, ExecuteError>
    where
        Self: 'x,
    {
        let args = Args::new(self.call.kernel.schema(), args);
        let mut outs = Outs::new(outs);
        match &self.call.prepared {
            Some(prepared) => prepared.execute(&self.ctx, &args, &mut outs)?,
            None => self.call.kernel.execute(&self.ctx, &args, &mut outs)?,
        }
        Ok(outs.into_inner())
    }
}

struct BoundDelegate<'a> {
    delegate: &'a mut dyn Delegate,
    ctx: BackendExecutionContext<'a>,
    /// For each output, whether the delegate has resized it.
    resized: &'a [AtomicBool],
}

impl Callable for BoundDelegate<'_> {
    fn call<'x>(self, args: ArgList<'x>, outs: OutList<'x>) -> Result<OutList<'x>, ExecuteError>
    where
        Self: 'x,
    {
        let watched = outs.into_iter().zip(self.resized).map(|(out, resized)| match out {
            Out::Tensor(view) => Out::Tensor(view.with_resize_flag(resized)),
            other => other,
        });
        let mut outs: OutList<'x> = watched.collect();
        guarded(|| self.delegate.execute(&self.ctx, &args, &mut outs))?;
        Ok(outs)
    }
}
