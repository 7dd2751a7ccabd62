//! Lifts programs back to exported programs: the inverse of `emit`.
//!
//! A plan assigns values to memory. Lifting gives each write a value of its own (SSA form), which later reads of the
//! same memory refer to. Memory that is read before it is written is state; what it holds at the end is written back.
//! Delegate payloads are lifted to the operators that they compute. Sizes that the plan declares dynamic become symbols
//! with the plan's bounds, or are inferred where an operator's result sizes follow from its operands.

mod calls;
mod control;
mod flow;
mod memory;
mod payloads;
mod shared;

use crate::limits::MAX_COPIED_BYTES;
use crate::{Error, OperatorTable, Result};
use memory::{Extent, Memory, ReadResult, Stored};
use pteron_exported::CompileBudget;
use pteron_exported::delegate::Recover;
use pteron_exported::{
    Argument, Bounds, ConstantTensor, ExportedProgram, InputKind, InputSizes, Mutation, Size, Source,
    SourceFrame, TensorSpec, VarId, VarType,
};
use pteron_format::pte::VerifiedProgram;
use pteron_format::pte::{
    Chain, EValue, ExecutionPlan, FrameList, Instruction, TASK_KEY, Tensor, TensorData, TensorShapeDynamism,
    ValueNames, input_sizes_key, value_names_key,
};
use pteron_ir::SharedBytes;
use pteron_tensor::DimOrder;
use std::collections::{BTreeSet, HashMap};
use std::fmt::Display;
use std::ops::Range;
use std::str::FromStr;
use std::sync::Arc;

/// A program file, with what is needed to lift it to exported programs.
pub struct Recoverable<'a> {
    /// The program.
    pub program: &'a VerifiedProgram,
    /// The bytes of the program's file.
    pub file: SharedBytes,
    /// Looks up weights that are stored outside the program, by key.
    pub data: &'a (dyn Fn(&str) -> Option<ConstantTensor> + Send + Sync),
    /// The operators that the program may call.
    pub operators: &'a OperatorTable,
    /// Backends whose payloads can be lifted to operators.
    pub backends: &'a [Arc<dyn Recover + Send + Sync>],
}

impl Recoverable<'_> {
    /// The task metadata that the program stores.
    pub(crate) fn task(&self) -> Result<Option<String>> {
        let Some(range) = self.program.named_data(TASK_KEY) else { return Ok(None) };
        let ends = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        let bytes = ends.and_then(|(start, end)| self.file.bytes().get(start..end)).unwrap_or_default();
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text.to_owned())),
            Err(_) => Err(Error::archive(format!("named data `{TASK_KEY}`"), "it is no text")),
        }
    }
}

/// Lifts the methods of a program to exported programs. What they need beside the file is taken from `budget`.
///
/// # Errors
/// The jumps of a method do not form nested branches and loops, it calls a backend or an operator that is not given, or
/// it reads memory that holds parts of several values.
pub fn recover(source: &Recoverable<'_>, budget: &CompileBudget) -> Result<Vec<ExportedProgram>> {
    let is_shared = shared::has_shared_state(source.program);
    let plans = source.program.execution_plan.iter();
    plans.map(|plan| Recovery::new(source, plan, is_shared, budget).run()).collect()
}

/// A method whose instructions are being lifted.
struct Recovery<'a> {
    source: &'a Recoverable<'a>,
    plan: &'a ExecutionPlan,
    program: ExportedProgram,
    now: State,
    constants: HashMap<usize, VarId>,
    states: Vec<(VarId, Extent, usize)>,
    /// For each extent that is a state, the state's variable and the value of the plan that was first read there.
    state_at: HashMap<Extent, Stored>,
    /// Whether the second arena holds state that methods share.
    is_shared: bool,
    /// The caller's inputs that instructions write: the value of the plan, and the input's variable.
    written_inputs: Vec<(usize, VarId)>,
    /// How many bytes of zeros may still be allocated.
    zeros_left: u64,
    /// The source location of the current instruction.
    origin: Arc<Source>,
}

