//! Prepared calls outside of graphs: constant weights are packed once, and the sizes may differ in each call.

use super::narrow::packed_weights;
use super::pack_store::MatrixPack;
use super::packs::{Packed, Packs};
use crate::fold::before_transpose;
use crate::graph::Constant;
use pteron_kernels::compute::{Bias, Epilogue, Isa, MatMut, MatRef, PackedB, gemm};
use pteron_operator::facts::MatMul;
use pteron_operator::{Arg, Args, Kernel, KernelContext, Meaning, Outs, PreparedKernel, Result};
use pteron_tensor::{ScalarType, TensorMeta, TensorView};
use std::sync::Arc;

/// Prepares a call of `kernel`; `args` holds what is known of its arguments, as for [`Kernel::prepare`]. The kernel
/// prepares the call itself, or, for a matrix multiplication with constant weights, this function packs the weights.
/// `constant` returns the owner of an argument's bytes. `None` if there is nothing to prepare.
pub fn prepare(
    kernel: &Arc<dyn Kernel>,
    args: &Args<'_>,
    constant: impl Fn(usize) -> Option<Constant>,
    isa: Isa,
    packs: &mut Packs,
) -> Result<Option<Box<dyn PreparedKernel>>> {
    if let Some(prepared) = kernel.prepare(args)? {
        return Ok(Some(prepared));
    }
    let Some(product) = constant_weight_matmul(kernel, args) else { return Ok(None) };
    let Some(source) = constant(product.weights) else { return Ok(None) };
    let stored = args.tensor(product.weights)?;
    // As in lowered regions: if the weights are a transposed matrix, the matrix before the transposition is packed.
    let (meta, source, out_major) = match before_transpose(stored.meta(), &source) {
        Some((meta, matrix)) => (meta, matrix, !product.out_major),
        None => (stored.meta().clone(), source, product.out_major),
    };
    let &[rows, columns] = &**meta.sizes() else { return Ok(None) };
    let (rows, columns) = if out_major { (columns, rows) } else { (rows, columns) };
    let form = MatrixPack { rows, columns, transposed: out_major };
    let weights = packed_weights(packs, isa, &meta, &source, form)?;
    let bias = match product.bias {
        Some(at) => Some(pteron_tensor::memory::copied(args.tensor(at)?.storage::<f32>()?)?),
        None => None,
    };
    let kernel = Arc::clone(kernel);
    Ok(Some(Box::new(Prepared { kernel, x: product.x, rank: product.rank, weights, bias, isa })))
}

/// The matrix multiplication that a call computes; `None` unless the call is one with constant f32 weights.
fn constant_weight_matmul(kernel: &Arc<dyn Kernel>, args: &Args<'_>) -> Option<MatMul> {
    let Some(Meaning::MatMul(product)) = kernel.meaning(args) else { return None };
    let weights =
        args.tensor(product.weights).ok().filter(|w| w.rank() == 2 && is_row_major_f32(w.meta()))?;
    let columns = weights.sizes()[usize::from(!product.out_major)];
    let fits = |b: TensorView<'_>| {
        b.numel() == columns && b.sizes().last() == Some(&columns) && is_row_major_f32(b.meta())
    };
    let bias_fits = product.bias.is_none_or(|at| args.tensor(at).is_ok_and(fits));
    let known = !matches!(args.get(product.x), Arg::Unknown);
    (weights.numel() > 0 && bias_fits && known).then_some(product)
}

fn is_row_major_f32(meta: &TensorMeta) -> bool {
    meta.dtype() == ScalarType::Float && meta.dim_order().is_contiguous()
}

/// A prepared matrix multiplication: `x w + bias`, with packed weights `w`.
struct Prepared {
    /// The kernel that computes calls whose operands have other types, layouts or sizes than those prepared for.
    kernel: Arc<dyn Kernel>,
    x: usize,
    rank: Option<usize>,
    weights: Arc<Packed<PackedB>>,
    bias: Option<Vec<f32>>,
    isa: Isa,
}

impl PreparedKernel for Prepared {
    fn execute(&self, ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
        let (k, n) = (self.weights.rows(), self.weights.cols());
        let x = args.tensor(self.x)?;
        let out = outs.tensor(0)?;
        let fits = x.sizes().last() == Some(&k)
            && self.rank.is_none_or(|rank| rank == x.rank())
            && out.sizes().rank() == x.rank()
            && is_row_major_f32(x.meta())
            && is_row_major_f32(out.meta());
        if !fits {
            return self.kernel.execute(ctx, args, outs);
        }
        let mut sizes = *x.sizes();
        if let Some(last) = sizes.last_mut() {
            *last = n;
        }
        out.resize(&sizes)?;
        let (x, out) = (x.storage::<f32>()?, out.storage_mut::<f32>()?);
        let m = x.len() / k;
        let epilogue = Epilogue { bias: Bias::per_col(self.bias.as_deref()), ..Epilogue::NONE };
        gemm(ctx.pool(), self.isa, MatRef::new(x, m, k), &**self.weights, MatMut::new(out, m, n), &epilogue);
        Ok(())
    }
}
