//! How far the pool goes.

use std::time::Duration;

/// The largest number of threads of a pool.
pub const MAX_THREADS: usize = 1024;

/// How long an idle thread looks for work before it sleeps. Where there are no threads, nobody makes any.
pub const SPIN: Duration = if clock::IS_NATIVE { Duration::from_micros(100) } else { Duration::ZERO };

/// Ranges that a loop is cut into for each thread, so that a thread that the system holds up costs
/// little.
pub const RANGES_PER_THREAD: usize = 4;

/// The largest number of threads that run blocking tasks at the same time; more tasks wait.
pub const MAX_BLOCKING_THREADS: usize = 64;
