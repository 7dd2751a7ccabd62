//! A backend for an accelerator of rows: `linear`, `relu`, `hardswish`, `add` and `mul` of float32 tensors.
//!
//! [`lower`] is the ahead-of-time half, [`run`] the run-time half; `payload` is the format between them.
//! [`registries`] puts both into the front ends.
#![forbid(unsafe_code)]

pub mod lower;
mod payload;
pub mod run;

use pteron::Registries;
use pteron::compile::Delegation;
use std::sync::Arc;

/// The id of the backend in programs.
pub const BACKEND_ID: &str = "Accelerator";

/// The ahead-of-time half, for [`pteron::compile::Options::delegation`].
pub fn delegation() -> Delegation {
    Delegation {
        partitioner: Arc::new(lower::AcceleratorPartitioner),
        backend: Arc::new(lower::AcceleratorPreprocess),
    }
}

/// The registries of the library, with this backend added; its ahead-of-time half is called `accelerator`.
pub fn registries() -> Registries {
    Registries::default()
        .backend(run::AcceleratorBackend)
        .delegation(
            "accelerator",
            "The accelerator of the example: linear layers of float32 rows",
            delegation(),
        )
        .recoverer(Arc::new(lower::AcceleratorRecover))
}
