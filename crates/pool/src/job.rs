//! A parallel loop that several threads execute. This module holds the `unsafe` of this crate: other threads use a
//! body that the caller borrows, for as long as the caller stays in [`Slot::run`].

use crate::event::Event;
use crate::limits::SPIN;
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, UnsafeCell, lock};
use pteron_clock::Instant;
use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

type Body<'a> = &'a (dyn Fn(Range<usize>) + Sync + 'a);

/// A loop in progress.
#[derive(Clone, Copy)]
struct Job {
    body: Body<'static>,
    items: usize,
    chunk: usize,
}

/// The end of a loop from which a thread takes ranges: the owner takes from the front, threads that join take from
/// the back. In consecutive loops over the same rows, two threads thus find the rows of their previous loop in their
/// own caches, and balance the rest by their speed.
#[derive(Clone, Copy)]
enum End {
    Front,
    Back,
}

impl End {
    /// The increment of [`Slot::taken`] that takes one range from this end of the loop.
    fn increment(self) -> u64 {
        match self {
            Self::Front => 1,
            Self::Back => 1 << 32,
        }
    }
}

const OPEN: u64 = 1 << 31;
const ACTIVE: u64 = OPEN - 1;

/// Offers one loop at a time to the threads of a pool.
pub(crate) struct Slot {
    /// Set while a thread's loop is in the slot.
    busy: AtomicBool,
    /// The loop's sequence number (high half), whether threads may still join (`OPEN`), and how many of those that
    /// joined are active.
    state: AtomicU64,
    /// The numbers of ranges taken from the front (low half) and from the back (high half) of the loop.
    taken: AtomicU64,
    job: UnsafeCell<Option<Job>>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Notifies the owner that the last active thread has left.
    left: Event,
}

// SAFETY: `job` is written only by the thread that holds `busy`, at times when `state` says that the
// loop is not open and no thread is active; it is read only by threads that have counted themselves
// active in an open loop. `Job` itself holds a `Sync` body and integers.
unsafe impl Sync for Slot {}
// SAFETY: for the same reasons; nothing in a slot is tied to a particular thread.
unsafe impl Send for Slot {}

impl Slot {
    pub(crate) fn new() -> Self {
        Self {
            busy: AtomicBool::new(false),
            state: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            job: UnsafeCell::new(None),
            panic: Mutex::new(None),
            left: Event::new(),
        }
    }

    /// Runs a loop together with the threads that join it; `offer` wakes them. Returns false without
    /// running anything if the slot is busy with another thread's loop or with a loop that this call is
    /// nested in. A panic of the body is resumed here, once no thread uses the body.
    ///
    /// There must be fewer than 2^31 ranges of `chunk` items, and `items + chunk` must fit a `usize`.
    pub(crate) fn run(&self, items: usize, chunk: usize, body: Body<'_>, offer: impl FnOnce()) -> bool {
        if self.busy.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        // SAFETY: the extended lifetime is never used beyond the real one: this function neither returns nor
        // unwinds before the loop is closed and every active thread has left, and a thread that is not
        // active does not touch the job.
        let body = unsafe { std::mem::transmute::<Body<'_>, Body<'static>>(body) };
        let job = Job { body, items, chunk };
        // SAFETY: this thread holds `busy`, and the previous loop was closed with no thread active.
        self.job.with_mut(|place| unsafe { *place = Some(job) });
        self.taken.store(0, Ordering::Relaxed);
        let number = (self.state.load(Ordering::Relaxed) >> 32).wrapping_add(1);
        self.state.store((number << 32) | OPEN, Ordering::SeqCst);
        offer();
        self.work(&job, End::Front);
        self.state.fetch_and(!OPEN, Ordering::SeqCst);
        self.wait_until_left();
        let panic = lock(&self.panic).take();
        self.busy.store(false, Ordering::Release);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
        true
    }

    /// Whether there is an open loop, which may have items left.
    pub(crate) fn is_open(&self) -> bool {
        self.state.load(Ordering::SeqCst) & OPEN != 0
    }

    /// Joins the open loop, if there is one, and works until all items are taken. Returns whether it joined.
    pub(crate) fn join_in(&self) -> bool {
        let mut state = self.state.load(Ordering::SeqCst);
        loop {
            if state & OPEN == 0 {
                return false;
            }
            match self.state.compare_exchange_weak(state, state + 1, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => break,
                Err(now) => state = now,
            }
        }
        // SAFETY: this thread is counted as active in an open loop, so the owner does not write the job.
        if let Some(job) = self.job.with(|place| unsafe { *place }) {
            self.work(&job, End::Back);
        }
        // The loop has no items left, so no other thread needs to join.
        self.state.fetch_and(!OPEN, Ordering::SeqCst);
        let before = self.state.fetch_sub(1, Ordering::SeqCst);
        if before & ACTIVE == 1 {
            self.left.notify_all();
        }
        true
    }

    /// Takes and runs ranges from one end until none is left. One atomic counts the ranges taken from both ends, so no
    /// range is taken twice.
    fn work(&self, job: &Job, end: End) {
        let ranges = job.items.div_ceil(job.chunk) as u64;
        loop {
            let counts = self.taken.fetch_add(end.increment(), Ordering::Relaxed);
            let (front, back) = (counts & u64::from(u32::MAX), counts >> 32);
            if front + back >= ranges {
                return;
            }
            let number = match end {
                End::Front => front,
                End::Back => ranges - 1 - back,
            };
            let start = number as usize * job.chunk;
            let end = job.items.min(start + job.chunk);
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (job.body)(start..end))) {
                self.taken.store(ranges, Ordering::Relaxed);
                lock(&self.panic).get_or_insert(payload);
                return;
            }
        }
    }

    fn wait_until_left(&self) {
        let left = || self.state.load(Ordering::SeqCst) & ACTIVE == 0;
        let mut began = None;
        loop {
            for _ in 0..if cfg!(loom) { 0 } else { 32 } {
                if left() {
                    return;
                }
                std::hint::spin_loop();
            }
            // A loom model has no clock: there, waiting threads sleep at once.
            if !cfg!(loom) && began.get_or_insert_with(Instant::now).elapsed() < SPIN {
                continue;
            }
            let key = self.left.listen();
            if left() {
                self.left.cancel();
                return;
            }
            self.left.wait(key);
        }
    }
}

