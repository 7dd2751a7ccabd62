//! The arguments of a call, by the schema of its operator.

use super::cursor::{Cursor, Result, scalar};
use crate::{Call, CallArg, CallOut, Kind, Type, ValueId};
use pteron_operator::{ArgType, Kernel, SchemaArg};
use pteron_tensor::Scalar;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

/// An input of a call.
#[derive(Clone, Copy)]
pub(super) enum Input {
    /// An absent tensor, written `none`.
    None,
    Value(ValueId, Type),
}

/// The value of an attribute.
enum AttributeValue {
    None,
    Scalar(Scalar),
    Str(String),
    List(Vec<Scalar>),
}

/// Builds a call of `kernel` with the attributes at the cursor. Returns the call and the inputs of its node.
pub(super) fn build_call(
    kernel: Arc<dyn Kernel>,
    inputs: &[Input],
    cursor: &mut Cursor<'_>,
    results: usize,
) -> Result<(Call, Vec<ValueId>)> {
    let schema = kernel.schema();
    let mut attributes = parse_attributes(cursor, &schema.args)?;
    let mut needed = schema.args.iter().filter(|arg| is_required(arg)).count();
    let mut left = Unassigned { inputs, operands: Vec::new() };
    let (mut args, mut outs, mut unnamed) = (Vec::new(), Vec::new(), results);
    for declared in &schema.args {
        needed -= usize::from(is_required(declared));
        args.push(if declared.written {
            let lists = declared.list.then(|| std::mem::take(&mut unnamed));
            unnamed = unnamed.saturating_sub(1);
            outs.push(lists.map_or(CallOut::Tensor, CallOut::Tensors));
            CallArg::Out(outs.len() - 1)
        } else if declared.ty == ArgType::Tensor {
            left.take_tensors(declared, needed)?
        } else if let Some(attributes) = attributes.remove(&*declared.name) {
            to_call_arg(declared, attributes)?
        } else if let Some(computed) = left.take_scalars(declared.list) {
            computed
        } else if let Some(default) = &declared.default {
            let mut cursor = Cursor::new(default);
            to_call_arg(declared, parse_value(&mut cursor)?)?
        } else if declared.optional {
            CallArg::None
        } else {
            return Err(format!("expected `{}` of `{schema}`, which has no default", declared.name));
        });
    }
    if !left.inputs.is_empty() {
        return Err(format!("{} inputs more than `{schema}` takes", left.inputs.len()));
    }
    if schema.fresh_result().is_some() {
        outs.push(CallOut::Tensor);
    }
    let operands = left.operands;
    let call = Call::new(kernel, args, outs);
    call.check(operands.len(), results)?;
    Ok((call, operands))
}

/// Whether an argument takes exactly one tensor.
fn is_required(arg: &SchemaArg) -> bool {
    arg.ty == ArgType::Tensor && !(arg.written || arg.list || arg.optional)
}

/// A call's inputs that are not assigned to arguments yet, and the inputs that its node has so far.
struct Unassigned<'i> {
    inputs: &'i [Input],
    operands: Vec<ValueId>,
}

impl Unassigned<'_> {
    fn take(&mut self) -> Option<Input> {
        let (&first, rest) = self.inputs.split_first()?;
        self.inputs = rest;
        if let Input::Value(value, _) = first {
            self.operands.push(value);
        }
        Some(first)
    }

    /// The number of consecutive inputs, from the next one on, for which `is` holds.
    fn count_while(&self, is: impl Fn(&Input) -> bool) -> usize {
        self.inputs.iter().take_while(|input| is(input)).count()
    }

    /// Takes a tensor or a list of tensors, but leaves the `needed` tensors of later arguments.
    fn take_tensors(&mut self, declared: &SchemaArg, needed: usize) -> Result<CallArg> {
        let tensors = self.count_while(|input| !matches!(input, Input::Value(_, Type::Scalar)));
        if declared.list {
            let present: Vec<bool> = (0..tensors.saturating_sub(needed))
                .filter_map(|_| self.take())
                .map(|input| matches!(input, Input::Value(..)))
                .collect();
            let all = present.iter().all(|&present| present);
            return Ok(if all { CallArg::Tensors(present.len()) } else { CallArg::OptionalTensors(present) });
        }
        if declared.optional && tensors <= needed {
            return Ok(CallArg::None);
        }
        match self.take() {
            Some(Input::None) => Ok(CallArg::None),
            Some(Input::Value(..)) => Ok(CallArg::Tensor),
            None => Err(format!("expected an input for `{}`, found no more", declared.name)),
        }
    }

    /// Takes the next input, if it is a scalar; for a list, all scalars that come next. `None` if no scalar comes next.
    fn take_scalars(&mut self, list: bool) -> Option<CallArg> {
        let scalars = self.count_while(|input| matches!(input, Input::Value(_, Type::Scalar)));
        let num_taken = if list { scalars } else { scalars.min(1) };
        for _ in 0..num_taken {
            self.take();
        }
        (num_taken > 0).then_some(if list { CallArg::Values(num_taken) } else { CallArg::Value })
    }
}

