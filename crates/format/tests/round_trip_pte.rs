//! Programs survive being read, written and read again.

mod support;

use pteron_format::Limits;
use pteron_format::container::Blob;
use pteron_format::pte::{
    Builder, Draft, EValue, ExecutionPlan, Header, Program, TensorData, TensorDataLocation, VerifiedProgram,
};
use std::ops::Range;

struct Open {
    file: Vec<u8>,
    program: VerifiedProgram,
}

impl Open {
    fn new(file: Vec<u8>) -> Self {
        let header = Header::parse(&file, file.len() as u64).unwrap();
        let tables = &file[..usize::try_from(header.program_size).unwrap()];
        let program = VerifiedProgram::read(tables, &header, &Limits::default()).unwrap();
        Self { file, program }
    }

    fn bytes(&self, range: Range<u64>) -> &[u8] {
        &self.file[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()]
    }

    fn blob(&self, range: Range<u64>) -> Blob<'_> {
        Blob::bytes(self.bytes(range))
    }

    /// The tables, with inline data represented by its length only.
    fn tables(&self) -> Program {
        let mut program = self.program.program().clone();
        let from_zero = |range: &mut Range<u64>| *range = 0..range.end - range.start;
        program.constant_buffer.iter_mut().for_each(|buffer| from_zero(&mut buffer.storage));
        program.backend_delegate_data.iter_mut().for_each(|data| from_zero(&mut data.data));
        program
    }
}

#[test]
fn rewritten_programs_are_the_same() {
    for path in support::corpus("pte") {
        let old = Open::new(std::fs::read(&path).unwrap());
        let mut written = Vec::new();
        let header = Draft::rewrite(&old.program, |range| old.blob(range)).write(&mut written).unwrap();
        assert_eq!(header.file_len, written.len() as u64);
        let new = Open::new(written);
        assert_eq!(*new.program.header(), header);
        // Compared as text, because NaN is not equal to itself.
        assert_eq!(format!("{:?}", new.tables()), format!("{:?}", old.tables()), "{}", path.display());
        for index in 0..old.program.segments.len() as u32 {
            let (was, is) = (old.program.segment(index).unwrap(), new.program.segment(index).unwrap());
            assert_eq!(new.bytes(is), old.bytes(was));
        }
        for (was, is) in old.program.constant_buffer.iter().zip(&new.program.constant_buffer) {
            assert_eq!(new.bytes(is.storage.clone()), old.bytes(was.storage.clone()));
            assert!(is.storage.start.is_multiple_of(16));
        }
        for (was, is) in old.program.backend_delegate_data.iter().zip(&new.program.backend_delegate_data) {
            assert_eq!(new.bytes(is.data.clone()), old.bytes(was.data.clone()));
        }
    }
}

/// The plans without the numbers that a builder reassigns.
fn unnumbered(plans: &[ExecutionPlan]) -> String {
    let mut plans = plans.to_vec();
    for plan in &mut plans {
        plan.delegates.iter_mut().for_each(|delegate| delegate.processed.index = 0);
        for value in &mut plan.values {
            if let EValue::Tensor(tensor) = value {
                let external = tensor
                    .extra_tensor_info
                    .as_ref()
                    .is_some_and(|i| i.location == TensorDataLocation::External);
                if !external {
                    tensor.data_buffer_idx = tensor.data_buffer_idx.min(1);
                }
            }
        }
    }
    format!("{plans:?}")
}

#[test]
fn rebuilt_programs_hold_the_same_bytes() {
    for path in support::corpus("pte") {
        let old = Open::new(std::fs::read(&path).unwrap());
        let builder = Builder::from_program(&old.program, |range| old.blob(range));
        let mut written = Vec::new();
        builder.finish().unwrap().write(&mut written).unwrap();
        let new = Open::new(written);
        assert_eq!(unnumbered(&new.program.execution_plan), unnumbered(&old.program.execution_plan));
        for (was, is) in old.program.execution_plan.iter().zip(&new.program.execution_plan) {
            for (was, is) in was.delegates.iter().zip(&is.delegates) {
                let (was, is) = (old.program.delegate_data(was), new.program.delegate_data(is));
                assert_eq!(new.bytes(is), old.bytes(was));
            }
            for (was, is) in was.values.iter().zip(&is.values) {
                let (Some(was), Some(is)) = (was.as_tensor(), is.as_tensor()) else { continue };
                match (old.program.tensor_data(was), new.program.tensor_data(is)) {
                    (TensorData::Constant(was), TensorData::Constant(is))
                    | (TensorData::Initial(was), TensorData::Initial(is)) => {
                        assert_eq!(new.bytes(is), old.bytes(was), "{}", path.display());
                    }
                    (was, is) => assert_eq!(was, is),
                }
            }
        }
        for entry in &old.program.named_data {
            let (was, is) = (old.program.named_data(&entry.key), new.program.named_data(&entry.key));
            assert_eq!(new.bytes(is.unwrap()), old.bytes(was.unwrap()));
        }
        // There is nothing left to drop or to share.
        let mut again = Vec::new();
        let builder = Builder::from_program(&new.program, |range| new.blob(range));
        builder.finish().unwrap().write(&mut again).unwrap();
        assert_eq!(again, new.file, "{}", path.display());
    }
}
