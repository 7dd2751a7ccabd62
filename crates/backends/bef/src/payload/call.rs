//! Arguments of operator calls.
//!
//! Each is an element of the attribute `arguments`: a scalar, an array, or a word.
//!
//! | word | argument |
//! | --- | --- |
//! | `none` | absent |
//! | `tensor`, `tensors:3`, `tensors?:101` | the next operands: one, three, two of three |
//! | `out:0` | an out tensor |
//! | `?2` | the value of a size expression |
//! | `ints:1,?0` | integers, some of them size expressions |
//! | `str:mean` | a string |

use super::fields::{array_of_ints, string_value};
use super::{Fields, Number, Record};
use crate::error::{Error, Result, fail};
use pteron_bef::{Array, Attribute};
use pteron_ir::{CallArg, CallOut};
use pteron_operator::{ArgType, Schema, SchemaArg};
use pteron_tensor::Scalar;

/// An argument of a call.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// An optional argument that is absent.
    None,
    /// A number or boolean.
    Scalar(Scalar),
    /// An integer computed from sizes: the index of an expression.
    Expression(usize),
    /// A string, for example the name of a mode.
    Str(String),
    /// A list of integers, each known or computed from sizes.
    Ints(Vec<Number>),
    /// A list of floating-point numbers.
    Doubles(Vec<f64>),
    /// A list of booleans.
    Bools(Vec<bool>),
    /// The next operand, a tensor.
    Tensor,
    /// The next operands, this many tensors.
    Tensors(usize),
    /// A list of tensors, some absent: whether each is present, in which case it is the next operand.
    OptionalTensors(Vec<bool>),
    /// The out argument with this index.
    Out(usize),
}

impl Arg {
    /// The number of operands that the argument takes.
    pub fn num_operands(&self) -> usize {
        match self {
            Self::Tensor => 1,
            Self::Tensors(n) => *n,
            Self::OptionalTensors(present) => present.iter().filter(|p| **p).count(),
            _ => 0,
        }
    }

    fn write(&self) -> Attribute<'static> {
        let known = |number: &Number| if let Number::Int(v) = number { Some(*v) } else { None };
        match self {
            Self::None => Attribute::string("none"),
            Self::Scalar(Scalar::Int(v)) => Attribute::I64(*v),
            Self::Scalar(Scalar::Double(v)) => Attribute::f64(*v),
            Self::Scalar(Scalar::Bool(v)) => Attribute::I1(*v),
            Self::Expression(index) => Attribute::string(Number::Expression(*index).to_string()),
            Self::Str(text) => Attribute::string(format!("str:{text}")),
            Self::Ints(list) => match list.iter().map(known).collect::<Option<Vec<i64>>>() {
                Some(list) => array_of_ints(&list),
                None => {
                    let list: Vec<String> = list.iter().map(Number::to_string).collect();
                    Attribute::string(format!("ints:{}", list.join(",")))
                }
            },
            Self::Doubles(list) if list.is_empty() => Attribute::Array(Array::empty()),
            Self::Doubles(list) => Attribute::Array(Array::from_f64s(list)),
            Self::Bools(list) if list.is_empty() => Attribute::Array(Array::empty()),
            Self::Bools(list) => Attribute::Array(Array::from_bools(list)),
            Self::Tensor => Attribute::string("tensor"),
            Self::Tensors(n) => Attribute::string(format!("tensors:{n}")),
            Self::OptionalTensors(present) => {
                let present: String = present.iter().map(|p| if *p { '1' } else { '0' }).collect();
                Attribute::string(format!("tensors?:{present}"))
            }
            Self::Out(index) => Attribute::string(format!("out:{index}")),
        }
    }

    fn read(value: &Attribute<'_>, expressions: usize) -> Option<Self> {
        Some(match value {
            Attribute::I64(v) => Self::Scalar(Scalar::Int(*v)),
            Attribute::F64(bits) => Self::Scalar(Scalar::Double(f64::from_bits(*bits))),
            Attribute::I1(v) => Self::Scalar(Scalar::Bool(*v)),
            Attribute::Array(array) if array.is_empty() => Self::Ints(Vec::new()),
            Attribute::Array(array) => {
                let ints = array.i64s().map(|list| Self::Ints(list.map(Number::Int).collect()));
                let doubles = || array.f64s().map(|list| Self::Doubles(list.collect()));
                ints.or_else(doubles).or_else(|| array.bools().map(|list| Self::Bools(list.collect())))?
            }
            Attribute::String(_) => {
                let word = string_value(value)?;
                match word.split_once(':').unwrap_or((word, "")) {
                    ("none", "") => Self::None,
                    ("tensor", "") => Self::Tensor,
                    ("tensors", n) => Self::Tensors(n.parse().ok()?),
                    ("tensors?", present) => {
                        let flag = |c| match c {
                            '0' => Some(false),
                            '1' => Some(true),
                            _ => None,
                        };
                        Self::OptionalTensors(present.chars().map(flag).collect::<Option<_>>()?)
                    }
                    ("out", index) => Self::Out(index.parse().ok()?),
                    ("str", text) => Self::Str(text.to_owned()),
                    ("ints", list) => {
                        let list = list.split(',').map(|number| Number::parse(number, expressions));
                        Self::Ints(list.collect::<Option<_>>()?)
                    }
                    (word, "") => match Number::parse(word, expressions)? {
                        Number::Expression(index) => Self::Expression(index),
                        Number::Int(_) => return None,
                    },
                    _ => return None,
                }
            }
            _ => return None,
        })
    }

    /// Whether the declared argument of a schema accepts this argument.
    fn fits_schema(&self, declared: &SchemaArg) -> bool {
        let is_empty = matches!(self, Self::Ints(list) if list.is_empty());
        match (self, declared.ty) {
            (Self::Out(_), _) => declared.written,
            _ if declared.written => false,
            // Defaults that have no other form are written as absent; the kernel checks whether the argument may be absent.
            (Self::None, _) => true,
            (Self::Tensors(_), ArgType::Tensor) => declared.list,
            (Self::OptionalTensors(_), ArgType::Tensor) => declared.list && declared.optional,
            (Self::Ints(_), ArgType::Int) => declared.list,
            (Self::Doubles(_), ArgType::Float | ArgType::Scalar) => declared.list,
            (Self::Bools(_), ArgType::Bool) => declared.list,
            _ if declared.list => is_empty && declared.ty != ArgType::Tensor,
            (Self::Tensor, ty) => ty == ArgType::Tensor,
            (_, ArgType::Tensor) => false,
            (Self::Str(_), ArgType::Str) => true,
            (Self::Scalar(_) | Self::Expression(_), ty) => ty != ArgType::Str,
            _ => false,
        }
    }

    /// Converts the argument to that of a graph call; `value` returns the values of expressions.
    pub(crate) fn to_graph(&self, value: &dyn Fn(usize) -> Result<i64>) -> Result<CallArg> {
        let number = |number: &Number| match number {
            Number::Int(v) => Ok(*v),
            Number::Expression(index) => value(*index),
        };
        Ok(match self {
            Self::None => CallArg::None,
            Self::Scalar(scalar) => CallArg::Scalar(*scalar),
            Self::Expression(index) => CallArg::Scalar(Scalar::Int(value(*index)?)),
            Self::Str(text) => CallArg::Str(text.as_str().into()),
            Self::Ints(list) => CallArg::Ints(list.iter().map(number).collect::<Result<_>>()?),
            Self::Doubles(list) => CallArg::Doubles(list.as_slice().into()),
            Self::Bools(list) => CallArg::Bools(list.as_slice().into()),
            Self::Tensor => CallArg::Tensor,
            Self::Tensors(n) => CallArg::Tensors(*n),
            Self::OptionalTensors(present) => CallArg::OptionalTensors(present.clone()),
            Self::Out(index) => CallArg::Out(*index),
        })
    }

    /// Converts an argument of a graph call to its form in the payload. `None` for a scalar that is computed at run
    /// time.
    #[cfg(feature = "compile")]
    pub(crate) fn from_graph(arg: &CallArg) -> Option<Self> {
        Some(match arg {
            CallArg::None => Self::None,
            CallArg::Scalar(scalar) => Self::Scalar(*scalar),
            CallArg::Str(text) => Self::Str(text.to_string()),
            CallArg::Ints(list) => Self::Ints(list.iter().map(|&v| Number::Int(v)).collect()),
            CallArg::Doubles(list) => Self::Doubles(list.to_vec()),
            CallArg::Bools(list) => Self::Bools(list.to_vec()),
            CallArg::Tensor => Self::Tensor,
            CallArg::Tensors(n) => Self::Tensors(*n),
            CallArg::OptionalTensors(present) => Self::OptionalTensors(present.clone()),
            CallArg::Out(index) => Self::Out(*index),
            CallArg::Value | CallArg::Values(_) => return None,
        })
    }
}

