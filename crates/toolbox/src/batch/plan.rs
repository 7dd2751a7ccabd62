use super::convert;
use crate::{Error, Result};
use pteron_operator::EValue;
use pteron_runtime::{MethodMeta, TensorInfo};
use pteron_tensor::{ScalarType, ShapeDynamism};

/// The maximum number of rows per call if the batch dimension is dynamic, its bound allows it and the caller sets none.
const DEFAULT_BATCH: usize = 256;

/// Maximum number of batch sizes: four, the number of input shapes for which a region with dynamic shapes keeps its prepared form.
const MAX_BATCH_SIZES: usize = 4;

/// An input or output of a method as a column: the type and sizes of one row.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The tensor's index among the method's inputs or outputs.
    pub index: usize,
    /// The tensor's name, if the exporter gave it one.
    pub name: Option<String>,
    /// The type of the elements.
    pub dtype: ScalarType,
    /// The sizes of a row; upper bounds if the tensor is dynamic.
    pub row: Vec<usize>,
    /// Whether the sizes may change between calls.
    pub is_dynamic: bool,
}

impl Spec {
    /// A label for messages: the kind and name, or the kind and index (`input 0`).
    pub fn label(&self, kind: &str) -> String {
        self.name.as_ref().map_or_else(|| format!("{kind} {}", self.index), |name| format!("{kind} `{name}`"))
    }
}

/// How rows are passed to a method: in batches, or one per call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Joining {
    /// In batches if the first dimensions of all tensors have the same size, otherwise one row per call.
    #[default]
    Automatic,
    /// In batches, joined along the first dimension.
    Together,
    /// One row per call, with the sizes of the method's inputs.
    Alone,
}

/// Requirements that rows must meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RowRules {
    /// Whether a row must have exactly the sizes of the input. Otherwise the rows of a dynamic input may be smaller.
    ///
    /// A program says of a dynamic tensor only that some of its sizes may change, not which.
    pub exact: bool,
    /// Whether floating-point elements must be finite: tables that have no nulls store NaN instead.
    pub finite: bool,
}

impl Default for RowRules {
    fn default() -> Self {
        Self { exact: true, finite: true }
    }
}

/// The input and output columns of a method, and its batch sizes.
#[derive(Debug)]
pub struct Plan {
    /// The input columns.
    pub inputs: Vec<Spec>,
    /// The output columns.
    pub outputs: Vec<Spec>,
    /// The non-tensor inputs: index, and the value that the exporter fixed.
    pub(super) fixed: Vec<(usize, EValue)>,
    /// The batch sizes, in ascending order; empty if each call takes one row.
    pub sizes: Vec<usize>,
    /// Requirements that rows must meet.
    pub rules: RowRules,
}

impl Plan {
    /// Plans how rows are given to a method. `batch_size` is the maximum number of rows per call; only a program with a
    /// dynamic batch dimension allows less than its bound.
    ///
    /// # Errors
    /// If an input is neither a tensor of a supported type nor fixed by the exporter, an output is no tensor, or rows
    /// cannot be joined as requested.
    pub fn new(
        meta: &MethodMeta<'_>,
        joining: Joining,
        batch_size: Option<usize>,
        rules: RowRules,
    ) -> Result<Self> {
        let names = meta.value_names()?;
        let (mut inputs, mut fixed) = (Vec::new(), Vec::new());
        for ((index, input), name) in meta.inputs().into_iter().enumerate().zip(names.inputs) {
            match (&input.tensor, input.traced) {
                (Some(tensor), _) => inputs.push(tensor_spec(index, tensor, name)),
                (None, Some(value)) => fixed.push((index, value)),
                (None, None) => {
                    return Err(Error::Input(format!(
                        "input {index} of method `{}` is {}, and columns are given to tensors",
                        meta.name(),
                        input.tag
                    )));
                }
            }
        }
        let mut outputs = Vec::new();
        for ((index, output), name) in meta.outputs().into_iter().enumerate().zip(names.outputs) {
            let Some(tensor) = &output.tensor else {
                return Err(Error::Input(format!(
                    "output {index} of method `{}` is {}, and columns are made of tensors",
                    meta.name(),
                    output.tag
                )));
            };
            outputs.push(tensor_spec(index, tensor, name));
        }
        let mut plan = Self { inputs, outputs, fixed, sizes: Vec::new(), rules };
        if let Some(spec) = plan.inputs.iter().find(|spec| !convert::is_number(spec.dtype)) {
            let label = spec.label("input");
            return Err(Error::Input(format!("{label} takes {}, of which columns are not made", spec.dtype)));
        }
        match joining {
            Joining::Alone => {}
            Joining::Together => plan.choose_batch_sizes(batch_size)?,
            // If the tensors share no first size, rows are executed one by one.
            Joining::Automatic if plan.common_first_size().is_ok() => plan.choose_batch_sizes(batch_size)?,
            Joining::Automatic => {}
        }
        Ok(plan)
    }