/// Parses attributes, `{name: value, name: value}`, if they are next.
fn parse_attributes<'t>(
    cursor: &mut Cursor<'t>,
    declared: &[SchemaArg],
) -> Result<HashMap<&'t str, AttributeValue>> {
    let mut attributes = HashMap::new();
    if !cursor.starts_with(" {") {
        return Ok(attributes);
    }
    cursor.list(" {", "}", |cursor| {
        let expected = cursor.expected_error("an argument's name");
        let name = cursor.take_until_any(&[':']);
        cursor.expect(": ")?;
        if !declared.iter().any(|arg| arg.name == name && !arg.written && arg.ty != ArgType::Tensor) {
            return Err(expected);
        }
        match attributes.entry(name) {
            Entry::Vacant(entry) => drop(entry.insert(parse_value(cursor)?)),
            Entry::Occupied(_) => return Err(format!("`{name}` is given twice")),
        }
        Ok(())
    })?;
    Ok(attributes)
}

/// Parses the value of an attribute, or of a schema's default.
fn parse_value(cursor: &mut Cursor<'_>) -> Result<AttributeValue> {
    if cursor.starts_with("\"") || cursor.starts_with("'") {
        return cursor.string().map(AttributeValue::Str);
    }
    if cursor.eat("None") {
        return Ok(AttributeValue::None);
    }
    if !cursor.eat("[") {
        return scalar(cursor.take_until_any(&[',', '}'])).map(AttributeValue::Scalar);
    }
    let items = cursor.take_until_any(&[']']);
    cursor.expect("]")?;
    let items = items.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(scalar).collect::<Result<_>>().map(AttributeValue::List)
}

/// Converts an attribute's value to the type that the schema declares.
fn to_call_arg(declared: &SchemaArg, value: AttributeValue) -> Result<CallArg> {
    let wrong = || format!("expected `{declared}`, found a value of another type for it");
    let items = match value {
        AttributeValue::None => return Ok(CallArg::None),
        AttributeValue::Str(text) if declared.ty == ArgType::Str && !declared.list => {
            return Ok(CallArg::Str(text.into()));
        }
        AttributeValue::Str(_) => return Err(wrong()),
        AttributeValue::Scalar(scalar) if !declared.list => {
            return match (declared.ty, scalar) {
                (ArgType::Str, _) => Err(wrong()),
                (ArgType::Scalar, scalar) => Ok(CallArg::Scalar(scalar)),
                (ArgType::Float, Scalar::Int(_) | Scalar::Double(_)) => {
                    Ok(CallArg::Scalar(Scalar::Double(scalar.to_f64())))
                }
                (ArgType::Bool, Scalar::Bool(_)) | (_, Scalar::Int(_)) => Ok(CallArg::Scalar(scalar)),
                _ => Err(wrong()),
            };
        }
        AttributeValue::List(_) if !declared.list => return Err(wrong()),
        // A default of one number for a list.
        AttributeValue::Scalar(scalar) => vec![scalar],
        AttributeValue::List(items) => items,
    };
    let is_double = |item: &Scalar| matches!(item, Scalar::Double(_));
    let floats = match declared.ty {
        ArgType::Scalar => items.iter().any(is_double),
        other => other == ArgType::Float,
    };
    let list = match declared.ty {
        ArgType::Bool => {
            let bools = items.iter().map(|item| if let Scalar::Bool(v) = item { Some(*v) } else { None });
            bools.collect::<Option<Arc<[bool]>>>().map(CallArg::Bools)
        }
        _ if floats => Some(CallArg::Doubles(items.iter().map(|item| item.to_f64()).collect())),
        _ => {
            let ints = items.iter().map(|item| if let Scalar::Int(v) = item { Some(*v) } else { None });
            ints.collect::<Option<Vec<i64>>>().map(CallArg::Ints)
        }
    };
    list.ok_or_else(wrong)
}
