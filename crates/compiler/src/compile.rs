//! The whole way, from an archive to a program file.

use crate::emit::{EmitOptions, blob, emit};
use crate::quantize::{self, Quantize, QuantizedLayer};
use crate::{Error, OperatorTable, Result, passes, pt2};
use format::container::Blob;
use format::ptd;
use format::pte::{Builder, NamedBlob, Prepared};
use ir::SharedBytes;
use ir::exported::delegate::{CALL_DELEGATE, DebugHandle, Partitioner, Preprocess, lower_partition};
use ir::exported::{ExportedProgram, TensorSpec, VarId};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

/// How to compile.
#[derive(Debug, Clone)]
pub struct Options {
    /// To what tensors in arenas are aligned, in bytes.
    pub alignment: u64,
    /// To what segments of the file are aligned, in bytes.
    pub segment_alignment: u64,
    /// Keep the line of source code of every instruction in the file.
    pub source_frames: bool,
    /// Look weights and the data of delegates up by name in another file.
    pub external_data: bool,
    /// The models to compile; all of them if none is named.
    pub methods: Vec<String>,
    /// How weights and values are quantized, if they are.
    pub quantize: Option<Quantize>,
    /// Backends that take parts of the program, one after the other.
    pub delegation: Vec<Delegation>,
}

/// A backend that takes parts of programs, and what decides which.
#[derive(Clone)]
pub struct Delegation {
    /// Decides which nodes it takes.
    pub partitioner: Arc<dyn Partitioner + Send + Sync>,
    /// Makes their payloads.
    pub backend: Arc<dyn Preprocess + Send + Sync>,
}

impl fmt::Debug for Delegation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Delegation({})", self.backend.backend_id())
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            alignment: 16,
            segment_alignment: format::pte::DEFAULT_SEGMENT_ALIGNMENT,
            source_frames: false,
            external_data: false,
            methods: Vec::new(),
            quantize: None,
            delegation: Vec::new(),
        }
    }
}

/// A compiled program, ready to be written. Weights are read from the archive when it is.
pub struct Compiled {
    /// The program.
    pub program: Prepared<'static>,
    /// Weights that the program looks up elsewhere, by name; empty unless that was asked for.
    pub external: Vec<ExternalTensor>,
    /// Data of delegates that the program looks up elsewhere, by key; empty unless that was asked for.
    pub external_data: Vec<NamedBlob<'static>>,
    /// What each method came to.
    pub methods: Vec<MethodSummary>,
}

impl Compiled {
    /// A file of named data (`.ptd`) with all that the program looks up elsewhere.
    ///
    /// # Errors
    /// It would be larger than such a file can be.
    pub fn named_data(&self) -> Result<ptd::Prepared<'static>> {
        let mut builder = ptd::Builder::<'static>::new();
        for ExternalTensor { name, spec, blob } in &self.external {
            let sizes = spec.known_sizes().unwrap_or_default();
            let layout = ptd::TensorLayout {
                scalar_type: spec.dtype as i8,
                sizes: sizes.into_iter().map(|s| i32::try_from(s).unwrap_or(i32::MAX)).collect(),
                dim_order: spec.dim_order.to_vec(),
            };
            builder.tensor(name, layout, Blob::clone(blob));
        }
        builder.entries.extend(self.external_data.iter().map(|named| ptd::Entry {
            key: named.key.clone(),
            layout: None,
            blob: Blob::clone(&named.blob),
            alignment: named.alignment,
        }));
        Ok(builder.prepare()?)
    }
}

/// A weight outside the program.
pub struct ExternalTensor {
    /// The name under which it is looked up.
    pub name: String,
    /// Type and sizes.
    pub spec: TensorSpec,
    /// Its bytes.
    pub blob: Blob<'static>,
}

/// What a method came to.
#[derive(Debug, Clone)]
pub struct MethodSummary {
    /// Its name.
    pub name: String,
    /// How often each operator is called.
    pub operators: BTreeMap<String, usize>,
    /// Bytes of memory that it plans for tensors.
    pub arena_bytes: u64,
    /// Bytes of its constants, each counted once.
    pub constant_bytes: u64,
    /// The parts that backends have taken, in the order of their calls' indices.
    pub delegates: Vec<DelegateSummary>,
    /// The nodes that no backend has taken, those alike counted once.
    pub left: Vec<LeftNodes>,
    /// The products and convolutions that were quantized.
    pub layers: Vec<QuantizedLayer>,
    /// The values that are outputs behind the program's own ([`Quantize::Observe`]).
    pub observed: Vec<String>,
}

/// Nodes that a backend was offered and has not taken.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftNodes {
    /// The operator.
    pub target: String,
    /// Why the last backend that was asked did not take them.
    pub reason: String,
    /// How many there are.
    pub count: usize,
}

/// A part that a backend has taken.
#[derive(Debug, Clone)]
pub struct DelegateSummary {
    /// The backend.
    pub backend_id: String,
    /// How often each operator stands in it.
    pub operators: BTreeMap<String, usize>,
    /// Bytes of the payload.
    pub payload_bytes: u64,
    /// Bytes of the data that it names.
    pub named_bytes: u64,
    /// For each handle that the backend reports at run time the nodes of the archive that it stands for.
    pub debug_handle_map: BTreeMap<DebugHandle, Vec<String>>,
}

/// What is told while a program is compiled: the method, the pass that has ended, and the program after it.
pub type Watch<'w> = &'w mut dyn FnMut(&str, &str, &ExportedProgram);

