use std::fmt;
use std::sync::Arc;

/// Reports the progress of long operations. Clones report to the same listener; the default reports to none.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Listener>>);

/// Receives the progress of long operations.
pub trait Listener: Send + Sync {
    /// A phase of the work begins, such as `writing`, that will process about `bytes` bytes.
    fn begin(&self, what: &'static str, bytes: u64);
    /// Another `bytes` bytes of the phase are done.
    fn advance(&self, bytes: u64);
}

impl Progress {
    /// Reports to this listener.
    pub fn new(listener: impl Listener + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    /// See [`Listener::begin`].
    pub fn begin(&self, what: &'static str, bytes: u64) {
        if let Some(listener) = &self.0 {
            listener.begin(what, bytes);
        }
    }

    /// See [`Listener::advance`].
    pub fn advance(&self, bytes: u64) {
        if let Some(listener) = &self.0 {
            listener.advance(bytes);
        }
    }
}

impl fmt::Debug for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "Progress(told)" } else { "Progress(silent)" })
    }
}
