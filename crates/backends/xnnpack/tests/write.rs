//! Round trip: payloads that are read, written and read again are equal.

mod support;

use pteron_backend_xnnpack::Payload;
use pteron_backend_xnnpack::payload::Constant;
use pteron_format::Limits;

/// The bytes of the constants that are stored in a payload.
fn bytes_of<'p>(payload: &Payload, file: &'p [u8]) -> Vec<Option<&'p [u8]>> {
    let constant = |constant: &Constant| match constant {
        Constant::Payload(range) => Some(&file[range.start as usize..range.end as usize]),
        Constant::Named { .. } => None,
    };
    payload.constants.iter().map(constant).collect()
}

#[test]
fn a_payload_survives_a_round_trip() {
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
