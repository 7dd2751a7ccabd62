//! The weights of a convolution before they are packed.

use super::params::ConvParams;
use pteron_tensor::Result;
use pteron_tensor::memory::with_room;

/// The weights of a convolution, with their dimensions in any order: `[out, in / groups, tap]`, or if it is
/// transposed `[in, out / groups, tap]`. One stride separates all taps.
#[derive(Clone, Copy, Debug)]
pub struct ConvWeights<'a, T = f32> {
    pub(crate) values: &'a [T],
    /// The strides, in elements, of the three dimensions: first, second, and taps.
    pub(crate) strides: [usize; 3],
    sizes: [usize; 3],
}

impl<'a, T: Copy> ConvWeights<'a, T> {
    /// Dense weights in the order of their dimensions.
    ///
    /// # Panics
    /// If their number does not match the parameters.
    pub fn contiguous(params: &ConvParams, values: &'a [T]) -> Self {
        let [_, inner, taps] = weight_sizes(params);
        assert_eq!(values.len(), params.weight_count(), "weights of {params:?}");
        Self::strided(params, values, [inner * taps, taps, 1])
    }

    /// Weights with the given strides.
    ///
    /// # Panics
    /// If a weight is out of bounds of `values`.
    pub fn strided(params: &ConvParams, values: &'a [T], strides: [usize; 3]) -> Self {
        let sizes = weight_sizes(params);
        let last = sizes
            .iter()
            .zip(&strides)
            .try_fold(0usize, |sum, (&n, &step)| sum.checked_add(n.saturating_sub(1).checked_mul(step)?));
        let fits = sizes.contains(&0) || last.is_some_and(|last| last < values.len());
        assert!(
            fits,
            "weights of {params:?} with strides {strides:?} exceed a slice of {} elements",
            values.len()
        );
        Self { values, strides, sizes }
    }

    /// Panics if the weights do not have the sizes of these parameters.
    pub(crate) fn check(&self, params: &ConvParams) {
        assert_eq!(self.sizes, weight_sizes(params), "weights of {params:?}");
    }

    /// The elements of `values` from index `first` of the first dimension on; empty if there are no weights.
    pub(crate) fn values_from(&self, first: usize) -> &'a [T] {
        self.values.get(first * self.strides[0]..).unwrap_or_default()
    }

    /// The weight at these indices of the first dimension, the second dimension and the taps.
    pub(crate) fn at(&self, first: usize, second: usize, tap: usize) -> T {
        let [a, b, c] = self.strides;
        self.values[first * a + second * b + tap * c]
    }

    /// The stride between consecutive weights of one output channel when they are ordered by tap, then by the second
    /// dimension; `None` if it is not uniform.
    pub(crate) fn step_within_taps(&self) -> Option<usize> {
        let ([_, inner, taps], [_, step, tap]) = (self.sizes, self.strides);
        match (inner, taps) {
            (_, 1) => Some(step),
            (1, _) => Some(tap),
            _ => (tap == inner * step).then_some(step),
        }
    }

    /// The weights copied densely in the order of their dimensions; `None` if they are stored so already.
    pub(crate) fn row_major_copy(&self) -> Result<Option<Vec<T>>> {
        let [outer, inner, taps] = self.sizes;
        let place = |n: usize, step: usize, dense: usize| n <= 1 || step == dense;
        let [a, b, c] = self.strides;
        if place(outer, a, inner * taps) && place(inner, b, taps) && place(taps, c, 1) {
            return Ok(None);
        }
        let mut all = with_room(outer * inner * taps)?;
        for o in 0..outer {
            for i in 0..inner {
                all.extend((0..taps).map(|t| self.at(o, i, t)));
            }
        }
        Ok(Some(all))
    }
}

fn weight_sizes(params: &ConvParams) -> [usize; 3] {
    let groups = params.groups.max(1);
    let (outer, inner) = match params.transposed {
        false => (params.out_channels, params.in_channels / groups),
        true => (params.in_channels, params.out_channels / groups),
    };
    [outer, inner, params.tap_count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_the_same_in_any_order() {
        let params = ConvParams::conv2d(2, 3, [1, 2]);
        let plain: Vec<i32> = (0..12).collect();
        let weights = ConvWeights::contiguous(&params, &plain);
        assert_eq!((weights.row_major_copy().unwrap(), weights.step_within_taps()), (None, None));
        let mut last = vec![0; 12];
        for (i, &w) in plain.iter().enumerate() {
            last[i / 4 * 4 + i % 2 * 2 + i / 2 % 2] = w;
        }
        let weights = ConvWeights::strided(&params, &last, [4, 1, 2]);
        assert_eq!((weights.row_major_copy().unwrap(), weights.step_within_taps()), (Some(plain), Some(1)));
        assert_eq!((weights.at(2, 1, 0), weights.values_from(2)), (10, &[8, 10, 9, 11][..]));
    }

    #[test]
    #[should_panic(expected = "exceed a slice of 11 elements")]
    fn weights_out_of_bounds_are_refused() {
        ConvWeights::strided(&ConvParams::conv2d(2, 3, [1, 2]), &[0; 11], [4, 1, 2]);
    }
}
