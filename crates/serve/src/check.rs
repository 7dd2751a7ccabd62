//! Checks of requests against the model that they are for.

use crate::execute::Inputs;
use crate::generation::Generation;
use crate::refusal::{Refusal, Result};
use crate::request::InputTensor;
use pteron::ScalarType;
use std::collections::BTreeSet;

/// The indices of the outputs called `names`, in that order; of all outputs if there are no names.
pub(crate) fn output_indices(generation: &Generation, names: &[String]) -> Result<Vec<usize>> {
    let outputs = generation.outputs();
    if names.is_empty() {
        return Ok((0..outputs.len()).collect());
    }
    if names.len() > outputs.len() {
        return Err(Refusal::invalid(format!(
            "{} outputs are asked for, the model has {}",
            names.len(),
            outputs.len()
        )));
    }
    let index = |name: &String| {
        outputs
            .iter()
            .position(|spec| spec.name == *name)
            .ok_or_else(|| no_tensor_error("output", name, outputs.iter().map(|s| &s.name)))
    };
    let indices: Vec<usize> = names.iter().map(index).collect::<Result<_>>()?;
    match indices.iter().collect::<BTreeSet<_>>().len() == indices.len() {
        true => Ok(indices),
        false => Err(Refusal::invalid("an output is asked for twice")),
    }
}

/// Checks the types, shapes and sizes of the inputs, and returns them in the model's order.
pub(crate) fn check_inputs(generation: &Generation, inputs: Vec<InputTensor>) -> Result<Inputs> {
    let specs = &generation.signature.inputs;
    if inputs.len() != specs.len() {
        return Err(Refusal::invalid(format!(
            "{} inputs were sent, the model has {}",
            inputs.len(),
            specs.len()
        )));
    }
    let mut by_position: Vec<Option<InputTensor>> = specs.iter().map(|_| None).collect();
    for input in inputs {
        let place = specs.iter().position(|(_, spec)| spec.name == input.name);
        let place =
            place.ok_or_else(|| no_tensor_error("input", &input.name, specs.iter().map(|(_, s)| &s.name)))?;
        let bytes = (*input.data).as_ref();
        let expected = specs[place].1.check(input.dtype, &input.shape)?;
        if bytes.len() != expected {
            let sent = bytes.len();
            return Err(Refusal::invalid(format!(
                "input `{}`: its shape takes {expected} bytes, {sent} were sent",
                input.name
            )));
        }
        if input.dtype == ScalarType::Bool && bytes.iter().any(|&byte| byte > 1) {
            return Err(Refusal::invalid(format!("input `{}`: a boolean is a byte 0 or 1", input.name)));
        }
        if by_position[place].is_some() {
            return Err(Refusal::invalid(format!("input `{}` was sent twice", input.name)));
        }
        by_position[place] = Some(input);
    }
    let (shapes, data) = by_position.into_iter().flatten().map(|input| (input.shape, input.data)).unzip();
    Ok(Inputs { shapes, data })
}

pub(crate) fn no_tensor_error<'a>(
    what: &str,
    name: &str,
    there: impl Iterator<Item = &'a String>,
) -> Refusal {
    let name: String = name.chars().take(128).collect();
    let there: Vec<_> = there.map(|name| format!("`{name}`")).take(16).collect();
    Refusal::invalid(format!("there is no {what} `{name}`; the model has {}", there.join(", ")))
}
