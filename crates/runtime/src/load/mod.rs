//! Loading a method: from the tables of a plan to values, memory, constants, delegates and resolved instructions. The
//! tables were verified, so indices are in bounds. What depends on operator schemas or other files is checked here.

mod delegates;
mod external;
mod missing;

pub(crate) use external::check_data;

use crate::backend::DelegateEntry;
use crate::convert::{from_little_endian, usize_of};
use crate::limits::memory_limit_error;
use crate::open::{
    ConstantBytes, Deferred, Elements, InMap, InProgram, MethodMeta, Source, align_elements, planned_extent,
    tensor_meta,
};
use crate::plan::resolve::{self, Callee, delegate_call, kernel_call};
use crate::plan::{Chain, Id, Instr, State, Storage, TensorValue, tables};
use crate::{Error, FreeableBuffer, LoadOptions, Program, Purpose, Result};
use external::{External, check_present, external_bytes};
use pteron_format::pte::{self, TensorData};
use pteron_operator::{Budget, Kernel, Reservation};
use pteron_tensor::{AlignedBuffer, Arenas, Extent, TensorMeta};
use pteron_trace::Tracer;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// A loaded plan, before its calls are prepared, folded or lowered.
pub(crate) struct Loaded {
    pub(crate) state: State,
    pub(crate) chains: Vec<Chain>,
    pub(crate) delegates: Vec<DelegateEntry>,
    pub(crate) inputs: Vec<Id>,
    pub(crate) outputs: Vec<Id>,
    pub(crate) budget: Budget,
    /// Budget reservations for arenas, tables and constants.
    pub(crate) reservations: Vec<Reservation>,
    /// Approximate number of bytes that preparation takes: for its analyses, and for the weights that it reads.
    pub(crate) preparation_bytes: u64,
}

/// Loads a plan whose operators and backends are all present. `memory` are buffers for the first planned arenas.
pub(crate) fn load(
    program: &Program,
    meta: MethodMeta<'_>,
    options: &LoadOptions,
    memory: Vec<AlignedBuffer>,
) -> Result<Loaded> {
    let tracer = Tracer::from(options.tracer.as_deref());
    let mut loader = Loader::new(program, meta, options, memory)?;
    let tables_bytes = usize_of(tables::estimated_bytes(meta.plan()))?;
    loader.reservations.push(loader.budget.take("its tables", tables_bytes).map_err(memory_limit_error)?);
    loader.load_values()?;
    let needed = loader.arena_bytes.saturating_add(loader.weight_bytes);
    options.limits.check_memory(|| format!("method `{}` with its weights", loader.name), needed)?;
    let kernels = loader.kernels_by_operator();
    let delegates = loader.load_delegates(tracer, &kernels)?;
    let chains = loader.resolve_chains(&kernels, &delegates)?;
    let Loader { state, plan, weight_bytes, budget, reservations, .. } = loader;
    let ids = |list: &[i32]| list.iter().map(|&i| i as Id).collect::<Vec<_>>();
    let (inputs, outputs) = (ids(&plan.inputs), ids(&plan.outputs));
    let preparation_bytes =
        (tables_bytes as u64).saturating_mul(tables::PREPARING).saturating_add(weight_bytes);
    Ok(Loaded { state, chains, delegates, inputs, outputs, budget, reservations, preparation_bytes })
}

struct Loader<'p> {
    program: &'p Program,
    meta: MethodMeta<'p>,
    plan: &'p pte::ExecutionPlan,
    name: &'p str,
    options: &'p LoadOptions,
    state: State,
    /// Bytes of the arenas that have been allocated so far.
    arena_bytes: u64,
    /// Bytes of the program's constants that will be read on first access, each counted once.
    weight_bytes: u64,
    /// Deferred constants by file range, so that tensors with the same range share their bytes.
    deferred: HashMap<Range<u64>, Arc<Deferred>>,
    budget: Budget,
    reservations: Vec<Reservation>,
}

