//! Matrix multiplication with constant weights.

use super::lowering::{Lower, Lowered, Lowering};
use super::narrow::packed_weights;
use super::pack_store::MatrixPack;
use super::packs::Packed;
use super::step::{Step, Writes, only_output, residual};
use crate::ops::linear::Linear;
use pteron_kernels::compute::{Bias, Epilogue, Isa, MatMut, MatRef, PackedB, gemm};
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::TensorView;
use std::sync::Arc;

impl Lower for Linear {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let (spec, isa) = (*self, node.isa());
        let &[rows, columns] = &**node.input(1)?.sizes() else {
            return Err(Error::invalid("the weights of a matrix multiplication are not a matrix"));
        };
        let (k, n) = if spec.out_major { (columns, rows) } else { (rows, columns) };
        let form = MatrixPack { rows: k, columns: n, transposed: spec.out_major };
        let weights = packed_weights(node.packs, isa, node.input(1)?, node.constant_input(1)?, form)?;
        let bias = node.floats_if(spec.bias, 2)?;
        let last = node.num_inputs() - 1;
        let reads = [0].into_iter().chain(spec.residual.then_some(last));
        Ok(Lowered::step(LinearStep { weights, bias, spec, isa }, reads))
    }
}

/// A matrix multiplication that reads `x` and optionally the residual; the weights are packed.
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
        let out = only_output(&mut writes)?.storage_mut::<f32>()?;
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
