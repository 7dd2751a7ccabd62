//! Payloads of the reference are read; no bytes, however broken, make the reader panic or take more than its share
//! of memory.

mod support;

use backend_xnnpack::Payload;
use format::{ErrorKind, Limits};

/// A small generator (splitmix64), so that a run can be repeated from its seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn read(bytes: &[u8]) -> bool {
    match Payload::read(bytes, &Limits::default()) {
        Ok(payload) => {
            assert!(!payload.listing().is_empty());
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
        let lines = payload.listing().lines().count();
        assert_eq!(lines, 3 + payload.values.len() + payload.nodes.len(), "{name}");
    }
}

#[test]
fn damaged_payloads_are_read_or_refused() {
    let mut random = Random(7);
    let (mut read_anyway, mut refused) = (0, 0);
    for (_, whole) in support::payloads() {
        // Damage matters in the flatbuffer, which comes first.
        let tables = whole.len().min(64 << 10);
        for _ in 0..60 {
            let mut bytes = whole.clone();
            for _ in 0..=random.below(4) {
                let at = random.below(tables);
                match random.below(3) {
                    0 => bytes[at] ^= 1 << random.below(8),
                    1 => bytes[at] = random.next() as u8,
                    _ => {
                        const NUMBERS: [u32; 7] = [0, 1, 3, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0xffff];
                        let end = bytes.len().min((at & !3) + 4);
                        let number = NUMBERS[random.below(NUMBERS.len())].to_le_bytes();
                        bytes[at & !3..end].copy_from_slice(&number[..end - (at & !3)]);
                    }
                }
            }
            if read(&bytes) { read_anyway += 1 } else { refused += 1 }
        }
        for _ in 0..20 {
            let end = random.below(tables);
            assert!(!read(&whole[..end]), "a payload cut at byte {end}");
        }
    }
    assert!(read_anyway > 0 && refused > 0, "{read_anyway} read, {refused} refused");
}
