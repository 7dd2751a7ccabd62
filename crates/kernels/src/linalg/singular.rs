//! Singular value decompositions.

use super::FIELDS;
use super::jacobi::Svd;
use super::matrix::{Batch, Field, Results, over_field};
use pteron_operator::{Args, KernelContext, Operator, Outs, Result};
use pteron_tensor::Shape;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::linalg_svd.U(Tensor A, bool full_matrices=True, *, str? driver=None, Tensor(a!) U, Tensor(b!) S, Tensor(c!) Vh) -> (Tensor(a!) U, Tensor(b!) S, Tensor(c!) Vh)",
        FIELDS,
        |ctx, args, outs| over_field!(svd(ctx, args, outs, true)),
    ),
    Operator::new(
        "aten::_linalg_svd.U(Tensor A, bool full_matrices=False, bool compute_uv=True, *, str? driver=None, Tensor(a!) U, Tensor(b!) S, Tensor(c!) Vh) -> (Tensor(a!) U, Tensor(b!) S, Tensor(c!) Vh)",
        FIELDS,
        |ctx, args, outs| {
            let with_vectors = args.bool("compute_uv")?;
            over_field!(svd(ctx, args, outs, with_vectors))
        },
    ),
    Operator::new(
        "aten::linalg_svdvals.out(Tensor A, *, str? driver=None, Tensor(a!) out) -> Tensor(a!)",
        FIELDS,
        |ctx, args, outs| over_field!(singular_values(ctx, args, outs)),
    ),
];

fn svd<F: Field>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    with_vectors: bool,
) -> Result<()> {
    let batch = Batch::<F>::of(ctx, "A", &args.tensor("A")?)?;
    let full = args.bool("full_matrices")?;
    let (m, n) = (batch.rows, batch.cols);
    let k = m.min(n);
    let (width, height) = if full { (m, n) } else { (k, k) };
    let sizes =
        |each: [usize; 2]| if with_vectors { batch.batched_shape(&each) } else { Ok(Shape::new(&[0])?) };
    let (of_u, of_v) = (sizes([m, width])?, sizes([height, n])?);
    let mut u = Results::<F>::new(ctx, outs, 0, (of_u, batch.count))?;
    let mut s = Results::<f64>::new(ctx, outs, 1, (batch.batched_shape(&[k])?, batch.count))?;
    let mut v = Results::<F>::new(ctx, outs, 2, (of_v, batch.count))?;
    for i in 0..batch.count {
        let svd = Svd::decompose(ctx, batch.matrix(ctx, i)?, full)?;
        s.result_mut(i).copy_from_slice(&svd.s);
        if with_vectors {
            svd.u.store(width, u.result_mut(i));
            svd.v.store_adjoint(n, v.result_mut(i));
        }
    }
    u.finish(ctx, outs)?;
    s.finish(ctx, outs)?;
    v.finish(ctx, outs)
}

fn singular_values<F: Field>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let batch = Batch::<F>::of(ctx, "A", &args.tensor("A")?)?;
    let sizes = batch.batched_shape(&[batch.rows.min(batch.cols)])?;
    let mut s = Results::<f64>::new(ctx, outs, 0, (sizes, batch.count))?;
    for i in 0..batch.count {
        s.result_mut(i).copy_from_slice(&Svd::decompose(ctx, batch.matrix(ctx, i)?, false)?.s);
    }
    s.finish(ctx, outs)
}
