use crate::limits::MAX_BLOCKING_THREADS;
use crate::queue::Task;
use crate::sync::{Condvar, Mutex, lock};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

/// Threads for tasks that may block. If a task finds no idle thread, a new one is started, up to a limit.
pub(crate) struct Blocking(Arc<Inner>);

struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Task>,
    idle: usize,
    stop: bool,
    handles: Vec<JoinHandle<()>>,
}

impl Blocking {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Inner { state: Mutex::default(), changed: Condvar::new() }))
    }

    /// Gives a task to an idle or a new thread; if there is none, queues it if `allow_queuing` is set and a thread
    /// exists. Returns the task as an error otherwise.
    pub(crate) fn add(&self, task: Task, allow_queuing: bool) -> Result<(), Task> {
        let mut state = lock(&self.0.state);
        let free = state.idle > state.tasks.len();
        if !free && state.handles.len() < MAX_BLOCKING_THREADS {
            let inner = Arc::clone(&self.0);
            if let Ok(handle) =
                thread::Builder::new().name("blocking".into()).spawn(move || inner.run_tasks())
            {
                state.handles.push(handle);
                state.tasks.push_back(task);
                return Ok(());
            }
        }
        if free || (allow_queuing && !state.handles.is_empty()) {
            state.tasks.push_back(task);
            self.0.changed.notify_one();
            return Ok(());
        }
        Err(task)
    }

    /// Stops and joins the threads; tasks that have not started are dropped.
    pub(crate) fn stop(&self) {
        let mut state = lock(&self.0.state);
        state.stop = true;
        let handles = std::mem::take(&mut state.handles);
        let tasks = std::mem::take(&mut state.tasks);
        drop(state);
        drop(tasks);
        self.0.changed.notify_all();
        let here = thread::current().id();
        for handle in handles.into_iter().filter(|h| h.thread().id() != here) {
            // Tasks catch their own panics.
            let _ = handle.join();
        }
    }
}

impl Inner {
    fn run_tasks(&self) {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return;
            }
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                task.run();
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            state = self.changed.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
            state.idle -= 1;
        }
    }
}
