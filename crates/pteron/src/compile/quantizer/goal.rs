//! The goal of a quantization.

use super::Attempt;
use pteron_toolbox::comparison::OutputComparison;

/// The number of standard errors of a signal-to-noise ratio that it must exceed a minimum by: other samples of the same kind reach the minimum,
/// too, with a probability of 95 % for a normal distribution.
const STANDARD_ERRORS: f64 = 1.645;

/// What each output must reach on the calibration data; an output for which a measure is not defined passes it.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct QuantizationGoal {
    /// The signal-to-noise ratio, in decibels, relative to the outputs of the float program. The search exceeds it by 1.645 standard errors
    /// over the samples, as far as that is possible.
    pub min_sqnr: Option<f64>,
    /// The share of rows whose largest element stays at its position, from 0 to 1.
    pub min_agreement: Option<f64>,
}

impl QuantizationGoal {
    /// Whether the outputs reach the goal on the samples.
    pub(super) fn is_reached(&self, attempt: &Attempt) -> bool {
        self.is_reached_by(attempt, 0.0)
    }

    /// Whether the outputs reach the goal with a margin for the choice of the samples.
    pub(super) fn is_reached_with_margin(&self, attempt: &Attempt) -> bool {
        self.is_reached_by(attempt, STANDARD_ERRORS)
    }

    fn is_reached_by(&self, attempt: &Attempt, standard_errors: f64) -> bool {
        let misses = |(output, error): (&OutputComparison, &f64)| {
            let ratio = output.closeness.map(|closeness| closeness.sqnr - standard_errors * error);
            let too_noisy = self.min_sqnr.zip(ratio).is_some_and(|(min, ratio)| ratio < min);
            too_noisy || self.min_agreement.zip(output.same_top).is_some_and(|(min, same)| same < min)
        };
        !attempt.outputs.iter().zip(&attempt.standard_errors).any(misses)
    }
}

/// The error message for a goal that cannot be reached: the goal, and what was reached instead.
pub(super) fn missed_goal_message(
    goal: &QuantizationGoal,
    outputs: &[OutputComparison],
    kept: usize,
    all: usize,
) -> String {
    let wanted = [
        goal.min_sqnr.map(|min| format!("a signal-to-noise ratio of {min} dB")),
        goal.min_agreement.map(|min| format!("an agreement of {min}")),
    ];
    let wanted: Vec<String> = wanted.into_iter().flatten().collect();
    let reached = |(index, output): (usize, &OutputComparison)| {
        let sqnr = output.closeness.map_or_else(String::new, |c| format!(" {:.1} dB", c.sqnr));
        let agreement = output.same_top.map_or_else(String::new, |same| format!(", agreement {same:.4}"));
        format!("output {index}:{sqnr}{agreement}")
    };
    let reached: Vec<String> = outputs.iter().enumerate().map(reached).collect();
    format!(
        "the quantized program misses the goal of {} even with {kept} of {all} nodes in float: {}",
        wanted.join(" and "),
        reached.join("; ")
    )
}
