//! What bytes are called that nobody has named.

use sha2::{Digest as _, Sha256};
use std::fmt::Write;

/// The SHA-256 of bytes in lowercase hexadecimal, by which the reference calls data that has no name.
#[derive(Default)]
pub struct Digest(Sha256);

impl Digest {
    /// The name of these bytes.
    pub fn of(bytes: &[u8]) -> String {
        let mut digest = Self::default();
        digest.update(bytes);
        digest.name()
    }

    /// Adds bytes behind those that came before.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The name of all bytes.
    pub fn name(self) -> String {
        self.0.finalize().iter().fold(String::with_capacity(64), |mut name, byte| {
            // Writing to a string does not fail.
            let _ = write!(name, "{byte:02x}");
            name
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Digest;

    #[test]
    fn pieces_are_named_as_the_whole() {
        let whole = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Digest::of(b"abc"), whole);
        let mut digest = Digest::default();
        digest.update(b"a");
        digest.update(b"bc");
        assert_eq!(digest.name(), whole);
    }
}
