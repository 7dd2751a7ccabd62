//! The ahead-of-time half, and its inverse.

use crate::BACKEND_ID;
use crate::payload::{Instruction, Opcode, Payload, Weight};
use pteron::ScalarType;
use pteron::compile::GraphBuilder;
use pteron::compile::delegate::{
    CompileSpec, DebugHandle, DelegationError, DelegationSpec, LoweredCall, NamedBytes, PartitionResult,
    Partitioner, Preprocess, PreprocessResult, Recover, tag_supported,
};
use pteron::compile::exported::{Argument, ExportedNode, ExportedProgram, Size, TensorSpec, VarId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The compile spec that says how many bytes of weights the accelerator takes, as a little-endian `u64`.
pub const MEMORY: &str = "memory";
/// The bytes of weights that this accelerator takes.
const MEMORY_BYTES: u64 = 16 << 20;
/// The alignment of weights in the accelerator's transfers.
const ALIGNMENT: u64 = 64;

/// Tags the nodes that the accelerator can compute.
pub struct AcceleratorPartitioner;

/// Why the accelerator cannot compute a node whose operator it supports; `None` if it can.
fn refusal(program: &ExportedProgram, node: &ExportedNode) -> Option<String> {
    let spec = |name: &str| node.arg(name).and_then(Argument::var).and_then(|var| program.spec(var));
    let Some(result) = node.outputs.first().and_then(|&var| program.spec(var)) else {
        return Some("its result is no tensor".to_owned());
    };
    let is_plain = |spec: &TensorSpec| spec.dtype == ScalarType::Float && spec.dim_order.is_contiguous();
    match Opcode::of(&node.target)? {
        _ if !is_plain(result) => Some(format!("it computes {}, not row-major float32", result.dtype)),
        Opcode::Linear => {
            let is_constant = |name: &str| {
                let var = node.arg(name).and_then(Argument::var);
                var.is_some_and(|var| program.constants.contains_key(&var))
            };
            let bias = matches!(node.arg("bias"), None | Some(Argument::None)) || is_constant("bias");
            let weight =
                is_constant("weight") && spec("weight").is_some_and(|s| is_plain(s) && s.rank() == 2);
            (!weight || !bias).then(|| "its weight or bias is no constant".to_owned())
        }
        Opcode::Relu | Opcode::Hardswish => None,
        Opcode::Add | Opcode::Mul => {
            let same =
                ["self", "other"].iter().all(|name| spec(name).is_some_and(|s| s.sizes == result.sizes));
            let plain = matches!(node.arg("alpha"), None | Some(Argument::Int(1)));
            (!same || !plain).then(|| "its operands are broadcast or scaled".to_owned())
        }
    }
}

impl Partitioner for AcceleratorPartitioner {
    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
        let mut program = program.clone();
        let takes = |program: &ExportedProgram, node: &ExportedNode| {
            Opcode::of(&node.target).is_some() && refusal(program, node).is_none()
        };
        let tags = tag_supported(&mut program, "accelerator", &takes);
        let memory = CompileSpec { key: MEMORY.to_owned(), value: MEMORY_BYTES.to_le_bytes().to_vec() };
        let spec = DelegationSpec { backend_id: BACKEND_ID.to_owned(), compile_specs: vec![memory] };
        let nodes = program.graph.nodes.iter().filter(|node| !node.outputs.is_empty());
        let reasons = nodes.filter_map(|node| Some((node.outputs[0], refusal(&program, node)?))).collect();
        let partition_tags = tags.into_iter().map(|tag| (tag, spec.clone())).collect();
        Ok(PartitionResult { tagged_exported_program: program, partition_tags, reasons })
    }
}

/// Compiles a part to a payload.
pub struct AcceleratorPreprocess;

impl Preprocess for AcceleratorPreprocess {
    fn backend_id(&self) -> &str {
        BACKEND_ID
    }

