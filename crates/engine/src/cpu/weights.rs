//! Constant weights.

use crate::graph::Constant;
use pteron_operator::{Error, Result};
use pteron_tensor::{TensorMeta, TensorView};

/// Constant weights as a tensor with this meta.
///
/// # Errors
/// The bytes cannot be loaded.
pub(super) fn view_of<'a>(weights: &'a Constant, meta: &'a TensorMeta) -> Result<TensorView<'a>> {
    weights.view(meta).ok_or_else(|| unreadable_weights(Some(weights)))
}

/// The error for weights whose bytes cannot be loaded, or that are computed at run time.
pub(super) fn unreadable_weights(constant: Option<&Constant>) -> Error {
    let problem = constant.and_then(Constant::problem);
    let unknown = || "weights are not constant when the graph is lowered".to_owned();
    Error::invalid(problem.unwrap_or_else(unknown))
}
