//! A loaded method: its inputs, outputs, named tensors, and its memory.

pub(crate) mod checkpoint;
mod inputs;
mod load;
mod memory;
mod run;
mod session;

pub use session::{Session, SharedMethod};

use crate::backend::DelegateEntry;
use crate::error::{Error, ExecuteError, InputProblem, InstructionPlace};
use crate::open::{MethodMeta, Program};
use crate::plan::{Chain, Id, Instr, State, Storage, Value};
use crate::prepare::AsWritten;
use crate::prepare::raise::Listing;
use crate::prepare::region::Region;
use crate::{Limits, Result};
use pteron_exported::InputSizes;
use pteron_operator::{EValue, Generator, Isa, Reservation, Scratch};
use pteron_pool::{Interrupt, Pool};
use pteron_tensor::{TensorView, TensorViewMut};
use pteron_trace::EventTracer;
use std::sync::Arc;

/// The graph that a range of instructions was raised to.
#[derive(Debug, Clone)]
pub struct MethodGraph<'m> {
    /// Index of the chain.
    pub chain: usize,
    /// The range of instructions in the chain.
    pub instructions: std::ops::Range<usize>,
    /// Whether sizes are dynamic. If so, this graph has their upper bounds, and another is built for the actual sizes
    /// of an execution.
    pub is_dynamic: bool,
    /// The graph, before any pass.
    pub graph: &'m pteron_engine::Graph,
}

/// A method of a program, loaded and ready to execute: its values, its memory, its kernels.
///
/// A method keeps its mutable state (a cache, a counter, parameters in training) from one execution
/// to the next. It can be sent to another thread; several methods of one [`Program`] run in several
/// threads and share the program's constants.
pub struct Method {
    program: Program,
    /// The method's index among the program's execution plans.
    plan: usize,
    name: Arc<str>,
    pub(crate) state: State,
    chains: Vec<Chain>,
    delegates: Vec<DelegateEntry>,
    regions: Vec<Region>,
    /// Packed weights, shared by regions and prepared calls.
    packs: pteron_engine::Packs,
    /// The instructions that could not be prepared within the memory limit.
    as_written: Vec<AsWritten>,
    /// Budget reservations for arenas, tables and constants.
    _reservations: Vec<Reservation>,
    operators: Vec<Box<str>>,
    inputs: Vec<Id>,
    pub(crate) outputs: Vec<Id>,
    input_set: Vec<bool>,
    /// The sizes that the export allows for the inputs, if the program records them.
    input_sizes: Option<Arc<InputSizes>>,
    /// The number of leading arenas that belong to the memory plan.
    planned_arenas: usize,
    scratch: Scratch,
    generator: Generator,
    pool: Pool,
    isa: Isa,
    tracer: Option<Arc<dyn EventTracer>>,
    interrupt: Option<Interrupt>,
    limits: Limits,
}

impl Method {
    /// The method's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The program that the method belongs to.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// The instructions that run as they are written, because packing their weights would exceed
    /// [`Limits::memory`](crate::Limits::memory).
    pub fn as_written(&self) -> &[AsWritten] {
        &self.as_written
    }

