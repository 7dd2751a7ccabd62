//! Runs of a method and the values that it computes.

use super::Side;
use super::align::Fingerprint;
use super::measure::elements;
use crate::Result;
use crate::delegates::NodeKinds;
use crate::profile::{self, Value};
use crate::run::Request;
use pteron_operator::EValue;
use pteron_runtime::LoadOptions;
use pteron_tensor::{ScalarType, Tensor};
use pteron_trace::Place;
use std::collections::HashSet;

/// The values that a run computed.
pub(super) struct Recorded {
    pub(super) layers: Vec<RecordedLayer>,
    pub(super) is_quantized: bool,
}

pub(super) struct RecordedLayer {
    pub(super) place: Place,
    pub(super) output: usize,
    /// The step that computes the value, as text.
    pub(super) text: String,
    pub(super) tensor: Tensor,
    pub(super) elements: Vec<f64>,
    pub(super) fingerprint: Fingerprint,
}

impl Recorded {
    /// The precisions below f32 that values have: whether any value is quantized, and which half-precision types occur.
    pub(super) fn reduced_precisions(&self) -> (bool, HashSet<ScalarType>) {
        let halves = self.layers.iter().map(|layer| layer.tensor.dtype());
        let halves = halves.filter(|dtype| matches!(dtype, ScalarType::Half | ScalarType::BFloat16));
        (self.is_quantized, halves.collect())
    }
}

/// How a method runs when its values are recorded.
#[derive(Clone, Copy)]
pub(super) struct Run {
    pub(super) no_prepare: bool,
    /// Whether the recorded run follows a warm-up run, in which regions with dynamic shapes are lowered.
    pub(super) is_second: bool,
}

/// Runs a method, prepared or as written, and records the value of each instruction and of each node of its delegates.
pub(super) fn record_layers(side: Side<'_>, method: &str, inputs: &[EValue], run: Run) -> Result<Recorded> {
    let Side { program, options } = side;
    let values = inputs.iter().map(EValue::try_clone).collect::<Result<_, _>>()?;
    let request =
        Request { method: Some(method.to_owned()), values: Some(values), repeat: 1, ..Request::default() };
    let options = LoadOptions { no_prepare: run.no_prepare || options.no_prepare, ..options.clone() };
    let nodes = NodeKinds::read(program, method, &options.backends)?;
    let profile = profile::record(program, &request, true, run.is_second, options)?;
    profile.recording.expect_values()?;
    let values: Vec<Value> = profile.recording.blocks.into_iter().flat_map(|block| block.values).collect();
    let of_nodes: HashSet<_> =
        values.iter().filter(|v| v.place.node.is_some()).map(|v| instruction_index(v.place)).collect();
    let mut layers = Vec::new();
    for value in values {
        let is_output = value.place.chain.is_none();
        let is_of_nodes = value.place.node.is_none() && of_nodes.contains(&instruction_index(value.place));
        if is_output || is_of_nodes || value.tensor.numel() == 0 {
            continue;
        }
        let Some(elements) = elements(&value.tensor)? else { continue };
        let place = program.instruction_place(method, value.place)?;
        let (mut what, frame) = place.map(|place| (place.what, place.source_frame)).unwrap_or_default();
        if let Some(node) = nodes.text(value.place) {
            what += &format!(", {node}");
        }
        let source = nodes.source(value.place, &value.name).or(frame);
        let text = describe(&value, &what);
        let mut fingerprint =
            Fingerprint::new(operator_kind(&value.name), source, value.tensor.sizes(), &elements);
        fingerprint.is_quantized = is_byte(value.tensor.dtype());
        layers.push(RecordedLayer {
            place: value.place,
            output: value.output,
            text,
            tensor: value.tensor,
            elements,
            fingerprint,
        });
    }
    let is_quantized = nodes.has_quantized_values()
        || layers.iter().any(|layer| layer.fingerprint.is_quantized)
        || program.method_meta(method)?.operators().iter().any(|op| is_quantized_operator(&op.name));
    Ok(Recorded { layers, is_quantized })
}

fn instruction_index(place: Place) -> Option<(u32, u32)> {
    place.chain.zip(place.instruction)
}

pub(super) fn is_byte(dtype: ScalarType) -> bool {
    matches!(dtype, ScalarType::Char | ScalarType::Byte)
}

fn is_quantized_operator(name: &str) -> bool {
    ["quantized", "torchao::"].iter().any(|prefix| name.starts_with(prefix))
}

/// The kind of a step or operator: `add` for `aten::add.out`, `linear` for `quantized_linear`.
pub(super) fn operator_kind(name: &str) -> String {
    let name = name.rsplit("::").next().unwrap_or(name);
    let name = name.split('.').next().unwrap_or(name).trim_start_matches('_');
    name.strip_prefix("quantized_").unwrap_or(name).to_owned()
}

/// Describes a value, as in `linear, instruction 5 (aten::gelu.out)`: the name of what computed it, the instruction, and
/// `what`. Omits the name if `what` contains it.
fn describe(value: &Value, what: &str) -> String {
    let Some((chain, instruction)) = instruction_index(value.place) else { return what.to_owned() };
    let chain = if chain == 0 { String::new() } else { format!("{chain}:") };
    let step = match what.contains(&value.name) {
        true => String::new(),
        false => format!("{}, ", value.name),
    };
    format!("{step}instruction {chain}{instruction} ({what})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_operators_have_the_same_kind() {
        for (name, expected) in [
            ("aten::_softmax.out", "softmax"),
            ("quantized_linear", "linear"),
            ("aten::add.Scalar_out", "add"),
        ] {
            assert_eq!(operator_kind(name), expected);
        }
    }
}
