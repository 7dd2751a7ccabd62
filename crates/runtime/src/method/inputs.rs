//! Setting the inputs of a method.

use super::Method;
use crate::open::{check_shape, check_type_and_shape};
use crate::plan::{Id, Storage, Value};
use crate::{Error, InputProblem, Result};
use pteron_operator::{EValue, Tag};
use pteron_tensor::{Extent, Tensor, TensorView, TensorViewMut};

impl Method {
    /// Copies a value into an input.
    ///
    /// A tensor must have the scalar type of the input and a shape within its bounds; its dim order is converted if it
    /// differs. A number, boolean or string must equal the value that was fixed when the model was exported.
    pub fn set_input(&mut self, index: usize, value: &EValue) -> Result<()> {
        let Some(&id) = self.inputs.get(index) else {
            return Err(self.input_error(InputProblem::Index { index, count: self.inputs.len() }));
        };
        match value {
            EValue::Tensor(tensor) => self.set_tensor(index, id, tensor.view())?,
            other => check_traced(index, &self.state.values[id], other).map_err(|p| self.input_error(p))?,
        }
        self.input_set[index] = true;
        Ok(())
    }

    /// Sets an input as [`Self::set_input`] does, from a borrowed tensor.
    pub fn set_input_tensor(&mut self, index: usize, tensor: TensorView<'_>) -> Result<()> {
        let Some(&id) = self.inputs.get(index) else {
            return Err(self.input_error(InputProblem::Index { index, count: self.inputs.len() }));
        };
        self.set_tensor(index, id, tensor)?;
        self.input_set[index] = true;
        Ok(())
    }

    fn set_tensor(&mut self, index: usize, id: Id, tensor: TensorView<'_>) -> Result<()> {
        let Some(slot) = self.state.values[id].tensor_mut() else {
            let expected = tag_of(&self.state.values[id]);
            return Err(self.input_error(InputProblem::Kind { index, expected, found: Tag::Tensor }));
        };
        let expected = (slot.meta.dtype(), slot.meta.dynamism(), &*slot.bound);
        let allowed = self.input_sizes.as_deref();
        if let Err(problem) = check_type_and_shape(index, expected, allowed, tensor.dtype(), tensor.sizes()) {
            return Err(self.input_error(problem));
        }
        slot.meta.resize(tensor.sizes())?;
        slot.storage = slot.home;
        let Storage::Arena(extent) = slot.storage else {
            return Err(self.input_error(InputProblem::Traced {
                index,
                expected: "a constant".to_owned(),
                found: "a tensor".to_owned(),
            }));
        };
        let extent = Extent { len: slot.meta.nbytes(), ..extent };
        let target = self.state.arenas.bytes_mut(extent)?;
        tensor.relayout(&mut TensorViewMut::new(&mut slot.meta, target)?)?;
        Ok(())
    }

    /// The memory of an input, to be filled in place before [`Self::run`], which avoids a copy. `sizes` are the sizes
    /// of the tensor, within the bounds of the input. The dim order is the input's.
    pub fn input_mut(&mut self, index: usize, sizes: &[usize]) -> Result<TensorViewMut<'_>> {
        let Some(&id) = self.inputs.get(index) else {
            return Err(self.input_error(InputProblem::Index { index, count: self.inputs.len() }));
        };
        let value = &self.state.values[id];
        let Some(t) = value.tensor() else {
            let expected = tag_of(value);
            return Err(self.input_error(InputProblem::Kind { index, expected, found: Tag::Tensor }));
        };
        let (allowed, home) = (self.input_sizes.as_deref(), t.home);
        check_shape(index, t.meta.dynamism(), &t.bound, allowed, sizes).map_err(|p| self.input_error(p))?;
        let (Storage::Arena(extent), Some(slot)) = (home, self.state.values[id].tensor_mut()) else {
            return Err(Error::Unsupported(format!("input {index} of method `{}` is a constant", self.name)));
        };
        slot.meta.resize(sizes)?;
        slot.storage = home;
        self.input_set[index] = true;
        let extent = Extent { len: slot.meta.nbytes(), ..extent };
        Ok(TensorViewMut::new(&mut slot.meta, self.state.arenas.bytes_mut(extent)?)?)
    }

    /// Checks the sizes of all inputs together.
    pub(super) fn check_sizes(&self) -> Result<()> {
        let Some(allowed) = &self.input_sizes else { return Ok(()) };
        let sizes_of = |input: usize| {
            let tensor = self.state.values[*self.inputs.get(input)?].tensor()?;
            Some(&**tensor.meta.sizes())
        };
        allowed.check(sizes_of).map_err(|problem| self.input_error(InputProblem::Size(problem)))
    }
}

fn tag_of(value: &Value) -> Tag {
    match value {
        Value::None => Tag::None,
        Value::Int(_) => Tag::Int,
        Value::Double(_) => Tag::Double,
        Value::Bool(_) => Tag::Bool,
        Value::Str(_) => Tag::String,
        Value::Ints(_) => Tag::ListInt,
        Value::Doubles(_) => Tag::ListDouble,
        Value::Bools(_) => Tag::ListBool,
        Value::Tensors(_) => Tag::ListTensor,
        Value::OptionalTensors(_) => Tag::ListOptionalTensor,
        Value::Tensor(_) => Tag::Tensor,
    }
}

/// Checks that a non-tensor input equals the value that the exporter fixed. Doubles may differ by a rounding tolerance:
/// the reference's 1e-4 absolute and 1e-5 relative.
fn check_traced(index: usize, expected: &Value, actual: &EValue) -> Result<(), InputProblem> {
    let same = match (expected, actual) {
        (Value::None, EValue::None) => true,
        (Value::Int(a), EValue::Int(b)) => a == b,
        (Value::Bool(a), EValue::Bool(b)) => a == b,
        (Value::Double(a), EValue::Double(b)) => {
            a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= 1e-4 + 1e-5 * b.abs()
        }
        (Value::Str(a), EValue::String(b)) => **a == **b,
        (Value::Doubles(a), EValue::ListDouble(b)) => **a == **b,
        (Value::Bools(a), EValue::ListBool(b)) => **a == **b,
        _ => return Err(InputProblem::Kind { index, expected: tag_of(expected), found: actual.tag() }),
    };
    if same {
        return Ok(());
    }
    Err(InputProblem::Traced { index, expected: describe_traced(expected), found: describe(actual) })
}

fn describe_traced(value: &Value) -> String {
    match value {
        Value::Int(v) => v.to_string(),
        Value::Double(v) => format!("{v:?}"),
        Value::Bool(v) => v.to_string(),
        Value::Str(v) => format!("{v:?}"),
        Value::Doubles(v) => format!("{v:?}"),
        Value::Bools(v) => format!("{v:?}"),
        other => other.kind().to_owned(),
    }
}

fn describe(value: &EValue) -> String {
    match value {
        EValue::Int(v) => v.to_string(),
        EValue::Double(v) => format!("{v:?}"),
        EValue::Bool(v) => v.to_string(),
        EValue::String(v) => format!("{v:?}"),
        EValue::ListDouble(v) => format!("{v:?}"),
        EValue::ListBool(v) => format!("{v:?}"),
        EValue::Tensor(t) => describe_tensor(t),
        other => other.tag().to_string(),
    }
}

fn describe_tensor(t: &Tensor) -> String {
    format!("a tensor {}", t.meta())
}
