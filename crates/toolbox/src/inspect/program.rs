use super::REPORT_VERSION;
use super::payload::sniff_payload;
use crate::Result;
use crate::show::name;
use crate::task::TaskMetadata;
use pteron_format::pte;
use pteron_operator::{KernelRegistry, Tag};
use pteron_runtime::{
    BackendRegistry, DataLoader, InputSizes, Limits, MethodMeta, Missing, Program, Purpose, ValueMeta,
};
use pteron_tensor::{ScalarType, ShapeDynamism};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Bytes of a payload that are read to recognise its format.
const PAYLOAD_HEAD: u64 = 64;

/// The contents of a `.pte` file.
#[derive(Debug, Clone, Serialize)]
pub struct ProgramReport {
    /// The version of the report's schema.
    pub report: u32,
    pub file: String,
    /// The file's size in bytes.
    pub bytes: u64,
    /// Bytes that were read for the report, not counting those that identified the format; for an archive, all.
    pub bytes_read: u64,
    /// If the file is an archive, the size of the program that it is compiled to. The report has no header, segments and
    /// offsets then, since no file has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compiled_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderReport>,
    /// The version of the file's schema.
    pub version: u32,
    /// The task metadata, if the program stores it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub task: Option<TaskMetadata>,
    /// The valid methods, in the order of the file.
    pub methods: Vec<MethodReport>,
    /// The methods that are not valid, in the order of the file.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub invalid_methods: Vec<InvalidMethodReport>,
    /// The segments, in the order of the file.
    pub segments: Vec<SegmentReport>,
    /// The program's own named data.
    pub named_data: Vec<NamedDataReport>,
    /// The constants that tensors use, largest first. A constant that several methods use is listed once.
    pub constants: Vec<ConstantReport>,
}

/// The header of a program file.
#[derive(Debug, Clone, Serialize)]
pub struct HeaderReport {
    /// Bytes of the tables, the header included.
    pub program_size: u64,
    /// The extended header, if the file has one.
    pub extended: Option<ExtendedHeaderReport>,
}

#[derive(Debug, Clone, Serialize)]
pub struct ExtendedHeaderReport {
    /// The header's length in bytes: 24 before release 1.0, 32 since.
    pub length: u32,
    /// The file offset of the segments.
    pub segment_base_offset: u64,
    /// Bytes of all segments, if the header has that field.
    pub segment_data_size: Option<u64>,
}

/// One method.
#[derive(Debug, Clone, Serialize)]
pub struct MethodReport {
    pub name: String,
    pub inputs: Vec<ValueReport>,
    pub outputs: Vec<ValueReport>,
    /// The symbols in the allowed sizes of the method's inputs, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub symbols: BTreeMap<String, SymbolReport>,
    /// The number of values of the method by kind.
    pub values: BTreeMap<String, usize>,
    /// The number of instructions of the method by kind.
    pub instructions: InstructionCounts,
    /// The operators that the method calls, most frequent first.
    pub operators: Vec<OperatorReport>,
    /// The delegates of the method.
    pub delegates: Vec<DelegateReport>,
    /// The arenas of the method's memory plan.
    pub arenas: Vec<ArenaReport>,
    /// The number of tensors of the method by storage.
    pub tensors: TensorCounts,
    /// What this build lacks to run the method; absent if nothing is missing.
    pub missing: Option<MissingReport>,
}

/// A method that is not valid.
#[derive(Debug, Clone, Serialize)]
pub struct InvalidMethodReport {
    /// The method's name, if it can be read.
    pub name: Option<String>,
    /// The first problem that makes the method invalid.
    pub problem: String,
    /// Members of enums and unions that this reader does not know: path and number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unknown: Vec<String>,
    /// The readable parts of the method, unverified; absent if nothing can be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub readable: Option<Box<MethodReport>>,
}

