use super::Schedule;
use crate::{Error, Result};
use std::collections::BTreeMap;

/// A rule that updates parameters with their gradients, and the state that it keeps between steps.
pub trait Optimizer {
    /// The name of the update rule as files record it, such as `sgd`.
    fn name(&self) -> &'static str;

    /// Updates one parameter with its gradient.
    ///
    /// # Errors
    /// If the gradient, or a buffer that was restored, has another number of elements.
    fn step(&mut self, name: &str, parameter: &mut [f32], gradient: &[f32]) -> Result<()>;

    /// Ends a step in which every parameter was updated. The next step has the schedule's next learning rate.
    fn end_step(&mut self);

    /// All that the next step depends on, besides the parameters and gradients.
    fn state(&self) -> OptimizerState;

    /// Continues from a state of an optimizer of this name; its hyperparameters replace those that were given.
    ///
    /// # Errors
    /// If a number is missing, unknown or out of range. The optimizer is unchanged then.
    fn restore(&mut self, state: OptimizerState) -> Result<()>;
}

/// The state of an [`Optimizer`]: hyperparameters, counters and buffers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OptimizerState {
    /// Hyperparameters and counters, by name. Whole numbers are exact up to 2^53.
    pub numbers: BTreeMap<String, f64>,
    /// Buffers, such as momentum, by kind and by the name of the parameter that each belongs to. A buffer has as many
    /// elements as the parameter.
    pub buffers: BTreeMap<&'static str, BTreeMap<String, Vec<f32>>>,
}

impl OptimizerState {
    /// Removes the number with this name and returns it. Fails if there is none.
    pub(super) fn take(&mut self, name: &str) -> Result<f64> {
        self.numbers.remove(name).ok_or_else(|| state_mismatch(format!("it has no `{name}`")))
    }

    /// Removes the number with this name and returns whether it is other than 0.
    pub(super) fn take_flag(&mut self, name: &str) -> Result<bool> {
        Ok(self.take(name)? != 0.0)
    }

    /// Fails if numbers are left that no call of [`Self::take`] has removed.
    pub(super) fn check_all_taken(&self) -> Result<()> {
        match self.numbers.keys().next() {
            Some(name) => Err(state_mismatch(format!("`{name}` is unknown"))),
            None => Ok(()),
        }
    }
}

fn state_mismatch(problem: String) -> Error {
    Error::Unsupported(format!("the state of the optimizer does not fit: {problem}"))
}

/// The number of steps that were taken, and the schedule of the learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Pace {
    pub(super) schedule: Schedule,
    pub(super) steps: u64,
}

impl Pace {
    /// The learning rate of the current step: `base` times the schedule's factor.
    pub(super) fn lr(&self, base: f64) -> f64 {
        base * self.schedule.factor(self.steps)
    }

    pub(super) fn save(&self, state: &mut OptimizerState) {
        state.numbers.insert("steps".to_owned(), self.steps as f64);
        for (name, value) in self.schedule.numbers() {
            state.numbers.insert(name.to_owned(), value);
        }
    }

    pub(super) fn restore(state: &mut OptimizerState) -> Result<Self> {
        let steps = state.take("steps")? as u64;
        let schedule = Schedule::from_numbers(&mut |name| state.take(name))?;
        Ok(Self { schedule, steps })
    }
}

/// Fails unless a parameter, its gradient and its buffers have the same number of elements.
pub(super) fn check_same_length(rule: &str, name: &str, parameter: usize, others: &[usize]) -> Result<()> {
    match others.iter().find(|&&other| other != parameter) {
        Some(other) => Err(Error::Unsupported(format!(
            "{rule}: `{name}` has {parameter} elements, but its gradient or a buffer has {other}"
        ))),
        None => Ok(()),
    }
}

/// Fails if a hyperparameter is negative or not a number.
pub(super) fn check_not_negative(rule: &str, numbers: &[(&str, f64)]) -> Result<()> {
    match numbers.iter().find(|(_, value)| value.is_nan() || *value < 0.0) {
        Some((name, value)) => {
            Err(Error::Unsupported(format!("{rule}: {name} is {value}, it must be 0 or more")))
        }
        None => Ok(()),
    }
}
