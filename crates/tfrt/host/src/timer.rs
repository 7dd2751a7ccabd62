//! A thread that runs tasks after a delay. Tasks can be removed until they begin.

use crate::sync::{Condvar, Mutex, MutexGuard, catch_panic, lock};
use pteron_clock::Instant;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::thread::{self, JoinHandle};
use std::time::Duration;

type Task = Box<dyn FnOnce() + Send>;

/// When a task is due, and its number, which orders tasks that are due at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    due: Due,
    number: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    At(Instant),
    /// Later than any instant that the clock can express.
    Never,
}

/// The longest time that the timer thread sleeps before it looks at the clock again.
#[cfg(not(loom))]
const LONGEST_SLEEP: Duration = Duration::from_secs(1 << 20);

/// A handle of a task that was added to a host's timers. Dropping the handle does not remove the task.
#[derive(Clone)]
pub struct Timer(Option<(Weak<Shared>, Key)>);

impl Timer {
    /// Removes the task from the timers and drops it. Returns false if it has begun already, or was removed before.
    pub fn remove(&self) -> bool {
        let removed = self.0.as_ref().and_then(|(shared, key)| Some(shared.upgrade()?.remove(key)));
        removed == Some(true)
    }
}

impl fmt::Debug for Timer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Timer")
    }
}

/// The timer thread, and the state that it shares with threads that add tasks.
pub(crate) struct Timers {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tasks: BTreeMap<Key, Task>,
    added: u64,
    stop: bool,
}

impl Timers {
    pub(crate) fn start() -> Self {
        let shared = Arc::new(Shared::new());
        let inner = Arc::clone(&shared);
        let thread =
            thread::Builder::new().name("timers".into()).spawn(move || inner.run_until_stopped()).ok();
        Self { shared, thread }
    }

    /// Whether a thread runs the tasks; without one, [`Self::add`] sleeps.
    pub(crate) fn has_thread(&self) -> bool {
        self.thread.is_some()
    }

    /// Runs `task` after `delay`. On targets without threads, sleeps and runs it on the calling thread.
    pub(crate) fn add(&self, delay: Duration, task: Task) -> Timer {
        let due = Instant::now().checked_add(delay).map_or(Due::Never, Due::At);
        if !self.has_thread() && due != Due::Never {
            pteron_clock::sleep(delay);
            // As on the thread, a panic ends the task only.
            let _ = catch_panic(task);
            return Timer(None);
        }
        Timer(Some((Arc::downgrade(&self.shared), self.shared.add(due, task))))
    }
}

impl Shared {
    fn new() -> Self {
        Self { state: Mutex::new(State::default()), changed: Condvar::new() }
    }

    fn add(&self, due: Due, task: Task) -> Key {
        let mut state = lock(&self.state);
        state.added += 1;
        let key = Key { due, number: state.added };
        state.tasks.insert(key, task);
        drop(state);
        self.changed.notify_one();
        key
    }

    /// Removes the task with this key and drops it. Returns false if there is no such task.
    fn remove(&self, key: &Key) -> bool {
        let task = lock(&self.state).tasks.remove(key);
        task.is_some()
    }

    fn run_until_stopped(&self) {
        let mut state = lock(&self.state);
        while !state.stop {
            let now = Instant::now();
            let (more, left) = self.run_due(state, now);
            state = more;
            if left == Some(Duration::ZERO) || state.stop {
                continue;
            }
            state = self.sleep(state, left);
        }
    }

    /// Runs the first task if it is due; it runs unlocked, and its panic ends the task only. Returns how long to sleep:
    /// `None` if no task will be due.
    fn run_due<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        now: Instant,
    ) -> (MutexGuard<'a, State>, Option<Duration>) {
        let left = match state.tasks.first_key_value() {
            Some((Key { due: Due::At(due), .. }, _)) => due.saturating_duration_since(now),
            _ => return (state, None),
        };
        if left > Duration::ZERO {
            return (state, Some(left));
        }
        let task = state.tasks.pop_first();
        drop(state);
        if let Some((_, task)) = task {
            let _ = catch_panic(task);
        }
        (lock(&self.state), Some(Duration::ZERO))
    }

    #[cfg(not(loom))]
    fn sleep<'a>(&self, state: MutexGuard<'a, State>, left: Option<Duration>) -> MutexGuard<'a, State> {
        match left {
            None => self.changed.wait(state).unwrap_or_else(|e| e.into_inner()),
            Some(left) => {
                let left = left.min(LONGEST_SLEEP);
                self.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0
            }
        }
    }

    /// Sleeps until something changes: model checking (loom) has no clock.
    #[cfg(loom)]
    fn sleep<'a>(&self, state: MutexGuard<'a, State>, _: Option<Duration>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(|e| e.into_inner())
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.stop = true;
        let left = std::mem::take(&mut state.tasks);
        drop(state);
        drop(left);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take().filter(|t| t.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}

/// Timers without a thread, for model checking (loom), which has no clock: every task is due at once.
#[cfg(all(test, loom))]
pub(crate) struct ModelTimers(Shared);

#[cfg(all(test, loom))]
impl ModelTimers {
    pub(crate) fn new() -> Self {
        Self(Shared::new())
    }

    pub(crate) fn add_due(&self, task: impl FnOnce() + Send + 'static) -> Key {
        self.0.add(Due::At(Instant::now()), Box::new(task))
    }

    pub(crate) fn remove(&self, key: Key) -> bool {
        self.0.remove(&key)
    }

    pub(crate) fn run_due(&self) {
        drop(self.0.run_due(lock(&self.0.state), Instant::now()));
    }

    pub(crate) fn run_until_stopped(&self) {
        self.0.run_until_stopped();
    }

    pub(crate) fn stop(&self) {
        lock(&self.0.state).stop = true;
        self.0.changed.notify_all();
    }
}
