use crate::refusal::Refusal;
use std::fmt;
use std::sync::Arc;

/// A change of the models, or a failure to make one. A failure is reported again only when files or the error change,
/// or by [`Service::reload`](crate::Service::reload).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A version of a model was loaded, perhaps in place of an earlier load of the version.
    Loaded {
        model: String,
        version: u64,
        /// The number of the new generation, which is higher than those of all earlier loads by this server.
        generation: u64,
        /// Why requests are not batched, if the options ask for batches.
        unbatched: Option<String>,
    },
    /// A model could not be loaded.
    Failed {
        model: String,
        /// The version; `None` if the model as a whole is invalid.
        version: Option<u64>,
        /// The reason for the failure.
        refusal: Refusal,
        /// Whether an earlier load of the model or version is still served.
        is_kept: bool,
    },
    /// The files of a version are gone, and the version is no longer served.
    Removed { model: String, version: u64 },
    /// A version of a model was let go; its next request loads it again.
    Released { model: String, version: u64, why: Release },
    /// All versions of a model were unloaded on request.
    Unloaded { model: String },
    /// The folder of models could not be read. Loaded models are still served.
    FolderFailed(Refusal),
    /// The folder of models can be read again, after a failure.
    FolderReadable,
}

/// Why a model that is loaded on demand was let go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// It had no requests for long.
    Idle,
    /// Another model needed its memory.
    Memory,
}

/// A function that is called for every [`Event`].
#[derive(Clone)]
pub struct Events(Arc<dyn Fn(&Event) + Send + Sync>);

impl Events {
    /// Passes every event to `call`, which must not call the service.
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
