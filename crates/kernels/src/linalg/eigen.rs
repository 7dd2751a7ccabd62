//! Eigenvalues and eigenvectors of symmetric and Hermitian matrices: reduction to a real tridiagonal matrix by
//! reflectors, then the implicit QL algorithm (Golub and Van Loan, *Matrix Computations*, 8.3).

use super::FIELDS;
use super::matrix::{
    Batch, Field, MATRIX, Matrix, Results, dot, make_reflector, over_field, reflect, square_batch,
};
use pteron_operator::{Args, KernelContext, Operator, Outs, Result, ScratchBuffer, ensure};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::linalg_eigh.eigvals(Tensor self, str UPLO=\"L\", *, Tensor(a!) eigvals, Tensor(b!) eigvecs) -> (Tensor(a!) eigenvalues, Tensor(b!) eigenvectors)",
        FIELDS,
        |ctx, args, outs| over_field!(eigh(ctx, args, outs, true)),
    ),
    Operator::new(
        "aten::_linalg_eigh.eigenvalues(Tensor A, str UPLO=\"L\", bool compute_v=True, *, Tensor(a!) eigenvalues, Tensor(b!) eigenvectors) -> (Tensor(a!) eigenvalues, Tensor(b!) eigenvectors)",
        FIELDS,
        |ctx, args, outs| {
            let with_vectors = args.bool("compute_v")?;
            over_field!(eigh(ctx, args, outs, with_vectors))
        },
    ),
    Operator::new(
        "aten::linalg_eigvalsh.out(Tensor self, str UPLO=\"L\", *, Tensor(a!) out) -> Tensor(a!)",
        FIELDS,
        |ctx, args, outs| over_field!(eigh(ctx, args, outs, false)),
    ),
];

/// The eigenvalues of each matrix, ascending, as out 0, and the eigenvectors as the columns of out 1.
fn eigh<F: Field>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    with_vectors: bool,
) -> Result<()> {
    let batch = square_batch::<F>(ctx, args.name(MATRIX), &args.tensor(MATRIX)?)?;
    let n = batch.rows;
    let lower = match args.str("UPLO")? {
        "L" | "l" => true,
        "U" | "u" => false,
        other => {
            ensure!(false, "UPLO: expected L or U, found {other:?}");
            false
        }
    };
    let mut values = Results::<f64>::new(ctx, outs, 0, (batch.batched_shape(&[n])?, batch.count))?;
    let mut vectors = match outs.len() {
        1 => None,
        _ => {
            let each: &[usize] = if with_vectors { &[n, n] } else { &[0] };
            let sizes =
                if with_vectors { batch.batched_shape(each)? } else { pteron_tensor::Shape::new(each)? };
            Some(Results::<F>::new(ctx, outs, 1, (sizes, batch.count))?)
        }
    };
    for i in 0..batch.count {
        let matrix = from_triangle(ctx, &batch, i, lower)?;
        let into = vectors.as_mut().filter(|_| with_vectors).map(|v| v.result_mut(i));
        decompose(ctx, matrix, values.result_mut(i), into)?;
    }
    values.finish(ctx, outs)?;
    vectors.map_or(Ok(()), |v| v.finish(ctx, outs))
}

/// The Hermitian matrix that the lower or upper triangle of a matrix of the batch defines.
fn from_triangle<'a, F: Field>(
    ctx: &KernelContext<'a>,
    batch: &Batch<'a, F>,
    index: usize,
    lower: bool,
) -> Result<Matrix<'a, F>> {
    let (n, from) = (batch.rows, batch.matrix_elements(index));
    Matrix::from_fn(ctx, (n, n), |i, j| match i == j {
        true => F::from_real(from[i * n + i].re()),
        false if (i > j) == lower => from[i * n + j],
        false => from[j * n + i].conj(),
    })
}

fn decompose<'a, F: Field>(
    ctx: &KernelContext<'a>,
    mut matrix: Matrix<'a, F>,
    values: &mut [f64],
    vectors: Option<&mut [F]>,
) -> Result<()> {
    let n = matrix.rows;
    if n == 0 {
        return Ok(());
    }
    let largest = matrix.max_abs();
    let scale = if largest > 0.0 { largest } else { 1.0 };
    let is_finite = matrix.is_finite();
    matrix.scale(1.0 / scale);
    let mut basis = Matrix::zeros(ctx, 0, 0)?;
    let mut converged = is_finite;
    if is_finite {
        let mut off = ctx.scratch::<f64>(n)?;
        let factors = tridiagonalize(ctx, &mut matrix, values, &mut off)?;
        if vectors.is_some() {
            basis = Matrix::identity(ctx, n, n)?;
            for (k, &factor) in factors.iter().enumerate().rev() {
                for j in k + 1..n {
                    reflect(&matrix.col(k)[k + 1..], factor, &mut basis.col_mut(j)[k + 1..]);
                }
            }
        }
        converged = run_ql(values, &mut off, &mut basis);
    }
    if !converged {
        values.fill(f64::NAN);
        vectors.into_iter().for_each(|v| v.fill(F::from_real(f64::NAN)));
        return Ok(());
    }
    let mut order = ctx.scratch::<i64>(n)?;
    order.iter_mut().enumerate().for_each(|(i, o)| *o = i as i64);
    order.sort_by(|&a, &b| values[a as usize].total_cmp(&values[b as usize]));
    if let Some(to) = vectors {
        for (place, &from) in order.iter().enumerate() {
            basis.col(from as usize).iter().enumerate().for_each(|(i, &x)| to[i * n + place] = x);
        }
    }
    values.iter_mut().for_each(|v| *v *= scale);
    values.sort_by(f64::total_cmp);
    Ok(())
}

