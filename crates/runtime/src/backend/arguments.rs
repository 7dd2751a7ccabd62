//! What the tables of a method tell of the arguments of a delegate call: their metas, and how many are inputs.

use crate::plan::{Id, State, Storage, Value};
use pteron_format::pte::{ExecutionPlan, Instruction, Tensor, TensorData};
use pteron_operator::Kernel;
use pteron_tensor::{Extent, TensorMeta};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An argument of a delegate call, as the file declares it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::large_enum_variant, reason = "almost every argument is a tensor")]
pub enum CallArgument {
    /// A tensor. Dynamic sizes are upper bounds.
    Tensor(TensorMeta),
    /// A list of tensors.
    Tensors(Vec<TensorMeta>),
    /// Any other argument: a number, a boolean, a string, a list of these or of optional tensors, or none.
    Other,
}

impl CallArgument {
    /// The meta of a tensor; `None` for other arguments.
    pub fn tensor(&self) -> Option<&TensorMeta> {
        if let Self::Tensor(meta) = self { Some(meta) } else { None }
    }
}

/// The first call of a delegate, and how many of its arguments can be inputs.
pub(crate) struct CallArguments<'p> {
    /// The index of the call's chain, and the call's index in that chain.
    pub(crate) place: (usize, usize),
    args: &'p [i32],
    /// The minimum number of inputs: the arguments up to the last one that the delegate cannot write.
    min_inputs: usize,
    /// Why the last of the `min_inputs` arguments cannot be written; `None` if `min_inputs` is 0.
    fixed: Option<&'static str>,
    /// The number of arguments up to the last one that an earlier instruction computes, at least `min_inputs`. They are
    /// inputs if the program writes each value once; otherwise a delegate may overwrite them.
    computed: usize,
    /// The number of arguments before the first one that has no contents before the call. That one may be an output,
    /// or state that nothing has written yet.
    likely_inputs: usize,
    /// The maximum number of inputs: all arguments, or all but the last if that has no contents before the call.
    max_inputs: usize,
    metas: Vec<CallArgument>,
}

impl<'p> CallArguments<'p> {
    /// The first call of each delegate, by delegate index; `None` if no instruction calls the delegate.
    pub(crate) fn first_calls(
        plan: &'p ExecutionPlan,
        state: &State,
        kernels: &[Option<Arc<dyn Kernel>>],
        data: impl Fn(&'p Tensor) -> TensorData<'p>,
    ) -> Vec<Option<Self>> {
        let mut scan = Scan::new(plan, state, data);
        let mut calls: Vec<Option<Self>> = plan.delegates.iter().map(|_| None).collect();
        for (c, chain) in plan.chains.iter().enumerate() {
            for (i, instruction) in chain.instructions.iter().enumerate() {
                match instruction {
                    Instruction::KernelCall { op_index, args } => {
                        scan.note_kernel_call(kernels.get(*op_index as usize).and_then(Option::as_ref), args);
                    }
                    Instruction::DelegateCall { delegate_index, args } => {
                        let call = scan.note_delegate_call((c, i), args);
                        if let Some(first @ None) = calls.get_mut(*delegate_index as usize) {
                            *first = Some(call);
                        }
                    }
                    Instruction::MoveCall { move_to, .. } => scan.note_write(*move_to as Id),
                    _ => {}
                }
            }
        }
        calls
    }

    /// Checks the number of inputs that a delegate says it takes.
    pub(crate) fn check_num_inputs(&self, inputs: usize) -> Result<(), String> {
        let all = self.args.len();
        if inputs > all {
            return Err(format!("the delegate takes {inputs} inputs, the call has {all} arguments"));
        }
        let takes = format!("the delegate takes {inputs} of the call's {all} arguments as inputs");
        if inputs < self.min_inputs {
            let (at, why) = (self.min_inputs - 1, self.fixed.unwrap_or_default());
            return Err(format!("{takes}, and would write argument {at}, which is {why}"));
        }
        if inputs == 0 && self.computed > 0 {
            return Err(format!(
                "{takes}, and would write argument {}, which is computed before the call",
                self.computed - 1
            ));
        }
        if inputs > self.max_inputs {
            let at = self.max_inputs;
            return Err(format!("{takes}, and would read argument {at}, which nothing has written"));
        }
        Ok(())
    }

    /// The number of inputs; `None` if the tables of the method do not determine it.
    pub(crate) fn num_inputs(&self) -> Option<usize> {
        (self.computed == self.likely_inputs).then_some(self.computed)
    }

    /// The types of the arguments, in order.
    pub(crate) fn arguments(&self) -> Vec<CallArgument> {
        self.metas.clone()
    }
}

/// A pass over the instructions of a plan that records which values and bytes they write.
struct Scan<'s> {
    state: &'s State,
    /// For each value, whether it is an input of the method.
    is_input: Vec<bool>,
    /// For each value, whether the file gives it contents or a name, so that it may be state.
    is_state: Vec<bool>,
    /// For each value, whether an instruction has written it.
    is_written: Vec<bool>,
    /// The bytes that instructions have written: the end of each maximal range, by arena and start.
    bytes: BTreeMap<(usize, usize), usize>,
    /// Whether instructions run in the order in which they are listed, because there are no jumps and no moves.
    is_straight: bool,
}

