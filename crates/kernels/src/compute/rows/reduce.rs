//! Sums and extremes of contiguous f32 values, in the same order on every instruction set: sixteen lanes over a block,
//! then the blocks in f64. The sequential f32 sum of a lane is short: if all elements have one sign, the relative
//! error stays below 1e-6, however many there are.

use super::super::isa::Isa;
use super::super::scratch;
use super::super::simd::{Op, Simd, dispatch};
use super::super::split::ELEMENTS;
use pteron_pool::Pool;
use std::ops::Range;

pub(super) const LANES: usize = 16;
/// The number of elements of a block, which is summed in f32 before it is added to an f64 total.
const BLOCK: usize = 256;
/// The number of rows that are summed in f32 before the sums are added to f64 totals.
pub(super) const ROWS: usize = 16;
/// The number of columns that are summed together.
pub(super) const COLUMNS: usize = 64;
/// The maximum number of parts into which the rows of a matrix are split to sum its columns.
const PARTS: usize = 8;
/// The number of rows of a part is a multiple of this.
const PART_ROWS: usize = 4 * ROWS;

/// The sum of the elements. Its rounding error is that of a sum of about 20 values in f32, whatever the length. Zero
/// for an empty slice.
pub fn sum(isa: Isa, x: &[f32]) -> f32 {
    dispatch(isa, Sum { x, of: |x| x }) as f32
}

/// The sum of the elements' squares, as exact as [`sum`].
pub fn sum_of_squares(isa: Isa, x: &[f32]) -> f32 {
    dispatch(isa, Sum { x, of: |x| x * x }) as f32
}

/// The sum of the elements' squares, computed in f64 throughout, so that it does not overflow.
pub fn wide_sum_of_squares(isa: Isa, x: &[f32]) -> f64 {
    dispatch(isa, WideSquares(x))
}

/// The mean of the elements, as exact as [`sum`]. NaN for an empty slice.
pub fn mean(isa: Isa, x: &[f32]) -> f32 {
    (dispatch(isa, Sum { x, of: |x| x }) / x.len() as f64) as f32
}

/// The mean of each column of a matrix of `out.len()` columns, as exact as [`mean`]. If there are enough elements,
/// the rows are divided among the threads of `pool` like the pixels of the kernel that computed them.
///
/// # Panics
/// If the length of `x` is not a multiple of the number of columns.
pub fn column_means(pool: &Pool, isa: Isa, x: &[f32], out: &mut [f32]) {
    let columns = out.len();
    assert!(columns > 0 && x.len().is_multiple_of(columns), "no matrix of {columns} columns");
    let rows = x.len() / columns;
    // The parts do not depend on the number of threads.
    let part = rows.div_ceil(PARTS).next_multiple_of(PART_ROWS).max(PART_ROWS);
    let mut totals = scratch::filled_vec(rows.div_ceil(part) * columns, 0.0);
    let grain = (ELEMENTS / (part * columns)).max(1);
    pool.parallel_chunks_mut(&mut totals, columns, grain, &|i, totals| {
        let x = &x[i * part * columns..x.len().min((i + 1) * part * columns)];
        dispatch(isa, ColumnSums { x, totals });
    });
    let Some((all, others)) = totals.split_at_mut_checked(columns) else { return out.fill(f32::NAN) };
    for part in others.chunks_exact(columns) {
        all.iter_mut().zip(part).for_each(|(all, total)| *all += total);
    }
    out.iter_mut().zip(all).for_each(|(out, total)| *out = (*total / rows as f64) as f32);
}

/// The mean of each of `out.len()` rows of a matrix, as exact as [`mean`]. Rows are divided among the threads of
/// `pool` if there are enough elements.
///
/// # Panics
/// If the length of `x` is not a multiple of the number of rows.
pub fn row_means(pool: &Pool, isa: Isa, x: &[f32], out: &mut [f32]) {
    let rows = out.len();
    assert!(rows > 0 && x.len().is_multiple_of(rows), "no matrix of {rows} rows");
    let columns = x.len() / rows;
    pool.parallel_chunks_mut(out, 1, (ELEMENTS / columns.max(1)).max(1), &|i, out| {
        out[0] = mean(isa, &x[i * columns..][..columns]);
    });
}

/// The greatest element; NaN if any is NaN. Negative infinity for an empty slice.
pub fn max(isa: Isa, x: &[f32]) -> f32 {
    dispatch(isa, Max(x))
}

/// The least element; NaN if any is NaN. Infinity for an empty slice.
pub fn min(isa: Isa, x: &[f32]) -> f32 {
    dispatch(isa, Min(x))
}

/// The least and the greatest element; NaN if any is NaN; (infinity, -infinity) for an empty slice.
pub fn min_max(isa: Isa, x: &[f32]) -> (f32, f32) {
    dispatch(isa, MinMax(x))
}

struct WideSquares<'a>(&'a [f32]);

impl Op for WideSquares<'_> {
    type Out = f64;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        let square = |x: f32| f64::from(x) * f64::from(x);
        let mut lanes = [0.0f64; LANES];
        let (chunks, rest) = self.0.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += square(chunk[i]);
            }
        }
        lanes.iter_mut().zip(rest).for_each(|(lane, &x)| *lane += square(x));
        lanes.iter().sum()
    }
}

struct Sum<'a, F> {
    x: &'a [f32],
    of: F,
}

impl<F: Fn(f32) -> f32> Op for Sum<'_, F> {
    type Out = f64;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f64 {
        sum_of(self.x, self.of)
    }
}