/// An input or output.
#[derive(Debug, Clone, Serialize)]
pub struct ValueReport {
    /// The value's name, if the program records it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The kind of value: `Tensor`, `Int`, ….
    pub kind: String,
    /// The scalar type, if the value is a tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// The sizes, if the value is a tensor: upper bounds if it is dynamic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sizes: Option<Vec<usize>>,
    /// The dim order, if the value is a tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dim_order: Option<Vec<u8>>,
    /// If the value is a tensor, whether its sizes may change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<bool>,
    /// The sizes that the export allows for an input, if the upper bounds do not say it all: integers, symbols and
    /// expressions of symbols; `?` for a size that is only bounded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Vec<String>>,
    /// If the value is a tensor, whether the memory plan allocates it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub planned: Option<bool>,
    /// The tensor's device; absent if it is the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The value that the exporter fixed, in the form of [`crate::json::Json`]; absent for a tensor.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traced: Option<serde_json::Value>,
}

/// The bounds of a symbol.
#[derive(Debug, Clone, Serialize)]
pub struct SymbolReport {
    /// The minimum of the symbol.
    pub min: i64,
    /// The maximum of the symbol; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<i64>,
}

/// Instructions by kind.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(transparent)]
pub struct InstructionCounts(pub BTreeMap<String, usize>);

/// An operator that a method calls.
#[derive(Debug, Clone, Serialize)]
pub struct OperatorReport {
    /// The operator's full name.
    pub name: String,
    /// The number of the method's instructions that call the operator.
    pub calls: usize,
    /// Whether the registry has a kernel for the operator.
    pub available: bool,
}

/// A part of a method that a backend executes.
#[derive(Debug, Clone, Serialize)]
pub struct DelegateReport {
    /// The delegate's index in the method's delegate table.
    pub index: usize,
    /// The backend's id.
    pub backend: String,
    /// `INLINE` or `SEGMENT`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub location: Option<String>,
    /// The file offset of the payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offset: Option<u64>,
    /// Bytes of the payload.
    pub bytes: u64,
    /// The format of the payload, recognised by its first bytes; absent if it is not known.
    pub magic: Option<String>,
    /// The compile specs: their keys, with the sizes of their values in bytes.
    pub compile_specs: BTreeMap<String, u64>,
    /// The values of the compile specs as text: escaped, and shortened if they are long.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub compile_spec_values: BTreeMap<String, String>,
    /// The number of the method's instructions that call the delegate.
    pub calls: usize,
}

/// An arena of a memory plan.
#[derive(Debug, Clone, Serialize)]
pub struct ArenaReport {
    /// The arena's memory id, from 1.
    pub memory_id: usize,
    /// The arena's size in bytes.
    pub bytes: u64,
    /// The number of tensors that are planned into the arena.
    pub tensors: usize,
    /// The arena's device; absent if it is the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
}

/// The number of a method's tensors by storage.
#[derive(Debug, Clone, Default, Serialize)]
pub struct TensorCounts {
    /// Tensors whose data is in the program and is never written.
    pub constant: usize,
    /// Tensors in an arena without an initial value.
    pub planned: usize,
    /// Tensors in an arena with an initial value in the program.
    pub mutable: usize,
    /// Tensors whose data is in a `.ptd` file.
    pub external: usize,
    /// Tensors without storage: inputs and outputs whose memory the caller provides.
    pub unplanned: usize,
    /// The keys of the tensors in a `.ptd` file.
    pub external_keys: Vec<String>,
    /// The number of tensors on each device other than the CPU.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub devices: BTreeMap<String, usize>,
}

