//! Both halves of a backend, for an accelerator that adds and multiplies float32 tensors of equal sizes.
//!
//!     cargo run --example toy_accelerator
//!
//! Ahead of time, the partitioner tags additions and multiplications, and each partition becomes a payload: text with one
//! instruction per line, such as `add 0 1` or `mul 2 0.5`. An operand without a decimal point is the index of a value
//! (inputs come first, then results); one with a decimal point is a constant. At run time the delegate interprets the lines.

use pteron::backend::{
    Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, CompileSpec, Delegate, Out,
};
use pteron::compile::delegate::{
    self, DelegationError, DelegationSpec, PartitionResult, Partitioner, Preprocess, PreprocessResult,
};
use pteron::compile::exported::{Argument, ExportedNode, ExportedProgram, InputKind, VarId};
use pteron::compile::pt2::SharedBytes;
use pteron::compile::{Delegation, OperatorTable, Options, compile};
use pteron::{EValue, FreeableBuffer, LoadOptions, Module, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

const ID: &str = "ToyAccelerator";

/// Whether the accelerator can compute a node: `a + b` or `a * b` of tensors of equal sizes, or of a tensor and a scalar.
fn takes(program: &ExportedProgram, node: &ExportedNode) -> bool {
    let spec = |var: VarId| program.spec(var).filter(|spec| spec.dtype == pteron::ScalarType::Float);
    let Some(result) = node.outputs.first().and_then(|&var| spec(var)) else { return false };
    let operand = |name: &str| match node.arg(name) {
        Some(Argument::Var(var)) => spec(*var) == Some(result),
        Some(Argument::Int(_) | Argument::Float(_)) => name == "other",
        _ => false,
    };
    let plain = matches!(node.arg("alpha"), None | Some(Argument::Int(1)));
    instruction(node).is_some() && plain && operand("self") && operand("other")
}

fn instruction(node: &ExportedNode) -> Option<&'static str> {
    match &*node.target {
        "aten.add.Tensor" | "aten.add.Scalar" => Some("add"),
        "aten.mul.Tensor" | "aten.mul.Scalar" => Some("mul"),
        _ => None,
    }
}

struct ToyPartitioner;

impl Partitioner for ToyPartitioner {
    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
        let mut program = program.clone();
        let tags = delegate::tag_supported(&mut program, "toy", &takes);
        let spec = DelegationSpec { backend_id: ID.to_owned(), compile_specs: Vec::new() };
        let partition_tags = tags.into_iter().map(|tag| (tag, spec.clone())).collect();
        Ok(PartitionResult { tagged_exported_program: program, partition_tags, reasons: Default::default() })
    }
}

struct ToyPreprocess;

impl Preprocess for ToyPreprocess {
    fn backend_id(&self) -> &str {
        ID
    }

    fn preprocess(
        &self,
        part: &ExportedProgram,
        _: &[delegate::CompileSpec],
    ) -> Result<PreprocessResult, DelegationError> {
        assert!(part.inputs.iter().all(|kind| *kind == InputKind::User));
        let mut indices: HashMap<VarId, usize> = part.graph.inputs.iter().copied().zip(0..).collect();
        let mut text = format!("inputs {}\n", indices.len());
        for node in &part.graph.nodes {
            let operand = |name: &str| match node.arg(name) {
                Some(Argument::Var(var)) => indices.get(var).map(ToString::to_string),
                Some(Argument::Int(n)) => Some(format!("{n}.0")),
                Some(Argument::Float(x)) => Some(format!("{x:?}")),
                _ => None,
            };
            let line = instruction(node).zip(operand("self")).zip(operand("other"));
            let Some(((name, a), b)) = line else {
                return Err(DelegationError::Preprocess {
                    backend_id: ID.to_owned(),
                    node: part.var(node.outputs[0]).name.to_string(),
                    target: node.target.to_string(),
                    problem: "an operand is a constant, which the accelerator has no memory for".to_owned(),
                });
            };
            text += &format!("{name} {a} {b}\n");
            indices.insert(node.outputs[0], indices.len());
        }
        for output in part.graph.outputs.iter().filter_map(Argument::var) {
            text += &format!("output {}\n", indices[&output]);
        }
        Ok(PreprocessResult { processed_bytes: text.into_bytes(), ..PreprocessResult::default() })
    }
}

/// The run-time half of the backend.
pub(crate) struct ToyBackend;

impl Backend for ToyBackend {
    fn id(&self) -> &str {
        ID
    }

    fn init(
        &self,
        _: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        _: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        let text = std::str::from_utf8(&processed).map_err(|e| BackendError::new(e.to_string()))?;
        Ok(Box::new(ToyDelegate::parse(text)?))
    }
}

