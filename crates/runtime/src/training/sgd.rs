use super::Schedule;
use super::optimizer::{Optimizer, OptimizerState, Pace, check_not_negative, check_same_length};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Stochastic gradient descent with the update rule of `torch.optim.SGD`.
///
/// For a parameter `p` with gradient `g`, and a momentum buffer `v` that starts as the first `g`:
///
/// ```text
/// g = g + weight_decay * p
/// v = momentum * v + (1 - dampening) * g      if momentum is not 0
/// g = g + momentum * v if nesterov, else v    if momentum is not 0
/// p = p - lr * g
/// ```
#[derive(Debug, Clone)]
pub struct Sgd {
    options: SgdOptions,
    pace: Pace,
    /// The momentum buffer of each parameter that has been updated.
    buffers: BTreeMap<String, Vec<f32>>,
}

/// Hyperparameters of [`Sgd`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SgdOptions {
    /// The learning rate.
    pub lr: f64,
    /// The momentum factor.
    pub momentum: f64,
    /// The dampening: gradients are scaled by `1 - dampening` when they are added to the momentum buffer.
    pub dampening: f64,
    /// The weight decay (L2 penalty).
    pub weight_decay: f64,
    /// Whether to use Nesterov momentum.
    pub nesterov: bool,
}

impl Default for SgdOptions {
    /// A learning rate of 1e-3, without momentum or weight decay.
    fn default() -> Self {
        Self { lr: 1e-3, momentum: 0.0, dampening: 0.0, weight_decay: 0.0, nesterov: false }
    }
}

impl SgdOptions {
    fn check(&self) -> Result<()> {
        let Self { lr, momentum, dampening, weight_decay, nesterov } = *self;
        check_not_negative("SGD", &[("lr", lr), ("momentum", momentum), ("weight_decay", weight_decay)])?;
        if nesterov && (momentum == 0.0 || dampening != 0.0) {
            let problem = "SGD: Nesterov momentum needs a momentum and no dampening";
            return Err(Error::Unsupported(problem.to_owned()));
        }
        Ok(())
    }
}

impl Sgd {
    /// A new optimizer. Fails if `lr`, `momentum` or `weight_decay` is negative or NaN, or if `nesterov` is set without
    /// momentum or with dampening.
    pub fn new(options: SgdOptions) -> Result<Self> {
        options.check()?;
        Ok(Self { options, pace: Pace::default(), buffers: BTreeMap::new() })
    }

    /// The hyperparameters.
    pub fn options(&self) -> &SgdOptions {
        &self.options
    }

    /// Sets the learning rate of subsequent steps.
    pub fn set_lr(&mut self, lr: f64) {
        self.options.lr = lr;
    }

    /// Sets the hyperparameters of subsequent steps. The momentum buffers stay.
    pub fn set_options(&mut self, options: SgdOptions) -> Result<()> {
        options.check()?;
        self.options = options;
        Ok(())
    }

    /// Sets the schedule of the learning rate.
    pub fn set_schedule(&mut self, schedule: Schedule) {
        self.pace.schedule = schedule;
    }

    /// The number of steps that were taken.
    pub fn steps(&self) -> u64 {
        self.pace.steps
    }

    /// The momentum buffers by parameter name. Empty before the first step and without momentum.
    pub fn momentum_buffers(&self) -> impl Iterator<Item = (&str, &[f32])> {
        self.buffers.iter().map(|(name, buffer)| (name.as_str(), buffer.as_slice()))
    }

    /// Sets a parameter's momentum buffer, for example from a checkpoint.
    pub fn set_momentum_buffer(&mut self, parameter: impl Into<String>, buffer: Vec<f32>) {
        self.buffers.insert(parameter.into(), buffer);
    }
}

/// The kind of the momentum buffers in [`OptimizerState`], as PyTorch calls them.
const MOMENTUM: &str = "momentum_buffer";

