//! The compiler driver: from an archive to a program file.

use crate::emit::{EmitOptions, constant_blob, emit};
use crate::operand_types::PortableKernels;
use crate::pt2::ArchiveFile;
use crate::quantize::{
    self, FirstOperands, FloatNode, LayerObservation, Quantize, QuantizedLayer, ValueObservation,
};
use crate::specialize::{SizeBounds, specialize};
use crate::weights::{self, NarrowWeight, WeightType, WideWeight};
use crate::{Error, OperatorTable, Result, passes, pt2};
use pteron_exported::CompileBudget;
use pteron_exported::delegate::{
    CALL_DELEGATE, DebugHandle, DelegationError, NamedBytes, Partitioner, Preprocess, lower_partition,
    partition,
};
use pteron_exported::{ExportedProgram, TensorSpec, VarId};
use pteron_format::container::Blob;
use pteron_format::ptd;
use pteron_format::pte::{
    Builder, EValue, ExecutionPlan, MAX_OWN_BYTES, NamedBlob, Prepared, TASK_KEY, is_own_key,
};
use pteron_ir::{SharedBytes, reopen_or_share};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

/// Compiler options.
#[derive(Debug, Clone)]
pub struct Options {
    /// Alignment of tensors in arenas, in bytes.
    pub alignment: u64,
    /// Alignment of the file's segments, in bytes. `None`: as in the program to recompile, or 128 for an archive.
    pub segment_alignment: Option<u64>,
    /// Alignment of constants in their segment, in bytes. `None`: as in the program to recompile, or 16 for an archive.
    pub constant_alignment: Option<u64>,
    /// Record the source line of every instruction in the file.
    pub source_frames: bool,
    /// Store weights and delegate data in a separate file; the program looks them up by name.
    pub external_data: bool,
    /// The names of the models to compile; empty for all models of the archive.
    pub methods: Vec<String>,
    /// How weights and activations are quantized, if at all.
    pub quantize: Option<Quantize>,
    /// The type in which the weights of layers and embeddings are stored that are float32 after quantization and
    /// delegation; `None` for float32.
    pub weights: Option<WeightType>,
    /// Names of nodes that are not quantized; `method/node` if several methods have nodes of the same name.
    pub keep_float: BTreeSet<String>,
    /// Backends to which parts of the program are delegated, applied in this order.
    pub delegation: Vec<Delegation>,
    /// Bounds that fix or narrow sizes which the source leaves dynamic.
    pub sizes: Vec<SizeBounds>,
    /// The task metadata that the program stores, as JSON (`pteron_format::pte::TASK_KEY`); `None` for that of the
    /// source: the extra file of this name in an archive, or the entry of the program that is recompiled.
    pub task: Option<String>,
    /// Bytes that compiling may take beside the source file and the program that is written: parsed JSON, inflated
    /// records, copies of weights, nodes, folded constants. Unlimited by default.
    pub memory: u64,
}

/// A backend, and the partitioner that decides which nodes it takes.
#[derive(Clone)]
pub struct Delegation {
    /// Decides which nodes the backend takes.
    pub partitioner: Arc<dyn Partitioner + Send + Sync>,
    /// Compiles the nodes that the partitioner selects to payloads.
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
            segment_alignment: None,
            constant_alignment: None,
            source_frames: false,
            external_data: false,
            methods: Vec::new(),
            quantize: None,
            weights: None,
            keep_float: BTreeSet::new(),
            delegation: Vec::new(),
            sizes: Vec::new(),
            task: None,
            memory: u64::MAX,
        }
    }
}

/// A compiled program, ready to be written. The weights are read from the archive only when it is written.
pub struct Compiled {
    /// The program.
    pub program: Prepared<'static>,
    /// Weights that the program looks up by name in another file; empty without [`Options::external_data`].
    pub external: Vec<ExternalTensor>,
    /// Delegate data that the program looks up by key in another file; empty without [`Options::external_data`].
    pub external_data: Vec<NamedBlob<'static>>,
    /// One summary for each method.
    pub methods: Vec<MethodSummary>,
    /// Alignment of the segments of [`named_data`](Self::named_data): see [`Options::segment_alignment`].
    pub segment_alignment: u64,
}

