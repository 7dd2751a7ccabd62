//! Ending a computation early: by hand, or when its time is over.

use clock::Instant;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle that ends what runs under it. Clones end the same; another thread can keep one.
///
/// What runs looks at the handle between its steps, and [`Pool`](crate::Pool) between the pieces of a loop: a
/// step that is one long loop ends early, too, where panics unwind.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    cancelled: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

/// Why a computation was ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted {
    /// [`Interrupt::cancel`] was called.
    Cancelled,
    /// The time was over.
    DeadlinePassed,
    /// There was no memory for so many bytes: see [`out_of_memory`].
    OutOfMemory(usize),
}

thread_local! {
    /// What this thread runs under.
    static ARMED: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

impl Interrupt {
    /// A handle that is not cancelled, without a deadline.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same handle, ending also at `deadline`, or at its own if that is earlier.
    pub fn until(&self, deadline: Instant) -> Self {
        let deadline = self.deadline.map_or(deadline, |own| own.min(deadline));
        Self { cancelled: Arc::clone(&self.cancelled), deadline: Some(deadline) }
    }

    /// Ends what runs under the handle, and whatever will, until [`Self::reset`].
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Takes [`Self::cancel`] back.
    pub fn reset(&self) {
        self.cancelled.store(false, Ordering::Relaxed);
    }

    /// Fails if what runs under the handle is to end.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Interrupted::Cancelled);
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(Interrupted::DeadlinePassed),
            _ => Ok(()),
        }
    }

    /// Puts what this thread does under the handle, for as long as the guard lives. Loops of a pool may
    /// unwind now: see [`interruptible`].
    pub fn arm(&self) -> Armed {
        Armed { before: ARMED.with(|armed| armed.replace(Some(self.clone()))) }
    }

    /// Ends the loop that the caller is in, if it is to end.
    fn unwind(&self) {
        if cfg!(panic = "unwind")
            && let Err(why) = self.check()
        {
            resume_unwind(Box::new(why));
        }
    }
}

/// What was [armed](Interrupt::arm), until it is dropped.
#[must_use]
#[derive(Debug)]
pub struct Armed {
    before: Option<Interrupt>,
}

impl Drop for Armed {
    fn drop(&mut self) {
        let before = self.before.take();
        ARMED.with(|armed| armed.replace(before));
    }
}

/// What this thread runs under.
pub(crate) fn armed() -> Option<Interrupt> {
    ARMED.with(|armed| armed.borrow().clone())
}

/// Ends the computation for want of memory, where nothing else can be done: in the middle of a loop, whose
/// [`interruptible`] caller gets the error.
///
/// # Panics
/// If there is no such caller, or if panics abort.
pub fn out_of_memory(bytes: usize) -> ! {
    let why = Interrupted::OutOfMemory(bytes);
    match cfg!(panic = "unwind") {
        true => resume_unwind(Box::new(why)),
        false => panic!("{why}"),
    }
}

/// Calls `body`. A loop in it that was interrupted ends here. What it wrote so far stays.
pub fn interruptible<T>(body: impl FnOnce() -> T) -> Result<T, Interrupted> {
    let interrupted = |payload: Box<dyn Any + Send>| match payload.downcast::<Interrupted>() {
        Ok(why) => *why,
        Err(other) => resume_unwind(other),
    };
    catch_unwind(AssertUnwindSafe(body)).map_err(interrupted)
}

/// Work between two looks at the handle: fractions of a millisecond.
const STRIDE: usize = 1 << 16;

thread_local! {
    /// Work that this thread has counted.
    static COUNTED: Cell<u64> = const { Cell::new(0) };
}

/// Counts work, about in elements read or written and in multiply-adds: for tests that it is in proportion to what a
/// program computes, as clocks cannot say. Loops of a pool count the elements, or items, that they divide.
pub fn count(work: usize) {
    COUNTED.set(COUNTED.get().saturating_add(work as u64));
}

/// The work that this thread has counted so far. What is divided among threads is not all counted by one.
pub fn counted() -> u64 {
    COUNTED.get()
}

/// For long loops off a pool: ends the computation, as a loop of a pool would, if what this thread runs under says so.
/// `work` is what was done since the last call, about in elements, and is [counted](count). It looks at the handle once
/// in a while.
pub fn progress(work: usize) {
    count(work);
    thread_local! {
        static DONE: Cell<usize> = const { Cell::new(0) };
    }
    let done = DONE.get().saturating_add(work);
    if done < STRIDE {
        DONE.set(done);
        return;
    }
    DONE.set(0);
    look();
}

#[cold]
fn look() {
    if let Some(interrupt) = armed() {
        interrupt.unwind();
    }
}

/// Pieces of a loop that one thread runs between which it looks at the handle.
const PIECES: usize = 64;

/// Calls `body` for `0..items` in pieces of at least `grain`, until the handle says to end.
pub(crate) fn in_pieces(
    interrupt: &Interrupt,
    items: usize,
    grain: usize,
    mut body: impl FnMut(Range<usize>),
) {
    let piece = items.div_ceil(PIECES).max(grain).max(1);
    let mut start = 0;
    while start < items {
        interrupt.unwind();
        let end = items.min(start.saturating_add(piece));
        body(start..end);
        start = end;
    }
    interrupt.unwind();
}

