//! Which nodes and values static quantization quantizes, and which of them at run time.

use super::layers::weight_axis;
use super::{FloatNode, dynamic, unquantized_node};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, VarId};
use pteron_tensor::ScalarType;
use std::collections::{BTreeSet, HashMap, HashSet};

/// How [`Quantize::Static`](super::Quantize::Static) quantizes the first operand of a product of
/// two computed values, unless it is int8 already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FirstOperands {
    /// With a calibrated range.
    Calibrated,
    /// With a range for each row, which is found at run time.
    ByRow,
}

/// How a node takes part in quantization.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// Computes on quantized values. If a clamp follows (`bounded`), the clamp's result is quantized instead of its
    /// own.
    Computes { bounded: bool },
    /// A layer whose input is quantized with a range that is found at run time, and whose result is float.
    Dynamic,
    /// A product of two computed values. The second one is quantized with a calibrated, symmetric range, the first one as
    /// [`FirstOperands`] says. The result is float.
    Multiplies,
    /// The node clamps the result of a node that computes.
    Bounds,
    /// The result consists of elements of the node's operands and has their scale.
    Moves,
    /// The node is not quantized.
    Left,
}

impl Role {
    pub(super) fn computes(self) -> bool {
        matches!(self, Self::Computes { .. } | Self::Dynamic | Self::Multiplies)
    }
}

/// Which nodes and values are quantized.
///
/// Int8 values pay where they go from one quantized node to the next. A node that float values surround gains nothing from a calibrated
/// range: a layer's input is quantized at run time, and its result stays float; other nodes stay float. Products of two computed values
/// are the exception: what they save exceeds what it takes to quantize their operands.
#[derive(Default)]
pub(super) struct Plan {
    pub(super) roles: Vec<Role>,
    /// The values quantized with calibrated ranges, in the order in which they are defined.
    pub(super) values: Vec<VarId>,
    /// Those of them that are results of quantized nodes.
    pub(super) results: HashSet<VarId>,
    /// Those whose zero point is 0, so that a product with them needs no sums of rows.
    symmetric: HashSet<VarId>,
    /// Union-find links between values that share a scale.
    groups: HashMap<VarId, VarId>,
}

/// The nodes that were found to gain nothing from calibrated ranges, by index.
#[derive(Default)]
struct Exempt {
    float: HashSet<usize>,
    dynamic: HashSet<usize>,
}

impl Plan {
    pub(super) fn from_program(
        program: &ExportedProgram,
        keep: &HashSet<VarId>,
        first: FirstOperands,
    ) -> Self {
        let mut exempt = Exempt::default();
        loop {
            let plan = Self::with_exempt(program, keep, first, &exempt);
            let before = exempt.float.len() + exempt.dynamic.len();
            plan.exempt_among_floats(program, &mut exempt);
            if exempt.float.len() + exempt.dynamic.len() == before {
                return plan;
            }
        }
    }

