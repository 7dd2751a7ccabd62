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
    /// `none`
    None,
    Value(ValueId, Type),
}

/// The value of an attribute.
enum Given {
    None,
    Scalar(Scalar),
    Str(String),
    List(Vec<Scalar>),
}

/// A call with these inputs, the attributes at the cursor, and this many results. Returns it with the inputs of its node.
pub(super) fn call(
    kernel: Arc<dyn Kernel>,
    inputs: &[Input],
    cursor: &mut Cursor<'_>,
    results: usize,
) -> Result<(Call, Vec<ValueId>)> {
    let schema = kernel.schema();
    let mut given = attributes(cursor, &schema.args)?;
    let mut needed = schema.args.iter().filter(|arg| is_required(arg)).count();
    let mut left = Left { inputs, operands: Vec::new() };
    let (mut args, mut outs, mut unnamed) = (Vec::new(), Vec::new(), results);
    for declared in &schema.args {
        needed -= usize::from(is_required(declared));
        args.push(if declared.written {
            let lists = declared.list.then(|| std::mem::take(&mut unnamed));
            unnamed = unnamed.saturating_sub(1);
            outs.push(lists.map_or(CallOut::Tensor, CallOut::Tensors));
            CallArg::Out(outs.len() - 1)
        } else if declared.ty == ArgType::Tensor {
            left.tensor(declared, needed)?
        } else if let Some(given) = given.remove(&*declared.name) {
            argument(declared, given)?
        } else if let Some(computed) = left.scalars(declared.list) {
            computed
        } else if let Some(default) = &declared.default {
            let mut cursor = Cursor::new(default);
            argument(declared, value(&mut cursor)?)?
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

/// The inputs that are not assigned to arguments, and the node's inputs so far.
struct Left<'i> {
    inputs: &'i [Input],
    operands: Vec<ValueId>,
}

impl Left<'_> {
    fn take(&mut self) -> Option<Input> {
        let (&first, rest) = self.inputs.split_first()?;
        self.inputs = rest;
        if let Input::Value(value, _) = first {
            self.operands.push(value);
        }
        Some(first)
    }

    /// How many of the next inputs have a property.
    fn run(&self, is: impl Fn(&Input) -> bool) -> usize {
        self.inputs.iter().take_while(|input| is(input)).count()
    }

    /// A tensor or a list of tensors, which leaves the tensors that are `needed` after it.
    fn tensor(&mut self, declared: &SchemaArg, needed: usize) -> Result<CallArg> {
        let tensors = self.run(|input| !matches!(input, Input::Value(_, Type::Scalar)));
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

    /// A scalar or a list of scalars that are inputs.
    fn scalars(&mut self, list: bool) -> Option<CallArg> {
        let scalars = self.run(|input| matches!(input, Input::Value(_, Type::Scalar)));
        let taken = if list { scalars } else { scalars.min(1) };
        for _ in 0..taken {
            self.take();
        }
        (taken > 0).then_some(if list { CallArg::Values(taken) } else { CallArg::Value })
    }
}

/// `{name: value, name: value}`, if that is next.
fn attributes<'t>(cursor: &mut Cursor<'t>, declared: &[SchemaArg]) -> Result<HashMap<&'t str, Given>> {
    let mut given = HashMap::new();
    if !cursor.starts_with(" {") {
        return Ok(given);
    }
    cursor.list(" {", "}", |cursor| {
        let expected = cursor.wrong("an argument's name");
        let name = cursor.until_any(&[':']);
        cursor.expect(": ")?;
        if !declared.iter().any(|arg| arg.name == name && !arg.written && arg.ty != ArgType::Tensor) {
            return Err(expected);
        }
        match given.entry(name) {
            Entry::Vacant(entry) => drop(entry.insert(value(cursor)?)),
            Entry::Occupied(_) => return Err(format!("`{name}` is given twice")),
        }
        Ok(())
    })?;
    Ok(given)
}

/// A value of an attribute, or of a schema's default.
fn value(cursor: &mut Cursor<'_>) -> Result<Given> {
    if cursor.starts_with("\"") || cursor.starts_with("'") {
        return cursor.string().map(Given::Str);
    }
    if cursor.eat("None") {
        return Ok(Given::None);
    }
    if !cursor.eat("[") {
        return scalar(cursor.until_any(&[',', '}'])).map(Given::Scalar);
    }
    let items = cursor.until_any(&[']']);
    cursor.expect("]")?;
    let items = items.split(',').map(str::trim).filter(|item| !item.is_empty());
    items.map(scalar).collect::<Result<_>>().map(Given::List)
}

/// The argument with this value.
fn argument(declared: &SchemaArg, given: Given) -> Result<CallArg> {
    let wrong = || format!("expected `{declared}`, found a value of another type for it");
    let items = match given {
        Given::None => return Ok(CallArg::None),
        Given::Str(text) if declared.ty == ArgType::Str && !declared.list => {
            return Ok(CallArg::Str(text.into()));
        }
        Given::Str(_) => return Err(wrong()),
        Given::Scalar(scalar) if !declared.list => {
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
        Given::List(_) if !declared.list => return Err(wrong()),
        // A default of one number for a list.
        Given::Scalar(scalar) => vec![scalar],
        Given::List(items) => items,
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
