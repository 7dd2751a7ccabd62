//! Every `.ptd` of the corpus is read and verified, and has the contents that its case describes.

mod support;

use pteron_format::ptd::{Header, VerifiedFlatTensor};
use pteron_format::{FileKind, Limits, pte, sniff};
use serde_json::Value;
use std::path::Path;

fn open(path: &Path) -> (Vec<u8>, VerifiedFlatTensor) {
    let file = std::fs::read(path).unwrap();
    assert_eq!(sniff(&file[..64]), Some(FileKind::Ptd));
    let header = Header::parse(&file[..64], file.len() as u64).unwrap();
    let tables = &file[..usize::try_from(header.tables_size).unwrap()];
    let limits = Limits::default();
    let errors = VerifiedFlatTensor::errors(tables, &header, &limits);
    assert!(errors.is_empty(), "{}: {errors:#?}", path.display());
    let verified = VerifiedFlatTensor::read(tables, &header, &limits).unwrap();
    (file, verified)
}

#[test]
fn every_file_is_read_and_verified() {
    let files = support::corpus("ptd");
    assert!(files.len() >= 15);
    for path in &files {
        let (_, tables) = open(path);
        assert!(!tables.named_data.is_empty());
        assert!(tables.get("no such key").is_none());
    }
    eprintln!("{} files", files.len());
}

#[test]
fn external_tensors_of_programs_are_found_with_their_layout() {
    let mut found = 0;
    for path in support::corpus("ptd") {
        let Ok(program) = std::fs::read(path.with_file_name("model.pte")) else { continue };
        let header = pte::Header::parse(&program, program.len() as u64).unwrap();
        let tables = &program[..usize::try_from(header.program_size).unwrap()];
        let program = pte::VerifiedProgram::read(tables, &header, &Limits::default()).unwrap();
        let (_, data) = open(&path);
        for tensor in
            program.execution_plan.iter().flat_map(|plan| &plan.values).filter_map(|v| v.as_tensor())
        {
            let (pte::TensorData::External(key) | pte::TensorData::ExternalInitial(key)) =
                program.tensor_data(tensor)
            else {
                continue;
            };
            let Some(entry) = data.get(key) else { continue };
            let layout = entry.tensor_layout.as_ref().unwrap();
            assert_eq!(
                (layout.scalar_type, &layout.sizes, &layout.dim_order),
                (tensor.scalar_type, &tensor.sizes, &tensor.dim_order),
                "{key} of {}",
                path.display()
            );
            let range = data.data(key).unwrap();
            assert_eq!(range.end - range.start, tensor.nbytes().unwrap());
            found += 1;
        }
    }
    assert!(found >= 20, "{found}");
}

#[test]
fn entries_hold_the_recorded_bytes() {
    let mut checked = 0;
    for path in support::corpus("ptd") {
        // A file without a record has only to be readable, which another test checks.
        let Ok(case) = std::fs::read(path.with_file_name("case.json")) else { continue };
        let case: Value = serde_json::from_slice(&case).unwrap();
        let Some(entries) = case["entries"].as_object() else { continue };
        let recorded = std::fs::read(path.with_file_name("io.bin")).unwrap();
        let (file, tables) = open(&path);
        assert_eq!(tables.named_data.len(), entries.len());
        for (key, entry) in entries {
            let range = tables.data(key).unwrap();
            let bytes = &file[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()];
            let layout = tables.get(key).unwrap().tensor_layout.as_ref();
            match entry["kind"].as_str() {
                Some("tensor") => {
                    let start = usize::try_from(entry["offset"].as_u64().unwrap()).unwrap();
                    let len = usize::try_from(entry["nbytes"].as_u64().unwrap()).unwrap();
                    assert_eq!(bytes, &recorded[start..start + len], "{key}");
                    let layout = layout.unwrap();
                    assert_eq!(layout.dtype().unwrap().name(), entry["dtype"]);
                    let shape: Vec<_> =
                        entry["shape"].as_array().unwrap().iter().map(|s| s.as_i64().unwrap()).collect();
                    assert_eq!(layout.sizes.iter().map(|&s| i64::from(s)).collect::<Vec<_>>(), shape);
                }
                Some("bytes") => {
                    assert_eq!(bytes, entry["text"].as_str().unwrap().as_bytes());
                    assert_eq!(layout, None);
                }
                _ => assert_eq!(tables.data(key), tables.data("a.weight")),
            }
            checked += 1;
        }
    }
    assert!(checked >= 16, "{checked}");
}
