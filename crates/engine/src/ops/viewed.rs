//! Elementwise expressions of views of tensors, which are read in place.

use crate::layouts::LayoutReq;
use crate::operands::{Operands, is_float, refuse};
use crate::operation::Operation;
use crate::strided::View;
use pteron_operator::{Expression, Result};
use pteron_tensor::MAX_RANK;
use std::fmt;

/// An elementwise expression whose inputs are broadcast to the output, or read through a view with the output's sizes.
#[derive(Debug)]
pub(crate) struct Viewed {
    pub(crate) expression: Expression,
    /// For each input, the view through which it is read; `None` if the input is read directly.
    pub(crate) views: Vec<Option<View>>,
}

impl Operation for Viewed {
    fn name(&self) -> &str {
        "pointwise"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.expression)?;
        for (i, view) in self.views.iter().enumerate() {
            let Some(view) = view else { continue };
            write!(f, ", x{i} at {}", view.offset)?;
            for (j, (n, stride)) in view.parts().into_iter().enumerate() {
                write!(f, "{}{n} by {stride}", if j == 0 { ": " } else { ", " })?;
            }
        }
        Ok(())
    }

    fn operand_layout(&self, i: usize, _: usize) -> LayoutReq {
        match self.views.get(i) {
            Some(None) => LayoutReq::Any,
            _ => LayoutReq::RowMajor,
        }
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.check_counts(self.views.len(), 1)?;
        let out = operands.output(0)?;
        if self.expression.num_inputs() > self.views.len() || !is_float(out) {
            return refuse("the result is not float32, or the expression has more inputs than the node");
        }
        for (i, view) in self.views.iter().enumerate() {
            let Some(view) = view else {
                operands.check_broadcasts(i)?;
                continue;
            };
            let root = operands.input(i)?;
            let reads = view.sizes() == **out.sizes() && view.is_in_bounds(root.numel());
            if !reads || !is_float(root) || view.parts().len() > MAX_RANK {
                return refuse(format!("operand {i} has no such view of the sizes {}", out.sizes()));
            }
        }
        Ok(())
    }
}
