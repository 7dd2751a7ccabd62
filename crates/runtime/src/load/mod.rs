//! Loading a method: from the tables of a plan to values, memory, constants, delegates and resolved instructions. The
//! tables were verified, so indices are in bounds. What depends on operator schemas or other files is checked here.

use crate::backend::{BackendInitContext, BackendMemory, CallArguments, CompileSpec, guarded};
use crate::limits::over_memory;
use crate::open::{
    ConstantBytes, CountedDataMap, Deferred, Elements, MergedDataMap, MethodMeta, PteDataMap, Source,
    aligned, tensor_meta,
};
use crate::plan::resolve::{self, Called, delegate_step, kernel_step};
use crate::plan::{Chain, DelegateEntry, Id, State, Step, Storage, TensorValue, Value, tables};
use crate::{
    BackendError, BackendOptions, Error, FreeableBuffer, Limits, LoadOptions, Method, NamedDataMap, Program,
    Purpose, Result, one_line,
};
use pteron_format::pte::{self, TensorData};
use pteron_operator::{Budget, Generator, Kernel, Reservation, Scratch};
use pteron_pool::Interrupt;
use pteron_tensor::{AlignedBuffer, Arenas, Extent, ScalarType, TensorMeta};
use pteron_trace::{Place, SpanKind, Tracer};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// Loads a plan whose operators and backends are all present.
pub(crate) fn method(program: &Program, plan: usize, options: LoadOptions) -> Result<Method> {
    let tracer_owner = options.tracer.clone();
    let tracer = Tracer::from(tracer_owner.as_deref());
    let started = tracer.start();
    let meta = MethodMeta::new(program, plan);
    let mut loader = Loader::new(program, meta, options)?;
    let tables_bytes = usize_of(tables::bytes(meta.plan()))?;
    loader.held.push(loader.budget.take("its tables", tables_bytes).map_err(over_memory)?);
    loader.values()?;
    let needed = loader.arena_bytes.saturating_add(loader.weight_bytes);
    loader.options.limits.check_memory(|| format!("method `{}` with its weights", loader.name), needed)?;
    let kernels = loader.kernels();
    let delegates = loader.delegates(tracer, &kernels)?;
    let chains = loader.chains(&kernels, &delegates)?;
    let Loader { options, state, plan: tables, name, planned_arenas, weight_bytes, budget, held, .. } =
        loader;
    let ids = |list: &[i32]| list.iter().map(|&i| i as Id).collect::<Vec<_>>();
    let inputs = ids(&tables.inputs);
    let mut method = Method {
        program: program.clone(),
        plan,
        name,
        input_set: inputs.iter().map(|&id| matches!(state.values[id], Value::None)).collect(),
        inputs,
        outputs: ids(&tables.outputs),
        input_sizes: meta.input_sizes()?.map(Arc::new),
        state,
        chains,
        delegates,
        regions: Vec::new(),
        keep_graphs: options.keep_graphs,
        as_written: Vec::new(),
        packs: pteron_engine::Packs::within(budget, options.packed),
        held,
        operators: tables.operators.iter().map(|op| op.full_name().into()).collect(),
        planned_arenas,
        scratch: Scratch::new(options.limits.scratch_bytes),
        generator: Generator::new(options.seed),
        pool: options.pool,
        isa: options.isa,
        tracer: options.tracer,
        interrupt: options.interrupt,
        limits: options.limits,
    };
    // If the budget cannot hold what preparation needs in addition to the weights, the method runs unprepared.
    let preparing = (tables_bytes as u64).saturating_mul(tables::PREPARING).saturating_add(weight_bytes);
    let room = method.packs.budget().limit().saturating_sub(method.memory());
    if options.no_prepare || room < preparing {
        method.state.constants.iter().try_for_each(ConstantBytes::read)?;
    } else {
        let started = tracer.start();
        crate::prepare::prepare(&mut method)?;
        tracer.end(started, SpanKind::Prepare, &method.name, Place::default());
    }
    if let Some(Err(source)) = method.interrupt.as_ref().map(Interrupt::check) {
        return Err(Error::Interrupted { method: method.name.to_string(), place: None, source });
    }
    tracer.end(started, SpanKind::LoadMethod, &method.name, Place::default());
    Ok(method)
}

