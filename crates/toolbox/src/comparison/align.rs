//! Which value of one program is which of another.

use std::collections::HashMap;

/// Properties of a value by which it is matched with a value of the other program.
#[derive(Debug)]
pub(super) struct Fingerprint {
    /// The step or operator that computes the value.
    pub(super) kind: String,
    /// The source line or node of the value, if the program records it.
    pub(super) source: Option<String>,
    /// The sizes other than 1, in ascending order, because the layouts of the programs may differ.
    pub(super) sizes: Vec<usize>,
    /// The mean and standard deviation of the elements.
    moments: [f64; 2],
    /// The quantiles of the elements from minimum to maximum, which do not depend on the layout.
    quantiles: [f64; QUANTILES],
    /// Whether the elements are quantized values, not dequantized by scale and zero point.
    pub(super) is_quantized: bool,
}

const QUANTILES: usize = 16;

/// Maximum number of elements from which the quantiles of a value are computed.
const SAMPLED: usize = 4096;

/// Pairs of a relative difference of quantiles and the weight of two values that differ by no more, the closest first.
const CLOSE: [(f64, u32); 3] = [(0.01, 6), (0.03, 4), (0.1, 2)];

/// The maximum number of candidate pairs per alignment; longer lists are split in halves.
const MAX_PAIRS: usize = 1 << 22;

impl Fingerprint {
    pub(super) fn new(kind: String, source: Option<String>, sizes: &[usize], elements: &[f64]) -> Self {
        let mut sizes: Vec<usize> = sizes.iter().copied().filter(|&size| size != 1).collect();
        sizes.sort_unstable();
        let count = elements.len().max(1) as f64;
        let mean = elements.iter().sum::<f64>() / count;
        let deviation = (elements.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / count).sqrt();
        let mut sample: Vec<f64> =
            elements.iter().step_by(elements.len().div_ceil(SAMPLED).max(1)).copied().collect();
        sample.sort_unstable_by(f64::total_cmp);
        let last = sample.len().saturating_sub(1);
        let quantile = |i: usize| sample.get(i * last / (QUANTILES - 1)).copied().unwrap_or(0.0);
        let quantiles = std::array::from_fn(quantile);
        Self { kind, source, sizes, moments: [mean, deviation], quantiles, is_quantized: false }
    }

    /// The quantiles, less the mean and divided by the deviation: equal for quantized and dequantized values.
    fn standardized_quantiles(&self) -> [f64; QUANTILES] {
        let [mean, deviation] = self.moments;
        self.quantiles.map(|x| if deviation == 0.0 { 0.0 } else { (x - mean) / deviation })
    }

    /// How well two values match, as the weight of their pair; `None` if they cannot be the same value.
    fn weight(&self, other: &Self) -> Option<u32> {
        if self.sizes != other.sizes {
            return None;
        }
        let difference = match self.is_quantized || other.is_quantized {
            true => relative_difference(&self.standardized_quantiles(), &other.standardized_quantiles()),
            false => relative_difference(&self.quantiles, &other.quantiles),
        };
        let closeness = CLOSE.iter().find(|(most, _)| difference <= *most).map_or(0, |(_, weight)| *weight);
        let same_source = self.source.is_some() && self.source == other.source;
        let same_kind = self.kind == other.kind;
        let weight = closeness + 3 * u32::from(same_source) + 2 * u32::from(same_kind);
        (weight > 0).then_some(weight)
    }
}

/// The largest absolute difference of corresponding numbers, relative to the largest magnitude.
fn relative_difference(a: &[f64], b: &[f64]) -> f64 {
    let scale = a.iter().chain(b).fold(0.0, |scale: f64, x| x.abs().max(scale));
    let one = |(a, b): (&f64, &f64)| match a == b || (a.is_nan() && b.is_nan()) {
        true => 0.0,
        false => Some((a - b).abs() / scale).filter(|part| !part.is_nan()).unwrap_or(f64::INFINITY),
    };
    a.iter().zip(b).map(one).fold(0.0, f64::max)
}

/// Pairs the values of two programs, as indices. Both indices increase from pair to pair.
pub(super) fn align(a: &[&Fingerprint], b: &[&Fingerprint]) -> Vec<(usize, usize)> {
    let mut pairs = Vec::new();
    let (mut from_a, mut from_b) = (0, 0);
    for (i, j) in anchors(a, b).into_iter().chain([(a.len(), b.len())]) {
        let part = heaviest_pairs(&a[from_a..i], &b[from_b..j]);
        pairs.extend(part.into_iter().map(|(x, y)| (from_a + x, from_b + y)));
        if i < a.len() && j < b.len() {
            pairs.push((i, j));
        }
        (from_a, from_b) = (i + 1, j + 1);
    }
    pairs
}

