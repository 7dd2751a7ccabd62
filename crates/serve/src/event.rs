use crate::refusal::Refusal;
use std::fmt;
use std::sync::Arc;

/// A change of the models, or a failed attempt. Each is reported once: not again by later looks at files that are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A version of a model was loaded, or replaced by its new files.
    Loaded {
        model: String,
        version: u64,
        /// How many times this model has been loaded, this time included.
        generation: u64,
        /// Why requests are not batched although the options ask for it.
        unbatched: Option<String>,
    },
    /// A model could not be loaded.
    Failed {
        model: String,
        /// The version; `None` if the model as a whole is invalid.
        version: Option<u64>,
        /// The reason for the failure.
        refusal: Refusal,
        /// Whether the files that were loaded earlier are still served.
        is_kept: bool,
    },
    /// The files of a model or version are gone, and it is no longer served.
    Removed { model: String, version: u64 },
    /// A model was unloaded on request.
    Unloaded { model: String },
    /// The folder could not be read. Loaded models are still served.
    FolderFailed(Refusal),
    /// The folder can be read again.
    FolderReadable,
}

/// A function that is called for every [`Event`].
#[derive(Clone)]
pub struct Events(Arc<dyn Fn(&Event) + Send + Sync>);

impl Events {
    /// Calls a function, which must not call the service.
    pub fn new(call: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        Self(Arc::new(call))
    }

    pub(crate) fn report(&self, event: &Event) {
        (self.0)(event);
    }
}

impl Default for Events {
    fn default() -> Self {
        Self::new(|_| ())
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Events")
    }
}
