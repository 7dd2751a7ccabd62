//! Finds the first instruction at which two runs of a method diverge: the prepared run and the unprepared one
//! (`no_prepare`), or a run and the values that an ETDump recorded.
//!
//! The values that an instruction writes are compared with those of the same instruction and iteration in the other run. A
//! fused step yields the value of the last instruction that it computes; the instructions fused before it have no value
//! and are reported as fused.
//!
//! Where one run has a value in half precision and the other, prepared one keeps it in f32, the f32 value is rounded before
//! the comparison. The prepared and the unprepared run are each the method's second execution, because regions with dynamic
//! shapes are lowered in the first. A recording is compared with the first execution.

mod operands;
mod text;

pub use operands::{Operand, OperandState};

use crate::delegates::NodeKinds;
use crate::etrecord::{Etrecord, SourceNode};
use crate::profile::{self, Profile, Recording, Value};
use crate::run::{DefaultInputs, Request};
use crate::tolerance::{Difference, Tolerance, compare};
use crate::{Error, Result, show};
use pteron_format::etdump::{self, ETDump, ValueKind};
use pteron_operator::EValue;
use pteron_runtime::{InstructionPlace, LoadOptions, Program, RaisedMethod};
use pteron_tensor::{DimOrder, Element, ScalarType, Tensor, TensorMeta, bf16, f16};
use pteron_trace::Place;
use serde::Serialize;
use std::collections::HashMap;

/// The run with which a prepared run is compared.
#[derive(Debug, Clone, Copy)]
pub enum Against<'a> {
    /// A run of the method without preparation.
    AsWritten,
    /// An ETDump with its debug buffer.
    Recorded {
        /// The ETDump.
        dump: &'a ETDump,
        /// The debug buffer, which holds the bytes of the recorded tensors.
        buffer: &'a [u8],
        /// What the exporter recorded of the program: it names the nodes of instructions.
        record: Option<&'a Etrecord>,
    },
}

/// The maximum number of nodes of an instruction that are shown.
const MAX_NODES: usize = 4;

/// The result of a comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Divergence {
    pub method: String,
    /// The inputs that were used because none were given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_inputs: Option<DefaultInputs>,
    /// The number of values that the other run recorded.
    pub recorded: usize,
    /// The compared values, in the order of the other run.
    pub values: Vec<ComparedValue>,
    /// Values that the prepared run does not compute, because their instructions were fused into others.
    pub fused: Vec<FusedValue>,
    /// The first value that differs, as an index into `values`; `None` if no value differs.
    pub first: Option<usize>,
    /// The results from which the first differing value was computed: the nearest compared ones, and fused ones between.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub operands: Vec<Operand>,
}

/// A value that both runs computed.
#[derive(Debug, Clone, Serialize)]
pub struct ComparedValue {
    /// The chain and instruction that computed the value; `None` for an output of the method.
    pub place: Option<(u32, u32)>,
    /// If the instruction calls a delegate, the node of its payload that computed the value.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<u32>,
    /// The operator or backend that the instruction calls.
    pub what: String,
    /// The source line of the model, if the program records it.
    pub source: Option<String>,
    /// The nodes of the exported graph that the instruction was made of, if an ETRecord names them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nodes: Vec<SourceNode>,
    /// The number of times that the instruction had been executed before.
    pub iteration: usize,
    /// The index of the value among the instruction's outputs.
    pub output: usize,
    /// The largest absolute difference; `None` if the values cannot be subtracted.
    pub largest: Option<f64>,
    /// How the values differ; `None` if they differ by no more than is tolerated.
    pub difference: Option<String>,
}

/// A value that was not compared, because its instruction was fused into another one.
#[derive(Debug, Clone, Serialize)]
pub struct FusedValue {
    /// The chain and instruction of the value; `None` for an output of the method.
    pub place: Option<(u32, u32)>,
    /// The operator or backend that the instruction calls.
    pub what: String,
    /// The number of times that the instruction had been executed before.
    pub iteration: usize,
    /// The index of the value among the instruction's outputs.
    pub output: usize,
}

