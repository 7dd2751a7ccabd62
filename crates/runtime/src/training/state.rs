//! The state of a training run in a file: parameters, other persistent tensors, and what the optimizer remembers.
//!
//! The file is a checkpoint ([`Method::save_checkpoint`]) with further entries, whose keys begin with
//! `pteron.training.METHOD.`:
//!
//! | key | entry |
//! | --- | --- |
//! | `optimizer` | the optimizer's name, as text |
//! | `number.NAME` | a hyperparameter or counter: float64, one element |
//! | `buffer.KIND.PARAMETER` | a buffer of the optimizer: float32, one dimension |
//! | `accumulated.PARAMETER` | the gradients that were accumulated since the last step: float32, one dimension |

use super::{Optimizer, OptimizerState, TrainingModule};
use crate::convert::from_little_endian;
use crate::{Error, Method, NamedDataMap, PtdDataMap, Result};
use pteron_format::container::Blob;
use pteron_format::ptd::{Builder, TensorLayout};
use pteron_tensor::{Element, ScalarType};
use std::collections::BTreeMap;
use std::path::Path;

/// The kinds of buffers that optimizers have.
const KINDS: [&str; 4] = ["momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"];

/// The key of a method's entry in a training checkpoint. `what` says what the entry holds.
fn entry_key(method: &str, what: &str) -> String {
    format!("{}training.{method}.{what}", pteron_format::pte::OWN_KEY_PREFIX)
}

impl TrainingModule {
    /// Writes all that the next step of a run depends on to a `.ptd` file, atomically: the parameters and other persistent
    /// tensors, accumulated gradients, and the state of the optimizer. A run that continues from it computes the same bits as
    /// one that was not interrupted.
    pub fn save_training(
        &mut self,
        method: &str,
        path: impl AsRef<Path>,
        optimizer: &dyn Optimizer,
    ) -> Result<()> {
        let accumulated = self.joint(method)?.accumulated();
        let loaded: &Method = self.module.method(method)?;
        let path = path.as_ref();
        let mut builder = loaded.checkpoint_builder(path)?;
        builder.blob(entry_key(method, "optimizer"), Blob::bytes(optimizer.name().as_bytes()));
        let OptimizerState { numbers, buffers } = optimizer.state();
        for (name, number) in numbers {
            add_vector(&mut builder, entry_key(method, &format!("number.{name}")), &[number])?;
        }
        for (kind, buffers) in buffers {
            for (name, buffer) in buffers {
                add_vector(&mut builder, entry_key(method, &format!("buffer.{kind}.{name}")), &buffer)?;
            }
        }
        for (name, gradient) in accumulated {
            add_vector(&mut builder, entry_key(method, &format!("accumulated.{name}")), &gradient)?;
        }
        crate::method::checkpoint::write_checkpoint(builder, path)
    }

