//! Edits of files keep what they do not change.

mod support;

use pteron_format::container::Blob;
use pteron_format::pte::EValue;
use pteron_format::{Limits, ptd, pte};
use std::ops::Range;
use support::newer;
use support::random::Random;

fn slice(file: &[u8], range: Range<u64>) -> Vec<u8> {
    file[range.start as usize..range.end as usize].to_vec()
}

fn program(file: &[u8]) -> (pte::VerifiedProgram, Vec<u8>) {
    let header = pte::Header::parse(file, file.len() as u64).unwrap();
    let tables = slice(file, header.program_range());
    (pte::VerifiedProgram::read(&tables, &header, &Limits::default()).unwrap(), tables)
}

fn revision(file: &[u8]) -> pte::Revision<'_> {
    let (program, tables) = program(file);
    pte::Revision::new(&program, tables, |range| Blob::bytes(&file[range.start as usize..range.end as usize]))
}

fn written(revised: &pte::Revised<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    revised.prepared.write_to(&mut out).unwrap();
    assert_eq!(out.len() as u64, revised.prepared.header().file_len);
    out
}

#[test]
fn a_program_that_is_not_edited_stays_the_same_file() {
    let files = support::corpus("pte");
    for path in &files {
        let file = std::fs::read(path).unwrap();
        let revised = revision(&file).finish(&Limits::default()).unwrap();
        assert!(revised.is_unchanged, "{}", path.display());
        assert!(written(&revised) == file, "{}", path.display());
    }
    eprintln!("{} programs", files.len());
}

#[test]
fn programs_of_the_reference_have_nothing_undeclared() {
    for path in support::corpus("pte") {
        let file = std::fs::read(&path).unwrap();
        let (program, tables) = program(&file);
        assert_eq!(pte::undeclared_parts(&program, &tables), [""; 0], "{}", path.display());
    }
    for path in support::corpus("ptd") {
        let file = std::fs::read(&path).unwrap();
        let header = ptd::Header::parse(&file, file.len() as u64).unwrap();
        let tables = slice(&file, header.tables_range());
        let data = ptd::VerifiedFlatTensor::read(&tables, &header, &Limits::default()).unwrap();
        assert_eq!(ptd::undeclared_parts(&data, &tables), [""; 0], "{}", path.display());
    }
}

/// Makes a few random changes to the tables that leave a program valid.
fn edit(program: &mut pte::Program, random: &mut Random) {
    for plan in &mut program.execution_plan {
        match random.below(4) {
            0 => plan.container_meta_type = None,
            1 => plan.operators.push(pte::Operator { name: "aten::new".to_owned(), overload: String::new() }),
            2 => plan.chains.iter_mut().for_each(|chain| chain.stacktrace.clear()),
            _ => plan.non_const_buffer_sizes.push(64),
        }
        for value in &mut plan.values {
            match (value, random.below(3)) {
                (_, 0) => {}
                (EValue::Int(value), _) => *value = random.draw() as i64 >> random.below(64),
                (EValue::Double(value), _) => *value = f64::from_bits(random.draw()),
                (EValue::Bool(value), _) => *value = !*value,
                (EValue::String(value), _) => value.push('x'),
                (EValue::Tensor(tensor), 1) if !tensor.is_external() => tensor.extra_tensor_info = None,
                (EValue::Tensor(tensor), _)
                    if !tensor.is_external() && tensor.initial_data_idx().is_none() =>
                {
                    let info = tensor.extra_tensor_info.get_or_insert_default();
                    info.fully_qualified_name = Some(format!("name.{}", random.draw()));
                }
                _ => {}
            }
        }
    }
}

/// The tables as text, with only the lengths of inline data, not its positions.
fn text(program: &pte::Program) -> String {
    let mut program = program.clone();
    program.constant_buffer.iter_mut().for_each(|b| b.storage = 0..b.storage.end - b.storage.start);
    program.backend_delegate_data.iter_mut().for_each(|b| b.data = 0..b.data.end - b.data.start);
    program.segments.clear();
    format!("{program:?}")
}

#[test]
fn edits_keep_what_a_newer_schema_added() {
    let mut random = Random(7);
    let (mut kept, mut said) = (0, 0);
    for (path, file) in support::tiny("pte").into_iter().filter(|(_, file)| file.len() < 50_000) {
        for rarity in [1, 4, 1000] {
            let newer = newer::program(&file, &mut random, rarity);
            let same = revision(&newer.file).finish(&Limits::default()).unwrap();
            assert!(written(&same) == newer.file, "{}", path.display());
            let mut revision = revision(&newer.file);
            edit(&mut revision.program, &mut random);
            let intended = text(&revision.program);
            let revised = revision.finish(&Limits::default()).unwrap();
            let new = written(&revised);
            assert_eq!(text(program(&new).0.program()), intended, "{}", path.display());
            let missing = newer::missing(&newer.marks, &new);
            assert_eq!(missing == 0, revised.lost.is_empty(), "{}: {:?}", path.display(), revised.lost);
            kept += newer.marks.len() - missing;
            said += revised.lost.len();
        }
    }
    eprintln!("{kept} kept, {said} said to be lost");
    assert!(kept > 5 * said, "{kept} kept, {said} lost");
}

