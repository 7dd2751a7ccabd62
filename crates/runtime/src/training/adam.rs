use super::Schedule;
use super::optimizer::{Optimizer, OptimizerState, Pace, check_not_negative, check_same_length};
use crate::{Error, Result};
use std::collections::BTreeMap;

/// Adam and AdamW, with the update rules of `torch.optim.Adam` and `torch.optim.AdamW`.
///
/// For a parameter `p` with gradient `g`, and buffers `m`, `v` that start as 0, in the parameter's step `t`, counted from 1:
///
/// ```text
/// p = p - lr * weight_decay * p                if decoupled (AdamW)
/// g = g + weight_decay * p                     otherwise
/// m = beta1 * m + (1 - beta1) * g
/// v = beta2 * v + (1 - beta2) * g * g
/// u = max(u, v) if amsgrad, else v
/// p = p - lr / (1 - beta1^t) * m / (sqrt(u) / sqrt(1 - beta2^t) + eps)
/// ```
#[derive(Debug, Clone)]
pub struct Adam {
    options: AdamOptions,
    pace: Pace,
    /// The running averages of the gradients of each parameter that has been updated.
    moments: BTreeMap<String, Moments>,
}

/// Hyperparameters of [`Adam`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamOptions {
    /// The learning rate.
    pub lr: f64,
    /// The decay of the running average of the gradients.
    pub beta1: f64,
    /// The decay of the running average of the squared gradients.
    pub beta2: f64,
    /// The value that is added to the denominator, so that it is not zero.
    pub eps: f64,
    /// The weight decay.
    pub weight_decay: f64,
    /// Whether the weight decay is applied to the parameter (AdamW) instead of added to its gradient (Adam).
    pub decoupled: bool,
    /// Whether to divide by the largest average of squared gradients so far (AMSGrad), instead of the current one.
    pub amsgrad: bool,
}

impl Default for AdamOptions {
    /// The defaults of `torch.optim.Adam`: a learning rate of 1e-3, decays of 0.9 and 0.999, no weight decay.
    fn default() -> Self {
        Self {
            lr: 1e-3,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            decoupled: false,
            amsgrad: false,
        }
    }
}

impl AdamOptions {
    /// The defaults of `torch.optim.AdamW`: a decoupled weight decay of 0.01, otherwise as Adam.
    pub fn adamw() -> Self {
        Self { weight_decay: 0.01, decoupled: true, ..Self::default() }
    }

    fn check(&self) -> Result<()> {
        let Self { lr, beta1, beta2, eps, weight_decay, .. } = *self;
        check_not_negative("Adam", &[("lr", lr), ("eps", eps), ("weight_decay", weight_decay)])?;
        for (name, beta) in [("beta1", beta1), ("beta2", beta2)] {
            if !(0.0..1.0).contains(&beta) {
                return Err(Error::Unsupported(format!("Adam: {name} is {beta}, it must be in 0..1")));
            }
        }
        Ok(())
    }
}

/// The running averages of one parameter's gradients and of their squares.
#[derive(Debug, Clone, Default)]
struct Moments {
    steps: u64,
    mean: Vec<f32>,
    square: Vec<f32>,
    /// The largest value so far of each element of `square`; empty without `amsgrad`.
    greatest: Vec<f32>,
}

/// The kinds of buffers in [`OptimizerState`], as PyTorch calls them.
const KINDS: [&str; 3] = ["exp_avg", "exp_avg_sq", "max_exp_avg_sq"];

impl Moments {
    fn new(len: usize, amsgrad: bool) -> Result<Self> {
        let zeros = |len| pteron_tensor::memory::filled(len, 0.0);
        let greatest = zeros(if amsgrad { len } else { 0 })?;
        Ok(Self { steps: 0, mean: zeros(len)?, square: zeros(len)?, greatest })
    }

    fn buffers(&mut self) -> [&mut Vec<f32>; 3] {
        [&mut self.mean, &mut self.square, &mut self.greatest]
    }
}

impl Adam {
    /// A new optimizer.
    ///
    /// # Errors
    /// If `lr`, `eps` or `weight_decay` is negative or NaN, or a beta is not in `0..1`.
    pub fn new(options: AdamOptions) -> Result<Self> {
        options.check()?;
        Ok(Self { options, pace: Pace::default(), moments: BTreeMap::new() })
    }

    /// The hyperparameters.
    pub fn options(&self) -> &AdamOptions {
        &self.options
    }

    /// Sets the hyperparameters of subsequent steps. The running averages stay.
    pub fn set_options(&mut self, options: AdamOptions) -> Result<()> {
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
}

impl Optimizer for Adam {
    fn name(&self) -> &'static str {
        "adam"
    }