impl Compiled {
    /// A named-data file (`.ptd`) that holds everything the program looks up elsewhere.
    ///
    /// # Errors
    /// The file would exceed the maximum size of the format.
    pub fn named_data(&self) -> Result<ptd::Prepared<'static>> {
        let mut builder = ptd::Builder::<'static>::new();
        builder.segment_alignment = self.segment_alignment;
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

/// A weight stored outside the program.
pub struct ExternalTensor {
    /// The name by which the program looks the weight up.
    pub name: String,
    /// The weight's element type, sizes and layout.
    pub spec: TensorSpec,
    /// The weight's bytes.
    pub blob: Blob<'static>,
}

/// What the compiler produced for a method.
#[derive(Debug, Clone)]
pub struct MethodSummary {
    /// The method's name.
    pub name: String,
    /// How often the method calls each operator.
    pub operators: BTreeMap<String, usize>,
    /// The operators of the method that the reference runtime lacks; that runtime can run the method only if there are
    /// none.
    pub not_on_reference: Vec<String>,
    /// Bytes of planned memory for tensors.
    pub arena_bytes: u64,
    /// Bytes that the method's constants and initial values have in the file or its external data; equal ones count
    /// once. Those of delegates are in [`DelegateSummary::named_bytes`].
    pub constant_bytes: u64,
    /// The parts delegated to backends, in order of delegate index.
    pub delegates: Vec<DelegateSummary>,
    /// The nodes that no backend took, grouped by operator, backend and reason: a node is listed once for each backend
    /// that says why it does not take it.
    pub left: Vec<LeftNodes>,
    /// The linear layers, convolutions and embeddings that were quantized.
    pub layers: Vec<QuantizedLayer>,
    /// The nodes that compute with quantized values: all of `layers`, and sums, products and means of values.
    pub quantized: Vec<String>,
    /// The products, convolutions and embeddings that were not quantized; empty without [`Options::quantize`].
    pub float: Vec<FloatNode>,
    /// The weights that are stored in fewer bits: see [`Options::weights`].
    pub narrow_weights: Vec<NarrowWeight>,
    /// The weights of layers and embeddings that stay float32 nonetheless; empty without [`Options::weights`].
    pub wide_weights: Vec<WideWeight>,
    /// The intermediate values appended to the program's outputs ([`Quantize::Observe`], [`Quantize::ObserveErrors`]).
    pub observed: Vec<ValueObservation>,
    /// The layers that [`Quantize::Observe`] observes the inputs of.
    pub observed_layers: Vec<LayerObservation>,
}

/// Nodes of one operator that a backend did not take, all for the same reason.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftNodes {
    /// The operator that the nodes call.
    pub target: String,
    /// The id of the backend that did not take the nodes.
    pub backend_id: String,
    /// Why the backend does not take the nodes.
    pub reason: String,
    /// The number of nodes that were not taken.
    pub count: usize,
    /// The nodes that were not taken, in the order of the program.
    pub nodes: Vec<LeftNode>,
}

/// A node that a backend did not take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftNode {
    /// The node's name.
    pub name: String,
    /// The file and line of the model that the node comes from, such as `model.py:12`, if the archive has them.
    pub line: Option<String>,
}

/// A part of a method that was delegated to a backend.
#[derive(Debug, Clone)]
pub struct DelegateSummary {
    /// The id of the backend.
    pub backend_id: String,
    /// How often each operator occurs in the part.
    pub operators: BTreeMap<String, usize>,
    /// The size of the payload in bytes.
    pub payload_bytes: u64,
    /// The total size in bytes of the named data that the payload refers to.
    pub named_bytes: u64,
    /// Maps each debug handle that the backend reports at run time to the names of the archive's nodes behind it.
    pub debug_handle_map: BTreeMap<DebugHandle, Vec<String>>,
}

/// Called after each pass with the method's name, the pass's name and the program that the pass produced.
pub type Watch<'w> = &'w mut dyn FnMut(&str, &str, &ExportedProgram);

