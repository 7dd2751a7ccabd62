//! The identity of a constant's bytes, which is compared without reading them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a source of bytes, such as a file, uniquely for the lifetime of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceId(Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Numbered(u64),
    File([u64; 5]),
}

impl SourceId {
    /// A new id, different from all ids that exist.
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(Kind::Numbered(NEXT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The id of the file with this metadata: device, inode number, size, and the times of the last change of its
    /// contents and of its inode. Equal metadata gives equal ids.
    pub fn file(facts: [u64; 5]) -> Self {
        Self(Kind::File(facts))
    }
}

/// Identifies the bytes of a constant: a range of a source, as it is or transformed by a function. Equal identities
/// imply equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Identity {
    source: SourceId,
    start: u64,
    len: u64,
    function: &'static str,
}

impl Identity {
    /// `len` bytes of a source, beginning at `start`.
    pub fn new(source: SourceId, start: u64, len: usize) -> Self {
        Self { source, start, len: len as u64, function: "" }
    }

    /// The offset of the bytes in `source`; `None` unless they are stored there unchanged.
    pub fn start_in(&self, source: SourceId) -> Option<u64> {
        (self.source == source && self.function.is_empty()).then_some(self.start)
    }

    /// The identity of the result of the function with this name on these bytes. The result may depend only on the
    /// bytes and on its own sizes.
    #[must_use]
    pub fn transformed_by(self, function: &'static str) -> Self {
        Self { function, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_differ_by_source_range_and_function() {
        let (a, b) = (SourceId::unique(), SourceId::unique());
        let file = SourceId::file([1, 2, 3, 4, 5]);
        let all = [
            Identity::new(a, 0, 8),
            Identity::new(b, 0, 8),
            Identity::new(a, 8, 8),
            Identity::new(a, 0, 16),
            Identity::new(a, 0, 8).transformed_by("halves"),
            Identity::new(file, 0, 8),
            Identity::new(SourceId::file([1, 2, 3, 4, 6]), 0, 8),
        ];
        for (i, x) in all.iter().enumerate() {
            assert_eq!(all.iter().filter(|y| *y == x).count(), 1, "{i}");
        }
        assert_eq!(Identity::new(SourceId::file([1, 2, 3, 4, 5]), 0, 8), all[5]);
        assert_eq!(all.map(|x| x.start_in(a)), [Some(0), None, Some(8), Some(0), None, None, None]);
    }
}
