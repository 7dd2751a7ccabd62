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
    /// The number of rows whose largest element has the same position in both programs, and the number of all rows.
    tops: Option<(usize, usize)>,
    difference: Option<String>,
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
    let load = |side: Side<'_>| side.program.load_method(method, side.options.clone());
    let (mut of_a, mut of_b) = (load(a)?, load(b)?);
    let mut all: Vec<OutputSums> = Vec::new();
    for sample in samples {
        let (a, b) = (of_a.execute(sample)?, of_b.execute(sample)?);
        if a.len() != b.len() {
            let problem = format!(
                "the programs have {} and {} outputs: they are of different models",
                a.len(),
                b.len()
            );
            return Err(Error::input(problem));
        }
        all.resize_with(a.len(), OutputSums::default);
        for (output, (a, b)) in all.iter_mut().zip(a.iter().zip(&b)) {
            output.add(a, b, judge)?;
        }
    }
    let names =
        |side: Side<'_>| -> Result<_> { Ok(side.program.method_meta(method)?.value_names()?.outputs) };
    let names = names(a)?.into_iter().zip(names(b)?).map(|(a, b)| a.or(b));
    let finish = |(output, name): (OutputSums, Option<String>)| output.finish(name, judge);
    Ok(all.into_iter().zip(names).map(finish).collect())
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
        self.sums.add(&of_x, &of_y);
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

/// The index of the largest element; the first one if several are equal.
fn argmax(row: &[f64]) -> usize {
    row.iter().enumerate().fold(0, |best, (i, x)| if *x > row[best] { i } else { best })
}