/// The operators, backends and devices that are missing to run a method.
#[derive(Debug, Clone, Serialize)]
pub struct MissingReport {
    /// Operators without a kernel.
    pub operators: Vec<String>,
    /// Backends that are not registered, or not available.
    pub backends: Vec<String>,
    /// Devices of the method's memory plan that this machine lacks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<String>,
    /// A sentence for each missing item, with calls and sizes.
    pub sentences: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct SegmentReport {
    /// The segment's offset in the file.
    pub offset: u64,
    /// The segment's size in bytes.
    pub bytes: u64,
    /// Descriptions of what uses the segment.
    pub holds: Vec<String>,
}

/// An entry of the program's named data.
#[derive(Debug, Clone, Serialize)]
pub struct NamedDataReport {
    pub key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segment: Option<u32>,
    /// The entry's size in bytes.
    pub bytes: u64,
}

/// A constant, or the initial value of a mutable tensor.
#[derive(Debug, Clone, Serialize)]
pub struct ConstantReport {
    /// The constant's size in bytes.
    pub bytes: u64,
    /// The constant's scalar type.
    pub dtype: String,
    pub sizes: Vec<i32>,
    pub dim_order: Vec<u8>,
    /// The constant's name in the model, if the exporter kept it.
    pub name: Option<String>,
    /// Whether the constant is the initial value of a mutable tensor.
    pub mutable: bool,
    /// The methods that use the constant.
    pub methods: Vec<String>,
}

pub(super) fn report(
    loader: &Arc<dyn DataLoader>,
    kernels: &KernelRegistry,
    backends: &BackendRegistry,
    limits: &Limits,
) -> Result<ProgramReport> {
    let before = loader.bytes_loaded();
    let program = Program::load_readable(Arc::clone(loader), limits)?;
    let (header, tables) = (program.header(), program.tables());
    let methods = program
        .methods()
        .map(|meta| method_report(&program, meta, kernels, backends))
        .collect::<Result<Vec<_>>>()?;
    let archive = loader.source_archive_bytes();
    let is_file = archive.is_none();
    let segments =
        uses_of_segments(tables).into_iter().zip(0..).filter(|_| is_file).map(|(segment_users, i)| {
            let range = tables.segment(i).unwrap_or(0..0);
            SegmentReport { offset: range.start, bytes: range.end - range.start, holds: segment_users }
        });
    let named_data = tables.named_data.iter().map(|n| {
        let range = tables.segment(n.segment_index).unwrap_or(0..0);
        NamedDataReport {
            key: n.key.clone(),
            segment: is_file.then_some(n.segment_index),
            bytes: range.end - range.start,
        }
    });
    Ok(ProgramReport {
        report: REPORT_VERSION,
        file: loader.name().to_owned(),
        bytes: archive.unwrap_or(loader.size()),
        compiled_bytes: archive.map(|_| loader.size()),
        header: is_file.then(|| HeaderReport {
            program_size: header.program_size,
            extended: header.extended.map(|e| ExtendedHeaderReport {
                length: e.length,
                segment_base_offset: e.segment_base_offset,
                segment_data_size: e.segment_data_size,
            }),
        }),
        version: tables.version,
        task: crate::task::of(&program)?,
        methods,
        invalid_methods: program
            .invalid_methods()
            .iter()
            .map(|method| invalid_report(&program, method, kernels))
            .collect(),
        segments: segments.collect(),
        named_data: named_data.collect(),
        constants: constants(tables),
        bytes_read: archive.unwrap_or_else(|| loader.bytes_loaded().saturating_sub(before)),
    })
}

fn method_report(
    program: &Program,
    meta: MethodMeta<'_>,
    kernels: &KernelRegistry,
    backends: &BackendRegistry,
) -> Result<MethodReport> {
    let plan = meta.plan();
    let mut delegates = delegates(program, plan);
    for (report, delegate) in delegates.iter_mut().zip(&plan.delegates) {
        let (start, purpose) = (meta.payload_range(delegate).start, Purpose::Backend(&delegate.id));
        let head = program.loader().load(start, report.bytes.min(PAYLOAD_HEAD), purpose)?;
        report.magic = sniff_payload(&head).map(str::to_owned);
    }
    let missing = program.missing_in(meta.name(), kernels, backends)?;
    let allowed = meta.input_sizes()?;
    let names = meta.value_names()?;
    let reports = |values: Vec<ValueMeta>, names: Vec<Option<String>>| -> Vec<ValueReport> {
        values.iter().zip(names).map(|(meta, name)| ValueReport { name, ..value_report(meta) }).collect()
    };
    let mut inputs = reports(meta.inputs(), names.inputs);
    let mut outputs = reports(meta.outputs(), names.outputs);
    for (reports, ids) in [(&mut inputs, &plan.inputs), (&mut outputs, &plan.outputs)] {
        reports.iter_mut().zip(ids).for_each(|(report, &id)| report.device = device_name(plan, id));
    }
    for (i, input) in inputs.iter_mut().enumerate() {
        input.allowed = allowed.as_ref().and_then(|allowed| allowed.sizes(i)).map(|sizes| {
            let texts = sizes.into_iter().map(|size| size.map_or("?".to_owned(), |size| size.to_string()));
            texts.collect()
        });
    }
    Ok(MethodReport {
        name: meta.name().to_owned(),
        inputs,
        outputs,
        symbols: allowed.map(symbols).unwrap_or_default(),
        values: value_kinds(plan),
        instructions: count_instructions(plan),
        operators: operators(plan, kernels),
        delegates,
        arenas: arenas(plan),
        tensors: count_tensors(plan),
        missing: (!missing.is_empty()).then(|| MissingReport::new(&missing)),
    })
}

impl MissingReport {
    fn new(missing: &Missing) -> Self {
        Self {
            operators: missing.operators.iter().map(|o| o.name.clone()).collect(),
            backends: missing.backends.iter().map(|b| b.id.clone()).collect(),
            devices: missing.arenas.iter().map(|arena| arena.device.clone()).collect(),
            sentences: missing.sentences(),
        }
    }
}

fn value_kinds(plan: &pte::ExecutionPlan) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for value in &plan.values {
        *counts.entry(value.kind().to_owned()).or_default() += 1;
    }
    counts
}

