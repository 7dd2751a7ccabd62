//! What is done to gradients between a run and a step.

use super::{JointMethod, TrainingModule, Visit};
use crate::{Error, Result};
use std::collections::BTreeMap;

impl JointMethod {
    /// A copy of the accumulated gradients, by parameter name.
    pub(super) fn accumulated(&self) -> BTreeMap<String, Vec<f32>> {
        self.accumulated.clone()
    }

    /// Sets the accumulated gradients, and discards the gradients of the last run, which do not belong to them.
    pub(super) fn set_accumulated(&mut self, accumulated: BTreeMap<String, Vec<f32>>) {
        self.accumulated = accumulated;
        self.ran = false;
    }
}

impl TrainingModule {
    /// Adds the gradients of the last run to those of the runs before, since the last step. The sums are the gradients from
    /// then on, for clipping and for [`Self::step`]. Call it once after each run of a step, to train with batches that are
    /// larger than the program's.
    ///
    /// # Errors
    /// If the method has not run, or a gradient is no float32 tensor.
    pub fn accumulate_gradients(&mut self, method: &str) -> Result<()> {
        let mut sums = std::mem::take(&mut self.joint_with_gradients(method)?.accumulated);
        let added = self.for_each_gradient(method, &mut |name, _, gradient| {
            match sums.get_mut(name) {
                Some(sum) => sum.iter_mut().zip(&mut *gradient).for_each(|(sum, g)| {
                    *sum += *g;
                    *g = *sum;
                }),
                None => {
                    let mut sum = pteron_tensor::memory::filled(gradient.len(), 0.0)?;
                    sum.copy_from_slice(gradient);
                    sums.insert(name.to_owned(), sum);
                }
            }
            Ok(())
        });
        if let Some(joint) = self.joints.get_mut(method) {
            joint.accumulated = sums;
        }
        added
    }

    /// Scales the gradients so that their norm, as that of one vector, is at most `max_norm`, and returns the norm that they
    /// had: `torch.nn.utils.clip_grad_norm_`.
    ///
    /// # Errors
    /// As [`Self::accumulate_gradients`].
    pub fn clip_gradient_norm(&mut self, method: &str, max_norm: f64) -> Result<f64> {
        let mut squares = 0.0;
        self.for_each_gradient(method, &mut |_, _, gradient| {
            squares += gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>();
            Ok(())
        })?;
        let norm = squares.sqrt();
        let scale = (max_norm / (norm + 1e-6)).min(1.0) as f32;
        if scale < 1.0 {
            self.for_each_gradient(method, &mut |_, _, gradient| {
                gradient.iter_mut().for_each(|g| *g *= scale);
                Ok(())
            })?;
        }
        Ok(norm)
    }

    /// Limits every element of the gradients to `-max..=max`: `torch.nn.utils.clip_grad_value_`.
    ///
    /// # Errors
    /// As [`Self::accumulate_gradients`]; or if `max` is negative or not a number.
    pub fn clip_gradient_values(&mut self, method: &str, max: f32) -> Result<()> {
        if max.is_nan() || max < 0.0 {
            return Err(Error::Unsupported(format!(
                "gradients cannot be limited to {max}; it must be 0 or more"
            )));
        }
        self.for_each_gradient(method, &mut |_, _, gradient| {
            gradient.iter_mut().for_each(|g| *g = g.clamp(-max, max));
            Ok(())
        })
    }

    /// Calls `visit` for every parameter of a method that has run, in the program's order.
    pub(super) fn for_each_gradient(&mut self, method: &str, visit: Visit<'_>) -> Result<()> {
        self.joint_with_gradients(method)?;
        let Some(joint) = self.joints.get(method) else { return Ok(()) };
        let loaded = self.module.method(method)?;
        for (i, name) in joint.names.iter().enumerate() {
            loaded.visit_gradient(joint.parameters + i, joint.gradients + i, name, visit)?;
        }
        Ok(())
    }

    /// What is known of the gradients of a method. Fails if the method has not run, so that it has no gradients.
    pub(super) fn joint_with_gradients(&mut self, method: &str) -> Result<&mut JointMethod> {
        self.joint(method)?;
        match self.joints.get_mut(method) {
            Some(joint) if joint.ran => Ok(joint),
            _ => Err(Error::Unsupported(format!(
                "method `{method}` has no gradients yet: call execute_forward_backward first"
            ))),
        }
    }
}
