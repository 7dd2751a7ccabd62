//! Every `.pte` of the corpus is read and verified, and has the properties that the reference's own tools report.

mod support;

use pteron_format::pte::{
    EValue, ExecutionPlan, Header, Instruction, Tensor, TensorShapeDynamism, VerifiedProgram,
};
use pteron_format::{FileKind, Limits, sniff};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::Path;

fn open(path: &Path) -> VerifiedProgram {
    let file = std::fs::read(path).unwrap();
    assert_eq!(sniff(&file[..64.min(file.len())]), Some(FileKind::Pte));
    let header = Header::parse(&file[..64.min(file.len())], file.len() as u64).unwrap();
    let tables = &file[..usize::try_from(header.program_size).unwrap()];
    let limits = Limits::default();
    let errors = VerifiedProgram::errors(tables, &header, &limits);
    let errors: Vec<_> = errors.iter().map(ToString::to_string).collect();
    assert!(errors.is_empty(), "{}: {errors:#?}", path.display());
    VerifiedProgram::read(tables, &header, &limits).unwrap()
}

#[test]
fn every_program_is_read_and_verified() {
    let files = support::corpus("pte");
    assert!(files.len() >= 74);
    for path in &files {
        open(path);
    }
    eprintln!("{} programs", files.len());
}

#[test]
fn facts_agree_with_the_reference() {
    let mut checked = 0;
    for path in support::corpus("pte") {
        let Ok(case) = std::fs::read(path.with_file_name("case.json")) else { continue };
        let case: Value = serde_json::from_slice(&case).unwrap();
        if case["model"] != json!(path.file_name().unwrap().to_str().unwrap()) || case["program"].is_null() {
            continue;
        }
        let program = open(&path);
        let named: Vec<Value> =
            program.named_data.iter().map(|entry| json!([entry.key, entry.segment_index])).collect();
        let facts = facts(&program);
        let mut case = case;
        forget_python_values(&mut case["program"]);
        for (key, expected) in case["program"].as_object().unwrap() {
            if key == "named_data" {
                // Cases record key and segment of the first entries only.
                let expected = expected.as_array().unwrap();
                assert_eq!(named[..expected.len()], expected[..], "{key} of {}", path.display());
                continue;
            }
            assert_eq!(facts.get(key), Some(expected), "{key} of {}", path.display());
        }
        let size_of = |name: &Path| {
            json!(std::fs::metadata(path.with_file_name(name.file_name().unwrap())).unwrap().len())
        };
        assert_eq!(size_of(&path), case["pte_bytes"], "{}", path.display());
        for file in case["data_files"].as_array().into_iter().flatten().filter(|file| file.is_object()) {
            assert_eq!(
                size_of(Path::new(file["file"].as_str().unwrap())),
                file["bytes"],
                "{}",
                path.display()
            );
        }
        checked += 1;
    }
    eprintln!("{checked} cases");
    assert!(checked >= 74);
}

/// Drops values other than tensors, which are recorded in Python's notation.
fn forget_python_values(program: &mut Value) {
    for method in program["methods"].as_object_mut().unwrap().values_mut() {
        for side in ["inputs", "outputs"] {
            for value in method[side].as_array_mut().unwrap() {
                value.as_object_mut().unwrap().remove("v");
            }
        }
    }
}

fn facts(program: &VerifiedProgram) -> Map<String, Value> {
    let header = program.header().extended.map(|header| {
        json!({
            "length": header.length,
            "program_size": header.program_size,
            "segment_base_offset": header.segment_base_offset,
            "segment_data_size": header.segment_data_size.unwrap_or(0),
        })
    });
    let constants = program.constant_segment.as_ref();
    let mut methods = Map::new();
    for plan in &program.execution_plan {
        methods.insert(plan.name.clone(), method(plan));
    }
    let facts = json!({
        "extended_header": header,
        "version": program.version,
        "inline_constant_buffers": program.constant_buffer.len(),
        "inline_delegate_blobs": program.backend_delegate_data.len(),
        "segments": program.segments.iter().map(|s| json!([s.offset, s.size])).collect::<Vec<_>>(),
        "constant_segment": constants.map(|s| json!([s.segment_index, s.offsets.len()])),
        "mutable_data_segments":
            program.mutable_data_segments.iter().map(|s| json!([s.segment_index, s.offsets])).collect::<Vec<_>>(),
        "named_data_count": program.named_data.len(),
        "methods": methods,
    });
    facts.as_object().unwrap().clone()
}

