//! Static quantization of values to int8, by calibrated ranges.

use super::layers::{quantize_by_channel, weight_axis};
use super::{
    FloatNode, Outcome, StaticScheme, ValueObservation, ValueRanges, add_derived_constant, equalize, floats,
    push_node, range_args, static_spec, unquantized_node,
};
use crate::{Error, Result};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, TensorSpec, VarId};
use pteron_tensor::ScalarType;
use std::collections::{BTreeSet, HashMap, HashSet};

/// The smallest scale of a value.
const LEAST_SCALE: f32 = 1.0 / (1 << 24) as f32;

/// How a node takes part in quantization.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Computes on quantized values. If a clamp follows (`bounded`), the clamp's result is quantized instead of the
    /// node's.
    Computes { bounded: bool },
    /// The node clamps the result of a node that computes.
    Bounds,
    /// The result consists of elements of the node's operands and has their scale.
    Moves,
    /// The node is not quantized.
    Left,
}

impl Role {
    pub(super) fn computes(self) -> bool {
        matches!(self, Self::Computes { .. })
    }
}

/// Which nodes and values are quantized.
pub(super) struct Plan {
    pub(super) roles: Vec<Role>,
    /// The quantized values, in the order in which they are defined.
    pub(super) values: Vec<VarId>,
    /// The quantized values that are results of quantized nodes.
    results: HashSet<VarId>,
    /// Union-find links between values that share a scale.
    groups: HashMap<VarId, VarId>,
}

impl Plan {
    pub(super) fn from_program(program: &ExportedProgram, keep: &HashSet<VarId>) -> Self {
        let uses = program.use_counts();
        let mut plan =
            Self { roles: Vec::new(), values: Vec::new(), results: HashSet::new(), groups: HashMap::new() };
        let mut quantized: BTreeSet<VarId> = BTreeSet::new();
        let mut bounds_next: HashSet<VarId> = HashSet::new();
        let mut user: HashMap<VarId, &ExportedNode> = HashMap::new();
        for node in &program.graph.nodes {
            user.extend(node.operands().map(|var| (var, node)));
        }
        let sole_user = |var: VarId| user.get(&var).copied().filter(|_| uses[var.index()] == 1);
        for node in &program.graph.nodes {
            let operands = activations(program, node);
            let out = node.outputs.first().copied();
            let role = match (out, &operands) {
                (Some(out), Some(operands)) if is_quantizable(program, node) && !keep.contains(&out) => {
                    let bounded = sole_user(out).is_some_and(is_clamp);
                    if bounded {
                        bounds_next.insert(out);
                    }
                    quantized.extend(operands);
                    Role::Computes { bounded }
                }
                (Some(_), Some(operands)) if operands.iter().any(|var| bounds_next.contains(var)) => {
                    Role::Bounds
                }
                (Some(_), Some(operands))
                    if preserves_scale(node) && operands.iter().all(|v| plan.results.contains(v)) =>
                {
                    Role::Moves
                }
                _ => Role::Left,
            };
            if let (Some(out), Role::Computes { bounded: false } | Role::Bounds | Role::Moves) = (out, role) {
                quantized.insert(out);
                plan.results.insert(out);
                if let (Role::Moves, Some(operands)) = (role, operands) {
                    operands.into_iter().for_each(|operand| plan.join_groups(out, operand));
                }
            }
            plan.roles.push(role);
        }
        plan.values = quantized.into_iter().collect();
        plan
    }

    /// The products and convolutions that are not quantized, each with the reason.
    fn unquantized_nodes(&self, program: &ExportedProgram, keep: &HashSet<VarId>) -> Vec<FloatNode> {
        let nodes = program.graph.nodes.iter().zip(&self.roles).filter(|(_, role)| **role == Role::Left);
        nodes.filter_map(|(node, _)| unquantized_node(program, node, None, keep)).collect()
    }

    fn group_root(&self, mut var: VarId) -> VarId {
        while let Some(&next) = self.groups.get(&var).filter(|next| **next != var) {
            var = next;
        }
        var
    }

    fn join_groups(&mut self, a: VarId, b: VarId) {
        let (a, b) = (self.group_root(a), self.group_root(b));
        if a != b {
            self.groups.insert(a, b);
        }
    }
}

/// The operands of a node that are not constants, if they and the result are float32.
fn activations(program: &ExportedProgram, node: &ExportedNode) -> Option<Vec<VarId>> {
    let is_float = |var: VarId| program.spec(var).is_some_and(|spec| spec.dtype == ScalarType::Float);
    let operands: Vec<VarId> = node.operands().filter(|var| !program.constants.contains_key(var)).collect();
    let outputs_fit = node.outputs.first().is_some_and(|&out| is_float(out));
    (outputs_fit && !operands.is_empty() && operands.iter().all(|&var| is_float(var))).then_some(operands)
}

