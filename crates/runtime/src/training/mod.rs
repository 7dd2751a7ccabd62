//! Training on the device: programs that were exported with their backward pass.
//!
//! Such a program's method gives what the model gives, then the gradient of each parameter, then the
//! parameters themselves. Where one ends and the next begins, and how the parameters are named, is said
//! by three methods beside it: `__et_training_gradients_index_<method>`,
//! `__et_training_parameters_index_<method>` and `__et_training_fqn_<method>`.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # use pteron_runtime::{LoadOptions, Sgd, SgdOptions, TrainingModule};
//! # let batches: Vec<Vec<operator::EValue>> = Vec::new();
//! let mut model = TrainingModule::open("model.pte", LoadOptions::default())?;
//! let mut sgd = Sgd::new(SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() })?;
//! for batch in &batches {
//!     let outputs = model.execute_forward_backward("forward", batch)?;
//!     println!("loss {:?}", outputs[0]);
//!     model.step("forward", &mut sgd)?;
//! }
//! model.save_checkpoint("forward", "trained.ptd")?;
//! # Ok(()) }
//! ```

mod sgd;

pub use sgd::{Sgd, SgdOptions};

use crate::value::Storage;
use crate::{Error, LoadOptions, Method, Module, Program, Result};
use operator::EValue;
use std::collections::BTreeMap;
use std::path::Path;
use tensor::{Element, Extent, ScalarType, TensorView};

/// A module whose methods compute gradients.
#[derive(Debug)]
pub struct TrainingModule {
    module: Module,
    joints: BTreeMap<String, Joint>,
}

/// How the outputs of a method that computes gradients are divided.
#[derive(Debug)]
struct Joint {
    /// The first output that is a gradient.
    gradients: usize,
    /// The first output that is a parameter.
    parameters: usize,
    /// The names of the parameters, in the order of both.
    names: Vec<String>,
    /// Whether there are gradients to read.
    ran: bool,
}

impl TrainingModule {
    /// Opens a program file, of which ranges are read when they are needed.
    pub fn open(path: impl AsRef<Path>, options: LoadOptions) -> Result<Self> {
        Ok(Self::new(Program::open_with(path, &options.limits)?, options))
    }

    /// A module of an open program.
    pub fn new(program: Program, options: LoadOptions) -> Self {
        Self { module: Module::new(program, options), joints: BTreeMap::new() }
    }

    /// The names of the methods that compute gradients.
    pub fn trainable_methods(&self) -> Vec<&str> {
        let names = self.module.method_names();
        names.into_iter().filter_map(|n| n.strip_prefix("__et_training_gradients_index_")).collect()
    }

    /// Runs a method forward and backward, and gives what the model gives: usually the loss first.
    pub fn execute_forward_backward(&mut self, method: &str, inputs: &[EValue]) -> Result<Vec<EValue>> {
        self.joint(method)?;
        let mut outputs = self.module.execute(method, inputs)?;
        if let Some(joint) = self.joints.get_mut(method) {
            outputs.truncate(joint.gradients);
            joint.ran = true;
        }
        Ok(outputs)
    }

    /// The parameters of a method with their names, where they lie.
    pub fn named_parameters(&mut self, method: &str) -> Result<Vec<(&str, TensorView<'_>)>> {
        let first = self.joint(method)?.parameters;
        self.named(method, first)
    }

    /// The gradients of the last run, by the names of their parameters, where they lie. An error
    /// before the first run.
    pub fn named_gradients(&mut self, method: &str) -> Result<Vec<(&str, TensorView<'_>)>> {
        let joint = self.joint(method)?;
        if !joint.ran {
            return Err(Error::Unsupported(format!(
                "method `{method}` has no gradients yet: call execute_forward_backward first"
            )));
        }
        let first = joint.gradients;
        self.named(method, first)
    }

    /// Steps every parameter of a method along the gradients of its last run.
    pub fn step(&mut self, method: &str, sgd: &mut Sgd) -> Result<()> {
        self.named_gradients(method)?;
        let Some(joint) = self.joints.get(method) else { return Ok(()) };
        let loaded = self.module.method(method)?;
        for (i, name) in joint.names.iter().enumerate() {
            loaded.step_output(joint.parameters + i, joint.gradients + i, name, sgd)?;
        }
        Ok(())
    }

    /// Writes the parameters of a method, and whatever else outlives an execution, to a `.ptd` file, as
    /// a whole: see [`Method::save_checkpoint`]. Parameters stand under their names.
    pub fn save_checkpoint(&mut self, method: &str, path: impl AsRef<Path>) -> Result<()> {
        self.joint(method)?;
        self.module.save_checkpoint(method, path)
    }

    /// Reads what [`Self::save_checkpoint`] has written: see [`Method::load_checkpoint`].
    pub fn load_checkpoint(&mut self, method: &str, path: impl AsRef<Path>) -> Result<()> {
        self.joint(method)?;
        self.module.load_checkpoint(method, path)
    }

    /// The module, for methods that compute no gradients.
    pub fn module(&mut self) -> &mut Module {
        &mut self.module
    }

