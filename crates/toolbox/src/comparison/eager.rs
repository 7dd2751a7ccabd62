//! The comparison of a program with values that were computed elsewhere, such as by PyTorch in eager mode.

use super::align::Fingerprint;
use super::judge::Judge;
use super::layers::pair_layers;
use super::measure::elements;
use super::outputs::compare_outputs_with;
use super::record::{Recorded, RecordedLayer, Run, is_byte, operator_kind, record_layers};
use super::{Comparison, ComparisonOptions, Side};
use crate::{Error, Result};
use pteron_operator::EValue;
use pteron_tensor::{DimOrder, Tensor};
use pteron_trace::Place;

/// A value that a node of the eager model computed.
#[derive(Debug)]
pub struct EagerValue {
    /// The name of the node.
    pub node: String,
    /// The operator that the node calls, such as `aten.linear.default`.
    pub operator: String,
    /// The source line of the node, if it is known.
    pub source: Option<String>,
    /// The computed value.
    pub tensor: Tensor,
}

/// The values and outputs that a model computed in eager mode.
#[derive(Debug)]
pub struct Eager {
    /// The values of the nodes on the first sample, in execution order.
    pub values: Vec<EagerValue>,
    /// The outputs of the model for each sample.
    pub outputs: Vec<Vec<EValue>>,
}

/// Compares a program with an eager run, as [`compare_programs`](super::compare_programs) compares two programs.
///
/// # Errors
/// The program does not run on a sample, there are no samples or not as many in both, or the numbers of outputs differ.
pub fn compare_with_eager(
    eager: Eager,
    program: Side<'_>,
    samples: &[Vec<EValue>],
    options: &ComparisonOptions,
) -> Result<Comparison> {
    let (Some(first), true) = (samples.first(), samples.len() == eager.outputs.len()) else {
        return Err(Error::input("there are no inputs to compare with, or not as many as outputs"));
    };
    let method = match &options.method {
        Some(name) => name.clone(),
        None => crate::run::default_method(program.program)?,
    };
    let of_program = record_layers(program, &method, first, Run { no_prepare: true, is_second: true })?;
    let of_model = Recorded { layers: layers(eager.values)?, is_quantized: false };
    let judge = Judge::new(options, &of_model, &of_program);
    let mut outputs = eager.outputs;
    let take = |i: usize| Ok(std::mem::take(&mut outputs[i]));
    let outputs = compare_outputs_with(take, Vec::new(), program, &method, samples, &judge)?;
    let pairs = pair_layers(&of_model, &of_program, false);
    let unpaired = [of_model.layers.len() - pairs.len(), of_program.layers.len() - pairs.len()];
    let layers = judge.compare_layers(&of_model, &of_program, &pairs)?;
    let agree = outputs.iter().all(|output| output.difference.is_none());
    let first = if agree { None } else { layers.iter().position(|layer| layer.differs) };
    let samples = samples.len();
    Ok(Comparison {
        method,
        samples,
        min_sqnr: judge.min_sqnr,
        outputs,
        layers,
        unpaired,
        first,
        instruction: None,
        agree,
    })
}

/// The numeric, non-empty tensors among the values of nodes, with their fingerprints.
fn layers(values: Vec<EagerValue>) -> Result<Vec<RecordedLayer>> {
    let mut layers = Vec::new();
    for EagerValue { node, operator, source, tensor } in values {
        let tensor = tensor.to_dim_order(DimOrder::contiguous(tensor.rank()))?;
        let Some(elements) = elements(&tensor)?.filter(|elements| !elements.is_empty()) else { continue };
        let name = operator.split_once('.').map_or(&*operator, |(_, name)| name);
        let mut fingerprint = Fingerprint::new(operator_kind(name), source, tensor.sizes(), &elements);
        fingerprint.is_quantized = is_byte(tensor.dtype());
        let text = format!("{node} ({operator})");
        layers.push(RecordedLayer {
            place: Place::default(),
            output: 0,
            text,
            tensor,
            elements,
            fingerprint,
        });
    }
    Ok(layers)
}
