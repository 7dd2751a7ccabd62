//! Dense column-major matrices over real or complex numbers, and Householder reflectors.

use crate::support::convert::{Values, all_values, write};
use crate::support::dtype::{C64, Compute};
use crate::support::layout::Layout;
use num_complex::ComplexFloat;
use pteron_operator::{KernelContext, Outs, Result, ScratchBuffer, ensure};
use pteron_tensor::{Shape, TensorView};

/// The number types of factorizations: `f64` and complex128, for tensors of any precision.
pub(super) trait Field: ComplexFloat<Real = f64> + Compute {
    /// A real number as a number of this type.
    fn from_real(x: f64) -> Self;
}

impl Field for f64 {
    fn from_real(x: f64) -> Self {
        x
    }
}

impl Field for C64 {
    fn from_real(x: f64) -> Self {
        Self::new(x, 0.0)
    }
}

/// The square of the absolute value.
pub(super) fn abs_squared<F: Field>(x: F) -> f64 {
    x.re() * x.re() + x.im() * x.im()
}

/// A column-major matrix in temporary memory.
pub(super) struct Matrix<'a, F> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    data: ScratchBuffer<'a, F>,
}

impl<'a, F: Field> Matrix<'a, F> {
    pub(super) fn zeros(ctx: &KernelContext<'a>, rows: usize, cols: usize) -> Result<Self> {
        let mut data = ctx.scratch(rows.saturating_mul(cols))?;
        data.fill(F::zero());
        Ok(Self { rows, cols, data })
    }

    /// A matrix with ones on its diagonal and zeros elsewhere.
    pub(super) fn identity(ctx: &KernelContext<'a>, rows: usize, cols: usize) -> Result<Self> {
        let mut one = Self::zeros(ctx, rows, cols)?;
        (0..rows.min(cols)).for_each(|i| *one.at_mut(i, i) = F::one());
        Ok(one)
    }

    /// A matrix of the elements `of(row, column)`.
    pub(super) fn from_fn(
        ctx: &KernelContext<'a>,
        (rows, cols): (usize, usize),
        of: impl Fn(usize, usize) -> F,
    ) -> Result<Self> {
        let mut new = Self::zeros(ctx, rows, cols)?;
        for j in 0..cols {
            new.col_mut(j).iter_mut().enumerate().for_each(|(i, x)| *x = of(i, j));
        }
        Ok(new)
    }

    /// A column-major copy of a matrix whose elements are in row-major order.
    pub(super) fn from_row_major(
        ctx: &KernelContext<'a>,
        (rows, cols): (usize, usize),
        from: &[F],
    ) -> Result<Self> {
        Self::from_fn(ctx, (rows, cols), |i, j| from[i * cols + j])
    }

    pub(super) fn at(&self, row: usize, col: usize) -> F {
        self.data[col * self.rows + row]
    }

    pub(super) fn at_mut(&mut self, row: usize, col: usize) -> &mut F {
        &mut self.data[col * self.rows + row]
    }

    pub(super) fn col(&self, j: usize) -> &[F] {
        &self.data[j * self.rows..][..self.rows]
    }

    pub(super) fn col_mut(&mut self, j: usize) -> &mut [F] {
        let rows = self.rows;
        &mut self.data[j * rows..][..rows]
    }

    /// Two columns at once; `i` must be less than `j`.
    pub(super) fn cols_mut(&mut self, i: usize, j: usize) -> (&mut [F], &mut [F]) {
        let rows = self.rows;
        let (before, after) = self.data.split_at_mut(j * rows);
        (&mut before[i * rows..][..rows], &mut after[..rows])
    }

    pub(super) fn swap_cols(&mut self, i: usize, j: usize) {
        if i != j {
            let (a, b) = self.cols_mut(i.min(j), i.max(j));
            a.swap_with_slice(b);
        }
    }

    /// Whether no element is NaN or infinite.
    pub(super) fn is_finite(&self) -> bool {
        self.data.iter().all(|x| x.is_finite())
    }

    /// The largest absolute value of an element; 0 if there is none.
    pub(super) fn max_abs(&self) -> f64 {
        self.data.iter().map(|x| x.abs()).fold(0.0, f64::max)
    }

    pub(super) fn scale(&mut self, by: f64) {
        self.data.iter_mut().for_each(|x| *x = *x * F::from_real(by));
    }

    pub(super) fn fill(&mut self, value: F) {
        self.data.fill(value);
    }

