//! The inverse of lowering: converts payloads back to operators.

use super::{CompileSpec, DelegationError};
use crate::{ConstantTensor, ExportedProgram, Ranges, TensorSpec};

/// Converts a backend's payloads back to operators, for programs whose source is not available.
pub trait Recover {
    /// The id by which programs name the backend.
    fn backend_id(&self) -> &str;

    /// How many of a call's arguments are inputs of the payload; the others are outputs.
    ///
    /// # Errors
    /// The payload is malformed.
    fn num_inputs(&self, processed: &[u8]) -> Result<usize, DelegationError>;

    /// Converts a call of a payload to a program whose inputs are all
    /// [`InputKind::User`](crate::InputKind::User), in the order in which the call passes them, and whose
    /// outputs are values, in the order in which the call receives them.
    ///
    /// # Errors
    /// The payload is malformed, or computes something that no operators express.
    fn recover(&self, call: &LoweredCall<'_>) -> Result<ExportedProgram, DelegationError>;
}

/// A call of a payload in a program.
pub struct LoweredCall<'a> {
    /// The payload.
    pub processed: &'a [u8],
    /// The settings with which the payload was compiled.
    pub compile_specs: &'a [CompileSpec],
    /// The specs of the call's inputs.
    pub inputs: &'a [TensorSpec],
    /// The specs of the call's outputs. Dynamic sizes are upper bounds, or symbols with bounds.
    pub outputs: &'a [TensorSpec],
    /// The bounds of the symbols in sizes.
    pub ranges: &'a Ranges,
    /// Looks up the program's named data by key.
    pub named_data: &'a (dyn Fn(&str) -> Option<ConstantTensor> + Send + Sync),
}
