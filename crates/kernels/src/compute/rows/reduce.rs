//! Sums and extremes of contiguous f32, in an order that is the same for every level: sixteen lanes
//! over a block, then the blocks, in f64.

use super::super::isa::Isa;
use super::super::simd::{Op, Simd, dispatch};

const LANES: usize = 16;
/// Elements whose sum is taken in f32.
const BLOCK: usize = 512;

/// The sum; its error is that of summing 32 numbers in f32, however many there are. Zero of none.
pub fn sum(isa: Isa, x: &[f32]) -> f32 {
    dispatch(isa, Sum { x, of: |x| x }) as f32
}

/// The sum of the squares, as [`sum`].
pub fn sum_of_squares(isa: Isa, x: &[f32]) -> f32 {
    dispatch(isa, Sum { x, of: |x| x * x }) as f32
}

/// The greatest; NaN if any is. Negative infinity of none.
pub fn max(isa: Isa, x: &[f32]) -> f32 {
    dispatch(isa, Max(x))
}

/// The least; NaN if any is. Infinity of none.
pub fn min(isa: Isa, x: &[f32]) -> f32 {
    dispatch(isa, Min(x))
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

/// The sum of a function of each element.
#[inline(always)]
pub(super) fn sum_of(x: &[f32], of: impl Fn(f32) -> f32) -> f64 {
    let mut total = 0.0;
    for block in x.chunks(BLOCK) {
        let mut lanes = [0.0f32; LANES];
        let (whole, rest) = block.as_chunks::<LANES>();
        for chunk in whole {
            for i in 0..LANES {
                lanes[i] += of(chunk[i]);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane += of(x);
        }
        let mut step = LANES / 2;
        while step > 0 {
            for i in 0..step {
                lanes[i] += lanes[i + step];
            }
            step /= 2;
        }
        total += f64::from(lanes[0]);
    }
    total
}

struct Max<'a>(&'a [f32]);

impl Op for Max<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f32 {
        extreme(self.0, f32::NEG_INFINITY, |m, x| if x > m || x.is_nan() { x } else { m })
    }
}

struct Min<'a>(&'a [f32]);

impl Op for Min<'_> {
    type Out = f32;

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> f32 {
        extreme(self.0, f32::INFINITY, |m, x| if x < m || x.is_nan() { x } else { m })
    }
}

/// Folds every element into `start` by a function whose order does not matter.
#[inline(always)]
pub(super) fn extreme(x: &[f32], start: f32, fold: impl Fn(f32, f32) -> f32) -> f32 {
    let mut lanes = [start; LANES];
    let (whole, rest) = x.as_chunks::<LANES>();
    for chunk in whole {
        for i in 0..LANES {
            lanes[i] = fold(lanes[i], chunk[i]);
        }
    }
    let folded = rest.iter().fold(start, |m, &x| fold(m, x));
    lanes.iter().fold(folded, |m, &x| fold(m, x))
}
