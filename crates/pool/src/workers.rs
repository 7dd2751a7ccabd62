use crate::blocking::Blocking;
use crate::event::Event;
use crate::job::Slot;
use crate::limits::SPIN;
use crate::queue::Task;
use crate::sync::{AtomicBool, AtomicUsize, Mutex, Ordering, lock};
use crossbeam_deque::{Injector, Steal, Stealer, Worker};
use pteron_clock::Instant;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// The state that the threads of a pool share.
pub(crate) struct Shared {
    /// The parallel loop that workers may join.
    pub(crate) slot: Slot,
    /// Notified when there is new work, or when a condition that a task-running thread waits for may hold.
    pub(crate) event: Event,
    /// Notified when a condition that a thread waits for without running tasks may hold.
    waiters: Event,
    pub(crate) blocking: Blocking,
    injector: Injector<Task>,
    stealers: Vec<Stealer<Task>>,
    /// The deque that one thread outside the pool may borrow while it waits and runs tasks. These tasks push the
    /// tasks that they add here, not to the injector, so that the added ones run soon.
    spare: Mutex<Option<Worker<Task>>>,
    /// The number of tasks that were added and have not finished.
    pending: AtomicUsize,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    panicked: AtomicBool,
}

/// The deque of a worker thread, or the spare one of a waiting thread, and the address of the [`Shared`] it belongs to.
struct Local {
    owner: usize,
    deque: Worker<Task>,
}

thread_local! {
    static LOCAL: RefCell<Option<Local>> = const { RefCell::new(None) };
    /// The nesting depth of the tasks that this thread is running.
    static RUNNING: Cell<usize> = const { Cell::new(0) };
}

/// Whether this thread is running a task of a pool.
pub(crate) fn is_in_task() -> bool {
    RUNNING.get() > 0
}

/// The nesting depth of the tasks that this thread is running.
pub(crate) fn task_depth() -> usize {
    RUNNING.get()
}

/// Sets the nesting depth of the tasks that this thread counts as running.
pub(crate) fn set_task_depth(depth: usize) {
    RUNNING.set(depth);
}

impl Shared {
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// Calls `f` with this thread's deque of this pool. `None` if the thread has none: it is not a worker and does
    /// not hold the spare deque.
    fn with_local<R>(&self, f: impl FnOnce(&Worker<Task>) -> R) -> Option<R> {
        LOCAL.with_borrow(|local| local.as_ref().filter(|l| l.owner == self.address()).map(|l| f(&l.deque)))
    }

    /// Whether this thread has a deque of this pool: it is a worker thread, or waits with the spare deque.
    pub(crate) fn is_on_worker_thread(&self) -> bool {
        self.with_local(|_| ()).is_some()
    }

    /// Counts a task as pending until [`Shared::task_ended`].
    pub(crate) fn task_began(&self) {
        self.pending.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn task_ended(&self) {
        if self.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.notify_all();
        }
    }

    /// Wakes every sleeping thread so that it checks its condition again.
    pub(crate) fn notify_all(&self) {
        self.event.notify_all();
        self.waiters.notify_all();
    }

    /// Whether no task is queued or running.
    pub(crate) fn is_quiet(&self) -> bool {
        self.pending.load(Ordering::Acquire) == 0
    }

    pub(crate) fn add(&self, task: Task) {
        self.task_began();
        let mut task = Some(task);
        self.with_local(|deque| task.take().map(|t| deque.push(t)));
        if let Some(task) = task {
            self.injector.push(task);
        }
        self.event.notify_one();
    }