fn count_instructions(plan: &pte::ExecutionPlan) -> InstructionCounts {
    let mut counts = InstructionCounts::default();
    for instruction in plan.chains.iter().flat_map(|c| &c.instructions) {
        *counts.0.entry(instruction.kind().to_owned()).or_default() += 1;
    }
    counts
}

/// The operators that a plan calls, most frequent first.
fn operators(plan: &pte::ExecutionPlan, kernels: &KernelRegistry) -> Vec<OperatorReport> {
    let mut calls = BTreeMap::<String, usize>::new();
    for instruction in plan.chains.iter().flat_map(|c| &c.instructions) {
        if let pte::Instruction::KernelCall { op_index, .. } = instruction
            && let Some(operator) = usize::try_from(*op_index).ok().and_then(|i| plan.operators.get(i))
        {
            *calls.entry(operator.full_name()).or_default() += 1;
        }
    }
    let report =
        |(name, calls): (String, usize)| OperatorReport { available: kernels.contains(&name), name, calls };
    let mut all: Vec<OperatorReport> = calls.into_iter().map(report).collect();
    all.sort_by_key(|operator| std::cmp::Reverse(operator.calls));
    all
}

/// The delegates of a plan, without the formats of their payloads.
fn delegates(program: &Program, plan: &pte::ExecutionPlan) -> Vec<DelegateReport> {
    let mut calls = BTreeMap::<usize, usize>::new();
    for instruction in plan.chains.iter().flat_map(|c| &c.instructions) {
        if let pte::Instruction::DelegateCall { delegate_index, .. } = instruction {
            *calls.entry(*delegate_index as usize).or_default() += 1;
        }
    }
    let is_file = program.loader().source_archive_bytes().is_none();
    let report = |(index, d): (usize, &pte::BackendDelegate)| {
        let range = program.tables().delegate_data(d);
        let specs = d.compile_specs.iter();
        DelegateReport {
            index,
            backend: d.id.clone(),
            location: is_file.then(|| d.processed.location.name().to_owned()),
            offset: is_file.then_some(range.start),
            bytes: range.end - range.start,
            magic: None,
            compile_specs: specs.clone().map(|s| (s.key.clone(), s.value.len() as u64)).collect(),
            compile_spec_values: specs.map(|s| (s.key.clone(), crate::show::byte_text(&s.value))).collect(),
            calls: calls.get(&index).copied().unwrap_or(0),
        }
    };
    plan.delegates.iter().enumerate().map(report).collect()
}

