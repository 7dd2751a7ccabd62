//! What REST and gRPC have in common.

use crate::datatype;
use crate::refusal::{Reason, Refusal, Result};
use pteron::ScalarType;

/// The platform that the metadata of every model states.
pub(super) const PLATFORM: &str = "pteron_pte";

/// The extensions of the inference protocol that the server supports.
pub(super) const EXTENSIONS: [&str; 6] = [
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
];

/// Parses the protocol's name of a data type.
pub(super) fn parse_dtype(name: &str) -> Result<ScalarType> {
    datatype::parse(name).ok_or_else(|| {
        let name: String = name.chars().take(32).collect();
        Refusal::invalid(format!("`{name}` is no datatype of a tensor"))
    })
}

/// The refusal of a request that brings files or a configuration of its own for a model to load.
pub(super) fn load_parameters_error() -> Refusal {
    Refusal::new(
        Reason::Unsupported,
        "models are loaded from the server's folder: load parameters are not supported",
    )
}
