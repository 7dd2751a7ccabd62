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
#[derive(Default)]
struct LocalTasks {
    /// The address of the [`Single`] that the tasks belong to; zero if this thread runs no tasks.
    owner: usize,
    tasks: VecDeque<Task>,
}

thread_local! {
    static LOCAL_TASKS: RefCell<LocalTasks> = const { RefCell::new(LocalTasks { owner: 0, tasks: VecDeque::new() }) };
}

/// Guard: while it lives, this thread runs the queue's tasks. Dropping the outermost one, also by unwinding, returns
/// the remaining tasks to the queue.
struct RunGuard<'a> {
    queue: &'a Single,
    before: Option<LocalTasks>,
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        if let Some(before) = self.before.take() {
            let local = LOCAL_TASKS.replace(before);
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
        let local = LOCAL_TASKS.with_borrow(|l| if l.owner == self.address() { l.tasks.len() } else { 0 });
        local + self.queued.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, tasks: impl IntoIterator<Item = Task>) {
        let tasks = tasks.into_iter();
        LOCAL_TASKS.with_borrow_mut(|local| {
            if local.owner == self.address() {
                local.tasks.extend(tasks);
            } else {
                let mut queue = lock(&self.tasks);
                queue.extend(tasks);
                self.queued.store(queue.len(), Ordering::Relaxed);
                drop(queue);
                self.event.notify_all();
            }
        });
    }

    pub(crate) fn wake(&self) {
        self.event.notify_all();
    }

    /// Returns this thread's pending tasks to the queue, so that another thread can run them.
    pub(crate) fn release(&self) {
        let owner = self.address();
        let tasks = LOCAL_TASKS.with_borrow_mut(|local| match local.owner == owner {
            true => std::mem::take(&mut local.tasks),
            false => VecDeque::new(),
        });
        self.return_tasks(tasks);
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
        let is_new = LOCAL_TASKS.with_borrow(|local| local.owner != owner);
        let before = is_new.then(|| LOCAL_TASKS.replace(LocalTasks { owner, tasks: VecDeque::new() }));
        RunGuard { queue: self, before }
    }

    /// The next task for this thread, which must have called [`Self::begin_tasks`].
    fn next_task(&self) -> Option<Task> {
        LOCAL_TASKS.with_borrow_mut(|local| {
            if self.queued.load(Ordering::Relaxed) > 0 {
                let mut queue = lock(&self.tasks);
                local.tasks.append(&mut queue);
                self.queued.store(0, Ordering::Relaxed);
            }
            local.tasks.pop_front()
        })
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
