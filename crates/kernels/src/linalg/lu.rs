//! LU decompositions with partial pivoting, and systems solved with them.

use super::FIELDS;
use super::matrix::{Batch, Field, Matrix, Results, dot, over_field, square_batch};
use crate::support::convert::indices;
use crate::support::dims::broadcast;
use pteron_operator::{Args, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::Shape;

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::linalg_lu_factor.out(Tensor A, *, bool pivot=True, Tensor(a!) LU, Tensor(b!) pivots) -> (Tensor(a!) LU, Tensor(b!) pivots)",
        FIELDS,
        |ctx, args, outs| over_field!(lu_factor(ctx, args, outs)),
    ),
    Operator::new(
        "aten::linalg_lu_factor_ex.out(Tensor A, *, bool pivot=True, bool check_errors=False, Tensor(a!) LU, Tensor(b!) pivots, Tensor(c!) info) -> (Tensor(a!) LU, Tensor(b!) pivots, Tensor(c!) info)",
        FIELDS,
        |ctx, args, outs| over_field!(lu_factor(ctx, args, outs)),
    ),
    Operator::new(
        "aten::linalg_lu.out(Tensor A, *, bool pivot=True, Tensor(a!) P, Tensor(b!) L, Tensor(c!) U) -> (Tensor(a!) P, Tensor(b!) L, Tensor(c!) U)",
        FIELDS,
        |ctx, args, outs| over_field!(lu(ctx, args, outs)),
    ),
    Operator::new(
        "aten::linalg_lu_solve.out(Tensor LU, Tensor pivots, Tensor B, *, bool left=True, bool adjoint=False, Tensor(a!) out) -> Tensor(a!)",
        FIELDS,
        |ctx, args, outs| over_field!(solve(ctx, args, outs)),
    ),
    Operator::new(
        "aten::lu_unpack.out(Tensor LU_data, Tensor LU_pivots, bool unpack_data=True, bool unpack_pivots=True, *, Tensor(a!) P, Tensor(b!) L, Tensor(c!) U) -> (Tensor(a!) P, Tensor(b!) L, Tensor(c!) U)",
        FIELDS,
        |ctx, args, outs| over_field!(unpack(ctx, args, outs)),
    ),
];

/// Replaces a matrix by its factors: L, whose diagonal is 1, below the diagonal, and U. Sets `pivots` to the row that
/// each row was swapped with, counted from 1. Returns the number of the first pivot that is zero, counted from 1, or 0.
fn factorize<F: Field>(matrix: &mut Matrix<'_, F>, with_pivots: bool, pivots: &mut [i64]) -> i64 {
    let mut info = 0;
    for k in 0..pivots.len() {
        // LAPACK compares the sums of the absolute values of both parts.
        let size = |x: F| x.re().abs() + x.im().abs();
        let column = &matrix.col(k)[k..];
        let best = match with_pivots {
            true => (0..column.len()).reduce(|a, b| if size(column[b]) > size(column[a]) { b } else { a }),
            false => None,
        };
        let best = k + best.unwrap_or(0);
        pivots[k] = best as i64 + 1;
        for j in 0..matrix.cols {
            matrix.col_mut(j).swap(k, best);
        }
        let pivot = matrix.at(k, k);
        if pivot == F::zero() {
            info = if info == 0 { k as i64 + 1 } else { info };
            continue;
        }
        matrix.col_mut(k)[k + 1..].iter_mut().for_each(|x| *x = *x / pivot);
        for j in k + 1..matrix.cols {
            let (factors, column) = matrix.cols_mut(k, j);
            let part = column[k];
            column[k + 1..].iter_mut().zip(&factors[k + 1..]).for_each(|(x, &l)| *x = *x - l * part);
        }
        pteron_pool::progress((matrix.rows - k) * (matrix.cols - k));
    }
    info
}

fn lu_factor<F: Field>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let batch = Batch::<F>::of(ctx, "A", &args.tensor("A")?)?;
    let (m, n, count, with_pivots) = (batch.rows, batch.cols, batch.count, args.bool("pivot")?);
    let mut lu = Results::<F>::new(ctx, outs, 0, (batch.batched_shape(&[m, n])?, count))?;
    let mut pivots = Results::<i64>::new(ctx, outs, 1, (batch.batched_shape(&[m.min(n)])?, count))?;
    let mut info = match outs.len() {
        3 => Some(Results::<i64>::new(ctx, outs, 2, (batch.sizes, count))?),
        _ => None,
    };
    for i in 0..count {
        let mut matrix = batch.matrix(ctx, i)?;
        let wrong = factorize(&mut matrix, with_pivots, pivots.result_mut(i));
        matrix.store(n, lu.result_mut(i));
        info.iter_mut().for_each(|info| info.result_mut(i)[0] = wrong);
    }
    lu.finish(ctx, outs)?;
    pivots.finish(ctx, outs)?;
    info.map_or(Ok(()), |info| info.finish(ctx, outs))
}

