//! Singular value decompositions by one-sided Jacobi rotations (Golub and Van Loan, *Matrix Computations*, 8.6.3), which
//! find small singular values to high relative accuracy.

use super::matrix::{Field, Matrix, abs_squared, dot, norm};
use pteron_operator::{KernelContext, Result, ScratchBuffer};

/// A singular value decomposition `A = U diag(S) V^H`.
pub(super) struct Svd<'a, F> {
    pub(super) u: Matrix<'a, F>,
    /// The singular values, descending.
    pub(super) s: ScratchBuffer<'a, f64>,
    pub(super) v: Matrix<'a, F>,
}

/// The maximum number of sweeps over all pairs of columns; about ten are usual.
const MAX_SWEEPS: usize = 60;

impl<'a, F: Field> Svd<'a, F> {
    /// Decomposes a matrix. With `full`, the factors are square.
    pub(super) fn decompose(ctx: &KernelContext<'a>, matrix: Matrix<'a, F>, full: bool) -> Result<Self> {
        if matrix.rows >= matrix.cols {
            return Self::decompose_tall(ctx, matrix, full);
        }
        let adjoint = Matrix::from_fn(ctx, (matrix.cols, matrix.rows), |i, j| matrix.at(j, i).conj())?;
        let Self { u, s, v } = Self::decompose_tall(ctx, adjoint, full)?;
        Ok(Self { u: v, s, v: u })
    }

    fn decompose_tall(ctx: &KernelContext<'a>, mut matrix: Matrix<'a, F>, full: bool) -> Result<Self> {
        let (m, n) = (matrix.rows, matrix.cols);
        let width = if full { m } else { n };
        let mut s = ctx.scratch::<f64>(n)?;
        if !matrix.is_finite() {
            s.fill(f64::NAN);
            let nan = |rows, cols| -> Result<_> {
                let mut all = Matrix::zeros(ctx, rows, cols)?;
                all.fill(F::from_real(f64::NAN));
                Ok(all)
            };
            return Ok(Self { u: nan(m, width)?, s, v: nan(n, n)? });
        }
        let largest = matrix.max_abs();
        let scale = if largest > 0.0 { largest } else { 1.0 };
        matrix.scale(1.0 / scale);
        let factors = match m > n {
            true => matrix.triangularize(ctx)?,
            false => ctx.scratch(0)?,
        };
        let mut square = Matrix::from_fn(ctx, (n, n), |i, j| match m > n && i > j {
            true => F::zero(),
            false => matrix.at(i, j),
        })?;
        let mut v = Matrix::identity(ctx, n, n)?;
        orthogonalize(&mut square, &mut v);
        s.iter_mut().enumerate().for_each(|(j, s)| *s = norm(square.col(j)));
        sort_columns(&mut s, &mut square, &mut v);
        normalize_columns(ctx, &mut square, &s)?;
        s.iter_mut().for_each(|s| *s *= scale);
        let u = match m == n {
            true => square,
            false => {
                let mut u = Matrix::identity(ctx, m, width)?;
                (0..n).for_each(|j| u.col_mut(j)[..n].copy_from_slice(square.col(j)));
                matrix.apply_reflectors(&factors, &mut u);
                u
            }
        };
        Ok(Self { u, s, v })
    }
}

/// Rotates pairs of columns of `w` until all are orthogonal, and the columns of `v` by the same rotations.
fn orthogonalize<F: Field>(w: &mut Matrix<'_, F>, v: &mut Matrix<'_, F>) {
    let tolerance = f64::EPSILON * (w.rows as f64).sqrt();
    for _ in 0..MAX_SWEEPS {
        let mut is_done = true;
        for j in 1..w.cols {
            for i in 0..j {
                let (a, b) = w.cols_mut(i, j);
                let (aa, bb): (f64, f64) =
                    (a.iter().map(|&x| abs_squared(x)).sum(), b.iter().map(|&x| abs_squared(x)).sum());
                let ab = dot(a, b);
                let size = ab.abs();
                if size <= tolerance * aa.sqrt() * bb.sqrt() || size == 0.0 {
                    continue;
                }
                is_done = false;
                let zeta = (bb - aa) / (2.0 * size);
                let tan = 1.0f64.copysign(zeta) / (zeta.abs() + zeta.hypot(1.0));
                let cos = 1.0 / tan.hypot(1.0);
                let (cos, sin) = (F::from_real(cos), F::from_real(cos * tan));
                let phase = ab.conj() / F::from_real(size);
                rotate_columns(a, b, (cos, sin, phase));
                let (a, b) = v.cols_mut(i, j);
                rotate_columns(a, b, (cos, sin, phase));
            }
            pteron_pool::progress(j * w.rows);
        }
        if is_done {
            return;
        }
    }
}

fn rotate_columns<F: Field>(a: &mut [F], b: &mut [F], (cos, sin, phase): (F, F, F)) {
    for (a, b) in a.iter_mut().zip(b) {
        let turned = *b * phase;
        (*a, *b) = (cos * *a - sin * turned, sin * *a + cos * turned);
    }
}

/// Sorts singular values in descending order, and the columns of `u` and `v` with them.
fn sort_columns<F: Field>(s: &mut [f64], u: &mut Matrix<'_, F>, v: &mut Matrix<'_, F>) {
    for i in 0..s.len() {
        let Some(most) = (i..s.len()).reduce(|a, b| if s[b] > s[a] { b } else { a }) else { return };
        s.swap(i, most);
        u.swap_cols(i, most);
        v.swap_cols(i, most);
    }
}

/// Divides columns by their singular values; columns that are zero are replaced by unit vectors that are orthogonal to
/// all others.
fn normalize_columns<F: Field>(ctx: &KernelContext<'_>, u: &mut Matrix<'_, F>, s: &[f64]) -> Result<()> {
    for (j, &s) in s.iter().enumerate().filter(|(_, s)| **s > 0.0) {
        u.col_mut(j).iter_mut().for_each(|x| *x = *x / F::from_real(s));
    }
    // The columns that are zero are last, since the columns are sorted by singular value.
    let first = s.iter().position(|&s| s == 0.0).unwrap_or(s.len());
    let mut covered = ctx.scratch::<f64>(u.rows)?;
    for j in first..s.len() {
        covered.fill(0.0);
        for done in 0..j {
            u.col(done).iter().zip(covered.iter_mut()).for_each(|(&x, c)| *c += abs_squared(x));
        }
        let Some(axis) = (0..u.rows).reduce(|a, b| if covered[b] < covered[a] { b } else { a }) else {
            return Ok(());
        };
        u.col_mut(j).fill(F::zero());
        *u.at_mut(axis, j) = F::one();
        // Twice, because the first difference may cancel.
        for done in (0..j).chain(0..j) {
            let (q, x) = u.cols_mut(done, j);
            let part = dot(q, x);
            x.iter_mut().zip(q.iter()).for_each(|(x, &q)| *x = *x - part * q);
        }
        let length = norm(u.col(j));
        u.col_mut(j).iter_mut().for_each(|x| *x = *x / F::from_real(length));
        pteron_pool::progress(j * u.rows);
    }
    Ok(())
}
