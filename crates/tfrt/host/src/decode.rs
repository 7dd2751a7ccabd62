//! Functions from a BEF file: kernel names are resolved when the file is opened; a function's record is decoded when
//! the function is first called.

use crate::attributes::SiteAttribute;
use crate::body::{Body, BodyParts, NodeParts, Order};
use crate::error::{Error, Result, SourceLocation, UnknownKernel};
use crate::file::{Bytes, ProgramFile};
use crate::frame::{Location, Site};
use crate::function::{BodyDecoder, Entry, FunctionKind, Module, Program};
use crate::kernel::{Effect, Kernel};
use crate::registry::KernelRegistry;
use crate::source::ProgramSource;
use pteron_bef::FunctionKind as BefKind;
use pteron_bef::section::function_index::{FunctionEntry, FunctionIndex};
use pteron_bef::section::functions::{FunctionRecord, KernelRecord};
use pteron_bef::{FunctionId, TypeId};
use std::sync::{Arc, OnceLock};

/// A kernel that the file names and the registry has.
struct Resolved {
    name: Arc<str>,
    kernel: Arc<dyn Kernel>,
    effect: Effect,
}

/// Kind of each function and offset of its record.
type Records = Vec<(BefKind, u64)>;

/// Decodes function records of a file to bodies.
struct RecordDecoder {
    /// Kernels, indexed by their code in the file.
    kernels: Vec<Resolved>,
    records: Records,
}

/// The file's tables of kernel names and functions.
struct Tables<'t, 'a> {
    file: &'t pteron_bef::File<'a>,
    kernel_names: &'t [&'a str],
    index: &'t FunctionIndex<'a>,
}

impl Module {
    /// Verifies a BEF file and resolves its kernels.
    ///
    /// # Errors
    /// [`Error::Bef`] when the file is malformed; [`Error::UnknownKernels`] and
    /// [`Error::UnknownNative`] when the registry lacks something that it uses.
    pub fn open(bytes: Bytes, registry: &KernelRegistry) -> Result<Arc<Self>> {
        let opened = ProgramFile::open(&bytes)?;
        let program = opened.file().clone().verify()?;
        let tables =
            Tables { file: program.file(), kernel_names: program.kernel_names(), index: program.functions() };
        let (functions, kernels, records) = Self::from_tables(&tables, registry)?;
        drop(program);
        Ok(Self::from_file(opened, functions, kernels, records))
    }

    /// Opens a BEF file without verifying it as a whole. Each function is checked when it is first called; a call of a
    /// malformed function fails.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_lazily(bytes: Bytes, registry: &KernelRegistry) -> Result<Arc<Self>> {
        let opened = ProgramFile::open(&bytes)?;
        let file = opened.file();
        let tables = Tables { file, kernel_names: &file.kernel_names()?, index: &file.function_index()? };
        let (functions, kernels, records) = Self::from_tables(&tables, registry)?;
        Ok(Self::from_file(opened, functions, kernels, records))
    }

    fn from_file(
        file: ProgramFile,
        functions: Vec<Entry>,
        kernels: Vec<Resolved>,
        records: Records,
    ) -> Arc<Self> {
        let decoder = Box::new(RecordDecoder { kernels, records });
        Arc::new(Self { functions, program: Some(Program { source: ProgramSource::new(file), decoder }) })
    }

    fn from_tables(
        tables: &Tables<'_, '_>,
        registry: &KernelRegistry,
    ) -> Result<(Vec<Entry>, Vec<Resolved>, Records)> {
        let index = tables.index;
        let kernels = resolve_kernels(tables, registry)?;
        let mut functions = Vec::with_capacity(index.len());
        let mut records = Vec::with_capacity(index.len());
        for entry in index.iter() {
            let native = match entry.kind {
                BefKind::Native => {
                    let native = registry.native(entry.name);
                    Some(native.ok_or_else(|| unknown_native_error(tables, entry.name, functions.len()))?)
                }
                _ => None,
            };
            records.push((entry.kind, entry.offset));
            functions.push(Entry {
                name: entry.name.to_owned(),
                kind: match entry.kind {
                    BefKind::Async => FunctionKind::Async,
                    BefKind::Sync => FunctionKind::Sync,
                    BefKind::Native => FunctionKind::Native,
                },
                arguments: entry.arguments.len() as u32,
                results: entry.results.len() as u32,
                types: entry.arguments.iter().chain(entry.results).map(|t| t.0).collect(),
                native: native.cloned(),
                body: OnceLock::new(),
                ordered: OnceLock::new(),
            });
        }
        Ok((functions, kernels, records))
    }
}

fn resolve_kernels(tables: &Tables<'_, '_>, registry: &KernelRegistry) -> Result<Vec<Resolved>> {
    let names = tables.kernel_names;
    let mut kernels = Vec::with_capacity(names.len());
    let mut unknown = Vec::new();
    for (code, &name) in (0u32..).zip(names) {
        match registry.kernel_with_effect(name) {
            Some((name, kernel, effect)) => {
                kernels.push(Resolved { name: Arc::clone(name), kernel: Arc::clone(kernel), effect });
            }
            None => {
                let location = first_use(tables, |kernel| kernel.code() == code);
                unknown.push(UnknownKernel { name: name.to_owned(), location });
            }
        }
    }
    if unknown.is_empty() { Ok(kernels) } else { Err(Error::UnknownKernels(unknown)) }
}

#[cold]
fn unknown_native_error(tables: &Tables<'_, '_>, name: &str, id: usize) -> Error {
    let location = first_use(tables, |kernel| kernel.functions().iter().any(|f| f as usize == id));
    Error::UnknownNative { name: name.to_owned(), location }
}

