//! How close two tensors are.

use crate::{Result, show};
use pteron_tensor::{DimOrder, Tensor, TensorMeta};
use serde::Serialize;

/// How close values of two programs are. In JSON, infinite numbers are `null`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Closeness {
    /// The largest absolute difference; infinite if an element is NaN or infinite in only one program.
    pub largest: f64,
    /// The signal-to-noise ratio in decibels: `10 log10(Σ a² / Σ (a - b)²)`. Infinite if the values are equal, negatively
    /// infinite if an element is NaN or infinite in only one program.
    pub sqnr: f64,
    /// The cosine similarity; 1 if the elements of both values are all zero.
    pub cosine: f64,
}

/// Sums over the elements of pairs of tensors, from which [`Closeness`] is computed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sums {
    largest: f64,
    aa: f64,
    bb: f64,
    ab: f64,
    noise: f64,
}

impl Sums {
    /// Adds the elements of a pair of row-major lists of equal lengths.
    pub(super) fn add(&mut self, a: &[f64], b: &[f64]) {
        for (&a, &b) in a.iter().zip(b) {
            if a == b || (a.is_nan() && b.is_nan()) {
                let a = if a.is_finite() { a } else { 0.0 };
                self.aa += a * a;
                self.bb += a * a;
                self.ab += a * a;
                continue;
            }
            let difference = (a - b).abs();
            self.largest = self.largest.max(if difference.is_nan() { f64::INFINITY } else { difference });
            self.noise += if difference.is_nan() { f64::INFINITY } else { difference * difference };
            self.aa += a * a;
            self.bb += b * b;
            self.ab += a * b;
        }
    }

    /// The energies of the signal and of the noise.
    pub(super) fn energies(&self) -> [f64; 2] {
        [self.aa, self.noise]
    }

    pub(super) fn closeness(&self) -> Closeness {
        let sqnr = match self.noise {
            0.0 => f64::INFINITY,
            // The signal may be infinite or NaN as well: it would make the ratio NaN, which no minimum exceeds.
            f64::INFINITY => f64::NEG_INFINITY,
            noise => 10.0 * (self.aa / noise).log10(),
        };
        let norms = (self.aa * self.bb).sqrt();
        let cosine = if norms == 0.0 { f64::from(u8::from(self.aa == self.bb)) } else { self.ab / norms };
        Closeness { largest: self.largest, sqnr, cosine }
    }
}

/// The elements of a numeric tensor in row-major order; a complex element gives two numbers.
pub(super) fn elements(tensor: &Tensor) -> Result<Option<Vec<f64>>> {
    let mut tensor = tensor.to_dim_order(DimOrder::contiguous(tensor.rank()))?;
    if tensor.dtype().is_complex() {
        let parts = TensorMeta::contiguous(tensor.dtype().to_real(), &[tensor.numel(), 2])?;
        tensor = Tensor::from_bytes(parts, tensor.bytes())?;
    }
    let Some(number) = show::numbers(&tensor) else { return Ok(None) };
    let mut elements = Vec::new();
    elements
        .try_reserve_exact(tensor.numel())
        .map_err(|_| pteron_tensor::Error::OutOfMemory(tensor.numel().saturating_mul(8)))?;
    elements.extend((0..tensor.numel()).map(number));
    Ok(Some(elements))
}

/// The least-squares line `slope x + offset` through the points (`x`, `y`), applied to `x`. It gives an approximation of the values of an
/// 8-bit tensor `x` whose scale and zero point are not known, if `y` are the values that it should have.
pub(super) fn linear_fit(x: &[f64], y: &[f64]) -> Vec<f64> {
    let count = x.len().max(1) as f64;
    let (mean_x, mean_y) = (x.iter().sum::<f64>() / count, y.iter().sum::<f64>() / count);
    let (mut covariance, mut variance) = (0.0, 0.0);
    for (&x, &y) in x.iter().zip(y) {
        covariance += (x - mean_x) * (y - mean_y);
        variance += (x - mean_x) * (x - mean_x);
    }
    let slope = if variance == 0.0 { 0.0 } else { covariance / variance };
    x.iter().map(|&x| mean_y + slope * (x - mean_x)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: &[f64], b: &[f64]) -> Closeness {
        let mut sums = Sums::default();
        sums.add(a, b);
        sums.closeness()
    }

    #[test]
    fn equal_values_have_no_noise() {
        let same = close(&[1.0, f64::NAN, f64::INFINITY], &[1.0, f64::NAN, f64::INFINITY]);
        assert_eq!(same, Closeness { largest: 0.0, sqnr: f64::INFINITY, cosine: 1.0 });
        assert_eq!(close(&[0.0], &[0.0]).cosine, 1.0);
    }

    #[test]
    fn noise_is_relative_to_the_first() {
        let tenth = close(&[10.0, 0.0], &[9.0, 0.0]);
        assert_eq!((tenth.largest, tenth.cosine), (1.0, 1.0));
        assert!((tenth.sqnr - 20.0).abs() < 1e-12);
        assert_eq!(close(&[1.0], &[f64::NAN]).largest, f64::INFINITY);
        for (a, b) in
            [(1.0, f64::NAN), (f64::NAN, 1.0), (f64::INFINITY, 1.0), (f64::INFINITY, f64::NEG_INFINITY)]
        {
            assert_eq!(close(&[a, 2.0], &[b, 2.0]).sqnr, f64::NEG_INFINITY, "{a} {b}");
        }
        assert_eq!(close(&[1.0], &[-1.0]).cosine, -1.0);
    }

    #[test]
    fn quantized_values_fit_those_they_stand_for() {
        assert_eq!(linear_fit(&[-128.0, 0.0, 127.0], &[-64.0, 0.0, 63.5]), [-64.0, 0.0, 63.5]);
        assert_eq!(linear_fit(&[3.0, 3.0], &[1.0, 2.0]), [1.5, 1.5]);
    }
}
