//! The operators that compute in the promoted type of their operands.

use crate::dtypes::{dtype_of, result_type};
use pteron_exported::{ExportedNode, ExportedProgram};
use pteron_tensor::ScalarType;

/// Binary operators that compute in the promoted type of their operands.
const PROMOTING: &[&str] = &[
    "aten.add",
    "aten.sub",
    "aten.mul",
    "aten.div",
    "aten.maximum",
    "aten.minimum",
    "aten.remainder",
    "aten.fmod",
    "aten.pow",
    "aten.floor_divide",
    "aten.atan2",
    "aten.eq",
    "aten.ne",
    "aten.lt",
    "aten.le",
    "aten.gt",
    "aten.ge",
    "aten.bitwise_and",
    "aten.bitwise_or",
    "aten.bitwise_xor",
    "aten.rsub",
];

/// Operators whose operands are cast to the type of the result.
const OF_RESULT: &[&str] = &["aten.where"];

/// The names of the operands that are cast to the promoted type.
pub(crate) const CAST: &[&str] = &["self", "other", "exponent"];

/// Whether [`promoted_type`] applies to an operand of this name.
pub(crate) fn is_cast_operand(operand: &str) -> bool {
    CAST.contains(&operand)
}

/// The type to which the pass `promote` casts a node's operands; `None` if it does not cast them.
pub(crate) fn promoted_type(program: &ExportedProgram, node: &ExportedNode) -> Option<ScalarType> {
    let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
    let result = node.outputs.first().and_then(|&v| dtype_of(program, v));
    if OF_RESULT.contains(&base) {
        return result;
    }
    if !PROMOTING.contains(&base) {
        return None;
    }
    let operands = node.args.iter().filter(|(name, _)| is_cast_operand(name));
    let dtype = result_type(program, operands.map(|(_, a)| a))?;
    // A true division of integers computes in the floating-point type that the exporter recorded.
    match result {
        Some(result) if base == "aten.div" && result.is_floating() && !dtype.is_floating() => Some(result),
        _ => Some(dtype),
    }
}