    fn step(&mut self, name: &str, parameter: &mut [f32], gradient: &[f32]) -> Result<()> {
        let AdamOptions { beta1, beta2, eps, weight_decay, decoupled, amsgrad, .. } = self.options;
        let lr = self.pace.lr(self.options.lr);
        let n = parameter.len();
        check_same_length("Adam", name, n, &[gradient.len()])?;
        if !self.moments.contains_key(name) {
            self.moments.insert(name.to_owned(), Moments::new(n, amsgrad)?);
        }
        let Some(moments) = self.moments.get_mut(name) else { return Ok(()) };
        if amsgrad && moments.greatest.is_empty() {
            moments.greatest = pteron_tensor::memory::filled(n, 0.0)?;
        }
        check_same_length("Adam", name, n, &[moments.mean.len(), moments.square.len()])?;
        if amsgrad {
            check_same_length("Adam", name, n, &[moments.greatest.len()])?;
        }
        moments.steps += 1;
        let t = moments.steps as f64;
        let step = (lr / (1.0 - beta1.powf(t))) as f32;
        let root = (1.0 - beta2.powf(t)).sqrt() as f32;
        let (shrink, coupled) = match decoupled {
            true => ((1.0 - lr * weight_decay) as f32, 0.0),
            false => (1.0, weight_decay as f32),
        };
        let (b1, b2, fresh1, fresh2) =
            (beta1 as f32, beta2 as f32, (1.0 - beta1) as f32, (1.0 - beta2) as f32);
        for (i, (p, &g)) in parameter.iter_mut().zip(gradient).enumerate() {
            *p *= shrink;
            let g = if coupled == 0.0 { g } else { g + coupled * *p };
            let (m, v) = (&mut moments.mean[i], &mut moments.square[i]);
            *m = b1 * *m + fresh1 * g;
            *v = b2 * *v + fresh2 * g * g;
            let u = match amsgrad {
                true => {
                    let greatest = &mut moments.greatest[i];
                    *greatest = greatest.max(*v);
                    *greatest
                }
                false => *v,
            };
            *p -= step * (*m / (u.sqrt() / root + eps as f32));
        }
        Ok(())
    }

    fn end_step(&mut self) {
        self.pace.steps += 1;
    }

    fn state(&self) -> OptimizerState {
        let AdamOptions { lr, beta1, beta2, eps, weight_decay, decoupled, amsgrad } = self.options;
        let mut state = OptimizerState::default();
        self.pace.save(&mut state);
        let flags =
            [("decoupled", f64::from(u8::from(decoupled))), ("amsgrad", f64::from(u8::from(amsgrad)))];
        let numbers =
            [("lr", lr), ("beta1", beta1), ("beta2", beta2), ("eps", eps), ("weight_decay", weight_decay)];
        for (name, value) in numbers.into_iter().chain(flags) {
            state.numbers.insert(name.to_owned(), value);
        }
        for (name, moments) in &self.moments {
            state.numbers.insert(format!("step.{name}"), moments.steps as f64);
            for (kind, buffer) in KINDS.into_iter().zip(moments.clone().buffers()) {
                if !buffer.is_empty() || kind != KINDS[2] {
                    let of_kind = state.buffers.entry(kind).or_default();
                    of_kind.insert(name.clone(), std::mem::take(buffer));
                }
            }
        }
        state
    }

    fn restore(&mut self, mut state: OptimizerState) -> Result<()> {
        let pace = Pace::restore(&mut state)?;
        let options = AdamOptions {
            lr: state.take("lr")?,
            beta1: state.take("beta1")?,
            beta2: state.take("beta2")?,
            eps: state.take("eps")?,
            weight_decay: state.take("weight_decay")?,
            decoupled: state.take_flag("decoupled")?,
            amsgrad: state.take_flag("amsgrad")?,
        };
        options.check()?;
        let mut moments: BTreeMap<String, Moments> = BTreeMap::new();
        for (place, kind) in KINDS.into_iter().enumerate() {
            for (name, buffer) in state.buffers.remove(kind).unwrap_or_default() {
                *moments.entry(name).or_default().buffers()[place] = buffer;
            }
        }
        for (name, moments) in &mut moments {
            moments.steps = state.take(&format!("step.{name}"))? as u64;
        }
        state.check_all_taken()?;
        *self = Self { options, pace, moments };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parameter [1, -2] after three steps, with the gradients [0.5, 0.25], [-1, 2] and [0.1, -0.3].
    fn steps(options: AdamOptions) -> [f32; 2] {
        let mut adam = Adam::new(options).unwrap();
        let mut p = [1.0, -2.0];
        for g in [[0.5, 0.25], [-1.0, 2.0], [0.1, -0.3]] {
            adam.step("p", &mut p, &g).unwrap();
            adam.end_step();
        }
        p
    }

    fn close(a: [f32; 2], b: [f32; 2]) {
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 2e-6), "{a:?} is not {b:?}");
    }

    /// The expected values were computed by `torch.optim.Adam` and `torch.optim.AdamW`.
    #[test]
    fn steps_match_torch() {
        let plain = AdamOptions { lr: 0.1, ..AdamOptions::default() };
        close(steps(plain), [0.959_103_2, -2.235_544_2]);
        close(steps(AdamOptions { weight_decay: 0.1, ..plain }), [0.933_375_84, -2.215_131_3]);
        close(steps(AdamOptions { lr: 0.1, ..AdamOptions::adamw() }), [0.956_269_5, -2.229_268_3]);
        close(steps(AdamOptions { amsgrad: true, ..plain }), [0.959_103_2, -2.235_544_2]);
    }

    #[test]
    fn invalid_options_are_refused() {
        let e = Adam::new(AdamOptions { beta1: 1.0, ..AdamOptions::default() }).unwrap_err();
        assert_eq!(e.to_string(), "Adam: beta1 is 1, it must be in 0..1");
        assert!(Adam::new(AdamOptions { lr: f64::NAN, ..AdamOptions::default() }).is_err());
    }
}
