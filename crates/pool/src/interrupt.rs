//! Cancellation of computations: by a call, at a deadline, or for lack of memory.

use pteron_clock::Instant;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle that cancels the computation it is armed for. Clones cancel the same computation; another thread can keep
/// one.
///
/// The computation checks the handle between its steps, and [`Pool`](crate::Pool) checks it between the pieces of a
/// loop, so that a step that is one long loop also ends early (where panics unwind).
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    cancelled: Arc<AtomicBool>,
    deadline: Option<Instant>,
}

/// Why a computation ended early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Interrupted {
    /// [`Interrupt::cancel`] was called.
    Cancelled,
    /// The deadline passed.
    DeadlinePassed,
    /// An allocation of this many bytes failed: see [`out_of_memory`].
    OutOfMemory(usize),
}

thread_local! {
    /// The handle that is armed on this thread.
    static ARMED: RefCell<Option<Interrupt>> = const { RefCell::new(None) };
}

impl Interrupt {
    /// A handle that is not cancelled and has no deadline.
    pub fn new() -> Self {
        Self::default()
    }

    /// A handle that shares the cancellation of this one, with the earlier of `deadline` and its own deadline.
    pub fn until(&self, deadline: Instant) -> Self {
        let deadline = self.deadline.map_or(deadline, |own| own.min(deadline));
        Self { cancelled: Arc::clone(&self.cancelled), deadline: Some(deadline) }
    }

    /// The time at which the computations under this handle have to end; `None` if there is no such time.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// Cancels the computations under this handle, present and future ones, until [`Self::reset`].
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    /// Undoes [`Self::cancel`].
    pub fn reset(&self) {
        self.cancelled.store(false, Ordering::Relaxed);
    }

    /// Fails if the handle is cancelled or its deadline has passed.
    pub fn check(&self) -> Result<(), Interrupted> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Interrupted::Cancelled);
        }
        match self.deadline {
            Some(deadline) if Instant::now() >= deadline => Err(Interrupted::DeadlinePassed),
            _ => Ok(()),
        }
    }

    /// Arms the handle for this thread as long as the guard lives. Loops of a pool may
    /// unwind meanwhile: see [`interruptible`].
    pub fn arm(&self) -> Armed {
        Armed { before: ARMED.with(|armed| armed.replace(Some(self.clone()))) }
    }

    /// Unwinds out of the caller's loop if [`Self::check`] fails; does nothing where panics abort.
    fn unwind(&self) {
        if cfg!(panic = "unwind")
            && let Err(why) = self.check()
        {
            resume_unwind(Box::new(why));
        }
    }
}

/// The guard of an [armed](Interrupt::arm) handle; dropping it restores the handle that was armed before.
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

/// The handle that is [armed](Interrupt::arm) on this thread; `None` if none is.
pub fn armed() -> Option<Interrupt> {
    ARMED.with(|armed| armed.borrow().clone())
}

/// Ends the computation because memory ran out in the middle of a loop, which cannot return an error. The
/// [`interruptible`] caller gets [`Interrupted::OutOfMemory`].
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

/// Calls `body` and catches the unwinding of an interrupted loop. What the loop has written so far stays.
pub fn interruptible<T>(body: impl FnOnce() -> T) -> Result<T, Interrupted> {
    let interrupted = |payload: Box<dyn Any + Send>| match payload.downcast::<Interrupted>() {
        Ok(why) => *why,
        Err(other) => resume_unwind(other),
    };
    catch_unwind(AssertUnwindSafe(body)).map_err(interrupted)
}

/// The work, in the unit of [`count`], after which [`progress`] checks the handle again: a fraction of a millisecond.
const CHECK_INTERVAL: usize = 1 << 16;

thread_local! {
    /// The work that this thread has counted so far.
    static COUNTED: Cell<u64> = const { Cell::new(0) };
}

/// Counts work, roughly in elements read or written and in multiply-adds. Tests use it to check that work is in
/// proportion to what a program computes, which timings cannot show. Loops of a pool count their items or elements.
pub fn count(work: usize) {
    COUNTED.set(COUNTED.get().saturating_add(work as u64));
}

/// The work that this thread has counted so far. For a parallel loop, the calling thread counts the items, and each
/// thread also what the body passes to [`count`] in that thread's ranges.
pub fn counted() -> u64 {
    COUNTED.get()
}

/// Call this in long loops that do not run on a pool: it unwinds, as a loop of a pool would, if the armed handle
/// is cancelled or past its deadline. `work` is the work since the last call, roughly in elements, and is
/// [counted](count). The handle is checked only every now and then.
pub fn progress(work: usize) {
    count(work);
    thread_local! {
        static DONE: Cell<usize> = const { Cell::new(0) };
    }
    let done = DONE.get().saturating_add(work);
    if done < CHECK_INTERVAL {
        DONE.set(done);
        return;
    }
    DONE.set(0);
    checkpoint();
}

/// Unwinds, as a loop of a pool would, if the armed handle is cancelled or past its deadline. Call it between steps
/// of any length; within loops of short steps, [`progress`] is cheaper.
pub fn checkpoint() {
    let fired = ARMED.with(|armed| armed.borrow().as_ref().and_then(|interrupt| interrupt.check().err()));
    if let (Some(why), true) = (fired, cfg!(panic = "unwind")) {
        resume_unwind(Box::new(why));
    }
}

/// The largest number of pieces that a single-threaded loop is split into; the handle is checked between them.
const PIECES: usize = 64;

/// Calls `body` for `0..items` in pieces of at least `grain` items, except perhaps the last. Unwinds if the handle
/// fires.
pub(crate) fn run_in_pieces(
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

/// Runs a loop that several threads share: passes `run` a body that skips its range once the handle has
/// fired, and unwinds afterwards.
pub(crate) fn run_in_threads(
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
    fn a_loop_is_interrupted_between_its_pieces() {
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
    fn chunk_loops_are_interrupted_and_the_pool_stays_usable() {
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
    fn loops_outside_a_pool_are_interrupted_soon() {
        let interrupt = Interrupt::new();
        let armed = interrupt.arm();
        let mut done = 0;
        let ended = interruptible(|| {
            for i in 0..100 * CHECK_INTERVAL {
                done = i;
                if i == CHECK_INTERVAL {
                    interrupt.cancel();
                }
                progress(1);
            }
        });
        assert_eq!(ended, Err(Interrupted::Cancelled));
        assert!(done <= 2 * CHECK_INTERVAL, "{done}");
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
    fn lack_of_memory_ends_a_loop_on_any_thread() {
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
    fn other_panics_are_not_caught() {
        let interrupt = Interrupt::new();
        let _armed = interrupt.arm();
        let caught = catch_unwind(|| interruptible(|| std::panic::panic_any("other")));
        assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"other"));
    }
}
