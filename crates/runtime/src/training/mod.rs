//! On-device training of programs that were exported with their backward pass.
//!
//! A trainable method returns the outputs of the model, then the gradient of each parameter, then the parameters
//! themselves. Three constant methods describe that list: `__et_training_gradients_index_<method>` and
//! `__et_training_parameters_index_<method>` give the index of the first gradient and of the first parameter,
//! `__et_training_fqn_<method>` gives the names of the parameters.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use pteron_runtime::{LoadOptions, Sgd, SgdOptions, TrainingModule};
//! # let batches: Vec<Vec<pteron_operator::EValue>> = Vec::new();
//! let mut model = TrainingModule::open("model.pte", LoadOptions::default())?;
//! let mut sgd = Sgd::new(SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() })?;
//! for batch in &batches {
//!     let outputs = model.execute_forward_backward("forward", batch)?;
//!     println!("loss {:?}", outputs[0]);
//!     model.step("forward", &mut sgd)?;
//! }
//! model.save_training("forward", "run.ptd", &sgd)?; // to go on from here
//! model.save_checkpoint("forward", "trained.ptd")?; // the parameters only
//! # Ok(()) }
//! ```

mod adam;
mod gradients;
mod optimizer;
mod schedule;
mod sgd;
mod state;

pub use adam::{Adam, AdamOptions};
pub use optimizer::{Optimizer, OptimizerState};
pub use schedule::{Decay, Schedule};
pub use sgd::{Sgd, SgdOptions};
pub use state::saved_optimizer;

use crate::plan::Storage;
use crate::{Error, LoadOptions, Method, Module, Program, Result};
use pteron_operator::EValue;
use pteron_tensor::{Element, Extent, ScalarType, TensorView};
use std::collections::BTreeMap;
use std::path::Path;

/// A module whose methods compute gradients.
#[derive(Debug)]
pub struct TrainingModule {
    module: Module,
    joints: BTreeMap<String, JointMethod>,
}

/// A method with a joint forward and backward graph: which of its outputs are gradients and parameters, and the gradients
/// since the last step.
#[derive(Debug)]
struct JointMethod {
    /// Index of the first gradient among the outputs.
    gradients: usize,
    /// Index of the first parameter among the outputs.
    parameters: usize,
    /// The names of the parameters. Gradients and parameters are in this order.
    names: Vec<String>,
    /// Whether the method has run, so that its gradients are valid.
    ran: bool,
    /// The sums of the gradients since the last step, by parameter name; empty unless gradients are accumulated.
    accumulated: BTreeMap<String, Vec<f32>>,
}

/// A callback that receives a parameter's name, its elements, and the elements of its gradient.
type Visit<'v> = &'v mut dyn FnMut(&str, &mut [f32], &mut [f32]) -> Result<()>;

impl TrainingModule {
    /// Opens a program file and reads ranges of it on demand.
    pub fn open(path: impl AsRef<Path>, options: LoadOptions) -> Result<Self> {
        Ok(Self::new(Program::open_with(path, &options.limits)?, options))
    }

    /// A training module for an open program.
    pub fn new(program: Program, options: LoadOptions) -> Self {
        Self { module: Module::new(program, options), joints: BTreeMap::new() }
    }

    /// The names of the methods that compute gradients.
    pub fn trainable_methods(&self) -> Vec<&str> {
        let names = self.module.method_names();
        names.into_iter().filter_map(|n| n.strip_prefix("__et_training_gradients_index_")).collect()
    }

    /// Runs the forward and backward pass of a method and returns the outputs of the model, usually the loss first.
    pub fn execute_forward_backward(&mut self, method: &str, inputs: &[EValue]) -> Result<Vec<EValue>> {
        self.joint(method)?;
        let mut outputs = self.module.execute(method, inputs)?;
        if let Some(joint) = self.joints.get_mut(method) {
            outputs.truncate(joint.gradients);
            joint.ran = true;
        }
        Ok(outputs)
    }

    /// The parameters of a method by name, as views into the method's memory.
    pub fn named_parameters(&mut self, method: &str) -> Result<Vec<(&str, TensorView<'_>)>> {
        let first = self.joint(method)?.parameters;
        self.named_outputs(method, first)
    }

    /// The gradients of the last run by parameter name, as views into the method's memory, with what was done to them since
    /// ([`Self::accumulate_gradients`], [`Self::clip_gradient_norm`]). Fails before the first run.
    pub fn named_gradients(&mut self, method: &str) -> Result<Vec<(&str, TensorView<'_>)>> {
        let first = self.joint_with_gradients(method)?.gradients;
        self.named_outputs(method, first)
    }

    /// Updates every parameter of a method with the gradients of its last run, or with their sums where they were
    /// accumulated. The sums start again at 0.
    pub fn step(&mut self, method: &str, optimizer: &mut dyn Optimizer) -> Result<()> {
        self.for_each_gradient(method, &mut |name, parameter, gradient| {
            optimizer.step(name, parameter, gradient)
        })?;
        optimizer.end_step();
        if let Some(joint) = self.joints.get_mut(method) {
            joint.accumulated.clear();
        }
        Ok(())
    }

    /// Writes the parameters and the other persistent tensors of a method to a `.ptd` file, atomically: see
    /// [`Method::save_checkpoint`]. The key of a parameter is its name.
    pub fn save_checkpoint(&mut self, method: &str, path: impl AsRef<Path>) -> Result<()> {
        self.joint(method)?;
        self.module.save_checkpoint(method, path)
    }