/// The location of the first kernel that satisfies `predicate`.
fn first_use(
    tables: &Tables<'_, '_>,
    predicate: impl Fn(&KernelRecord<'_>) -> bool,
) -> Option<SourceLocation> {
    let Tables { file, index, .. } = tables;
    for id in (0..index.len() as u32).map(FunctionId) {
        let Ok(Some(record)) = file.function(index, id) else { continue };
        if let Some(kernel) = record.kernels().skip(1).flatten().find(&predicate) {
            let location = file.locations().get(kernel.location().into());
            return location.ok()?.map(pteron_bef::Location::into_owned);
        }
    }
    None
}

impl BodyDecoder for RecordDecoder {
    fn decode(&self, source: &ProgramSource, function: u32, declared: &Entry) -> Result<Body, String> {
        let (kind, offset) = self.records.get(function as usize).ok_or("it is not in the file")?;
        if *kind == BefKind::Native {
            return Err("it is native and has no kernels".into());
        }
        let results = declared.types.iter().skip(declared.arguments as usize);
        let results: Vec<TypeId> = results.map(|&id| TypeId(id)).collect();
        let entry =
            FunctionEntry { kind: *kind, offset: *offset, name: "", arguments: &[], results: &results };
        let record = source.file().file().record(&entry).map_err(|e| e.to_string())?;
        let ordered = *kind == BefKind::Async;
        let parts = self.decode_parts(source, &record, ordered).map_err(|e| e.to_string())?;
        if parts.arguments != declared.arguments {
            let (declared, actual) = (declared.arguments, parts.arguments);
            return Err(format!("it is declared with {declared} arguments, but sets {actual}"));
        }
        Body::new(parts)
    }
}

impl RecordDecoder {
    fn decode_parts(
        &self,
        source: &ProgramSource,
        record: &FunctionRecord<'_>,
        ordered: bool,
    ) -> Result<BodyParts, String> {
        let text = |e: pteron_bef::Error| e.to_string();
        let registers = record.register_uses().len();
        let mut order = Order { start: Vec::new(), users: vec![Vec::new(); registers] };
        let mut parts = BodyParts {
            registers: u32::try_from(registers).map_err(|_| "it has more than 2^32 registers")?,
            results: record.results().iter().map(|r| r.0).collect(),
            ..BodyParts::default()
        };
        let streams = Streams::from_record(record);
        for (i, (kernel, table)) in record.kernels().zip(record.kernel_table()).enumerate() {
            let kernel = kernel.map_err(text)?;
            let stream = streams.stream_number(table.stream_id);
            let users = |words: pteron_bef::section::functions::Words<'_>| {
                let kernels = words.iter().map(|k| k.checked_sub(1));
                kernels.collect::<Option<Vec<u32>>>().ok_or("the pseudo kernel uses a register")
            };
            let mut results = kernel.results().iter();
            let mut used_bys = kernel.used_bys();
            if i == 0 {
                parts.root_stream = stream;
                order.start = users(used_bys.next().ok_or("the pseudo kernel starts nothing")?)?;
                results.next();
                parts.arguments = results.clone().count() as u32;
                if !results.clone().eq(0..parts.arguments) {
                    return Err("the pseudo kernel does not set the arguments".into());
                }
            } else {
                parts.nodes.push(self.decode_node(source, &kernel, stream)?);
            }
            for (register, list) in results.zip(used_bys) {
                if let Some(slot) = order.users.get_mut(register as usize) {
                    *slot = users(list)?;
                }
            }
        }
        if ordered {
            parts.order = Some(order);
        }
        Ok(parts)
    }

    fn decode_node(
        &self,
        source: &ProgramSource,
        kernel: &KernelRecord<'_>,
        stream: u32,
    ) -> Result<NodeParts, String> {
        let code = kernel.code();
        let Some(Resolved { name, kernel: implementation, effect }) = self.kernels.get(code as usize) else {
            return Err(format!("kernel code {code} is not in the file's Kernels section"));
        };
        let functions: Box<[u32]> = kernel.functions().iter().collect();
        if let Some(f) = functions.iter().find(|&&f| f as usize >= self.records.len()) {
            return Err(format!("kernel `{name}` is given function {f}, which does not exist"));
        }
        let attribute =
            |offset: u32| SiteAttribute::from_offset(offset.into(), source.attribute_type(offset.into()));
        Ok(NodeParts {
            kernel: Arc::clone(implementation),
            site: Site {
                name: Arc::clone(name),
                attributes: kernel.attributes().iter().map(attribute).collect(),
                functions,
                location: Location::Recorded(kernel.location().into()),
            },
            arguments: kernel.arguments().iter().collect(),
            results: kernel.results().iter().collect(),
            after: Vec::new(),
            stream,
            effect: *effect,
        })
    }
}

/// How the streams of a function are numbered, given that only their equality and order matter.
enum Streams {
    /// A stream's number is its id in the file.
    Same,
    /// A stream's number is the position of its id in this sorted list, since not all ids fit 32 bits.
    Sorted(Vec<u64>),
}

impl Streams {
    fn from_record(record: &FunctionRecord<'_>) -> Self {
        let mut ids: Vec<u64> = record.kernel_table().iter().map(|kernel| kernel.stream_id).collect();
        if ids.iter().all(|&id| u32::try_from(id).is_ok()) {
            return Self::Same;
        }
        ids.sort_unstable();
        ids.dedup();
        Self::Sorted(ids)
    }

    fn stream_number(&self, id: u64) -> u32 {
        match self {
            Self::Same => id as u32,
            Self::Sorted(ids) => ids.partition_point(|&other| other < id) as u32,
        }
    }
}