/// Compiles an archive into a program that calls operators of a table.
///
/// # Errors
/// What is wrong with the archive, or which nodes cannot be compiled, and at which lines of the model they come from.
pub fn compile(
    bytes: SharedBytes,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> Result<Compiled> {
    let mut programs = pt2::read(bytes)?;
    choose(&mut programs, options)?;
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    finish(programs, table, options, watch)
}

/// Leaves the methods that are asked for.
pub(crate) fn choose(programs: &mut Vec<ExportedProgram>, options: &Options) -> Result<()> {
    if options.methods.is_empty() {
        return Ok(());
    }
    for name in &options.methods {
        if !programs.iter().any(|p| p.name == *name) {
            let like = operator::did_you_mean(name, programs.iter().map(|p| p.name.as_str()));
            return Err(Error::Option(format!("there is no model `{name}`{like}")));
        }
    }
    programs.retain(|p| options.methods.contains(&p.name));
    Ok(())
}

/// The program file of these methods.
pub(crate) fn finish(
    mut programs: Vec<ExportedProgram>,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> Result<Compiled> {
    let emit_options = EmitOptions {
        source_frames: options.source_frames,
        alignment: check_alignment("alignment", options.alignment)?,
        external: options.external_data,
    };
    let mut builder = Builder {
        segment_alignment: check_alignment("segment alignment", options.segment_alignment)?,
        ..Builder::default()
    };
    let (mut methods, mut external, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
    let mut named: HashMap<String, usize> = HashMap::new();
    for program in &mut programs {
        let name = program.name.clone();
        passes::run(program, table, &mut |pass, program| watch(&name, pass, program))?;
        let mut quantized = quantize::Outcome::default();
        if let Some(how) = &options.quantize {
            quantized = quantize::run(program, how)?;
            watch(&name, passes::QUANTIZE, program);
        }
        let mut left = Vec::new();
        for Delegation { partitioner, backend } in &options.delegation {
            let partition = partitioner.partition(program)?;
            left = left_nodes(program, &partition.reasons);
            *program = lower_partition(partition, &[&**backend])?;
            watch(&name, passes::DELEGATE, program);
        }
        let mut keys = Vec::new();
        let summary = emit(program, table, emit_options, &mut builder, &mut keys)?;
        for (key, var) in keys {
            add_external(program, key, var, &mut external, &mut named)?;
        }
        methods.push(MethodSummary {
            name,
            operators: summary.operators.into_iter().collect(),
            arena_bytes: summary.arena_bytes,
            constant_bytes: constant_bytes(program),
            delegates: delegates(program),
            left,
            layers: quantized.layers.clone(),
            observed: std::mem::take(&mut quantized.observed),
        });
        outcomes.push(quantized);
    }
    if let Some(how) = &options.quantize {
        quantize::expect_some(how, outcomes.iter())?;
    }
    let external_data = match options.external_data {
        true => std::mem::take(&mut builder.named_data),
        false => Vec::new(),
    };
    Ok(Compiled { program: builder.finish()?.prepare()?, external, external_data, methods })
}

fn add_external(
    program: &ExportedProgram,
    key: String,
    var: VarId,
    external: &mut Vec<ExternalTensor>,
    named: &mut HashMap<String, usize>,
) -> Result<()> {
    let (Some(spec), Some(data)) = (program.spec(var), program.constants.get(&var)) else { return Ok(()) };
    let blob = blob(data);
    if let Some(&at) = named.get(&key) {
        let other: &ExternalTensor = &external[at];
        if other.spec == *spec && other.blob.digest()? == blob.digest()? {
            return Ok(());
        }
        return Err(Error::Option(format!("two models of the archive have different weights named `{key}`")));
    }
    named.insert(key.clone(), external.len());
    external.push(ExternalTensor { name: key, spec: spec.clone(), blob });
    Ok(())
}

/// The nodes that have a reason to be left, those alike counted once.
fn left_nodes(program: &ExportedProgram, reasons: &BTreeMap<VarId, String>) -> Vec<LeftNodes> {
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    program.graph.for_each_node(&mut |node| {
        let reason = node.outputs.first().and_then(|var| reasons.get(var));
        if let Some(reason) = reason.filter(|_| *node.target != *CALL_DELEGATE) {
            *counts.entry((&node.target, reason)).or_default() += 1;
        }
    });
    let left = |((target, reason), count): ((&str, &str), usize)| LeftNodes {
        target: target.to_owned(),
        reason: reason.to_owned(),
        count,
    };
    counts.into_iter().map(left).collect()
}

fn delegates(program: &ExportedProgram) -> Vec<DelegateSummary> {
    let summary = |module: &Arc<ir::exported::delegate::LoweredModule>| {
        let mut operators = BTreeMap::new();
        module.original.graph.for_each_node(&mut |node| {
            *operators.entry(node.target.to_string()).or_insert(0) += 1;
        });
        let result = &module.result;
        DelegateSummary {
            backend_id: module.spec.backend_id.clone(),
            operators,
            payload_bytes: result.processed_bytes.len() as u64,
            named_bytes: result.named_data.iter().map(|data| data.bytes.len() as u64).sum(),
            debug_handle_map: result.debug_handle_map.clone(),
        }
    };
    program.lowered.iter().map(summary).collect()
}

fn constant_bytes(program: &ExportedProgram) -> u64 {
    program.constants.values().map(|c| c.range.len() as u64).sum()
}

fn check_alignment(what: &str, alignment: u64) -> Result<u64> {
    if alignment.is_power_of_two() && alignment <= 1 << 30 {
        return Ok(alignment);
    }
    Err(Error::Option(format!("the {what} {alignment} is no power of two of at most 2^30")))
}