/// Runs a method, and compares the values of its instructions with those of another run.
pub fn find(
    program: &Program,
    request: &Request,
    against: Against<'_>,
    tolerance: &Tolerance,
    options: LoadOptions,
) -> Result<Divergence> {
    let request = Request { repeat: 1, ..request.clone() };
    let warm = matches!(against, Against::AsWritten);
    let name = request.resolve(program)?.method;
    let nodes = NodeKinds::read(program, &name, &options.backends)?;
    let raised = program.raise(&name, &options.kernels)?;
    let record = match against {
        Against::Recorded { record: Some(record), .. } => {
            record.check(program, &name)?;
            Some(record)
        }
        _ => None,
    };
    let run = |options| profile::record(program, &request, true, warm, options);
    let Profile { method, default_inputs, recording, .. } = run(options.clone())?;
    let values = recorded_values(recording)?;
    let (expected, empty) = match against {
        Against::AsWritten => {
            let as_written = LoadOptions { no_prepare: true, ..options };
            let empty = "the method computes no tensors, so there is nothing to compare";
            (number_iterations(recorded_values(run(as_written)?.recording)?), empty)
        }
        Against::Recorded { dump, buffer, .. } => {
            let recorded = etdump_values(dump, buffer)?;
            let recorded = drop_delegate_inputs(recorded, &values, &raised);
            (number_iterations(recorded), "the ETDump holds no intermediate values; record it with them")
        }
    };
    if expected.is_empty() {
        return Err(Error::input(empty));
    }
    let mut known: HashMap<Key, Value> = number_iterations(values).into_iter().collect();
    let mut report = Divergence {
        method,
        default_inputs,
        recorded: expected.len(),
        values: Vec::new(),
        fused: Vec::new(),
        first: None,
        operands: Vec::new(),
    };
    let operators = program.method_meta(&report.method)?.operators();
    let quantized = operators.iter().any(|op| op.name.starts_with("quantized_decomposed::"));
    let mut tolerance = Tolerance { quantized, ..*tolerance };
    for (key, expected) in expected {
        let mut place = program.instruction_place(&report.method, key.place)?;
        if let (Some(place), Some(node)) = (&mut place, nodes.text(key.place)) {
            place.what += &format!(", {node}");
        }
        tolerance.rounded_to = coarser_half_type(tolerance.rounded_to, expected.tensor.dtype());
        let Some(value) = known.remove(&key) else {
            report.fused.push(FusedValue::new(&key, place));
            continue;
        };
        let (found_as, expected_as) = (value.tensor.dtype(), expected.tensor.dtype());
        tolerance.rounded_to = coarser_half_type(tolerance.rounded_to, found_as);
        let actual = round_to(value.tensor, expected_as)?;
        let (a, b) = (EValue::Tensor(actual), EValue::Tensor(round_to(expected.tensor, found_as)?));
        let difference = compare(&a, &b, &tolerance).err();
        if difference.is_some() {
            report.first.get_or_insert(report.values.len());
        }
        if let (EValue::Tensor(actual), EValue::Tensor(expected)) = (&a, &b) {
            let mut value = ComparedValue::new(&key, place, actual, expected, difference);
            if let Some(record) = record {
                let handle = nodes.handle(key.place);
                value.add_nodes(record.nodes(&report.method, key.place, &value.what, handle));
            }
            report.values.push(value);
        }
    }
    if report.values.is_empty() {
        return Err(Error::input("the two runs have no value in common: they are not of the same program"));
    }
    report.operands = operands::operands_of_first_difference(&report, &raised);
    Ok(report)
}

/// Of `seen` and `dtype`, the half-precision type with fewer mantissa bits; `None` if neither is a half-precision type.
fn coarser_half_type(seen: Option<ScalarType>, dtype: ScalarType) -> Option<ScalarType> {
    match (seen, dtype) {
        (_, ScalarType::BFloat16) => Some(ScalarType::BFloat16),
        (None, ScalarType::Half) => Some(ScalarType::Half),
        _ => seen,
    }
}