    /// Runs a task. If the task panics, the panic is stored and resumed in the waiting thread.
    pub(crate) fn run(&self, task: Task) {
        RUNNING.set(RUNNING.get() + 1);
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task.run())) {
            lock(&self.panic).get_or_insert(payload);
            self.panicked.store(true, Ordering::Release);
            self.notify_all();
        }
        RUNNING.set(RUNNING.get() - 1);
        self.task_ended();
    }

    fn find_task(&self) -> Option<Task> {
        if let Some(Some(task)) = self.with_local(Worker::pop) {
            return Some(task);
        }
        loop {
            let mut retry = false;
            let stolen = self.with_local(|deque| self.injector.steal_batch_and_pop(deque));
            let stolen = stolen.unwrap_or_else(|| self.injector.steal());
            for steal in std::iter::once(stolen).chain(self.stealers.iter().map(Stealer::steal)) {
                match steal {
                    Steal::Success(task) => return Some(task),
                    Steal::Retry => retry = true,
                    Steal::Empty => {}
                }
            }
            if !retry {
                return None;
            }
        }
    }

    fn has_task(&self) -> bool {
        !self.injector.is_empty() || self.stealers.iter().any(|s| !s.is_empty())
    }

    fn run_worker(&self, deque: Worker<Task>) {
        LOCAL.set(Some(Local { owner: self.address(), deque }));
        self.help_until(&|| self.stop.load(Ordering::Acquire), true);
        LOCAL.take();
    }

    /// Runs tasks until `done` returns true. If `worker` is set, also joins parallel loops.
    fn help_until(&self, done: &dyn Fn() -> bool, worker: bool) {
        let mut idle_since: Option<Instant> = None;
        loop {
            if done() {
                return;
            }
            let joined = worker && self.slot.is_open() && self.slot.join_in();
            if joined {
                idle_since = None;
            }
            if let Some(task) = self.find_task() {
                self.run(task);
                idle_since = None;
                continue;
            }
            let began = *idle_since.get_or_insert_with(Instant::now);
            if began.elapsed() < SPIN {
                for _ in 0..16 {
                    std::hint::spin_loop();
                }
                continue;
            }
            let key = self.event.listen();
            if done() || self.has_task() || (worker && self.slot.is_open()) {
                self.event.cancel();
            } else {
                self.event.wait(key);
            }
            idle_since = None;
        }
    }

    /// Spins, then sleeps, until `done` returns true.
    fn sleep_until(&self, done: &dyn Fn() -> bool) {
        let began = Instant::now();
        while !done() {
            if began.elapsed() < SPIN {
                std::hint::spin_loop();
                continue;
            }
            let key = self.waiters.listen();
            if done() {
                self.waiters.cancel();
            } else {
                self.waiters.wait(key);
            }
        }
    }

    /// Waits until `done` returns true or a task has panicked; resumes the panic, if there was one. The thread runs
    /// tasks meanwhile if `helps` is set, if it is one of the pool's, or if it is inside a task.
    pub(crate) fn wait_until(&self, done: &dyn Fn() -> bool, helps: bool) {
        while !done() || self.panicked.load(Ordering::Acquire) {
            self.wait_until_done_or_panicked(done, helps);
            // If another waiting thread has resumed the panic, this one goes on waiting.
            self.resume_panic();
        }
    }

    fn wait_until_done_or_panicked(&self, done: &dyn Fn() -> bool, helps: bool) {
        let done = || done() || self.panicked.load(Ordering::Acquire);
        if !helps && !self.is_on_worker_thread() && !is_in_task() {
            return self.sleep_until(&done);
        }
        let spare = if LOCAL.with_borrow(Option::is_none) { lock(&self.spare).take() } else { None };
        let lent = spare.is_some();
        if let Some(deque) = spare {
            LOCAL.set(Some(Local { owner: self.address(), deque }));
        }
        self.help_until(&done, false);
        if lent && let Some(Local { deque, .. }) = LOCAL.take() {
            *lock(&self.spare) = Some(deque);
            // Other threads can steal the tasks that are left in it.
            self.event.notify_all();
        }
    }

    /// Resumes the stored panic in this thread, if a task has panicked.
    fn resume_panic(&self) {
        if !self.panicked.swap(false, Ordering::AcqRel) {
            return;
        }
        let panic = lock(&self.panic).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

/// The threads of a pool. Dropping this value stops and joins them.
pub(crate) struct Threads {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl Threads {
    /// Starts `workers` threads, or fewer if the system refuses one.
    pub(crate) fn start(workers: usize) -> Self {
        let deques: Vec<_> = (0..workers).map(|_| Worker::new_lifo()).collect();
        let spare = Worker::new_lifo();
        let shared = Arc::new(Shared {
            slot: Slot::new(),
            event: Event::new(),
            waiters: Event::new(),
            blocking: Blocking::new(),
            injector: Injector::new(),
            stealers: deques.iter().chain([&spare]).map(Worker::stealer).collect(),
            spare: Mutex::new(Some(spare)),
            pending: AtomicUsize::new(0),
            stop: AtomicBool::new(false),
            panic: Mutex::new(None),
            panicked: AtomicBool::new(false),
        });
        let start = |(i, deque)| {
            let shared = Arc::clone(&shared);
            thread::Builder::new().name(format!("pool-{i}")).spawn(move || shared.run_worker(deque)).ok()
        };
        let handles = deques.into_iter().enumerate().map_while(start).collect();
        Self { shared, handles }
    }

    pub(crate) fn workers(&self) -> usize {
        self.handles.len()
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.event.notify_all();
        self.shared.blocking.stop();
        // A task may drop the last clone of its own pool: a thread must not join itself.
        let here = thread::current().id();
        for handle in self.handles.drain(..).filter(|h| h.thread().id() != here) {
            // Panics of tasks are stored in `Shared`, so a worker thread itself never ends with one.
            let _ = handle.join();
        }
    }
}

impl std::fmt::Debug for Threads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Threads").field("workers", &self.workers()).finish_non_exhaustive()
    }
}