/// Makes a Hermitian matrix tridiagonal, with a real diagonal and real elements below it. Returns the factors of the
/// reflectors; their vectors replace the matrix below the diagonal.
fn tridiagonalize<'a, F: Field>(
    ctx: &KernelContext<'a>,
    matrix: &mut Matrix<'a, F>,
    diagonal: &mut [f64],
    off: &mut [f64],
) -> Result<ScratchBuffer<'a, F>> {
    let n = matrix.rows;
    let mut factors = ctx.scratch::<F>(n.saturating_sub(1))?;
    let (mut v, mut w) = (ctx.scratch::<F>(n)?, ctx.scratch::<F>(n)?);
    for k in 0..n {
        diagonal[k] = matrix.at(k, k).re();
        if k + 1 == n {
            off[k] = 0.0;
            break;
        }
        let factor = make_reflector(&mut matrix.col_mut(k)[k + 1..]);
        factors[k] = factor;
        off[k] = matrix.at(k + 1, k).re();
        if factor == F::zero() {
            continue;
        }
        let rest = n - k - 1;
        let (v, w) = (&mut v[..rest], &mut w[..rest]);
        v.copy_from_slice(&matrix.col(k)[k + 1..]);
        v[0] = F::one();
        w.fill(F::zero());
        for (j, &of_v) in v.iter().enumerate() {
            let part = factor * of_v;
            let column = &matrix.col(k + 1 + j)[k + 1..];
            w.iter_mut().zip(column).for_each(|(w, &x)| *w = *w + x * part);
        }
        let half = F::from_real(-0.5) * factor * dot(w, v);
        w.iter_mut().zip(v.iter()).for_each(|(w, &v)| *w = *w + half * v);
        for j in 0..rest {
            let (a, b) = (w[j].conj(), v[j].conj());
            let column = &mut matrix.col_mut(k + 1 + j)[k + 1..];
            for ((x, &v), &w) in column.iter_mut().zip(v.iter()).zip(w.iter()) {
                *x = *x - v * a - w * b;
            }
        }
        pteron_pool::progress(rest * rest);
    }
    Ok(factors)
}

/// The maximum number of iterations for an eigenvalue; two or three are usual.
const MAX_ITERATIONS: usize = 100;

/// Diagonalizes a real symmetric tridiagonal matrix; the rotations are also applied to the columns of `basis`, if it has
/// any. Returns whether the iterations converged.
fn run_ql<F: Field>(diagonal: &mut [f64], off: &mut [f64], basis: &mut Matrix<'_, F>) -> bool {
    let n = diagonal.len();
    for first in 0..n {
        let mut iterations = 0;
        loop {
            let is_small =
                |i: usize| off[i].abs() <= f64::EPSILON * (diagonal[i].abs() + diagonal[i + 1].abs());
            let last = (first..n - 1).find(|&i| is_small(i)).unwrap_or(n - 1);
            if last == first {
                break;
            }
            iterations += 1;
            if iterations > MAX_ITERATIONS {
                return false;
            }
            ql_step(diagonal, off, first..last, basis);
            pteron_pool::progress((last - first) * (basis.rows + 1));
        }
    }
    true
}

/// A QL step with Wilkinson's shift on the rows from `block.start` to `block.end`, both included.
fn ql_step<F: Field>(
    diagonal: &mut [f64],
    off: &mut [f64],
    block: std::ops::Range<usize>,
    basis: &mut Matrix<'_, F>,
) {
    let (first, last) = (block.start, block.end);
    let ratio = (diagonal[first + 1] - diagonal[first]) / (2.0 * off[first]);
    let shift = off[first] / (ratio + ratio.hypot(1.0).copysign(ratio));
    let mut g = diagonal[last] - diagonal[first] + shift;
    let (mut sin, mut cos, mut moved) = (1.0, 1.0, 0.0);
    for i in block.rev() {
        let (f, b) = (sin * off[i], cos * off[i]);
        let r = f.hypot(g);
        off[i + 1] = r;
        if r == 0.0 {
            // The block splits here.
            diagonal[i + 1] -= moved;
            off[last] = 0.0;
            return;
        }
        (sin, cos) = (f / r, g / r);
        let d = diagonal[i + 1] - moved;
        let s = (diagonal[i] - d) * sin + 2.0 * cos * b;
        moved = sin * s;
        diagonal[i + 1] = d + moved;
        g = cos * s - b;
        if basis.cols > 0 {
            let (x, y) = basis.cols_mut(i, i + 1);
            let (sin, cos) = (F::from_real(sin), F::from_real(cos));
            for (x, y) in x.iter_mut().zip(y) {
                (*x, *y) = (cos * *x - sin * *y, sin * *x + cos * *y);
            }
        }
    }
    diagonal[first] -= moved;
    off[first] = g;
    off[last] = 0.0;
}
