//! How work is divided: into parts of even length, and among threads from thresholds on. These are sizes that take one
//! thread about 5 µs, measured on networks of small layers. A sleeping thread takes longer to wake, but while a network
//! runs, threads seldom sleep.

use pteron_pool::Pool;
use std::ops::Range;

/// `work`, an amount worth dividing. Under Miri, which is too slow for such amounts, a smaller one, so that tests cover
/// the division.
pub(crate) const fn reduced_under_miri(work: usize) -> usize {
    if cfg!(miri) { 1 << 8 } else { work }
}

/// The fewest multiply-adds worth dividing in a matrix product, whose operands are held in registers.
pub(crate) const PRODUCTS: usize = reduced_under_miri(1 << 18);
/// The fewest multiply-adds worth dividing if each of them loads an operand of its own.
pub(crate) const TAPS: usize = reduced_under_miri(1 << 16);
/// The fewest elements worth dividing in an elementwise function.
pub(crate) const ELEMENTS: usize = reduced_under_miri(1 << 14);
/// The fewest 8-bit elements worth dividing in an elementwise function; they take half as long as f32.
pub(crate) const BYTES: usize = 2 * ELEMENTS;
/// The number of rows that a product of fewer rows counts as, since it must read all weights anyway.
pub(crate) const LEAST_ROWS: usize = 8;

/// The number of threads among which to divide work: each gets at least half a `unit` of work.
pub(crate) fn thread_count(pool: &Pool, work: usize, unit: usize) -> usize {
    if work < unit { 1 } else { pool.threads().min(work / (unit / 2)) }
}

/// Runs the tasks `0..count` on this thread if `threads` is one, otherwise on `pool`.
pub(crate) fn run_tasks(pool: &Pool, threads: usize, count: usize, task: impl Fn(usize) + Copy + Sync) {
    if threads == 1 {
        (0..count).for_each(task);
    } else {
        pool.parallel_for(count, 1, &|tasks| tasks.for_each(task));
    }
}

/// A matrix divided into tasks, each a block of whole units of rows and of columns.
pub(crate) struct Grid {
    /// The numbers of tasks along rows and along columns.
    parts: [usize; 2],
    sizes: [usize; 2],
    units: [usize; 2],
}

impl Grid {
    /// Divides rows and columns into at most `threads` tasks so that the largest task is as small as possible; among
    /// equal divisions, chooses the one whose tasks are nearest to square.
    pub(crate) fn new(threads: usize, sizes: [usize; 2], units: [usize; 2]) -> Self {
        // The cost of reading only breaks ties between tasks of equal size.
        Self::with_reads(threads, sizes, units, [1e-3; 2])
    }

    /// Like [`Self::new`], but counting reads: reading one unit of rows costs `of_rows`, and one unit of columns
    /// `of_cols`, relative to multiplying one unit of rows by one of columns.
    pub(crate) fn with_reads(
        threads: usize,
        sizes: [usize; 2],
        units: [usize; 2],
        [of_rows, of_cols]: [f64; 2],
    ) -> Self {
        let [rows, cols] = [0, 1].map(|d| sizes[d].div_ceil(units[d]));
        let mut parts = [1, 1];
        let mut least = f64::INFINITY;
        for tm in 1..=threads.min(rows) {
            let tn = (threads / tm).min(cols).max(1);
            let (r, c) = (rows.div_ceil(tm) as f64, cols.div_ceil(tn) as f64);
            // The cost of the largest task.
            let cost = r * c + r * of_rows + c * of_cols;
            if cost < least {
                (least, parts) = (cost, [tm, tn]);
            }
        }
        Self { parts, sizes, units }
    }

    pub(crate) fn task_count(&self) -> usize {
        self.parts[0] * self.parts[1]
    }

    /// The rows and the columns of a task.
    pub(crate) fn task_block(&self, task: usize) -> [Range<usize>; 2] {
        let at = [task / self.parts[1], task % self.parts[1]];
        [0, 1].map(|d| nth_share(at[d], self.parts[d], self.sizes[d], self.units[d]))
    }
}

/// The `i`th of `parts` shares of `len` items, in whole units.
pub(crate) fn nth_share(i: usize, parts: usize, len: usize, unit: usize) -> Range<usize> {
    let units = len.div_ceil(unit);
    let at = |i: usize| (units * i / parts * unit).min(len);
    at(i)..at(i + 1)
}

/// The number of elements of a chunk: many cache lines, so that shared lines at its ends do not matter. A thread's
/// chunks are adjacent.
const PART: usize = ELEMENTS / 2;

/// Runs `body` over chunks of `out`, with the index of each chunk's first element; in parallel on `pool` if `out` has
/// at least `worth` elements. A thread works through every tensor from the same end, so that it finds what it
/// computed in its cache.
pub(crate) fn map_chunks<T: Send>(
    pool: &Pool,
    worth: usize,
    out: &mut [T],
    body: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    let grain = if out.len() < worth { usize::MAX } else { 1 };
    pool.parallel_chunks_mut(out, PART, grain, &|i, part| body(i * PART, part));
}

/// The part length that divides `len` most evenly into the fewest parts of at most `max`; at least one.
pub(crate) fn balanced_chunk(len: usize, max: usize) -> usize {
    len.div_ceil(len.div_ceil(max).max(1)).max(1)
}

/// The number of queries of a head that attention processes together, at most `most`: few enough that their scores
/// stay in a near cache, and whole tiles of the products where possible. Independent of the number of threads, on
/// which results could otherwise depend.
pub fn queries_at_once(queries: usize, keys: usize, most: usize) -> usize {
    const SCORES: usize = 1 << 15;
    const TILE: usize = 14;
    let most = (SCORES / keys.max(1)).clamp(1, most);
    if most < TILE {
        return balanced_chunk(queries, most);
    }
    balanced_chunk(queries, most / TILE * TILE).next_multiple_of(TILE).min(queries.max(1))
}

#[cfg(test)]
mod tests {
    use super::queries_at_once;

    #[test]
    fn attention_rows_are_whole_tiles_within_the_limit() {
        assert_eq!(queries_at_once(64, 64, 70), 64);
        assert_eq!(queries_at_once(197, 197, 70), 70);
        assert_eq!(queries_at_once(128, 128, 70), 70);
        assert_eq!(queries_at_once(197, 197, usize::MAX), 112);
        assert_eq!(queries_at_once(1, 4096, 70), 1);
        assert_eq!(queries_at_once(100, 1 << 14, 70), 2);
        assert_eq!(queries_at_once(100, 1 << 20, 70), 1);
    }
}