    fn preprocess(
        &self,
        part: &ExportedProgram,
        _: &[CompileSpec],
    ) -> Result<PreprocessResult, DelegationError> {
        let mut payload = Payload { num_inputs: part.graph.inputs.len() as u32, ..Payload::default() };
        let mut values: HashMap<VarId, u32> = part.graph.inputs.iter().copied().zip(0..).collect();
        let (mut named_data, mut debug_handle_map) = (Vec::new(), BTreeMap::new());
        for (handle, node) in (0..).zip(&part.graph.nodes) {
            let fails = |problem: &str| DelegationError::Preprocess {
                backend_id: BACKEND_ID.to_owned(),
                node: part.var(node.outputs[0]).name.to_string(),
                target: node.target.to_string(),
                problem: problem.to_owned(),
            };
            let value = |name: &str| {
                let value = node.arg(name).and_then(Argument::var).and_then(|var| values.get(&var));
                value
                    .copied()
                    .ok_or_else(|| fails("an operand is a constant, which the accelerator has no memory for"))
            };
            let opcode =
                Opcode::of(&node.target).ok_or_else(|| fails("the accelerator has no such operation"))?;
            let (a, b) = match opcode {
                Opcode::Linear => {
                    let (weight, bytes) =
                        weight(part, node).ok_or_else(|| fails("its weight is no matrix"))?;
                    named_data.push(NamedBytes {
                        key: weight.key.clone(),
                        bytes: Arc::new(bytes),
                        alignment: ALIGNMENT,
                    });
                    payload.weights.push(weight);
                    (value("input")?, payload.weights.len() as u32 - 1)
                }
                Opcode::Relu | Opcode::Hardswish => (value("self")?, 0),
                Opcode::Add | Opcode::Mul => (value("self")?, value("other")?),
            };
            values.insert(node.outputs[0], payload.num_inputs + payload.instructions.len() as u32);
            debug_handle_map
                .insert(DebugHandle::Int(handle), vec![part.var(node.outputs[0]).name.to_string()]);
            payload.instructions.push(Instruction { opcode, handle, a, b });
        }
        payload.outputs =
            part.graph.outputs.iter().filter_map(|out| values.get(&out.var()?).copied()).collect();
        let processed_bytes = payload.write();
        Ok(PreprocessResult { processed_bytes, debug_handle_map, named_data, ..PreprocessResult::default() })
    }
}

/// The weight of a `linear`: the matrix, and the bias, which is zeros if the node has none. Equal bytes have equal keys.
fn weight(part: &ExportedProgram, node: &ExportedNode) -> Option<(Weight, Vec<u8>)> {
    let var = |name: &str| node.arg(name).and_then(Argument::var);
    let matrix = var("weight")?;
    let [rows, columns] = part.spec(matrix)?.known_sizes()?[..] else { return None };
    let mut bytes = part.constants.get(&matrix)?.data().to_vec();
    match var("bias") {
        Some(bias) => bytes.extend(part.constants.get(&bias)?.data()),
        None => bytes.resize(bytes.len() + rows as usize * 4, 0),
    }
    // FNV-1a.
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    let key = format!("accelerator.{rows}x{columns}.{hash:016x}");
    Some((Weight { rows: u32::try_from(rows).ok()?, columns: u32::try_from(columns).ok()?, key }, bytes))
}

/// Converts a payload back to PyTorch's operators.
pub struct AcceleratorRecover;

impl Recover for AcceleratorRecover {
    fn backend_id(&self) -> &str {
        BACKEND_ID
    }

    fn num_inputs(&self, processed: &[u8]) -> Result<usize, DelegationError> {
        Ok(Payload::read(processed).map_err(malformed)?.num_inputs as usize)
    }

    fn recover(&self, call: &LoweredCall<'_>) -> Result<ExportedProgram, DelegationError> {
        let payload = Payload::read(call.processed).map_err(malformed)?;
        let fails = |e: pteron::compile::Error| malformed(e.to_string());
        let mut graph = GraphBuilder::new("part", &pteron::kernel_registry());
        for (symbol, bounds) in call.ranges.iter() {
            graph.symbol(symbol, *bounds).map_err(fails)?;
        }
        let mut values = Vec::new();
        for (index, spec) in call.inputs.iter().enumerate() {
            values.push(graph.input(&format!("input_{index}"), spec.clone()).map_err(fails)?);
        }
        for i in &payload.instructions {
            let value = |index: u32| Argument::Var(values[index as usize]);
            let args = match i.opcode {
                Opcode::Linear => {
                    let weight = &payload.weights[i.b as usize];
                    let data =
                        (call.named_data)(&weight.key).ok_or_else(|| malformed("a weight is missing"))?;
                    let (rows, columns) = (i64::from(weight.rows), i64::from(weight.columns));
                    let (matrix, bias) = data
                        .data()
                        .split_at_checked((rows * columns * 4) as usize)
                        .ok_or_else(|| malformed("a weight is cut off"))?;
                    let mut constant = |sizes: &[i64], bytes: &[u8]| {
                        let sizes = sizes.iter().map(|&size| Size::Int(size)).collect();
                        let spec = TensorSpec::contiguous(ScalarType::Float, sizes);
                        graph.constant(None, spec, Arc::new(bytes.to_vec())).map(Argument::Var).map_err(fails)
                    };
                    vec![value(i.a), constant(&[rows, columns], matrix)?, constant(&[rows], bias)?]
                }
                Opcode::Relu | Opcode::Hardswish => vec![value(i.a)],
                Opcode::Add | Opcode::Mul => vec![value(i.a), value(i.b)],
            };
            values.push(graph.call(i.opcode.target(), &args, &[]).map_err(fails)?[0]);
        }
        for &output in &payload.outputs {
            graph.output(values[output as usize]).map_err(fails)?;
        }
        graph.finish().map_err(fails)
    }
}

fn malformed(problem: impl Into<String>) -> DelegationError {
    DelegationError::Recover { backend_id: BACKEND_ID.to_owned(), problem: problem.into() }
}
