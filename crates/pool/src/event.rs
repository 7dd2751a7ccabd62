use crate::sync::{AtomicU32, AtomicUsize, Condvar, Mutex, Ordering, fence, lock};

/// What sleeping threads wait on. A thread that wants to sleep calls [`Event::listen`], looks once
/// more for work, and then either [`Event::wait`]s or [`Event::cancel`]s; a thread that has made
/// work calls [`Event::notify_one`] or [`Event::notify_all`]. No wake-up is lost, and notifying costs
/// a fence when no thread sleeps.
#[derive(Debug)]
pub(crate) struct Event {
    generation: AtomicU32,
    listeners: AtomicUsize,
    lock: Mutex<()>,
    woken: Condvar,
}

impl Event {
    pub(crate) fn new() -> Self {
        Self {
            generation: AtomicU32::new(0),
            listeners: AtomicUsize::new(0),
            lock: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Announces that this thread is about to sleep.
    pub(crate) fn listen(&self) -> u32 {
        self.listeners.fetch_add(1, Ordering::SeqCst);
        let key = self.generation.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        key
    }

    /// Takes the announcement back.
    pub(crate) fn cancel(&self) {
        self.listeners.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps until somebody notifies after [`Event::listen`] gave `key`.
    pub(crate) fn wait(&self, key: u32) {
        let mut guard = lock(&self.lock);
        while self.generation.load(Ordering::SeqCst) == key {
            guard = self.woken.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        self.listeners.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes one sleeping thread at least, if any sleeps.
    pub(crate) fn notify_one(&self) {
        if self.advance() {
            self.woken.notify_one();
        }
    }

    /// Wakes every sleeping thread.
    pub(crate) fn notify_all(&self) {
        if self.advance() {
            self.woken.notify_all();
        }
    }

    fn advance(&self) -> bool {
        fence(Ordering::SeqCst);
        if self.listeners.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let guard = lock(&self.lock);
        self.generation.fetch_add(1, Ordering::SeqCst);
        drop(guard);
        true
    }
}