    fn with_exempt(
        program: &ExportedProgram,
        keep: &HashSet<VarId>,
        first: FirstOperands,
        exempt: &Exempt,
    ) -> Self {
        let uses = program.use_counts();
        let mut plan = Self::default();
        let mut quantized: BTreeSet<VarId> = BTreeSet::new();
        let mut bounds_next: HashSet<VarId> = HashSet::new();
        let mut user: HashMap<VarId, &ExportedNode> = HashMap::new();
        for node in &program.graph.nodes {
            user.extend(node.operands().map(|var| (var, node)));
        }
        let sole_user = |var: VarId| user.get(&var).copied().filter(|_| uses[var.index()] == 1);
        for (index, node) in program.graph.nodes.iter().enumerate() {
            let operands = activations(program, node);
            let out = node.outputs.first().copied();
            let is_candidate = |out: VarId| {
                is_quantizable(program, node) && !keep.contains(&out) && !exempt.float.contains(&index)
            };
            let role = match (out, &operands) {
                (Some(out), Some(_)) if is_candidate(out) && exempt.dynamic.contains(&index) => Role::Dynamic,
                (Some(out), Some(operands)) if multiplies(node, operands) && !keep.contains(&out) => {
                    let second = node.arg("mat2").and_then(Argument::var);
                    let is_calibrated =
                        |var: &&VarId| first == FirstOperands::Calibrated || Some(**var) == second;
                    quantized.extend(operands.iter().filter(is_calibrated));
                    plan.symmetric.extend(second);
                    Role::Multiplies
                }
                (Some(out), Some(operands)) if is_candidate(out) => {
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

    /// Exempts the nodes that compute on quantized values without need.
    fn exempt_among_floats(&self, program: &ExportedProgram, exempt: &mut Exempt) {
        // The values that nodes read in int8, directly or after moves and clamps.
        let mut read: HashSet<VarId> = HashSet::new();
        for (index, (node, role)) in program.graph.nodes.iter().zip(&self.roles).enumerate().rev() {
            let is_read = node.outputs.first().is_some_and(|out| read.contains(out));
            let operands = || activations(program, node).unwrap_or_default();
            match role {
                Role::Computes { .. } => {
                    let is_layer = weight_axis(program, node).is_some();
                    let are_results = operands().iter().all(|var| self.results.contains(var));
                    if !(is_layer || is_read && are_results) {
                        exempt.float.insert(index);
                    } else if is_layer && !is_read && !are_results && dynamic::supports(program, node) {
                        exempt.dynamic.insert(index);
                    } else {
                        read.extend(operands());
                    }
                }
                Role::Bounds | Role::Moves if is_read => read.extend(operands()),
                _ => {}
            }
        }
    }

    /// The products and convolutions that are not quantized, each with the reason.
    pub(super) fn unquantized_nodes(
        &self,
        program: &ExportedProgram,
        keep: &HashSet<VarId>,
    ) -> Vec<FloatNode> {
        let nodes = program.graph.nodes.iter().zip(&self.roles).filter(|(_, role)| **role == Role::Left);
        nodes.filter_map(|(node, _)| unquantized_node(program, node, None, keep)).collect()
    }

    /// The values whose scale a product's second operand shares, by the root of their group.
    pub(super) fn symmetric_groups(&self) -> HashSet<VarId> {
        self.symmetric.iter().map(|&var| self.group_root(var)).collect()
    }

    pub(super) fn group_root(&self, mut var: VarId) -> VarId {
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

/// Whether a node multiplies two computed matrices, or batches of them.
fn multiplies(node: &ExportedNode, activations: &[VarId]) -> bool {
    matches!(&*node.target, "aten.mm.default" | "aten.bmm.default") && activations.len() == 2
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

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_exported::parse;

    fn roles(nodes: &str, outputs: &str) -> Vec<Role> {
        let text = format!(
            "forward:
  parameter %v: float32[2, 2] = [1.0, 2.0, 3.0, 4.0]
  parameter %w: float32[2, 2] = [1.0, 1.0, -1.0, 1.0]
  input %x: float32[1, 2]
  %h: float32[1, 2] = aten.linear.default(input=%x, weight=%v, bias=None)
{nodes}  return {outputs}
"
        );
        Plan::from_program(&parse(&text).unwrap(), &HashSet::new(), FirstOperands::ByRow).roles
    }

    const SECOND: &str = "  %y: float32[1, 2] = aten.linear.default(input=%r, weight=%w, bias=None)\n";

    #[test]
    fn a_layer_among_floats_finds_its_range_at_run_time() {
        assert_eq!(roles("", "%h"), [Role::Dynamic]);
        let nodes = format!("  %r: float32[1, 2] = aten.sigmoid.default(self=%h)\n{SECOND}");
        assert_eq!(roles(&nodes, "%y"), [Role::Dynamic, Role::Left, Role::Dynamic]);
    }

    #[test]
    fn layers_that_follow_each_other_have_calibrated_ranges() {
        let nodes = format!("  %r: float32[1, 2] = aten.relu.default(self=%h)\n{SECOND}");
        let computes = |bounded| Role::Computes { bounded };
        assert_eq!(roles(&nodes, "%y"), [computes(true), Role::Bounds, computes(false)]);
    }

    #[test]
    fn products_of_computed_values_quantize_their_operands() {
        let product = |other: &str| {
            format!(
                "  %t: float32[2, 1] = aten.permute.default(self=%x, dims=[1, 0])
  %p: float32[2, 2] = aten.mm.default(self=%t, mat2={other})
"
            )
        };
        assert_eq!(roles(&product("%h"), "%p"), [Role::Dynamic, Role::Left, Role::Multiplies]);
        let nodes = format!(
            "{}  %r: float32[2, 2] = aten.relu.default(self=%p)\n  %y: float32[2, 2] = aten.linear.default(input=%r, weight=%w, bias=None)\n",
            product("%h")
        );
        assert_eq!(
            roles(&nodes, "%y"),
            [Role::Dynamic, Role::Left, Role::Multiplies, Role::Left, Role::Dynamic]
        );
    }

    #[test]
    fn sums_are_quantized_between_quantized_values_only() {
        let sum = |other: &str| {
            format!(
                "  %s: float32[1, 2] = aten.add.Tensor(self=%h, other={other})\n  %r: float32[1, 2] = aten.relu.default(self=%s)\n{SECOND}"
            )
        };
        assert_eq!(roles(&sum("%x"), "%y"), [Role::Dynamic, Role::Left, Role::Left, Role::Dynamic]);
        let computes = |bounded| Role::Computes { bounded };
        assert_eq!(roles(&sum("%h"), "%y"), [computes(false), computes(true), Role::Bounds, computes(false)]);
    }
}
