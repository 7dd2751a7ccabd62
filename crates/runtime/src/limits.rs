//! What a program may use. Everything a file can ask for is bounded by one of these; `docs/limits.md` lists them.

use crate::machine::free_memory;
use crate::{Error, Result};
use std::time::Duration;

/// Bounds on what loading and running a program may use.
///
/// The defaults admit every program that this machine has the memory for; those who run untrusted files
/// takes [`Limits::strict`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Instructions that one execution of a method may run, those that a fused region stands for counted
    /// one by one: the reference's `ET_MAX_INSTRUCTIONS`, ten million.
    pub instructions: u64,
    /// How long one execution of a method may take; it ends with an error then, between two steps or in the
    /// middle of a long one. Not bounded by default.
    pub time: Option<Duration>,
    /// Bytes that a method may hold: its arenas, and the weights and payloads that are read into memory for
    /// it. By default what [`free_memory`] gives. Mapped weights do not count, nor does what is made of
    /// weights when they are packed, which takes about as much as they do.
    pub memory: u64,
    /// Bytes of all memory arenas of a method, tensors without a place in the plan counted in. At most 64 GiB,
    /// and what is free.
    pub arena_bytes: u64,
    /// Bytes of temporary memory that the kernels of a method may hold at a time. At most 4 GiB, and what is
    /// free.
    pub scratch_bytes: usize,
    /// Bytes of one segment, constant or delegate payload, read or mapped: 256 GiB.
    pub segment_bytes: u64,
    /// Bytes that a backend may take through its init and execution contexts. At most 16 GiB, and what is
    /// free.
    pub backend_bytes: usize,
    /// What the flatbuffer of a program may hold.
    pub format: format::Limits,
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
            format: format::Limits::default(),
        };
        limits.within_memory(free_memory().unwrap_or(u64::MAX))
    }
}

impl Limits {
    /// Bounds for untrusted files: 256 MiB in all, of it 64 MiB of arenas, 16 MiB of temporaries;
    /// 100,000 instructions and ten seconds.
    pub fn strict() -> Self {
        let limits = Self {
            instructions: 100_000,
            time: Some(Duration::from_secs(10)),
            memory: 256 << 20,
            arena_bytes: 64 << 20,
            scratch_bytes: 16 << 20,
            segment_bytes: 64 << 20,
            backend_bytes: 16 << 20,
            format: format::Limits::default(),
        };
        limits.within_memory(free_memory().unwrap_or(u64::MAX))
    }

    /// No bounds but those of the format's reader: a program may take what the system gives.
    pub fn none() -> Self {
        Self {
            instructions: u64::MAX,
            time: None,
            memory: u64::MAX,
            arena_bytes: u64::MAX,
            scratch_bytes: usize::MAX,
            segment_bytes: u64::MAX,
            backend_bytes: usize::MAX,
            format: format::Limits::default(),
        }
    }

    /// The same, with every bound on memory at most `bytes`.
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

    /// Fails if a method would hold more than [`Self::memory`].
    pub(crate) fn check_memory(&self, what: impl FnOnce() -> String, needed: u64) -> Result<()> {
        if needed <= self.memory {
            return Ok(());
        }
        Err(Error::Limit { what: what(), needed, limit: self.memory, field: "memory" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_default_is_above_the_memory_that_is_free() {
        for limits in [Limits::default(), Limits::strict()] {
            if let Some(free) = free_memory() {
                // Other processes take and give memory between the two looks at it.
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
