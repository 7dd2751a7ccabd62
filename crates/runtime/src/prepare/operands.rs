//! Translates the arguments of instructions to arguments of graph calls.

use crate::plan::{ArgRef, Id, State, Value};
use pteron_engine::CallArg;
use pteron_tensor::Scalar;
use std::sync::Arc;

/// Collects the operands of graph calls that are built from a method's instructions.
pub(crate) trait Operands {
    /// The memory and the values of the method.
    fn state(&self) -> &State;

    /// Whether a non-tensor value is known only at run time: an instruction computes it, or it is an input.
    fn is_computed(&self, id: Id) -> bool;

    /// The value of a scalar; `None` if it is known only at run time.
    fn known_scalar(&mut self, id: Id) -> Option<Scalar>;

    /// Appends a tensor to the inputs of the call. `None` if it cannot be an input.
    fn push_tensor(&mut self, id: Id) -> Option<()>;

    /// Whether a scalar is an SSA value of the graph, rather than an attribute of the calls that read it.
    fn is_graph_scalar(&self, id: Id) -> bool {
        let _ = id;
        false
    }

    /// Appends a scalar to the inputs of the call. `None` if it cannot be an input.
    fn push_scalar(&mut self, id: Id) -> Option<()> {
        let _ = id;
        None
    }

    /// Translates an argument and appends its tensors to the inputs of the call, in order. `None` if it contains a
    /// value that cannot be part of a graph.
    fn call_arg(&mut self, arg: ArgRef) -> Option<CallArg> {
        let id = match arg {
            ArgRef::Out(i) => return Some(CallArg::Out(i)),
            ArgRef::Value(id) => id,
        };
        Some(match &self.state().values[id] {
            Value::Int(_) | Value::Double(_) | Value::Bool(_) if self.is_graph_scalar(id) => {
                self.push_scalar(id)?;
                CallArg::Value
            }
            Value::Int(_) | Value::Double(_) | Value::Bool(_) => CallArg::Scalar(self.known_scalar(id)?),
            Value::Tensor(_) => {
                self.push_tensor(id)?;
                CallArg::Tensor
            }
            _ if self.is_computed(id) => return None,
            Value::None => CallArg::None,
            Value::Str(s) => CallArg::Str(Arc::clone(s)),
            Value::Doubles(v) => CallArg::Doubles(Arc::clone(v)),
            Value::Bools(v) => CallArg::Bools(Arc::clone(v)),
            Value::Ints(ids) if ids.iter().any(|&id| self.is_graph_scalar(id)) => {
                let ids = Arc::clone(ids);
                ids.iter().try_for_each(|&id| self.push_scalar(id))?;
                CallArg::Values(ids.len())
            }
            Value::Ints(ids) => {
                let ids = Arc::clone(ids);
                let int = |id: &Id| match self.known_scalar(*id)? {
                    Scalar::Int(v) => Some(v),
                    _ => None,
                };
                CallArg::Ints(ids.iter().map(int).collect::<Option<_>>()?)
            }
            Value::Tensors(ids) => {
                let ids = Arc::clone(ids);
                ids.iter().try_for_each(|&id| self.push_tensor(id))?;
                CallArg::Tensors(ids.len())
            }
            Value::OptionalTensors(ids) => {
                let ids = Arc::clone(ids);
                ids.iter().flatten().try_for_each(|&id| self.push_tensor(id))?;
                CallArg::OptionalTensors(ids.iter().map(Option::is_some).collect())
            }
        })
    }
}
