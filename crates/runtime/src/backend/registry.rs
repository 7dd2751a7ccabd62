use super::Backend;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

/// Backends by id. A registry is a plain value: there is no global one.
#[derive(Clone, Default)]
pub struct BackendRegistry {
    backends: BTreeMap<String, Arc<dyn Backend>>,
}

/// A backend was registered under an id that is already in use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a backend `{id}` is registered already")]
pub struct DuplicateBackend {
    /// The backend's id.
    pub id: String,
}

impl BackendRegistry {
    /// A registry without backends.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a backend under its id.
    pub fn register(&mut self, backend: impl Backend + 'static) -> Result<(), DuplicateBackend> {
        let id = backend.id().to_owned();
        if self.backends.contains_key(&id) {
            return Err(DuplicateBackend { id });
        }
        self.backends.insert(id, Arc::new(backend));
        Ok(())
    }

    /// Adds a backend under its id, replacing any previous one.
    #[must_use]
    pub fn with(mut self, backend: impl Backend + 'static) -> Self {
        self.backends.insert(backend.id().to_owned(), Arc::new(backend));
        self
    }

    /// The backend with this id; `None` if there is none.
    pub fn get(&self, id: &str) -> Option<&Arc<dyn Backend>> {
        self.backends.get(id)
    }

    /// Keeps only the backends for whose id `keep` returns `true`.
    pub fn retain(&mut self, mut keep: impl FnMut(&str) -> bool) {
        self.backends.retain(|id, _| keep(id));
    }

    /// The ids, sorted.
    pub fn ids(&self) -> impl Iterator<Item = &str> {
        self.backends.keys().map(String::as_str)
    }
}

impl fmt::Debug for BackendRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.ids()).finish()
    }
}