    /// The graphs of the method's regions, in instruction order, if the method was loaded with
    /// [`LoadOptions::keep_graphs`](crate::LoadOptions::keep_graphs).
    pub fn graphs(&self) -> Vec<MethodGraph<'_>> {
        let mut graphs = Vec::new();
        for (chain, instrs) in self.chains.iter().map(|c| &c.instrs).enumerate() {
            for (start, instr) in instrs.iter().enumerate() {
                let Instr::Region(call) = instr else { continue };
                let region = &self.regions[call.region];
                if let Some(graph) = region.graph() {
                    let is_dynamic = matches!(region, Region::Dynamic(_));
                    graphs.push(MethodGraph { chain, instructions: start..call.next, is_dynamic, graph });
                }
            }
        }
        graphs
    }

    /// The program's description of this method.
    pub fn meta(&self) -> MethodMeta<'_> {
        MethodMeta::new(&self.program, self.plan)
    }

    /// The method's instructions, with the values that they refer to.
    pub(crate) fn listing(&self) -> Listing<'_> {
        let Self { state, chains, inputs, outputs, .. } = self;
        Listing { state, chains, inputs, outputs }
    }

    /// Sets all inputs, runs the method, and copies all outputs.
    pub fn execute(&mut self, inputs: &[EValue]) -> Result<Vec<EValue>> {
        if inputs.len() != self.inputs.len() {
            return Err(
                self.input_error(InputProblem::Count { expected: self.inputs.len(), found: inputs.len() })
            );
        }
        for (i, value) in inputs.iter().enumerate() {
            self.set_input(i, value)?;
        }
        self.run()?;
        (0..self.outputs.len()).map(|i| self.output(i)).collect()
    }

    /// Runs with the inputs that were set. Inputs keep their values for further runs only if the memory plan does not
    /// reuse their memory. Unless that is known, set them before every run, as the reference requires.
    pub fn run(&mut self) -> Result<()> {
        if let Some(index) = self.input_set.iter().position(|set| !set) {
            return Err(self.input_error(InputProblem::Unset { index }));
        }
        self.check_sizes()?;
        self.run_chains()
    }

    /// Sets the inputs, runs, and copies the outputs into existing tensors, without allocation. All inputs and outputs
    /// must be tensors. `outputs` must have the scalar types of the method's outputs and enough capacity; they are
    /// resized and keep their own dim orders.
    pub fn run_into(&mut self, inputs: &[TensorView<'_>], outputs: &mut [TensorViewMut<'_>]) -> Result<()> {
        if inputs.len() != self.inputs.len() {
            let count = InputProblem::Count { expected: self.inputs.len(), found: inputs.len() };
            return Err(self.input_error(count));
        }
        if outputs.len() != self.outputs.len() {
            return Err(self.no_such_output(outputs.len()));
        }
        for (i, tensor) in inputs.iter().enumerate() {
            self.set_input_tensor(i, *tensor)?;
        }
        self.run()?;
        for (i, out) in outputs.iter_mut().enumerate() {
            let result = self.output_tensor(i)?;
            out.reshape(result.sizes())?;
            result.relayout(out)?;
        }
        Ok(())
    }

    /// The index of the input with this name, if the exporter named it.
    pub fn input_index(&self, name: &str) -> Option<usize> {
        self.position_of_name(&self.inputs, name)
    }

    /// The index of the output with this name, if the exporter named it.
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.position_of_name(&self.outputs, name)
    }

    fn position_of_name(&self, ids: &[Id], name: &str) -> Option<usize> {
        ids.iter()
            .position(|&id| self.state.values[id].tensor().is_some_and(|t| t.name.as_deref() == Some(name)))
    }

    /// The number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The number of outputs.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// A copy of an output of the last run.
    pub fn output(&self, index: usize) -> Result<EValue> {
        let id = *self.outputs.get(index).ok_or_else(|| self.no_such_output(index))?;
        self.copy_out(id)
    }

    /// A view of a tensor output of the last run in the method's memory.
    pub fn output_tensor(&self, index: usize) -> Result<TensorView<'_>> {
        let id = *self.outputs.get(index).ok_or_else(|| self.no_such_output(index))?;
        self.state.view(id).map_err(|e| self.output_error(id, e))
    }

    fn copy_out(&self, id: Id) -> Result<EValue> {
        let tensor = |id: Id| self.state.copy_tensor(id).map_err(|e| self.output_error(id, e));
        Ok(match &self.state.values[id] {
            Value::None => EValue::None,
            Value::Int(v) => EValue::Int(*v),
            Value::Double(v) => EValue::Double(*v),
            Value::Bool(v) => EValue::Bool(*v),
            Value::Str(v) => EValue::String(v.to_string()),
            Value::Ints(ids) => EValue::ListInt(
                ids.iter()
                    .map(|&id| match &self.state.values[id] {
                        Value::Int(v) => *v,
                        _ => 0,
                    })
                    .collect(),
            ),
            Value::Doubles(v) => EValue::ListDouble(v.to_vec()),
            Value::Bools(v) => EValue::ListBool(v.to_vec()),
            Value::Tensor(_) => EValue::Tensor(tensor(id)?),
            Value::Tensors(ids) => {
                EValue::ListTensor(ids.iter().map(|&id| tensor(id)).collect::<Result<_>>()?)
            }
            Value::OptionalTensors(ids) => EValue::ListOptionalTensor(
                ids.iter().map(|id| id.map(tensor).transpose()).collect::<Result<_>>()?,
            ),
        })
    }

    /// The named tensors of the method (mutable tensors and external constants), with their current values.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, TensorView<'_>)> {
        self.state.values.iter().enumerate().filter_map(|(id, v)| {
            let name = v.tensor()?.name.as_deref()?;
            Some((name, self.state.view(id).ok()?))
        })
    }

    /// The named tensor of the method with this name, if there is one.
    pub fn attribute(&self, name: &str) -> Option<TensorView<'_>> {
        let is_named = |v: &Value| v.tensor().is_some_and(|t| t.name.as_deref() == Some(name));
        let id = self.state.values.iter().position(is_named)?;
        self.state.view(id).ok()
    }

    /// Overwrites a named mutable tensor.
    pub fn set_attribute(&mut self, name: &str, tensor: TensorView<'_>) -> Result<()> {
        let slot = self
            .state
            .values
            .iter_mut()
            .find_map(|v| v.tensor_mut().filter(|t| t.name.as_deref() == Some(name)));
        let Some(slot) = slot else {
            return Err(Error::NoSuchKey {
                key: name.to_owned(),
                source_name: format!("method `{}`", self.name),
            });
        };
        let Storage::Arena(extent) = slot.home else {
            return Err(Error::Unsupported(format!("`{name}` is a constant of method `{}`", self.name)));
        };
        if slot.meta.dtype() != tensor.dtype() || slot.meta.sizes() != tensor.sizes() {
            return Err(Error::Unsupported(format!(
                "`{name}` is a tensor {}, {} was given",
                slot.meta,
                tensor.meta()
            )));
        }
        let target =
            self.state.arenas.bytes_mut(pteron_tensor::Extent { len: slot.meta.nbytes(), ..extent })?;
        tensor.relayout(&mut pteron_tensor::TensorViewMut::new(&mut slot.meta, target)?)?;
        Ok(())
    }

    /// Bytes that this method and its forks currently hold, as [`Limits::memory`] counts them.
    pub fn memory(&self) -> u64 {
        self.packs.budget().held()
    }

    /// Seeds the generator of random operators.
    pub fn seed(&mut self, seed: u64) {
        self.generator = Generator::new(seed);
    }

    /// Sets or removes the handle that can interrupt further executions.
    ///
    /// An interrupted execution fails with [`ExecuteError::Interrupted`] and leaves outputs and mutable state partially
    /// written: restore the state, or load the method again, before the next execution.
    pub fn set_interrupt(&mut self, interrupt: Option<Interrupt>) {
        self.interrupt = interrupt;
    }

    /// Sets or removes the tracer that receives events of further runs.
    pub fn set_tracer(&mut self, tracer: Option<Arc<dyn EventTracer>>) {
        self.tracer = tracer;
    }

    fn input_error(&self, problem: InputProblem) -> Error {
        Error::Input { method: self.name.to_string(), problem }
    }

    fn no_such_output(&self, index: usize) -> Error {
        Error::Unsupported(format!(
            "method `{}` has {} outputs, there is no output {index}",
            self.name,
            self.outputs.len()
        ))
    }

    fn output_error(&self, id: Id, source: ExecuteError) -> Error {
        let what = format!("reading value {id}");
        Error::Execute {
            method: self.name.to_string(),
            at: Box::new(InstructionPlace { chain: 0, instruction: 0, what, source_frame: None }),
            source: Box::new(source),
        }
    }
}

impl std::fmt::Debug for Method {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Method(`{}`, {} inputs, {} outputs)", self.name, self.inputs.len(), self.outputs.len())
    }
}
