//! The layers that stay float: within the budget, and to reach a goal.

use super::goal::missed_goal_message;
use super::{Attempt, QuantizationGoal, Run, SpentOn, mean_sqnr};
use pteron_compiler::QuantizedLayer;
use pteron_toolbox::comparison::OutputComparison;
use pteron_toolbox::{Error, Result};
use std::collections::BTreeMap;

/// The maximum number of layers that stay float within the budget.
const MAX_SPENT: usize = 8;
/// The least share of an output's noise that such a layer adds if quantized alone.
const LEAST_RATIO: f64 = 0.02;
/// How much the mean ratio must rise for a layer to stay float, in decibels.
pub(super) const LEAST_GAIN: f64 = 0.1;
/// The number of samples on which a layer is measured alone, at most.
const SAMPLES_ALONE: usize = 8;

/// How much the quantization of a node changes the outputs.
pub(super) struct Sensitivity {
    pub(super) name: String,
    /// The outputs if only this node is quantized.
    pub(super) outputs: Vec<OutputComparison>,
    /// The largest share of noise that this node adds to an output if quantized alone.
    pub(super) noise: f64,
    pub(super) multiplications: u64,
}

impl Run<'_> {
    /// Measures each layer of at most `most` multiplications that the attempt quantizes alone, and sorts them: first those with the most
    /// noise for the multiplications that they save.
    pub(super) fn sensitivity(&mut self, attempt: &Attempt, most: u64) -> Result<Vec<Sensitivity>> {
        self.sensitivity_of(attempt, |layer| layer.multiplications <= most)
    }

    /// As [`Self::sensitivity`], for the layers that pass a test.
    pub(super) fn sensitivity_of(
        &mut self,
        attempt: &Attempt,
        test: impl Fn(&QuantizedLayer) -> bool,
    ) -> Result<Vec<Sensitivity>> {
        let quantizer = self.quantizer;
        let summary = quantizer.summary(&attempt.compiled);
        self.quantizable.extend(summary.quantized.iter().cloned());
        let step = self.samples.len().div_ceil(SAMPLES_ALONE).max(1);
        let mut measured = Vec::new();
        for layer in summary.layers.iter().filter(|layer| test(layer)) {
            let name = &layer.name;
            let outputs = match self.alone.get(name) {
                Some(outputs) => outputs.clone(),
                None => {
                    let others = self.quantizable.iter().filter(|other| *other != name).cloned().collect();
                    self.attempt_on(&others, step)?.outputs
                }
            };
            self.alone.insert(name.clone(), outputs.clone());
            let noise = outputs.iter().map(noise).fold(0.0, f64::max);
            let multiplications = layer.multiplications;
            measured.push(Sensitivity { name: name.clone(), outputs, noise, multiplications });
        }
        let density = |node: &Sensitivity| node.noise / node.multiplications.max(1) as f64;
        measured.sort_by(|a, b| density(b).total_cmp(&density(a)));
        Ok(measured)
    }

    /// Keeps layers with the most noise for their multiplications in float, as far as the budget allows: of multiplications, and of weights, so
    /// that the file stays small. Each of them must bring the outputs closer, and no output farther.
    pub(super) fn spend_float_budget(&mut self, mut attempt: Attempt) -> Result<(Attempt, Vec<SpentOn>)> {
        let quantizer = self.quantizer;
        let summary = quantizer.summary(&attempt.compiled).clone();
        let of_float: u64 = summary.float.iter().map(|node| node.multiplications).sum();
        let all = of_float + summary.layers.iter().map(|layer| layer.multiplications).sum::<u64>();
        let weights: BTreeMap<&str, u64> =
            summary.layers.iter().map(|layer| (layer.name.as_str(), layer.weights)).collect();
        let share = |of: u64| (quantizer.float_budget.clamp(0.0, 1.0) * of as f64) as u64;
        let (mut left, mut left_weights) = (share(all), share(weights.values().sum()));
        let mut spent: Vec<SpentOn> = Vec::new();
        for node in self.sensitivity(&attempt, left)? {
            let of_node = weights.get(node.name.as_str()).copied().unwrap_or(0);
            // Tables of embeddings multiply nothing, and stay small.
            let fits = (1..=left).contains(&node.multiplications) && of_node <= left_weights;
            let ratios =
                node.outputs.iter().zip(&attempt.outputs).map(|(alone, all)| noise(alone) / noise(all));
            if !fits || spent.len() == MAX_SPENT || ratios.fold(0.0, f64::max) < LEAST_RATIO {
                continue;
            }
            let kept = spent.iter().map(|on| on.name.clone()).chain([node.name.clone()]).collect();
            let closer = match self.attempt(&kept) {
                Ok(closer) if is_closer(&closer.outputs, &attempt.outputs) => closer,
                Ok(_) => continue,
                // Nothing would be quantized.
                Err(_) if kept.len() == summary.layers.len() => continue,
                Err(error) => return Err(error),
            };
            attempt = closer;
            left -= node.multiplications;
            left_weights -= of_node;
            let multiplications = node.multiplications as f64 / all as f64;
            spent.push(SpentOn { name: node.name, multiplications, noise: node.noise });
        }
        Ok((attempt, spent))
    }

    /// Keeps as few of the most sensitive nodes in float as the goal takes, by bisection: with a margin if that can be reached, and without
    /// it otherwise. Fails if it takes them all.
    pub(super) fn reach_goal(
        &self,
        goal: &QuantizationGoal,
        whole: Attempt,
        kept: &[String],
        sensitivity: &[Sensitivity],
    ) -> Result<(Attempt, Vec<String>)> {
        let names = |count: usize| -> Vec<String> {
            let more = sensitivity[..count].iter().map(|node| node.name.clone());
            kept.iter().cloned().chain(more).collect()
        };
        // The more nodes are kept, the closer are the outputs.
        let fewest = |reaches: &dyn Fn(&Attempt) -> bool| {
            let (mut missing, mut enough) = (0, sensitivity.len());
            let (mut best, mut closest) = (None, None);
            while missing + 1 < enough {
                let count = missing.midpoint(enough);
                let attempt = self.attempt(&names(count).into_iter().collect())?;
                match reaches(&attempt) {
                    true => (enough, best) = (count, Some((count, attempt))),
                    false => (missing, closest) = (count, Some((count, attempt))),
                }
            }
            Ok::<_, Error>((best, closest))
        };
        let (found, closest) = fewest(&|attempt| goal.is_reached_with_margin(attempt))?;
        let closest = closest.unwrap_or((0, whole));
        let (count, attempt) = match found {
            Some(found) => found,
            None if goal.is_reached(&closest.1) => {
                fewest(&|attempt| goal.is_reached(attempt))?.0.unwrap_or(closest)
            }
            None => {
                let message = missed_goal_message(goal, &closest.1.outputs, closest.0, sensitivity.len());
                return Err(Error::Input(message));
            }
        };
        Ok((attempt, names(count)))
    }
}

/// Whether the mean ratio of outputs rises, and none falls by more than chance.
fn is_closer(outputs: &[OutputComparison], than: &[OutputComparison]) -> bool {
    let falls = |(a, b): (&OutputComparison, &OutputComparison)| {
        a.closeness.zip(b.closeness).is_some_and(|(a, b)| a.sqnr < b.sqnr - LEAST_GAIN)
    };
    mean_sqnr(outputs) >= mean_sqnr(than) + LEAST_GAIN && !outputs.iter().zip(than).any(falls)
}

/// The energy of an output's noise divided by that of the signal.
fn noise(output: &OutputComparison) -> f64 {
    output.closeness.map_or(0.0, |closeness| 10f64.powf(-closeness.sqnr / 10.0))
}
