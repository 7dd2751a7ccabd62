//! Arguments of instructions as those of calls in graphs.

use crate::call::State;
use crate::step::ArgStep;
use crate::value::{Id, Value};
use graph::CallArg;
use std::sync::Arc;
use tensor::Scalar;

/// Whoever makes calls of a graph of a method's instructions.
pub(crate) trait Operands {
    /// The values of the method.
    fn state(&self) -> &State;

    /// Whether an instruction computes a value that is no tensor.
    fn is_computed(&self, id: Id) -> bool;

    /// A number, if it is known.
    fn number(&mut self, id: Id) -> Option<Scalar>;

    /// Takes a tensor as the next input of the call. `None` if it cannot be one.
    fn tensor(&mut self, id: Id) -> Option<()>;

    /// Whether a number is a value of the graph, and no attribute of the calls that read it.
    fn is_scalar(&self, id: Id) -> bool {
        let _ = id;
        false
    }

    /// Takes a number as the next input of the call. `None` if it cannot be one.
    fn scalar(&mut self, id: Id) -> Option<()> {
        let _ = id;
        None
    }

    /// An argument of a call, whose tensors are taken in order. `None` if there is something in it that cannot be
    /// part of a graph.
    fn arg(&mut self, arg: ArgStep) -> Option<CallArg> {
        let id = match arg {
            ArgStep::Out(i) => return Some(CallArg::Out(i)),
            ArgStep::Value(id) => id,
        };
        Some(match &self.state().values[id] {
            Value::Int(_) | Value::Double(_) | Value::Bool(_) if self.is_scalar(id) => {
                self.scalar(id)?;
                CallArg::Value
            }
            Value::Int(_) | Value::Double(_) | Value::Bool(_) => CallArg::Scalar(self.number(id)?),
            Value::Tensor(_) => {
                self.tensor(id)?;
                CallArg::Tensor
            }
            _ if self.is_computed(id) => return None,
            Value::None => CallArg::None,
            Value::Str(s) => CallArg::Str(Arc::clone(s)),
            Value::Doubles(v) => CallArg::Doubles(Arc::clone(v)),
            Value::Bools(v) => CallArg::Bools(Arc::clone(v)),
            Value::Ints(ids) if ids.iter().any(|&id| self.is_scalar(id)) => {
                let ids = Arc::clone(ids);
                ids.iter().try_for_each(|&id| self.scalar(id))?;
                CallArg::Values(ids.len())
            }
            Value::Ints(ids) => {
                let ids = Arc::clone(ids);
                let int = |id: &Id| match self.number(*id)? {
                    Scalar::Int(v) => Some(v),
                    _ => None,
                };
                CallArg::Ints(ids.iter().map(int).collect::<Option<_>>()?)
            }
            Value::Tensors(ids) => {
                let ids = Arc::clone(ids);
                ids.iter().try_for_each(|&id| self.tensor(id))?;
                CallArg::Tensors(ids.len())
            }
            Value::OptionalTensors(ids) => {
                let ids = Arc::clone(ids);
                ids.iter().flatten().try_for_each(|&id| self.tensor(id))?;
                CallArg::OptionalTensors(ids.iter().map(Option::is_some).collect())
            }
        })
    }
}