struct Loader<'p> {
    program: &'p Program,
    meta: MethodMeta<'p>,
    plan: &'p pte::ExecutionPlan,
    name: Arc<str>,
    options: LoadOptions,
    state: State,
    planned_arenas: usize,
    /// Bytes of arenas allocated so far.
    arena_bytes: u64,
    /// Bytes of constants of the program that will be read.
    weight_bytes: u64,
    /// Deferred constants by file range, so that tensors with the same range share their bytes.
    deferred: HashMap<Range<u64>, Arc<Deferred>>,
    budget: Budget,
    held: Vec<Reservation>,
}

impl<'p> Loader<'p> {
    fn new(program: &'p Program, meta: MethodMeta<'p>, mut options: LoadOptions) -> Result<Self> {
        let given = std::mem::take(&mut options.memory);
        let budget = Budget::new(options.limits.memory);
        let mut loader = Self {
            program,
            meta,
            plan: meta.plan(),
            name: meta.name().into(),
            options,
            state: State { values: Vec::new(), arenas: Arenas::new(), constants: Vec::new() },
            planned_arenas: 0,
            arena_bytes: 0,
            weight_bytes: 0,
            deferred: HashMap::new(),
            budget,
            held: Vec::new(),
        };
        loader.planned_arenas = meta.memory_arenas().count();
        let mut given = given.into_iter();
        for (i, size) in meta.memory_arenas().enumerate() {
            let buffer = match given.next() {
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

    /// Zeroed memory for an arena, within the limit.
    fn allocate(&mut self, size: u64) -> Result<AlignedBuffer> {
        self.arena_bytes = self.arena_bytes.saturating_add(size);
        self.options.limits.check_memory(|| format!("method `{}`", self.name), self.arena_bytes)?;
        let bytes = self.options.limits.arena(self.arena_bytes).and(usize_of(size))?;
        self.held.push(self.budget.take("its arenas", bytes).map_err(over_memory)?);
        let buffer = AlignedBuffer::zeroed(bytes)?;
        Tracer::from(self.options.tracer.as_deref()).allocation("arena", buffer.len());
        Ok(buffer)
    }

    fn values(&mut self) -> Result<()> {
        self.check_external()?;
        for (id, value) in self.plan.values.iter().enumerate() {
            let value = resolve::value(value, |tensor| self.tensor(id, tensor))?;
            self.state.values.push(value);
        }
        Ok(())
    }

    /// Fails if external tensors of the method have no data.
    fn check_external(&self) -> Result<()> {
        check_present(self.meta, self.options.data.as_deref())
    }

    fn tensor(&mut self, id: Id, t: &pte::Tensor) -> Result<TensorValue> {
        let meta = tensor_meta(t)?;
        let external = |loader: &Self, key: &str| {
            external_bytes(&loader.name, id, key, &meta, loader.options.data.as_deref())
        };
        let source = self.program.tables().tensor_data(t);
        let storage = match source {
            TensorData::Planned => Storage::Arena(planned(t, &meta)?),
            TensorData::Initial(range) => {
                let extent = planned(t, &meta)?;
                let target = self.state.arenas.bytes_mut(extent)?;
                self.program.loader().load_into(range.start, target, Purpose::Mutable)?;
                from_little_endian(target, meta.dtype());
                Storage::Arena(extent)
            }
            TensorData::ExternalInitial(key) => {
                let extent = planned(t, &meta)?;
                let bytes = external(self, key)?;
                let target = self.state.arenas.bytes_mut(extent)?;
                target.copy_from_slice(&bytes);
                from_little_endian(target, meta.dtype());
                Storage::Arena(extent)
            }
            TensorData::External(key) => self.external_constant(id, key, &meta)?,
            TensorData::Constant(range) => self.constant(range, &meta)?,
            TensorData::Unplanned => {
                let buffer = self.allocate(meta.nbytes() as u64)?;
                let arena = self.state.arenas.push(buffer);
                Storage::Arena(Extent { arena, offset: 0, len: meta.nbytes() })
            }
        };
        Ok(TensorValue {
            bound: *meta.sizes(),
            name: t.fully_qualified_name().map(Into::into),
            meta,
            storage,
            home: storage,
        })
    }

    /// Adds a constant of the program. If its bytes take memory, they are read on first access.
    fn constant(&mut self, range: Range<u64>, meta: &TensorMeta) -> Result<Storage> {
        if !self.program.loader().takes_memory() || cfg!(target_endian = "big") {
            return self.push_bytes(self.program.load_constant(range)?, meta);
        }
        let deferred = match self.deferred.get(&range) {
            Some(known) => Arc::clone(known),
            None => {
                self.weight_bytes = self.weight_bytes.saturating_add(meta.nbytes() as u64);
                let source = Source::Program(self.program.clone(), range.clone());
                let new = self.deferred_constant(source, meta);
                self.deferred.insert(range, Arc::clone(&new));
                new
            }
        };
        Ok(self.push_constant(ConstantBytes::deferred(deferred)))
    }

    /// Adds a constant that is stored outside the program.
    fn external_constant(&mut self, id: Id, key: &str, meta: &TensorMeta) -> Result<Storage> {
        let data = self.options.data.clone();
        if let Some(data) = &data
            && (External { method: &self.name, id, meta }).check_layout(key, &**data)?
        {
            let source = Source::Named(Arc::clone(data), key.to_owned());
            let deferred = self.deferred_constant(source, meta);
            return Ok(self.push_constant(ConstantBytes::deferred(deferred)));
        }
        self.push_bytes(external_bytes(&self.name, id, key, meta, data.as_deref())?, meta)
    }

    fn deferred_constant(&self, source: Source, meta: &TensorMeta) -> Arc<Deferred> {
        Arc::new(Deferred::new(source, meta.nbytes(), Elements::Of(meta.dtype()), &self.budget))
    }

    fn push_bytes(&mut self, bytes: FreeableBuffer, meta: &TensorMeta) -> Result<Storage> {
        let bytes = aligned(bytes, Elements::Of(meta.dtype()))?;
        let held = match bytes.takes_memory() {
            true => bytes.len(),
            false => 0,
        };
        let held = self.budget.take("its constants", held).map_err(over_memory)?;
        Ok(self.push_constant(ConstantBytes::here(bytes.holding(held))))
    }

    fn push_constant(&mut self, constant: ConstantBytes) -> Storage {
        self.state.constants.push(constant);
        Storage::Constant(self.state.constants.len() - 1)
    }

    fn delegates(
        &mut self,
        tracer: Tracer<'_>,
        kernels: &[Option<Arc<dyn Kernel>>],
    ) -> Result<Vec<DelegateEntry>> {
        if self.plan.delegates.is_empty() {
            return Ok(Vec::new());
        }
        let mut alignments = crate::open::own_data::alignments(self.program, &self.name)?;
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
        let calls = CallArguments::of(plan, &self.state, kernels, data);
        let mut entries = Vec::new();
        for (index, call) in calls.iter().enumerate() {
            let alignment = u32::try_from(index).ok().and_then(|index| alignments.payloads.get(&index));
            let alignment = alignment.map_or(Ok(1), |&alignment| usize_of(alignment))?;
            entries.push(self.delegate(index, call.as_ref(), alignment, named_data, tracer)?);
        }
        Ok(entries)
    }

    /// Makes a delegate. `call` is its first call, `alignment` that of its payload in memory.
    fn delegate(
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
        let processed = self.payload(delegate)?;
        let processed =
            processed.aligned(alignment, "its aligned payloads", &self.budget).map_err(over_memory)?;
        let specs: Vec<_> =
            delegate.compile_specs.iter().map(|s| CompileSpec { key: &s.key, value: &s.value }).collect();
        let no_specs = BackendOptions::new();
        let ctx = BackendInitContext {
            method: &self.name,
            call,
            named_data,
            specs: self.options.backend_options.get(&delegate.id).unwrap_or(&no_specs),
            tracer,
            pool: &self.options.pool,
            isa: self.options.isa,
            memory: BackendMemory::new(self.options.limits.backend_bytes, &self.budget),
        };
        let make = || -> Result<DelegateEntry, BackendError> {
            let made = guarded(|| backend.init(&ctx, processed, &specs))?;
            let entry = DelegateEntry::new(delegate.id.as_str().into(), made)?;
            let checked = call.map_or(Ok(()), |call| call.check(entry.num_inputs));
            checked.map_err(BackendError::new).map(|()| entry)
        };
        let made = pteron_pool::interruptible(make).unwrap_or_else(|why| Err(why.into()));
        let fired = || self.options.interrupt.as_ref().and_then(|interrupt| interrupt.check().err());
        let interrupted = made.as_ref().err().and_then(BackendError::interrupted).or_else(fired);
        if let Some(source) = interrupted {
            let place = Some(format!("delegate {index} of `{}`", delegate.id));
            return Err(Error::Interrupted { method: self.name.to_string(), place, source });
        }
        let entry = made.map_err(|source| Error::BackendInit {
            method: self.name.to_string(),
            backend: delegate.id.clone(),
            index,
            source_frame: call.and_then(|call| {
                let (chain, instruction) = call.place;
                self.program.place(self.meta.index(), chain, instruction).source_frame
            }),
            source,
        })?;
        let held = ctx.memory.into_held();
        self.held.extend(held);
        Ok(entry)
    }

    /// The payload of a delegate, charged to the budget if it takes memory.
    fn payload(&self, delegate: &pte::BackendDelegate) -> Result<FreeableBuffer> {
        let range = self.meta.payload_range(delegate);
        let payload = usize_of(range.end.saturating_sub(range.start))?;
        let held = match self.program.loader().takes_memory() {
            true => Some(self.budget.take("its payloads", payload).map_err(over_memory)?),
            false => None,
        };
        let processed = self.program.load_range(range, Purpose::Backend(&delegate.id))?;
        Ok(match held {
            Some(held) => processed.holding(held),
            None => processed,
        })
    }

    /// The kernel of each entry of the operator table; `None` for an entry that no instruction calls.
    fn kernels(&self) -> Vec<Option<Arc<dyn Kernel>>> {
        self.plan.operators.iter().map(|op| self.options.kernels.get(&op.full_name())).collect()
    }

    fn chains(&self, kernels: &[Option<Arc<dyn Kernel>>], delegates: &[DelegateEntry]) -> Result<Vec<Chain>> {
        let chain = |(c, chain): (usize, &pte::Chain)| {
            let step = |(i, instruction)| {
                self.step(instruction, kernels, delegates).map_err(|problem| {
                    let at = self.program.place(self.meta.index(), c, i);
                    self.error(format!("instruction {at}"), problem)
                })
            };
            let steps = chain.instructions.iter().enumerate().map(step).collect::<Result<_>>()?;
            Ok(Chain { steps })
        };
        self.plan.chains.iter().enumerate().map(chain).collect()
    }

    fn step(
        &self,
        instruction: &pte::Instruction,
        kernels: &[Option<Arc<dyn Kernel>>],
        delegates: &[DelegateEntry],
    ) -> Result<Step, String> {
        resolve::step(instruction, |call| match call {
            Called::Kernel(operator, args) => {
                let kernel =
                    kernels.get(operator).cloned().flatten().ok_or("its kernel is not registered")?;
                Ok(Step::Kernel(kernel_step(&self.state.values, operator, kernel, args)?))
            }
            Called::Delegate(delegate, args) => {
                let entry = delegates.get(delegate).ok_or("there is no such delegate")?;
                Ok(Step::Delegate(delegate_step(&self.state.values, delegate, entry.num_inputs, args)?))
            }
        })
    }
}

impl Limits {
    /// Checks the total size of all arenas against the limit.
    pub(crate) fn arena(&self, needed: u64) -> Result<usize> {
        if needed > self.arena_bytes {
            return Err(Error::Limit {
                what: "the memory plan".to_owned(),
                needed,
                limit: self.arena_bytes,
                field: "arena_bytes",
            });
        }
        usize_of(needed)
    }
}

/// Checks that named data fits a plan: it has every tensor that the plan stores outside the program, with the type and
/// shape that the plan declares.
pub(crate) fn check_data(program: &Program, plan: usize, data: &dyn NamedDataMap) -> Result<()> {
    let meta = MethodMeta::new(program, plan);
    check_present(meta, Some(data))?;
    for (id, value) in meta.plan().values.iter().enumerate() {
        if let Some(t) = value.as_tensor().filter(|t| t.is_external()) {
            let key = t.fully_qualified_name().unwrap_or("");
            let tensor = tensor_meta(t)?;
            // A matching layout determines the number of bytes. A blob has no layout, so its length is checked.
            if !(External { method: meta.name(), id, meta: &tensor }).check_layout(key, data)? {
                external_bytes(meta.name(), id, key, &tensor, Some(data))?;
            }
        }
    }
    Ok(())
}

/// Fails if external tensors of the method have no data. The error gives their number and the first key.
fn check_present(meta: MethodMeta<'_>, data: Option<&dyn NamedDataMap>) -> Result<()> {
    let values = meta.plan().values.iter();
    let external = values.filter_map(pte::EValue::as_tensor).filter(|t| t.is_external());
    let keys = external.map(|t| t.fully_qualified_name().unwrap_or(""));
    let mut lacking: Vec<&str> = keys.filter(|key| !data.is_some_and(|d| d.contains(key))).collect();
    lacking.sort_unstable();
    lacking.dedup();
    let Some(first) = lacking.first() else { return Ok(()) };
    let problem = match data {
        None => "no data file was given; give the `.ptd` file that was exported with the program".to_owned(),
        Some(data) => format!("{} does not hold them", data.name()),
    };
    Err(Error::ExternalData {
        method: meta.name().to_owned(),
        count: lacking.len(),
        key: (*first).to_owned(),
        problem,
    })
}

/// The bytes of an external tensor. Fails if its layout or length differs from the program's.
fn external_bytes(
    method: &str,
    id: Id,
    key: &str,
    meta: &TensorMeta,
    data: Option<&dyn NamedDataMap>,
) -> Result<FreeableBuffer> {
    let place = External { method, id, meta };
    let data = data.ok_or_else(|| place.error("no data file was given"))?;
    place.check_layout(key, data)?;
    let bytes = data.data(key).map_err(|e| place.error(one_line(&e)))?;
    if bytes.len() != meta.nbytes() {
        return Err(place.error(format!(
            "`{key}` is {} bytes in the program and {} in {}",
            meta.nbytes(),
            bytes.len(),
            data.name()
        )));
    }
    Ok(bytes)
}

/// A tensor of a method that is stored outside the program.
struct External<'a> {
    method: &'a str,
    id: Id,
    meta: &'a TensorMeta,
}

impl External<'_> {
    /// Fails if the data has the tensor with another layout. Returns whether the data knows the layout.
    fn check_layout(&self, key: &str, data: &dyn NamedDataMap) -> Result<bool> {
        let Some(found) = data.tensor_layout(key).map_err(|e| self.error(one_line(&e)))? else {
            return Ok(false);
        };
        let meta = self.meta;
        let same = found.dtype() == meta.dtype()
            && found.sizes() == meta.sizes()
            && found.dim_order().same_layout(meta.dim_order(), meta.sizes());
        if same {
            return Ok(true);
        }
        Err(self.error(format!(
            "`{key}` is {meta} in the program and {found} in {}: the files do not belong together",
            data.name()
        )))
    }

    fn error(&self, problem: impl Into<String>) -> Error {
        let place = format!("value {} ({}, stored outside the program)", self.id, self.meta);
        Error::Load { method: self.method.to_owned(), place, problem: problem.into() }
    }
}

/// The arena extent that the memory plan assigns to a tensor.
pub(crate) fn planned(t: &pte::Tensor, meta: &TensorMeta) -> Result<Extent> {
    let at = t.allocation_info.unwrap_or_default();
    Ok(Extent {
        arena: at.memory_id.saturating_sub(1) as usize,
        offset: usize_of(at.offset())?,
        len: meta.nbytes(),
    })
}

/// Converts a 64-bit size from a file to `usize`. Fails if it does not fit.
pub(crate) fn usize_of(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| pteron_tensor::Error::SizeOverflow { shape: format!("{n} bytes") }.into())
}

/// Converts little-endian elements to the host's byte order, in place.
pub(crate) fn from_little_endian(bytes: &mut [u8], dtype: ScalarType) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.alignment()).for_each(<[u8]>::reverse);
    }
}