/// Pairs of values of equal kind, sizes and moments, unique in both programs. They bound the search for other pairs.
fn anchors(a: &[&Fingerprint], b: &[&Fingerprint]) -> Vec<(usize, usize)> {
    type Key<'f> = (&'f str, &'f [usize], [u32; 2]);
    fn unique_values<'f>(all: &[&'f Fingerprint]) -> HashMap<Key<'f>, Option<usize>> {
        let mut at: HashMap<Key<'f>, Option<usize>> = HashMap::new();
        for (i, f) in all.iter().enumerate() {
            let moments = f.moments.map(|x| (x as f32).to_bits());
            at.entry((&f.kind, &f.sizes, moments)).and_modify(|at| *at = None).or_insert(Some(i));
        }
        at
    }
    let (in_a, in_b) = (unique_values(a), unique_values(b));
    let mut pairs: Vec<(usize, usize)> =
        in_a.iter().filter_map(|(key, &i)| Some((i?, (*in_b.get(key)?)?))).collect();
    pairs.sort_unstable();
    // The longest run in which both go up.
    let mut tails: Vec<usize> = Vec::new();
    let mut before = vec![None; pairs.len()];
    for (at, &(_, j)) in pairs.iter().enumerate() {
        let place = tails.partition_point(|&tail| pairs[tail].1 < j);
        before[at] = place.checked_sub(1).map(|place| tails[place]);
        match tails.get_mut(place) {
            Some(tail) => *tail = at,
            None => tails.push(at),
        }
    }
    let mut run: Vec<_> =
        std::iter::successors(tails.last().copied(), |&at| before[at]).map(|at| pairs[at]).collect();
    run.reverse();
    run
}

/// The pairs of greatest weight in all, in the order of both (Needleman and Wunsch, 1970). Long parts are divided in the
/// middle, so that the cost grows with their length.
fn heaviest_pairs(a: &[&Fingerprint], b: &[&Fingerprint]) -> Vec<(usize, usize)> {
    if a.len().saturating_mul(b.len()) > MAX_PAIRS {
        let (i, j) = (a.len() / 2, b.len() / 2);
        let mut pairs = heaviest_pairs(&a[..i], &b[..j]);
        pairs.extend(heaviest_pairs(&a[i..], &b[j..]).into_iter().map(|(x, y)| (i + x, j + y)));
        return pairs;
    }
    let width = b.len() + 1;
    // `best[i * width + j]` is the greatest weight of pairs among the first i values of `a` and the first j values of `b`.
    let mut best = vec![0u32; (a.len() + 1) * width];
    let weight = |i: usize, j: usize| a[i].weight(b[j]);
    for i in 0..a.len() {
        for j in 0..b.len() {
            let paired = weight(i, j).map_or(0, |weight| best[i * width + j] + weight);
            best[(i + 1) * width + j + 1] =
                paired.max(best[i * width + j + 1]).max(best[(i + 1) * width + j]);
        }
    }
    let (mut i, mut j, mut pairs) = (a.len(), b.len(), Vec::new());
    while i > 0 && j > 0 {
        let here = best[i * width + j];
        if here == best[(i - 1) * width + j] {
            i -= 1;
        } else if here == best[i * width + j - 1] {
            j -= 1;
        } else {
            (i, j) = (i - 1, j - 1);
            pairs.push((i, j));
        }
    }
    pairs.reverse();
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(kind: &str, size: usize, first: f64) -> Fingerprint {
        let elements: Vec<f64> = (0..size).map(|i| first + i as f64).collect();
        Fingerprint::new(kind.to_owned(), None, &[1, size], &elements)
    }

    #[test]
    fn values_are_paired_by_content_kind_and_source() {
        let a =
            [value("conv", 8, 0.0), value("relu", 8, 1.0), value("linear", 4, 5.0), value("softmax", 4, 0.0)];
        // In `b`, convolution and activation are one step, and the linear layer computes other values.
        let b = [value("convolution", 8, 1.0), value("linear", 4, 50.0), value("softmax", 4, 3.0)];
        let (a, b) = (a.each_ref(), b.each_ref());
        assert_eq!(align(&a, &b), [(1, 0), (2, 1), (3, 2)]);
        assert_eq!(align(&a, &a), [(0, 0), (1, 1), (2, 2), (3, 3)]);
        assert_eq!(align(&a, &[]), []);
        let mut moved = value("mul", 8, 77.0);
        moved.source = Some("model.py:3".to_owned());
        let mut other = value("affine", 8, 99.0);
        assert_eq!(align(&[&moved], &[&other]), []);
        other.source.clone_from(&moved.source);
        assert_eq!(align(&[&moved], &[&other]), [(0, 0)]);
    }

    #[test]
    fn long_programs_are_divided() {
        let all: Vec<Fingerprint> = (0..6000).map(|i| value("add", 1 + i % 3, 0.0)).collect();
        let all: Vec<&Fingerprint> = all.iter().collect();
        assert_eq!(align(&all, &all).len(), 6000);
    }
}
