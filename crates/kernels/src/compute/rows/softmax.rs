//! Softmax.
//!
//! The maximum is subtracted first, so that no exponential overflows. It takes a pass of its own. The online form,
//! which FlashAttention uses, finds maximum and sum in one pass and rescales the sum whenever the maximum grows
//! (Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018). That saves reads of memory outside the
//! caches, but rows fit the caches, and needs more exponentials, which take most of the time here.

use super::super::isa::Isa;
use super::super::math::{self, exp_nonpositive as exp};
use super::super::simd::{Op, Simd, dispatch};
use super::super::split::ELEMENTS;
use super::reduce::{LANES, ROWS, fold_elements, sum_of};
use super::{each_row, each_row_in_place};
use pteron_pool::Pool;

/// Softmax of each row of `n` elements, or its logarithm: `e^(x - max) / sum`, `x - max - ln(sum)`. A row that
/// contains NaN or infinity, or only negative infinity, becomes NaN where the formula says so. Subnormal results are
/// flushed to zero. Rows are divided among the threads of `pool`.
///
/// # Panics
/// If the lengths differ, or are not a multiple of `n`.
pub fn softmax(pool: &Pool, isa: Isa, log: bool, n: usize, x: &[f32], out: &mut [f32]) {
    if (1..=NARROW).contains(&n) {
        out.copy_from_slice(x);
        return narrow_rows(pool, isa, log, n, out);
    }
    each_row(pool, n, x, out, &|x, out| {
        out.copy_from_slice(x);
        dispatch(isa, Softmax { x: out, log });
    });
}

/// [`softmax`] of each row of `x`, in place.
///
/// # Panics
/// If the length is not a multiple of `n`.
pub fn softmax_in_place(pool: &Pool, isa: Isa, log: bool, n: usize, x: &mut [f32]) {
    if (1..=NARROW).contains(&n) {
        return narrow_rows(pool, isa, log, n, x);
    }
    each_row_in_place(pool, n, x, &|x| dispatch(isa, Softmax { x, log }));
}

/// [`softmax`] along the middle of three dimensions `[outer, n, inner]`.
///
/// # Panics
/// If the lengths differ, or are not a multiple of `n * inner`.
pub fn softmax_across(
    pool: &Pool,
    isa: Isa,
    log: bool,
    (n, inner): (usize, usize),
    x: &[f32],
    out: &mut [f32],
) {
    if inner == 1 {
        return softmax(pool, isa, log, n, x, out);
    }
    each_row(pool, n.saturating_mul(inner), x, out, &|x, out| {
        for at in (0..inner).step_by(COLUMNS) {
            let width = COLUMNS.min(inner - at);
            dispatch(isa, ColumnSoftmax { x, out: &mut *out, inner, at, width, log });
        }
    });
}

/// The most elements of a row that is computed together with the rows beside it, a lane each: alone, it would fill no
/// vector.
const NARROW: usize = 8;

/// [`softmax`] of rows of at most [`NARROW`] elements, in place.
fn narrow_rows(pool: &Pool, isa: Isa, log: bool, n: usize, x: &mut [f32]) {
    assert!(x.len().is_multiple_of(n), "{} elements are not whole rows of {n}", x.len());
    let block = |x: &mut [f32]| {
        for rows in x.chunks_mut(COLUMNS * n) {
            let count = rows.len() / n;
            let (mut columns, mut results) = ([0.0; NARROW * COLUMNS], [0.0; NARROW * COLUMNS]);
            for (i, row) in rows.chunks_exact(n).enumerate() {
                row.iter().enumerate().for_each(|(j, &x)| columns[j * COLUMNS + i] = x);
            }
            let (x, out) = (&columns[..n * COLUMNS], &mut results[..n * COLUMNS]);
            dispatch(isa, ColumnSoftmax { x, out, inner: COLUMNS, at: 0, width: count, log });
            for (i, row) in rows.chunks_exact_mut(n).enumerate() {
                row.iter_mut().enumerate().for_each(|(j, x)| *x = results[j * COLUMNS + i]);
            }
        }
    };
    if x.len() < ELEMENTS || pool.threads() == 1 {
        block(x);
    } else {
        pool.parallel_chunks_mut(x, ELEMENTS / 2 / COLUMNS * COLUMNS * n, 1, &|_, x| block(x));
    }
}

