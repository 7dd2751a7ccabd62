use crate::convert::usize_of;
use crate::error::{Error, InstructionPlace};
use crate::{DataLoader, FileLoader, FreeableBuffer, Limits, MmapLoader, Purpose, Result};
use pteron_engine::SourceId;
use pteron_format::pte;
use pteron_tensor::Unchanged;
use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// A verified program: header and tables of a `.pte` file, and a loader for its segments.
///
/// Clones share everything. Methods loaded from clones share their constants, which are read once and released when the
/// last method that uses them is dropped.
#[derive(Clone)]
pub struct Program(Arc<Inner>);

struct Inner {
    loader: Arc<dyn DataLoader>,
    source: SourceId,
    program: pte::VerifiedProgram,
    /// Constants of the constant segment that methods currently use.
    constants: Mutex<Constants>,
    limits: Limits,
}

/// Constants that methods share.
#[derive(Default)]
struct Constants {
    /// The whole constant segment, if it is mapped or in memory, or if the parts that methods use overlap.
    segment: Weak<FreeableBuffer>,
    /// Parts of the segment that were read separately, so that each can be freed when its last user is dropped.
    parts: HashMap<Range<u64>, Weak<FreeableBuffer>>,
    /// Total bytes of `parts`, including parts that have been freed since the last recount.
    bytes: u64,
}

impl Constants {
    /// Whether a part of this length may be read separately. All parts together may not exceed the segment's size, as
    /// overlapping parts could.
    fn has_room(&mut self, len: u64, segment: u64) -> bool {
        if self.bytes.saturating_add(len) > segment {
            self.parts.retain(|_, part| part.strong_count() > 0);
            self.bytes = self.parts.keys().map(|range| range.end - range.start).sum();
        }
        self.bytes.saturating_add(len) <= segment
    }
}

