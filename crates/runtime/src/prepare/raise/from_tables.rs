//! Raising a method from its tables alone, for tools that analyze a method without running it.

use super::walk::Listing;
use super::{DefUse, Reaching, tensors_of};
use crate::open::{planned_extent, tensor_meta};
use crate::plan::resolve::{self, Callee, kernel_call};
use crate::plan::{
    ArgRef, Chain, DelegateCall, Id, Instr, KernelCall, OutRef, State, Storage, TensorValue, Value,
};
use crate::{Program, Result};
use pteron_format::pte::{self, ExecutionPlan, Instruction, TensorData};
use pteron_operator::{ArgType, Args, Kernel, KernelContext, KernelRegistry, Outs, Schema, SchemaArg};
use pteron_tensor::{Arenas, Extent};
use pteron_trace::Place;
use std::collections::{BTreeSet, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// A method in def-use form: what each instruction reads and writes, and which definition reaches each read.
///
/// Weights are not read, and kernels and backends need not be registered. A call of an operator without a kernel is
/// assumed to write its last argument; a delegate is assumed to write those of its arguments that nothing has written
/// before.
///
/// Instructions are numbered from 0 across all chains; values are identified by their index in the plan.
pub struct RaisedMethod {
    program: Program,
    plan: usize,
    state: State,
    chains: Vec<Chain>,
    def_use: DefUse,
    unknown: Vec<String>,
}

/// One instruction of a [`RaisedMethod`].
#[derive(Debug, Clone)]
pub struct RaisedInstruction {
    /// The instruction's chain, and its index in the chain.
    pub place: Place,
    /// The tensors that the instruction reads, in the order of its arguments.
    pub reads: Vec<RaisedRead>,
    /// The value ids of the tensors that the instruction writes.
    pub writes: Vec<usize>,
    /// The views that the instruction makes, and the result values that alias tensors that it writes.
    pub views: Vec<RaisedView>,
    /// The instruction's effect on control flow, and the aliases that it makes.
    pub flow: RaisedFlow,
}

/// A tensor that an instruction reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaisedRead {
    /// The value id of the tensor.
    pub value: usize,
    /// The definition that reaches the read.
    pub def: ReachingDef,
}

/// The definition that reaches a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachingDef {
    /// A constant.
    Constant,
    /// The whole result of one instruction, or an input set by the caller.
    Whole {
        /// The number of the instruction; `None` for an input.
        instruction: Option<usize>,
        /// The id of the value that was written. It differs from the id of the value that is read if the latter is a view.
        value: usize,
    },
    /// Parts of the results of several instructions, or contents from before the block.
    Parts {
        /// The number of the last instruction of the block that wrote any of the bytes; `None` if none did.
        latest: Option<usize>,
    },
    /// Unknown, because the location of the tensor's bytes is only known at run time.
    Unknown,
}

/// A tensor that becomes a view of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaisedView {
    /// The value id of the view.
    pub value: usize,
    /// The id of the value that is viewed.
    pub of: usize,
}

/// The control flow after an instruction, and the aliases that the instruction makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RaisedFlow {
    /// Continues with the next instruction.
    Next,
    /// Jumps to the target if the condition is false; otherwise continues with the next instruction.
    JumpFalse {
        /// The number of the target instruction, which may be one past the end of the chain.
        target: usize,
        /// The value of the condition, if it is constant.
        known: Option<bool>,
    },
    /// Continues with the next instruction, after the `to` values have become aliases of the `from` values.
    Move {
        /// The ids of the tensors that get aliases.
        from: Vec<usize>,
        /// The ids of the tensors that become the aliases.
        to: Vec<usize>,
    },
}

impl Program {
    /// Raises a method to def-use form.
    ///
    /// # Errors
    /// There is no such method, or the size of a tensor overflows.
    pub fn raise(&self, method: &str, kernels: &KernelRegistry) -> Result<RaisedMethod> {
        let plan = self.method_meta(method)?.plan_index();
        let tables = &self.tables().execution_plan[plan];
        let mut reader = Reader {
            program: self,
            tables,
            kernels: tables.operators.iter().map(|op| kernels.get(&op.full_name())).collect(),
            state: State { values: Vec::new(), arenas: Arenas::new(), constants: Vec::new() },
            own_arenas: tables.non_const_buffer_sizes.len(),
            written: tables.inputs.iter().map(|&id| id as Id).collect(),
            unknown: BTreeSet::new(),
        };
        for value in &tables.values {
            let value = resolve::value(value, |tensor| reader.read_tensor(tensor))?;
            reader.state.values.push(value);
        }
        let chains =
            tables.chains.iter().map(|chain| reader.read_chain(&chain.instructions)).collect::<Vec<_>>();
        let Reader { state, unknown, .. } = reader;
        let ids = |list: &[i32]| list.iter().map(|&id| id as Id).collect::<Vec<_>>();
        let (inputs, outputs) = (ids(&tables.inputs), ids(&tables.outputs));
        let listing = Listing { state: &state, chains: &chains, inputs: &inputs, outputs: &outputs };
        let def_use = DefUse::of(listing);
        let unknown = unknown.into_iter().collect();
        Ok(RaisedMethod { program: self.clone(), plan, state, chains, def_use, unknown })
    }
}

