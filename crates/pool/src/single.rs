use crate::Pool;
use crate::event::Event;
use crate::queue::Task;
use crate::sync::{AtomicUsize, Mutex, Ordering, lock};
use std::cell::RefCell;
use std::collections::VecDeque;

/// A first-in, first-out task queue, run by the thread that waits on it.
///
/// A thread that runs tasks moves the pending ones into its thread-local [`LocalTasks`] and adds new ones there without
/// locking; tasks that other threads add meanwhile go to `tasks`.
pub(crate) struct Single {
    tasks: Mutex<VecDeque<Task>>,
    /// The length of `tasks`, which can be read without its lock.
    queued: AtomicUsize,
    event: Event,
    pool: Pool,
}

/// The pending tasks that a thread has taken from a queue.
struct LocalTasks {
    /// The address of the [`Single`] that the tasks belong to.
    owner: usize,
    tasks: VecDeque<Task>,
}

thread_local! {
    /// The queues whose tasks this thread runs, each once: a task of one may wait for another one, and a task of that for
    /// the first.
    static LOCAL_TASKS: RefCell<Vec<LocalTasks>> = const { RefCell::new(Vec::new()) };
}

/// Calls `f` with the tasks that this thread has taken from the queue at an address; `None` if it runs none of its tasks.
fn with_local<R>(owner: usize, f: impl FnOnce(&mut VecDeque<Task>) -> R) -> Option<R> {
    LOCAL_TASKS.with_borrow_mut(|all| {
        all.iter_mut().rev().find(|local| local.owner == owner).map(|local| f(&mut local.tasks))
    })
}

/// Guard: while it lives, this thread runs the queue's tasks. Dropping the outermost one, also by unwinding, returns
/// the remaining tasks to the queue.
struct RunGuard<'a> {
    queue: &'a Single,
    is_outermost: bool,
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        // Guards are dropped in the reverse order of their creation: the last entry is that of this one.
        let local = if self.is_outermost { LOCAL_TASKS.with_borrow_mut(Vec::pop) } else { None };
        if let Some(local) = local {
            self.queue.return_tasks(local.tasks);
        }
    }
}

impl Single {
    pub(crate) fn new() -> Self {
        Self {
            tasks: Mutex::default(),
            queued: AtomicUsize::new(0),
            event: Event::new(),
            pool: Pool::serial(),
        }
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// A pool without worker threads.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// The number of pending tasks, except those held by other threads.
    pub(crate) fn len(&self) -> usize {
        let local = with_local(self.address(), |tasks| tasks.len());
        local.unwrap_or(0) + self.queued.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, tasks: impl IntoIterator<Item = Task>) {
        let mut tasks = Some(tasks.into_iter());
        with_local(self.address(), |local| local.extend(tasks.take().into_iter().flatten()));
        if let Some(tasks) = tasks {
            let mut queue = lock(&self.tasks);
            queue.extend(tasks);
            self.queued.store(queue.len(), Ordering::Relaxed);
            drop(queue);
            self.event.notify_all();
        }
    }

    pub(crate) fn wake(&self) {
        self.event.notify_all();
    }

    /// Returns this thread's pending tasks to the queue, so that another thread can run them.
    pub(crate) fn release(&self) {
        self.return_tasks(with_local(self.address(), std::mem::take).unwrap_or_default());
    }

    /// Inserts `tasks`, which a thread had taken from the queue, at its front again.
    fn return_tasks(&self, mut tasks: VecDeque<Task>) {
        if tasks.is_empty() {
            return;
        }
        let mut queue = lock(&self.tasks);
        tasks.append(&mut queue);
        *queue = tasks;
        self.queued.store(queue.len(), Ordering::Relaxed);
        drop(queue);
        self.event.notify_all();
    }

    /// Makes this thread run the queue's tasks until the guard is dropped; changes nothing if it runs them already.
    fn begin_tasks(&self) -> RunGuard<'_> {
        let owner = self.address();
        let is_outermost = with_local(owner, |_| ()).is_none();
        if is_outermost {
            LOCAL_TASKS.with_borrow_mut(|all| all.push(LocalTasks { owner, tasks: VecDeque::new() }));
        }
        RunGuard { queue: self, is_outermost }
    }

    /// The next task for this thread, which must have called [`Self::begin_tasks`].
    fn next_task(&self) -> Option<Task> {
        let next = with_local(self.address(), |local| {
            if self.queued.load(Ordering::Relaxed) > 0 {
                let mut queue = lock(&self.tasks);
                local.append(&mut queue);
                self.queued.store(0, Ordering::Relaxed);
            }
            local.pop_front()
        });
        next.flatten()
    }

    /// Runs tasks on this thread until `done` returns true.
    pub(crate) fn wait_until(&self, done: &dyn Fn() -> bool) {
        let _turn = self.begin_tasks();
        while !done() {
            if let Some(task) = self.next_task() {
                task.run();
                continue;
            }
            let key = self.event.listen();
            if done() || !lock(&self.tasks).is_empty() {
                self.event.cancel();
            } else {
                self.event.wait(key);
            }
        }
    }

    /// Runs tasks until none is left.
    pub(crate) fn quiesce(&self) {
        let _turn = self.begin_tasks();
        while let Some(task) = self.next_task() {
            task.run();
        }
    }
}