impl Program {
    /// Opens a file under the default limits and reads ranges of it on demand.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &Limits::default())
    }

    /// Opens a file and reads ranges of it on demand.
    pub fn open_with(path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        Self::load(Arc::new(FileLoader::open(path)?), limits)
    }

    /// Memory-maps a file under the default limits. The file must not change while the program or its methods live.
    pub fn map(path: impl AsRef<Path>, unchanged: Unchanged) -> Result<Self> {
        Self::map_with(path, &Limits::default(), unchanged)
    }

    /// Memory-maps a file, which must not change while the program or its methods live.
    pub fn map_with(path: impl AsRef<Path>, limits: &Limits, unchanged: Unchanged) -> Result<Self> {
        Self::load(Arc::new(MmapLoader::open(path, unchanged)?), limits)
    }

    /// Reads the first 64 bytes, then exactly the program's tables, and verifies them. No segment is read. Fails if the
    /// program has methods, but none that is valid.
    pub fn load(loader: Arc<dyn DataLoader>, limits: &Limits) -> Result<Self> {
        let program = Self::load_readable(loader, limits)?;
        program.require_a_valid_method()?;
        Ok(program)
    }

    /// Opens a program as [`load`](Self::load) does, even if no method is valid, for tools that show what can be read of it.
    pub fn load_readable(loader: Arc<dyn DataLoader>, limits: &Limits) -> Result<Self> {
        let fail = |e| Error::format(loader.name(), e);
        let head_len = loader.size().min(pteron_format::container::HEAD_BYTES as u64);
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
        let program = pte::VerifiedProgram::read_readable(&tables, &header, &limits.format).map_err(fail)?;
        let source = loader.source().unwrap_or_else(SourceId::unique);
        let (constants, limits) = (Mutex::default(), limits.clone());
        Ok(Self(Arc::new(Inner { loader, source, program, constants, limits })))
    }

    /// The file's header.
    pub fn header(&self) -> &pte::Header {
        self.0.program.header()
    }

    /// The program's verified tables.
    pub fn tables(&self) -> &pte::VerifiedProgram {
        &self.0.program
    }

    /// The loader of the program's bytes.
    pub fn loader(&self) -> &Arc<dyn DataLoader> {
        &self.0.loader
    }

    /// The names of the valid methods, in the order of the file.
    pub fn method_names(&self) -> impl Iterator<Item = &str> {
        self.tables().execution_plan.iter().map(|p| p.name.as_str())
    }

    /// The methods that are not valid: they cannot be loaded, and do not affect the others.
    pub fn invalid_methods(&self) -> &[pte::InvalidMethod] {
        self.tables().invalid_methods()
    }

    /// Fails if the program has methods, but none that is valid.
    pub fn require_a_valid_method(&self) -> Result<()> {
        match self.invalid_methods().first() {
            Some(first) if self.tables().execution_plan.is_empty() => {
                Err(Error::format(self.loader().name(), first.error.clone()))
            }
            _ => Ok(()),
        }
    }

    /// Fails if a method is not valid, for callers that need the whole program.
    pub fn require_valid_methods(&self) -> Result<()> {
        self.invalid_methods().first().map_or(Ok(()), |first| Err(self.invalid_method(first)))
    }

    pub(crate) fn no_such_method(&self, name: &str) -> Error {
        Error::NoSuchMethod {
            name: name.to_owned(),
            available: self.method_names().map(str::to_owned).collect(),
        }
    }

    /// The method that is meant if none is named: `forward`, or the only one; `None` if there is neither. Fails if that
    /// method is not valid.
    pub fn default_method(&self) -> Result<Option<&str>> {
        let names: Vec<&str> = self.method_names().collect();
        if names.contains(&"forward") {
            return Ok(Some("forward"));
        }
        let forward =
            self.invalid_methods().iter().find(|invalid| invalid.name.as_deref() == Some("forward"));
        match (forward, &names[..]) {
            (Some(forward), _) => Err(self.invalid_method(forward)),
            (None, [only]) if self.invalid_methods().is_empty() => Ok(Some(only)),
            (None, _) => Ok(None),
        }
    }

    /// The error for a method that cannot be loaded.
    fn invalid_method(&self, invalid: &pte::InvalidMethod) -> Error {
        let unnamed = || format!("execution_plan[{}]", invalid.index);
        Error::InvalidMethod {
            file: self.0.loader.name().to_owned(),
            method: invalid.name.clone().unwrap_or_else(unnamed),
            source: Box::new(invalid.error.clone()),
        }
    }

    pub(crate) fn plan_index(&self, name: &str) -> Result<usize> {
        self.method_names().position(|n| n == name).ok_or_else(|| {
            let invalid = self.invalid_methods().iter().find(|invalid| invalid.name.as_deref() == Some(name));
            invalid.map_or_else(|| self.no_such_method(name), |invalid| self.invalid_method(invalid))
        })
    }

    /// The position of an instruction and what it calls, for messages.
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

    /// What the instruction at a place of a method calls, and the source line that it was exported from. `None` if the
    /// place does not refer to an instruction.
    pub fn instruction_place(
        &self,
        method: &str,
        at: pteron_trace::Place,
    ) -> Result<Option<InstructionPlace>> {
        let plan = self.plan_index(method)?;
        let place = at.chain.zip(at.instruction);
        Ok(place.map(|(chain, instruction)| self.place(plan, chain as usize, instruction as usize)))
    }

    /// Loads a byte range of the file. The bytes are not shared with other callers.
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
        Ok(self.0.loader.load(range.start, len, purpose)?.with_source(self.0.source, range.start))
    }

    /// Identifies the source of the program's bytes.
    pub(crate) fn source(&self) -> SourceId {
        self.0.source
    }

    /// The bytes of a constant. Constants in the constant segment are read once and shared.
    pub(crate) fn load_constant(&self, range: Range<u64>) -> Result<FreeableBuffer> {
        let Some(segment) = self.0.program.constant_segment() else {
            return self.load_range(range, Purpose::Constant);
        };
        if range.start < segment.start || range.end > segment.end {
            return self.load_range(range, Purpose::Constant);
        }
        let mut constants = self.0.constants.lock().unwrap_or_else(PoisonError::into_inner);
        let all = match constants.segment.upgrade() {
            Some(present) => present,
            None if self.0.loader.takes_memory() => {
                let len = range.end.saturating_sub(range.start);
                if let Some(part) = constants.parts.get(&range).and_then(Weak::upgrade) {
                    return Ok(FreeableBuffer::part_of(part, 0..usize_of(len)?));
                }
                if constants.has_room(len, segment.end - segment.start) {
                    let part = Arc::new(self.load_range(range.clone(), Purpose::Constant)?);
                    constants.parts.insert(range, Arc::downgrade(&part));
                    constants.bytes += len;
                    return Ok(FreeableBuffer::part_of(part, 0..usize_of(len)?));
                }
                self.load_segment(segment.clone(), &mut constants)?
            }
            None => self.load_segment(segment.clone(), &mut constants)?,
        };
        let within = usize_of(range.start - segment.start)?..usize_of(range.end - segment.start)?;
        Ok(FreeableBuffer::part_of(all, within))
    }

    fn load_segment(&self, segment: Range<u64>, constants: &mut Constants) -> Result<Arc<FreeableBuffer>> {
        let new = Arc::new(self.load_range(segment, Purpose::Constant)?);
        constants.segment = Arc::downgrade(&new);
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
