//! Limits and tuning constants of the pool.

use std::time::Duration;

/// The largest number of threads of a pool.
pub const MAX_THREADS: usize = 1024;

/// How long an idle thread spins before it sleeps: zero on targets without threads, where no thread could add work.
pub const SPIN: Duration = if pteron_clock::IS_NATIVE { Duration::from_micros(100) } else { Duration::ZERO };

/// The number of ranges a loop is split into for each thread, so that one descheduled thread delays the loop
/// only a little.
pub const RANGES_PER_THREAD: usize = 4;

/// The largest number of threads that run blocking tasks at the same time; more tasks wait.
pub const MAX_BLOCKING_THREADS: usize = 64;