fn device_name(plan: &pte::ExecutionPlan, id: i32) -> Option<String> {
    plan.values.get(usize::try_from(id).ok()?)?.as_tensor()?.device()
}

fn invalid_report(
    program: &Program,
    method: &pte::InvalidMethod,
    kernels: &KernelRegistry,
) -> InvalidMethodReport {
    let unknown = method.unknown.iter().map(|error| format!("{}, {}", error.path(), error.found()));
    let readable = method.plan.as_ref().map(|plan| {
        let values = |ids: &[i32]| ids.iter().map(|&id| unverified_value(plan, id)).collect();
        Box::new(MethodReport {
            name: plan.name.clone(),
            inputs: values(&plan.inputs),
            outputs: values(&plan.outputs),
            symbols: BTreeMap::new(),
            values: value_kinds(plan),
            instructions: count_instructions(plan),
            operators: operators(plan, kernels),
            delegates: delegates(program, plan),
            arenas: arenas(plan),
            tensors: count_tensors(plan),
            missing: None,
        })
    });
    InvalidMethodReport {
        name: method.name.clone(),
        problem: method.error.to_string(),
        unknown: unknown.collect(),
        readable,
    }
}

/// An input or output of a method that is not valid.
fn unverified_value(plan: &pte::ExecutionPlan, id: i32) -> ValueReport {
    let value = usize::try_from(id).ok().and_then(|index| plan.values.get(index));
    let tensor = value.and_then(pte::EValue::as_tensor);
    let sizes = |t: &pte::Tensor| t.sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
    ValueReport {
        name: None,
        kind: value
            .map_or_else(|| format!("value {id}, which does not exist"), |value| value.kind().to_owned()),
        dtype: tensor.map(|t| dtype_name(t.scalar_type)),
        sizes: tensor.map(sizes),
        dim_order: tensor.map(|t| t.dim_order.clone()),
        dynamic: tensor.map(|t| t.shape_dynamism != pte::TensorShapeDynamism::Static),
        allowed: None,
        planned: tensor.map(|t| t.allocation_info.is_some()),
        device: tensor.and_then(pte::Tensor::device),
        traced: None,
    }
}

fn value_report(meta: &ValueMeta) -> ValueReport {
    let tensor = meta.tensor.as_ref();
    ValueReport {
        name: None,
        kind: meta.tag.to_string(),
        dtype: tensor.map(|t| t.meta.dtype().name().to_owned()),
        sizes: tensor.map(|t| t.meta.sizes().to_vec()),
        dim_order: tensor.map(|t| t.meta.dim_order().to_vec()),
        dynamic: tensor.map(|t| t.meta.dynamism() != ShapeDynamism::Static),
        allowed: None,
        planned: tensor.map(|t| t.planned),
        device: None,
        traced: match meta.tag {
            Tag::Tensor => None,
            _ => meta.traced.as_ref().and_then(|v| serde_json::to_value(crate::json::Json(v)).ok()),
        },
    }
}

fn symbols(allowed: InputSizes) -> BTreeMap<String, SymbolReport> {
    let ranges = allowed.ranges().into_iter();
    let report = ranges.map(|(name, bounds)| {
        let max = Some(bounds.max).filter(|&max| max != i64::MAX);
        (name.to_string(), SymbolReport { min: bounds.min, max })
    });
    report.collect()
}

