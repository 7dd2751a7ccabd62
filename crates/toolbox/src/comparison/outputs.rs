//! The outputs of two programs.

use super::judge::Judge;
use super::measure::{Sums, elements};
use super::{OutputComparison, Side};
use crate::tolerance::compare;
use crate::{Error, Result};
use pteron_operator::EValue;

/// An output under comparison.
#[derive(Default)]
struct OutputSums {
    sums: Sums,
    numbers: bool,
    /// The energies of the signal and of the noise in each sample.
    energies: Vec<[f64; 2]>,
    /// The number of rows whose largest element has the same position in both programs, and the number of all rows.
    tops: Option<(usize, usize)>,
    difference: Option<String>,
}

/// How close outputs of a program are to expected ones, over samples.
#[derive(Default)]
pub struct OutputCloseness {
    all: Vec<OutputSums>,
}

impl OutputCloseness {
    /// Adds the outputs of a sample.
    ///
    /// # Errors
    /// There are more or fewer of them than expected.
    pub fn add(&mut self, expected: &[EValue], found: &[EValue]) -> Result<()> {
        self.add_judged(expected, found, &Judge::with_min_sqnr(f64::NEG_INFINITY))
    }

    fn add_judged(&mut self, expected: &[EValue], found: &[EValue], judge: &Judge) -> Result<()> {
        if expected.len() != found.len() {
            let problem = format!(
                "the programs have {} and {} outputs: they are of different models",
                expected.len(),
                found.len()
            );
            return Err(Error::input(problem));
        }
        self.all.resize_with(expected.len(), OutputSums::default);
        for (output, (a, b)) in self.all.iter_mut().zip(expected.iter().zip(found)) {
            output.add(a, b, judge)?;
        }
        Ok(())
    }

    /// The standard error of each output's signal-to-noise ratio, in decibels: how much it would change with other samples of the same
    /// kind. 0 for a single sample, and where the ratio is not finite.
    pub fn standard_errors(&self) -> Vec<f64> {
        self.all.iter().map(OutputSums::standard_error).collect()
    }

    /// The closeness of each output. `difference` is set only if sizes, or values that are not numeric, differ.
    pub fn finish(self, names: impl IntoIterator<Item = Option<String>>) -> Vec<OutputComparison> {
        self.finish_judged(names, &Judge::with_min_sqnr(f64::NEG_INFINITY))
    }

    fn finish_judged(
        self,
        names: impl IntoIterator<Item = Option<String>>,
        judge: &Judge,
    ) -> Vec<OutputComparison> {
        let finish = |(output, name): (OutputSums, Option<String>)| output.finish(name, judge);
        self.all.into_iter().zip(names).map(finish).collect()
    }
}

/// Runs both programs on all samples and compares their outputs. The methods are loaded anew, prepared and without the recorder
/// of values, which copies every value of a run and may run the programs as written.
pub(super) fn compare_outputs(
    a: Side<'_>,
    b: Side<'_>,
    method: &str,
    samples: &[Vec<EValue>],
    judge: &Judge,
) -> Result<Vec<OutputComparison>> {
    let mut of_a = a.program.load_method(method, a.options.clone())?;
    let names = a.program.method_meta(method)?.value_names()?.outputs;
    compare_outputs_with(|i| Ok(of_a.execute(&samples[i])?), names, b, method, samples, judge)
}

/// Runs program `b` on all samples, and compares its outputs for sample `i` with `of_a(i)`, those of the other program.
pub(super) fn compare_outputs_with(
    mut of_a: impl FnMut(usize) -> Result<Vec<EValue>>,
    names_of_a: Vec<Option<String>>,
    b: Side<'_>,
    method: &str,
    samples: &[Vec<EValue>],
    judge: &Judge,
) -> Result<Vec<OutputComparison>> {
    let mut of_b = b.program.load_method(method, b.options.clone())?;
    let mut all = OutputCloseness::default();
    for (i, sample) in samples.iter().enumerate() {
        all.add_judged(&of_a(i)?, &of_b.execute(sample)?, judge)?;
    }
    let names_of_a = names_of_a.into_iter().chain(std::iter::repeat(None));
    let names = b.program.method_meta(method)?.value_names()?.outputs;
    let names = names_of_a.zip(names).map(|(a, b)| a.or(b));
    Ok(all.finish_judged(names, judge))
}

