//! Two programs are compared: the node at which a fault was planted is found.
#![cfg(all(feature = "compile", feature = "tools", feature = "xnnpack"))]

use pteron::compile::{Delegation, Options, program_with, to_xnnpack};
use pteron::tools::comparison::{Comparison, ComparisonOptions, Side, compare_programs};
use pteron::tools::random;
use pteron::tools::tolerance::{Scope, Tolerance};
use pteron::{BytesLoader, DataLoader, Limits, Program, ScalarType};
use pteron_format::container::Blob;
use pteron_format::pte::{EValue, ExecutionPlan, Instruction, Revision, TensorData};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn archives() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives");
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut files: Vec<PathBuf> =
        entries.map(|entry| entry.expect("an entry").path().join("model.pt2")).collect();
    files.retain(|file| file.exists());
    files.sort();
    files
}

/// The bytes of a program.
fn compiled(file: &Path, delegation: Vec<Delegation>) -> Vec<u8> {
    let archive: Arc<dyn DataLoader> = Arc::new(BytesLoader::new(std::fs::read(file).expect("an archive")));
    let options = Options { delegation, ..Options::default() };
    let compiled = program_with(archive, &pteron::kernel_registry(), &options).expect("it compiles");
    compiled.load(0, compiled.size(), pteron::Purpose::Program).expect("its bytes").to_vec()
}

fn program(bytes: &[u8]) -> Program {
    Program::load(Arc::new(BytesLoader::new(bytes.to_vec())), &Limits::default()).expect("a program")
}

fn compare(a: &[u8], b: &[u8]) -> Option<Comparison> {
    let (a, b) = (program(a), program(b));
    let options = pteron::load_options();
    let method = a.default_method().expect("a valid method")?.to_owned();
    let sample = random::random_inputs(&a, &method, 0).expect("inputs");
    let tolerance = Tolerance { scope: Scope::Network, ..Tolerance::default() };
    let comparison = ComparisonOptions { method: Some(method), tolerance, ..ComparisonOptions::default() };
    let side = |program| Side { program, options: &options };
    compare_programs(side(&a), side(&b), &[sample], &comparison).ok()
}

/// A change of one place of a program, and the first instruction that computes with it.
struct Fault {
    what: String,
    instruction: usize,
    bytes: Vec<u8>,
}

/// The arguments of the kernel calls of a plan of one chain, by instruction.
fn calls(plan: &ExecutionPlan) -> impl Iterator<Item = (usize, &[i32])> {
    let instructions = plan.chains.iter().flat_map(|chain| &chain.instructions).enumerate();
    instructions.filter_map(|(at, instruction)| match instruction {
        Instruction::KernelCall { args, .. } => Some((at, &args[..])),
        _ => None,
    })
}

/// Adds 1 to every element of a weight that one instruction reads.
fn faults_in_weights(bytes: &[u8]) -> Vec<Fault> {
    let program = program(bytes);
    let tables = program.tables();
    let [plan] = &tables.execution_plan[..] else { return Vec::new() };
    let mut faults = Vec::new();
    for (id, value) in plan.values.iter().enumerate() {
        let Some(tensor) = value.as_tensor().filter(|t| t.scalar_type == ScalarType::Float as i8) else {
            continue;
        };
        let TensorData::Constant(range) = tables.tensor_data(tensor) else { continue };
        let is_shared =
            |other: &&EValue| other.as_tensor().is_some_and(|t| t.constant_idx() == tensor.constant_idx());
        let readers: Vec<usize> =
            calls(plan).filter(|(_, args)| args.contains(&(id as i32))).map(|(at, _)| at).collect();
        let ([instruction], 1) = (&readers[..], plan.values.iter().filter(is_shared).count()) else {
            continue;
        };
        let instruction = *instruction;
        let range = range.start as usize..range.end as usize;
        let mut bytes = bytes.to_vec();
        for element in bytes[range].as_chunks_mut::<4>().0 {
            *element = (f32::from_le_bytes(*element) + 1.0).to_le_bytes();
        }
        let what = format!("weight {:?}", tensor.fully_qualified_name());
        faults.push(Fault { what, instruction, bytes });
    }
    faults
}

/// Changes a floating-point attribute that one instruction reads.
fn faults_in_attributes(bytes: &[u8]) -> Vec<Fault> {
    let program = program(bytes);
    let [plan] = &program.tables().execution_plan[..] else { return Vec::new() };
    let mut faults = Vec::new();
    for (id, value) in plan.values.iter().enumerate() {
        let &EValue::Double(old) = value else { continue };
        let readers: Vec<usize> =
            calls(plan).filter(|(_, args)| args.contains(&(id as i32))).map(|(at, _)| at).collect();
        let ([instruction], false) = (&readers[..], plan.inputs.contains(&(id as i32))) else { continue };
        let source = bytes.to_vec();
        let part =
            move |range: Range<u64>| Blob::bytes(source[range.start as usize..range.end as usize].to_vec());
        let head = bytes[..program.header().program_size as usize].to_vec();
        let mut revision = Revision::new(program.tables(), head, part);
        revision.program.execution_plan[0].values[id] = EValue::Double(old * 1.5 + 0.25);
        let revised = revision.finish(&pteron_format::Limits::DEFAULT).expect("a program");
        let mut new = Vec::new();
        revised.prepared.write_to(&mut new).expect("it is written");
        faults.push(Fault { what: format!("{old} of value {id}"), instruction: *instruction, bytes: new });
    }
    faults
}

#[test]
fn planted_faults_are_found_at_their_node() {
    let (mut in_weights, mut in_attributes) = (0, 0);
    for file in archives() {
        let bytes = compiled(&file, Vec::new());
        let agreed = compare(&bytes, &bytes).is_some_and(|same| same.agree);
        if !agreed {
            // Random draws differ from run to run.
            continue;
        }
        let mut weights = faults_in_weights(&bytes);
        let mut attributes = faults_in_attributes(&bytes);
        weights.truncate(2);
        attributes.truncate(2);
        for (faults, count) in [(weights, &mut in_weights), (attributes, &mut in_attributes)] {
            for Fault { what, instruction, bytes: faulty } in faults {
                let Some(comparison) = compare(&bytes, &faulty) else { continue };
                // Some faults change nothing, such as a bound that no element reaches.
                if comparison.agree {
                    continue;
                }
                let divergence = comparison.instruction.clone().unwrap_or_default();
                let expected = format!("instruction {instruction} (");
                assert!(
                    divergence.contains(&expected),
                    "{}, {what}: {divergence:?} for {expected}",
                    file.display()
                );
                *count += 1;
            }
        }
    }
    assert!(
        in_weights >= 15 && in_attributes >= 15,
        "{in_weights} in weights, {in_attributes} in attributes"
    );
}

#[test]
fn lowered_programs_agree_with_the_portable_ones() {
    for name in ["layers", "activations", "pools", "projections", "attention"] {
        let file = archives().into_iter().find(|file| file.ends_with(format!("{name}/model.pt2")));
        let file = file.expect("the archive");
        let comparison = compare(&compiled(&file, Vec::new()), &compiled(&file, vec![to_xnnpack()]));
        let comparison = comparison.expect("both run");
        assert!(comparison.agree && !comparison.layers.is_empty(), "{name}: {}", comparison.text(true));
    }
}
