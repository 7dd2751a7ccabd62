//! Which bytes a constant is, without looking at them.

use std::sync::atomic::{AtomicU64, Ordering};

/// A source of bytes, a file say, told from every other source that there is, was or will be in this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceId(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Numbered(u64),
    File([u64; 5]),
}

impl SourceId {
    /// A source that is none of those that are known already.
    pub fn numbered() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(Kind::Numbered(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The file of which the system says this: device, number, size, and when contents and entry have last changed. Two
    /// sources of which it says the same are one.
    pub fn file(facts: [u64; 5]) -> Self {
        Self(Kind::File(facts))
    }
}

/// Which bytes a constant is: those of a range of a source, as they are or as something has made them. Equal
/// identities have equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    source: SourceId,
    start: u64,
    len: u64,
    made: &'static str,
}

impl Identity {
    /// `len` bytes of a source from `start` on.
    pub fn new(source: SourceId, start: u64, len: usize) -> Self {
        Self { source, start, len: len as u64, made: "" }
    }

    /// What a function of this name computes of these bytes, and of what follows from the sizes of its result.
    #[must_use]
    pub fn made(self, function: &'static str) -> Self {
        Self { made: function, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_and_ranges_are_told_apart() {
        let (a, b) = (SourceId::numbered(), SourceId::numbered());
        let file = SourceId::file([1, 2, 3, 4, 5]);
        let all = [
            Identity::new(a, 0, 8),
            Identity::new(b, 0, 8),
            Identity::new(a, 8, 8),
            Identity::new(a, 0, 16),
            Identity::new(a, 0, 8).made("halves"),
            Identity::new(file, 0, 8),
            Identity::new(SourceId::file([1, 2, 3, 4, 6]), 0, 8),
        ];
        for (i, x) in all.iter().enumerate() {
            assert_eq!(all.iter().filter(|y| *y == x).count(), 1, "{i}");
        }
        assert_eq!(Identity::new(SourceId::file([1, 2, 3, 4, 5]), 0, 8), all[5]);
    }
}
