//! What instructions other than kernel calls do to the values of a method.

use crate::error::ExecuteError;
use crate::plan::{ArgRef, DelegateCall, Id, State, Value};
use pteron_tensor::{ShapeDynamism, TensorMeta};
use smallvec::SmallVec;

/// Elements of a jump condition that are read between two checks for an interrupt.
const PIECE: usize = 1 << 16;

fn is_dynamic(meta: &TensorMeta) -> bool {
    meta.dynamism() != ShapeDynamism::Static
}

impl State {
    /// Gives the dynamic outputs of a delegate call the sizes of their upper bounds. Returns, by output, whether the
    /// delegate has to resize it: it is dynamic, and an input is smaller than its upper bound.
    pub(super) fn reset_dynamic_outputs(&mut self, call: &DelegateCall) -> SmallVec<[bool; 3]> {
        let is_smaller = |arg: &ArgRef| {
            let ArgRef::Value(id) = arg else { return false };
            self.values[*id].tensor().is_some_and(|t| is_dynamic(&t.meta) && *t.meta.sizes() != t.bound)
        };
        let is_smaller = call.args.iter().any(is_smaller);
        let must_resize = call.outs.iter().map(|out| {
            let tensor = out.tensor().and_then(|id| self.values[id].tensor_mut());
            let Some(tensor) = tensor.filter(|t| is_dynamic(&t.meta)) else { return false };
            let _ = tensor.meta.resize(&tensor.bound);
            is_smaller
        });
        must_resize.collect()
    }

    /// Sets the value `to` to the value `from`. A tensor is not copied: `to` becomes its alias.
    pub(super) fn move_value(&mut self, from: Id, to: Id) {
        let mut value = self.values[from].clone();
        if let (Value::Tensor(new), Some(old)) = (&mut value, self.values[to].tensor()) {
            // The planned storage, the bounds and the name belong to the table entry, not to the bytes.
            new.home = old.home;
            new.bound = old.bound;
            new.name = old.name.clone();
        }
        self.values[to] = value;
    }

    /// Evaluates a jump condition. A tensor of booleans is true if all of its elements are true.
    pub(super) fn is_true(&self, id: Id) -> Result<bool, ExecuteError> {
        match &self.values[id] {
            Value::Bool(b) => Ok(*b),
            Value::Tensor(_) => {
                let view = self.view(id)?;
                match view.storage::<pteron_tensor::Bool>() {
                    Ok(elements) => Ok(elements.chunks(PIECE).all(|piece| {
                        pteron_pool::progress(piece.len());
                        piece.iter().all(|b| b.get())
                    })),
                    Err(_) => Err(ExecuteError::Condition(format!("a tensor of {}", view.dtype()))),
                }
            }
            other => Err(ExecuteError::Condition(other.kind().to_owned())),
        }
    }
}