/// The results P, L and U for a batch of packed factors.
struct Parts<'a, F> {
    permutation: Results<'a, F>,
    lower: Results<'a, F>,
    upper: Results<'a, F>,
}

impl<'a, F: Field> Parts<'a, F> {
    /// Resizes the outs P, L and U; a result that is not requested gets no elements.
    fn new(
        ctx: &KernelContext<'a>,
        outs: &mut Outs<'_>,
        batch: &Batch<'_, F>,
        (with_permutation, with_factors): (bool, bool),
    ) -> Result<Self> {
        let (m, n) = (batch.rows, batch.cols);
        let k = m.min(n);
        let sizes = |wanted: bool, each: [usize; 2]| match wanted {
            true => batch.batched_shape(&each),
            false => Ok(Shape::new(&[0])?),
        };
        let mut of = |out, wanted, each| -> Result<_> {
            Results::<F>::new(ctx, outs, out, (sizes(wanted, each)?, batch.count))
        };
        Ok(Self {
            permutation: of(0, with_permutation, [m, m])?,
            lower: of(1, with_factors, [m, k])?,
            upper: of(2, with_factors, [k, n])?,
        })
    }

    /// Sets P, L and U of a matrix from its packed factors in row-major order.
    fn set_parts(&mut self, index: usize, (lu, m, n): (&[F], usize, usize), pivots: &[i64]) -> Result<()> {
        let k = m.min(n);
        for (at, x) in self.lower.result_mut(index).iter_mut().enumerate() {
            let (i, j) = (at / k, at % k);
            *x = match i.cmp(&j) {
                std::cmp::Ordering::Less => F::zero(),
                std::cmp::Ordering::Equal => F::one(),
                std::cmp::Ordering::Greater => lu[i * n + j],
            };
        }
        for (at, x) in self.upper.result_mut(index).iter_mut().enumerate() {
            let (i, j) = (at / n, at % n);
            *x = if i <= j { lu[i * n + j] } else { F::zero() };
        }
        let permutation = self.permutation.result_mut(index);
        if !permutation.is_empty() {
            permutation.fill(F::zero());
            let mut rows: Vec<usize> = (0..m).collect();
            swap_rows(&mut rows, pivots)?;
            rows.iter().enumerate().for_each(|(place, &row)| permutation[row * m + place] = F::one());
        }
        Ok(())
    }

    fn finish(self, ctx: &KernelContext<'_>, outs: &mut Outs<'_>) -> Result<()> {
        self.permutation.finish(ctx, outs)?;
        self.lower.finish(ctx, outs)?;
        self.upper.finish(ctx, outs)
    }
}

/// Swaps each row with the row that its pivot names, counted from 1; fails if there is no such row.
fn swap_rows<T>(rows: &mut [T], pivots: &[i64]) -> Result<()> {
    for (i, &pivot) in pivots.iter().enumerate() {
        let other = usize::try_from(pivot.saturating_sub(1)).unwrap_or(usize::MAX);
        ensure!(
            i < rows.len() && other < rows.len(),
            "pivots: expected rows from 1 to {}, found {pivot}",
            rows.len()
        );
        rows.swap(i, other);
    }
    Ok(())
}

fn lu<F: Field>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let batch = Batch::<F>::of(ctx, "A", &args.tensor("A")?)?;
    let (m, n, with_pivots) = (batch.rows, batch.cols, args.bool("pivot")?);
    let mut parts = Parts::new(ctx, outs, &batch, (with_pivots, true))?;
    let (mut pivots, mut rows) = (ctx.scratch::<i64>(m.min(n))?, ctx.scratch::<F>(m * n)?);
    for i in 0..batch.count {
        let mut matrix = batch.matrix(ctx, i)?;
        factorize(&mut matrix, with_pivots, &mut pivots);
        matrix.store(n, &mut rows);
        parts.set_parts(i, (&rows, m, n), &pivots)?;
    }
    parts.finish(ctx, outs)
}

fn unpack<F: Field>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let batch = Batch::<F>::of(ctx, "LU_data", &args.tensor("LU_data")?)?;
    let (m, n, k) = (batch.rows, batch.cols, batch.rows.min(batch.cols));
    let pivots = args.tensor("LU_pivots")?;
    ensure!(
        *pivots.sizes() == batch.batched_shape(&[k])?,
        "LU_pivots: expected the shape {}, found {}",
        batch.batched_shape(&[k])?,
        pivots.sizes()
    );
    let pivots = indices(ctx, "LU_pivots", &pivots)?;
    let mut parts = Parts::new(ctx, outs, &batch, (args.bool("unpack_pivots")?, args.bool("unpack_data")?))?;
    for i in 0..batch.count {
        parts.set_parts(i, (batch.matrix_elements(i), m, n), &pivots[i * k..][..k])?;
    }
    parts.finish(ctx, outs)
}

