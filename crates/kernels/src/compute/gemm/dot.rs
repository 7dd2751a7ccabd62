//! Products of few rows by a matrix whose columns are contiguous, as a weight that was not packed:
//! each result is a dot product of two contiguous vectors.

use super::super::isa::Isa;
use super::super::simd::{Op, Simd, dispatch};

/// Rows up to which this is the way.
pub(crate) const MAX_ROWS: usize = 4;
/// Products that a lane adds up one after another, and sums of so many.
const RUN: usize = 32;

/// Dot products of `m` rows of A and `n` columns of B, each `k` contiguous elements, the sum in `sums`
/// row by row.
///
/// # Safety
/// `m` rows `a_step` apart and `n` columns `b_step` apart, of `k` elements each, can be read.
pub(crate) unsafe fn dots(
    isa: Isa,
    k: usize,
    (a, a_step, m): (*const f32, usize, usize),
    (b, b_step, n): (*const f32, usize, usize),
    sums: &mut [f32; 32],
) {
    let args = Dots { k, a, a_step, b, b_step };
    let mut put = |rows: usize, cols: usize, i: usize, j: usize| {
        let at = Dots { a: a.wrapping_add(i * a_step), b: b.wrapping_add(j * b_step), ..args };
        match (rows, cols) {
            (1, 8) => spread(dispatch(isa, Block::<1, 8>(at)), i, j, n, sums),
            (1, 4) => spread(dispatch(isa, Block::<1, 4>(at)), i, j, n, sums),
            (1, 1) => spread(dispatch(isa, Block::<1, 1>(at)), i, j, n, sums),
            (2, 4) => spread(dispatch(isa, Block::<2, 4>(at)), i, j, n, sums),
            (2, 1) => spread(dispatch(isa, Block::<2, 1>(at)), i, j, n, sums),
            (3, 4) => spread(dispatch(isa, Block::<3, 4>(at)), i, j, n, sums),
            (3, 1) => spread(dispatch(isa, Block::<3, 1>(at)), i, j, n, sums),
            (4, 4) => spread(dispatch(isa, Block::<4, 4>(at)), i, j, n, sums),
            (4, 1) => spread(dispatch(isa, Block::<4, 1>(at)), i, j, n, sums),
            _ => unreachable!("no dot block of {rows} by {cols}"),
        }
    };
    debug_assert!(m <= MAX_ROWS && m * n <= 32);
    let mut j = 0;
    while j < n {
        let cols = match n - j {
            8.. if m == 1 => 8,
            4.. => 4,
            _ => 1,
        };
        put(m, cols, 0, j);
        j += cols;
    }
}

fn spread<const M: usize, const N: usize>(
    block: [[f32; N]; M],
    i: usize,
    j: usize,
    n: usize,
    sums: &mut [f32; 32],
) {
    for (r, row) in block.iter().enumerate() {
        sums[(i + r) * n + j..][..N].copy_from_slice(row);
    }
}

#[derive(Clone, Copy)]
struct Dots {
    k: usize,
    a: *const f32,
    a_step: usize,
    b: *const f32,
    b_step: usize,
}

struct Block<const M: usize, const N: usize>(Dots);

impl<const M: usize, const N: usize> Op for Block<M, N> {
    type Out = [[f32; N]; M];

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> Self::Out {
        let Dots { k, a, a_step, b, b_step } = self.0;
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
                    // SAFETY: rows and columns have k elements, of which `left` are at or past `at`.
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