fn arenas(plan: &pte::ExecutionPlan) -> Vec<ArenaReport> {
    let sizes = plan.non_const_buffer_sizes.iter().enumerate().skip(1);
    sizes
        .map(|(memory_id, &bytes)| {
            let device = plan.non_const_buffer_device.iter().find(|d| d.buffer_idx as usize == memory_id);
            let planned = plan.values.iter().filter_map(pte::EValue::as_tensor);
            ArenaReport {
                memory_id,
                bytes: u64::try_from(bytes).unwrap_or(0),
                tensors: planned
                    .filter_map(|t| t.allocation_info)
                    .filter(|a| a.memory_id as usize == memory_id)
                    .count(),
                device: device.map(|d| format!("{}:{}", d.device_type.name(), d.device_index)),
            }
        })
        .collect()
}

fn count_tensors(plan: &pte::ExecutionPlan) -> TensorCounts {
    let mut counts = TensorCounts::default();
    for t in plan.values.iter().filter_map(pte::EValue::as_tensor) {
        if let Some(device) = t.device() {
            *counts.devices.entry(device).or_default() += 1;
        }
        if t.is_external() {
            counts.external += 1;
            counts.external_keys.extend(t.fully_qualified_name().map(str::to_owned));
        } else if t.constant_idx().is_some() {
            counts.constant += 1;
        } else if t.initial_data_idx().is_some() {
            counts.mutable += 1;
        } else if t.allocation_info.is_some() {
            counts.planned += 1;
        } else {
            counts.unplanned += 1;
        }
    }
    counts
}

/// Short descriptions of the users of each segment.
pub(crate) fn uses_of_segments(program: &pte::Program) -> Vec<Vec<String>> {
    let mut uses = vec![Vec::new(); program.segments.len()];
    let mut add = |segment: u32, what: String| {
        if let Some(uses) = uses.get_mut(segment as usize) {
            uses.push(what);
        }
    };
    if let Some(constants) = &program.constant_segment {
        add(constants.segment_index, "constants".to_owned());
    }
    let mutable: BTreeSet<u32> = program.mutable_data_segments.iter().map(|m| m.segment_index).collect();
    mutable.into_iter().for_each(|segment| add(segment, "initial values of mutable tensors".to_owned()));
    for plan in &program.execution_plan {
        for (i, d) in plan.delegates.iter().enumerate() {
            if d.processed.location == pte::DataLocation::Segment {
                add(
                    d.processed.index,
                    format!("payload of {}'s delegate {i} ({})", name(&plan.name), name(&d.id)),
                );
            }
        }
    }
    for named in &program.named_data {
        add(named.segment_index, format!("named data {}", name(&named.key)));
    }
    uses
}

fn constants(program: &pte::Program) -> Vec<ConstantReport> {
    // Tensors that agree in mutability, index and size in bytes are one constant.
    let mut all = BTreeMap::<(bool, u32, u64), ConstantReport>::new();
    for plan in &program.execution_plan {
        for t in plan.values.iter().filter_map(pte::EValue::as_tensor) {
            let (mutable, index) = match (t.constant_idx(), t.initial_data_idx()) {
                (Some(i), _) => (false, i),
                (None, Some(i)) => (true, i),
                (None, None) => continue,
            };
            let bytes = t.nbytes().unwrap_or(0);
            let entry = all.entry((mutable, index, bytes)).or_insert_with(|| ConstantReport {
                bytes,
                dtype: dtype_name(t.scalar_type),
                sizes: t.sizes.clone(),
                dim_order: t.dim_order.clone(),
                name: t.fully_qualified_name().map(str::to_owned),
                mutable,
                methods: Vec::new(),
            });
            if entry.methods.last() != Some(&plan.name) {
                entry.methods.push(plan.name.clone());
            }
        }
    }
    let mut all: Vec<ConstantReport> = all.into_values().collect();
    all.sort_by_key(|c| std::cmp::Reverse(c.bytes));
    all
}

/// PyTorch's name of a scalar type, given its number in the file.
pub(super) fn dtype_name(number: i8) -> String {
    ScalarType::from_i8(number).map_or_else(|_| format!("type {number}"), |t| t.name().to_owned())
}