/// Rounds an f32 tensor to `dtype` if that is a half-precision type; otherwise returns the tensor unchanged.
fn round_to(tensor: Tensor, dtype: ScalarType) -> Result<Tensor> {
    match (tensor.dtype(), dtype) {
        (ScalarType::Float, ScalarType::Half) => map_elements(&tensor, dtype, f16::from_f32),
        (ScalarType::Float, ScalarType::BFloat16) => map_elements(&tensor, dtype, bf16::from_f32),
        _ => Ok(tensor),
    }
}

/// Converts the elements of an f32 tensor by `round`; the result is row-major.
fn map_elements<T: Element>(tensor: &Tensor, dtype: ScalarType, round: impl Fn(f32) -> T) -> Result<Tensor> {
    let mut halves = Tensor::zeros(TensorMeta::contiguous(dtype, tensor.sizes())?)?;
    let elements = tensor.to_vec::<f32>()?;
    halves.as_mut_slice::<T>()?.iter_mut().zip(elements).for_each(|(half, x)| *half = round(x));
    Ok(halves)
}

/// Identifies a value of a run: the instruction, its iteration, and the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    place: Place,
    iteration: usize,
    output: usize,
}

/// Numbers the iterations of values; `values` is in the order of computation.
fn number_iterations(values: Vec<Value>) -> Vec<(Key, Value)> {
    let mut seen: HashMap<(Place, usize), usize> = HashMap::new();
    let key = |value: Value| {
        let iteration = seen.entry((value.place, value.output)).or_default();
        let key = Key { place: value.place, iteration: *iteration, output: value.output };
        *iteration += 1;
        (key, value)
    };
    values.into_iter().map(key).collect()
}

/// The values of a recording. Fails if some were not recorded.
fn recorded_values(recording: Recording) -> Result<Vec<Value>> {
    recording.expect_values()?;
    Ok(recording.blocks.into_iter().flat_map(|b| b.values).collect())
}

/// The tensors of the first block of an ETDump that recorded values.
fn etdump_values(dump: &ETDump, buffer: &[u8]) -> Result<Vec<Value>> {
    let debug = |run: &etdump::RunData| run.events.iter().filter_map(|e| e.debug_event.clone()).collect();
    let blocks = dump.run_data.iter().map(debug);
    let events: Vec<etdump::DebugEvent> =
        blocks.into_iter().find(|events: &Vec<_>| !events.is_empty()).unwrap_or_default();
    let mut values: Vec<Value> = Vec::new();
    let mut before = None;
    let mut output = 0;
    for event in events {
        let chain = u32::try_from(event.chain_index).ok();
        let place = match (chain, u32::try_from(event.instruction_id).ok()) {
            (Some(chain), Some(instruction)) => Place::instruction(chain, instruction),
            _ => Place::default(),
        };
        // String ids are specific to the delegate that recorded them and cannot be mapped to nodes.
        if event.delegate_debug_id_str.is_some() {
            continue;
        }
        let place = Place { node: u32::try_from(event.delegate_debug_id_int).ok(), ..place };
        // Consecutive events of one instruction are its outputs.
        output = if before == Some(place) { output } else { 0 };
        before = Some(place);
        let tensors = match event.debug_entry.map(|v| v.kind) {
            Some(ValueKind::Tensor(tensor)) => vec![tensor],
            Some(ValueKind::TensorList(tensors)) => tensors,
            _ => Vec::new(),
        };
        for tensor in tensors {
            let name = event.name.clone().unwrap_or_default();
            values.push(Value { name, place, output, tensor: read_tensor(&tensor, buffer)? });
            output += 1;
        }
    }
    Ok(values)
}

/// Drops the inputs of delegate calls from a recording: ExecuTorch records all arguments of a call, the results last, whereas
/// `computed` has only the results.
fn drop_delegate_inputs(recorded: Vec<Value>, computed: &[Value], raised: &RaisedMethod) -> Vec<Value> {
    let outputs = |values: &[Value]| {
        let mut outputs: HashMap<Place, usize> = HashMap::new();
        for value in values {
            let most = outputs.entry(value.place).or_default();
            *most = (*most).max(value.output + 1);
        }
        outputs
    };
    let (all, results) = (outputs(&recorded), outputs(computed));
    let inputs = |place: Place| match results.get(&place) {
        Some(results) if place.node.is_none() && raised.calls_delegate(place) => {
            all[&place].saturating_sub(*results)
        }
        _ => 0,
    };
    let result = |value: Value| {
        let output = value.output.checked_sub(inputs(value.place))?;
        Some(Value { output, ..value })
    };
    recorded.into_iter().filter_map(result).collect()
}

