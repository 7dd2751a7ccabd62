//! What REST and gRPC have in common.

use crate::datatype;
use crate::refusal::{Reason, Refusal, Result};
use pteron::ScalarType;

/// The platform in the metadata of models.
pub(super) const PLATFORM: &str = "pteron_pte";

/// The supported extensions of the protocol.
pub(super) const EXTENSIONS: [&str; 5] =
    ["binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics"];

/// Parses the protocol's name of a type.
pub(super) fn parse_dtype(name: &str) -> Result<ScalarType> {
    datatype::parse(name).ok_or_else(|| {
        let name: String = name.chars().take(32).collect();
        Refusal::invalid(format!("`{name}` is no datatype of a tensor; programs have no strings"))
    })
}

/// The refusal of a request to load a model with its own files or configuration.
pub(super) fn load_parameters_error() -> Refusal {
    Refusal::new(
        Reason::Unsupported,
        "models are loaded from the server's folder: load parameters are not supported",
    )
}
