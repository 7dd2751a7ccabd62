//! The errors of single layers: each convolution and linear layer is computed a second time with quantized weights and
//! quantized input, from inputs that are computed in float.

use super::equalize::result_channels;
use super::layers::{quantize_by_channel, weight_axis};
use super::plan::{Plan, Role};
use super::values::{affine_parameters, quantize_dequantize};
use super::{FirstOperands, Outcome, StaticScheme, ValueObservation, dynamic, replace_argument};
use crate::Result;
use pteron_exported::{Argument, ExportedProgram, VarId, VarType};
use std::collections::{HashMap, HashSet};

/// Appends the result of each layer, and of its quantized form, to the outputs.
pub(super) fn observe(
    program: &mut ExportedProgram,
    scheme: &StaticScheme,
    keep: &HashSet<VarId>,
) -> Result<Outcome> {
    let plan = Plan::from_program(program, keep, FirstOperands::Calibrated);
    let affine = affine_parameters(program, &plan, &scheme.ranges)?;
    let mut outcome = Outcome::default();
    let old = std::mem::take(&mut program.graph.nodes);
    let mut nodes = Vec::with_capacity(old.len());
    let mut inputs: HashMap<VarId, VarId> = HashMap::new();
    let mut known = dynamic::Known::new();
    let mut appended = Vec::new();
    for (node, role) in old.into_iter().zip(&plan.roles) {
        nodes.push(node.clone());
        let (Some(&out), Some(x)) = (node.outputs.first(), node.arg("input").and_then(Argument::var)) else {
            continue;
        };
        let Some((weight, axis)) = weight_axis(program, &node).filter(|_| role.computes()) else { continue };
        let Some(spec) = program.spec(out).cloned() else { continue };
        let Some(channels) = result_channels(program, &node) else { continue };
        let rounded = match (role, affine.get(&x), inputs.get(&x)) {
            (Role::Dynamic, ..) => dynamic::quantize_input(program, &mut nodes, &node, x, &mut known),
            (_, Some(_), Some(&rounded)) => Some(rounded),
            (_, Some(&parameters), None) => {
                let rounded = quantize_dequantize(program, &mut nodes, &node, x, parameters);
                inputs.insert(x, rounded);
                Some(rounded)
            }
            _ => None,
        };
        let Some(rounded) = rounded else { continue };
        let given = scheme.weights.get(&program.node_name(&node)).map(|given| &**given);
        let found = quantize_by_channel(program, &mut nodes, &node, weight, axis, given);
        let Some((weights, layer)) = found else { continue };
        let mut twin = node.clone();
        replace_argument(&mut twin, "input", rounded);
        replace_argument(&mut twin, "weight", weights);
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
    outcome.values = plan.values.len() + outcome.observed.len();
    Ok(outcome)
}
