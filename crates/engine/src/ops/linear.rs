//! Matrix multiplication with constant weights.

use super::conv::write_epilogue;
use crate::graph::Kind;
use crate::operands::Operands;
use crate::operation::{OpKind, Operation};
use pteron_kernels::compute::Activation;
use pteron_operator::Result;
use std::fmt;
use std::sync::Arc;

/// `activation(x · w + bias + residual)` over the last dimension of `x`. Inputs: `x`, weights (constant), and
/// optionally bias (constant) and residual.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// Whether the weights are `[out, in]`; otherwise they are `[in, out]`.
    pub out_major: bool,
    /// Whether there is a bias, with one value for each column of the result.
    pub bias: bool,
    /// Whether there is a residual, which has the output's sizes.
    pub residual: bool,
    /// The activation, which is applied last.
    pub activation: Activation,
}

impl Operation for Linear {
    fn name(&self) -> &str {
        "linear"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weights: {}", if self.out_major { "[out, in]" } else { "[in, out]" })?;
        write_epilogue(f, self.residual, self.activation)
    }

    fn keeps_rows_apart(&self, operands: &Operands<'_>) -> bool {
        operands.has_matrix() && operands.has_computed_residual(self.residual)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(2 + usize::from(self.bias) + usize::from(self.residual), 1)?;
        operands.check_all_floats()?;
        let (_, outer) = operands.check_product(self.out_major, usize::MAX)?;
        if self.bias {
            operands.check_vector(2, outer)?;
        }
        operands.check_residual(self.residual)
    }

    fn with_activation(&self, activation: Activation) -> Option<Arc<dyn Kind>> {
        let activation = self.activation.then(activation)?;
        Some(OpKind::arc(Self { activation, ..*self }))
    }

    fn with_residual(&self) -> Option<Arc<dyn Kind>> {
        let free = self.activation == Activation::Identity && !self.residual;
        free.then(|| OpKind::arc(Self { residual: true, ..*self }))
    }
}
