//! The way back: from payloads to the operators that they compute.

use super::{CompileSpec, DelegationError};
use crate::exported::{ConstantTensor, ExportedProgram, Ranges, TensorSpec};

/// The ahead-of-time half of a backend, backwards: for programs whose source is not at hand.
pub trait Recover {
    /// The id by which programs name the backend.
    fn backend_id(&self) -> &str;

    /// How many of a call's arguments a payload is given; the others it gives.
    ///
    /// # Errors
    /// The payload is malformed.
    fn num_inputs(&self, processed: &[u8]) -> Result<usize, DelegationError>;

    /// What a call of a payload computes: a program whose inputs are all
    /// [`InputKind::User`](crate::exported::InputKind::User), in the order in which the call gives them, and whose
    /// outputs are values, in the order in which the call takes them.
    ///
    /// # Errors
    /// The payload is malformed, or computes something for which there are no operators.
    fn recover(&self, call: &LoweredCall<'_>) -> Result<ExportedProgram, DelegationError>;
}

/// A call of a payload, as a program has it.
pub struct LoweredCall<'a> {
    /// The payload.
    pub processed: &'a [u8],
    /// The settings with which it was made.
    pub compile_specs: &'a [CompileSpec],
    /// What the call gives.
    pub inputs: &'a [TensorSpec],
    /// What the call takes; sizes that change are upper bounds, or symbols that have them.
    pub outputs: &'a [TensorSpec],
    /// How far the symbols in sizes go.
    pub ranges: &'a Ranges,
    /// The bytes that the program has under a key.
    pub named_data: &'a (dyn Fn(&str) -> Option<ConstantTensor> + Send + Sync),
}
