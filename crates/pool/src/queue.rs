use crate::Pool;
use crate::single::Single;
use crate::workers;
use std::fmt;
use std::sync::Arc;

/// A suspended computation that can be resumed at one of several places.
pub trait Resume: Send + Sync {
    /// Resumes at `place`, whose meaning the implementer defines.
    fn resume(self: Arc<Self>, place: u64);
}

/// A unit of work: a boxed closure, or a computation to resume, which needs no allocation.
pub struct Task(Work);

enum Work {
    Call(Box<dyn FnOnce() + Send>),
    Resume(Arc<dyn Resume>, u64),
}

impl Task {
    /// A task that resumes `what` at `place`.
    pub fn resume(what: Arc<dyn Resume>, place: u64) -> Self {
        Self(Work::Resume(what, place))
    }

    /// Runs the task.
    #[inline]
    pub fn run(self) {
        match self.0 {
            Work::Call(call) => call(),
            Work::Resume(what, place) => what.resume(place),
        }
    }
}

impl<F: FnOnce() + Send + 'static> From<Box<F>> for Task {
    fn from(call: Box<F>) -> Self {
        Self(Work::Call(call))
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Task")
    }
}

/// The error for a blocking task that no thread can run now. Holds the task.
pub struct Refused(pub Task);

impl fmt::Debug for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Refused(no thread is free for a blocking task)")
    }
}

/// What a thread hands over to one that replaces it: see [`WorkQueue::hand_over`].
#[derive(Debug)]
pub struct HandOver {
    running: usize,
}

impl HandOver {
    /// Makes this new thread count as running the tasks that the thread which handed over is still running.
    pub fn take_over(self) {
        workers::set_task_depth(self.running);
    }
}

/// A queue of tasks. Cloning shares the queue.
///
/// A queued task that owns a clone of its own queue keeps that queue alive (a reference cycle): run all
/// tasks with [`WorkQueue::quiesce`] before dropping the queue.
#[derive(Clone)]
pub struct WorkQueue(Kind);

#[derive(Clone)]
enum Kind {
    Single(Arc<Single>),
    /// A pool whose threads run the tasks. The flag says whether a thread outside the pool runs tasks while it waits.
    Multi(Pool, bool),
}

impl WorkQueue {
    /// A queue without threads: tasks run in first-in, first-out order on the thread that waits.
    pub fn single_threaded() -> Self {
        Self(Kind::Single(Arc::new(Single::new())))
    }

    /// A queue whose tasks run on the threads of `pool`, in no particular order. The caller, which
    /// counts as one of the pool's threads, runs tasks while it waits.
    pub fn multi_threaded(pool: &Pool) -> Self {
        Self(Kind::Multi(pool.clone(), true))
    }

    /// Like [`Self::multi_threaded`], but a thread outside the pool sleeps while it waits and leaves the tasks to the
    /// pool's worker threads. A pool of one thread has no worker: there, the waiting thread runs the tasks.
    pub fn of_workers(pool: &Pool) -> Self {
        Self(Kind::Multi(pool.clone(), pool.threads() == 1))
    }

    /// The pool whose threads run the tasks; a pool without workers if the queue is single-threaded.
    pub fn pool(&self) -> &Pool {
        match &self.0 {
            Kind::Single(q) => q.pool(),
            Kind::Multi(pool, _) => pool,
        }
    }

    /// Whether tasks run only on the thread that waits, in the order they were added.
    pub fn is_single_threaded(&self) -> bool {
        matches!(self.0, Kind::Single(_))
    }

    /// The number of tasks that can run at the same time, not counting tasks that may block.
    pub fn parallelism(&self) -> usize {
        match &self.0 {
            Kind::Multi(pool, false) => pool.threads() - 1,
            _ => self.pool().threads(),
        }
    }

    /// Whether this thread is one of the queue's worker threads, or the one that waits and runs tasks in their place.
    pub fn is_on_worker_thread(&self) -> bool {
        match &self.0 {
            Kind::Single(_) => false,
            Kind::Multi(pool, _) => pool.0.shared().is_on_worker_thread(),
        }
    }

    /// Whether this thread may call [`WorkQueue::quiesce`]. A task of a multi-threaded queue may not: it would wait for
    /// itself.
    pub fn can_quiesce(&self) -> bool {
        match &self.0 {
            Kind::Single(_) => true,
            Kind::Multi(..) => !workers::is_in_task(),
        }
    }

