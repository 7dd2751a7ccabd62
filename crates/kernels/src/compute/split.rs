//! From what size on work is divided among threads: sizes that take one thread some 5 µs, measured on networks
//! of small layers. A thread that sleeps takes longer to wake, but in a network it seldom does.

use pool::Pool;

/// Work that is worth dividing. An interpreter could not wait for as much, and is to see it divided.
pub(crate) const fn worth(work: usize) -> usize {
    if cfg!(miri) { 1 << 8 } else { work }
}

/// Multiplications of a product whose operands are held in registers.
pub(crate) const PRODUCTS: usize = worth(1 << 18);
/// Multiplications that each load an operand of their own.
pub(crate) const TAPS: usize = worth(1 << 16);
/// Elements that a function is applied to.
pub(crate) const ELEMENTS: usize = worth(1 << 14);
/// Rows of a product of fewer, for which the weights must be read all the same.
pub(crate) const LEAST_ROWS: usize = 8;

/// How many threads to divide work among: none gets less than half of `unit`.
pub(crate) fn threads(pool: &Pool, work: usize, unit: usize) -> usize {
    if work < unit { 1 } else { pool.threads().min(work / (unit / 2)) }
}