    /// Restores a checkpoint written by [`Self::save_checkpoint`]: see [`Method::load_checkpoint`].
    pub fn load_checkpoint(&mut self, method: &str, path: impl AsRef<Path>) -> Result<()> {
        self.joint(method)?;
        self.module.load_checkpoint(method, path)
    }

    /// The underlying module, for methods that compute no gradients.
    pub fn module(&mut self) -> &mut Module {
        &mut self.module
    }

    fn named_outputs(&mut self, method: &str, first: usize) -> Result<Vec<(&str, TensorView<'_>)>> {
        let loaded: &Method = self.module.method(method)?;
        let names = self.joints.get(method).map_or(&[][..], |joint| &joint.names);
        let mut list = Vec::with_capacity(names.len());
        for (i, name) in names.iter().enumerate() {
            list.push((name.as_str(), loaded.output_tensor(first + i)?));
        }
        Ok(list)
    }

    /// What is known of the gradients of a method; their positions are read once from the methods that describe them.
    fn joint(&mut self, method: &str) -> Result<&JointMethod> {
        if !self.joints.contains_key(method) {
            let joint = self.read_joint(method)?;
            self.joints.insert(method.to_owned(), joint);
        }
        match self.joints.get(method) {
            Some(joint) => Ok(joint),
            None => Err(self.module.program().no_such_method(method)),
        }
    }

    fn read_joint(&mut self, method: &str) -> Result<JointMethod> {
        let outputs = self.module.method_meta(method)?.outputs().len();
        let gradients = self.index_from_method(&format!("__et_training_gradients_index_{method}"), method)?;
        let parameters =
            self.index_from_method(&format!("__et_training_parameters_index_{method}"), method)?;
        let of_names = format!("__et_training_fqn_{method}");
        let mut names = Vec::new();
        for value in self.module.execute(&of_names, &[])? {
            match value {
                EValue::String(name) => names.push(name),
                other => {
                    let problem = format!("returns {} where a name is expected", other.tag());
                    return Err(Error::Unsupported(format!("method `{of_names}` {problem}")));
                }
            }
        }
        let divided = gradients <= parameters
            && parameters - gradients == names.len()
            && parameters.checked_add(names.len()) == Some(outputs);
        if !divided {
            return Err(Error::Unsupported(format!(
                "method `{method}` has {outputs} outputs; its gradients begin at {gradients} and its parameters at \
                 {parameters}, which does not fit {} parameter names",
                names.len()
            )));
        }
        let loaded = self.module.method(method)?;
        for (i, name) in names.iter().enumerate() {
            loaded.name_output(parameters + i, name);
        }
        Ok(JointMethod { gradients, parameters, names, ran: false, accumulated: BTreeMap::new() })
    }

    /// The index that a constant method returns.
    fn index_from_method(&mut self, name: &str, method: &str) -> Result<usize> {
        if !self.module.method_names().contains(&name) {
            return Err(Error::Unsupported(format!(
                "method `{method}` computes no gradients: the program has no `{name}`; export it with its \
                 backward pass"
            )));
        }
        match self.module.execute(name, &[])?.first() {
            Some(EValue::Int(index)) if *index >= 0 => Ok(usize::try_from(*index).unwrap_or(usize::MAX)),
            _ => Err(Error::Unsupported(format!("method `{name}` does not return an index"))),
        }
    }
}

impl Method {
    /// Names an output tensor that the exporter left unnamed.
    fn name_output(&mut self, index: usize, name: &str) {
        let id = self.outputs.get(index).copied();
        if let Some(tensor) = id.and_then(|id| self.state.values[id].tensor_mut()) {
            tensor.name.get_or_insert_with(|| name.into());
        }
    }

    /// Calls `visit` with the elements of a parameter and of its gradient; both are given as output indices.
    fn visit_gradient(
        &mut self,
        parameter: usize,
        gradient: usize,
        name: &str,
        visit: Visit<'_>,
    ) -> Result<()> {
        let (p, p_dtype, p_order) = self.output_extent(parameter, name)?;
        let (g, g_dtype, g_order) = self.output_extent(gradient, name)?;
        if (p_dtype, g_dtype) != (ScalarType::Float, ScalarType::Float) || p_order != g_order {
            return Err(Error::Unsupported(format!(
                "parameter `{name}` is a tensor of {p_dtype} and its gradient one of {g_dtype}; both must be \
                 float32 and have the same layout"
            )));
        }
        let mut loan = self.state.arenas.lend();
        let (parameter, gradient) = (loan.exclusive(p)?, loan.exclusive(g)?);
        visit(name, floats_mut(parameter)?, floats_mut(gradient)?)
    }

    /// The arena extent, type and layout of an output. Fails if it is not in an arena.
    fn output_extent(
        &self,
        index: usize,
        name: &str,
    ) -> Result<(Extent, ScalarType, pteron_tensor::DimOrder)> {
        let tensor = self.outputs.get(index).and_then(|&id| self.state.values[id].tensor());
        match tensor.map(|t| (t, t.storage)) {
            Some((t, Storage::Arena(extent))) => {
                let extent = Extent { len: t.meta.nbytes(), ..extent };
                Ok((extent, t.meta.dtype(), *t.meta.dim_order()))
            }
            _ => Err(Error::Unsupported(format!(
                "output {index} of method `{}`, for parameter `{name}`, is not a mutable tensor",
                self.name()
            ))),
        }
    }
}

fn floats_mut(bytes: &mut [u8]) -> Result<&mut [f32]> {
    bytemuck::try_cast_slice_mut(bytes).map_err(|_| misaligned_error())
}

fn misaligned_error() -> Error {
    pteron_tensor::Error::Misaligned { dtype: f32::DTYPE }.into()
}