/// Solves `A X = B` or, unless `left` is set, `X A = B`; `A` is the matrix or its adjoint.
fn solve<F: Field>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let lu = square_batch::<F>(ctx, "LU", &args.tensor("LU")?)?;
    let (pivots, right) = (args.tensor("pivots")?, Batch::<F>::of(ctx, "B", &args.tensor("B")?)?);
    let (left, adjoint, n) = (args.bool("left")?, args.bool("adjoint")?, lu.rows);
    ensure!(
        *pivots.sizes() == lu.batched_shape(&[n])?,
        "pivots: expected the shape {}, found {}",
        lu.batched_shape(&[n])?,
        pivots.sizes()
    );
    let pivots = indices(ctx, "pivots", &pivots)?;
    let fits = if left { right.rows == n } else { right.cols == n };
    ensure!(fits, "B: {} x {} does not fit matrices of {n} rows", right.rows, right.cols);
    let batch = broadcast(&lu.sizes, &right.sizes)?;
    let count = batch.numel()?;
    let mut sizes: smallvec::SmallVec<[usize; 8]> = batch.iter().copied().collect();
    sizes.extend([right.rows, right.cols]);
    let mut solutions = Results::<F>::new(ctx, outs, 0, (Shape::new(&sizes)?, count))?;
    for index in 0..count {
        let (a, b) =
            (broadcast_source(&batch, &lu.sizes, index), broadcast_source(&batch, &right.sizes, index));
        let factors = lu.matrix(ctx, a)?;
        // `X A = B` is `A^H X^H = B^H`.
        let mut x = match left {
            true => right.matrix(ctx, b)?,
            false => {
                let rows = right.matrix_elements(b);
                Matrix::from_fn(ctx, (right.cols, right.rows), |i, j| rows[j * right.cols + i].conj())?
            }
        };
        let pivots = &pivots[a * n..][..n];
        for j in 0..x.cols {
            match adjoint == left {
                false => solve_column(&factors, pivots, x.col_mut(j))?,
                true => solve_adjoint_column(&factors, pivots, x.col_mut(j))?,
            }
            pteron_pool::progress(n * n);
        }
        match left {
            true => x.store(right.cols, solutions.result_mut(index)),
            false => x.store_adjoint(right.cols, solutions.result_mut(index)),
        }
    }
    solutions.finish(ctx, outs)
}

/// The index, in a batch of shape `part`, of the matrix that is broadcast to `index` of the batch of shape `whole`.
fn broadcast_source(whole: &Shape, part: &Shape, index: usize) -> usize {
    let (mut rest, mut at, mut stride) = (index, 0, 1);
    for back in 1..=whole.len() {
        let place = rest % whole[whole.len() - back];
        rest /= whole[whole.len() - back];
        if let Some(dim) = part.len().checked_sub(back)
            && part[dim] > 1
        {
            at += place * stride;
            stride *= part[dim];
        }
    }
    at
}

fn solve_column<F: Field>(lu: &Matrix<'_, F>, pivots: &[i64], x: &mut [F]) -> Result<()> {
    swap_rows(x, pivots)?;
    let n = x.len();
    for k in 0..n {
        let part = x[k];
        x[k + 1..].iter_mut().zip(&lu.col(k)[k + 1..]).for_each(|(x, &l)| *x = *x - l * part);
    }
    for k in (0..n).rev() {
        x[k] = x[k] / lu.at(k, k);
        let part = x[k];
        x[..k].iter_mut().zip(lu.col(k)).for_each(|(x, &u)| *x = *x - u * part);
    }
    Ok(())
}

fn solve_adjoint_column<F: Field>(lu: &Matrix<'_, F>, pivots: &[i64], x: &mut [F]) -> Result<()> {
    let n = x.len();
    for k in 0..n {
        let part = dot(&lu.col(k)[..k], &x[..k]);
        x[k] = (x[k] - part) / lu.at(k, k).conj();
    }
    for k in (0..n).rev() {
        x[k] = x[k] - dot(&lu.col(k)[k + 1..], &x[k + 1..]);
    }
    // The swaps in reverse order.
    for (i, &pivot) in pivots.iter().enumerate().rev() {
        let other = usize::try_from(pivot.saturating_sub(1)).unwrap_or(usize::MAX);
        ensure!(other < n, "pivots: expected rows from 1 to {n}, found {pivot}");
        x.swap(i, other);
    }
    Ok(())
}