    /// Restores what [`Self::save_training`] has written. If anything is missing, or does not fit the method or the optimizer,
    /// the call fails and changes nothing.
    ///
    /// # Errors
    /// The file cannot be read, has no state of an optimizer of this kind for the method, or belongs to another program.
    pub fn load_training(
        &mut self,
        method: &str,
        path: impl AsRef<Path>,
        optimizer: &mut dyn Optimizer,
    ) -> Result<()> {
        let data = PtdDataMap::open(path)?;
        let file = data.name().to_owned();
        let refused = |problem: String| Error::Unsupported(format!("{file}: {problem}"));
        match saved_optimizer(&data, method)? {
            Some(name) if name == optimizer.name() => {}
            Some(name) => {
                return Err(refused(format!("its optimizer is `{name}` and not `{}`", optimizer.name())));
            }
            None => {
                return Err(refused(format!(
                    "it has the parameters of `{method}` at most, and no state of an optimizer; load_checkpoint reads it"
                )));
            }
        }
        let sizes: BTreeMap<String, usize> = self
            .named_parameters(method)?
            .into_iter()
            .map(|(name, p)| (name.to_owned(), p.numel()))
            .collect();
        let read = |key: &str, name: &str| -> Result<Vec<f32>> {
            let values = read_vector::<f32>(&data, key)?;
            match sizes.get(name) {
                Some(&size) if size == values.len() => Ok(values),
                _ => Err(refused(format!("`{key}` has {} elements, which no parameter has", values.len()))),
            }
        };
        let mut state = OptimizerState::default();
        let mut accumulated = BTreeMap::new();
        let start = entry_key(method, "");
        for (full_key, rest) in data.keys().filter_map(|key| Some((key, key.strip_prefix(&start)?))) {
            if let Some(name) = rest.strip_prefix("number.") {
                let [number] = read_vector::<f64>(&data, full_key)?[..] else {
                    return Err(refused(format!("`{full_key}` is not one number")));
                };
                state.numbers.insert(name.to_owned(), number);
            } else if let Some(name) = rest.strip_prefix("accumulated.") {
                accumulated.insert(name.to_owned(), read(full_key, name)?);
            } else if let Some((kind, name)) = rest.strip_prefix("buffer.").and_then(kind_of) {
                state.buffers.entry(kind).or_default().insert(name.to_owned(), read(full_key, name)?);
            }
        }
        // The method and the optimizer each check all that they restore before they change anything. The optimizer
        // comes first, and is put back if the method fails.
        let before = optimizer.state();
        optimizer.restore(state)?;
        let restored = self.module.method(method).and_then(|loaded| loaded.restore(&data));
        if let Err(e) = restored {
            optimizer.restore(before)?;
            return Err(e);
        }
        if let Some(joint) = self.joints.get_mut(method) {
            joint.set_accumulated(accumulated);
        }
        Ok(())
    }
}

/// The name of the optimizer whose state a file has for a method; `None` if it has none.
///
/// # Errors
/// If the entry cannot be read.
pub fn saved_optimizer(data: &PtdDataMap, method: &str) -> Result<Option<String>> {
    let key = entry_key(method, "optimizer");
    if !data.contains(&key) {
        return Ok(None);
    }
    Ok(Some(String::from_utf8_lossy(&data.data(&key)?).into_owned()))
}

/// Splits the end of a key, `KIND.PARAMETER`, into the kind of buffer and the parameter's name. `None` if no kind fits.
fn kind_of(rest: &str) -> Option<(&'static str, &str)> {
    KINDS.into_iter().find_map(|kind| Some((kind, rest.strip_prefix(kind)?.strip_prefix('.')?)))
}

/// Adds a tensor of one dimension.
fn add_vector<T: Element>(builder: &mut Builder<'_>, key: String, values: &[T]) -> Result<()> {
    let Ok(size) = i32::try_from(values.len()) else {
        return Err(Error::Unsupported(format!("`{key}` has more elements than a file can hold")));
    };
    let mut bytes = bytemuck::cast_slice(values).to_vec();
    from_little_endian(&mut bytes, T::DTYPE);
    let layout = TensorLayout { scalar_type: T::DTYPE as i8, sizes: vec![size], dim_order: vec![0] };
    builder.tensor(key, layout, Blob::bytes(bytes));
    Ok(())
}

/// The elements of an entry.
fn read_vector<T: Element>(data: &PtdDataMap, key: &str) -> Result<Vec<T>> {
    let dtype: Option<ScalarType> = data.tensor_layout(key)?.map(|layout| layout.dtype());
    let mut bytes = data.data(key)?.to_vec();
    if dtype != Some(T::DTYPE) || bytes.len() % size_of::<T>() != 0 {
        return Err(Error::Unsupported(format!("{}: `{key}` is no tensor of {}", data.name(), T::DTYPE)));
    }
    from_little_endian(&mut bytes, T::DTYPE);
    Ok(bytemuck::pod_collect_to_vec(&bytes))
}
