//! Matrix multiplication with constant weights.

use super::conv::epilogue;
use super::{Step, Writes, only, residual};
use crate::graph::Kind;
use crate::operands::Operands;
use crate::operation::{Lowered, Lowering, OpKind, Operation};
use crate::pack_store::MatrixPack;
use crate::packs::{Packed, pack_matrix};
use pteron_kernels::compute::{Activation, Bias, Epilogue, Isa, MatMut, MatRef, PackedB, gemm};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::TensorView;
use std::fmt;
use std::sync::Arc;

/// `activation(x · w + bias + residual)` over the last dimension of `x`. Inputs: `x`, weights (constant), and
/// optionally bias (constant) and residual.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Linear {
    /// Whether the weights are `[out, in]`; otherwise they are `[in, out]`.
    pub out_major: bool,
    /// Whether there is a bias, with one value for each output.
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
        epilogue(f, self.residual, self.activation)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(2 + usize::from(self.bias) + usize::from(self.residual), 1)?;
        operands.all_floats()?;
        let (_, outer) = operands.product(self.out_major, usize::MAX)?;
        if self.bias {
            operands.vector(2, outer)?;
        }
        operands.residual(self.residual)
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let (spec, isa) = (*self, node.isa());
        let &[rows, columns] = &**node.input(1)?.sizes() else {
            return Err(Error::invalid("the weights of a matrix multiplication are not a matrix"));
        };
        let (k, n) = if spec.out_major { (columns, rows) } else { (rows, columns) };
        let form = MatrixPack { rows: k, columns: n, transposed: spec.out_major };
        let source = node.owner(1)?;
        let weights = node.packs.matrix(isa, source, form, || pack_matrix(isa, source, form))?;
        let bias = node.floats_if(spec.bias, 2)?;
        let last = node.inputs() - 1;
        let reads = [0].into_iter().chain(spec.residual.then_some(last));
        Ok(Lowered::step(LinearStep { weights, bias, spec, isa }, reads))
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

/// Reads `x` and optionally the residual; the weights are packed.
struct LinearStep {
    weights: Arc<Packed<PackedB>>,
    bias: Option<Vec<f32>>,
    spec: Linear,
    isa: Isa,
}

impl Step for LinearStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let (k, n) = (self.weights.rows(), self.weights.cols());
        let x = reads[0].storage::<f32>()?;
        let out = only(&mut writes)?.storage_mut::<f32>()?;
        let m = out.len() / n.max(1);
        let residual = residual(self.spec.residual, reads)?.map(|r| (1.0, MatRef::new(r, m, n)));
        let epilogue = Epilogue {
            bias: Bias::per_col(self.bias.as_deref()),
            residual,
            activation: self.spec.activation,
            ..Epilogue::NONE
        };
        gemm(ctx.pool(), self.isa, MatRef::new(x, m, k), &**self.weights, MatMut::new(out, m, n), &epilogue);
        Ok(())
    }
}
