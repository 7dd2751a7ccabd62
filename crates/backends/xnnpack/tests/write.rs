//! Payloads that are read, written and read again say the same.

mod support;

use backend_xnnpack::Payload;
use backend_xnnpack::payload::Constant;
use format::Limits;

/// The bytes that constants of a payload name in it.
fn bytes_of<'p>(payload: &Payload, file: &'p [u8]) -> Vec<Option<&'p [u8]>> {
    let constant = |constant: &Constant| match constant {
        Constant::Payload(range) => Some(&file[range.start as usize..range.end as usize]),
        Constant::Named { .. } => None,
    };
    payload.constants.iter().map(constant).collect()
}

#[test]
fn a_payload_that_is_written_says_the_same() {
    let payloads = support::payloads();
    assert!(payloads.len() > 20);
    for (name, file) in payloads {
        let payload = Payload::read(&file, &Limits::default()).unwrap();
        let written = payload.to_bytes(&file).unwrap();
        let again = Payload::read(&written, &Limits::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(bytes_of(&again, &written), bytes_of(&payload, &file), "{name}");
        let same_places =
            Payload { header: payload.header.clone(), constants: payload.constants.clone(), ..again };
        assert_eq!(same_places, payload, "{name}");
    }
}
