use crate::error::{Error, InstructionPlace, Missing, MissingBackend, MissingOperator};
use crate::load::{self, usize_of};
use crate::meta::MethodMeta;
use crate::{
    BackendRegistry, DataLoader, FileLoader, FreeableBuffer, Limits, LoadOptions, Method, MmapLoader,
    Purpose, Result,
};
use format::pte;
use graph::SourceId;
use operator::KernelRegistry;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tensor::Unchanged;

/// Missing operators for which names like theirs are looked for.
const EXPLAINED: usize = 20;

/// A verified program: header and tables of a `.pte` file, and the way to its segments.
///
/// Cloning shares everything. Methods loaded from clones share their constants, which are read once
/// and let go when the last method that uses them goes.
#[derive(Clone)]
pub struct Program(Arc<Inner>);

struct Inner {
    loader: Arc<dyn DataLoader>,
    source: SourceId,
    program: pte::VerifiedProgram,
    /// Constants of the constant segment, for as long as somebody uses them.
    constants: Mutex<Constants>,
    limits: Limits,
}

/// Constants that methods share.
#[derive(Default)]
struct Constants {
    /// The whole segment, if it is mapped or in memory, or if its parts overlap.
    whole: Weak<FreeableBuffer>,
    /// Parts that were read on their own, so that each can be freed when its last user is gone.
    parts: HashMap<Range<u64>, Weak<FreeableBuffer>>,
    /// Bytes of the parts, those that have gone since counted in.
    bytes: u64,
}

impl Constants {
    /// Whether a part of this length may be read by itself: parts that overlap would take more than the segment.
    fn has_room(&mut self, len: u64, segment: u64) -> bool {
        if self.bytes.saturating_add(len) > segment {
            self.parts.retain(|_, part| part.strong_count() > 0);
            self.bytes = self.parts.keys().map(|range| range.end - range.start).sum();
        }
        self.bytes.saturating_add(len) <= segment
    }
}

