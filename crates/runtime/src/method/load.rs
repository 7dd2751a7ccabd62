//! Making a method: its plan is loaded, then prepared.

use super::Method;
use crate::load::load;
use crate::open::ConstantBytes;
use crate::plan::Value;
use crate::prepare::{Prepared, Settings, prepare};
use crate::{Error, LoadOptions, MethodMeta, Program, Result};
use pteron_engine::Packs;
use pteron_operator::{Generator, KernelContext, Scratch};
use pteron_pool::Interrupt;
use pteron_trace::{Place, SpanKind, Tracer};
use std::sync::Arc;

impl Program {
    /// Loads a method: memory, constants, kernels, delegates.
    ///
    /// If operators or backends are missing from the registries, the call fails before anything is read or run, and the
    /// error lists all of them.
    pub fn load_method(&self, name: &str, options: LoadOptions) -> Result<Method> {
        let plan = self.plan_index(name)?;
        let missing = self.missing_in_plan(plan, &options.kernels, &options.backends);
        if !missing.is_empty() {
            return Err(missing.into());
        }
        let _armed = options.interrupt.as_ref().map(pteron_pool::Interrupt::arm);
        pteron_pool::interruptible(|| load_plan(self, plan, options))
            .unwrap_or_else(|source| Err(Error::Interrupted { method: name.to_owned(), place: None, source }))
    }
}

/// Loads and prepares a plan whose operators and backends are all present.
fn load_plan(program: &Program, plan: usize, mut options: LoadOptions) -> Result<Method> {
    let tracer_owner = options.tracer.clone();
    let tracer = Tracer::from(tracer_owner.as_deref());
    let started = tracer.start();
    let meta = MethodMeta::new(program, plan);
    let memory = std::mem::take(&mut options.memory);
    let loaded = load(program, meta, &options, memory)?;
    let input_sizes = meta.input_sizes()?.map(Arc::new);
    let (scratch, generator) = (Scratch::new(options.limits.scratch_bytes), Generator::new(options.seed));
    // If the budget cannot hold what preparation needs in addition to the weights, the method runs unprepared.
    let room = loaded.budget.limit().saturating_sub(loaded.budget.held());
    let has_room = loaded.preparation_bytes <= room;
    let packs = Packs::with_budget(loaded.budget.clone(), options.packed);
    let input_set = |id: &usize| matches!(loaded.state.values[*id], Value::None);
    let input_set = loaded.inputs.iter().map(input_set).collect();
    let prepared = if options.no_prepare || !has_room {
        loaded.state.constants.iter().try_for_each(ConstantBytes::read)?;
        Prepared::from_loaded(loaded, packs)
    } else {
        let started = tracer.start();
        let settings = Settings {
            ctx: KernelContext::new(&options.pool, &scratch, &generator).with_isa(options.isa),
            keep_graphs: options.keep_graphs,
            backend_bytes: options.limits.backend_bytes,
        };
        let prepared = prepare(loaded, packs, &settings)?;
        tracer.end(started, SpanKind::Prepare, meta.name(), Place::default());
        prepared
    };
    if let Some(Err(source)) = options.interrupt.as_ref().map(Interrupt::check) {
        return Err(Error::Interrupted { method: meta.name().to_owned(), place: None, source });
    }
    let Prepared { state, chains, delegates, inputs, outputs, regions, packs, reservations, as_written } =
        prepared;
    let method = Method {
        program: program.clone(),
        plan,
        name: meta.name().into(),
        state,
        chains,
        delegates,
        regions,
        packs,
        as_written,
        _reservations: reservations,
        operators: meta.plan().operators.iter().map(|op| op.full_name().into()).collect(),
        inputs,
        outputs,
        input_set,
        input_sizes,
        planned_arenas: meta.memory_arenas().count(),
        scratch,
        generator,
        pool: options.pool,
        isa: options.isa,
        tracer: options.tracer,
        interrupt: options.interrupt,
        limits: options.limits,
    };
    tracer.end(started, SpanKind::LoadMethod, &method.name, Place::default());
    Ok(method)
}
