use crate::{Error, Result};
use std::f64::consts::PI;

/// A schedule of the learning rate: for each step, counted from 0, a factor of the optimizer's learning rate.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Schedule {
    /// The number of steps over which the factor rises linearly to 1, before `decay` begins. The first step has
    /// `1 / warmup`.
    pub warmup: u64,
    /// How the factor falls after the warm-up.
    pub decay: Decay,
}

/// How the factor falls. `n` is the number of steps since the end of the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Decay {
    /// The factor stays 1.
    #[default]
    Constant,
    /// The factor is `gamma^floor(n / every)`, as in `torch.optim.lr_scheduler.StepLR`.
    Step {
        /// The number of steps after which the factor falls again.
        every: u64,
        /// The number by which the factor is multiplied when it falls.
        gamma: f64,
    },
    /// The factor is `gamma^n`, as in `ExponentialLR`.
    Exponential {
        /// The number by which the factor is multiplied at each step.
        gamma: f64,
    },
    /// The factor goes linearly from 1 to `end` over `steps` steps and then stays `end`, as in `LinearLR`.
    Linear {
        /// The factor after the last of the steps.
        end: f64,
        /// The number of steps over which the factor goes from 1 to `end`.
        steps: u64,
    },
    /// The factor goes from 1 to `end` over `steps` steps along half a cosine and then stays `end`, as in one period of
    /// `CosineAnnealingLR`.
    Cosine {
        /// The factor after the last of the steps.
        end: f64,
        /// The number of steps over which the factor goes from 1 to `end`.
        steps: u64,
    },
}

impl Schedule {
    /// The factor of the learning rate at a step.
    pub fn factor(&self, step: u64) -> f64 {
        if step < self.warmup {
            return (step + 1) as f64 / self.warmup as f64;
        }
        let n = step - self.warmup;
        let part = |steps: u64| if n >= steps { 1.0 } else { n as f64 / steps as f64 };
        match self.decay {
            Decay::Constant => 1.0,
            Decay::Step { every, gamma } => gamma.powf((n / every.max(1)) as f64),
            Decay::Exponential { gamma } => gamma.powf(n as f64),
            Decay::Linear { end, steps } => 1.0 + (end - 1.0) * part(steps),
            Decay::Cosine { end, steps } => end + (1.0 - end) * (1.0 + (PI * part(steps)).cos()) / 2.0,
        }
    }

    /// The numbers that describe the schedule in a file, with their names.
    pub(super) fn numbers(&self) -> [(&'static str, f64); 4] {
        let (kind, value, steps) = match self.decay {
            Decay::Constant => (0.0, 1.0, 0),
            Decay::Step { every, gamma } => (1.0, gamma, every),
            Decay::Exponential { gamma } => (2.0, gamma, 0),
            Decay::Linear { end, steps } => (3.0, end, steps),
            Decay::Cosine { end, steps } => (4.0, end, steps),
        };
        [
            ("schedule.warmup", self.warmup as f64),
            ("schedule.decay", kind),
            ("schedule.value", value),
            ("schedule.steps", steps as f64),
        ]
    }

    /// The schedule with these [`numbers`](Self::numbers). `number` returns the one with a given name.
    pub(super) fn from_numbers(number: &mut dyn FnMut(&str) -> Result<f64>) -> Result<Self> {
        let warmup = number("schedule.warmup")? as u64;
        let (kind, value) = (number("schedule.decay")?, number("schedule.value")?);
        let steps = number("schedule.steps")? as u64;
        let decay = match kind as u8 {
            0 => Decay::Constant,
            1 => Decay::Step { every: steps, gamma: value },
            2 => Decay::Exponential { gamma: value },
            3 => Decay::Linear { end: value, steps },
            4 => Decay::Cosine { end: value, steps },
            _ => return Err(Error::Unsupported(format!("the schedule of kind {kind} is unknown"))),
        };
        Ok(Self { warmup, decay })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn factors_are_those_of_the_schedulers_of_torch() {
        let of = |decay, step| Schedule { warmup: 0, decay }.factor(step);
        assert_eq!(of(Decay::Constant, 100), 1.0);
        assert_eq!(of(Decay::Step { every: 3, gamma: 0.5 }, 8), 0.25);
        assert_eq!(of(Decay::Exponential { gamma: 0.5 }, 3), 0.125);
        assert_eq!(of(Decay::Linear { end: 0.5, steps: 4 }, 1), 0.875);
        assert!((of(Decay::Cosine { end: 0.0, steps: 4 }, 1) - 0.853_553_390_593_273_8).abs() < 1e-15);
        assert_eq!([4, 9].map(|n| of(Decay::Cosine { end: 0.1, steps: 4 }, n)), [0.1, 0.1]);
        let warm = Schedule { warmup: 4, decay: Decay::Exponential { gamma: 0.5 } };
        assert_eq!([0, 3, 4, 5].map(|n| warm.factor(n)), [0.25, 1.0, 1.0, 0.5]);
    }

    #[test]
    fn a_schedule_is_described_by_its_numbers() {
        let decays = [
            Decay::Constant,
            Decay::Step { every: 7, gamma: 0.3 },
            Decay::Exponential { gamma: 0.9 },
            Decay::Linear { end: 0.2, steps: 11 },
            Decay::Cosine { end: 0.01, steps: 13 },
        ];
        for decay in decays {
            let schedule = Schedule { warmup: 5, decay };
            let numbers = schedule.numbers();
            let mut find = |name: &str| Ok(numbers.iter().find(|(n, _)| *n == name).unwrap().1);
            assert_eq!(Schedule::from_numbers(&mut find).unwrap(), schedule);
        }
    }
}