/// Whether XNNPACK's quantizer annotates the node with observers.
fn is_quantizable(program: &ExportedProgram, node: &ExportedNode) -> bool {
    let is_tensor = |name: &str| {
        let var = node.arg(name).and_then(Argument::var);
        var.is_some_and(|var| !program.constants.contains_key(&var))
    };
    match &*node.target {
        "aten.linear.default" | "aten.convolution.default" => weight_axis(program, node).is_some(),
        "aten.add.Tensor" | "aten.mul.Tensor" => {
            is_tensor("self")
                && is_tensor("other")
                && !matches!(node.arg("alpha"), Some(Argument::Int(a)) if *a != 1)
        }
        "aten.mean.dim" => matches!(node.arg("keepdim"), Some(Argument::Bool(true))),
        _ => false,
    }
}

fn is_clamp(node: &ExportedNode) -> bool {
    matches!(&*node.target, "aten.relu.default" | "aten.hardtanh.default" | "aten.clamp.default")
}

/// Whether a node's results have the scale of its operands.
fn preserves_scale(node: &ExportedNode) -> bool {
    is_clamp(node)
        || matches!(
            &*node.target,
            "aten.view.default"
                | "aten.permute.default"
                | "aten.cat.default"
                | "aten.max_pool2d_with_indices.default"
                | "aten.slice.Tensor"
                | "dim_order_ops._to_dim_order_copy.default"
        )
}

/// Appends the values whose ranges are to be calibrated to the program's outputs.
pub(super) fn observe(program: &mut ExportedProgram, keep: &HashSet<VarId>) -> Outcome {
    let plan = Plan::from_program(program, keep);
    program.graph.outputs.extend(plan.values.iter().map(|&var| Argument::Var(var)));
    program.out_spec = None;
    let channels = equalize::value_channels(program);
    let observed = plan.values.iter().map(|var| ValueObservation {
        name: program.var(*var).name.to_string(),
        channels: channels.get(var).copied(),
        input: None,
    });
    let observed = observed.collect();
    Outcome {
        observed,
        left: plan.unquantized_nodes(program, keep),
        values: plan.values.len(),
        ..Outcome::default()
    }
}

pub(super) fn quantize(
    program: &mut ExportedProgram,
    scheme: &StaticScheme,
    keep: &HashSet<VarId>,
) -> Result<Outcome> {
    let plan = Plan::from_program(program, keep);
    let affine = affine_parameters(program, &plan, &scheme.ranges)?;
    let (left, values) = (plan.unquantized_nodes(program, keep), plan.values.len());
    let mut outcome = Outcome { left, values, ..Outcome::default() };
    let old = std::mem::take(&mut program.graph.nodes);
    let mut nodes = Vec::with_capacity(old.len());
    // The dequantized value that replaces each value as an operand of quantized nodes, and of all nodes if a quantized
    // node defines the value.
    let mut dequantized: HashMap<VarId, VarId> = HashMap::new();
    for (mut node, role) in old.into_iter().zip(&plan.roles) {
        for var in node.operands().collect::<Vec<_>>() {
            let wanted = matches!(role, Role::Computes { .. } | Role::Moves);
            if let Some(&(scale, zero)) =
                affine.get(&var).filter(|_| wanted && !dequantized.contains_key(&var))
            {
                let new = quantize_dequantize(program, &mut nodes, &node, var, (scale, zero));
                dequantized.insert(var, new);
            }
        }
        let mut read = |var: VarId| match dequantized.get(&var) {
            Some(&real) if *role != Role::Left || plan.results.contains(&var) => real,
            _ => var,
        };
        for (_, arg) in &mut node.args {
            arg.map_vars(&mut read);
        }
        if matches!(role, Role::Computes { .. }) {
            outcome.nodes.push(program.node_name(&node));
        }
        if let (Role::Computes { .. }, Some((weight, axis))) = (role, weight_axis(program, &node)) {
            let found = quantize_by_channel(program, &mut nodes, &node, weight, axis);
            if let Some((real, layer)) = found {
                outcome.layers.push(layer);
                for (name, arg) in &mut node.args {
                    if &**name == "weight" {
                        *arg = Argument::Var(real);
                    }
                }
            }
            if let Some(summands) = scheme.corrections.get(&program.node_name(&node)) {
                correct_bias(program, &mut node, summands);
            }
        }
        let out = node.outputs.first().copied().filter(|out| plan.results.contains(out));
        nodes.push(node);
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
    let affine = |(low, high): (f32, f32)| {
        let scale = ((high - low) / 255.0).max(LEAST_SCALE);
        let zero = (-128.0 - (low / scale).round_ties_even()).clamp(-128.0, 127.0);
        (scale, zero as i32)
    };
    Ok(plan.values.iter().map(|&var| (var, affine(shared[&plan.group_root(var)]))).collect())
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