impl<'s> Scan<'s> {
    fn new<'p>(
        plan: &'p ExecutionPlan,
        state: &'s State,
        data: impl Fn(&'p Tensor) -> TensorData<'p>,
    ) -> Self {
        let is_state = |value: &'p pteron_format::pte::EValue| {
            value.as_tensor().is_some_and(|t| {
                let data = data(t);
                let is_plain = matches!(data, TensorData::Planned | TensorData::Unplanned);
                !is_plain || t.fully_qualified_name().is_some()
            })
        };
        let mut is_input = vec![false; state.values.len()];
        plan.inputs.iter().for_each(|&id| is_input[id as Id] = true);
        let is_jump =
            |i: &Instruction| matches!(i, Instruction::JumpFalseCall { .. } | Instruction::MoveCall { .. });
        Self {
            state,
            is_state: plan.values.iter().map(is_state).collect(),
            is_written: vec![false; state.values.len()],
            bytes: BTreeMap::new(),
            is_straight: !plan.chains.iter().flat_map(|chain| &chain.instructions).any(is_jump),
            is_input,
        }
    }

    /// Records what a kernel call writes. A call without a kernel is assumed to write all of its arguments.
    fn note_kernel_call(&mut self, kernel: Option<&Arc<dyn Kernel>>, args: &[i32]) {
        for (at, &id) in args.iter().enumerate() {
            let declared = kernel.and_then(|kernel| kernel.schema().args.get(at));
            if declared.is_none_or(|arg| arg.written) {
                self.note_write(id as Id);
            }
        }
    }

    fn note_write(&mut self, id: Id) {
        match self.state.values.get(id) {
            Some(Value::Tensor(tensor)) => {
                self.is_written[id] = true;
                if let Storage::Arena(extent) = tensor.home {
                    self.note_written_bytes(extent);
                }
            }
            Some(Value::Tensors(ids)) => ids.clone().iter().for_each(|&id| self.note_write(id)),
            _ => {}
        }
    }

    /// Adds a range of bytes, merged with the ranges that it touches.
    fn note_written_bytes(&mut self, extent: Extent) {
        let (mut start, mut end) = (extent.offset, extent.offset.saturating_add(extent.len));
        let touching = |bytes: &BTreeMap<(usize, usize), usize>, start: usize, end: usize| {
            let (&at, &to) = bytes.range(..=(extent.arena, end)).next_back()?;
            (at.0 == extent.arena && to >= start).then_some((at, to))
        };
        while let Some((at, to)) = touching(&self.bytes, start, end) {
            if at.1 <= start && to >= end {
                return;
            }
            self.bytes.remove(&at);
            (start, end) = (start.min(at.1), end.max(to));
        }
        self.bytes.insert((extent.arena, start), end);
    }

    fn are_written(&self, extent: Extent) -> bool {
        let end = extent.offset.saturating_add(extent.len);
        let before = self.bytes.range(..=(extent.arena, extent.offset)).next_back();
        before.is_some_and(|(at, &to)| at.0 == extent.arena && to >= end)
    }

    /// Why a delegate cannot write a value; `None` if it can.
    fn why_not_writable(&self, id: Id) -> Option<&'static str> {
        let tensor = self.state.values[id].tensor()?;
        match tensor.home {
            _ if self.is_input[id] => Some("an input of the method"),
            Storage::Constant(_) => Some("a constant"),
            _ => None,
        }
    }

    /// Whether an earlier instruction computes the value. `false` with jumps or moves, or if the value may be state.
    fn is_computed(&self, id: Id) -> bool {
        self.is_straight && self.is_written[id] && !self.is_state[id]
    }

    /// Whether a tensor in an arena certainly has no contents before a call; `false` if there are jumps or moves. With
    /// `views`, bytes that instructions have written through another value count as contents.
    fn has_no_contents(&self, id: Id, views: bool) -> bool {
        let Some(tensor) = self.state.values[id].tensor() else { return false };
        let Storage::Arena(extent) = tensor.home else { return false };
        let has_contents = self.is_input[id] || self.is_state[id] || self.is_written[id];
        self.is_straight && !has_contents && !(views && self.are_written(extent))
    }

    /// Records a delegate call and the outputs that it writes. Returns the description of the call.
    fn note_delegate_call<'p>(&mut self, place: (usize, usize), args: &'p [i32]) -> CallArguments<'p> {
        let ids = || args.iter().map(|&id| id as Id);
        // A value that is listed twice is read first and then written.
        let is_first = |at: usize| !args[..at].contains(&args[at]) || args.len() > MAX_COMPARED;
        let fixed = |(at, id): (usize, Id)| {
            self.why_not_writable(id).filter(|_| is_first(at)).map(|why| (at + 1, why))
        };
        let last = ids().enumerate().filter_map(fixed).next_back();
        let min_inputs = last.map_or(0, |(count, _)| count);
        let is_computed = |&(at, id): &(usize, Id)| is_first(at) && self.is_computed(id);
        let computed =
            ids().enumerate().rfind(is_computed).map_or(min_inputs, |(at, _)| min_inputs.max(at + 1));
        let tail = args.len().saturating_sub(1);
        let is_empty = |&(at, id): &(usize, Id)| at >= computed && self.has_no_contents(id, at != tail);
        let likely_inputs = ids().enumerate().find(is_empty).map_or(args.len(), |(at, _)| at);
        let max_inputs =
            args.len() - usize::from(ids().enumerate().next_back().is_some_and(|last| is_empty(&last)));
        let metas = ids().map(|id| self.argument_of_value(id)).collect();
        let call = CallArguments {
            place,
            args,
            min_inputs,
            fixed: last.map(|(_, why)| why),
            computed,
            likely_inputs,
            max_inputs,
            metas,
        };
        ids()
            .filter(|&id| self.why_not_writable(id).is_none())
            .collect::<Vec<_>>()
            .into_iter()
            .for_each(|id| self.note_write(id));
        call
    }

    fn argument_of_value(&self, id: Id) -> CallArgument {
        let meta = |id: Id| self.state.values[id].tensor().map(|t| t.meta.clone());
        match &self.state.values[id] {
            Value::Tensor(tensor) => CallArgument::Tensor(tensor.meta.clone()),
            Value::Tensors(ids) => CallArgument::Tensors(ids.iter().filter_map(|&id| meta(id)).collect()),
            _ => CallArgument::Other,
        }
    }
}

/// A call of more arguments than this is not searched for values listed twice, which takes quadratic time.
const MAX_COMPARED: usize = 64;
