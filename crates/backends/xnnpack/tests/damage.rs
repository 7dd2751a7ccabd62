//! Payloads of the reference are read, and damaged bytes never make the reader panic or exceed its memory limits.

mod support;

use pteron_backend_xnnpack::Payload;
use pteron_format::{ErrorKind, Limits};
use support::random::Random;

fn read(bytes: &[u8]) -> bool {
    match Payload::read(bytes, &Limits::default()) {
        Ok(payload) => {
            assert!(!payload.contents().to_string().is_empty());
            true
        }
        Err(error) => {
            assert!(error.offset().is_some(), "{error} has no offset");
            assert_ne!(error.kind(), ErrorKind::Io);
            false
        }
    }
}

#[test]
fn payloads_of_the_reference_are_read() {
    let payloads = support::payloads();
    assert!(payloads.len() >= 20, "{} payloads", payloads.len());
    for (name, bytes) in payloads {
        let payload = Payload::read(&bytes, &Limits::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!payload.nodes.is_empty() && !payload.outputs.is_empty(), "{name}");
        let lines = payload.contents().to_string().lines().count();
        assert_eq!(lines, 3 + payload.values.len() + payload.nodes.len(), "{name}");
    }
}

#[test]
fn damaged_payloads_are_read_or_refused() {
    let mut random = Random(7);
    let (mut read_anyway, mut refused) = (0, 0);
    for (_, full) in support::payloads() {
        // Only damage to the flatbuffer, which comes first, matters.
        let tables = full.len().min(64 << 10);
        for _ in 0..60 {
            let mut bytes = full.clone();
            random.mutate(&mut bytes[..tables]);
            if read(&bytes) { read_anyway += 1 } else { refused += 1 }
        }
        for _ in 0..20 {
            let end = random.below(tables);
            assert!(!read(&full[..end]), "a payload cut at byte {end}");
        }
    }
    assert!(read_anyway > 0 && refused > 0, "{read_anyway} read, {refused} refused");
}
