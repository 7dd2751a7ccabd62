use std::fmt;
use std::sync::Arc;

/// Reports the progress of long operations. Clones have the same listener, the default has none.
#[derive(Clone, Default)]
pub struct Progress(Option<Arc<dyn Listener>>);

/// Receives the progress of long operations.
pub trait Listener: Send + Sync {
    /// A phase such as `writing` begins, which will process about `bytes` bytes.
    fn begin(&self, what: &'static str, bytes: u64);
    /// The current phase has processed `bytes` more bytes.
    fn advance(&self, bytes: u64);
}

impl Progress {
    /// A progress that reports to this listener.
    pub fn new(listener: impl Listener + 'static) -> Self {
        Self(Some(Arc::new(listener)))
    }

    /// Reports that a phase begins: see [`Listener::begin`].
    pub fn begin(&self, what: &'static str, bytes: u64) {
        if let Some(listener) = &self.0 {
            listener.begin(what, bytes);
        }
    }

    /// Reports processed bytes: see [`Listener::advance`].
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
