//! Static quantization of values to int8, by calibrated ranges.

use super::layers::{layer_summary, quantize_by_channel, weight_axis};
use super::plan::{Plan, Role};
use super::{
    FirstOperands, Outcome, StaticScheme, ValueObservation, ValueRanges, add_derived_constant, dynamic,
    equalize, floats, push_node, range_args, replace_argument, shape, static_spec,
};
use crate::{Error, Result};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, TensorSpec, VarId};
use pteron_tensor::ScalarType;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The smallest scale of a value.
const LEAST_SCALE: f32 = 1.0 / (1 << 24) as f32;

/// Appends the values whose ranges are to be calibrated, and the inputs of the layers, to the program's outputs.
pub(super) fn observe(program: &mut ExportedProgram, keep: &HashSet<VarId>) -> Outcome {
    let plan = Plan::from_program(program, keep, FirstOperands::Calibrated);
    let layers = program.graph.nodes.iter().zip(&plan.roles).filter(|(_, role)| role.computes());
    let observed_layers: Vec<_> =
        layers.clone().filter_map(|(node, _)| shape::observe(program, node)).collect();
    let mut values: BTreeSet<VarId> = plan.values.iter().copied().collect();
    let dynamic = layers.filter(|(_, role)| **role == Role::Dynamic);
    values.extend(dynamic.filter_map(|(node, _)| node.arg("input")?.var()));
    program.graph.outputs.extend(values.iter().map(|&var| Argument::Var(var)));
    program.out_spec = None;
    let channels = equalize::value_channels(program);
    let observed = values.iter().map(|var| ValueObservation {
        name: program.var(*var).name.to_string(),
        channels: channels.get(var).copied(),
        input: None,
    });
    let observed = observed.collect();
    Outcome {
        observed,
        observed_layers,
        left: plan.unquantized_nodes(program, keep),
        values: values.len(),
        ..Outcome::default()
    }
}

pub(super) fn quantize(
    program: &mut ExportedProgram,
    scheme: &StaticScheme,
    keep: &HashSet<VarId>,
    first: FirstOperands,
) -> Result<Outcome> {
    let plan = Plan::from_program(program, keep, first);
    let affine = affine_parameters(program, &plan, &scheme.ranges)?;
    let (left, values) = (plan.unquantized_nodes(program, keep), plan.values.len());
    let mut outcome = Outcome { left, values, ..Outcome::default() };
    let old = std::mem::take(&mut program.graph.nodes);
    let mut nodes = Vec::with_capacity(old.len());
    // The dequantized value that replaces each value as an operand of quantized nodes, and of all nodes if a quantized
    // node defines the value.
    let mut dequantized: HashMap<VarId, VarId> = HashMap::new();
    let mut known = dynamic::Known::new();
    for (mut node, role) in old.into_iter().zip(&plan.roles) {
        let by_row = match role {
            Role::Multiplies => node.arg("self").and_then(Argument::var).filter(|x| !affine.contains_key(x)),
            _ => None,
        };
        for var in node.operands().collect::<Vec<_>>() {
            let wanted = matches!(role, Role::Computes { .. } | Role::Moves | Role::Multiplies);
            if let Some(&(scale, zero)) =
                affine.get(&var).filter(|_| wanted && !dequantized.contains_key(&var))
            {
                let new = quantize_dequantize(program, &mut nodes, &node, var, (scale, zero));
                dequantized.insert(var, new);
            }
        }
        let mut read = |var: VarId| match dequantized.get(&var) {
            Some(&real) if !matches!(role, Role::Left | Role::Dynamic) || plan.results.contains(&var) => real,
            _ => var,
        };
        for (_, arg) in &mut node.args {
            arg.map_vars(&mut read);
        }
        let row_convolution = match role {
            Role::Dynamic if *node.target == *"aten.convolution.default" => {
                dynamic::RowConvolution::of(program, &node)
            }
            _ => None,
        };
        let row_convolution =
            row_convolution.filter(|rows| rows.widen_operands(program, &mut nodes, &mut node).is_some());
        if let (Role::Dynamic, Some(x)) = (role, node.arg("input").and_then(Argument::var)) {
            let found = dynamic::quantize_input(program, &mut nodes, &node, x, &mut known);
            replace_argument(&mut node, "input", found.unwrap_or(x));
        }
        if role.computes() {
            outcome.nodes.push(program.node_name(&node));
        }
        if let Some((x, spec)) = by_row.and_then(|x| Some((x, program.spec(x)?.clone()))) {
            let found = dynamic::quantize_by_row(program, &mut nodes, &node, x, &spec);
            replace_argument(&mut node, "self", found);
        }
        if *role == Role::Multiplies {
            outcome.layers.push(layer_summary(program, &node, 0.0));
        }
        if let (true, Some((weight, axis))) = (role.computes(), weight_axis(program, &node)) {
            let given = scheme.weights.get(&program.node_name(&node)).map(|given| &**given);
            let found = quantize_by_channel(program, &mut nodes, &node, weight, axis, given);
            if let Some((real, layer)) = found {
                outcome.layers.push(layer);
                replace_argument(&mut node, "weight", real);
            }
            if let Some(summands) = scheme.corrections.get(&program.node_name(&node)) {
                correct_bias(program, &mut node, summands);
            }
        }
        let out = node.outputs.first().copied().filter(|out| plan.results.contains(out));
        let rows = row_convolution.and_then(|rows| rows.widen_result(program, &mut node));
        nodes.push(node);
        nodes.extend(rows);
        if let Some((out, &parameters)) = out.and_then(|out| Some((out, affine.get(&out)?))) {
            let node = nodes[nodes.len() - 1].clone();
            let new = quantize_dequantize(program, &mut nodes, &node, out, parameters);
            dequantized.insert(out, new);
        }
    }
    program.graph.nodes = nodes;
    let read =
        |var: VarId| dequantized.get(&var).copied().filter(|_| plan.results.contains(&var)).unwrap_or(var);
    for output in &mut program.graph.outputs {
        output.map_vars(&mut |var| read(var));
    }
    program.mutations.iter_mut().for_each(|mutation| mutation.value = read(mutation.value));
    Ok(outcome)
}

