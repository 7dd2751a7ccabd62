//! Any bytes are read as an XNNPACK payload or refused; all indices of an accepted payload are in bounds.
#![no_main]

use pteron_backend_xnnpack::Payload;
use pteron_format::Limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(payload) = Payload::read(bytes, &Limits::default()) else { return };
    let used = payload.nodes.iter().flat_map(|node| node.inputs.iter().chain(&node.outputs));
    assert!(used.chain(&payload.inputs).chain(&payload.outputs).all(|&index| index < payload.values.len()));
    assert!(payload.values.iter().filter_map(|v| v.constant_index()).all(|index| index < payload.constants.len()));
    assert!(!payload.contents().to_string().is_empty());
});
