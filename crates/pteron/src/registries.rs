//! What programs may name, in one value that every front end takes.

#[cfg(feature = "compile")]
use crate::built_in::BACKENDS;
use crate::{Backend, BackendRegistry, KernelRegistry, LoadOptions};
#[cfg(feature = "compile")]
use pteron_compiler::Delegation;
#[cfg(feature = "compile")]
use pteron_exported::delegate::Recover;
use std::sync::Arc;

/// The operators and backends that a front end knows: those of the library, and those that an application adds. The
/// command (`pteron_cli::main_with`), the server and the browser's engine each take one.
///
/// ```
/// use pteron::Registries;
/// # use pteron::backend::{Backend, BackendError, BackendInitContext, CompileSpec, Delegate};
/// # struct Npu;
/// # impl Backend for Npu {
/// #     fn id(&self) -> &str { "Npu" }
/// #     fn init(&self, _: &BackendInitContext<'_>, _: pteron::FreeableBuffer, _: &[CompileSpec<'_>])
/// #         -> Result<Box<dyn Delegate>, BackendError> { Err(BackendError::new("no device")) }
/// # }
/// let registries = Registries::default().backend(Npu);
/// assert!(registries.backends().get("Npu").is_some());
/// let options = registries.load_options();
/// ```
#[derive(Clone)]
pub struct Registries {
    kernels: Arc<KernelRegistry>,
    backends: BackendRegistry,
    #[cfg(feature = "compile")]
    delegations: Vec<NamedDelegation>,
    #[cfg(feature = "compile")]
    recoverers: Vec<Arc<dyn Recover + Send + Sync>>,
}

/// A backend that was added as a target of compilation, with the name by which users choose it.
#[cfg(feature = "compile")]
#[derive(Clone)]
struct NamedDelegation {
    name: String,
    about: String,
    delegation: Delegation,
}

/// Registries with the operators and backends of the library.
impl Default for Registries {
    fn default() -> Self {
        let kernels = crate::all_kernels();
        Self {
            backends: crate::backends_with(&kernels),
            kernels,
            #[cfg(feature = "compile")]
            delegations: Vec::new(),
            #[cfg(feature = "compile")]
            recoverers: crate::built_in::recovering_backends(),
        }
    }
}

impl Registries {
    /// Replaces the operators' kernels. The library's backends keep computing with the library's kernels.
    #[must_use]
    pub fn with_kernels(mut self, kernels: impl Into<Arc<KernelRegistry>>) -> Self {
        self.kernels = kernels.into();
        self
    }

    /// Adds the run-time half of a backend, replacing any previous one with its id.
    #[must_use]
    pub fn backend(mut self, backend: impl Backend + 'static) -> Self {
        self.backends = self.backends.with(backend);
        self
    }

    /// Adds the ahead-of-time half of a backend under a name, replacing any previous one with that name.
    #[cfg(feature = "compile")]
    #[must_use]
    pub fn delegation(
        mut self,
        name: impl Into<String>,
        about: impl Into<String>,
        delegation: Delegation,
    ) -> Self {
        let (name, about) = (name.into(), about.into());
        self.delegations.retain(|known| known.name != name);
        self.delegations.push(NamedDelegation { name, about, delegation });
        self
    }

    /// Adds the inverse of a backend's ahead-of-time half, replacing any previous one with its id.
    #[cfg(feature = "compile")]
    #[must_use]
    pub fn recoverer(mut self, recoverer: Arc<dyn Recover + Send + Sync>) -> Self {
        self.recoverers.retain(|known| known.backend_id() != recoverer.backend_id());
        self.recoverers.push(recoverer);
        self
    }

    /// The kernels of all operators.
    pub fn kernels(&self) -> &Arc<KernelRegistry> {
        &self.kernels
    }

    /// The run-time halves of backends.
    pub fn backends(&self) -> &BackendRegistry {
        &self.backends
    }

    /// The names of the backends to compile for, with a text for help on each: those of the library, then those that
    /// were added.
    #[cfg(feature = "compile")]
    pub fn delegations(&self) -> Vec<(&str, &str)> {
        let is_added = |name: &str| self.delegations.iter().any(|known| known.name == name);
        let built_in = BACKENDS.iter().map(|built_in| (built_in.name, built_in.about));
        let added = self.delegations.iter().map(|known| (&*known.name, &*known.about));
        built_in.filter(|(name, _)| !is_added(name)).chain(added).collect()
    }

    /// The ahead-of-time half of the backend with this name. With a `target`, a backend that can also stores its weights
    /// packed for that instruction set. `None` if there is no such backend.
    #[cfg(feature = "compile")]
    pub fn delegation_to(&self, name: &str, target: Option<crate::Isa>) -> Option<Delegation> {
        if let Some(added) = self.delegations.iter().find(|known| known.name == name) {
            return Some(added.delegation.clone());
        }
        let built_in = BACKENDS.iter().find(|built_in| built_in.name == name)?;
        Some((built_in.delegation)(&self.kernels, target))
    }

    /// The recoverers, which convert payloads back to operators.
    #[cfg(feature = "compile")]
    pub fn recoverers(&self) -> &[Arc<dyn Recover + Send + Sync>] {
        &self.recoverers
    }

    /// Load options with the operators and backends of these registries, and one thread.
    pub fn load_options(&self) -> LoadOptions {
        LoadOptions::new(Arc::clone(&self.kernels)).backends(self.backends.clone())
    }
}

impl std::fmt::Debug for Registries {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Registries").field("backends", &self.backends).finish_non_exhaustive()
    }
}