    /// Writes the top left part of the matrix, of as many rows as the target has and `cols` columns, in row-major
    /// order.
    pub(super) fn store(&self, cols: usize, to: &mut [F]) {
        for (i, row) in to.chunks_exact_mut(cols.max(1)).enumerate() {
            row.iter_mut().enumerate().for_each(|(j, x)| *x = self.at(i, j));
        }
    }

    /// Like [`Self::store`], but writes the conjugate transpose of the matrix.
    pub(super) fn store_adjoint(&self, cols: usize, to: &mut [F]) {
        for (i, row) in to.chunks_exact_mut(cols.max(1)).enumerate() {
            row.iter_mut().enumerate().for_each(|(j, x)| *x = self.at(j, i).conj());
        }
    }

    /// The reflectors that make the matrix upper triangular, as LAPACK's `geqrf` chooses them: R replaces the upper
    /// triangle, and the vectors of the reflectors, without their leading 1, replace the rest.
    pub(super) fn triangularize(&mut self, ctx: &KernelContext<'a>) -> Result<ScratchBuffer<'a, F>> {
        let count = self.rows.min(self.cols);
        let mut factors = ctx.scratch::<F>(count)?;
        for k in 0..count {
            let factor = make_reflector(&mut self.col_mut(k)[k..]);
            factors[k] = factor;
            for j in k + 1..self.cols {
                let (v, column) = self.cols_mut(k, j);
                reflect(&v[k..], factor.conj(), &mut column[k..]);
            }
            pteron_pool::progress((self.rows - k) * (self.cols - k));
        }
        Ok(factors)
    }

    /// Multiplies `target` from the left by the product of the first reflectors of a [triangularized
    /// matrix](Self::triangularize).
    pub(super) fn apply_reflectors(&self, factors: &[F], target: &mut Matrix<'_, F>) {
        for (k, &factor) in factors.iter().enumerate().rev() {
            for j in 0..target.cols {
                reflect(&self.col(k)[k..], factor, &mut target.col_mut(j)[k..]);
            }
            pteron_pool::progress((self.rows - k) * target.cols);
        }
    }
}

/// The Euclidean norm, without overflow of the squares.
pub(super) fn norm<F: Field>(x: &[F]) -> f64 {
    let largest = x.iter().map(|x| x.abs()).fold(0.0, f64::max);
    if largest == 0.0 || !largest.is_finite() {
        return largest;
    }
    largest * x.iter().map(|&x| abs_squared(x / F::from_real(largest))).sum::<f64>().sqrt()
}

/// `conj(x) . y`
pub(super) fn dot<F: Field>(x: &[F], y: &[F]) -> F {
    x.iter().zip(y).fold(F::zero(), |sum, (&x, &y)| sum + x.conj() * y)
}

/// The Householder reflector `1 - factor v v^H` whose adjoint maps `x` to a multiple `b` of the first unit vector, as
/// LAPACK's `larfg` chooses it: `b` is real and of the sign that avoids cancellation. `x` becomes `[b, v[1..]]`, and
/// `v[0]` is 1. Returns the factor.
pub(super) fn make_reflector<F: Field>(x: &mut [F]) -> F {
    let Some((first, rest)) = x.split_first_mut() else { return F::zero() };
    let below = norm(rest);
    if below == 0.0 && first.im() == 0.0 {
        return F::zero();
    }
    let b = F::from_real(-first.abs().hypot(below).copysign(first.re()));
    let factor = (b - *first) / b;
    let scale = *first - b;
    rest.iter_mut().for_each(|v| *v = *v / scale);
    *first = b;
    factor
}

/// Applies the reflector `1 - factor v v^H` to a vector; `v[0]` is taken as 1.
pub(super) fn reflect<F: Field>(v: &[F], factor: F, x: &mut [F]) {
    let Some((first, rest)) = x.split_first_mut() else { return };
    let part = factor * (*first + dot(&v[1..], rest));
    *first = *first - part;
    rest.iter_mut().zip(&v[1..]).for_each(|(x, &v)| *x = *x - part * v);
}

/// The maximum number of rows or columns of matrices without elements, over which the factorizations would loop in vain.
const MAX_EMPTY_ROWS: usize = 1 << 24;

/// A batch of matrices, the last two dimensions of a tensor.
pub(super) struct Batch<'a, F> {
    /// The sizes of the batch dimensions: all but the last two.
    pub(super) sizes: Shape,
    pub(super) rows: usize,
    pub(super) cols: usize,
    /// The number of matrices.
    pub(super) count: usize,
    values: Values<'a, F>,
}