impl<'p> Loader<'p> {
    fn new(
        program: &'p Program,
        meta: MethodMeta<'p>,
        options: &'p LoadOptions,
        memory: Vec<AlignedBuffer>,
    ) -> Result<Self> {
        let mut loader = Self {
            program,
            meta,
            plan: meta.plan(),
            name: meta.name(),
            options,
            state: State { values: Vec::new(), arenas: Arenas::new(), constants: Vec::new() },
            arena_bytes: 0,
            weight_bytes: 0,
            deferred: HashMap::new(),
            budget: Budget::new(options.limits.memory),
            reservations: Vec::new(),
        };
        let mut memory = memory.into_iter();
        for (i, size) in meta.memory_arenas().enumerate() {
            let buffer = match memory.next() {
                Some(mut own) => {
                    if (own.len() as u64) < size {
                        return Err(loader.error(
                            format!("arena {}", i + 1),
                            format!("the plan needs {size} bytes, the buffer given has {}", own.len()),
                        ));
                    }
                    own.fill(0);
                    own
                }
                None => loader.allocate(size)?,
            };
            loader.state.arenas.push(buffer);
        }
        Ok(loader)
    }

    fn error(&self, place: impl Into<String>, problem: impl Into<String>) -> Error {
        Error::Load { method: self.name.to_string(), place: place.into(), problem: problem.into() }
    }

    /// Allocates zeroed memory for an arena. Fails if all arenas together would exceed their limit.
    fn allocate(&mut self, size: u64) -> Result<AlignedBuffer> {
        self.arena_bytes = self.arena_bytes.saturating_add(size);
        self.options.limits.check_memory(|| format!("method `{}`", self.name), self.arena_bytes)?;
        let bytes = self.options.limits.check_arena(self.arena_bytes).and(usize_of(size))?;
        self.reservations.push(self.budget.take("its arenas", bytes).map_err(memory_limit_error)?);
        let buffer = AlignedBuffer::zeroed(bytes)?;
        Tracer::from(self.options.tracer.as_deref()).allocation("arena", buffer.len());
        Ok(buffer)
    }

    fn load_values(&mut self) -> Result<()> {
        self.check_external()?;
        for (id, value) in self.plan.values.iter().enumerate() {
            let value = resolve::value(value, |tensor| self.load_tensor(id, tensor))?;
            self.state.values.push(value);
        }
        Ok(())
    }

    /// Fails if external tensors of the method have no data.
    fn check_external(&self) -> Result<()> {
        check_present(self.meta, self.options.data.as_deref())
    }

    fn load_tensor(&mut self, id: Id, t: &pte::Tensor) -> Result<TensorValue> {
        let meta = tensor_meta(t)?;
        let external = |loader: &Self, key: &str| {
            external_bytes(loader.name, id, key, &meta, loader.options.data.as_deref())
        };
        let source = self.program.tables().tensor_data(t);
        let storage = match source {
            TensorData::Planned => Storage::Arena(planned_extent(t, &meta)?),
            TensorData::Initial(range) => {
                let extent = planned_extent(t, &meta)?;
                let target = self.state.arenas.bytes_mut(extent)?;
                self.program.loader().load_into(range.start, target, Purpose::Mutable)?;
                from_little_endian(target, meta.dtype());
                Storage::Arena(extent)
            }
            TensorData::ExternalInitial(key) => {
                let extent = planned_extent(t, &meta)?;
                let bytes = external(self, key)?;
                let target = self.state.arenas.bytes_mut(extent)?;
                target.copy_from_slice(&bytes);
                from_little_endian(target, meta.dtype());
                Storage::Arena(extent)
            }
            TensorData::External(key) => self.add_external_constant(id, key, &meta)?,
            TensorData::Constant(range) => self.add_constant(range, &meta)?,
            TensorData::Unplanned => {
                let buffer = self.allocate(meta.nbytes() as u64)?;
                let arena = self.state.arenas.push(buffer);
                Storage::Arena(Extent { arena, offset: 0, len: meta.nbytes() })
            }
        };
        Ok(TensorValue {
            bound: *meta.sizes(),
            name: t.attribute_name().map(Into::into),
            meta,
            storage,
            home: storage,
        })
    }