/// The sum of `of(element)` over the elements.
#[inline(always)]
pub(super) fn sum_of(x: &[f32], of: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0;
    for block in x.chunks(BLOCK) {
        let mut lanes = [0.0f32; LANES];
        let (chunks, rest) = block.as_chunks::<LANES>();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += of(chunk[i]);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane += of(x);
        }
        total += f64::from(fold_halves(&mut lanes, |a, b| a + b));
    }
    total
}

/// The sums of the columns of a matrix, one for each element of `totals`.
struct ColumnSums<'a> {
    x: &'a [f32],
    totals: &'a mut [f64],
}

impl Op for ColumnSums<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let columns = self.totals.len();
        for (i, totals) in self.totals.chunks_mut(COLUMNS).enumerate() {
            let first = i * COLUMNS;
            let sums = column_sums_of(self.x, columns, first..first + totals.len(), |_, x| x);
            totals.copy_from_slice(&sums[..totals.len()]);
        }
    }
}

/// The sums of `of` over the columns `first..end` of a matrix, at most [`COLUMNS`] of them. `of` gets the column,
/// relative to `first`, and the element.
#[inline(always)]
pub(super) fn column_sums_of(
    x: &[f32],
    columns: usize,
    Range { start: first, end }: Range<usize>,
    of: impl Fn(usize, f32) -> f32,
) -> [f64; COLUMNS] {
    let width = end - first;
    let (mut totals, mut sums) = ([0.0; COLUMNS], [0.0f32; COLUMNS]);
    for rows in x.chunks(ROWS * columns) {
        let sums = &mut sums[..width];
        sums.fill(0.0);
        for row in rows.chunks_exact(columns) {
            let row = &row[first..first + width];
            sums.iter_mut().zip(row).enumerate().for_each(|(c, (sum, &x))| *sum += of(c, x));
        }
        totals.iter_mut().zip(sums).for_each(|(total, sum)| *total += f64::from(*sum));
    }
    totals
}

struct Max<'a>(&'a [f32]);

impl Op for Max<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f32 {
        fold_elements(self.0, f32::NEG_INFINITY, greater_or_nan)
    }
}

struct Min<'a>(&'a [f32]);

impl Op for Min<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f32 {
        fold_elements(self.0, f32::INFINITY, less_or_nan)
    }
}

#[inline(always)]
fn greater_or_nan(m: f32, x: f32) -> f32 {
    if x > m || x.is_nan() { x } else { m }
}

#[inline(always)]
fn less_or_nan(m: f32, x: f32) -> f32 {
    if x < m || x.is_nan() { x } else { m }
}

/// The least and greatest elements in one pass.
struct MinMax<'a>(&'a [f32]);

impl Op for MinMax<'_> {
    type Out = (f32, f32);

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> (f32, f32) {
        // Independent chains: a single one would wait for the latency of each comparison.
        const CHAINS: usize = 4;
        let x = self.0;
        let one_by_one = || {
            (
                fold_elements(x, f32::INFINITY, less_or_nan),
                fold_elements(x, f32::NEG_INFINITY, greater_or_nan),
            )
        };
        let Some(last) = x.len().checked_sub(S::LANES) else { return one_by_one() };
        let mut low = [s.splat(f32::INFINITY); CHAINS];
        let mut high = [s.splat(f32::NEG_INFINITY); CHAINS];
        // Becomes NaN if an element is NaN or infinite.
        let mut probe = [s.splat(0.0); CHAINS];
        let zero = s.splat(0.0);
        let mut at = 0;
        while at < last {
            for i in 0..CHAINS {
                // The last vector overlaps the one before it: folding an element twice changes nothing.
                let start = (at + i * S::LANES).min(last);
                // SAFETY: `S::LANES` elements follow `start`, which is at most `last`.
                let v = unsafe { s.load(x.as_ptr().add(start)) };
                (low[i], high[i]) = (s.min(low[i], v), s.max(high[i], v));
                probe[i] = s.mul_add(v, zero, probe[i]);
            }
            at += CHAINS * S::LANES;
        }
        // SAFETY: `S::LANES` elements follow `last`.
        let v = unsafe { s.load(x.as_ptr().add(last)) };
        (low[0], high[0]) = (s.min(low[0], v), s.max(high[0], v));
        probe[0] = s.mul_add(v, zero, probe[0]);
        let [a, b, c, d] = probe;
        if s.sum(s.add(s.add(a, b), s.add(c, d))).is_nan() {
            return one_by_one();
        }
        let ([a, b, c, d], [e, f, g, h]) = (low, high);
        let (low, high) = (s.min(s.min(a, b), s.min(c, d)), s.max(s.max(e, f), s.max(g, h)));
        (fold_lanes(s, low, less_or_nan), fold_lanes(s, high, greater_or_nan))
    }
}

/// Folds the lanes of a vector with `fold`, which must be commutative and associative.
#[inline(always)]
fn fold_lanes<S: Simd>(s: S, v: S::F, fold: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: a vector has at most `LANES` lanes.
    unsafe { s.store(lanes.as_mut_ptr(), v) };
    fold_halves(&mut lanes[..S::LANES], fold)
}

/// Folds lanes, a power of two in number, by halves: the first half with the second, until one lane is left.
#[inline(always)]
pub(super) fn fold_halves<T: Copy>(lanes: &mut [T], fold: impl Fn(T, T) -> T) -> T {
    let mut width = lanes.len();
    while width > 1 {
        width /= 2;
        for i in 0..width {
            lanes[i] = fold(lanes[i], lanes[i + width]);
        }
    }
    lanes[0]
}

/// Folds the elements with `fold`, which must be commutative and associative and have `start` as its identity.
#[inline(always)]
pub(super) fn fold_elements(x: &[f32], start: f32, fold: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = fold(lanes[i], chunk[i]);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(rest) {
        *lane = fold(*lane, x);
    }
    fold_halves(&mut lanes, fold)
}
