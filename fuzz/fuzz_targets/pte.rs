//! Any bytes are read as a program or refused; an accepted program is rewritten with the same tables, and
//! rebuilt from its parts with the same data.
#![no_main]

use pteron_format::Limits;
use pteron_format::container::Blob;
use pteron_format::pte::{Builder, Draft, Header, TensorData, VerifiedProgram};
use libfuzzer_sys::fuzz_target;
use std::ops::Range;

fn open(file: &[u8]) -> Option<VerifiedProgram> {
    let head = &file[..file.len().min(64)];
    let header = Header::parse(head, file.len() as u64).ok()?;
    let tables = &file[..header.program_size as usize];
    let limits = Limits::default();
    let program = VerifiedProgram::read(tables, &header, &limits);
    assert_eq!(program.is_err(), !VerifiedProgram::errors(tables, &header, &limits).is_empty());
    program.ok()
}

fn bytes(file: &[u8], range: Range<u64>) -> &[u8] {
    &file[range.start as usize..range.end as usize]
}

fuzz_target!(|file: &[u8]| {
    let Some(old) = open(file) else { return };
    let source = |range| Blob::bytes(bytes(file, range));

    let mut copy = Vec::new();
    Draft::rewrite(&old, source).write(&mut copy).unwrap();
    let new = open(&copy).unwrap();
    assert_eq!(format!("{:?}", new.execution_plan), format!("{:?}", old.execution_plan));
    assert_eq!(new.segments, old.segments);

    let mut built = Vec::new();
    // A tensor may share a constant's start with a larger one; the builder keeps the larger.
    Builder::from_program(&old, source).finish().unwrap().write(&mut built).unwrap();
    let new = open(&built).unwrap();
    for (was, is) in old.execution_plan.iter().zip(&new.execution_plan) {
        for (was, is) in was.values.iter().zip(&is.values) {
            let (Some(was), Some(is)) = (was.as_tensor(), is.as_tensor()) else { continue };
            match (old.tensor_data(was), new.tensor_data(is)) {
                (TensorData::Constant(was), TensorData::Constant(is))
                | (TensorData::Initial(was), TensorData::Initial(is)) => {
                    assert_eq!(bytes(file, was), bytes(&built, is));
                }
                (was, is) => assert_eq!(was, is),
            }
        }
        for (was, is) in was.delegates.iter().zip(&is.delegates) {
            assert_eq!(bytes(file, old.delegate_data(was)), bytes(&built, new.delegate_data(is)));
        }
    }
});