/// Reads a recorded tensor into row-major order.
fn read_tensor(tensor: &etdump::Tensor, buffer: &[u8]) -> Result<Tensor> {
    let wrong = |why: &str| {
        Error::input(format!(
            "a recorded tensor {:?} of type {} at byte {} {why}",
            tensor.sizes, tensor.scalar_type, tensor.offset
        ))
    };
    let sizes: Option<Vec<usize>> = tensor.sizes.iter().map(|&s| usize::try_from(s).ok()).collect();
    let (Some(sizes), Ok(dtype)) = (sizes, ScalarType::from_i8(tensor.scalar_type)) else {
        return Err(wrong("has a size or type that no tensor has"));
    };
    let range = tensor
        .data_range(buffer.len() as u64)
        .ok_or_else(|| wrong(&format!("is not within the debug buffer, which has {} bytes", buffer.len())))?;
    let bytes = &buffer[range.start as usize..range.end as usize];
    let meta = TensorMeta::new(dtype, &sizes, dim_order_of_strides(&sizes, &tensor.strides))?;
    if meta.strides().iter().zip(&tensor.strides).zip(&sizes).any(|((&a, &b), &n)| n > 1 && a as i64 != b) {
        return Err(wrong(&format!(
            "has strides {:?}, which are not those of a dense tensor",
            tensor.strides
        )));
    }
    let mut bytes = pteron_tensor::memory::copied(bytes)?;
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.to_real().size()).for_each(<[u8]>::reverse);
    }
    Ok(Tensor::from_bytes(meta, &bytes)?.to_dim_order(DimOrder::contiguous(sizes.len()))?)
}

/// The dim order of a dense tensor with these strides: the dimensions from the largest stride to the smallest.
fn dim_order_of_strides(sizes: &[usize], strides: &[i64]) -> DimOrder {
    let mut order: Vec<u8> = (0..sizes.len().min(u8::MAX.into()) as u8).collect();
    if strides.len() == sizes.len() {
        order.sort_by_key(|&d| std::cmp::Reverse(strides[usize::from(d)]));
    }
    DimOrder::new(&order).unwrap_or_else(|_| DimOrder::contiguous(sizes.len()))
}

impl ComparedValue {
    fn new(
        key: &Key,
        place: Option<InstructionPlace>,
        actual: &Tensor,
        expected: &Tensor,
        difference: Option<Difference>,
    ) -> Self {
        let (what, source) = place.map(|p| (p.what, p.source_frame)).unwrap_or_default();
        Self {
            place: key.place.chain.zip(key.place.instruction),
            node: key.place.node,
            what,
            source,
            nodes: Vec::new(),
            iteration: key.iteration,
            output: key.output,
            largest: largest_difference(actual, expected),
            difference: difference.map(|d| d.to_string()),
        }
    }

    /// The name of the value: `instruction 3 (aten::add.out), output 0`.
    pub fn name(&self) -> String {
        let mut text = text::name(self.place, &self.what, self.iteration, self.output);
        for (i, node) in self.nodes.iter().take(MAX_NODES).enumerate() {
            text += &format!("{} {node}", if i == 0 { ", node" } else { "," });
        }
        if self.nodes.len() > MAX_NODES {
            text += &format!(" and {} more", self.nodes.len() - MAX_NODES);
        }
        if let Some(source) = &self.source {
            text += &format!(", from {source}");
        }
        text
    }

    /// Adds the nodes of the exported graph, and the line of the first one if the program records none.
    fn add_nodes(&mut self, nodes: Vec<SourceNode>) {
        self.source = self.source.take().or_else(|| nodes.first()?.line.clone());
        self.nodes = nodes;
    }
}