    /// Adds a constant of the program. If its bytes take memory, they are read on first access.
    fn add_constant(&mut self, range: Range<u64>, meta: &TensorMeta) -> Result<Storage> {
        if !self.program.loader().takes_memory() || cfg!(target_endian = "big") {
            return self.push_bytes(self.program.load_constant(range)?, meta);
        }
        let deferred = match self.deferred.get(&range) {
            Some(known) => Arc::clone(known),
            None => {
                self.weight_bytes = self.weight_bytes.saturating_add(meta.nbytes() as u64);
                let source = InProgram(self.program.clone(), range.clone());
                let new = self.deferred_constant(source, meta);
                self.deferred.insert(range, Arc::clone(&new));
                new
            }
        };
        Ok(self.push_constant(ConstantBytes::from_deferred(deferred)))
    }

    /// Adds a constant that is stored outside the program.
    fn add_external_constant(&mut self, id: Id, key: &str, meta: &TensorMeta) -> Result<Storage> {
        let data = self.options.data.clone();
        if let Some(data) = &data
            && (External { method: self.name, id, meta }).check_layout(key, &**data)?
        {
            let source = InMap(Arc::clone(data), key.to_owned());
            let deferred = self.deferred_constant(source, meta);
            return Ok(self.push_constant(ConstantBytes::from_deferred(deferred)));
        }
        self.push_bytes(external_bytes(self.name, id, key, meta, data.as_deref())?, meta)
    }

    fn deferred_constant(&self, source: impl Source + 'static, meta: &TensorMeta) -> Arc<Deferred> {
        Arc::new(Deferred::new(source, meta.nbytes(), Elements::Of(meta.dtype()), &self.budget))
    }

    fn push_bytes(&mut self, bytes: FreeableBuffer, meta: &TensorMeta) -> Result<Storage> {
        let bytes = align_elements(bytes, Elements::Of(meta.dtype()))?;
        let charged = match bytes.takes_memory() {
            true => bytes.len(),
            false => 0,
        };
        let reservation = self.budget.take("its constants", charged).map_err(memory_limit_error)?;
        Ok(self.push_constant(ConstantBytes::in_memory(bytes.with_reservation(reservation))))
    }

    fn push_constant(&mut self, constant: ConstantBytes) -> Storage {
        self.state.constants.push(constant);
        Storage::Constant(self.state.constants.len() - 1)
    }

    /// The kernel of each entry of the operator table; `None` if none is registered. No instruction calls such an
    /// entry: `Program::load_method` has refused methods that do.
    fn kernels_by_operator(&self) -> Vec<Option<Arc<dyn Kernel>>> {
        self.plan.operators.iter().map(|op| self.options.kernels.get(&op.full_name())).collect()
    }

    fn resolve_chains(
        &self,
        kernels: &[Option<Arc<dyn Kernel>>],
        delegates: &[DelegateEntry],
    ) -> Result<Vec<Chain>> {
        let chain = |(c, chain): (usize, &pte::Chain)| {
            let instr = |(i, instruction)| {
                self.resolve_instr(instruction, kernels, delegates).map_err(|problem| {
                    let at = self.program.place(self.meta.plan_index(), c, i);
                    self.error(format!("instruction {at}"), problem)
                })
            };
            let instrs = chain.instructions.iter().enumerate().map(instr).collect::<Result<_>>()?;
            Ok(Chain { instrs })
        };
        self.plan.chains.iter().enumerate().map(chain).collect()
    }

    fn resolve_instr(
        &self,
        instruction: &pte::Instruction,
        kernels: &[Option<Arc<dyn Kernel>>],
        delegates: &[DelegateEntry],
    ) -> Result<Instr, String> {
        resolve::instr(instruction, |call| match call {
            Callee::Kernel(operator, args) => {
                let kernel =
                    kernels.get(operator).cloned().flatten().ok_or("its kernel is not registered")?;
                Ok(Instr::Kernel(kernel_call(&self.state.values, operator, kernel, args)?))
            }
            Callee::Delegate(delegate, args) => {
                let entry = delegates.get(delegate).ok_or("there is no such delegate")?;
                Ok(Instr::Delegate(delegate_call(&self.state.values, delegate, entry.num_inputs, args)?))
            }
        })
    }
}
