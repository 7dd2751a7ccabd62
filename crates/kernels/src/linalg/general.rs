//! Eigenvalues and eigenvectors of general matrices, in complex arithmetic: reduction to Hessenberg form by reflectors,
//! then the shifted QR algorithm to a triangular matrix, whose eigenvectors are found by substitution (Golub and Van Loan,
//! *Matrix Computations*, 7.4 to 7.6).

use super::FIELDS;
use super::matrix::{Batch, Field, Matrix, Results, make_reflector, norm, over_field, reflect, square_batch};
use crate::support::dtype::C64;
use num_complex::ComplexFloat;
use pteron_operator::{Args, KernelContext, Operator, Outs, Result};

pub(super) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::linalg_eig.out(Tensor self, *, Tensor(a!) eigenvalues, Tensor(b!) eigenvectors) -> (Tensor(a!) eigenvalues, Tensor(b!) eigenvectors)",
        FIELDS,
        |ctx, args, outs| over_field!(eig(ctx, args, outs)),
    ),
    Operator::new(
        "aten::linalg_eigvals.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)",
        FIELDS,
        |ctx, args, outs| over_field!(eig(ctx, args, outs)),
    ),
];

/// The eigenvalues of each matrix as out 0 and, if there is an out 1, the eigenvectors of length 1 as its columns.
fn eig<F: Field>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let batch = square_batch::<F>(ctx, "self", &args.tensor("self")?)?;
    let n = batch.rows;
    let mut values = Results::<C64>::new(ctx, outs, 0, (batch.batched_shape(&[n])?, batch.count))?;
    let mut vectors = match outs.len() {
        1 => None,
        _ => Some(Results::<C64>::new(ctx, outs, 1, (batch.batched_shape(&[n, n])?, batch.count))?),
    };
    for i in 0..batch.count {
        decompose(ctx, &batch, i, values.result_mut(i), vectors.as_mut().map(|v| v.result_mut(i)))?;
    }
    values.finish(ctx, outs)?;
    vectors.map_or(Ok(()), |v| v.finish(ctx, outs))
}

fn decompose<F: Field>(
    ctx: &KernelContext<'_>,
    batch: &Batch<'_, F>,
    index: usize,
    values: &mut [C64],
    vectors: Option<&mut [C64]>,
) -> Result<()> {
    let (n, rows) = (batch.rows, batch.matrix_elements(index));
    let mut a =
        Matrix::<C64>::from_fn(ctx, (n, n), |i, j| C64::new(rows[i * n + j].re(), rows[i * n + j].im()))?;
    let is_finite = a.is_finite();
    let largest = a.max_abs();
    let scale = if largest > 0.0 { largest } else { 1.0 };
    a.scale(1.0 / scale);
    let mut q = Matrix::<C64>::identity(ctx, n, n)?;
    if is_finite {
        reduce_to_hessenberg(ctx, &mut a, &mut q)?;
    }
    if !is_finite || !reduce_to_triangular(&mut a, &mut q) {
        values.fill(C64::new(f64::NAN, f64::NAN));
        vectors.into_iter().for_each(|v| v.fill(C64::new(f64::NAN, f64::NAN)));
        return Ok(());
    }
    values.iter_mut().enumerate().for_each(|(i, v)| *v = a.at(i, i) * scale);
    if F::DTYPE == pteron_tensor::ScalarType::Double {
        remove_noise(values);
    }
    let Some(to) = vectors else { return Ok(()) };
    let mut x = ctx.scratch::<C64>(n)?;
    for k in 0..n {
        eigenvector(&a, k, &mut x);
        let mut y = ctx.scratch::<C64>(n)?;
        y.fill(C64::default());
        for (j, &part) in x[..=k].iter().enumerate() {
            y.iter_mut().zip(q.col(j)).for_each(|(y, &q)| *y += q * part);
        }
        let turn = normalizer::<F>(&y, values[k]);
        y.iter().enumerate().for_each(|(i, &y)| to[i * n + k] = y * turn);
        pteron_pool::progress(n * n);
    }
    Ok(())
}

/// Sets the imaginary parts of a real matrix's eigenvalues to zero where they are only rounding errors.
fn remove_noise(values: &mut [C64]) {
    let size = values.iter().map(|v| v.norm()).fold(0.0, f64::max);
    let near = 1e-12 * size;
    values.iter_mut().filter(|v| v.im.abs() <= near).for_each(|v| v.im = 0.0);
}

/// The factor that gives a vector the length 1 and makes its largest element real, as LAPACK does.
fn normalizer<F: Field>(y: &[C64], value: C64) -> C64 {
    let length = norm(y);
    let largest =
        y.iter().copied().reduce(|a, b| if b.norm() > a.norm() { b } else { a }).unwrap_or_default();
    let is_real = F::DTYPE == pteron_tensor::ScalarType::Double && value.im == 0.0;
    let size = largest.norm();
    match size > 0.0 && length > 0.0 {
        // A real vector keeps the sign that it has.
        true if is_real => largest.conj() * (if largest.re < 0.0 { -1.0 } else { 1.0 }) / size / length,
        true => largest.conj() / size / length,
        false => C64::new(1.0, 0.0),
    }
}

fn reduce_to_hessenberg(
    ctx: &KernelContext<'_>,
    a: &mut Matrix<'_, C64>,
    q: &mut Matrix<'_, C64>,
) -> Result<()> {
    let n = a.rows;
    let mut v = ctx.scratch::<C64>(n)?;
    for k in 0..n.saturating_sub(2) {
        let factor = make_reflector(&mut a.col_mut(k)[k + 1..]);
        v[k + 1..].copy_from_slice(&a.col(k)[k + 1..]);
        v[k + 1] = C64::new(1.0, 0.0);
        a.col_mut(k)[k + 2..].fill(C64::default());
        for j in k + 1..n {
            reflect(&v[k + 1..], factor.conj(), &mut a.col_mut(j)[k + 1..]);
        }
        reflect_columns(a, &v[k + 1..], factor, k + 1);
        reflect_columns(q, &v[k + 1..], factor, k + 1);
        pteron_pool::progress(3 * n * (n - k));
    }
    Ok(())
}

