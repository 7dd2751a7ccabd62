//! Backends that `--backend` names.

use crate::failure::{Failure, Result};
use clap::ValueEnum;
use pteron::Isa;
use pteron::compile::{Delegation, to_bef, to_xnnpack};
use std::sync::Arc;

/// A backend that takes parts of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// No backend: kernels compute everything
    None,
    /// Pteron's own: everything that kernels compute, fused ahead of time
    Bef,
    /// XNNPACK, float32 only: on the reference runtime its own, here Pteron's
    Xnnpack,
}

/// For which machine packed weights are stored beside those that every machine reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum TargetCpu {
    /// For none: the same file for every machine
    #[default]
    None,
    /// For machines like this one
    Native,
}

impl TargetCpu {
    fn isa(self) -> Option<Isa> {
        (self == Self::Native).then(Isa::detect)
    }
}

/// What the compiler is to ask, in order; `none` stands alone.
pub(crate) fn delegation(backends: &[BackendName], target: TargetCpu) -> Result<Vec<Delegation>> {
    if backends.len() > 1 && backends.contains(&BackendName::None) {
        return Err(Failure::Usage("--backend: `none` leaves no place for other backends".to_owned()));
    }
    let delegation = backends.iter().filter_map(|backend| match backend {
        BackendName::None => None,
        BackendName::Bef => Some(to_bef(&Arc::new(pteron::kernel_registry()), target.isa())),
        BackendName::Xnnpack => Some(to_xnnpack()),
    });
    Ok(delegation.collect())
}
