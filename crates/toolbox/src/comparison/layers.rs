//! The layers of two programs: which are the same, and how close their values are.

use super::align::{Fingerprint, align};
use super::judge::Judge;
use super::measure::{Closeness, Sums, linear_fit};
use super::record::{Recorded, RecordedLayer};
use super::{Layer, MIN_SQNR};
use crate::Result;
use crate::tolerance::compare;
use pteron_operator::EValue;
use std::borrow::Cow;
use std::collections::HashMap;

pub(super) fn pair_layers(a: &Recorded, b: &Recorded, same_instructions: bool) -> Vec<(usize, usize)> {
    if same_instructions {
        return pair_by_place(a, b);
    }
    fn fingerprints(side: &Recorded) -> Vec<&Fingerprint> {
        side.layers.iter().map(|layer| &layer.fingerprint).collect()
    }
    align(&fingerprints(a), &fingerprints(b))
}

/// Pairs the values of two runs that have the same instruction, output and iteration.
pub(super) fn pair_by_place(a: &Recorded, b: &Recorded) -> Vec<(usize, usize)> {
    let keys = |side: &Recorded| -> Vec<_> {
        let mut seen = HashMap::new();
        let key = |layer: &RecordedLayer| {
            let iteration = seen.entry((layer.place, layer.output)).or_insert(0usize);
            *iteration += 1;
            (layer.place, layer.output, *iteration)
        };
        side.layers.iter().map(key).collect()
    };
    let in_a: HashMap<_, _> = keys(a).into_iter().enumerate().map(|(i, key)| (key, i)).collect();
    keys(b).into_iter().enumerate().filter_map(|(j, key)| Some((*in_a.get(&key)?, j))).collect()
}

impl Judge {
    pub(super) fn compare_layers(
        &self,
        a: &Recorded,
        b: &Recorded,
        pairs: &[(usize, usize)],
    ) -> Result<Vec<Layer>> {
        let both = pairs.iter().map(|&(i, j)| (&a.layers[i], &b.layers[j]));
        both.filter(|(a, b)| a.elements.len() == b.elements.len())
            .map(|(a, b)| self.compare_layer(a, b))
            .collect()
    }

    fn compare_layer(&self, a: &RecordedLayer, b: &RecordedLayer) -> Result<Layer> {
        let closeness = best_closeness(a, b);
        let same_type = a.tensor.dtype() == b.tensor.dtype() && a.tensor.sizes() == b.tensor.sizes();
        let differs = match self.min_sqnr {
            None if same_type => {
                let (a, b) = (EValue::Tensor(a.tensor.clone()), EValue::Tensor(b.tensor.clone()));
                compare(&b, &a, &self.tolerance).is_err()
            }
            // The tolerance of a network: 1e-4 of the largest finite element.
            None => {
                let sizes = a.elements.iter().map(|x| x.abs()).filter(|size| size.is_finite());
                closeness.largest > 1e-4 * sizes.fold(0.0, f64::max)
            }
            Some(min) => closeness.sqnr < min,
        };
        Ok(Layer {
            a: a.text.clone(),
            b: b.text.clone(),
            source: a.fingerprint.source.clone().or_else(|| b.fingerprint.source.clone()),
            sizes: b.tensor.sizes().to_vec(),
            closeness,
            differs,
        })
    }
}

/// How close two values are, with dimensions in the order that makes them closest, because their layouts may differ.
pub(super) fn best_closeness(a: &RecordedLayer, b: &RecordedLayer) -> Closeness {
    let close = |of_b: &[f64]| {
        let (mut of_a, mut of_b) = (Cow::Borrowed(&a.elements[..]), Cow::Borrowed(of_b));
        match (a.fingerprint.is_quantized, b.fingerprint.is_quantized) {
            (false, true) => of_b = linear_fit(&of_b, &of_a).into(),
            (true, false) => of_a = linear_fit(&of_a, &of_b).into(),
            _ => {}
        }
        let mut sums = Sums::default();
        sums.add(&of_a, &of_b);
        sums.closeness()
    };
    let sizes = |layer: &RecordedLayer| -> Vec<usize> {
        layer.tensor.sizes().iter().copied().filter(|&size| size != 1).collect()
    };
    let (sizes_a, sizes_b) = (sizes(a), sizes(b));
    let in_order = (sizes_a == sizes_b).then(|| close(&b.elements));
    if sizes_a.len() > MAX_REORDERED || in_order.is_some_and(|closeness| closeness.sqnr >= MIN_SQNR) {
        return in_order.unwrap_or_else(|| close(&b.elements));
    }
    let fits = |order: &Vec<usize>| order.iter().zip(&sizes_a).all(|(&d, &size)| sizes_b[d] == size);
    let orders = dimension_orders(sizes_b.len()).into_iter().filter(fits);
    let all = orders.map(|order| close(&permute(&b.elements, &sizes_b, &order)));
    all.chain(in_order).max_by(|x, y| x.sqnr.total_cmp(&y.sqnr)).unwrap_or_else(|| close(&b.elements))
}

/// The maximum number of dimensions other than 1 of which all orders are tried.
const MAX_REORDERED: usize = 4;

/// All permutations of `dims` dimensions.
fn dimension_orders(dims: usize) -> Vec<Vec<usize>> {
    let Some(last) = dims.checked_sub(1) else { return vec![Vec::new()] };
    let with_last = |order: Vec<usize>| {
        (0..dims).map(move |at| [&order[..at], &[last], &order[at..]].concat()).collect::<Vec<_>>()
    };
    dimension_orders(last).into_iter().flat_map(with_last).collect()
}

/// The elements of a row-major tensor with its dimensions in another order.
fn permute(elements: &[f64], sizes: &[usize], order: &[usize]) -> Vec<f64> {
    let mut strides = vec![1; sizes.len()];
    (0..sizes.len().saturating_sub(1)).rev().for_each(|d| strides[d] = strides[d + 1] * sizes[d + 1]);
    let mut at = vec![0];
    for &d in order {
        at = at
            .into_iter()
            .flat_map(|start| (0..sizes[d]).map(move |i| (start, i)))
            .map(|(start, i)| start + i * strides[d])
            .collect();
    }
    at.into_iter().map(|at: usize| elements[at]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dimensions_are_reordered() {
        let rows = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        assert_eq!(permute(&rows, &[2, 3], &[1, 0]), [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        assert_eq!(permute(&rows, &[2, 3], &[0, 1]), rows);
        assert_eq!((dimension_orders(0).len(), dimension_orders(3).len()), (1, 6));
    }
}
