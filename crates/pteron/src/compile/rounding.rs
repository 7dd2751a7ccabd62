//! Rounds weights to int8 so that the results of a layer on calibration data stay close, rather than each weight.
//!
//! A weight that is rounded up can make up for one that was rounded down if their inputs go together. With the sums of products of a layer's
//! inputs over the samples, `H`, the expected squared error of a result is `e H e` for the errors `e` of its weights. Starting from the
//! nearest values, each weight in turn takes the value that minimizes it, given the others.

use pteron_compiler::{LayerObservation, RoundedWeights};
use pteron_kernels::compute::{Epilogue, Isa, MatMut, MatRef, gemm};
use pteron_pool::Pool;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// The maximum number of elements of `H`, for all groups of a layer; the weights of larger layers are rounded one by one.
const MAX_ELEMENTS: usize = 1 << 22;
/// The maximum number of rows that a sample adds, at equal distances.
const MAX_ROWS: usize = 512;
/// The number of times that each weight is revised.
const ROUNDS: usize = 4;
/// What is added to the diagonal, relative to its mean: always, and for each row that there is too few of.
const DAMPING: (f64, f64) = (0.01, 0.1);

/// The sums of products of the inputs of a layer, or of several that have the same weights: these are rounded once, so that a file stores
/// them once.
pub(super) struct Moments {
    /// One of the layers.
    layer: LayerObservation,
    /// The names of the other layers and of their inputs.
    others: Vec<(String, String)>,
    rows: u64,
    /// For each group, a matrix with as many rows and columns as a result has weights.
    sums: Vec<f32>,
}

impl Moments {
    /// `None` if the layer is too large.
    fn new(layer: &LayerObservation) -> Option<Self> {
        let columns = layer.shape.columns();
        let elements = columns.checked_mul(columns)?.checked_mul(layer.shape.groups())?;
        (columns > 0 && elements <= MAX_ELEMENTS).then(|| Self {
            layer: layer.clone(),
            others: Vec::new(),
            rows: 0,
            sums: vec![0.0; elements],
        })
    }

    /// The moments of the layers that are not too large.
    pub(super) fn of_layers(layers: &[LayerObservation]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        let mut of_hash: HashMap<u64, Vec<usize>> = HashMap::new();
        for layer in layers {
            let mut hasher = DefaultHasher::new();
            layer.weights.iter().for_each(|weight| weight.to_bits().hash(&mut hasher));
            let similar = of_hash.entry(hasher.finish()).or_default();
            let is_same = |of: &Self| of.layer.shape == layer.shape && of.layer.weights == layer.weights;
            match similar.iter().find(|&&at| is_same(&all[at])) {
                Some(&at) => all[at].others.push((layer.name.clone(), layer.input.clone())),
                None => {
                    if let Some(moments) = Self::new(layer) {
                        similar.push(all.len());
                        all.push(moments);
                    }
                }
            }
        }
        all
    }

    /// The names of the layers.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        std::iter::once(&*self.layer.name).chain(self.others.iter().map(|(name, _)| &**name))
    }

    /// Whether `value` is the input of one of the layers.
    pub(super) fn is_input(&self, value: &str) -> bool {
        self.layer.input == value || self.others.iter().any(|(_, input)| input == value)
    }

    /// Adds the rows of an input: row-major elements of these sizes.
    pub(super) fn add(&mut self, x: &[f32], sizes: &[usize]) {
        let (columns, groups) = (self.layer.shape.columns(), self.layer.shape.groups());
        let Some(rows) = self.layer.shape.rows(sizes).filter(|&rows| rows > 0 && !x.is_empty()) else {
            return;
        };
        let step = rows.div_ceil(MAX_ROWS);
        let count = rows.div_ceil(step);
        let (mut matrix, mut products) = (vec![0f32; count * columns], vec![0f32; columns * columns]);
        for group in 0..groups {
            for (row, to) in matrix.chunks_exact_mut(columns).enumerate() {
                self.layer.shape.copy_row(x, sizes, group, row * step, to);
            }
            let rows = MatRef::new(&matrix, count, columns);
            let to = MatMut::new(&mut products, columns, columns);
            gemm(Pool::alone(), Isa::detect(), rows.t(), rows, to, &Epilogue::NONE);
            let sums = &mut self.sums[group * columns * columns..][..columns * columns];
            sums.iter_mut().zip(&products).for_each(|(sum, product)| *sum += product);
        }
        self.rows += count as u64;
    }

    /// The weights of the layer as int8, with the scales that map the largest of each output to 127.
    pub(super) fn round(&self) -> Option<RoundedWeights> {
        let (columns, groups) = (self.layer.shape.columns(), self.layer.shape.groups());
        let weights = &self.layer.weights;
        let outputs = weights.len() / columns;
        let per_group = outputs / groups;
        if self.rows == 0 || outputs == 0 || !self.sums.iter().all(|sum| sum.is_finite()) {
            return None;
        }
        let mut values = vec![0i8; weights.len()];
        let mut scales = Vec::with_capacity(outputs);
        for group in 0..groups {
            let matrix = self.damped(group);
            for output in group * per_group..(group + 1) * per_group {
                let at = output * columns..(output + 1) * columns;
                scales.push(round_row(&weights[at.clone()], &matrix, &mut values[at]));
            }
        }
        Some(RoundedWeights { values, scales })
    }

    /// The matrix of a group per row, with a larger diagonal: few samples do not tell which errors cancel in others.
    fn damped(&self, group: usize) -> Vec<f32> {
        let columns = self.layer.shape.columns();
        let sums = &self.sums[group * columns * columns..][..columns * columns];
        let rows = self.rows as f64;
        let trace: f64 = sums.iter().step_by(columns + 1).map(|&sum| f64::from(sum)).sum();
        let share = DAMPING.0 + DAMPING.1 * columns as f64 / rows;
        let more = (share * trace / rows / columns as f64).max(f64::from(f32::MIN_POSITIVE)) as f32;
        let mut matrix: Vec<f32> = sums.iter().map(|sum| sum / rows as f32).collect();
        matrix.iter_mut().step_by(columns + 1).for_each(|x| *x += more);
        matrix
    }
}