    /// The size, or upper bound, of the first dimension. Fails if it is not the same for all inputs and outputs.
    fn common_first_size(&self) -> Result<usize, String> {
        let mut all = self
            .inputs
            .iter()
            .map(|spec| (spec, "input"))
            .chain(self.outputs.iter().map(|spec| (spec, "output")));
        let Some((first, _)) = all.next() else { return Err("the method has no inputs".to_owned()) };
        let size = *first.row.first().ok_or("input 0 has no dimensions")?;
        match all.find(|(spec, _)| spec.row.first() != Some(&size)) {
            Some((other, kind)) => Err(format!(
                "{} has a first dimension of {size}, and {} has not",
                first.label("input"),
                other.label(kind)
            )),
            None if size == 0 => Err("the first dimension has no rows".to_owned()),
            None => Ok(size),
        }
    }

    fn choose_batch_sizes(&mut self, batch_size: Option<usize>) -> Result<()> {
        let refused = |why: String| Error::Input(format!("rows cannot be joined to batches: {why}"));
        let bound = self.common_first_size().map_err(refused)?;
        let all = || self.inputs.iter().chain(&self.outputs);
        self.sizes = match (all().all(|spec| spec.is_dynamic), batch_size) {
            (_, Some(0)) => return Err(refused("a batch has one row or more".to_owned())),
            (true, Some(most)) if most > bound => {
                return Err(refused(format!(
                    "batches of {most} rows are wanted, the program's bound is {bound}"
                )));
            }
            (true, most) => batch_sizes(most.unwrap_or(DEFAULT_BATCH).min(bound)),
            (false, Some(other)) if other != bound => {
                return Err(refused(format!("the program takes batches of {bound} rows, not of {other}")));
            }
            (false, _) => vec![bound],
        };
        for spec in self.inputs.iter_mut().chain(&mut self.outputs) {
            spec.row.remove(0);
        }
        Ok(())
    }

    /// Whether rows are joined into batches.
    pub fn is_batched(&self) -> bool {
        !self.sizes.is_empty()
    }

    /// The maximum number of rows per call.
    pub fn batch_size(&self) -> usize {
        self.sizes.last().copied().unwrap_or(1)
    }

    /// The number of rows to which a batch of `rows` is padded: the smallest batch size that fits it, or a power of two
    /// if that size is above [`CHEAP_BATCH`] and at least half of it would be padding.
    pub(super) fn padded_size(&self, rows: usize) -> usize {
        padded_batch_size(&self.sizes, rows)
    }
}

/// Up to this batch size, padding costs less than the preparation of regions for a further batch size.
const CHEAP_BATCH: usize = 64;

fn padded_batch_size(sizes: &[usize], rows: usize) -> usize {
    let size = sizes.iter().copied().find(|&size| size >= rows).unwrap_or(rows);
    let is_static = sizes.len() == 1;
    if is_static || size <= CHEAP_BATCH || size / 2 < rows {
        return size;
    }
    rows.next_power_of_two().max(CHEAP_BATCH)
}

fn tensor_spec(index: usize, info: &TensorInfo, name: Option<String>) -> Spec {
    Spec {
        index,
        name,
        dtype: info.meta.dtype(),
        row: info.meta.sizes().to_vec(),
        is_dynamic: info.meta.dynamism() != ShapeDynamism::Static,
    }
}

/// Batch sizes in ascending order: `most`, its half, its quarter, …, at most [`MAX_BATCH_SIZES`] of them.
fn batch_sizes(most: usize) -> Vec<usize> {
    let halves = std::iter::successors(Some(most), |&n| (n > 1).then_some(n.div_ceil(2)));
    let mut sizes: Vec<_> = halves.take(MAX_BATCH_SIZES).collect();
    sizes.reverse();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_follows_the_number_of_rows() {
        let sizes = batch_sizes(100_000);
        let found: Vec<usize> =
            [1, 70, 6000, 7000, 12_500, 12_501].map(|rows| padded_batch_size(&sizes, rows)).into();
        assert_eq!(found, [64, 128, 8192, 12_500, 12_500, 25_000]);
        assert_eq!([1, 5, 40, 256].map(|rows| padded_batch_size(&batch_sizes(256), rows)), [32, 32, 64, 256]);
        assert_eq!(padded_batch_size(&[1000], 1), 1000);
        assert_eq!(padded_batch_size(&batch_sizes(1), 1), 1);
    }

    #[test]
    fn batch_sizes_halve_down_to_four_sizes() {
        assert_eq!(batch_sizes(8), [1, 2, 4, 8]);
        assert_eq!(batch_sizes(9), [2, 3, 5, 9]);
        assert_eq!(batch_sizes(1), [1]);
    }
}