/// The values at a point of the program.
#[derive(Default, Clone)]
struct State {
    memory: Memory,
    /// Values without an extent of their own: unplanned tensors, and views made by instructions, with the memory they
    /// view.
    unplaced: HashMap<usize, (VarId, Option<(Extent, Stored)>)>,
    /// Scalars that instructions compute or move.
    numbers: HashMap<usize, Argument>,
    /// For a stored variable and a value of the plan that declares other sizes for the same bytes, the variable of the
    /// view.
    views: HashMap<(VarId, usize), VarId>,
    /// The plan's values written in the current branch or loop.
    written: BTreeSet<usize>,
}

impl<'a> Recovery<'a> {
    fn new(
        source: &'a Recoverable<'a>,
        plan: &'a ExecutionPlan,
        is_shared: bool,
        budget: &CompileBudget,
    ) -> Self {
        let mut program = ExportedProgram::new(&*plan.name);
        program.budget = budget.clone();
        Self {
            source,
            plan,
            program,
            now: State::default(),
            constants: HashMap::new(),
            states: Vec::new(),
            state_at: HashMap::new(),
            is_shared,
            written_inputs: Vec::new(),
            zeros_left: MAX_COPIED_BYTES,
            origin: Arc::default(),
        }
    }

    fn run(mut self) -> Result<ExportedProgram> {
        self.lift_inputs()?;
        for (value, tensor) in self.plan.values.iter().enumerate() {
            let tensor = tensor.as_tensor();
            let data = tensor.map(|tensor| self.source.program.tensor_data(tensor));
            if let Some(TensorData::Initial(_) | TensorData::ExternalInitial(_)) = data {
                self.current_value(value)?;
            }
            // Shared state is state whether this method reads it, writes it or both.
            let extent =
                tensor.and_then(|tensor| self.extent(tensor)).filter(|extent| self.is_shared_at(extent));
            if extent.is_some_and(|extent| !self.state_at.contains_key(&extent)) {
                self.current_value(value)?;
            }
        }
        let plan = self.plan;
        if self.is_shared {
            let bytes = plan.non_const_buffer_sizes.get(shared::SHARED_ARENA as usize).copied();
            self.program.shared_bytes = bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0);
        }
        for chain in &plan.chains {
            self.lift_chain(chain)?;
        }
        self.lift_outputs()?;
        self.record_mutations()?;
        if let Some(meta) = &plan.container_meta_type {
            self.program.in_spec.clone_from(&meta.encoded_inp_str);
            self.program.out_spec.clone_from(&meta.encoded_out_str);
        }
        self.program.verify()?;
        Ok(self.program)
    }

    fn lift_inputs(&mut self) -> Result<()> {
        let allowed = self.read_input_sizes()?;
        self.read_value_names()?;
        for (number, &index) in self.plan.inputs.iter().enumerate() {
            let value = index as usize;
            let (var, kind) = match &self.plan.values[value] {
                EValue::Tensor(tensor) => {
                    let mut spec = self.spec_of(tensor)?;
                    let known = allowed.as_ref().and_then(|sizes| sizes.sizes(number)).unwrap_or_default();
                    let known =
                        spec.sizes.iter_mut().zip(known).filter_map(|(size, known)| Some((size, known?)));
                    known.for_each(|(size, known)| *size = known);
                    let var = self.program.add_var(format!("input{number}"), VarType::Tensor(spec));
                    self.define(value, var)?;
                    (var, InputKind::User)
                }
                fixed => {
                    let Some((argument, ty)) = scalar_of(fixed) else {
                        return self.fail(format_args!("input {number} is a list"));
                    };
                    let var = self.program.add_var(format!("input{number}"), ty);
                    (var, InputKind::Fixed(argument))
                }
            };
            self.program.graph.inputs.push(var);
            self.program.inputs.push(kind);
        }
        Ok(())
    }

    /// The sizes that the export allows for the inputs. Their symbols become symbols of the program.
    fn read_input_sizes(&mut self) -> Result<Option<InputSizes>> {
        let key = input_sizes_key(&self.plan.name);
        let Some(sizes) = self.read_own_data::<InputSizes>(&key)? else { return Ok(None) };
        self.program.ranges.extend(sizes.ranges());
        for (input, &value) in self.plan.inputs.iter().enumerate() {
            let tensor = self.plan.values[value as usize].as_tensor();
            if sizes.rank(input) != tensor.map(|tensor| tensor.sizes.len()) {
                return self.fail(format_args!("named data `{key}` is not for input {input} of this method"));
            }
        }
        Ok(Some(sizes))
    }

    /// Takes over the names of the inputs and outputs that the program stores.
    fn read_value_names(&mut self) -> Result<()> {
        let names = self.read_own_data::<ValueNames>(&value_names_key(&self.plan.name))?;
        if let Some(names) = names {
            (self.program.input_names, self.program.output_names) = (names.inputs, names.outputs);
        }
        Ok(())
    }

    /// Reads an entry of the named data that Pteron adds to programs; `None` if it is absent.
    fn read_own_data<T: FromStr<Err = String>>(&self, key: &str) -> Result<Option<T>> {
        let Some(range) = self.source.program.named_data(key) else { return Ok(None) };
        let data = self.file_constant(range)?;
        let text = std::str::from_utf8(data.data()).map_err(|e| e.to_string());
        let entry = text.and_then(str::parse);
        entry.map(Some).or_else(|problem| self.fail(format_args!("named data `{key}`: {problem}")))
    }

    fn lift_chain(&mut self, chain: &Chain) -> Result<()> {
        let jumps = |i: &Instruction| matches!(i, Instruction::JumpFalseCall { .. });
        if chain.instructions.iter().any(jumps) {
            return self.lift_with_jumps(chain);
        }
        (0..chain.instructions.len()).try_for_each(|at| self.lift_instruction(chain, at))
    }

    fn lift_instruction(&mut self, chain: &Chain, at: usize) -> Result<()> {
        self.origin = instruction_source(chain, at);
        let done = match &chain.instructions[at] {
            Instruction::KernelCall { op_index, args } => {
                let operator = self.plan.operators[*op_index as usize].full_name();
                self.lift_call(&operator, args)
            }
            Instruction::DelegateCall { delegate_index, args } => {
                self.lift_delegate_call(*delegate_index as usize, args)
            }
            Instruction::MoveCall { move_from, move_to } => {
                self.lift_move(*move_from as usize, *move_to as usize)
            }
            Instruction::FreeCall { .. } | Instruction::JumpFalseCall { .. } => Ok(()),
        };
        done.map_err(|error| match error {
            Error::Recover { problem, .. } => {
                Error::Recover { place: format!("instruction {at} of method `{}`", self.plan.name), problem }
            }
            other => other,
        })
    }

    /// Lifts a move: `to` becomes the same scalar as `from`, or the same tensor in its memory.
    fn lift_move(&mut self, from: usize, to: usize) -> Result<()> {
        if std::mem::discriminant(&self.plan.values[from]) != std::mem::discriminant(&self.plan.values[to]) {
            return self.fail(format_args!("value {to} gets a value of another kind, value {from}"));
        }
        if self.plan.values[from].as_tensor().is_none() {
            let number = self.scalar_argument(from)?;
            self.set_number(to, number);
            return Ok(());
        }
        let var = self.current_value(from)?;
        let viewed = self.stored_extent(from);
        self.set_unplaced(to, var, viewed);
        Ok(())
    }

    /// The extent that a tensor is stored in, and what it holds.
    fn stored_extent(&self, value: usize) -> Option<(Extent, Stored)> {
        if let Some((_, viewed)) = self.now.unplaced.get(&value) {
            return *viewed;
        }
        let extent = self.extent(self.plan.values[value].as_tensor()?)?;
        match self.now.memory.read(extent) {
            ReadResult::Whole(stored) => Some((extent, stored)),
            _ => None,
        }
    }

    fn set_unplaced(&mut self, value: usize, var: VarId, viewed: Option<(Extent, Stored)>) {
        self.now.written.insert(value);
        self.now.unplaced.insert(value, (var, viewed));
    }

    fn set_number(&mut self, value: usize, number: Argument) {
        self.now.written.insert(value);
        self.now.numbers.insert(value, number);
    }

    fn fail<T>(&self, problem: impl Display) -> Result<T> {
        let place = format!("method `{}`", self.plan.name);
        Err(Error::Recover { place, problem: problem.to_string() })
    }

    fn lift_outputs(&mut self) -> Result<()> {
        for &index in &self.plan.outputs {
            let value = index as usize;
            let output = match &self.plan.values[value] {
                EValue::Tensor(tensor) => {
                    let var = self.current_value(value)?;
                    Argument::Var(self.reorder_as_declared(var, tensor)?)
                }
                _ => match self.known_number(value) {
                    Some(number) => number,
                    None => return self.fail("an output is a list"),
                },
            };
            self.program.graph.outputs.push(output);
        }
        Ok(())
    }

    /// An output in the dim order that the plan declares, even if the nodes compute it in another one. A conversion
    /// that changes nothing is removed with the layouts.
    fn reorder_as_declared(&mut self, var: VarId, tensor: &Tensor) -> Result<VarId> {
        let spec = self.spec_of(tensor)?;
        let orders = |value: &EValue| value.as_tensor().is_some_and(|t| !t.dim_order.is_sorted());
        let Some(current) = self.program.spec(var).cloned() else { return Ok(var) };
        if spec.rank() < 2 || !self.plan.values.iter().any(orders) {
            return Ok(var);
        }
        Ok(self.push_reorder(var, TensorSpec { dim_order: spec.dim_order, ..current }))
    }

    /// Records as mutations what an execution leaves in its state and what it writes to the caller's inputs.
    fn record_mutations(&mut self) -> Result<()> {
        for (input, extent, value) in std::mem::take(&mut self.states) {
            let left = match self.now.memory.read(extent) {
                ReadResult::Whole(stored) => self.reinterpret_as(stored, value)?,
                ReadResult::Nothing => continue,
                ReadResult::Partial => return self.fail("its state is overwritten in part"),
            };
            let is_shared = self.is_shared_at(&extent);
            if left != input || is_shared {
                self.program.mutations.push(Mutation { input, value: left });
            }
            if is_shared {
                self.program.shared.insert(input, extent.start);
            }
        }
        for (value, input) in std::mem::take(&mut self.written_inputs) {
            let left = self.current_value(value)?;
            if left != input && !self.program.is_mutated(input) {
                self.program.mutations.push(Mutation { input, value: left });
            }
        }
        Ok(())
    }

    fn is_shared_at(&self, extent: &Extent) -> bool {
        self.is_shared && extent.arena == shared::SHARED_ARENA
    }

    fn tensor(&self, value: usize) -> Result<&'a Tensor> {
        match self.plan.values.get(value).and_then(EValue::as_tensor) {
            Some(tensor) => Ok(tensor),
            None => self.fail(format_args!("value {value} is no tensor")),
        }
    }

    /// The extent of a tensor in an arena; `None` if it is not planned or has no bytes.
    fn extent(&self, tensor: &Tensor) -> Option<Extent> {
        let place = tensor.allocation_info?;
        let start = u64::from(place.memory_offset_high) << 32 | u64::from(place.memory_offset_low);
        let bytes = tensor.nbytes().filter(|&n| n > 0)?;
        Some(Extent { arena: place.memory_id, start, end: start.checked_add(bytes)? })
    }

    /// A new symbol for a size of which only the upper bound is known.
    fn bounded_symbol(&mut self, max: i64) -> Size {
        self.new_symbol("s", Bounds { min: 0, max })
    }

    fn new_symbol(&mut self, prefix: &str, bounds: Bounds) -> Size {
        let ranges = &mut self.program.ranges;
        let mut number = ranges.len();
        let name: Arc<str> = loop {
            let name = format!("{prefix}{number}");
            if !ranges.contains_key(&*name) {
                break name.into();
            }
            number += 1;
        };
        ranges.insert(Arc::clone(&name), bounds);
        Size::symbol(name)
    }

    /// Type, sizes and layout of a tensor of the plan. Dynamic sizes become new symbols.
    fn spec_of(&mut self, tensor: &Tensor) -> Result<TensorSpec> {
        let Some(dtype) = tensor.dtype() else { return self.fail("a tensor of an unknown type") };
        let is_static = tensor.shape_dynamism == TensorShapeDynamism::Static;
        let sizes = tensor.sizes.iter().map(|&size| match is_static {
            true => Size::Int(i64::from(size)),
            false => self.bounded_symbol(i64::from(size)),
        });
        let sizes: Vec<Size> = sizes.collect();
        let order = DimOrder::new(&tensor.dim_order);
        let dim_order = order.unwrap_or_else(|_| DimOrder::contiguous(sizes.len()));
        Ok(TensorSpec { dtype, sizes, dim_order })
    }

    /// Makes `var` the current value of a tensor.
    fn define(&mut self, value: usize, var: VarId) -> Result<()> {
        let tensor = self.tensor(value)?;
        match self.extent(tensor) {
            Some(extent) => {
                self.now.unplaced.remove(&value);
                self.now.written.insert(value);
                self.now.memory.write(extent, Stored { var, value });
            }
            None => self.set_unplaced(value, var, None),
        }
        Ok(())
    }

    /// The current value of a tensor.
    fn current_value(&mut self, value: usize) -> Result<VarId> {
        if let Some(&var) = self.constants.get(&value) {
            return Ok(var);
        }
        if let Some((var, viewed)) = self.now.unplaced.get(&value) {
            return match viewed {
                Some((extent, stored)) if self.now.memory.read(*extent) != ReadResult::Whole(*stored) => {
                    self.fail(format_args!("value {value} is a view of memory that was written since"))
                }
                _ => Ok(*var),
            };
        }
        let tensor = self.tensor(value)?;
        let extent = self.extent(tensor);
        let data = self.source.program.tensor_data(tensor);
        match (data, extent) {
            (TensorData::Constant(range), _) => self.add_constant(value, tensor, self.file_constant(range)?),
            (TensorData::External(key), _) => self.add_constant(value, tensor, self.external_constant(key)?),
            (_, Some(extent)) => match self.now.memory.read(extent) {
                ReadResult::Whole(stored) => self.reinterpret_as(stored, value),
                ReadResult::Nothing => self.add_state(value, tensor, extent),
                ReadResult::Partial => self.fail(format_args!(
                    "value {value} is read from memory that holds parts of several values"
                )),
            },
            (TensorData::Unplanned, None) if tensor.nbytes() != Some(0) => {
                self.fail(format_args!("value {value} is read before it is written"))
            }
            (_, None) => {
                let empty = self.zero_constant(0)?;
                self.add_constant(value, tensor, empty)
            }
        }
    }

    fn add_constant(&mut self, value: usize, tensor: &Tensor, data: ConstantTensor) -> Result<VarId> {
        let mut spec = self.spec_of(tensor)?;
        spec.sizes = tensor.sizes.iter().map(|&size| Size::Int(i64::from(size))).collect();
        let name = tensor.fully_qualified_name();
        let data = ConstantTensor { name: name.map(Into::into), ..data };
        let var = self.program.add_constant(name.unwrap_or(&format!("c{value}")), spec, data);
        self.constants.insert(value, var);
        Ok(var)
    }

    /// Adds a buffer of the program for memory that is read before it is written.
    fn add_state(&mut self, value: usize, tensor: &Tensor, extent: Extent) -> Result<VarId> {
        // Another branch may have made a buffer of this extent already.
        if let Some(&stored) = self.state_at.get(&extent) {
            return self.reinterpret_as(stored, value);
        }
        let data = match self.source.program.tensor_data(tensor) {
            TensorData::Initial(range) => self.file_constant(range)?,
            TensorData::ExternalInitial(key) => self.external_constant(key)?,
            _ => self.zero_constant(extent.end - extent.start)?,
        };
        let var = self.add_constant(value, tensor, data)?;
        self.constants.remove(&value);
        self.program.graph.inputs.push(var);
        self.program.inputs.push(InputKind::Buffer);
        self.now.memory.write(extent, Stored { var, value });
        self.state_at.insert(extent, Stored { var, value });
        self.states.push((var, extent, value));
        Ok(var)
    }

    fn file_constant(&self, range: Range<u64>) -> Result<ConstantTensor> {
        let ends = usize::try_from(range.start).ok().zip(usize::try_from(range.end).ok());
        match ends.filter(|(_, end)| *end <= self.source.file.len()) {
            Some((start, end)) => {
                Ok(ConstantTensor { name: None, bytes: Arc::clone(&self.source.file), range: start..end })
            }
            None => self.fail("a constant lies behind the end of the file"),
        }
    }

    /// A constant of `len` zero bytes, which is the initial value of a state.
    fn zero_constant(&mut self, len: u64) -> Result<ConstantTensor> {
        let Some(left) = self.zeros_left.checked_sub(len) else {
            return self
                .fail(format_args!("state of {len} bytes exceeds the limit of zero-initialized state"));
        };
        self.zeros_left = left;
        if let Err(limit) = self.program.budget.charge("state", usize::try_from(len).unwrap_or(usize::MAX)) {
            return self.fail(limit);
        }
        let len = len as usize;
        match pteron_tensor::memory::filled(len, 0u8) {
            Ok(bytes) => Ok(ConstantTensor { name: None, bytes: Arc::new(bytes), range: 0..len }),
            Err(error) => self.fail(error),
        }
    }

    fn external_constant(&self, key: &str) -> Result<ConstantTensor> {
        match (self.source.data)(key) {
            Some(data) => Ok(data),
            None => self.fail(format_args!("the weights `{key}` are in none of the files that are given")),
        }
    }

    /// The value held in memory, viewed with the sizes that another value of the plan declares.
    fn reinterpret_as(&mut self, stored: Stored, value: usize) -> Result<VarId> {
        if stored.value == value {
            return Ok(stored.var);
        }
        if let Some(&view) = self.now.views.get(&(stored.var, value)) {
            return Ok(view);
        }
        let tensor = self.tensor(value)?;
        let Some(have) = self.program.spec(stored.var).cloned() else {
            return self.fail(format_args!("value {value} is no tensor"));
        };
        let max = |size: &Size| size.bounds(&self.program.ranges).max;
        let order = DimOrder::new(&tensor.dim_order).ok();
        let alike = have.sizes.iter().map(max).eq(tensor.sizes.iter().map(|&n| i64::from(n)))
            && order == Some(have.dim_order);
        if tensor.dtype() != Some(have.dtype) {
            return self.fail(format_args!("value {value} has another type than what lies there"));
        }
        if alike {
            return Ok(stored.var);
        }
        let row_major = have.dim_order.is_contiguous() && order.is_some_and(|order| order.is_contiguous());
        if !row_major || have.known_sizes().is_none() {
            return self.fail(format_args!("value {value} has another layout than what lies there"));
        }
        let spec = self.spec_of(tensor)?;
        let sizes: Vec<i64> = tensor.sizes.iter().map(|&n| i64::from(n)).collect();
        let args = vec![("self".into(), Argument::Var(stored.var)), ("size".into(), Argument::ints(&sizes))];
        let view = self.push_node("aten.view.default", args, vec![VarType::Tensor(spec)])[0];
        self.now.views.insert((stored.var, value), view);
        Ok(view)
    }
}

/// A scalar or string of the plan, and its type.
fn scalar_of(value: &EValue) -> Option<(Argument, VarType)> {
    Some(match value {
        EValue::Int(v) => (Argument::Int(*v), VarType::Int(Size::Int(*v))),
        EValue::Double(v) => (Argument::Float(*v), VarType::Float),
        EValue::Bool(v) => (Argument::Bool(*v), VarType::Bool),
        EValue::String(v) => (Argument::Str(v.clone()), VarType::Str),
        EValue::Null => (Argument::None, VarType::Opaque),
        _ => return None,
    })
}

/// The source location of an instruction.
fn instruction_source(chain: &Chain, at: usize) -> Arc<Source> {
    chain.stacktrace.get(at).map_or_else(Arc::default, |list| Arc::new(source_of_frames(list)))
}

fn source_of_frames(list: &FrameList) -> Source {
    let frame = |f: &pteron_format::pte::Frame| SourceFrame {
        file: f.filename.clone().unwrap_or_default(),
        line: u32::try_from(f.lineno).unwrap_or(0),
        function: f.name.clone().unwrap_or_default(),
        text: f.context.clone().unwrap_or_default(),
    };
    Source { frames: list.items.iter().map(frame).collect(), module: String::new() }
}
