//! The greatest or least elements of rows and of columns, and their positions.

use super::super::isa::Isa;
use super::super::simd::{Op, Simd, dispatch};
use super::super::split::ELEMENTS;
use super::reduce::fold_halves;
use pteron_pool::Pool;

/// Element types with an order, in which NaN beats every other value.
pub trait Ordered: Copy + Default + Send + Sync + 'static {
    /// Whether `self` is greater (less, if `least`) than `other`, or NaN while `other` is not.
    fn beats(self, other: Self, least: bool) -> bool;
    /// Whether the two values are equal, or both NaN.
    fn is_same(self, other: Self) -> bool;
}

macro_rules! ordered {
    ($($type:ty, $is_nan:expr;)*) => { $(
        impl Ordered for $type {
            #[inline(always)]
            fn beats(self, other: Self, least: bool) -> bool {
                let better = if least { self < other } else { self > other };
                better | ($is_nan(self) & !$is_nan(other))
            }
            #[inline(always)]
            fn is_same(self, other: Self) -> bool {
                (self == other) | ($is_nan(self) & $is_nan(other))
            }
        }
    )* };
}

ordered! {
    f32, f32::is_nan;
    f64, f64::is_nan;
    i64, |_| false;
}

/// The number of elements that are compared at once, lane by lane.
const LANES: usize = 16;
/// The number of elements that are searched together for the position of an extreme.
const BLOCK: usize = 64;
/// The number of columns that are processed together.
const COLUMNS: usize = 64;
/// The number of rows after which i32 positions within columns are added to the i64 results.
const ROWS: usize = 1 << 24;

/// The results wanted of [`extremes`]: the extreme elements, their first positions in the row or column, or both.
pub struct Extremes<'a, T> {
    /// Whether to find the least elements rather than the greatest.
    pub least: bool,
    /// The extreme elements.
    pub values: Option<&'a mut [T]>,
    /// The positions of the extreme elements.
    pub places: Option<&'a mut [i64]>,
}

/// The extremes along the middle of three dimensions `[outer, n, inner]`, none of which may be zero; NaN if any
/// element is NaN. The work is divided among the threads of `pool` along `outer`.
///
/// # Panics
/// If the length of `x` is not a multiple of `n * inner`, or a result does not have `outer * inner` elements.
pub fn extremes<T: Ordered>(
    pool: &Pool,
    isa: Isa,
    (n, inner): (usize, usize),
    x: &[T],
    out: Extremes<'_, T>,
) {
    let block = n * inner;
    assert!(
        block > 0 && x.len().is_multiple_of(block),
        "{} elements are not whole matrices of {n} x {inner}",
        x.len()
    );
    let results = x.len() / n;
    let Extremes { least, mut values, mut places } = out;
    assert!(values.as_ref().is_none_or(|v| v.len() == results), "values of extremes");
    assert!(places.as_ref().is_none_or(|p| p.len() == results), "places of extremes");
    // Pieces of the input and the results, each for one thread.
    let each = (ELEMENTS / block).max(1);
    let mut pieces = Vec::new();
    for x in x.chunks(each * block) {
        let (values, places) =
            (split_off_first(&mut values, x.len() / n), split_off_first(&mut places, x.len() / n));
        pieces.push((x, Extremes { least, values, places }));
    }
    pool.parallel_chunks_mut(&mut pieces, 1, 1, &|_, piece| {
        let [(x, out)] = piece else { return };
        for (i, x) in x.chunks_exact(block).enumerate() {
            let part = i * inner..(i + 1) * inner;
            let out = Extremes {
                least,
                values: out.values.as_deref_mut().map(|v| &mut v[part.clone()]),
                places: out.places.as_deref_mut().map(|p| &mut p[part]),
            };
            match inner {
                1 => dispatch(isa, RowExtremes { x, out }),
                _ => dispatch(isa, ColumnExtremes { x, inner, out }),
            }
        }
    });
}

/// Splits off the first `n` elements of `rest`.
fn split_off_first<'a, T>(rest: &mut Option<&'a mut [T]>, n: usize) -> Option<&'a mut [T]> {
    let (first, others) = rest.take()?.split_at_mut(n);
    *rest = Some(others);
    Some(first)
}

struct RowExtremes<'a, T> {
    x: &'a [T],
    out: Extremes<'a, T>,
}

impl<T: Ordered> Op for RowExtremes<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { x, out: Extremes { least, values, places } } = self;
        let better = |best: T, x: T| if x.beats(best, least) { x } else { best };
        let (chunks, rest) = x.as_chunks::<LANES>();
        let mut lanes = [x[0]; LANES];
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] = better(lanes[i], chunk[i]);
            }
        }
        let best = rest.iter().fold(fold_halves(&mut lanes, better), |best, &x| better(best, x));
        if let Some(values) = values {
            values[0] = best;
        }
        if let Some(places) = places {
            let block =
                x.chunks(BLOCK).position(|block| block.iter().fold(false, |any, x| any | x.is_same(best)));
            let start = block.unwrap_or(0) * BLOCK;
            let within = match x[start..].first_chunk::<BLOCK>() {
                Some(block) => {
                    let bits =
                        block.iter().rev().fold(0u64, |bits, x| bits << 1 | u64::from(x.is_same(best)));
                    bits.trailing_zeros() as usize
                }
                None => x[start..].iter().position(|x| x.is_same(best)).unwrap_or(0),
            };
            places[0] = (start + within) as i64;
        }
    }
}

struct ColumnExtremes<'a, T> {
    x: &'a [T],
    inner: usize,
    out: Extremes<'a, T>,
}

impl<T: Ordered> Op for ColumnExtremes<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Self { x, inner, out: Extremes { least, mut values, mut places } } = self;
        for first in (0..inner).step_by(COLUMNS) {
            let width = COLUMNS.min(inner - first);
            let mut best = [T::default(); COLUMNS];
            best[..width].copy_from_slice(&x[first..first + width]);
            let mut positions = [0i64; COLUMNS];
            for (part, x) in x.chunks(ROWS.saturating_mul(inner)).enumerate() {
                let mut at = [-1i32; COLUMNS];
                for (row, x) in x.chunks_exact(inner).enumerate() {
                    let columns = best[..width].iter_mut().zip(&mut at[..width]);
                    for ((best, at), &x) in columns.zip(&x[first..first + width]) {
                        let better = x.beats(*best, least);
                        *best = if better { x } else { *best };
                        *at = if better { row as i32 } else { *at };
                    }
                }
                for (position, at) in positions.iter_mut().zip(at) {
                    if at >= 0 {
                        *position = (part * ROWS) as i64 + i64::from(at);
                    }
                }
            }
            if let Some(values) = &mut values {
                values[first..first + width].copy_from_slice(&best[..width]);
            }
            if let Some(places) = &mut places {
                places[first..first + width].copy_from_slice(&positions[..width]);
            }
        }
    }
}
