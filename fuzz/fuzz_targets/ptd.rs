//! Any bytes are read as a `.ptd` or refused; an accepted file is rewritten with the same entries.
#![no_main]

use pteron_format::Limits;
use pteron_format::container::Blob;
use pteron_format::ptd::{Builder, Header, VerifiedFlatTensor};
use libfuzzer_sys::fuzz_target;
use std::ops::Range;

fn open(file: &[u8]) -> Option<VerifiedFlatTensor> {
    let head = &file[..file.len().min(64)];
    let header = Header::parse(head, file.len() as u64).ok()?;
    VerifiedFlatTensor::read(&file[..header.tables_size as usize], &header, &Limits::default()).ok()
}

fn bytes(file: &[u8], range: Range<u64>) -> &[u8] {
    &file[range.start as usize..range.end as usize]
}

fuzz_target!(|file: &[u8]| {
    let Some(old) = open(file) else { return };
    let mut written = Vec::new();
    Builder::from_flat_tensor(&old, |range| Blob::bytes(bytes(file, range))).write(&mut written).unwrap();
    let new = open(&written).unwrap();
    assert_eq!(new.named_data.len(), old.named_data.len());
    for entry in &old.named_data {
        let (was, is) = (old.data(&entry.key).unwrap(), new.data(&entry.key).unwrap());
        assert_eq!(bytes(file, was), bytes(&written, is));
        assert_eq!(new.get(&entry.key).unwrap().tensor_layout, entry.tensor_layout);
    }
});
