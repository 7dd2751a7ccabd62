//! The backends of the library. A new one is a row of [`BACKENDS`], beside its crate.

#[cfg(feature = "compile")]
use crate::compile::{Delegation, delegate::Recover};
use crate::{BackendRegistry, KernelRegistry};
use std::sync::Arc;

/// A backend of the library, with all its halves.
pub(crate) struct BuiltIn {
    /// The name by which users choose it, in lower case.
    #[cfg(feature = "compile")]
    pub(crate) name: &'static str,
    /// What it is for, as help texts say it.
    #[cfg(feature = "compile")]
    pub(crate) about: &'static str,
    /// Registers the run-time half, which computes with these kernels.
    pub(crate) register: fn(BackendRegistry, &Arc<KernelRegistry>) -> BackendRegistry,
    /// The ahead-of-time half, which may also store weights packed for an instruction set.
    #[cfg(feature = "compile")]
    pub(crate) delegation: fn(&Arc<KernelRegistry>, Option<crate::Isa>) -> Delegation,
    /// The inverse of the ahead-of-time half, if there is one.
    #[cfg(feature = "compile")]
    pub(crate) recover: Option<fn() -> Arc<dyn Recover + Send + Sync>>,
}

/// The backends whose features are on.
pub(crate) const BACKENDS: &[BuiltIn] = &[
    #[cfg(feature = "bef-backend")]
    BuiltIn {
        #[cfg(feature = "compile")]
        name: "bef",
        #[cfg(feature = "compile")]
        about: "Pteron's own backend: everything that kernels compute, fused ahead of time",
        register: |backends, kernels| backends.with(crate::BefBackend::new(Arc::clone(kernels))),
        #[cfg(feature = "compile")]
        delegation: crate::compile::to_bef,
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
        register: |backends, kernels| backends.with(crate::XnnpackBackend::new(Arc::clone(kernels))),
        #[cfg(feature = "compile")]
        delegation: |_, _| crate::compile::to_xnnpack(),
        #[cfg(feature = "compile")]
        recover: Some(|| Arc::new(crate::compile::XnnpackRecover)),
    },
];
