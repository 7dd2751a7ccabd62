//! Normalisation of rows.
//!
//! The variance takes a second pass, over the differences from the mean: `mean(x^2) - mean(x)^2` in one pass cancels
//! where the mean is large (Chan, Golub and LeVeque, "Algorithms for Computing the Sample Variance", 1983). A row is in
//! the caches by then.

use super::super::isa::Isa;
use super::super::simd::{Op, Simd, dispatch};
use super::each_row;
use super::reduce::sum_of;
use pteron_pool::Pool;

/// `(mean, 1 / sqrt(variance + eps))` of the elements, with the population variance.
pub fn mean_rstd(isa: Isa, x: &[f32], eps: f32) -> (f32, f32) {
    dispatch(isa, MeanRstd { x, eps })
}

/// `(x - mean) * rstd * weight + bias` of each row of `n` elements, with the mean and `rstd` of the row as
/// [`mean_rstd`] gives them; `weight` and `bias` have `n` elements. Rows are divided among the threads of `pool`.
///
/// # Panics
/// If lengths contradict each other.
pub fn layer_norm(
    pool: &Pool,
    isa: Isa,
    eps: f32,
    n: usize,
    x: &[f32],
    (weight, bias): (Option<&[f32]>, Option<&[f32]>),
    out: &mut [f32],
) {
    check(n, weight);
    check(n, bias);
    each_row(pool, n, x, out, &|x, out| dispatch(isa, LayerNorm { x, weight, bias, eps, out }));
}

/// `x / sqrt(mean(x^2) + eps) * weight` of each row of `n` elements. Rows are divided among the threads
/// of `pool`.
///
/// # Panics
/// If lengths contradict each other.
pub fn rms_norm(
    pool: &Pool,
    isa: Isa,
    eps: f32,
    n: usize,
    x: &[f32],
    weight: Option<&[f32]>,
    out: &mut [f32],
) {
    check(n, weight);
    each_row(pool, n, x, out, &|x, out| dispatch(isa, RmsNorm { x, weight, eps, out }));
}

/// `x * scale + shift` for each element, with the same scale and shift for all.
pub fn affine(isa: Isa, scale: f32, shift: f32, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths of an affine map");
    dispatch(isa, Affine { scale, shift, x, out });
}

fn check(n: usize, vector: Option<&[f32]>) {
    assert!(vector.is_none_or(|v| v.len() == n), "weight and bias of rows of {n} elements");
}

struct MeanRstd<'a> {
    x: &'a [f32],
    eps: f32,
}

impl Op for MeanRstd<'_> {
    type Out = (f32, f32);

    #[inline(always)]
    fn run<S: Simd>(self, _: S) -> (f32, f32) {
        mean_rstd_of(self.x, self.eps)
    }
}

#[inline(always)]
fn mean_rstd_of(x: &[f32], eps: f32) -> (f32, f32) {
    let n = x.len() as f64;
    let mean = (sum_of(x, |x| x) / n) as f32;
    let variance = sum_of(x, |x| (x - mean) * (x - mean)) / n;
    (mean, (1.0 / (variance + f64::from(eps)).sqrt()) as f32)
}

struct LayerNorm<'a> {
    x: &'a [f32],
    weight: Option<&'a [f32]>,
    bias: Option<&'a [f32]>,
    eps: f32,
    out: &'a mut [f32],
}

impl Op for LayerNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let LayerNorm { x, weight, bias, eps, out } = self;
        let (mean, rstd) = mean_rstd_of(x, eps);
        match (weight, bias) {
            (Some(w), Some(b)) => {
                for (((out, &x), &w), &b) in out.iter_mut().zip(x).zip(w).zip(b) {
                    *out = s.mul_add_scalar((x - mean) * rstd, w, b);
                }
            }
            _ => {
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = (x - mean) * rstd;
                }
                if let Some(w) = weight {
                    out.iter_mut().zip(w).for_each(|(out, &w)| *out *= w);
                }
                if let Some(b) = bias {
                    out.iter_mut().zip(b).for_each(|(out, &b)| *out += b);
                }
            }
        }
    }
}

struct RmsNorm<'a> {
    x: &'a [f32],
    weight: Option<&'a [f32]>,
    eps: f32,
    out: &'a mut [f32],
}

impl Op for RmsNorm<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let RmsNorm { x, weight, eps, out } = self;
        let mean = sum_of(x, |x| x * x) / x.len() as f64;
        let scale = (1.0 / (mean + f64::from(eps)).sqrt()) as f32;
        match weight {
            Some(w) => {
                for ((out, &x), &w) in out.iter_mut().zip(x).zip(w) {
                    *out = x * scale * w;
                }
            }
            None => {
                for (out, &x) in out.iter_mut().zip(x) {
                    *out = x * scale;
                }
            }
        }
    }
}

struct Affine<'a> {
    scale: f32,
    shift: f32,
    x: &'a [f32],
    out: &'a mut [f32],
}

impl Op for Affine<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (out, &x) in self.out.iter_mut().zip(self.x) {
            *out = s.mul_add_scalar(x, self.scale, self.shift);
        }
    }
}
