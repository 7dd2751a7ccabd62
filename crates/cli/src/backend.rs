//! The backends that `--backend` selects.

use crate::failure::{Failure, Result};
use clap::ValueEnum;
use pteron::Isa;
use pteron::compile::{Delegation, to_bef, to_xnnpack};
use std::sync::Arc;

/// A backend to which parts of a program are delegated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum BackendName {
    /// No backend: kernels compute everything
    None,
    /// Pteron's own backend: everything that kernels compute, fused ahead of time
    Bef,
    /// XNNPACK: float32 operators, and those quantized to int8 or with 4-bit weights. The reference runtime runs them with
    /// its XNNPACK backend, Pteron with its own implementation
    Xnnpack,
}

/// The machine for which packed weights are stored, in addition to the portable ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum TargetCpu {
    /// Store no packed weights: the file is the same for every machine
    #[default]
    None,
    /// Machines with the instruction set of this one
    Native,
}

impl TargetCpu {
    fn isa(self) -> Option<Isa> {
        (self == Self::Native).then(Isa::detect)
    }
}

/// The delegations to pass to the compiler, in order. `none` cannot be combined with other backends.
pub(crate) fn delegation(backends: &[BackendName], target: TargetCpu) -> Result<Vec<Delegation>> {
    if backends.len() > 1 && backends.contains(&BackendName::None) {
        return Err(Failure::Usage("--backend: `none` cannot be combined with other backends".to_owned()));
    }
    let delegation = backends.iter().filter_map(|backend| match backend {
        BackendName::None => None,
        BackendName::Bef => Some(to_bef(&Arc::new(pteron::kernel_registry()), target.isa())),
        BackendName::Xnnpack => Some(to_xnnpack()),
    });
    Ok(delegation.collect())
}