struct Softmax<'a> {
    x: &'a mut [f32],
    log: bool,
}

impl Op for Softmax<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let x = self.x;
        let max = fold_elements(x, f32::NEG_INFINITY, |m, x| if x > m { x } else { m });
        if self.log {
            let sum = sum_of(x, |x| exp(s, x - max));
            let shift = math::log(s, sum as f32);
            for x in x.iter_mut() {
                *x = (*x - max) - shift;
            }
        } else {
            map_vectors(s, x, |x| exp(s, x - max));
            let sum = sum_of(x, |x| x);
            let (scale, least) = ((1.0 / sum) as f32, least_normal_quotient(sum as f32));
            for x in x.iter_mut() {
                *x = flush_subnormal(*x, least) * scale;
            }
        }
    }
}

/// Replaces each element by a function of it, the remainder as a part of a vector: one by one it would take as long as
/// several vectors.
#[inline(always)]
fn map_vectors<S: Simd>(s: S, x: &mut [f32], f: impl Fn(f32) -> f32) {
    let (full_vectors, rest) = x.split_at_mut(x.len() / S::LANES * S::LANES);
    full_vectors.iter_mut().for_each(|x| *x = f(*x));
    if !rest.is_empty() {
        let mut lanes = [0.0; LANES];
        // SAFETY: `rest` has fewer elements than a vector has lanes, and `lanes` at least as many as a vector.
        unsafe { s.store(lanes.as_mut_ptr(), s.load_first(rest.as_ptr(), rest.len())) };
        lanes[..S::LANES].iter_mut().for_each(|x| *x = f(*x));
        // SAFETY: as above.
        unsafe { s.store_first(rest.as_mut_ptr(), rest.len(), s.load(lanes.as_ptr())) };
    }
}

/// The least value whose quotient by `sum` is a normal number.
#[inline(always)]
fn least_normal_quotient(sum: f32) -> f32 {
    f32::MIN_POSITIVE * sum
}

/// `x`, or zero if it is below `least`; flushing before the multiplication avoids slow subnormal products.
#[inline(always)]
fn flush_subnormal(x: f32, least: f32) -> f32 {
    if x < least { 0.0 } else { x }
}

/// The number of columns that a softmax along columns (across rows) processes together.
const COLUMNS: usize = 64;

struct ColumnSoftmax<'a> {
    x: &'a [f32],
    out: &'a mut [f32],
    inner: usize,
    at: usize,
    width: usize,
    log: bool,
}

impl Op for ColumnSoftmax<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let ColumnSoftmax { x, out, inner, at, width, log } = self;
        let mut max = [f32::NEG_INFINITY; COLUMNS];
        let mut totals = [0.0f64; COLUMNS];
        for row in x.chunks_exact(inner) {
            for (m, &x) in max.iter_mut().zip(&row[at..at + width]) {
                *m = if x > *m { x } else { *m };
            }
        }
        for (rows, out) in x.chunks(ROWS * inner).zip(out.chunks_mut(ROWS * inner)) {
            let mut sum = [0.0f32; COLUMNS];
            for (row, out) in rows.chunks_exact(inner).zip(out.chunks_exact_mut(inner)) {
                let columns = max.iter().zip(&mut sum);
                for ((out, &x), (&max, sum)) in out[at..at + width].iter_mut().zip(&row[at..]).zip(columns) {
                    let e = exp(s, x - max);
                    *sum += e;
                    *out = if log { x - max } else { e };
                }
            }
            totals.iter_mut().zip(sum).for_each(|(total, sum)| *total += f64::from(sum));
        }
        let mut sum = totals.map(|total| total as f32);
        let leasts = sum.map(least_normal_quotient);
        for sum in &mut sum {
            *sum = if log { math::log(s, *sum) } else { 1.0 / *sum };
        }
        for out in out.chunks_exact_mut(inner) {
            for ((out, &sum), &least) in out[at..at + width].iter_mut().zip(&sum).zip(&leasts) {
                *out = if log { *out - sum } else { flush_subnormal(*out, least) * sum };
            }
        }
    }
}
