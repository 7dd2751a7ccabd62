//! The metadata of a model's inputs and outputs, which clients can request.

use crate::datatype;
use crate::refusal::{Reason, Refusal, Result};
use crate::repository::Config;
use pteron::tensor::ShapeDynamism;
use pteron::{EValue, MethodMeta, ScalarType, Tag, ValueMeta};

/// The description of an input or output: a tensor, or for an output perhaps a scalar.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// The name that `pteron.json` gives it, or else the name in the program, or else `input_0`, `output_0` and so on.
    pub name: String,
    /// The type of the elements.
    pub dtype: ScalarType,
    /// The sizes of the tensor; upper bounds of them if `is_dynamic`.
    pub bounds: Vec<usize>,
    /// Whether `bounds` are upper bounds of the sizes rather than the sizes.
    pub is_dynamic: bool,
}

impl TensorSpec {
    /// The sizes as the protocol represents them: -1 for dynamic ones. A program says whether a tensor has dynamic
    /// sizes, but not which: all bounds above 1 count as dynamic.
    pub fn shape(&self) -> Vec<i64> {
        let size = |&bound: &usize| match self.is_dynamic && bound > 1 {
            true => -1,
            false => i64::try_from(bound).unwrap_or(i64::MAX),
        };
        self.bounds.iter().map(size).collect()
    }

    /// Fails unless a tensor has the expected type and sizes. Returns its size in bytes.
    pub(crate) fn check(&self, dtype: ScalarType, sizes: &[usize]) -> Result<usize> {
        let wrong = |expected: String, actual: String| {
            Err(Refusal::invalid(format!("input `{}`: {expected} is expected, {actual} was sent", self.name)))
        };
        if dtype != self.dtype {
            let name = |dtype| datatype::name(dtype).unwrap_or("another type").to_owned();
            return wrong(name(self.dtype), name(dtype));
        }
        let fits =
            |(size, bound): (&usize, &usize)| if self.is_dynamic { size <= bound } else { size == bound };
        if sizes.len() != self.bounds.len() || !sizes.iter().zip(&self.bounds).all(fits) {
            let most = if self.is_dynamic { ", or less in each dimension" } else { "" };
            return wrong(format!("shape {:?}{most}", self.bounds), format!("{sizes:?}"));
        }
        // No overflow: the sizes are within the bounds, whose tensor fits in memory.
        Ok(sizes.iter().product::<usize>() * dtype.size())
    }
}

/// The inputs and outputs of a method.
#[derive(Debug, Clone)]
pub(crate) struct Signature {
    /// The inputs that clients send, each with its position among the method's inputs.
    pub(crate) inputs: Vec<(usize, TensorSpec)>,
    /// The inputs whose values the exporter fixed, each with its position among the method's inputs.
    pub(crate) fixed: Vec<(usize, EValue)>,
    pub(crate) outputs: Vec<TensorSpec>,
}

impl Signature {
    /// Reads the signature of a method. Names in the model's configuration have precedence.
    pub(crate) fn new(meta: &MethodMeta<'_>, config: &Config) -> Result<Self> {
        let names = meta.value_names().map_err(Refusal::from_load_error)?;
        let (mut inputs, mut fixed) = (Vec::new(), Vec::new());
        for ((i, value), name) in meta.inputs().into_iter().enumerate().zip(names.inputs) {
            match (&value.tensor, &value.traced) {
                (Some(_), _) => inputs.push((i, tensor_spec(&value, name, "input", i)?)),
                (None, Some(traced)) => fixed.push((i, traced.clone())),
                (None, None) if value.tag == Tag::None => fixed.push((i, EValue::None)),
                (None, None) => return Err(no_tensor_error("input", i, value.tag)),
            }
        }
        let outputs = meta.outputs();
        let outputs = outputs.iter().zip(names.outputs).enumerate();
        let outputs = outputs.map(|(i, (value, name))| tensor_spec(value, name, "output", i));
        let mut outputs: Vec<_> = outputs.collect::<Result<_>>()?;
        rename_tensors(inputs.iter_mut().map(|(_, spec)| spec).collect(), &config.inputs, "input")?;
        rename_tensors(outputs.iter_mut().collect(), &config.outputs, "output")?;
        Ok(Self { inputs, fixed, outputs })
    }
}

fn tensor_spec(value: &ValueMeta, name: Option<String>, what: &str, index: usize) -> Result<TensorSpec> {
    let name = name.unwrap_or_else(|| format!("{what}_{index}"));
    let Some(tensor) = &value.tensor else {
        let dtype = match value.tag {
            Tag::Int => ScalarType::Long,
            Tag::Double => ScalarType::Double,
            Tag::Bool => ScalarType::Bool,
            tag => return Err(no_tensor_error(what, index, tag)),
        };
        return Ok(TensorSpec { name, dtype, bounds: vec![1], is_dynamic: false });
    };
    let dtype = tensor.meta.dtype();
    if datatype::name(dtype).is_none() {
        return Err(Refusal::new(
            Reason::Unsupported,
            format!("{what} {index} is a tensor of {}, for which the protocol has no type", dtype.name()),
        ));
    }
    Ok(TensorSpec {
        name,
        dtype,
        bounds: tensor.meta.sizes().to_vec(),
        is_dynamic: tensor.meta.dynamism() != ShapeDynamism::Static,
    })
}

fn no_tensor_error(what: &str, index: usize, tag: Tag) -> Refusal {
    Refusal::new(Reason::Unsupported, format!("{what} {index} is {tag}, for which the protocol has no type"))
}

/// Gives tensors the names that a configuration lists. A tensor `N` with the name of an earlier one is renamed to `input_N` or `output_N`
/// (`what` is `input` or `output`).
fn rename_tensors(mut specs: Vec<&mut TensorSpec>, names: &[String], what: &str) -> Result<()> {
    if !names.is_empty() && names.len() != specs.len() {
        return Err(Refusal::invalid(format!(
            "pteron.json names {} {what}s, the method has {}",
            names.len(),
            specs.len()
        )));
    }
    for (spec, name) in specs.iter_mut().zip(names) {
        spec.name.clone_from(name);
    }
    let mut seen = std::collections::BTreeSet::new();
    for (i, spec) in specs.iter_mut().enumerate() {
        if !seen.insert(spec.name.clone()) {
            spec.name = format!("{what}_{i}");
            if !seen.insert(spec.name.clone()) {
                return Err(Refusal::invalid(format!("two {what}s have the name `{}`", spec.name)));
            }
        }
    }
    Ok(())
}
