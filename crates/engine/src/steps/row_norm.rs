//! Layer norm and RMS norm.

use super::{Step, Writes, only};
use crate::operands::{Operands, refuse};
use crate::operation::{Lowered, Lowering, Operation};
use pteron_kernels::compute::{Isa, layer_norm, rms_norm};
use pteron_operator::{KernelContext, Result};
use pteron_tensor::TensorView;
use std::fmt;

/// A norm over rows, which span the last dimensions: `(x - mean) / sqrt(variance + eps)` or `x / sqrt(mean(x^2) +
/// eps)`, optionally times a weight and plus a bias with one element for each element of a row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowNorm {
    /// The number of elements of a row.
    pub elements: usize,
    /// The value added to the variance.
    pub eps: f32,
    /// Whether the mean is subtracted: true for a layer norm, false for an RMS norm.
    pub centred: bool,
    /// Whether the next input is the weight.
    pub weight: bool,
    /// Whether the last input is the bias; layer norm only.
    pub bias: bool,
}

impl Operation for RowNorm {
    fn name(&self) -> &str {
        if self.centred { "layer_norm" } else { "rms_norm" }
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "elements: {}, eps: {}", self.elements, self.eps)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let factors = usize::from(self.weight) + usize::from(self.bias);
        operands.count(1 + factors, 1)?;
        operands.all_floats()?;
        operands.same_as_output(0)?;
        let x = operands.input(0)?;
        let mut trailing = x.sizes().iter().rev().scan(1usize, |rows, &size| {
            *rows = rows.checked_mul(size)?;
            Some(*rows)
        });
        if self.elements == 0 || !trailing.any(|elements| elements == self.elements) {
            return refuse(format!("{} elements are not the last dimensions of {x}", self.elements));
        }
        if self.bias && !self.centred {
            return refuse("an RMS norm has no bias");
        }
        for i in 1..=factors {
            let factor = operands.input(i)?;
            if factor.numel() != self.elements {
                return refuse(format!("operand {i} is {factor}, expected {} elements", self.elements));
            }
        }
        Ok(())
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        Ok(Lowered::step(RowNormStep { norm: *self, isa: node.isa() }, 0..node.inputs()))
    }
}

struct RowNormStep {
    norm: RowNorm,
    isa: Isa,
}

impl Step for RowNormStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let RowNorm { elements, eps, centred, weight, bias } = self.norm;
        let (x, out) = (reads[0].storage::<f32>()?, only(&mut writes)?.storage_mut::<f32>()?);
        let mut factors = reads[1..].iter();
        let mut next = |there: bool| {
            let factor = if there { factors.next() } else { None };
            factor.map(|v| v.storage::<f32>()).transpose()
        };
        let weight = next(weight)?;
        if centred {
            let bias = next(bias)?;
            layer_norm(ctx.pool(), self.isa, eps, elements, x, (weight, bias), out);
        } else {
            rms_norm(ctx.pool(), self.isa, eps, elements, x, weight, out);
        }
        Ok(())
    }
}
