use crate::interrupt::{self, run_in_pieces, run_in_threads};
use crate::job::for_chunks;
use crate::limits::{MAX_THREADS, RANGES_PER_THREAD};
use crate::workers::Threads;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The number of threads that this process can run at once: the cores that its affinity and the quota of its control
/// group allow, at least one and at most [`MAX_THREADS`](crate::limits::MAX_THREADS). One where the system does not tell.
pub fn available_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_THREADS))
}

/// A set of threads that execute parallel loops. Cloning shares the threads; dropping the last
/// clone stops them.
#[derive(Clone, Debug)]
pub struct Pool(pub(crate) Arc<Threads>);

impl Pool {
    /// A pool of `threads` threads, including the caller. Zero means one; more than [`MAX_THREADS`] means as many as
    /// that.
    ///
    /// If the system refuses to start a thread, the pool has fewer threads.
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(Threads::start(threads.clamp(1, MAX_THREADS) - 1)))
    }

    /// A pool without worker threads: every loop runs on the caller.
    pub fn serial() -> Self {
        Self::new(1)
    }

    /// A shared [`Self::serial`] pool, for callers that only run loops. A new serial pool takes some kilobytes.
    pub fn alone() -> &'static Self {
        static ALONE: OnceLock<Pool> = OnceLock::new();
        ALONE.get_or_init(Self::serial)
    }

    /// The number of threads, including the caller.
    pub fn threads(&self) -> usize {
        self.0.workers() + 1
    }

    /// Calls `body` for disjoint ranges that together cover `0..items`, each of at least `grain`
    /// items except perhaps the last. Returns when all are done. How items are split and which thread runs which
    /// range is unspecified, so `body` must give the same results for any split.
    ///
    /// A call from inside a body, or while another thread's loop occupies the pool, runs on the
    /// caller alone. If `body` panics, the remaining ranges are skipped and the panic resumes in
    /// the caller. If an armed [`Interrupt`](crate::Interrupt) fires, the call unwinds: see
    /// [`interruptible`](crate::interruptible).
    pub fn parallel_for(&self, items: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        if items == 0 {
            return;
        }
        interrupt::count(items);
        let grain = grain.max(1);
        match interrupt::armed() {
            None => self.loop_over(items, grain, body),
            Some(i) if self.0.workers() == 0 || items <= grain => run_in_pieces(&i, items, grain, body),
            Some(i) => run_in_threads(&i, body, |body| self.loop_over(items, grain, body)),
        }
    }

    fn loop_over(&self, items: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let workers = self.0.workers();
        if workers == 0 || items <= grain || items > isize::MAX as usize / MAX_THREADS {
            return body(0..items);
        }
        let ranges = items.div_ceil(grain).min((workers + 1) * RANGES_PER_THREAD);
        let chunk = items.div_ceil(ranges).max(grain);
        let shared = self.0.shared();
        if !shared.slot.run(items, chunk, body, || shared.event.notify_all()) {
            body(0..items);
        }
    }

    /// Splits `data` into chunks of `chunk` elements and calls `body` with each chunk's index and
    /// elements. A thread takes at least `grain` chunks at a time.
    pub fn parallel_chunks_mut<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        grain: usize,
        body: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let chunk = chunk.max(1);
        let chunks = data.len().div_ceil(chunk);
        if self.0.workers() == 0 || chunks <= grain.max(1) {
            interrupt::count(data.len());
            let mut each = data.chunks_mut(chunk).enumerate();
            match interrupt::armed() {
                None => each.for_each(|(i, c)| body(i, c)),
                Some(interrupt) => run_in_pieces(&interrupt, chunks, grain, |range| {
                    each.by_ref().take(range.len()).for_each(|(i, c)| body(i, c));
                }),
            }
        } else {
            for_chunks(data, chunk, body, |each| self.parallel_for(chunks, grain, each));
        }
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::serial()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// `count`, but a fiftieth of it under Miri, which is slow.
    const fn repetitions(count: usize) -> usize {
        if cfg!(miri) { count.div_ceil(50) } else { count }
    }

    #[test]
    fn a_pool_of_the_available_threads_starts() {
        assert_eq!(Pool::new(available_threads()).threads(), available_threads());
    }

    #[test]
    fn every_item_is_visited_once() {
        const ITEMS: usize = repetitions(1000);
        for threads in [1, 2, 3, 8] {
            let pool = Pool::new(threads);
            for grain in [0, 1, 7, ITEMS - 1, ITEMS, 5 * ITEMS] {
                let hits: Vec<AtomicUsize> = (0..ITEMS).map(|_| AtomicUsize::new(0)).collect();
                pool.parallel_for(ITEMS, grain, &|range| {
                    assert!(range.len() >= grain.min(ITEMS) || range.end == ITEMS);
                    for i in range {
                        hits[i].fetch_add(1, Ordering::Relaxed);
                    }
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
            }
        }
    }

    #[test]
    fn the_caller_takes_the_front_and_another_thread_the_back() {
        let pool = Pool::new(2);
        let caller = std::thread::current().id();
        for _ in 0..repetitions(200) {
            let by_caller: Vec<AtomicUsize> = (0..80).map(|_| AtomicUsize::new(0)).collect();
            pool.parallel_for(80, 10, &|range| {
                for i in range {
                    by_caller[i].store(usize::from(std::thread::current().id() == caller), Ordering::Relaxed);
                }
            });
            let own: Vec<usize> = by_caller.iter().map(|b| b.load(Ordering::Relaxed)).collect();
            assert!(own.is_sorted_by(|a, b| a >= b), "{own:?}");
        }
    }

    #[test]
    fn chunks_are_disjoint_and_numbered() {
        let pool = Pool::new(2);
        let mut data = vec![0usize; repetitions(1000) + 3];
        pool.parallel_chunks_mut(&mut data, 10, 1, &|i, c| c.fill(i + 1));
        assert!(data.iter().enumerate().all(|(i, &v)| v == i / 10 + 1));
    }

    #[test]
    fn a_nested_loop_runs_on_the_calling_thread() {
        let pool = Pool::new(3);
        let count = AtomicUsize::new(0);
        pool.parallel_for(20, 1, &|outer| {
            for _ in outer {
                pool.parallel_for(repetitions(50), 1, &|inner| {
                    count.fetch_add(inner.len(), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 20 * repetitions(50));
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_stays_usable() {
        let pool = Pool::new(3);
        for _ in 0..repetitions(50) {
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.parallel_for(64, 1, &|range| {
                    if range.contains(&40) {
                        std::panic::panic_any("item 40");
                    }
                });
            }));
            assert_eq!(*caught.unwrap_err().downcast::<&str>().unwrap(), "item 40");
        }
        let count = AtomicUsize::new(0);
        pool.parallel_for(64, 1, &|range| {
            count.fetch_add(range.len(), Ordering::Relaxed);
        });
        assert_eq!(count.load(Ordering::Relaxed), 64);
    }

    #[test]
    fn callers_on_several_threads_share_a_pool() {
        let pool = Pool::new(2);
        let count = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..repetitions(500) {
                        pool.clone().parallel_for(16, 1, &|range| {
                            count.fetch_add(range.len(), Ordering::Relaxed);
                        });
                    }
                });
            }
        });
        assert_eq!(count.load(Ordering::Relaxed), 4 * repetitions(500) * 16);
    }

    #[test]
    fn many_short_loops_and_pools() {
        for _ in 0..repetitions(50) {
            let pool = Pool::new(4);
            for _ in 0..repetitions(100) {
                let count = AtomicUsize::new(0);
                pool.parallel_for(8, 1, &|range| {
                    count.fetch_add(range.len(), Ordering::Relaxed);
                });
                assert_eq!(count.load(Ordering::Relaxed), 8);
            }
        }
    }
}