    /// The number of pending tasks, except those that another thread has taken from the queue to run them. `None` for
    /// a multi-threaded queue, which does not count its tasks.
    pub fn queued(&self) -> Option<usize> {
        match &self.0 {
            Kind::Single(q) => Some(q.len()),
            Kind::Multi(..) => None,
        }
    }

    /// Adds a task that does not block.
    pub fn add_task(&self, task: impl Into<Task>) {
        match &self.0 {
            Kind::Single(q) => q.add(std::iter::once(task.into())),
            Kind::Multi(pool, _) => pool.0.shared().add(task.into()),
        }
    }

    /// Adds tasks that do not block, in this order.
    pub fn add_tasks(&self, tasks: impl IntoIterator<Item = Task>) {
        match &self.0 {
            Kind::Single(q) => q.add(tasks),
            Kind::Multi(pool, _) => tasks.into_iter().for_each(|task| pool.0.shared().add(task)),
        }
    }

    /// Adds a task that may block. A multi-threaded queue runs it on a separate set of threads for blocking tasks; a
    /// single-threaded queue runs it like any other task.
    ///
    /// # Errors
    /// Returns the task if it would have to wait and `allow_queuing` is false, or if no thread for it can be started.
    pub fn add_blocking_task(&self, task: impl Into<Task>, allow_queuing: bool) -> Result<(), Refused> {
        let task = task.into();
        match &self.0 {
            Kind::Single(_) if !allow_queuing => Err(Refused(task)),
            Kind::Single(_) => {
                self.add_task(task);
                Ok(())
            }
            Kind::Multi(pool, _) => {
                let shared = Arc::clone(pool.0.shared());
                shared.task_began();
                let run = Arc::clone(&shared);
                // A shared cell, so that the task can be taken back if it is refused.
                let cell = Arc::new(crate::sync::Mutex::new(Some(task)));
                let inner = Arc::clone(&cell);
                let wrapped = Box::new(move || {
                    if let Some(task) = crate::sync::lock(&inner).take() {
                        run.run(task);
                    }
                });
                if shared.blocking.add(Task::from(wrapped), allow_queuing).is_ok() {
                    return Ok(());
                }
                shared.task_ended();
                let task = crate::sync::lock(&cell).take();
                task.map_or(Ok(()), |t| Err(Refused(t)))
            }
        }
    }

    /// Waits until `done` returns true. The thread runs tasks meanwhile, unless [`WorkQueue::of_workers`] leaves them
    /// to the workers. Code that makes `done` true must call [`WorkQueue::wake`] afterwards.
    ///
    /// # Panics
    /// Resumes the panic of a task.
    pub fn wait_until(&self, done: &dyn Fn() -> bool) {
        match &self.0 {
            Kind::Single(q) => q.wait_until(done),
            Kind::Multi(pool, helps) => pool.0.shared().wait_until(done, *helps),
        }
    }

    /// Leaves the tasks that this thread holds to another thread, which must call [`HandOver::take_over`] and then wait
    /// for the queue in place of this thread; this thread must wait for that thread. For a thread whose stack does
    /// not suffice for more tasks.
    pub fn hand_over(&self) -> HandOver {
        if let Kind::Single(q) = &self.0 {
            q.release();
        }
        HandOver { running: workers::task_depth() }
    }

    /// Wakes the threads in [`WorkQueue::wait_until`] so that they check their condition again.
    pub fn wake(&self) {
        match &self.0 {
            Kind::Single(q) => q.wake(),
            Kind::Multi(pool, _) => pool.0.shared().notify_all(),
        }
    }

    /// Runs tasks until none is queued or running. (In a single-threaded queue a task may call this; tasks that
    /// are in the middle of the call do not count.) [`WorkQueue::can_quiesce`] says which threads may call this.
    ///
    /// # Panics
    /// Resumes the panic of a task.
    pub fn quiesce(&self) {
        match &self.0 {
            Kind::Single(q) => q.quiesce(),
            Kind::Multi(pool, helps) => {
                let shared = pool.0.shared();
                shared.wait_until(&|| shared.is_quiet(), *helps);
            }
        }
    }
}

