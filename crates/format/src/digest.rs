//! Content hashes that serve as names for unnamed data.

use sha2::{Digest as _, Sha256};
use std::fmt::Write;

/// Computes a SHA-256 hash in lowercase hexadecimal, which the reference uses as the key of unnamed data.
#[derive(Default)]
pub struct Digest(Sha256);

impl Digest {
    /// The digest of `bytes`.
    pub fn hex_digest(bytes: &[u8]) -> String {
        let mut digest = Self::default();
        digest.update(bytes);
        digest.into_hex()
    }

    /// Appends bytes to the hashed input.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digest of all bytes appended so far.
    pub fn into_hex(self) -> String {
        self.0.finalize().iter().fold(String::with_capacity(64), |mut name, byte| {
            // Writing to a string cannot fail.
            let _ = write!(name, "{byte:02x}");
            name
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    #[test]
    fn incremental_updates_give_the_digest_of_the_whole() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::hex_digest(b"abc"), expected);
        let mut digest = Digest::default();
        digest.update(b"a");
        digest.update(b"bc");
        assert_eq!(digest.into_hex(), expected);
    }
}
