//! Resolves the tables of an execution plan: values, and instructions with the values that they read and write. The
//! tables were verified, so indices are in bounds.

use crate::Result;
use crate::plan::{ArgRef, DelegateCall, Id, Instr, KernelCall, OutRef, TensorValue, Value};
use pteron_format::pte;
use pteron_operator::Kernel;
use std::sync::Arc;

/// Resolves one value. A tensor is built by `tensor`.
pub(crate) fn value(
    value: &pte::EValue,
    tensor: impl FnOnce(&pte::Tensor) -> Result<TensorValue>,
) -> Result<Value> {
    let ids = |list: &[i32]| list.iter().map(|&i| i as Id).collect();
    Ok(match value {
        pte::EValue::Null => Value::None,
        pte::EValue::Int(v) => Value::Int(*v),
        pte::EValue::Bool(v) => Value::Bool(*v),
        pte::EValue::Double(v) => Value::Double(*v),
        pte::EValue::String(s) => Value::Str(s.as_str().into()),
        pte::EValue::IntList(v) => Value::Ints(v.iter().map(|&i| i as Id).collect()),
        pte::EValue::DoubleList(v) => Value::Doubles(v.as_slice().into()),
        pte::EValue::BoolList(v) => Value::Bools(v.as_slice().into()),
        pte::EValue::TensorList(v) => Value::Tensors(ids(v)),
        pte::EValue::OptionalTensorList(v) => {
            Value::OptionalTensors(v.iter().map(|&i| usize::try_from(i).ok()).collect())
        }
        pte::EValue::Tensor(t) => Value::Tensor(Box::new(tensor(t)?)),
    })
}

/// Resolves a kernel call. The error says how the instruction does not fit the kernel's schema.
pub(crate) fn kernel_call(
    values: &[Value],
    operator: usize,
    kernel: Arc<dyn Kernel>,
    args: &[i32],
) -> Result<KernelCall, String> {
    let schema = kernel.schema();
    if args.len() != schema.instruction_args() {
        return Err(format!(
            "the instruction has {} arguments, the schema `{schema}` asks for {}",
            args.len(),
            schema.instruction_args()
        ));
    }
    let mut refs = Vec::with_capacity(schema.args.len());
    let mut outs = Vec::new();
    for (declared, &arg) in schema.args.iter().zip(args) {
        let id = arg as Id;
        if !declared.written {
            refs.push(ArgRef::Value(id));
            continue;
        }
        refs.push(ArgRef::Out(outs.len()));
        outs.push(match (&values[id], declared.list) {
            (Value::Tensor(_), false) => OutRef::Tensor(id),
            (Value::Tensors(ids), true) => OutRef::Tensors(ids.clone()),
            (other, _) => {
                return Err(format!("the out `{}` is {}, value {id}", declared.name, other.kind()));
            }
        });
    }
    if schema.fresh_result().is_some() {
        let to = args[schema.args.len()] as Id;
        outs.push(match schema.viewed_arg() {
            None => OutRef::Scalar(to),
            Some(viewed) => {
                let of = args[viewed] as Id;
                if values[of].tensor().is_none() || values[to].tensor().is_none() {
                    return Err(format!("values {of} and {to}, a tensor and its view, are not both tensors"));
                }
                OutRef::View { to, of }
            }
        });
    }
    Ok(KernelCall { operator, prepared: None, args: refs.into(), outs: outs.into(), kernel })
}

/// Resolves a delegate call. The first `inputs` arguments are inputs, the rest are outputs.
pub(crate) fn delegate_call(
    values: &[Value],
    delegate: usize,
    inputs: usize,
    args: &[i32],
) -> Result<DelegateCall, String> {
    if inputs > args.len() {
        return Err(format!("the delegate takes {inputs} inputs, the call has {} arguments", args.len()));
    }
    let (ins, outs) = args.split_at(inputs);
    let out = |&id: &i32| match &values[id as Id] {
        Value::Tensor(_) => OutRef::Tensor(id as Id),
        Value::Tensors(ids) => OutRef::Tensors(ids.clone()),
        _ => OutRef::Scalar(id as Id),
    };
    Ok(DelegateCall {
        delegate,
        args: ins.iter().map(|&id| ArgRef::Value(id as Id)).collect(),
        outs: outs.iter().map(out).collect(),
    })
}

/// The callee of an instruction, by its index in the plan's operator or delegate table, and the argument values.
pub(crate) enum Callee<'p> {
    Kernel(usize, &'p [i32]),
    Delegate(usize, &'p [i32]),
}

/// Resolves an instruction. Kernel and delegate calls are resolved by `call`.
pub(crate) fn instr<'p, E>(
    instruction: &'p pte::Instruction,
    call: impl FnOnce(Callee<'p>) -> Result<Instr, E>,
) -> Result<Instr, E> {
    Ok(match instruction {
        pte::Instruction::KernelCall { op_index, args } => call(Callee::Kernel(*op_index as usize, args))?,
        pte::Instruction::DelegateCall { delegate_index, args } => {
            call(Callee::Delegate(*delegate_index as usize, args))?
        }
        pte::Instruction::MoveCall { move_from, move_to } => {
            Instr::Move { from: *move_from as Id, to: *move_to as Id }
        }
        pte::Instruction::JumpFalseCall { cond_value_index, destination_instruction } => {
            Instr::JumpFalse { condition: *cond_value_index as Id, target: *destination_instruction as usize }
        }
        pte::Instruction::FreeCall { value_index } => Instr::Free(*value_index as Id),
    })
}