impl RaisedMethod {
    /// The method's execution plan in the program's tables.
    pub fn plan(&self) -> &ExecutionPlan {
        &self.program.tables().execution_plan[self.plan]
    }

    /// The operators with a call that no kernel fits, by name. Such a call is assumed to write its last argument.
    pub fn unknown_operators(&self) -> &[String] {
        &self.unknown
    }

    /// The instruction range of each chain.
    pub fn chains(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        let lengths = self.chains.iter().map(|chain| chain.instrs.len());
        lengths.scan(0, |next, len| {
            *next += len;
            Some(*next - len..*next)
        })
    }

    /// Every instruction, in order.
    pub fn instructions(&self) -> impl Iterator<Item = RaisedInstruction> + '_ {
        let places = self.chains.iter().enumerate();
        let instrs =
            places.flat_map(|(chain, c)| c.instrs.iter().enumerate().map(move |(i, s)| (chain, i, s)));
        instrs.map(|(chain, i, instr)| self.instruction_of(chain, i, instr))
    }

    /// The instruction with this number; `None` if there is none.
    pub fn instruction(&self, index: usize) -> Option<RaisedInstruction> {
        let (chain, i) = self.locate(index)?;
        Some(self.instruction_of(chain, i, &self.chains[chain].instrs[i]))
    }

    /// The number of the instruction at a place, if there is one.
    pub fn index_of(&self, place: Place) -> Option<usize> {
        let (chain, i) = (place.chain? as usize, place.instruction? as usize);
        let is_there = i < self.chains.get(chain)?.instrs.len();
        is_there.then(|| self.def_use.position(chain, i) as usize - 1)
    }

    /// The operator that an instruction calls, or the kind of instruction if it is no kernel call.
    pub fn name(&self, index: usize) -> Option<&str> {
        let (chain, i) = self.locate(index)?;
        match &self.chains[chain].instrs[i] {
            Instr::Kernel(call) => Some(&call.kernel.schema().name),
            _ => Some(self.plan().chains.get(chain)?.instructions.get(i)?.kind()),
        }
    }

    /// The chain of the instruction with this number, and its index in the chain; `None` if there is no such instruction.
    fn locate(&self, index: usize) -> Option<(usize, usize)> {
        let starts = &self.def_use.starts;
        let chain = starts.partition_point(|&start| start as usize - 1 <= index).checked_sub(1)?;
        let i = index + 1 - starts[chain] as usize;
        (i < self.chains[chain].instrs.len()).then_some((chain, i))
    }

    /// Whether an instruction calls a delegate.
    pub fn calls_delegate(&self, place: Place) -> bool {
        let instr = || self.chains.get(place.chain? as usize)?.instrs.get(place.instruction? as usize);
        matches!(instr(), Some(Instr::Delegate(_)))
    }

    /// The definition that reaches an output when an execution ends.
    pub fn result(&self, value: usize) -> ReachingDef {
        self.reaching_def(value, self.def_use.results.get(&value).copied())
    }

    /// The tensors that a value is or contains; absent list elements are left out. Empty if there is no such value.
    pub fn tensors(&self, value: i32) -> Vec<usize> {
        let value = usize::try_from(value).ok().filter(|&value| value < self.state.values.len());
        value.map_or_else(Vec::new, |value| tensors_of(&self.state, value).to_vec())
    }

    /// Whether a tensor is state: an execution reads its bytes before writing all of them.
    pub fn is_read_first(&self, value: usize) -> bool {
        self.def_use.is_read_first(value)
    }

    /// The value that a tensor is an elided view of: the tensor is read before anything is written through it, and its
    /// extent then holds exactly what this value wrote. `None` if the tensor is no elided view.
    pub fn elided_view_source(&self, value: usize) -> Option<usize> {
        self.def_use.holders.get(&value).copied()
    }

    fn reaching_def(&self, value: Id, reach: Option<Reaching>) -> ReachingDef {
        let instruction = |at: u32| (at as usize).checked_sub(1);
        let Some(Reaching { def, latest, .. }) = reach else {
            let is_constant = self.state.values[value].tensor().is_some_and(|t| t.home == CONSTANT);
            let is_known = is_constant && !self.def_use.is_rebound(value);
            return if is_known { ReachingDef::Constant } else { ReachingDef::Unknown };
        };
        let def = def.map(|def| &self.def_use.defs[def.0 as usize]);
        match def.and_then(|def| Some((def.at, def.id?))) {
            Some((at, value)) => ReachingDef::Whole { instruction: instruction(at), value },
            None => ReachingDef::Parts { latest: instruction(latest) },
        }
    }

    fn instruction_of(&self, chain: usize, index: usize, instr: &Instr) -> RaisedInstruction {
        let at = self.def_use.position(chain, index);
        let read = |value: Id| RaisedRead {
            value,
            def: self.reaching_def(value, self.def_use.reaching_def(at, value)),
        };
        let mut new = RaisedInstruction {
            place: Place::instruction(chain as u32, index as u32),
            reads: Vec::new(),
            writes: Vec::new(),
            views: Vec::new(),
            flow: RaisedFlow::Next,
        };
        match instr {
            Instr::Move { from, to } => {
                let tensors = |id: Id| tensors_of(&self.state, id).to_vec();
                let (from, to) = (tensors(*from), tensors(*to));
                new.flow = RaisedFlow::Move { from, to };
            }
            Instr::JumpFalse { condition, target } => {
                let start = at as usize - 1 - index;
                let known = match self.state.values[*condition] {
                    Value::Bool(value) if !self.def_use.is_computed(*condition) => Some(value),
                    _ => None,
                };
                new.reads.extend(tensors_of(&self.state, *condition).into_iter().map(read));
                new.flow = RaisedFlow::JumpFalse { target: start + target, known };
            }
            _ => {
                let (args, outs) = instr.operands();
                let args = args.iter().filter_map(|arg| match arg {
                    ArgRef::Value(id) => Some(tensors_of(&self.state, *id)),
                    ArgRef::Out(_) => None,
                });
                new.reads.extend(args.flatten().map(read));
                for out in outs {
                    match out {
                        OutRef::Tensor(id) => new.writes.push(*id),
                        OutRef::Tensors(ids) => new.writes.extend(ids.iter()),
                        OutRef::View { to, of } => new.views.push(RaisedView { value: *to, of: *of }),
                        OutRef::Scalar(_) => {}
                    }
                }
                new.views.extend(
                    instr.kernel().into_iter().flat_map(|call| self.result_views(chain, index, call)),
                );
                // An in-place call also reads the tensors that it writes.
                let known: HashSet<Id> = new.reads.iter().map(|read| read.value).collect();
                let is_changed =
                    |id: &Id| !known.contains(id) && self.def_use.reaching_def(at, *id).is_some();
                new.reads.extend(new.writes.iter().copied().filter(is_changed).map(read));
            }
        }
        new
    }

    /// The result values of a call that alias the tensors that the call writes.
    fn result_views(&self, chain: usize, index: usize, call: &KernelCall) -> Vec<RaisedView> {
        let schema = call.kernel.schema();
        let instruction = &self.plan().chains[chain].instructions[index];
        let Instruction::KernelCall { args, .. } = instruction else { return Vec::new() };
        if !schema.has_result_slot() || schema.fresh_result().is_some() {
            return Vec::new();
        }
        let (Some(&result), Some(&written)) =
            (args.get(schema.args.len()), schema.written_args().next().and_then(|out| args.get(out)))
        else {
            return Vec::new();
        };
        let pairs = self.tensors(result).into_iter().zip(self.tensors(written));
        pairs.filter(|(value, of)| value != of).map(|(value, of)| RaisedView { value, of }).collect()
    }
}