#[derive(Clone, Copy)]
enum Operand {
    Value(usize),
    Scalar(f32),
}

struct ToyDelegate {
    num_inputs: usize,
    instructions: Vec<(fn(f32, f32) -> f32, Operand, Operand)>,
    outputs: Vec<usize>,
}

impl ToyDelegate {
    /// Parses a payload. A value must be defined before it is used.
    fn parse(text: &str) -> Result<Self, BackendError> {
        let mut delegate = Self { num_inputs: 0, instructions: Vec::new(), outputs: Vec::new() };
        for (number, line) in text.lines().enumerate() {
            let defined = delegate.num_inputs + delegate.instructions.len();
            let wrong = || BackendError::new(format!("line {} of the payload is `{line}`", number + 1));
            let value = |word: &str| word.parse().ok().filter(|v| *v < defined).ok_or_else(wrong);
            let operand = |word: &str| match word.contains(['.', 'e', 'n']) {
                true => word.parse().map(Operand::Scalar).map_err(|_| wrong()),
                false => value(word).map(Operand::Value),
            };
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["inputs", count] if number == 0 => {
                    delegate.num_inputs = count.parse().map_err(|_| wrong())?
                }
                ["add", a, b] => delegate.instructions.push((|a, b| a + b, operand(a)?, operand(b)?)),
                ["mul", a, b] => delegate.instructions.push((|a, b| a * b, operand(a)?, operand(b)?)),
                ["output", v] => delegate.outputs.push(value(v)?),
                _ => return Err(wrong()),
            }
        }
        Ok(delegate)
    }
}

impl Delegate for ToyDelegate {
    fn num_inputs(&self) -> usize {
        self.num_inputs
    }

    fn execute(
        &mut self,
        _: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        let mut values: Vec<Vec<f32>> = Vec::new();
        let mut sizes = None;
        for input in inputs {
            let Arg::Tensor(tensor) = input else { return Err(BackendError::new("an input is no tensor")) };
            values.push(tensor.storage::<f32>()?.to_vec());
            sizes = Some(tensor.sizes());
        }
        for (f, a, b) in &self.instructions {
            let at = |operand: &Operand, i: usize| match operand {
                Operand::Value(v) => values[*v][i],
                Operand::Scalar(x) => *x,
            };
            let len = values.first().map_or(0, Vec::len);
            values.push((0..len).map(|i| f(at(a, i), at(b, i))).collect());
        }
        for (output, &value) in outputs.iter_mut().zip(&self.outputs) {
            let Out::Tensor(tensor) = output else { return Err(BackendError::new("an output is no tensor")) };
            // All values have the same sizes.
            sizes.map_or(Ok(()), |sizes| tensor.resize(sizes))?;
            tensor.storage_mut::<f32>()?.copy_from_slice(&values[value]);
        }
        Ok(())
    }
}

/// Compiles an archive; `with_accelerator` delegates to the accelerator, and to no other backend.
pub(crate) fn compiled(
    archive: Vec<u8>,
    with_accelerator: bool,
) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let table = OperatorTable::portable(&pteron::kernel_registry());
    let toy = Delegation { partitioner: Arc::new(ToyPartitioner), backend: Arc::new(ToyPreprocess) };
    let delegation = if with_accelerator { vec![toy] } else { Vec::new() };
    let options = Options { delegation, ..Options::default() };
    let archive: SharedBytes = Arc::new(archive);
    let compiled = compile(&archive, &table, &options, &mut |_, _, _| {})?;
    let mut program = Vec::new();
    compiled.program.write_to(&mut program)?;
    for delegate in compiled.methods.iter().flat_map(|method| &method.delegates) {
        println!("{}: {:?}", delegate.backend_id, delegate.operators);
    }
    Ok(program)
}

/// Runs a program on two fixed inputs.
pub(crate) fn outputs(program: Vec<u8>) -> Result<Vec<Tensor>, Box<dyn std::error::Error>> {
    let options = LoadOptions::new(pteron::kernel_registry());
    let backends = pteron::backend_registry().with(ToyBackend);
    let mut module = Module::load(Arc::new(pteron::BytesLoader::new(program)), options.backends(backends))?;
    let input = |scale: f32| {
        let elements: Vec<f32> = (0..48).map(|i| (i as f32 - 20.0) * scale).collect();
        Tensor::from_slice(&[2, 3, 8], &elements).map(EValue::from)
    };
    let outputs = module.forward(&[input(0.1)?, input(0.3)?])?;
    Ok(outputs.into_iter().filter_map(|output| Tensor::try_from(output).ok()).collect())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/archives/arithmetic/model.pt2");
    let program = compiled(std::fs::read(archive)?, true)?;
    println!("{} outputs", outputs(program)?.len());
    Ok(())
}