fn count<K: Into<String>>(keys: impl Iterator<Item = K>) -> Value {
    let mut counts = BTreeMap::new();
    for key in keys {
        *counts.entry(key.into()).or_insert(0u64) += 1;
    }
    json!(counts)
}

fn method(plan: &ExecutionPlan) -> Value {
    let instructions = || plan.chains.iter().flat_map(|chain| &chain.instructions);
    let tensors = || plan.values.iter().filter_map(EValue::as_tensor);
    let number = |is: fn(&Tensor) -> bool| tensors().filter(|tensor| is(tensor)).count();
    json!({
        "ops": count(instructions().filter_map(|i| match i {
            Instruction::KernelCall { op_index, .. } => Some(plan.operators[*op_index as usize].full_name()),
            _ => None,
        })),
        "delegates": count(instructions().filter_map(|i| match i {
            Instruction::DelegateCall { delegate_index, .. } => Some(&plan.delegates[*delegate_index as usize].id),
            _ => None,
        })),
        "instructions": count(instructions().map(Instruction::kind)),
        "operator_table": plan.operators.len(),
        "n_delegates_table": plan.delegates.len(),
        "values": count(plan.values.iter().map(EValue::kind)),
        "chains": plan.chains.len(),
        "tensors": {
            "total": tensors().count(),
            // The recorder also counts external tensors by their buffer index.
            "constant": number(|t| t.data_buffer_idx > 0 && t.allocation_info.is_none()),
            "planned": number(|t| t.allocation_info.is_some()),
            "mutable_init": number(|t| t.data_buffer_idx > 0 && t.allocation_info.is_some()),
            "unplanned": number(|t| t.data_buffer_idx == 0 && t.allocation_info.is_none()),
            "external": number(Tensor::is_external),
            "with_extra_info": number(|t| t.extra_tensor_info.is_some()),
            "dynamism": count(tensors().map(|t| t.shape_dynamism.name())),
            "dtypes": count(tensors().map(dtype)),
            "non_contiguous_dim_order":
                number(|t| t.dim_order.iter().enumerate().any(|(i, &d)| i != usize::from(d))),
        },
        "non_const_buffer_sizes": plan.non_const_buffer_sizes,
        "inputs": plan.inputs.iter().map(|&i| value(plan, i)).collect::<Vec<_>>(),
        "outputs": plan.outputs.iter().map(|&i| value(plan, i)).collect::<Vec<_>>(),
        "delegate_locations":
            plan.delegates.iter().map(|d| json!([d.id, d.processed.location.name(), d.processed.index])).collect::<Vec<_>>(),
    })
}

fn dtype(tensor: &Tensor) -> String {
    format!("{:?}", tensor.dtype().unwrap()).to_uppercase()
}

fn value(plan: &ExecutionPlan, index: i32) -> Value {
    match &plan.values[index as usize] {
        EValue::Tensor(tensor) => json!({
            "t": dtype(tensor),
            "sizes": tensor.sizes,
            "dim_order": tensor.dim_order,
            "dyn": tensor.shape_dynamism as i8,
            "planned": tensor.allocation_info.is_some(),
            "buf": tensor.data_buffer_idx,
        }),
        other => json!({ "t": other.kind() }),
    }
}

#[test]
fn dynamism_numbers_match_the_schema() {
    assert_eq!(TensorShapeDynamism::from_i8(2), Some(TensorShapeDynamism::DynamicUnbound));
    assert_eq!(TensorShapeDynamism::from_i8(3), None);
}