/// Compiles an archive, in memory (an `Arc<Vec<u8>>` or a [`SharedBytes`](pteron_ir::SharedBytes)) or in a file, into a
/// program that calls only the operators of `table`. Weights are parts of the archive until the program is written.
///
/// # Errors
/// The archive is malformed, or some nodes cannot be compiled; the error names them and the source lines of the model.
pub fn compile(
    file: impl ArchiveFile,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> Result<Compiled> {
    let mut programs = pt2::read(&file, &CompileBudget::new(options.memory))?;
    select_methods(&mut programs, options)?;
    programs.sort_by(|a, b| a.name.cmp(&b.name));
    let task = options.task.clone().map_or_else(|| pt2::task(&file), |task| Ok(Some(task)))?;
    lower_and_emit(programs, table, &Options { task, ..options.clone() }, watch)
}

/// Keeps only the methods that the options select.
pub(crate) fn select_methods(programs: &mut Vec<ExportedProgram>, options: &Options) -> Result<()> {
    if options.methods.is_empty() {
        return Ok(());
    }
    for name in &options.methods {
        if !programs.iter().any(|p| p.name == *name) {
            let like = pteron_operator::did_you_mean(name, programs.iter().map(|p| p.name.as_str()));
            return Err(Error::Option(format!("there is no model `{name}`{like}")));
        }
    }
    programs.retain(|p| options.methods.contains(&p.name));
    Ok(())
}

/// Compiles programs, one for each method, as [`compile`] does those that it reads from an archive ([`pt2::read`]):
/// runs the passes, the quantizer, the backends and the emitter, and builds the program file. [`Options::methods`] and
/// [`Options::memory`] are not looked at: the programs have their own budgets.
///
/// # Errors
/// Two programs have one name, a program is malformed, or as for [`compile`].
pub fn compile_exported(
    programs: Vec<ExportedProgram>,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> Result<Compiled> {
    let mut names = HashSet::new();
    for program in &programs {
        if !names.insert(program.name.as_str()) {
            return Err(Error::Option(format!("two programs have the name `{}`", program.name)));
        }
        program.verify()?;
    }
    lower_and_emit(programs, table, options, watch)
}

pub(crate) fn lower_and_emit(
    mut programs: Vec<ExportedProgram>,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> Result<Compiled> {
    specialize(&mut programs, &options.sizes)?;
    let reference = PortableKernels::read();
    let emit_options = EmitOptions {
        source_frames: options.source_frames,
        alignment: check_alignment("alignment", options.alignment)?,
        external: options.external_data,
    };
    let mut builder = Builder::default();
    if let Some(alignment) = options.segment_alignment {
        builder.segment_alignment = check_alignment("segment alignment", alignment)?;
    }
    if let Some(alignment) = options.constant_alignment {
        builder.constant_alignment = check_alignment("constant alignment", alignment)?;
    }
    let (mut methods, mut external, mut outcomes) = (Vec::new(), Vec::new(), Vec::new());
    let mut named: HashMap<String, usize> = HashMap::new();
    let mut delegate_keys = DelegateKeys::default();
    for program in &mut programs {
        let name = program.name.clone();
        let Lowered { mut quantized, left, weights } = lower_method(program, table, options, watch)?;
        delegate_keys.add(program)?;
        let mut keys = Vec::new();
        let summary = emit(program, table, emit_options, &mut builder, &mut keys)?;
        for (key, var) in keys {
            add_external_weight(program, key, var, &mut external, &mut named)?;
        }
        let not_on_reference = summary.operators.keys().filter(|name| !reference.may_have(name)).cloned();
        let mut not_on_reference: Vec<String> = not_on_reference.collect();
        not_on_reference.sort();
        methods.push(MethodSummary {
            name,
            not_on_reference,
            operators: summary.operators.into_iter().collect(),
            arena_bytes: summary.arena_bytes,
            constant_bytes: 0,
            delegates: delegate_summaries(program),
            left,
            layers: quantized.layers.clone(),
            quantized: std::mem::take(&mut quantized.nodes),
            float: quantized.left.clone(),
            narrow_weights: weights.narrow,
            wide_weights: weights.wide,
            observed: std::mem::take(&mut quantized.observed),
            observed_layers: std::mem::take(&mut quantized.observed_layers),
        });
        outcomes.push(quantized);
    }
    if let Some(how) = &options.quantize {
        quantize::check_kept_names(&options.keep_float, outcomes.iter())?;
        quantize::expect_quantized(how, outcomes.iter())?;
    }
    external.iter().try_for_each(|weight| delegate_keys.check_weight_name(&weight.name))?;
    builder.named_data.extend(task_blob(options)?);
    let external_data = match options.external_data {
        true => builder.named_data.extract_if(.., |data| !is_own_key(&data.key)).collect(),
        false => Vec::new(),
    };
    let draft = builder.finish()?;
    for (method, plan) in methods.iter_mut().zip(&draft.program.execution_plan) {
        method.constant_bytes = constant_bytes(plan);
    }
    let segment_alignment =
        options.segment_alignment.unwrap_or(pteron_format::ptd::DEFAULT_SEGMENT_ALIGNMENT);
    Ok(Compiled { program: draft.prepare()?, external, external_data, methods, segment_alignment })
}

/// The named data that stores the task metadata; `None` if the options give none.
fn task_blob(options: &Options) -> Result<Option<NamedBlob<'static>>> {
    let Some(text) = &options.task else { return Ok(None) };
    if text.len() as u64 > MAX_OWN_BYTES {
        let problem =
            format!("the task metadata has {} bytes, at most {MAX_OWN_BYTES} can be stored", text.len());
        return Err(Error::Option(problem));
    }
    let blob = Blob::bytes(text.clone().into_bytes());
    Ok(Some(NamedBlob { key: TASK_KEY.to_owned(), blob, alignment: 1 }))
}

/// A method after lowering, before it is emitted.
struct Lowered {
    quantized: quantize::Outcome,
    left: Vec<LeftNodes>,
    weights: weights::Outcome,
}

/// Runs the passes, the quantizer and the backends over a method. Operators that the table leaves whole are decomposed
/// after all where no backend takes them.
fn lower_method(
    program: &mut ExportedProgram,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> Result<Lowered> {
    if !table.has_kept_operators() {
        return lower_once(program, table, options, watch);
    }
    let (before, charged) = (program.clone(), program.budget.num_charged());
    let mut table = table.clone();
    loop {
        let lowered = lower_once(program, &table, options, watch)?;
        let in_vain = table.kept_nodes_without_kernel(program);
        if in_vain.is_empty() {
            return Ok(lowered);
        }
        // Parts may differ the second time; then nothing is left whole.
        let is_first = table.has_no_released_nodes();
        table = if is_first { table.with_released_nodes(in_vain) } else { table.without_kept_operators() };
        *program = before.clone();
        program.budget.release_after(charged);
    }
}

fn lower_once(
    program: &mut ExportedProgram,
    table: &OperatorTable,
    options: &Options,
    watch: Watch<'_>,
) -> Result<Lowered> {
    let name = program.name.clone();
    let is_static = matches!(
        options.quantize,
        Some(Quantize::Observe(_) | Quantize::ObserveErrors(_) | Quantize::Static(_))
    );
    let split = is_static.then(|| table.clone().with_split_attention());
    let preferences = passes::Preferences {
        folded_norms: !options.delegation.is_empty() || is_static || options.weights.is_some(),
        channels_last: options.delegation.iter().any(|d| d.partitioner.prefers_channels_last()),
    };
    if !options.delegation.is_empty() || options.quantize.is_some() || options.weights.is_some() {
        weights::widen_constants(program);
    }
    passes::run(program, split.as_ref().unwrap_or(table), preferences, &mut |pass, program| {
        watch(&name, pass, program)
    })?;
    let mut quantized = quantize::Outcome::default();
    if let Some(how) = &options.quantize {
        let calibrated = options.delegation.iter().any(|d| d.partitioner.needs_calibrated_products());
        let first = if calibrated { FirstOperands::Calibrated } else { FirstOperands::ByRow };
        quantized = quantize::run(program, how, &options.keep_float, first)?;
        watch(&name, passes::QUANTIZE, program);
    }
    let mut reasons = Vec::new();
    for Delegation { partitioner, backend } in &options.delegation {
        let mut partition = partition(program, &**partitioner)?;
        reasons.push((backend.backend_id(), std::mem::take(&mut partition.reasons)));
        *program = lower_partition(partition, &[&**backend])?;
        watch(&name, passes::DELEGATE, program);
    }
    let left = undelegated_nodes(program, &reasons);
    let mut weights = weights::Outcome::default();
    if let Some(ty) = options.weights {
        weights = weights::run(program, ty);
        watch(&name, passes::WEIGHTS, program);
        if cfg!(debug_assertions) {
            program.verify()?;
        }
    }
    Ok(Lowered { quantized, left, weights })
}

/// The keys of the named data of all delegates of a file. A key must name the same bytes in all methods of the file.
#[derive(Default)]
struct DelegateKeys(HashMap<String, KeyOwner>);

/// The first payload that uses a key of named data, and the bytes of that key.
struct KeyOwner {
    method: String,
    backend_id: String,
    bytes: SharedBytes,
}

impl DelegateKeys {
    /// Adds the keys of a method's delegates; fails if a key is already known with other bytes, or reserved for the
    /// file itself.
    fn add(&mut self, program: &ExportedProgram) -> Result<(), DelegationError> {
        for module in &program.lowered {
            let backend_id = &module.spec.backend_id;
            for NamedBytes { key, bytes, .. } in &module.result.named_data {
                if is_own_key(key) {
                    return Err(key_conflict(backend_id, key, "begins as the keys of the file itself do"));
                }
                let new = || KeyOwner {
                    method: program.name.clone(),
                    backend_id: backend_id.clone(),
                    bytes: Arc::clone(bytes),
                };
                let known = self.0.entry(key.clone()).or_insert_with(new);
                let is_same = || reopen_or_share(&known.bytes).bytes() == reopen_or_share(bytes).bytes();
                if !Arc::ptr_eq(&known.bytes, bytes) && !is_same() {
                    let (first, second) = (known.method.clone(), program.name.clone());
                    return Err(DelegationError::SameKeyInMethods { key: key.clone(), first, second });
                }
            }
        }
        Ok(())
    }

    /// Fails if a payload has the weight's name as a key, because both would be in the same external data file.
    fn check_weight_name(&self, name: &str) -> Result<(), DelegationError> {
        let owner = self.0.get(name);
        owner.map_or(Ok(()), |owner| {
            Err(key_conflict(&owner.backend_id, name, "is the name of a weight in the same external data"))
        })
    }
}

fn key_conflict(backend_id: &str, key: &str, problem: &str) -> DelegationError {
    DelegationError::TakenKey {
        backend_id: backend_id.to_owned(),
        key: key.to_owned(),
        problem: problem.to_owned(),
    }
}

fn add_external_weight(
    program: &ExportedProgram,
    key: String,
    var: VarId,
    external: &mut Vec<ExternalTensor>,
    named: &mut HashMap<String, usize>,
) -> Result<()> {
    let (Some(spec), Some(data)) = (program.spec(var), program.constants.get(&var)) else { return Ok(()) };
    let blob = constant_blob(data);
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

/// The nodes that a backend did not take, grouped by operator, backend and reason.
fn undelegated_nodes(
    program: &ExportedProgram,
    reasons: &[(&str, BTreeMap<VarId, String>)],
) -> Vec<LeftNodes> {
    let mut groups: BTreeMap<(&str, usize, &str), Vec<LeftNode>> = BTreeMap::new();
    program.graph.for_each_node(&mut |node| {
        let Some(first) = node.outputs.first().filter(|_| *node.target != *CALL_DELEGATE) else { return };
        for (order, (_, reasons)) in reasons.iter().enumerate() {
            if let Some(reason) = reasons.get(first) {
                let line = node.line().map(|frame| format!("{}:{}", frame.file, frame.line));
                let left = LeftNode { name: program.node_name(node), line };
                groups.entry((&node.target, order, reason)).or_default().push(left);
            }
        }
    });
    let left = |((target, order, reason), nodes): ((&str, usize, &str), Vec<LeftNode>)| LeftNodes {
        target: target.to_owned(),
        backend_id: reasons[order].0.to_owned(),
        reason: reason.to_owned(),
        count: nodes.len(),
        nodes,
    };
    groups.into_iter().map(left).collect()
}

fn delegate_summaries(program: &ExportedProgram) -> Vec<DelegateSummary> {
    let summary = |module: &Arc<pteron_exported::delegate::LoweredModule>| {
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

/// Total bytes of a plan's constants and initial values, in the program or the external data, each counted once.
fn constant_bytes(plan: &ExecutionPlan) -> u64 {
    let mut sizes: HashMap<(Option<u32>, Option<u32>, Option<&str>), u64> = HashMap::new();
    for tensor in plan.values.iter().filter_map(EValue::as_tensor) {
        let external = tensor.fully_qualified_name().filter(|_| tensor.is_external());
        let stored = (tensor.constant_idx(), tensor.initial_data_idx(), external);
        if stored != (None, None, None) {
            let size = sizes.entry(stored).or_default();
            *size = tensor.nbytes().unwrap_or(0).max(*size);
        }
    }
    sizes.values().sum()
}

fn check_alignment(what: &str, alignment: u64) -> Result<u64> {
    if alignment.is_power_of_two() && alignment <= 1 << 30 {
        return Ok(alignment);
    }
    Err(Error::Option(format!("the {what} {alignment} is not a power of two of at most 2^30")))
}
