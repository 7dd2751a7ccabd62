//! The backends of the library. A new one is a row of [`BACKENDS`], beside its crate.

#[cfg(feature = "compile")]
use pteron_compiler::Delegation;
#[cfg(feature = "compile")]
use pteron_exported::delegate::Recover;
use pteron_operator::KernelRegistry;
use pteron_runtime::BackendRegistry;
use std::sync::Arc;

/// A backend of the library: its run-time half, its ahead-of-time half, and the inverse of the latter.
pub(crate) struct BuiltIn {
    /// The name by which users choose the backend, in lower case.
    #[cfg(feature = "compile")]
    pub(crate) name: &'static str,
    /// The backend's description in help texts.
    #[cfg(feature = "compile")]
    pub(crate) about: &'static str,
    /// Adds the run-time half of the backend, which computes with the given kernels, to a registry.
    pub(crate) register: fn(BackendRegistry, &Arc<KernelRegistry>) -> BackendRegistry,
    /// The ahead-of-time half; with an instruction set, it may store weights packed for that instruction set.
    #[cfg(feature = "compile")]
    pub(crate) delegation: fn(&Arc<KernelRegistry>, Option<pteron_operator::Isa>) -> Delegation,
    /// Creates the inverse of the ahead-of-time half, if the backend has one.
    #[cfg(feature = "compile")]
    pub(crate) recover: Option<fn() -> Arc<dyn Recover + Send + Sync>>,
}

/// The backends whose Cargo features are enabled.
pub(crate) const BACKENDS: &[BuiltIn] = &[
    #[cfg(feature = "bef-backend")]
    BuiltIn {
        #[cfg(feature = "compile")]
        name: "bef",
        #[cfg(feature = "compile")]
        about: "Pteron's own backend: everything that kernels compute, fused ahead of time",
        register: |backends, kernels| backends.with(pteron_backend_bef::BefBackend::new(Arc::clone(kernels))),
        #[cfg(feature = "compile")]
        delegation: to_bef,
        #[cfg(feature = "compile")]
        recover: None,
    },
    #[cfg(feature = "xnnpack")]
    BuiltIn {
        #[cfg(feature = "compile")]
        name: "xnnpack",
        #[cfg(feature = "compile")]
        about: "XNNPACK: float32 operators, and those quantized to int8 or with 4-bit weights. The reference runtime runs them \
                with its XNNPACK backend, Pteron with its own implementation",
        register: |backends, kernels| {
            backends.with(pteron_backend_xnnpack::XnnpackBackend::new(Arc::clone(kernels)))
        },
        #[cfg(feature = "compile")]
        delegation: |_, _| to_xnnpack(),
        #[cfg(feature = "compile")]
        recover: Some(|| Arc::new(pteron_backend_xnnpack::XnnpackRecover)),
    },
];

/// The backends of this crate whose payloads can be converted back to operators.
#[cfg(feature = "compile")]
pub fn recovering_backends() -> Vec<Arc<dyn Recover + Send + Sync>> {
    BACKENDS.iter().filter_map(|built_in| built_in.recover).map(|recover| recover()).collect()
}

/// Delegates everything that XNNPACK supports, for [`Options::delegation`](pteron_compiler::Options::delegation).
#[cfg(all(feature = "compile", feature = "xnnpack"))]
pub fn to_xnnpack() -> Delegation {
    Delegation {
        partitioner: Arc::new(pteron_backend_xnnpack::XnnpackPartitioner),
        backend: Arc::new(pteron_backend_xnnpack::XnnpackPreprocess),
    }
}

/// Delegates everything that the kernels of a registry compute to Pteron's own backend, fused ahead of time, for
/// [`Options::delegation`](pteron_compiler::Options::delegation). With a `target`, weights are stored packed for its instruction set, too.
#[cfg(all(feature = "bef-backend", feature = "compile"))]
pub fn to_bef(kernels: &Arc<KernelRegistry>, target: Option<pteron_operator::Isa>) -> Delegation {
    let backend = pteron_backend_bef::BefPreprocess::new(Arc::clone(kernels));
    Delegation {
        partitioner: Arc::new(pteron_backend_bef::BefPartitioner::new(kernels)),
        backend: Arc::new(match target {
            Some(isa) => backend.packed_for(isa),
            None => backend,
        }),
    }
}