impl std::fmt::Debug for Slot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Slot").field("open", &self.is_open()).finish_non_exhaustive()
    }
}

/// Models of the slot, which loom runs under every interleaving of their threads, up to a bound on preemptions.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Visit counts of a loop's items, which live only as long as the loop: loom fails if two threads visit an item
    /// concurrently, or a thread visits one after the loop has ended.
    struct Visits(Vec<UnsafeCell<usize>>);

    // SAFETY: loom checks that no two threads access a cell concurrently.
    unsafe impl Sync for Visits {}

    impl Visits {
        fn new(items: usize) -> Self {
            Self((0..items).map(|_| UnsafeCell::new(0)).collect())
        }

        fn visit(&self, range: Range<usize>) {
            for cell in &self.0[range] {
                // SAFETY: checked by loom.
                cell.with_mut(|count| unsafe { *count += 1 });
            }
        }

        fn are_all(&self, times: usize) {
            for cell in &self.0 {
                // SAFETY: checked by loom.
                cell.with(|count| assert_eq!(unsafe { *count }, times));
            }
        }
    }

    /// Runs a loop if the slot is free, and checks that it visited each item exactly once. Returns whether it ran.
    fn run(slot: &Slot, items: usize) -> bool {
        let visits = Visits::new(items);
        let ran = slot.run(items, 1, &|range| visits.visit(range), || ());
        visits.are_all(usize::from(ran));
        ran
    }

    fn model(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
        let mut bounded = loom::model::Builder::new();
        bounded.preemption_bound = Some(preemptions);
        bounded.check(body);
    }

    #[test]
    fn a_thread_may_join_at_any_time() {
        model(3, || {
            let slot = Arc::new(Slot::new());
            let other = Arc::clone(&slot);
            let helper = thread::spawn(move || other.join_in());
            assert!(run(&slot, 2));
            helper.join().unwrap();
            assert!(!slot.is_open() && !slot.join_in());
        });
    }

    #[test]
    fn a_late_thread_joins_the_next_loop() {
        model(3, || {
            let slot = Arc::new(Slot::new());
            let other = Arc::clone(&slot);
            let helper = thread::spawn(move || other.join_in());
            assert!(run(&slot, 1));
            assert!(run(&slot, 1));
            helper.join().unwrap();
        });
    }

    #[test]
    fn two_threads_may_join() {
        model(2, || {
            let slot = Arc::new(Slot::new());
            let helpers = [0, 1].map(|_| {
                let other = Arc::clone(&slot);
                thread::spawn(move || other.join_in())
            });
            assert!(run(&slot, 2));
            for helper in helpers {
                helper.join().unwrap();
            }
        });
    }

    #[test]
    fn the_slot_holds_one_loop_at_a_time() {
        model(3, || {
            let slot = Arc::new(Slot::new());
            let other = Arc::clone(&slot);
            let second = thread::spawn(move || run(&other, 1));
            let first = run(&slot, 1);
            assert!(second.join().unwrap() || first);
            assert!(run(&slot, 1));
        });
    }
}

/// A slice whose disjoint parts several threads write.
pub(crate) struct Parts<T> {
    start: *mut T,
    len: usize,
}

// SAFETY: `Parts` represents a `&mut [T]` whose elements are handed out at most once each (the contract
// of `Parts::part`), and sending a `&mut T` to another thread needs `T: Send`.
unsafe impl<T: Send> Sync for Parts<T> {}

impl<T> Parts<T> {
    pub(crate) fn new(data: &mut [T]) -> Self {
        Self { start: data.as_mut_ptr(), len: data.len() }
    }

    /// The elements in `range`, clamped to the end of the slice.
    ///
    /// # Safety
    /// The slice must still be mutably borrowed by the creator of this value, and no two calls may
    /// include the same element.
    #[expect(clippy::mut_from_ref, reason = "the caller promises disjoint ranges")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        let end = range.end.min(self.len);
        let start = range.start.min(end);
        // SAFETY: `start..end` lies within the slice, and the caller promises that no other
        // reference to these elements exists.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(start), end - start) }
    }
}

/// Calls `body` with the chunks of `data` whose indices are in the ranges that `each` passes on. `each`
/// must pass every index at most once, as the loops of this crate do.
pub(crate) fn for_chunks<T: Send>(
    data: &mut [T],
    chunk: usize,
    body: &(dyn Fn(usize, &mut [T]) + Sync),
    each: impl FnOnce(Body<'_>),
) {
    let parts = Parts::new(data);
    each(&|numbers: Range<usize>| {
        for i in numbers {
            // SAFETY: `each` is one of this crate's loops, which passes every index to one call
            // only; chunks of different indices are disjoint; `data` is borrowed for the whole call.
            body(i, unsafe { parts.part(i * chunk..(i + 1) * chunk) });
        }
    });
}