impl Optimizer for Sgd {
    fn name(&self) -> &'static str {
        "sgd"
    }

    fn step(&mut self, name: &str, parameter: &mut [f32], gradient: &[f32]) -> Result<()> {
        let SgdOptions { momentum, dampening, weight_decay, nesterov, .. } = self.options;
        let lr = self.pace.lr(self.options.lr) as f32;
        let (momentum, decay) = (momentum as f32, weight_decay as f32);
        let fresh = 1.0 - dampening as f32;
        check_same_length("SGD", name, parameter.len(), &[gradient.len()])?;
        let decayed = |p: f32, g: f32| if decay == 0.0 { g } else { g + decay * p };
        if momentum == 0.0 {
            parameter.iter_mut().zip(gradient).for_each(|(p, &g)| *p -= lr * decayed(*p, g));
            return Ok(());
        }
        let first = !self.buffers.contains_key(name);
        if first {
            self.buffers.insert(name.to_owned(), pteron_tensor::memory::filled(gradient.len(), 0.0)?);
        }
        let Some(buffer) = self.buffers.get_mut(name) else { return Ok(()) };
        check_same_length("SGD", name, parameter.len(), &[buffer.len()])?;
        for ((p, &g), v) in parameter.iter_mut().zip(gradient).zip(buffer) {
            let g = decayed(*p, g);
            *v = if first { g } else { momentum * *v + fresh * g };
            let step = if nesterov { g + momentum * *v } else { *v };
            *p -= lr * step;
        }
        Ok(())
    }

    fn end_step(&mut self) {
        self.pace.steps += 1;
    }

    fn state(&self) -> OptimizerState {
        let SgdOptions { lr, momentum, dampening, weight_decay, nesterov } = self.options;
        let mut state = OptimizerState::default();
        self.pace.save(&mut state);
        let nesterov = f64::from(u8::from(nesterov));
        let numbers = [
            ("lr", lr),
            ("momentum", momentum),
            ("dampening", dampening),
            ("weight_decay", weight_decay),
            ("nesterov", nesterov),
        ];
        for (name, value) in numbers {
            state.numbers.insert(name.to_owned(), value);
        }
        state.buffers.insert(MOMENTUM, self.buffers.clone());
        state
    }

    fn restore(&mut self, mut state: OptimizerState) -> Result<()> {
        let pace = Pace::restore(&mut state)?;
        let options = SgdOptions {
            lr: state.take("lr")?,
            momentum: state.take("momentum")?,
            dampening: state.take("dampening")?,
            weight_decay: state.take("weight_decay")?,
            nesterov: state.take_flag("nesterov")?,
        };
        options.check()?;
        state.check_all_taken()?;
        *self = Self { options, pace, buffers: state.buffers.remove(MOMENTUM).unwrap_or_default() };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameter [1, -2] after three steps, with the gradients [0.5, 0.25], [-1, 2] and [0.1, -0.3].
    fn steps(options: SgdOptions) -> [f32; 2] {
        let mut sgd = Sgd::new(options).unwrap();
        let mut p = [1.0, -2.0];
        for g in [[0.5, 0.25], [-1.0, 2.0], [0.1, -0.3]] {
            sgd.step("p", &mut p, &g).unwrap();
        }
        p
    }

    fn close(a: [f32; 2], b: [f32; 2]) {
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} is not {b:?}");
    }

    /// The expected values were computed by `torch.optim.SGD`.
    #[test]
    fn steps_match_torch() {
        let plain = SgdOptions { lr: 0.1, ..SgdOptions::default() };
        close(steps(plain), [1.04, -2.195]);
        let momentum = SgdOptions { momentum: 0.9, ..plain };
        close(steps(momentum), [1.0445, -2.41775]);
        let dampened = SgdOptions { dampening: 0.5, ..momentum };
        close(steps(dampened), [0.9545, -2.24275]);
        let decayed = SgdOptions { weight_decay: 0.1, ..momentum };
        close(steps(decayed), [0.989774, -2.3035605]);
        close(steps(SgdOptions { nesterov: true, ..decayed }), [1.0024487, -2.4029856]);
    }

    #[test]
    fn invalid_options_and_mismatched_lengths_are_refused() {
        let options = SgdOptions { nesterov: true, ..SgdOptions::default() };
        assert!(Sgd::new(options).unwrap_err().to_string().contains("Nesterov"));
        let options = SgdOptions { lr: -1.0, ..SgdOptions::default() };
        assert!(Sgd::new(options).unwrap_err().to_string().contains("lr is -1"));
        let mut sgd = Sgd::new(SgdOptions { momentum: 0.5, ..SgdOptions::default() }).unwrap();
        sgd.set_momentum_buffer("p", vec![0.0; 3]);
        assert!(sgd.step("p", &mut [1.0], &[1.0]).is_err());
        assert!(sgd.step("q", &mut [1.0], &[1.0, 2.0]).is_err());
    }
}