/// The storage that a raised method gives to all constants, because their bytes are never read.
const CONSTANT: Storage = Storage::Constant(usize::MAX);

/// Builds values and instructions from the tables of a plan.
struct Reader<'p> {
    program: &'p Program,
    tables: &'p ExecutionPlan,
    /// For each entry of the operator table, its kernel; `None` if no kernel is registered.
    kernels: Vec<Option<Arc<dyn Kernel>>>,
    state: State,
    /// The index of the last arena given to an unplanned tensor: each such tensor gets an arena of its own, after all
    /// planned ones.
    own_arenas: usize,
    /// Values that the caller, the file or an instruction so far has written.
    written: HashSet<Id>,
    unknown: BTreeSet<String>,
}

impl Reader<'_> {
    fn read_tensor(&mut self, t: &pte::Tensor) -> Result<TensorValue> {
        let meta = tensor_meta(t)?;
        let id = self.state.values.len();
        let storage = match self.program.tables().tensor_data(t) {
            TensorData::Planned => Storage::Arena(planned_extent(t, &meta)?),
            TensorData::Initial(_) | TensorData::ExternalInitial(_) => {
                self.written.insert(id);
                Storage::Arena(planned_extent(t, &meta)?)
            }
            TensorData::Constant(_) | TensorData::External(_) => {
                self.written.insert(id);
                CONSTANT
            }
            TensorData::Unplanned => {
                self.own_arenas += 1;
                Storage::Arena(Extent { arena: self.own_arenas, offset: 0, len: meta.nbytes() })
            }
        };
        let name = t.attribute_name().map(Into::into);
        Ok(TensorValue { bound: *meta.sizes(), name, meta, storage, home: storage })
    }

    fn read_chain(&mut self, instructions: &[Instruction]) -> Chain {
        let instr = |instruction| {
            let instr = resolve::instr::<std::convert::Infallible>(instruction, |call| {
                Ok(match call {
                    Callee::Kernel(operator, args) => Instr::Kernel(self.kernel_call_of(operator, args)),
                    Callee::Delegate(delegate, args) => Instr::Delegate(self.delegate_call(delegate, args)),
                })
            });
            let instr = instr.unwrap_or_else(|never| match never {});
            let moved = if let Instr::Move { to, .. } = instr { Some(to) } else { None };
            self.written.extend(moved.into_iter().flat_map(|to| tensors_of(&self.state, to)));
            for out in instr.operands().1 {
                match out {
                    OutRef::Tensor(id) | OutRef::View { to: id, .. } => _ = self.written.insert(*id),
                    OutRef::Tensors(ids) => self.written.extend(ids.iter()),
                    OutRef::Scalar(_) => {}
                }
            }
            instr
        };
        Chain { instrs: instructions.iter().map(instr).collect() }
    }

    fn kernel_call_of(&mut self, operator: usize, args: &[i32]) -> KernelCall {
        let known = self.kernels.get(operator).cloned().flatten();
        let known = known.and_then(|kernel| kernel_call(&self.state.values, operator, kernel, args).ok());
        known.unwrap_or_else(|| {
            let name = self.tables.operators.get(operator).map(pte::Operator::full_name).unwrap_or_default();
            let instr = self.opaque_call(operator, &name, args);
            self.unknown.insert(name);
            instr
        })
    }

    /// A call of an unknown operator, which is assumed to write its last argument.
    fn opaque_call(&self, operator: usize, name: &str, args: &[i32]) -> KernelCall {
        let out = args.last().map(|&id| id as Id);
        let ids = args.iter().map(|&id| id as Id).filter(|&id| Some(id) != out);
        let mut args: Vec<ArgRef> = ids.map(ArgRef::Value).collect();
        let declared = |written| SchemaArg {
            name: String::new(),
            ty: ArgType::Tensor,
            list: false,
            optional: true,
            written,
            alias: None,
            default: None,
        };
        let mut schema = Schema {
            name: name.to_owned(),
            args: args.iter().map(|_| declared(false)).collect(),
            returns: Vec::new(),
        };
        let outs: Vec<OutRef> = out.map(|id| self.out_ref(id)).into_iter().collect();
        args.extend(outs.iter().map(|_| ArgRef::Out(0)));
        schema.args.extend(outs.iter().map(|_| declared(true)));
        let kernel = Arc::new(Opaque(schema));
        KernelCall { operator, kernel, prepared: None, args: args.into(), outs: outs.into() }
    }

    fn delegate_call(&self, delegate: usize, args: &[i32]) -> DelegateCall {
        let is_written = |id: Id| {
            let tensors = tensors_of(&self.state, id);
            tensors.iter().all(|id| self.written.contains(id))
        };
        let (args, outs): (Vec<Id>, Vec<Id>) =
            args.iter().map(|&id| id as Id).partition(|&id| is_written(id));
        DelegateCall {
            delegate,
            args: args.into_iter().map(ArgRef::Value).collect(),
            outs: outs.into_iter().map(|id| self.out_ref(id)).collect(),
        }
    }

    fn out_ref(&self, id: Id) -> OutRef {
        match &self.state.values[id] {
            Value::Tensor(_) => OutRef::Tensor(id),
            Value::Tensors(ids) => OutRef::Tensors(ids.clone()),
            _ => OutRef::Scalar(id),
        }
    }
}

/// A placeholder for the kernel of an unknown operator. It is never called.
struct Opaque(Schema);

impl Kernel for Opaque {
    fn schema(&self) -> &Schema {
        &self.0
    }

    fn execute(&self, _: &KernelContext<'_>, _: &Args<'_>, _: &mut Outs<'_>) -> pteron_operator::Result<()> {
        Err(pteron_operator::Error::invalid("the kernel is not known"))
    }
}