impl Program {
    /// Opens a file, of which ranges are read when they are needed, under the default limits.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &Limits::default())
    }

    /// Opens a file, of which ranges are read when they are needed.
    pub fn open_with(path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        Self::load(Arc::new(FileLoader::open(path)?), limits)
    }

    /// Maps a file, which stays as it is while the program and its methods live, under the default limits.
    pub fn map(path: impl AsRef<Path>, unchanged: Unchanged) -> Result<Self> {
        Self::map_with(path, &Limits::default(), unchanged)
    }

    /// Maps a file, which stays as it is while the program and its methods live.
    pub fn map_with(path: impl AsRef<Path>, limits: &Limits, unchanged: Unchanged) -> Result<Self> {
        Self::load(Arc::new(MmapLoader::open(path, unchanged)?), limits)
    }

    /// Reads 64 bytes of head, then exactly the program's tables, and verifies all they say. No
    /// segment is read.
    pub fn load(loader: Arc<dyn DataLoader>, limits: &Limits) -> Result<Self> {
        let fail = |e| Error::format(loader.name(), e);
        let head_len = loader.size().min(format::container::HEAD_BYTES as u64);
        let head = loader.load(0, head_len, Purpose::Program)?;
        let header = pte::Header::parse(&head, loader.size()).map_err(fail)?;
        if header.program_size > limits.format.program_bytes {
            return Err(Error::Limit {
                what: format!("the program of {}", loader.name()),
                needed: header.program_size,
                limit: limits.format.program_bytes,
                field: "format.program_bytes",
            });
        }
        if loader.takes_memory() {
            limits.check_memory(|| format!("the program of {}", loader.name()), header.program_size)?;
        }
        let tables = loader.load(0, header.program_size, Purpose::Program)?;
        let program = pte::VerifiedProgram::read(&tables, &header, &limits.format).map_err(fail)?;
        let source = loader.source().unwrap_or_else(SourceId::numbered);
        let (constants, limits) = (Mutex::default(), limits.clone());
        Ok(Self(Arc::new(Inner { loader, source, program, constants, limits })))
    }

    /// What the file's header says.
    pub fn header(&self) -> &pte::Header {
        self.0.program.header()
    }

    /// The program's tables, which were verified.
    pub fn tables(&self) -> &pte::VerifiedProgram {
        &self.0.program
    }

    /// Where the program's bytes come from.
    pub fn loader(&self) -> &Arc<dyn DataLoader> {
        &self.0.loader
    }

    /// The names of the methods, in the order of the file.
    pub fn method_names(&self) -> impl Iterator<Item = &str> {
        self.tables().execution_plan.iter().map(|p| p.name.as_str())
    }

    /// What the program says about a method. Nothing is loaded for it.
    pub fn method_meta(&self, name: &str) -> Result<MethodMeta<'_>> {
        Ok(MethodMeta::new(self, self.plan_index(name)?))
    }

    /// Every method's description, in the order of the file.
    pub fn methods(&self) -> impl Iterator<Item = MethodMeta<'_>> {
        (0..self.tables().execution_plan.len()).map(|i| MethodMeta::new(self, i))
    }

    /// Loads a method: memory, constants, kernels, delegates.
    ///
    /// Operators and backends that the registries lack are all named in one error, before anything
    /// is read or run.
    pub fn load_method(&self, name: &str, options: LoadOptions) -> Result<Method> {
        let plan = self.plan_index(name)?;
        let missing = self.missing(plan, &options.kernels, &options.backends);
        if !missing.is_empty() {
            return Err(missing.into());
        }
        let _armed = options.interrupt.as_ref().map(pool::Interrupt::arm);
        pool::interruptible(|| load::method(self, plan, options))
            .unwrap_or_else(|source| Err(Error::Interrupted { method: name.to_owned(), source }))
    }

    /// What a method needs and the registries lack.
    pub fn missing_in(
        &self,
        method: &str,
        kernels: &KernelRegistry,
        backends: &BackendRegistry,
    ) -> Result<Missing> {
        Ok(self.missing(self.plan_index(method)?, kernels, backends))
    }

    fn missing(&self, plan: usize, kernels: &KernelRegistry, backends: &BackendRegistry) -> Missing {
        let meta = MethodMeta::new(self, plan);
        let mut missing = Missing { method: meta.name().to_owned(), ..Missing::default() };
        for op in meta.operators() {
            if !kernels.contains(&op.name) {
                // A file may name any number of operators; looking for what they are like takes a while.
                let similar = match missing.operators.len() {
                    0..EXPLAINED => kernels.similar(&op.name).into_iter().map(str::to_owned).collect(),
                    _ => Vec::new(),
                };
                missing.operators.push(MissingOperator { name: op.name, calls: op.calls, similar });
            }
        }
        for backend in meta.backends() {
            let found = backends.get(&backend.id);
            if !found.is_some_and(|b| b.is_available()) {
                missing.backends.push(MissingBackend {
                    id: backend.id,
                    delegates: backend.delegates,
                    payload_bytes: backend.payload_bytes,
                    unavailable: found.is_some(),
                });
            }
        }
        missing
    }

    pub(crate) fn no_such_method(&self, name: &str) -> Error {
        Error::NoSuchMethod {
            name: name.to_owned(),
            available: self.method_names().map(str::to_owned).collect(),
        }
    }

    fn plan_index(&self, name: &str) -> Result<usize> {
        self.method_names().position(|n| n == name).ok_or_else(|| self.no_such_method(name))
    }

    /// Where an instruction stands and what it calls, for messages.
    pub(crate) fn place(&self, plan: usize, chain: usize, instruction: usize) -> InstructionPlace {
        let plan = &self.tables().execution_plan[plan];
        let chain_tables = plan.chains.get(chain);
        let step = chain_tables.and_then(|c| c.instructions.get(instruction));
        let what = match step {
            Some(pte::Instruction::KernelCall { op_index, .. }) => {
                plan.operators.get(*op_index as usize).map_or_else(String::new, |op| op.full_name())
            }
            Some(pte::Instruction::DelegateCall { delegate_index, .. }) => {
                let id = plan.delegates.get(*delegate_index as usize).map_or("", |d| d.id.as_str());
                format!("delegate {delegate_index} of `{id}`")
            }
            Some(other) => other.kind().to_owned(),
            None => String::new(),
        };
        let frame = chain_tables.and_then(|c| c.stacktrace.get(instruction)).and_then(|f| f.items.last());
        let source_frame = frame.map(|f| {
            format!(
                "{}:{} in {}",
                f.filename.as_deref().unwrap_or("?"),
                f.lineno,
                f.name.as_deref().unwrap_or("?")
            )
        });
        InstructionPlace { chain, instruction, what, source_frame }
    }

    /// What the instruction at a place of a method calls, and where it came from; `None` if the place
    /// is no instruction.
    pub fn instruction_place(&self, method: &str, at: trace::Place) -> Result<Option<InstructionPlace>> {
        let plan = self.plan_index(method)?;
        let place = at.chain.zip(at.instruction);
        Ok(place.map(|(chain, instruction)| self.place(plan, chain as usize, instruction as usize)))
    }

    /// Bytes of the file, for this one use.
    pub fn load_range(&self, range: Range<u64>, purpose: Purpose<'_>) -> Result<FreeableBuffer> {
        let len = range.end.saturating_sub(range.start);
        if len > self.0.limits.segment_bytes {
            return Err(Error::Limit {
                what: format!("bytes {range:?} of {}", self.0.loader.name()),
                needed: len,
                limit: self.0.limits.segment_bytes,
                field: "segment_bytes",
            });
        }
        if self.0.loader.takes_memory() {
            let what = || format!("bytes {range:?} of {}", self.0.loader.name());
            self.0.limits.check_memory(what, len)?;
        }
        Ok(self.0.loader.load(range.start, len, purpose)?.of_source(self.0.source, range.start))
    }

    /// The source of its bytes.
    pub(crate) fn source(&self) -> SourceId {
        self.0.source
    }

    /// The bytes of a constant. Those of the constant segment are read once for all who hold them.
    pub(crate) fn load_constant(&self, range: Range<u64>) -> Result<FreeableBuffer> {
        let Some(segment) = self.0.program.constant_segment() else {
            return self.load_range(range, Purpose::Constant);
        };
        if range.start < segment.start || range.end > segment.end {
            return self.load_range(range, Purpose::Constant);
        }
        let mut constants = self.0.constants.lock().unwrap_or_else(PoisonError::into_inner);
        let all = match constants.whole.upgrade() {
            Some(present) => present,
            None if self.0.loader.takes_memory() => {
                let len = range.end.saturating_sub(range.start);
                if let Some(part) = constants.parts.get(&range).and_then(Weak::upgrade) {
                    return Ok(FreeableBuffer::part(part, 0..usize_of(len)?));
                }
                if constants.has_room(len, segment.end - segment.start) {
                    let part = Arc::new(self.load_range(range.clone(), Purpose::Constant)?);
                    constants.parts.insert(range, Arc::downgrade(&part));
                    constants.bytes += len;
                    return Ok(FreeableBuffer::part(part, 0..usize_of(len)?));
                }
                self.load_whole(segment.clone(), &mut constants)?
            }
            None => self.load_whole(segment.clone(), &mut constants)?,
        };
        let within = usize_of(range.start - segment.start)?..usize_of(range.end - segment.start)?;
        Ok(FreeableBuffer::part(all, within))
    }

    fn load_whole(&self, segment: Range<u64>, constants: &mut Constants) -> Result<Arc<FreeableBuffer>> {
        let new = Arc::new(self.load_range(segment, Purpose::Constant)?);
        constants.whole = Arc::downgrade(&new);
        Ok(new)
    }
}

impl std::fmt::Debug for Program {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Program({:?}, methods ", self.0.loader.name())?;
        f.debug_list().entries(self.method_names()).finish()?;
        f.write_str(")")
    }
}
