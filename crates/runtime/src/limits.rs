//! Resource limits. Every resource that a file can request is bounded by one of them; `docs/limits.md` lists them.

use crate::convert::usize_of;
use crate::machine::free_memory;
use crate::{Error, Result};
use std::time::Duration;

/// Resource limits for loading and running a program.
///
/// The defaults admit nearly every program that fits in this machine's memory. Use [`Limits::strict`] for untrusted
/// files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Instructions that one execution of a method may run. Each instruction of a fused region counts. The default is
    /// the reference's `ET_MAX_INSTRUCTIONS`, ten million.
    pub instructions: u64,
    /// How long one execution of a method may take. An execution that takes longer fails, between two steps or within
    /// a long one. Unbounded by default.
    pub time: Option<Duration>,
    /// Bytes that a method and its forks may hold together: tables, arenas, weights and payloads that are read into
    /// memory, packed weights, and the workspaces of fused regions. Mapped weights do not count. If packing would exceed the
    /// limit, the instructions run unfused. The default is what [`free_memory`] returns.
    pub memory: u64,
    /// Bytes of all memory arenas of a method, including tensors that the memory plan does not place. The default is
    /// 64 GiB, or the free memory if that is less.
    pub arena_bytes: u64,
    /// Bytes of temporary memory that the kernels of a method may hold at a time. The default is 4 GiB, or the free
    /// memory if that is less.
    pub scratch_bytes: usize,
    /// Bytes of one segment, constant or delegate payload, read or mapped. The default is 256 GiB.
    pub segment_bytes: u64,
    /// Bytes that a backend may allocate through one context: while it makes one delegate, or in one execution of one.
    /// The default is 16 GiB, or the free memory if that is less.
    pub backend_bytes: usize,
    /// Limits on the flatbuffer of a program.
    pub format: pteron_format::Limits,
}

impl Default for Limits {
    fn default() -> Self {
        let limits = Self {
            instructions: 10_000_000,
            time: None,
            memory: u64::MAX,
            arena_bytes: 64 << 30,
            scratch_bytes: usize::try_from(4u64 << 30).unwrap_or(usize::MAX),
            segment_bytes: 256 << 30,
            backend_bytes: usize::try_from(16u64 << 30).unwrap_or(usize::MAX),
            format: pteron_format::Limits::default(),
        };
        limits.within_memory(free_memory().unwrap_or(u64::MAX))
    }
}

impl Limits {
    /// Limits for untrusted files: 256 MiB of memory, of which at most 64 MiB for arenas and 16 MiB each for
    /// temporaries and backends, or less if less is free; 64 MiB a segment; 100,000 instructions; ten seconds.
    pub fn strict() -> Self {
        let limits = Self {
            instructions: 100_000,
            time: Some(Duration::from_secs(10)),
            memory: 256 << 20,
            arena_bytes: 64 << 20,
            scratch_bytes: 16 << 20,
            segment_bytes: 64 << 20,
            backend_bytes: 16 << 20,
            format: pteron_format::Limits::default(),
        };
        limits.within_memory(free_memory().unwrap_or(u64::MAX))
    }

    /// No limits except those of the format's reader.
    pub fn none() -> Self {
        Self {
            instructions: u64::MAX,
            time: None,
            memory: u64::MAX,
            arena_bytes: u64::MAX,
            scratch_bytes: usize::MAX,
            segment_bytes: u64::MAX,
            backend_bytes: usize::MAX,
            format: pteron_format::Limits::default(),
        }
    }

    /// Lowers the limits on memory, arenas, temporaries and backends to at most `bytes`.
    pub fn within_memory(self, bytes: u64) -> Self {
        let size = usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            memory: self.memory.min(bytes),
            arena_bytes: self.arena_bytes.min(bytes),
            scratch_bytes: self.scratch_bytes.min(size),
            backend_bytes: self.backend_bytes.min(size),
            ..self
        }
    }

    /// Fails if the total size of all arenas, `needed`, exceeds [`Self::arena_bytes`]. Returns that size.
    pub(crate) fn check_arena(&self, needed: u64) -> Result<usize> {
        if needed > self.arena_bytes {
            return Err(Error::Limit {
                what: "the memory plan".to_owned(),
                needed,
                limit: self.arena_bytes,
                field: "arena_bytes",
            });
        }
        usize_of(needed)
    }

    /// Fails if `needed` bytes exceed [`Self::memory`]. `what` says in the error what needs them.
    pub(crate) fn check_memory(&self, what: impl FnOnce() -> String, needed: u64) -> Result<()> {
        if needed <= self.memory {
            return Ok(());
        }
        Err(Error::Limit { what: what(), needed, limit: self.memory, field: "memory" })
    }
}

/// Converts the error of an exhausted memory budget to [`Error::Limit`], and any other to [`Error::Unsupported`].
pub(crate) fn memory_limit_error(error: pteron_operator::Error) -> Error {
    match error {
        pteron_operator::Error::Limit { what, needed, limit } => Error::Limit {
            what: format!("a method with {what}"),
            needed: needed as u64,
            limit: limit as u64,
            field: "memory",
        },
        other => Error::Unsupported(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_limits_do_not_exceed_free_memory() {
        for limits in [Limits::default(), Limits::strict()] {
            if let Some(free) = free_memory() {
                // Other processes allocate and free memory between the two measurements.
                let free = free.saturating_add(free / 2).saturating_add(256 << 20);
                assert!(limits.memory <= free && limits.arena_bytes <= free, "{limits:?}");
                assert!(limits.scratch_bytes as u64 <= free && limits.backend_bytes as u64 <= free);
            }
        }
        let small = Limits::none().within_memory(1 << 20);
        assert_eq!((small.memory, small.arena_bytes, small.scratch_bytes), (1 << 20, 1 << 20, 1 << 20));
        assert_eq!(small.instructions, u64::MAX);
    }
}