impl OutputSums {
    fn add(&mut self, a: &EValue, b: &EValue, judge: &Judge) -> Result<()> {
        let (EValue::Tensor(x), EValue::Tensor(y)) = (a, b) else {
            self.note_difference(a, b, judge);
            return Ok(());
        };
        if x.sizes() != y.sizes() {
            let problem = format!("sizes {:?} and {:?}", x.sizes(), y.sizes());
            self.difference.get_or_insert(problem);
            return Ok(());
        }
        let (Some(of_x), Some(of_y)) = (elements(x)?, elements(y)?) else {
            self.note_difference(a, b, judge);
            return Ok(());
        };
        self.numbers = true;
        let before = self.sums.energies();
        self.sums.add(&of_x, &of_y);
        let after = self.sums.energies();
        self.energies.push([after[0] - before[0], after[1] - before[1]]);
        let width = x.sizes().last().copied().unwrap_or(1);
        if x.dtype().is_floating() && width > 1 {
            let (same, rows) = self.tops.get_or_insert((0, 0));
            for (x, y) in of_x.chunks_exact(width).zip(of_y.chunks_exact(width)) {
                *same += usize::from(argmax(x) == argmax(y));
                *rows += 1;
            }
        }
        if judge.min_sqnr.is_none() {
            self.note_difference(a, b, judge);
        }
        Ok(())
    }

    /// By the linear approximation of the ratio in the energies of the samples, which are taken to be independent.
    fn standard_error(&self) -> f64 {
        let (count, [signal, noise]) = (self.energies.len() as f64, self.sums.energies());
        let influence = |[of_signal, of_noise]: &[f64; 2]| of_signal / signal - of_noise / noise;
        let squares: f64 = self.energies.iter().map(|energies| influence(energies).powi(2)).sum();
        let error = 10.0 / std::f64::consts::LN_10 * (count / (count - 1.0) * squares).sqrt();
        if error.is_finite() { error } else { 0.0 }
    }

    fn note_difference(&mut self, a: &EValue, b: &EValue, judge: &Judge) {
        if let Err(difference) = compare(b, a, &judge.tolerance) {
            self.difference.get_or_insert(difference.to_string());
        }
    }

    fn finish(self, name: Option<String>, judge: &Judge) -> OutputComparison {
        let closeness = self.numbers.then(|| self.sums.closeness());
        let too_noisy = |min: f64| {
            let sqnr = closeness.as_ref().map_or(f64::INFINITY, |closeness| closeness.sqnr);
            (sqnr < min)
                .then(|| format!("a signal-to-noise ratio of {sqnr:.1} dB, at least {min} dB is wanted"))
        };
        let difference = self.difference.or_else(|| judge.min_sqnr.and_then(too_noisy));
        let same_top = self.tops.map(|(same, rows)| same as f64 / rows.max(1) as f64);
        OutputComparison { name, closeness, same_top, difference }
    }
}

/// The index of the largest element; the first one if several are equal. NaN is larger than any number, as in PyTorch.
fn argmax(row: &[f64]) -> usize {
    let larger = |x: f64, than: f64| x > than || (x.is_nan() && !than.is_nan());
    row.iter().enumerate().fold(0, |best, (i, &x)| if larger(x, row[best]) { i } else { best })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::Tensor;

    fn standard_error(samples: &[([f32; 2], [f32; 2])]) -> f64 {
        let value = |x: &[f32; 2]| [EValue::Tensor(Tensor::from_slice(&[2], x).unwrap())];
        let mut closeness = OutputCloseness::default();
        for (expected, found) in samples {
            closeness.add(&value(expected), &value(found)).unwrap();
        }
        closeness.standard_errors()[0]
    }

    #[test]
    fn the_standard_error_is_of_independent_samples() {
        let (exact, noisy) = (([2.0, 0.0], [2.0, 0.0]), ([2.0, 0.0], [1.0, 1.0]));
        let all_in_one = standard_error(&[exact, noisy]);
        assert!((all_in_one - 10.0 / std::f64::consts::LN_10).abs() < 1e-9, "{all_in_one}");
        assert_eq!([&[noisy, noisy][..], &[noisy], &[exact, exact]].map(standard_error), [0.0; 3]);
    }
}