    fn named(&mut self, method: &str, first: usize) -> Result<Vec<(&str, TensorView<'_>)>> {
        let loaded: &Method = self.module.method(method)?;
        let names = self.joints.get(method).map_or(&[][..], |joint| &joint.names);
        let mut list = Vec::with_capacity(names.len());
        for (i, name) in names.iter().enumerate() {
            list.push((name.as_str(), loaded.output_tensor(first + i)?));
        }
        Ok(list)
    }

    /// How the outputs of a method are divided, read from the methods that say so.
    fn joint(&mut self, method: &str) -> Result<&Joint> {
        if !self.joints.contains_key(method) {
            let joint = self.read_joint(method)?;
            self.joints.insert(method.to_owned(), joint);
        }
        match self.joints.get(method) {
            Some(joint) => Ok(joint),
            None => Err(self.module.program().no_such_method(method)),
        }
    }

    fn read_joint(&mut self, method: &str) -> Result<Joint> {
        let outputs = self.module.method_meta(method)?.outputs().len();
        let gradients = self.index(&format!("__et_training_gradients_index_{method}"), method)?;
        let parameters = self.index(&format!("__et_training_parameters_index_{method}"), method)?;
        let of_names = format!("__et_training_fqn_{method}");
        let mut names = Vec::new();
        for value in self.module.execute(&of_names, &[])? {
            match value {
                EValue::String(name) => names.push(name),
                other => {
                    let problem = format!("gives {} where a name is expected", other.tag());
                    return Err(Error::Unsupported(format!("method `{of_names}` {problem}")));
                }
            }
        }
        let divided = gradients <= parameters
            && parameters - gradients == names.len()
            && parameters.checked_add(names.len()) == Some(outputs);
        if !divided {
            return Err(Error::Unsupported(format!(
                "method `{method}` has {outputs} outputs, of which the gradients are said to begin at \
                 {gradients} and the parameters at {parameters}; with {} names that cannot be",
                names.len()
            )));
        }
        let loaded = self.module.method(method)?;
        for (i, name) in names.iter().enumerate() {
            loaded.name_output(parameters + i, name);
        }
        Ok(Joint { gradients, parameters, names, ran: false })
    }

    /// The number that a constant method gives.
    fn index(&mut self, name: &str, method: &str) -> Result<usize> {
        if !self.module.method_names().contains(&name) {
            return Err(Error::Unsupported(format!(
                "method `{method}` computes no gradients: the program has no `{name}`; export it with its \
                 backward pass"
            )));
        }
        match self.module.execute(name, &[])?.first() {
            Some(EValue::Int(index)) if *index >= 0 => Ok(usize::try_from(*index).unwrap_or(usize::MAX)),
            _ => Err(Error::Unsupported(format!("method `{name}` gives no index"))),
        }
    }
}

impl Method {
    /// Names the tensor that an output is, if the exporter has not.
    fn name_output(&mut self, index: usize, name: &str) {
        let id = self.outputs.get(index).copied();
        if let Some(tensor) = id.and_then(|id| self.state.values[id].tensor_mut()) {
            tensor.name.get_or_insert_with(|| name.into());
        }
    }

    /// Steps a parameter along its gradient, both outputs of the method.
    fn step_output(&mut self, parameter: usize, gradient: usize, name: &str, sgd: &mut Sgd) -> Result<()> {
        let (p, p_dtype, p_order) = self.output_extent(parameter, name)?;
        let (g, g_dtype, g_order) = self.output_extent(gradient, name)?;
        if (p_dtype, g_dtype) != (ScalarType::Float, ScalarType::Float) || p_order != g_order {
            return Err(Error::Unsupported(format!(
                "parameter `{name}` is a tensor of {p_dtype} and its gradient one of {g_dtype}; steps are \
                 made in float32, both in one layout"
            )));
        }
        let mut loan = self.state.arenas.lend();
        let (parameter, gradient) = (loan.exclusive(p)?, loan.shared(g)?);
        sgd.step(name, floats_mut(parameter)?, floats(gradient)?)
    }

    /// Where an output is, if it is in an arena, with its type and layout.
    fn output_extent(&self, index: usize, name: &str) -> Result<(Extent, ScalarType, tensor::DimOrder)> {
        let tensor = self.outputs.get(index).and_then(|&id| self.state.values[id].tensor());
        match tensor.map(|t| (t, t.storage)) {
            Some((t, Storage::Arena(extent))) => {
                let extent = Extent { len: t.meta.nbytes(), ..extent };
                Ok((extent, t.meta.dtype(), *t.meta.dim_order()))
            }
            _ => Err(Error::Unsupported(format!(
                "output {index} of method `{}`, of parameter `{name}`, is no tensor that can change",
                self.name()
            ))),
        }
    }
}

fn floats(bytes: &[u8]) -> Result<&[f32]> {
    bytemuck::try_cast_slice(bytes).map_err(|_| misaligned())
}

fn floats_mut(bytes: &mut [u8]) -> Result<&mut [f32]> {
    bytemuck::try_cast_slice_mut(bytes).map_err(|_| misaligned())
}

fn misaligned() -> Error {
    tensor::Error::Misaligned { dtype: f32::DTYPE }.into()
}
