use crate::sync::lock;
use clock::Instant;
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

type Task = Box<dyn FnOnce() + Send>;

/// A thread that runs tasks after a delay.
pub(crate) struct Timers {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    entries: BinaryHeap<Entry>,
    added: u64,
    stop: bool,
}

struct Entry {
    due: Instant,
    number: u64,
    task: Task,
}

impl Ord for Entry {
    /// The entry that is due first is the greatest, so that the heap pops it first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.due, other.number).cmp(&(self.due, self.number))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Entry {}

impl Timers {
    pub(crate) fn start() -> Self {
        let shared = Arc::new(Shared { state: Mutex::default(), changed: Condvar::new() });
        let inner = Arc::clone(&shared);
        let thread = thread::Builder::new().name("timers".into()).spawn(move || inner.work()).ok();
        Self { shared, thread }
    }

    pub(crate) fn add(&self, delay: Duration, task: Task) {
        if self.thread.is_none() {
            clock::sleep(delay);
            return task();
        }
        let mut state = lock(&self.shared.state);
        state.added += 1;
        let number = state.added;
        state.entries.push(Entry { due: Instant::now() + delay, number, task });
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn work(&self) {
        let mut state = lock(&self.state);
        while !state.stop {
            let now = Instant::now();
            match state.entries.peek().map(|e| e.due.saturating_duration_since(now)) {
                None => state = self.changed.wait(state).unwrap_or_else(|e| e.into_inner()),
                Some(Duration::ZERO) => {
                    let entry = state.entries.pop();
                    drop(state);
                    if let Some(entry) = entry {
                        (entry.task)();
                    }
                    state = lock(&self.state);
                }
                Some(left) => {
                    state = self.changed.wait_timeout(state, left).unwrap_or_else(|e| e.into_inner()).0;
                }
            }
        }
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        let mut state = lock(&self.shared.state);
        state.stop = true;
        let left = std::mem::take(&mut state.entries);
        drop(state);
        drop(left);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take().filter(|t| t.thread().id() != thread::current().id()) {
            let _ = thread.join();
        }
    }
}
