//! No input, however malformed, makes a reader panic or use excessive memory.

mod support;

use pteron_format::{Limits, bpte, etdump, ptd, pte};
use support::random::Random;

fn read_program(file: &[u8]) -> bool {
    let head = &file[..file.len().min(64)];
    let Ok(header) = pte::Header::parse(head, file.len() as u64) else { return false };
    let tables = &file[..usize::try_from(header.program_size).unwrap()];
    let limits = Limits::default();
    match pte::VerifiedProgram::read(tables, &header, &limits) {
        Ok(program) => {
            let errors = pte::VerifiedProgram::errors(tables, &header, &limits);
            assert_eq!(errors.is_empty(), program.invalid_methods().is_empty());
            check_ranges(&program, file.len() as u64);
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

/// All ranges of a verified program are in bounds of the file.
fn check_ranges(program: &pte::VerifiedProgram, file_len: u64) {
    let inside =
        |range: std::ops::Range<u64>| assert!(range.start <= range.end && range.end <= file_len, "{range:?}");
    (0..program.segments.len()).for_each(|i| inside(program.segment(i as u32).unwrap()));
    program.named_data.iter().for_each(|entry| inside(program.named_data(&entry.key).unwrap()));
    for plan in &program.execution_plan {
        plan.delegates.iter().for_each(|delegate| inside(program.delegate_data(delegate)));
        for tensor in plan.values.iter().filter_map(pte::EValue::as_tensor) {
            if let pte::TensorData::Constant(range) | pte::TensorData::Initial(range) =
                program.tensor_data(tensor)
            {
                inside(range.clone());
                assert_eq!(range.end - range.start, tensor.nbytes().unwrap());
            }
        }
    }
}

fn read_data(file: &[u8]) -> bool {
    let head = &file[..file.len().min(64)];
    let Ok(header) = ptd::Header::parse(head, file.len() as u64) else { return false };
    let tables = &file[..usize::try_from(header.tables_size).unwrap()];
    match ptd::VerifiedFlatTensor::read(tables, &header, &Limits::default()) {
        Ok(data) => {
            for entry in &data.named_data {
                let range = data.data(&entry.key).unwrap();
                assert!(range.start <= range.end && range.end <= file.len() as u64);
            }
            true
        }
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

fn every_truncation(files: &[(std::path::PathBuf, Vec<u8>)], read: fn(&[u8]) -> bool) {
    for (path, file) in files {
        assert!(read(file), "{}", path.display());
        for len in 0..file.len() {
            read(&file[..len]);
        }
    }
}

fn mutations(files: &[(std::path::PathBuf, Vec<u8>)], read: fn(&[u8]) -> bool, seed: u64, count: usize) {
    let mut random = Random(seed);
    let mut accepted = 0;
    for i in 0..count {
        let mut file = files[i % files.len()].1.clone();
        random.mutate(&mut file);
        accepted += usize::from(read(&file));
    }
    eprintln!("{accepted} of {count} mutated files still verify");
    assert!(accepted > 0 && accepted < count);
}

#[test]
fn truncated_programs_never_panic() {
    every_truncation(&support::tiny("pte"), read_program);
}

#[test]
fn truncated_data_never_panics() {
    every_truncation(&support::tiny("ptd"), read_data);
}

#[test]
fn mutated_programs_never_panic() {
    mutations(&support::tiny("pte")[..40], read_program, 1, 20_000);
}

#[test]
fn mutated_data_never_panics() {
    mutations(&support::tiny("ptd"), read_data, 2, 20_000);
}

#[test]
fn damaged_bundles_and_recordings_never_panic() {
    let read = |kind: &str, file: &[u8]| match kind {
        "bpte" => bpte::read(file, &Limits::default()).map(drop),
        _ => etdump::read(file, &Limits::default()).map(drop),
    };
    for kind in ["bpte", "etdp"] {
        for path in support::corpus(kind) {
            let file = std::fs::read(path).unwrap();
            // A truncated file may be read only if nothing but padding at its end is missing.
            (0..file.len())
                .for_each(|len| assert!(read(kind, &file[..len]).is_err() || file.len() - len < 64));
            let mut random = Random(3);
            for _ in 0..5_000 {
                let mut file = file.clone();
                random.mutate(&mut file);
                _ = read(kind, &file);
            }
        }
    }
}