/// Runs a loop that several threads share: `run` is given what to do with a range, which does nothing once
/// the handle says to end.
pub(crate) fn in_threads(
    interrupt: &Interrupt,
    body: &(dyn Fn(Range<usize>) + Sync),
    run: impl FnOnce(&(dyn Fn(Range<usize>) + Sync)),
) {
    interrupt.unwind();
    run(&|range| {
        if interrupt.check().is_ok() {
            body(range);
        }
    });
    interrupt.unwind();
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cancelled => "it was cancelled",
            Self::DeadlinePassed => "its time is over",
            Self::OutOfMemory(bytes) => return write!(f, "there is no memory for {bytes} bytes"),
        })
    }
}

impl std::error::Error for Interrupted {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::Pool;
    use std::sync::atomic::AtomicUsize;

    #[test]
    fn a_loop_ends_between_its_pieces() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            let interrupt = Interrupt::new();
            let armed = interrupt.arm();
            let done = AtomicUsize::new(0);
            let cancel_after = |n: usize| {
                interrupt.reset();
                done.store(0, Ordering::Relaxed);
                interruptible(|| {
                    pool.parallel_for(6400, 1, &|range| {
                        if done.fetch_add(range.len(), Ordering::Relaxed) + range.len() >= n {
                            interrupt.cancel();
                        }
                    });
                })
            };
            assert_eq!(cancel_after(100), Err(Interrupted::Cancelled));
            assert!(done.load(Ordering::Relaxed) < 6400);
            assert_eq!(cancel_after(7000), Ok(()));
            assert_eq!(done.load(Ordering::Relaxed), 6400);
            drop(armed);
            assert_eq!(cancel_after(100), Ok(()));
        }
    }

    #[test]
    fn chunks_end_too_and_the_pool_goes_on() {
        for threads in [1, 2] {
            let pool = Pool::new(threads);
            let interrupt = Interrupt::new();
            let mut data = vec![0u8; 4096];
            let cut = {
                let _armed = interrupt.arm();
                interruptible(|| {
                    pool.parallel_chunks_mut(&mut data, 4, 1, &|i, chunk| {
                        chunk.fill(1);
                        if i == 3 {
                            interrupt.cancel();
                        }
                    });
                })
            };
            assert_eq!(cut, Err(Interrupted::Cancelled));
            assert!(data.contains(&0) && data.contains(&1));
            pool.parallel_chunks_mut(&mut data, 4, 1, &|_, chunk| chunk.fill(2));
            assert!(data.iter().all(|&x| x == 2));
        }
    }

    #[test]
    fn loops_off_a_pool_end_soon() {
        let interrupt = Interrupt::new();
        let armed = interrupt.arm();
        let mut done = 0;
        let ended = interruptible(|| {
            for i in 0..100 * STRIDE {
                done = i;
                if i == STRIDE {
                    interrupt.cancel();
                }
                progress(1);
            }
        });
        assert_eq!(ended, Err(Interrupted::Cancelled));
        assert!(done <= 2 * STRIDE, "{done}");
        drop(armed);
        assert_eq!(interruptible(|| progress(usize::MAX)), Ok(()));
    }

    #[test]
    fn work_is_counted() {
        let pool = Pool::serial();
        let before = counted();
        pool.parallel_for(100, 1, &|range| count(2 * range.len()));
        pool.parallel_chunks_mut(&mut [0u8; 50], 7, 1, &|_, _| ());
        progress(5);
        assert_eq!(counted() - before, 100 + 200 + 50 + 5);
    }

    #[test]
    fn the_earlier_deadline_counts() {
        let now = Instant::now();
        let later = now + std::time::Duration::from_secs(1000);
        let interrupt = Interrupt::new().until(later);
        assert_eq!(interrupt.check(), Ok(()));
        assert_eq!(interrupt.until(now).check(), Err(Interrupted::DeadlinePassed));
        assert_eq!(interrupt.until(now).until(later).check(), Err(Interrupted::DeadlinePassed));
        interrupt.until(now).cancel();
        assert_eq!(interrupt.check(), Err(Interrupted::Cancelled));
    }

    #[test]
    fn want_of_memory_ends_a_loop_on_any_thread() {
        for threads in [1, 3] {
            let pool = Pool::new(threads);
            let ended = interruptible(|| {
                pool.parallel_for(1000, 1, &|range| {
                    if range.contains(&500) {
                        out_of_memory(7);
                    }
                });
            });
            assert_eq!(ended, Err(Interrupted::OutOfMemory(7)));
        }
        assert_eq!(Interrupted::OutOfMemory(7).to_string(), "there is no memory for 7 bytes");
    }

    #[test]
    fn other_panics_go_on() {
        let interrupt = Interrupt::new();
        let _armed = interrupt.arm();
        let caught = catch_unwind(|| interruptible(|| std::panic::panic_any("other")));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"other"));
    }
}
