//! Limits and tuning constants of the pool.

use std::time::Duration;

/// The largest number of threads of a pool, including the caller.
pub const MAX_THREADS: usize = 1024;

/// How long an idle thread spins before it sleeps: zero on targets without threads, where no thread could add work.
pub const SPIN: Duration = if pteron_clock::IS_NATIVE { Duration::from_micros(100) } else { Duration::ZERO };

/// The number of ranges for each thread that a loop is split into (fewer if the grain size demands it), so that one
/// descheduled thread delays the loop only a little.
pub const RANGES_PER_THREAD: usize = 4;

/// The largest number of threads that run blocking tasks at the same time; further tasks wait or are refused.
pub const MAX_BLOCKING_THREADS: usize = 64;
