//! QR decompositions by Householder reflectors.

use super::FIELDS;
use super::matrix::{Batch, Field, Matrix, Results, over_field};
use pteron_operator::{Args, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::Shape;

pub(super) const OPERATORS: &[Operator] = &[Operator::new(
    "aten::linalg_qr.out(Tensor A, str mode='reduced', *, Tensor(a!) Q, Tensor(b!) R) -> (Tensor(a!) Q, Tensor(b!) R)",
    FIELDS,
    |ctx, args, outs| over_field!(qr(ctx, args, outs)),
)];

fn qr<F: Field>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let batch = Batch::<F>::of(ctx, "A", &args.tensor("A")?)?;
    let (m, n, mode) = (batch.rows, batch.cols, args.str("mode")?);
    ensure!(
        matches!(mode, "reduced" | "complete" | "r"),
        "mode: expected `reduced`, `complete` or `r`, found {mode:?}"
    );
    let inner = if mode == "complete" { m } else { m.min(n) };
    let of_q = if mode == "r" { Shape::new(&[0])? } else { batch.batched_shape(&[m, inner])? };
    let mut q = Results::<F>::new(ctx, outs, 0, (of_q, batch.count))?;
    let mut r = Results::<F>::new(ctx, outs, 1, (batch.batched_shape(&[inner, n])?, batch.count))?;
    for index in 0..batch.count {
        let mut matrix = batch.matrix(ctx, index)?;
        let factors = matrix.triangularize(ctx)?;
        for (at, x) in r.result_mut(index).iter_mut().enumerate() {
            let (i, j) = (at / n, at % n);
            *x = if i <= j { matrix.at(i, j) } else { F::zero() };
        }
        if mode != "r" {
            let mut basis = Matrix::identity(ctx, m, inner)?;
            matrix.apply_reflectors(&factors, &mut basis);
            basis.store(inner, q.result_mut(index));
        }
    }
    q.finish(ctx, outs)?;
    r.finish(ctx, outs)
}
