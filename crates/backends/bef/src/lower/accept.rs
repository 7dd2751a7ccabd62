//! Decides which nodes a payload can contain, and in which form.

use crate::payload::{Arg, outs};
use pteron_exported::delegate::CALL_DELEGATE;
use pteron_exported::{
    Argument, Callable, ExportedNode, ExportedProgram, IntArgument, Selection, Slot, TensorSpec, VarId,
    VarType,
};
use pteron_operator::Results;
use pteron_tensor::Scalar;

/// Why a node is rejected.
pub(super) type Reason = String;

/// The form of a node in a payload.
pub(super) enum Accepted {
    /// A reshape of this value.
    View(VarId),
    /// An operator call.
    Call {
        operator: String,
        args: Vec<ArgValue>,
        /// The tensor operands, in the order of the arguments.
        operands: Vec<VarId>,
    },
}

/// An argument of a call.
pub(super) enum ArgValue {
    /// An argument without symbolic integers.
    Known(Arg),
    /// An integer that may be symbolic.
    Number(VarId),
    /// Integers, some of which may be symbolic.
    Numbers(Vec<IntArgument>),
}

/// The form of a node in a payload, or why payloads cannot contain it.
pub(super) fn accept(
    program: &ExportedProgram,
    node: &ExportedNode,
    operators: &Callable,
) -> Result<Accepted, Reason> {
    if *node.target == *CALL_DELEGATE {
        return Err("it is a delegate".to_owned());
    }
    if node.graphs().next().is_some() {
        return Err("it runs a nested graph".to_owned());
    }
    if node.outputs.is_empty() {
        return Err("it has no results".to_owned());
    }
    node.outputs.iter().try_for_each(|&v| bounded_spec(program, v).map(|_| ()))?;
    node.operands().try_for_each(|v| check_operand(program, v))?;
    if *node.target == *"aten.view.default" {
        return accept_view(program, node);
    }
    let selection = operators.select(program, node).ok_or("no kernel takes it")?;
    accept_call(program, node, &selection)
}

fn accept_view(program: &ExportedProgram, node: &ExportedNode) -> Result<Accepted, Reason> {
    let x = node.arg("self").and_then(Argument::var).ok_or("the view has no operand")?;
    let is_plain = |v: VarId| program.spec(v).is_some_and(|spec| spec.dim_order.is_contiguous());
    match is_plain(x) && is_plain(node.outputs[0]) {
        true => Ok(Accepted::View(x)),
        false => Err("it is a view of or to a layout that is not row-major".to_owned()),
    }
}

fn accept_call(
    program: &ExportedProgram,
    node: &ExportedNode,
    selection: &Selection,
) -> Result<Accepted, Reason> {
    let schema = selection.kernel.schema();
    match selection.kernel.results() {
        Results::Elements => {}
        Results::Shapes => return Err("it computes sizes".to_owned()),
        Results::DataDependentShape => return Err("the sizes of its results are data-dependent".to_owned()),
        Results::Random => return Err("it draws random numbers".to_owned()),
    }
    let (mut args, mut operands, mut written) = (Vec::new(), Vec::new(), 0);
    let mut outputs = 0;
    for (slot, declared) in selection.slots.iter().zip(&schema.args) {
        args.push(match slot {
            Slot::Out(first, count) => {
                if *first != outputs {
                    return Err("its results are not in the order of the schema".to_owned());
                }
                outputs += count;
                written += 1;
                ArgValue::Known(Arg::Out(written - 1))
            }
            Slot::Default(text) => {
                let default = Argument::from_default(text.as_deref(), declared);
                arg_value(program, &default, declared.list, declared.optional, &mut operands)?
            }
            Slot::Given(arg) => arg_value(program, arg, declared.list, declared.optional, &mut operands)?,
        });
    }
    // For the check against the schema, symbolic integers are replaced by known ones.
    let like: Vec<Arg> = args
        .iter()
        .map(|arg| match arg {
            ArgValue::Known(arg) => arg.clone(),
            ArgValue::Number(_) => Arg::Scalar(Scalar::Int(0)),
            ArgValue::Numbers(_) => Arg::Ints(Vec::new()),
        })
        .collect();
    outs(schema, &like, node.outputs.len()).map_err(|e| e.to_string())?;
    Ok(Accepted::Call { operator: schema.name.clone(), args, operands })
}

fn arg_value(
    program: &ExportedProgram,
    arg: &Argument,
    list: bool,
    optional: bool,
    operands: &mut Vec<VarId>,
) -> Result<ArgValue, Reason> {
    Ok(ArgValue::Known(match arg {
        Argument::None | Argument::Ignored | Argument::MemoryFormat(_) => Arg::None,
        Argument::Var(v) => match program.var(*v).ty {
            VarType::Int(_) => return Ok(ArgValue::Number(*v)),
            _ => {
                operands.push(*v);
                Arg::Tensor
            }
        },
        Argument::Int(v) if list => Arg::Ints(vec![crate::payload::Number::Int(*v)]),
        Argument::Int(v) => Arg::Scalar(Scalar::Int(*v)),
        Argument::Float(v) => Arg::Scalar(Scalar::Double(*v)),
        Argument::Bool(v) => Arg::Scalar(Scalar::Bool(*v)),
        Argument::Str(v) => Arg::Str(v.clone()),
        Argument::Ints(list) => return Ok(ArgValue::Numbers(list.clone())),
        Argument::Floats(v) => Arg::Doubles(v.clone()),
        Argument::Bools(v) => Arg::Bools(v.clone()),
        Argument::Vars(list) if optional => {
            operands.extend_from_slice(list);
            Arg::OptionalTensors(vec![true; list.len()])
        }
        Argument::Vars(list) => {
            operands.extend_from_slice(list);
            Arg::Tensors(list.len())
        }
        Argument::OptionalVars(list) => {
            operands.extend(list.iter().flatten());
            Arg::OptionalTensors(list.iter().map(Option::is_some).collect())
        }
        Argument::Dtype(dtype) => Arg::Scalar(Scalar::Int(*dtype as i64)),
        Argument::Strs(_) | Argument::Complex(..) | Argument::Graph(_) => {
            return Err("payloads cannot contain one of its arguments".to_owned());
        }
    }))
}

/// Checks that an operand is a tensor with bounded sizes, or an integer computed from sizes.
fn check_operand(program: &ExportedProgram, var: VarId) -> Result<(), Reason> {
    match &program.var(var).ty {
        VarType::Tensor(_) => bounded_spec(program, var).map(|_| ()),
        VarType::Int(_) => Ok(()),
        _ => Err(format!("%{} is neither a tensor nor an integer", program.var(var).name)),
    }
}

/// The spec of a value, which must be a tensor whose rank is supported and whose sizes have upper bounds below 2^31.
pub(super) fn bounded_spec(program: &ExportedProgram, var: VarId) -> Result<&TensorSpec, Reason> {
    let name = &program.var(var).name;
    let spec = program.spec(var).ok_or_else(|| format!("%{name} is not a tensor"))?;
    if spec.rank() > pteron_tensor::MAX_RANK {
        return Err(format!(
            "%{name} has {} dimensions, and at most {} are supported",
            spec.rank(),
            pteron_tensor::MAX_RANK
        ));
    }
    let bounds = spec.sizes.iter().map(|size| size.bounds(&program.ranges));
    let is_bounded = |bounds: pteron_exported::Bounds| (0..=i64::from(i32::MAX)).contains(&bounds.max);
    match bounds.into_iter().all(is_bounded) {
        true => Ok(spec),
        false => Err(format!("%{name} has a size without an upper bound")),
    }
}