impl fmt::Debug for WorkQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Single(_) => f.write_str("WorkQueue(single-threaded)"),
            Kind::Multi(pool, _) => write!(f, "WorkQueue({} threads)", pool.threads()),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::time::Duration;

    #[test]
    fn the_single_threaded_queue_is_fifo_and_runs_only_while_a_thread_waits() {
        let queue = WorkQueue::single_threaded();
        let seen = Arc::new(Mutex::new(Vec::new()));
        for i in 0..200 {
            let (q, s) = (queue.clone(), Arc::clone(&seen));
            queue.add_task(Box::new(move || {
                s.lock().unwrap().push(i);
                if i < 3 {
                    q.add_task(Box::new(move || s.lock().unwrap().push(1000 + i)));
                }
            }));
        }
        assert!(seen.lock().unwrap().is_empty());
        assert_eq!(queue.queued(), Some(200));
        queue.wait_until(&|| seen.lock().unwrap().len() >= 10);
        assert_eq!(*seen.lock().unwrap(), (0..10).collect::<Vec<_>>());
        queue.quiesce();
        let want: Vec<i32> = (0..200).chain([1000, 1001, 1002]).collect();
        assert_eq!(*seen.lock().unwrap(), want);
    }

    #[test]
    fn the_multi_threaded_queue_runs_tasks_that_add_tasks() {
        const DEPTH: usize = if cfg!(miri) { 4 } else { 12 };
        for threads in [1, 2, 4] {
            let queue = WorkQueue::multi_threaded(&Pool::new(threads));
            let count = Arc::new(AtomicUsize::new(0));
            fn tree(queue: &WorkQueue, count: &Arc<AtomicUsize>, depth: usize) {
                count.fetch_add(1, Ordering::Relaxed);
                for _ in 0..if depth > 0 { 2 } else { 0 } {
                    let (q, c) = (queue.clone(), Arc::clone(count));
                    queue.add_task(Box::new(move || tree(&q, &c, depth - 1)));
                }
            }
            tree(&queue, &count, DEPTH);
            queue.quiesce();
            assert_eq!(count.load(Ordering::Relaxed), (2 << DEPTH) - 1);
        }
    }

    #[test]
    fn blocking_tasks_do_not_hold_up_the_others() {
        let queue = WorkQueue::multi_threaded(&Pool::new(2));
        let go = Arc::new(AtomicBool::new(false));
        for _ in 0..3 {
            let go = Arc::clone(&go);
            queue
                .add_blocking_task(
                    Box::new(move || {
                        while !go.load(Ordering::Acquire) {
                            std::thread::sleep(Duration::from_millis(1));
                        }
                    }),
                    false,
                )
                .unwrap();
        }
        let opener = Arc::clone(&go);
        queue.add_task(Box::new(move || opener.store(true, Ordering::Release)));
        queue.quiesce();
        assert!(go.load(Ordering::Acquire));
        assert!(WorkQueue::single_threaded().add_blocking_task(Box::new(|| ()), false).is_err());
    }

    #[test]
    fn a_waiter_sleeps_until_it_is_woken() {
        for queue in [WorkQueue::single_threaded(), WorkQueue::multi_threaded(&Pool::new(2))] {
            let ready = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(5));
                    ready.store(true, Ordering::Release);
                    queue.wake();
                });
                queue.wait_until(&|| ready.load(Ordering::Acquire));
            });
        }
    }

    #[test]
    fn a_waiting_thread_leaves_tasks_to_the_workers() {
        let queue = WorkQueue::of_workers(&Pool::new(2));
        assert_eq!(queue.parallelism(), 1);
        let here = std::thread::current().id();
        let (running, ran) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for _ in 0..20 {
            let (running, ran) = (Arc::clone(&running), Arc::clone(&ran));
            queue.add_task(Box::new(move || {
                assert_eq!(running.fetch_add(1, Ordering::AcqRel), 0, "there is one worker");
                assert_ne!(std::thread::current().id(), here);
                ran.fetch_add(1, Ordering::AcqRel);
                running.fetch_sub(1, Ordering::AcqRel);
            }));
        }
        queue.quiesce();
        assert_eq!(ran.load(Ordering::Acquire), 20);
        let queue = WorkQueue::of_workers(&Pool::serial());
        queue.add_task(Box::new(move || assert_eq!(std::thread::current().id(), here)));
        queue.quiesce();
    }

    #[test]
    fn a_panic_of_a_task_reaches_the_waiting_thread() {
        let queue = WorkQueue::multi_threaded(&Pool::new(2));
        queue.add_task(Box::new(|| std::panic::panic_any(7i32)));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| queue.quiesce()));
        assert_eq!(*caught.unwrap_err().downcast::<i32>().unwrap(), 7);
        queue.quiesce();
    }

    #[test]
    fn a_wait_for_a_queue_runs_its_tasks_inside_a_task_of_another_queue() {
        let (outer, inner) = (WorkQueue::single_threaded(), WorkQueue::single_threaded());
        let (done, done_inside) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (a, b, count, inside) =
            (outer.clone(), inner.clone(), Arc::clone(&done), Arc::clone(&done_inside));
        outer.add_task(Box::new(move || {
            let (again, count) = (a.clone(), Arc::clone(&count));
            let finished = Arc::clone(&inside);
            b.add_task(Box::new(move || {
                // The two tasks below were taken from the queue by the first wait.
                again.wait_until(&|| count.load(Ordering::Acquire) == 2);
                finished.store(1, Ordering::Release);
            }));
            b.wait_until(&|| inside.load(Ordering::Acquire) == 1);
        }));
        for _ in 0..2 {
            let count = Arc::clone(&done);
            outer.add_task(Box::new(move || _ = count.fetch_add(1, Ordering::AcqRel)));
        }
        outer.quiesce();
        assert_eq!((done.load(Ordering::Acquire), done_inside.load(Ordering::Acquire)), (2, 1));
        assert_eq!((outer.queued(), inner.queued()), (Some(0), Some(0)));
    }

    #[test]
    fn a_panic_ends_one_wait_and_leaves_the_others_waiting() {
        let queue = WorkQueue::of_workers(&Pool::new(2));
        let ready = Arc::new(AtomicBool::new(false));
        let panics = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let wait = || queue.wait_until(&|| ready.load(Ordering::Acquire));
                    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)) {
                        Ok(()) => assert!(ready.load(Ordering::Acquire)),
                        Err(_) => _ = panics.fetch_add(1, Ordering::AcqRel),
                    }
                });
            }
            std::thread::sleep(Duration::from_millis(20));
            queue.add_task(Box::new(|| std::panic::panic_any(7i32)));
            std::thread::sleep(Duration::from_millis(20));
            ready.store(true, Ordering::Release);
            queue.wake();
        });
        assert_eq!(panics.load(Ordering::Acquire), 1);
    }

    #[test]
    fn another_thread_runs_the_tasks_that_are_handed_over() {
        let queue = WorkQueue::single_threaded();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (inner, log) = (queue.clone(), Arc::clone(&seen));
        queue.add_task(Box::new(move || {
            let hand_over = inner.hand_over();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    hand_over.take_over();
                    inner.wait_until(&|| log.lock().unwrap().len() == 2);
                });
            });
            log.lock().unwrap().push(2);
        }));
        for i in 0..2 {
            let log = Arc::clone(&seen);
            queue.add_task(Box::new(move || log.lock().unwrap().push(i)));
        }
        queue.quiesce();
        assert_eq!(*seen.lock().unwrap(), [0, 1, 2]);
    }

    #[test]
    fn loops_inside_tasks_and_a_pool_dropped_in_a_task() {
        let pool = Pool::new(3);
        let queue = WorkQueue::multi_threaded(&pool);
        let count = Arc::new(AtomicUsize::new(0));
        const TASKS: usize = if cfg!(miri) { 2 } else { 20 };
        for _ in 0..TASKS {
            let (p, c) = (pool.clone(), Arc::clone(&count));
            queue.add_task(Box::new(move || {
                p.parallel_for(10, 1, &|r| {
                    c.fetch_add(r.len(), Ordering::Relaxed);
                })
            }));
        }
        queue.quiesce();
        assert_eq!(count.load(Ordering::Relaxed), TASKS * 10);
        let p = pool.clone();
        queue.add_task(Box::new(move || {
            std::thread::sleep(Duration::from_millis(5));
            drop(p);
        }));
        drop(pool);
        drop(queue);
    }
}