/// Adds `summands`, one for each channel, to the bias of a layer.
fn correct_bias(program: &mut ExportedProgram, node: &mut ExportedNode, summands: &[f32]) {
    let (bias, weight) =
        (node.arg("bias").and_then(Argument::var), node.arg("weight").and_then(Argument::var));
    let old = match bias {
        Some(bias) => floats(program, bias),
        None => Some(vec![0.0; summands.len()]),
    };
    let (Some(old), Some(like)) = (old.filter(|old| old.len() == summands.len()), bias.or(weight)) else {
        return;
    };
    let bytes = old.iter().zip(summands).flat_map(|(x, summand)| (x + summand).to_le_bytes()).collect();
    let bias =
        add_derived_constant(program, like, "corrected", static_spec(ScalarType::Float, &[old.len()]), bytes);
    match node.args.iter_mut().find(|(name, _)| **name == *"bias") {
        Some((_, arg)) => *arg = Argument::Var(bias),
        None => node.args.push(("bias".into(), Argument::Var(bias))),
    }
}

/// Scale and zero point of each value, from the combined range of all values that share them.
pub(super) fn affine_parameters(
    program: &ExportedProgram,
    plan: &Plan,
    ranges: &ValueRanges,
) -> Result<HashMap<VarId, (f32, i32)>> {
    let mut shared: HashMap<VarId, (f32, f32)> = HashMap::new();
    for &var in &plan.values {
        let name = &*program.var(var).name;
        let Some(&(low, high)) = ranges.get(name).filter(|(low, high)| low.is_finite() && high.is_finite())
        else {
            return Err(Error::Option(format!("the calibration has found no range of `{name}`")));
        };
        let range = shared.entry(plan.group_root(var)).or_insert((0.0, 0.0));
        *range = (range.0.min(low), range.1.max(high));
    }
    let symmetric = plan.symmetric_groups();
    let affine = |root: VarId| {
        let (low, high) = shared[&root];
        if symmetric.contains(&root) {
            return ((high.max(-low) / 127.0).max(LEAST_SCALE), 0);
        }
        let scale = ((high - low) / 255.0).max(LEAST_SCALE);
        let zero = (-128.0 - (low / scale).round_ties_even()).clamp(-128.0, 127.0);
        (scale, zero as i32)
    };
    Ok(plan.values.iter().map(|&var| (var, affine(plan.group_root(var)))).collect())
}

/// Quantizes a value to int8 and dequantizes it again.
pub(super) fn quantize_dequantize(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    var: VarId,
    (scale, zero): (f32, i32),
) -> VarId {
    let Some(spec) = program.spec(var).cloned() else { return var };
    let with = |var: VarId| {
        let parameters = [
            ("input", Argument::Var(var)),
            ("scale", Argument::Float(f64::from(scale))),
            ("zero_point", Argument::Int(i64::from(zero))),
        ];
        parameters.into_iter().chain(range_args(-128, 127)).collect::<Vec<_>>()
    };
    let bytes = TensorSpec { dtype: ScalarType::Char, ..spec.clone() };
    let target = "quantized_decomposed.quantize_per_tensor.default";
    let values = push_node(program, nodes, &node.source, target, with(var), vec![bytes])[0];
    let target = "quantized_decomposed.dequantize_per_tensor.default";
    push_node(program, nodes, &node.source, target, with(values), vec![spec])[0]
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_exported::parse;

    #[test]
    fn the_second_operand_of_a_product_is_symmetric() {
        let text = "forward:
  input %x: float32[2, 3]
  input %y: float32[3, 4]
  %p: float32[2, 4] = aten.mm.default(self=%x, mat2=%y)
  return %p
";
        let ranges = [("x", (0.0, 2.55)), ("y", (-1.27, 0.5))];
        let ranges = ranges.map(|(name, range)| (name.to_owned(), range)).into();
        let scheme = StaticScheme { ranges, ..StaticScheme::default() };
        for (first, nodes) in [(FirstOperands::Calibrated, 5), (FirstOperands::ByRow, 6)] {
            let mut program = parse(text).unwrap();
            let outcome = quantize(&mut program, &scheme, &HashSet::new(), first).unwrap();
            program.verify().unwrap();
            let [layer] = &outcome.layers[..] else { panic!("{outcome:?}") };
            assert_eq!((layer.name.as_str(), layer.weights, layer.multiplications), ("p", 0, 24));
            assert_eq!(program.graph.nodes.len(), nodes);
            let zeros: Vec<_> = program
                .graph
                .nodes
                .iter()
                .filter(|node| node.target.starts_with("quantized_decomposed.quantize_per_tensor"))
                .map(|node| node.arg("zero_point").cloned())
                .collect();
            let all = [Some(Argument::Int(-128)), Some(Argument::Int(0))];
            assert_eq!(zeros, all[2 - zeros.len()..]);
        }
    }
}
