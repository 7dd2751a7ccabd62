use crate::sync::{AtomicU32, AtomicUsize, Condvar, Mutex, Ordering, fence, lock, wait};

/// An event counter that sleeping threads wait on. A thread that wants to sleep calls [`Event::listen`], checks once
/// more for work, and then calls either [`Event::wait`] or [`Event::cancel`]; a thread that has added
/// work calls [`Event::notify_one`] or [`Event::notify_all`]. No wake-up is lost, and notifying costs
/// only a fence and a load when no thread sleeps.
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

    /// Announces that this thread is about to sleep. Returns the key for [`Event::wait`].
    pub(crate) fn listen(&self) -> u32 {
        self.listeners.fetch_add(1, Ordering::SeqCst);
        let key = self.generation.load(Ordering::SeqCst);
        fence(Ordering::SeqCst);
        key
    }

    /// Withdraws this thread's announcement that it is about to sleep.
    pub(crate) fn cancel(&self) {
        self.listeners.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps until a notification that comes after the [`Event::listen`] that returned `key`.
    pub(crate) fn wait(&self, key: u32) {
        let mut guard = lock(&self.lock);
        while self.generation.load(Ordering::SeqCst) == key {
            guard = wait(&self.woken, guard);
        }
        self.listeners.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes at least one sleeping thread, if any.
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