#[test]
fn what_is_removed_is_not_in_the_file() {
    let file = {
        let mut out = Vec::new();
        support::program::draft().write(&mut out).unwrap();
        newer::program(&out, &mut Random(3), 2).file
    };
    assert!(newer::missing(&[b"model.py".to_vec()], &file) == 0);
    let mut revision = revision(&file);
    revision.program.execution_plan[0].chains[0].stacktrace.clear();
    let new = written(&revision.finish(&Limits::default()).unwrap());
    assert!(newer::missing(&[b"model.py".to_vec()], &new) == 1);
}

#[test]
fn constants_come_and_go() {
    for newer_schema in [false, true] {
        let mut file = Vec::new();
        support::program::draft().write(&mut file).unwrap();
        if newer_schema {
            file = newer::program(&file, &mut Random(3), 2).file;
        }
        let mut revision = revision(&file);
        let index = revision.add_constant(Blob::bytes(vec![9; 8]));
        let EValue::Tensor(tensor) = &mut revision.program.execution_plan[0].values[2] else {
            unreachable!()
        };
        tensor.data_buffer_idx = index;
        revision.add_named_data(pte::NamedBlob {
            key: "extra".to_owned(),
            blob: Blob::bytes(vec![5; 3]),
            alignment: 256,
        });
        let revised = revision.finish(&Limits::default()).unwrap();
        let new = written(&revised);
        let (program, _) = program(&new);
        let tensor = program.execution_plan[0].values[2].as_tensor().unwrap();
        let pte::TensorData::Constant(range) = program.tensor_data(tensor) else { unreachable!() };
        assert_eq!(slice(&new, range), [9; 8]);
        let extra = program.named_data("extra").unwrap();
        assert!(extra.start.is_multiple_of(256));
        assert_eq!(slice(&new, extra), [5; 3]);
        assert_eq!(slice(&new, program.named_data("scales").unwrap()), [4; 20]);
        let payload = program.delegate_data(&program.execution_plan[0].delegates[0]);
        assert_eq!(slice(&new, payload), b"payload");
    }
}

fn data(file: &[u8]) -> (ptd::VerifiedFlatTensor, Vec<u8>) {
    let header = ptd::Header::parse(file, file.len() as u64).unwrap();
    let tables = slice(file, header.tables_range());
    (ptd::VerifiedFlatTensor::read(&tables, &header, &Limits::default()).unwrap(), tables)
}

fn data_revision(file: &[u8]) -> ptd::Revision<'_> {
    let (data, tables) = data(file);
    ptd::Revision::new(&data, tables, |range| Blob::bytes(&file[range.start as usize..range.end as usize]))
}

fn data_written(revised: &ptd::Revised<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    revised.prepared.write_to(&mut out).unwrap();
    assert_eq!(out.len() as u64, revised.prepared.header().file_len);
    out
}

#[test]
fn edits_of_named_data_keep_what_they_do_not_change() {
    let mut random = Random(11);
    let mut count = 0;
    for path in support::corpus("ptd") {
        let file = std::fs::read(&path).unwrap();
        let same = data_revision(&file).finish(&Limits::default()).unwrap();
        assert!(same.is_unchanged && data_written(&same) == file, "{}", path.display());
        let is_of_release_0_6 = path.to_string_lossy().contains("v0.6");
        for rarity in [1, 3] {
            let newer = match is_of_release_0_6 {
                true => newer::Newer { file: file.clone(), marks: Vec::new() },
                false => newer::flat_tensor(&file, &mut random, rarity),
            };
            let old = data(&newer.file).0;
            let Some(entry) = old.named_data.first() else { continue };
            let mut revision = data_revision(&newer.file);
            let bytes = vec![7; (old.data_range(entry).end - old.data_range(entry).start) as usize];
            revision.set(0, Blob::bytes(bytes.clone()));
            let revised = revision.finish(&Limits::default()).unwrap();
            let new = data_written(&revised);
            let read = data(&new).0;
            for (was, is) in old.named_data.iter().zip(&read.named_data).skip(1) {
                assert_eq!((&was.key, &was.tensor_layout), (&is.key, &is.tensor_layout));
                let (was, is) = (old.data_range(was), read.data_range(is));
                assert_eq!(slice(&newer.file, was), slice(&new, is), "{}", path.display());
            }
            assert_eq!(slice(&new, read.data_range(&read.named_data[0])), bytes);
            let missing = newer::missing(&newer.marks, &new);
            assert_eq!(missing == 0, revised.lost.is_empty(), "{}: {:?}", path.display(), revised.lost);
            count += 1;
        }
    }
    assert!(count > 10, "{count}");
}

#[test]
fn edits_of_damaged_files_end_in_a_file_or_an_error() {
    let mut random = Random(19);
    let mut edited = 0;
    for (_, file) in support::tiny("pte").into_iter().take(20) {
        let newer = newer::program(&file, &mut random, 2).file;
        for original in [&file, &newer] {
            for _ in 0..60 {
                let mut file = original.clone();
                random.mutate(&mut file);
                let Ok(header) = pte::Header::parse(&file, file.len() as u64) else { continue };
                let tables = slice(&file, header.program_range());
                let Ok(program) = pte::VerifiedProgram::read(&tables, &header, &Limits::default()) else {
                    continue;
                };
                let source = |range: Range<u64>| Blob::bytes(slice(&file, range));
                let mut revision = pte::Revision::new(&program, tables, source);
                edit(&mut revision.program, &mut random);
                revision.add_constant(Blob::bytes(vec![1; 20]));
                if let Ok(revised) = revision.finish(&Limits::default()) {
                    edited += usize::from(revised.prepared.write_to(&mut Vec::new()).is_ok());
                }
            }
        }
    }
    assert!(edited > 100, "{edited}");
}
