//! Functions of rows: reductions, softmax, norms. Each row is computed by one thread, so results do not depend on how
//! rows are divided among threads.

mod extremes;
mod group;
mod norm;
mod reduce;
mod softmax;

#[cfg(test)]
mod tests;

pub use extremes::{Extremes, Ordered, extremes};
pub use group::group_norm_factors;
pub use norm::{affine, layer_norm, mean_rstd, rms_norm};
pub use reduce::{
    column_means, max, mean, min, min_max, row_means, sum, sum_of_squares, wide_sum_of_squares,
};
pub use softmax::{softmax, softmax_across, softmax_in_place};

use super::split::ELEMENTS;
use pteron_pool::Pool;

/// Runs `body` over the rows of `x` and of `out`, each of `n` elements.
fn each_row(pool: &Pool, n: usize, x: &[f32], out: &mut [f32], body: &(dyn Fn(&[f32], &mut [f32]) + Sync)) {
    assert_eq!(x.len(), out.len(), "lengths of rows and results");
    if x.is_empty() {
        return;
    }
    assert!(n > 0 && x.len().is_multiple_of(n), "{} elements are not whole rows of {n}", x.len());
    let rows = |i: usize, out: &mut [f32]| body(&x[i * n..][..n], out);
    if x.len() < ELEMENTS || pool.threads() == 1 {
        out.chunks_exact_mut(n).enumerate().for_each(|(i, out)| rows(i, out));
    } else {
        pool.parallel_chunks_mut(out, n, (ELEMENTS / 2 / n).max(1), &rows);
    }
}

/// Runs `body` over the rows of `x`, each of `n` elements.
fn each_row_in_place(pool: &Pool, n: usize, x: &mut [f32], body: &(dyn Fn(&mut [f32]) + Sync)) {
    if x.is_empty() {
        return;
    }
    assert!(n > 0 && x.len().is_multiple_of(n), "{} elements are not whole rows of {n}", x.len());
    if x.len() < ELEMENTS || pool.threads() == 1 {
        x.chunks_exact_mut(n).for_each(body);
    } else {
        pool.parallel_chunks_mut(x, n, (ELEMENTS / 2 / n).max(1), &|_, x| body(x));
    }
}