/// Writes the attributes of a call.
pub(super) fn write(record: &mut Record, operator: &str, args: &[Arg]) {
    record.text("operator", operator).list("arguments", args.iter().map(Arg::write).collect());
}

/// Reads the attributes of a call: the operator and its arguments.
pub(super) fn read(fields: &Fields<'_>, expressions: usize) -> Result<(String, Vec<Arg>)> {
    let args = fields.list("arguments")?.iter().enumerate().map(|(i, value)| {
        Arg::read(value, expressions).ok_or_else(|| Error::new(format!("argument {i} is malformed")))
    });
    Ok((fields.text("operator")?.to_owned(), args.collect::<Result<_>>()?))
}

/// Checks arguments against a schema and returns the outs of the call: exactly the arguments that the schema declares
/// as written.
pub(crate) fn outs(schema: &Schema, args: &[Arg], outputs: usize) -> Result<Vec<CallOut>> {
    if args.len() != schema.args.len() {
        return fail(format!(
            "the call has {} arguments, and `{schema}` declares {}",
            args.len(),
            schema.args.len()
        ));
    }
    if let Some((arg, declared)) =
        args.iter().zip(&schema.args).find(|(arg, declared)| !arg.fits_schema(declared))
    {
        return fail(format!("the argument {arg:?} does not fit `{declared}` of {}", schema.name));
    }
    let written: Vec<&SchemaArg> = schema.args.iter().filter(|declared| declared.written).collect();
    let order = args.iter().filter_map(|arg| if let Arg::Out(i) = arg { Some(*i) } else { None });
    let is_list = written.iter().any(|declared| declared.list);
    let in_order = order.eq(0..written.len());
    let expected = if is_list { outputs } else { written.len() };
    if !in_order || written.is_empty() || outputs != expected || is_list && written.len() != 1 {
        return fail(format!("{outputs} results, or the order of the outs, do not match `{schema}`"));
    }
    Ok(match is_list {
        true => vec![CallOut::Tensors(outputs)],
        false => vec![CallOut::Tensor; outputs],
    })
}