impl<'a, F: Field> Batch<'a, F> {
    pub(super) fn of(ctx: &KernelContext<'a>, name: &str, x: &TensorView<'a>) -> Result<Self> {
        let rank = x.rank();
        ensure!(rank >= 2, "{name}: expected matrices, found a tensor of shape {}", x.sizes());
        let (rows, cols) = (x.sizes()[rank - 2], x.sizes()[rank - 1]);
        let sizes = Shape::new(&x.sizes()[..rank - 2])?;
        let count = sizes.numel()?;
        ensure!(
            x.numel() > 0 || count.saturating_mul(rows.max(cols).max(1)) <= MAX_EMPTY_ROWS,
            "{name}: the shape {} has too many rows without elements",
            x.sizes()
        );
        Ok(Self { sizes, rows, cols, count, values: all_values(ctx, x)? })
    }

    /// The shape of a batched result: the batch dimensions, followed by the shape of one matrix's result.
    pub(super) fn batched_shape(&self, each: &[usize]) -> Result<Shape> {
        let mut all: smallvec::SmallVec<[usize; 8]> = self.sizes.iter().copied().collect();
        all.extend_from_slice(each);
        Ok(Shape::new(&all)?)
    }

    /// The elements of a matrix, in row-major order.
    pub(super) fn matrix_elements(&self, index: usize) -> &[F] {
        let numel = self.rows * self.cols;
        &self.values[index * numel..][..numel]
    }

    pub(super) fn matrix(&self, ctx: &KernelContext<'a>, index: usize) -> Result<Matrix<'a, F>> {
        Matrix::from_row_major(ctx, (self.rows, self.cols), self.matrix_elements(index))
    }
}

/// The results for a batch of matrices, which become the elements of an out when all are computed.
pub(super) struct Results<'a, F> {
    out: usize,
    len: usize,
    values: ScratchBuffer<'a, F>,
}

impl<'a, F: Compute> Results<'a, F> {
    /// Resizes the out at index `out` to `sizes`, which hold `count` results of equal length.
    pub(super) fn new(
        ctx: &KernelContext<'a>,
        outs: &mut Outs<'_>,
        out: usize,
        (sizes, count): (Shape, usize),
    ) -> Result<Self> {
        outs.tensor(out)?.resize(&sizes)?;
        let numel = sizes.numel()?;
        Ok(Self { out, len: numel / count.max(1), values: ctx.scratch(numel)? })
    }

    pub(super) fn result_mut(&mut self, index: usize) -> &mut [F] {
        &mut self.values[index * self.len..][..self.len]
    }

    pub(super) fn finish(self, ctx: &KernelContext<'_>, outs: &mut Outs<'_>) -> Result<()> {
        let out = outs.tensor(self.out)?;
        let into = Layout::of_tensor(out.meta());
        write(ctx, &self.values, out, &into)
    }
}

/// The names, in different schemas, of the first argument: the matrix to factorize or solve with, or its factors.
pub(super) const MATRIX: [&str; 4] = ["A", "self", "LU", "LU_data"];

/// Calls a generic function with the number type in which the matrix in the argument [`MATRIX`] is factorized.
macro_rules! over_field {
    ($f:ident($ctx:expr, $args:expr, $outs:expr $(, $more:expr)*)) => {{
        let dtype = $args.meta(super::matrix::MATRIX)?.dtype();
        match dtype {
            pteron_tensor::ScalarType::Float | pteron_tensor::ScalarType::Double => $f::<f64>($ctx, $args, $outs $(, $more)*),
            pteron_tensor::ScalarType::ComplexFloat | pteron_tensor::ScalarType::ComplexDouble => {
                $f::<$crate::support::dtype::C64>($ctx, $args, $outs $(, $more)*)
            }
            dtype => Err($crate::support::dtype::unsupported_type(
                $args.name(super::matrix::MATRIX),
                dtype,
                super::FIELDS,
            )),
        }
    }};
}
pub(super) use over_field;

/// A batch of square matrices.
pub(super) fn square_batch<'a, F: Field>(
    ctx: &KernelContext<'a>,
    name: &str,
    x: &TensorView<'a>,
) -> Result<Batch<'a, F>> {
    let batch = Batch::of(ctx, name, x)?;
    ensure!(
        batch.rows == batch.cols,
        "{name}: expected square matrices, found {} x {}",
        batch.rows,
        batch.cols
    );
    Ok(batch)
}
