//! Rules: patterns of nodes that read like the formulas of what they match, and the matcher that finds them in a graph.
//!
//! ```ignore
//! let x = any("x");
//! let variance = call(|m| matches!(m, Meaning::Mean(_)), [x.clone().unary(Unary::Square)]);
//! let norm = x * (variance + number("eps")).unary(Unary::Rsqrt);
//! let matched = norm.find(graph, node)?;
//! let (x, eps) = (matched["x"], matched.number("eps")?);
//! ```
//!
//! A match has the captured values and the nodes that the pattern covers. What a formula cannot say (sizes, types, who else
//! uses a result) is a condition of a part of the pattern ([`Pattern::such_that`]), or what the pass checks afterwards.

mod matcher;
mod pattern;
#[cfg(test)]
mod tests;

pub(super) use matcher::MAX_CHAIN;
pub(super) use pattern::{
    Match, Pattern, any, call, constant, node, number, operation, reshaped, result, through_chain,
};
