//! Products of few rows by a matrix with contiguous columns, such as a weight that was not packed: each result is a
//! dot product of two contiguous vectors.

use super::super::isa::Isa;
use super::super::mat::MatRef;
use super::super::simd::{Op, Simd, dispatch};

/// The maximum number of rows of A for which dot products are used.
pub(crate) const MAX_ROWS: usize = 4;
/// The number of products that a lane sums in one accumulator, and of accumulators that are summed in f32 before their
/// sum is added to an f64 total.
const RUN: usize = 32;

/// Dot products of the rows of A with the rows of B, all of them contiguous and equally long. Row `i` of A by row `j`
/// of B goes to `sums[i * b.rows() + j]`.
///
/// # Panics
/// If there are more than [`MAX_ROWS`] rows of A or more than 32 results, or rows are not contiguous.
pub(crate) fn dots(isa: Isa, a: MatRef<'_>, b: MatRef<'_>, sums: &mut [f32; 32]) {
    let (m, n) = (a.rows(), b.rows());
    let mut j = 0;
    while j < n {
        let cols = match n - j {
            8.. if m == 1 => 8,
            4.. => 4,
            _ => 1,
        };
        let b = b.block(j..j + cols, 0..b.cols());
        match (m, cols) {
            (1, 8) => store_dots(dispatch(isa, Block::<1, 8>::new(a, b)), j, n, sums),
            (1, 4) => store_dots(dispatch(isa, Block::<1, 4>::new(a, b)), j, n, sums),
            (1, 1) => store_dots(dispatch(isa, Block::<1, 1>::new(a, b)), j, n, sums),
            (2, 4) => store_dots(dispatch(isa, Block::<2, 4>::new(a, b)), j, n, sums),
            (2, 1) => store_dots(dispatch(isa, Block::<2, 1>::new(a, b)), j, n, sums),
            (3, 4) => store_dots(dispatch(isa, Block::<3, 4>::new(a, b)), j, n, sums),
            (3, 1) => store_dots(dispatch(isa, Block::<3, 1>::new(a, b)), j, n, sums),
            (4, 4) => store_dots(dispatch(isa, Block::<4, 4>::new(a, b)), j, n, sums),
            (4, 1) => store_dots(dispatch(isa, Block::<4, 1>::new(a, b)), j, n, sums),
            _ => unreachable!("no dot block of {m} by {cols}"),
        }
        j += cols;
    }
}

/// Stores the dot products of a block, whose first column is `j`, where [`dots`] returns them: row-major, `n` columns.
fn store_dots<const M: usize, const N: usize>(
    block: [[f32; N]; M],
    j: usize,
    n: usize,
    sums: &mut [f32; 32],
) {
    for (r, row) in block.iter().enumerate() {
        sums[r * n + j..][..N].copy_from_slice(row);
    }
}

/// The dot products of `M` rows of A with `N` rows of B.
struct Block<'a, const M: usize, const N: usize> {
    a: MatRef<'a>,
    b: MatRef<'a>,
}

impl<'a, const M: usize, const N: usize> Block<'a, M, N> {
    #[inline]
    fn new(a: MatRef<'a>, b: MatRef<'a>) -> Self {
        assert!(a.rows() == M && b.rows() == N && a.cols() == b.cols(), "rows of a block of dot products");
        let contiguous = a.cols() <= 1 || (a.col_stride() == 1 && b.col_stride() == 1);
        assert!(contiguous, "rows of dot products must be contiguous");
        Self { a, b }
    }
}

impl<const M: usize, const N: usize> Op for Block<'_, M, N> {
    type Out = [[f32; N]; M];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Out {
        let k = self.a.cols();
        let (a, a_step) = (self.a.as_ptr(), self.a.row_stride());
        let (b, b_step) = (self.b.as_ptr(), self.b.row_stride());
        let mut sums = [[0.0f64; N]; M];
        let mut at = 0;
        while at < k {
            let end = k.min(at.saturating_add(RUN * RUN * S::LANES));
            let mut total = [[s.splat(0.0); N]; M];
            while at < end {
                let run = end.min(at + RUN * S::LANES);
                let mut acc = [[s.splat(0.0); N]; M];
                while at < run {
                    let left = k - at;
                    // SAFETY: `new` checked that A and B have M and N rows of k contiguous elements; `left` of them
                    // are at or past `at`.
                    let load = |p: *const f32| unsafe {
                        if left >= S::LANES { s.load(p) } else { s.load_first(p, left) }
                    };
                    let mut x = [s.splat(0.0); M];
                    for (i, x) in x.iter_mut().enumerate() {
                        *x = load(a.wrapping_add(i * a_step + at));
                    }
                    let y: [S::F; N] = std::array::from_fn(|j| load(b.wrapping_add(j * b_step + at)));
                    for (acc, &x) in acc.iter_mut().zip(&x) {
                        for (acc, &y) in acc.iter_mut().zip(&y) {
                            *acc = s.mul_add(x, y, *acc);
                        }
                    }
                    at += S::LANES;
                }
                for (total, acc) in total.as_flattened_mut().iter_mut().zip(acc.as_flattened()) {
                    *total = s.add(*total, *acc);
                }
            }
            for (sum, total) in sums.as_flattened_mut().iter_mut().zip(total.as_flattened()) {
                *sum += f64::from(s.sum(*total));
            }
        }
        sums.map(|row| row.map(|sum| sum as f32))
    }
}