impl FusedValue {
    fn new(key: &Key, place: Option<InstructionPlace>) -> Self {
        Self {
            place: key.place.chain.zip(key.place.instruction),
            what: place.map(|p| p.what).unwrap_or_default(),
            iteration: key.iteration,
            output: key.output,
        }
    }

    /// The name of the value: `instruction 3 (aten::add.out), output 0`.
    pub fn name(&self) -> String {
        text::name(self.place, &self.what, self.iteration, self.output)
    }
}

/// The largest absolute difference of two tensors; infinite if an element is NaN or infinite in only one of them.
fn largest_difference(a: &Tensor, b: &Tensor) -> Option<f64> {
    let row_major = |t: &Tensor| t.to_dim_order(DimOrder::contiguous(t.rank())).ok();
    let (left, right) = (row_major(a)?, row_major(b)?);
    let (a, b) = (show::numbers(&left)?, show::numbers(&right)?);
    let abs_diff = |a: f64, b: f64| match a == b || (a.is_nan() && b.is_nan()) {
        true => 0.0,
        false => Some((a - b).abs()).filter(|d| !d.is_nan()).unwrap_or(f64::INFINITY),
    };
    let elements = 0..left.numel();
    (left.numel() == right.numel()).then(|| elements.map(|i| abs_diff(a(i), b(i))).fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(instruction: u32, output: usize) -> Value {
        let tensor = Tensor::from_slice(&[1], &[0.0f32]).unwrap();
        Value { name: String::new(), place: Place::instruction(0, instruction), output, tensor }
    }

    #[test]
    fn loop_iterations_have_distinct_keys() {
        let keys: Vec<_> = number_iterations(vec![value(3, 0), value(3, 1), value(4, 0), value(3, 0)])
            .into_iter()
            .map(|(k, _)| (k.place.instruction.unwrap(), k.iteration, k.output))
            .collect();
        assert_eq!(keys, [(3, 0, 0), (3, 0, 1), (4, 0, 0), (3, 1, 0)]);
    }

    #[test]
    fn f32_values_are_rounded_to_half_precision() {
        let sizes = [1, 2, 1, 2];
        let plain = Tensor::from_slice(&sizes, &[1.0f32, 1.0001, 65536.0, 0.1]).unwrap();
        for order in [[0, 1, 2, 3], [0, 2, 3, 1]] {
            let x = plain.to_dim_order(DimOrder::new(&order).unwrap()).unwrap();
            let halves = round_to(x.clone(), ScalarType::Half).unwrap();
            assert_eq!(halves.to_vec::<f16>().unwrap(), [1.0, 1.0, f32::INFINITY, 0.1].map(f16::from_f32));
            let (elements, same) = (x.bytes().as_ptr(), round_to(x, ScalarType::Float).unwrap());
            assert_eq!(same.bytes().as_ptr(), elements, "it was copied");
        }
    }

    #[test]
    fn recorded_tensors_are_read_in_logical_order() {
        let bytes: Vec<u8> = [1i32, 2, 3, 4, 5, 6].iter().flat_map(|v| v.to_le_bytes()).collect();
        let mut tensor = etdump::Tensor { scalar_type: 3, sizes: vec![2, 3], strides: vec![1, 2], offset: 0 };
        let read = read_tensor(&tensor, &bytes).unwrap();
        assert_eq!(read.as_slice::<i32>().unwrap(), [1, 3, 5, 2, 4, 6]);
        tensor.offset = 4;
        let e = read_tensor(&tensor, &bytes).unwrap_err().to_string();
        assert!(e.contains("not within the debug buffer, which has 24 bytes"), "{e}");
        (tensor.offset, tensor.strides) = (0, vec![3, 3]);
        assert!(read_tensor(&tensor, &bytes).unwrap_err().to_string().contains("strides [3, 3]"));
    }

    #[test]
    fn largest_difference_handles_nan_and_infinity() {
        let t = |v: &[f32]| Tensor::from_slice(&[v.len()], v).unwrap();
        assert_eq!(largest_difference(&t(&[1.0, f32::NAN]), &t(&[1.5, f32::NAN])), Some(0.5));
        assert_eq!(largest_difference(&t(&[f32::NAN]), &t(&[1.0])), Some(f64::INFINITY));
    }
}