/// Multiplies the columns from `first` on by the reflector `1 - factor v v^H` from the right.
fn reflect_columns(a: &mut Matrix<'_, C64>, v: &[C64], factor: C64, first: usize) {
    for i in 0..a.rows {
        let sum: C64 = v.iter().enumerate().map(|(j, &v)| a.at(i, first + j) * v).sum();
        let part = sum * factor;
        v.iter().enumerate().for_each(|(j, v)| *a.at_mut(i, first + j) -= part * v.conj());
    }
}

/// The maximum number of iterations for an eigenvalue; two or three are usual.
const MAX_ITERATIONS: usize = 100;

/// Makes a Hessenberg matrix upper triangular by similarity transformations, which are accumulated in `q`. Returns whether
/// the iterations converged.
fn reduce_to_triangular(a: &mut Matrix<'_, C64>, q: &mut Matrix<'_, C64>) -> bool {
    let n = a.rows;
    let mut end = n;
    let mut iterations = 0;
    while end > 1 {
        let first = (1..end).rev().find(|&i| {
            let around = a.at(i, i).norm() + a.at(i - 1, i - 1).norm();
            a.at(i, i - 1).norm() <= f64::EPSILON * if around > 0.0 { around } else { 1.0 }
        });
        let first = first.unwrap_or(0);
        if first > 0 {
            *a.at_mut(first, first - 1) = C64::default();
        }
        if first + 1 == end {
            (end, iterations) = (end - 1, 0);
            continue;
        }
        iterations += 1;
        if iterations > MAX_ITERATIONS {
            return false;
        }
        let shift = match iterations % 10 {
            // An exceptional shift, if the usual one goes round in circles.
            0 => a.at(end - 1, end - 1) + C64::new(a.at(end - 1, end - 2).norm(), 0.0),
            _ => wilkinson_shift(a, end),
        };
        qr_step(a, q, first..end, shift);
        pteron_pool::progress(6 * n * (end - first));
    }
    true
}

/// Wilkinson's shift: the eigenvalue of the last two rows and columns that is nearer to the last element.
fn wilkinson_shift(a: &Matrix<'_, C64>, end: usize) -> C64 {
    let (i, j) = (end - 2, end - 1);
    let (half, last) = ((a.at(i, i) - a.at(j, j)) / 2.0, a.at(j, j));
    let product = a.at(i, j) * a.at(j, i);
    let root = (half * half + product).sqrt();
    let sum = if (half + root).norm() > (half - root).norm() { half + root } else { half - root };
    if sum.norm() == 0.0 { last } else { last - product / sum }
}

/// An implicit QR step on the rows and columns of a block, by Givens rotations.
fn qr_step(a: &mut Matrix<'_, C64>, q: &mut Matrix<'_, C64>, block: std::ops::Range<usize>, shift: C64) {
    let n = a.rows;
    let (first, end) = (block.start, block.end);
    let mut x = a.at(first, first) - shift;
    let mut y = a.at(first + 1, first);
    for k in first..end - 1 {
        if k > first {
            (x, y) = (a.at(k, k - 1), a.at(k + 1, k - 1));
        }
        let length = x.norm().hypot(y.norm());
        if length == 0.0 {
            continue;
        }
        let (c, s) = (x / length, y / length);
        // Rows k and k + 1.
        for j in k.saturating_sub(1).max(first)..n {
            let (u, v) = (a.at(k, j), a.at(k + 1, j));
            *a.at_mut(k, j) = c.conj() * u + s.conj() * v;
            *a.at_mut(k + 1, j) = c * v - s * u;
        }
        let last = (k + 3).min(end);
        rotate_columns(a, k, last, (c, s));
        rotate_columns(q, k, n, (c, s));
        if k > first {
            *a.at_mut(k + 1, k - 1) = C64::default();
        }
    }
}

/// Multiplies columns `k` and `k + 1` by the adjoint of a rotation, in the first `rows` rows only.
fn rotate_columns(a: &mut Matrix<'_, C64>, k: usize, rows: usize, (c, s): (C64, C64)) {
    let (x, y) = a.cols_mut(k, k + 1);
    for (x, y) in x[..rows].iter_mut().zip(&mut y[..rows]) {
        let (u, v) = (*x, *y);
        (*x, *y) = (u * c + v * s, v * c.conj() - u * s.conj());
    }
}

/// The eigenvector of an upper triangular matrix for its diagonal element `k`.
fn eigenvector(a: &Matrix<'_, C64>, k: usize, x: &mut [C64]) {
    let value = a.at(k, k);
    let smallest = f64::EPSILON * a.max_abs().max(f64::MIN_POSITIVE);
    x.fill(C64::default());
    x[k] = C64::new(1.0, 0.0);
    for i in (0..k).rev() {
        let sum: C64 = (i + 1..=k).map(|j| a.at(i, j) * x[j]).sum();
        let gap = a.at(i, i) - value;
        let gap = if gap.norm() < smallest { C64::new(smallest, 0.0) } else { gap };
        x[i] = -sum / gap;
        // Nearly equal eigenvalues give large elements.
        let size = x[i].norm();
        if size > 1e100 {
            x[i..=k].iter_mut().for_each(|x| *x /= size);
        }
    }
}
