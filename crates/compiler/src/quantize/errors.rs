//! The errors of single layers: each convolution and linear layer is computed a second time with quantized weights and
//! quantized input, from inputs that are computed in float.

use super::equalize::result_channels;
use super::layers::{quantize_by_channel, weight_axis};
use super::values::{Plan, affine_parameters, quantize_dequantize};
use super::{Outcome, ValueObservation, ValueRanges};
use crate::Result;
use pteron_exported::{Argument, ExportedProgram, VarId, VarType};
use std::collections::{HashMap, HashSet};

/// Appends the result of each layer, and of its quantized form, to the outputs.
pub(super) fn observe(
    program: &mut ExportedProgram,
    ranges: &ValueRanges,
    keep: &HashSet<VarId>,
) -> Result<Outcome> {
    let plan = Plan::from_program(program, keep);
    let affine = affine_parameters(program, &plan, ranges)?;
    let mut outcome = Outcome { values: plan.values.len(), ..Outcome::default() };
    let old = std::mem::take(&mut program.graph.nodes);
    let mut nodes = Vec::with_capacity(old.len());
    let mut inputs: HashMap<VarId, VarId> = HashMap::new();
    let mut appended = Vec::new();
    for (node, role) in old.into_iter().zip(&plan.roles) {
        nodes.push(node.clone());
        let (Some(&out), Some(x)) = (node.outputs.first(), node.arg("input").and_then(Argument::var)) else {
            continue;
        };
        let Some((weight, axis)) = weight_axis(program, &node).filter(|_| role.computes()) else { continue };
        let (Some(spec), Some(&parameters)) = (program.spec(out).cloned(), affine.get(&x)) else { continue };
        let Some(channels) = result_channels(program, &node) else { continue };
        let rounded = match inputs.get(&x) {
            Some(&rounded) => rounded,
            None => quantize_dequantize(program, &mut nodes, &node, x, parameters),
        };
        inputs.insert(x, rounded);
        let Some((weights, layer)) = quantize_by_channel(program, &mut nodes, &node, weight, axis) else {
            continue;
        };
        let mut twin = node.clone();
        for (name, arg) in &mut twin.args {
            match &**name {
                "input" => *arg = Argument::Var(rounded),
                "weight" => *arg = Argument::Var(weights),
                _ => {}
            }
        }
        let name = format!("quantized_{}", program.num_vars());
        let of_twin = program.add_var(name, VarType::Tensor(spec));
        twin.outputs = vec![of_twin];
        nodes.push(twin);
        appended.extend([out, of_twin]);
        outcome.observed.push(ValueObservation {
            name: layer.name,
            channels: Some(channels),
            input: Some(program.var(x).name.to_string()),
        });
    }
    program.graph.nodes = nodes;
    program.graph.outputs.extend(appended.into_iter().map(Argument::Var));
    program.out_spec = None;
    Ok(outcome)
}
