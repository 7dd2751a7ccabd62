//! From what size on work is divided among threads: sizes that take one thread some 5 µs, measured on networks
//! of small layers. A thread that sleeps takes longer to wake, but in a network it seldom does.

use super::gemm::driver::even;
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
/// Elements of 8 bits, of which as many take half as long.
pub(crate) const BYTES: usize = 2 * ELEMENTS;
/// Rows of a product of fewer, for which the weights must be read all the same.
pub(crate) const LEAST_ROWS: usize = 8;

/// How many threads to divide work among: none gets less than half of `unit`.
pub(crate) fn threads(pool: &Pool, work: usize, unit: usize) -> usize {
    if work < unit { 1 } else { pool.threads().min(work / (unit / 2)) }
}

/// Elements of a part: a few lines of cache more or less are nothing beside it, and the parts of a thread follow each other.
const PART: usize = ELEMENTS / 2;

/// Runs `body` over parts of `out`, with the index of each part's first element, divided among the threads of `pool` from so
/// many elements on. A thread takes its parts from one end, as it does of other tensors: what it computed is in its cache.
pub(crate) fn elements<T: Send>(
    pool: &Pool,
    worth: usize,
    out: &mut [T],
    body: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let grain = if out.len() < worth { usize::MAX } else { 1 };
    pool.parallel_chunks_mut(out, PART, grain, &|i, part| body(i * PART, part));
}

/// How many of the queries of a head attention looks at together, `most` at most: as many as have their scores in a near
/// cache, and fill tiles of products. It does not depend on the number of threads, as results might with it.
pub fn attention_rows(queries: usize, keys: usize, most: usize) -> usize {
    const SCORES: usize = 1 << 15;
    const TILE: usize = 14;
    let most = (SCORES / keys.max(1)).clamp(1, most);
    if most < TILE {
        return even(queries, most);
    }
    even(queries, most / TILE * TILE).next_multiple_of(TILE).min(queries.max(1))
}

#[cfg(test)]
mod tests {
    use super::attention_rows;

    #[test]
    fn queries_fill_tiles() {
        assert_eq!(attention_rows(64, 64, 70), 64);
        assert_eq!(attention_rows(197, 197, 70), 70);
        assert_eq!(attention_rows(128, 128, 70), 70);
        assert_eq!(attention_rows(197, 197, usize::MAX), 112);
        assert_eq!(attention_rows(1, 4096, 70), 1);
        assert_eq!(attention_rows(100, 1 << 14, 70), 2);
        assert_eq!(attention_rows(100, 1 << 20, 70), 1);
    }
}