/// Rounds the weights of an output to `values`, and returns their scale.
fn round_row(weights: &[f32], matrix: &[f32], values: &mut [i8]) -> f32 {
    let columns = weights.len();
    let scale = RoundedWeights::scale(weights);
    let mut errors = vec![0f32; columns];
    for ((weight, value), error) in weights.iter().zip(values.iter_mut()).zip(&mut errors) {
        let nearest = (weight / scale).round_ties_even().clamp(-127.0, 127.0);
        (*value, *error) = (nearest as i8, weight - nearest * scale);
    }
    // Half of the gradient by the errors.
    let mut slopes = vec![0f32; columns];
    for (row, &error) in matrix.chunks_exact(columns).zip(&errors) {
        slopes.iter_mut().zip(row).for_each(|(slope, &x)| *slope += x * error);
    }
    for _ in 0..ROUNDS {
        let mut is_changed = false;
        for (c, row) in matrix.chunks_exact(columns).enumerate() {
            let best = f32::from(values[c]) + slopes[c] / row[c] / scale;
            let best = best.round_ties_even().clamp(-127.0, 127.0);
            let change = (best - f32::from(values[c])) * scale;
            if change != 0.0 {
                (values[c], is_changed) = (best as i8, true);
                slopes.iter_mut().zip(row).for_each(|(slope, &x)| *slope -= x * change);
            }
        }
        if !is_changed {
            break;
        }
    }
    scale
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_compiler::LayerShape;

    fn rounded(weights: &[f32], columns: usize, rows: &[f32]) -> RoundedWeights {
        let layer = LayerObservation {
            name: "y".to_owned(),
            input: "x".to_owned(),
            weights: weights.into(),
            shape: LayerShape::Rows { columns },
        };
        let mut moments = Moments::new(&layer).unwrap();
        moments.add(rows, &[rows.len() / columns, columns]);
        moments.round().unwrap()
    }

    #[test]
    fn errors_of_inputs_that_go_together_cancel() {
        let rows: Vec<f32> = (0..64).flat_map(|i| [i as f32, i as f32 + 0.01, 1.0]).collect();
        let found = rounded(&[40.4, 40.4, 127.0], 3, &rows);
        assert_eq!((found.values.iter().map(|&v| i32::from(v)).sum::<i32>(), found.scales[0]), (208, 1.0));
    }

    #[test]
    fn independent_inputs_round_to_the_nearest() {
        let rows: Vec<f32> = (0..64).flat_map(|i| [(i % 2) as f32, ((i + 1) % 2) as f32]).collect();
        assert_eq!(rounded(&[127.0, 40.4, -3.1, -6.0], 2, &rows).values, [127, 40, -66, -127]);
    }

    #[test]
    fn layers_with_the_same_weights_are_rounded_once() {
        let layer = |name: &str, input: &str, weight: f32| LayerObservation {
            name: name.to_owned(),
            input: input.to_owned(),
            weights: [weight, 127.0].into(),
            shape: LayerShape::Rows { columns: 2 },
        };
        let found = Moments::of_layers(&[layer("a", "x", 0.5), layer("b", "y", 0.5), layer("c", "x", 1.5)]);
        let names: Vec<Vec<&str>> = found.iter().map(|moments| moments.names().collect()).collect();
        assert_eq!(names, [vec!["a", "b"], vec!["c"]]);
        assert_eq!(["x", "y", "z"].map(|value| found[0].is_input(value)), [true, true, false]);
    }

    #[test]
    fn a_layer_without_samples_is_left() {
        let layer = LayerObservation {
            name: String::new(),
            input: String::new(),
            weights: [1.0].into(),
            shape: LayerShape::Rows { columns: 1 },
        };
        assert_eq!(Moments::new(&layer).unwrap().round(), None);
        assert!(
            Moments::new(&LayerObservation { shape: LayerShape::Rows { columns: 1 << 12 }, ..layer })
                .is_none()
        );
    }
}
