//! Any bytes are read as a payload of Pteron's own backend or refused; the indices of an accepted payload are in bounds, and
//! it round-trips through the writer.
#![no_main]

use pteron_backend_bef::Payload;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(payload) = Payload::read(bytes) else { return };
    let used = payload.nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.outputs));
    assert!(used.chain(&payload.outputs).all(|&index| index < payload.values.len()));
    assert!(!payload.contents().to_string().is_empty());
    let written = payload.to_bytes().expect("what was read can be written");
    let again = Payload::read(&written).expect("what was written can be read");
    let kinds = |payload: &Payload| -> Vec<String> {
        payload.nodes.iter().map(|node| node.op.name().to_owned()).collect()
    };
    assert_eq!((kinds(&again), again.values.len()), (kinds(&payload), payload.values.len()));
});
