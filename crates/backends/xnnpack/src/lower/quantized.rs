//! Recognizes quantization in programs: quantize and dequantize pairs around operators, dequantized weights, and
//! dynamic quantization with parameters chosen per row.
//!
//! An exported program has quantization as separate nodes: a quantized linear layer is a float layer whose operands
//! come from dequantize nodes. XNNPACK has one node for the whole group, so a group is matched from its layer or
//! convolution backwards, and its other nodes are fused:
//!
//! ```text
//! static   x int8 -> dequantize -> linear -> [clamp] -> quantize -> int8
//! dynamic  x float -> quantize -> dequantize -> linear -> float, with the scales of choose_qparams(x)
//! weights  w int8 -> dequantize -> [view of groups as rows] -> linear
//! ```

use super::call::{Call, Reason, floats, is_constant};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, VarId};
use pteron_tensor::ScalarType;
use std::collections::{HashMap, HashSet};

/// The scale and zero point of an int8 tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Affine {
    pub(super) scale: f32,
    pub(super) zero: i32,
}

/// Constant quantized weights.
pub(super) struct Weights {
    pub(super) elements: VarId,
    /// The scales: a single one, or one for each channel or group.
    pub(super) scales: Vec<f32>,
    pub(super) per: Per,
}

/// The granularity of weight scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Per {
    Tensor,
    /// One scale for each index of dimension `axis`, of 4-bit or 8-bit values.
    Channel {
        axis: usize,
        four_bits: bool,
    },
    /// One scale for each group of this many consecutive 4-bit values in a row.
    Group(usize),
}

/// The input of a quantized linear layer or convolution.
#[derive(Clone, Copy)]
pub(super) enum Activation {
    /// Quantized values with static scale and zero point.
    Static(VarId, Affine),
    /// A float value that is dynamically quantized per row.
    Dynamic(VarId),
}

/// A linear layer or a convolution that computes on quantized values.
pub(super) struct QuantizedOp {
    pub(super) activation: Activation,
    pub(super) weights: Weights,
}

/// The quantized values and operators of a program, as found by matching its nodes.
pub(super) struct QuantizationMap<'p> {
    program: &'p ExportedProgram,
    producers: HashMap<VarId, &'p ExportedNode>,
    users: HashMap<VarId, Vec<&'p ExportedNode>>,
    escaping: HashSet<VarId>,
    /// Quantized linear layers and convolutions, by their result.
    ops: HashMap<VarId, QuantizedOp>,
    /// From the result of each node that dequantizes weights to the result of the operator that uses it.
    op_of_weights: HashMap<VarId, VarId>,
    /// From the result of each dynamically quantized operator to the first results of the nodes that dynamically
    /// quantize its input.
    dynamic_nodes: HashMap<VarId, Vec<VarId>>,
    /// All values of the map `dynamic_nodes`: results of nodes that quantize dynamically.
    quantizing_nodes: HashSet<VarId>,
}

const PREFIX: &str = "quantized_decomposed.";

impl<'p> QuantizationMap<'p> {
    pub(super) fn of(program: &'p ExportedProgram) -> Self {
        let mut map = Self {
            program,
            producers: HashMap::new(),
            users: HashMap::new(),
            escaping: program.graph.outputs.iter().flat_map(Argument::vars).collect(),
            ops: HashMap::new(),
            op_of_weights: HashMap::new(),
            dynamic_nodes: HashMap::new(),
            quantizing_nodes: HashSet::new(),
        };
        map.escaping.extend(program.mutations.iter().map(|mutation| mutation.value));
        if !program.graph.nodes.iter().any(|node| node.target.starts_with(PREFIX)) {
            return map;
        }
        for node in &program.graph.nodes {
            map.producers.extend(node.outputs.iter().map(|&var| (var, node)));
            for operand in node.operands() {
                map.users.entry(operand).or_default().push(node);
            }
            // Uses in nested graphs are not analyzed, so these values escape.
            node.graphs().for_each(|inner| {
                inner.for_each_node(&mut |node| map.escaping.extend(node.operands()));
                map.escaping.extend(inner.outputs.iter().flat_map(Argument::vars));
            });
        }
        map.find_ops();
        map
    }

    fn find_ops(&mut self) {
        for node in &self.program.graph.nodes {
            let Some(&out) = node.outputs.first() else { continue };
            let Some((quantized, weight_nodes, chain)) = self.match_quantized_op(node) else { continue };
            self.op_of_weights.extend(weight_nodes.into_iter().map(|var| (var, out)));
            self.dynamic_nodes.insert(out, chain);
            self.ops.insert(out, quantized);
        }
        self.discard(Vec::new());
    }

    /// Drops the operators in `lost`, which the backend does not support, and all operators whose dynamic quantization has users besides
    /// the remaining operators. Kernels compute the dropped operators.
    pub(super) fn discard(&mut self, mut lost: Vec<VarId>) {
        // The nodes that quantize an input dynamically are fused into all layers that read it, so they may not have
        // any other user: their int8 values exist only inside of XNNPACK. Dropping a layer makes it such a user of the
        // nodes that it shares with others, so this repeats until nothing is dropped.
        loop {
            for out in lost {
                self.dynamic_nodes.remove(&out);
                self.ops.remove(&out);
                self.op_of_weights.retain(|_, op| *op != out);
            }
            self.quantizing_nodes = self.dynamic_nodes.values().flatten().copied().collect();
            let is_inside = |user: &&ExportedNode| {
                let out = user.outputs.first();
                out.is_some_and(|out| {
                    self.quantizing_nodes.contains(out) || self.dynamic_nodes.contains_key(out)
                })
            };
            let escapes = |first: &VarId| {
                let outputs = self.producers.get(first).map_or(&[][..], |node| &node.outputs);
                outputs.iter().any(|var| {
                    self.escaping.contains(var)
                        || self.users.get(var).is_some_and(|users| !users.iter().all(is_inside))
                })
            };
            let escaped = self.dynamic_nodes.iter().filter(|(_, chain)| chain.iter().any(escapes));
            lost = escaped.map(|(&out, _)| out).collect();
            if lost.is_empty() {
                return;
            }
        }
    }

    /// If a node is a quantized linear layer or convolution: the operator, the nodes that dequantize its weights, and
    /// those that dynamically quantize its input.
    fn match_quantized_op(&self, node: &ExportedNode) -> Option<(QuantizedOp, Vec<VarId>, Vec<VarId>)> {
        let is_linear = *node.target == *"aten.linear.default";
        if !is_linear && *node.target != *"aten.convolution.default" {
            return None;
        }
        let operand = |name: &str| node.arg(name).and_then(Argument::var);
        let (weights, weight_nodes) = self.match_weights(operand("weight")?)?;
        let x = operand("input")?;
        if let Some((int8, affine)) = self.dequantized_source(x) {
            let axis = usize::from(!is_linear && is_transposed(node));
            let fits = match weights.per {
                Per::Tensor => true,
                Per::Channel { axis: weight_axis, four_bits: false } => {
                    weight_axis == axis
                        && (axis == 0 || matches!(node.arg("groups"), None | Some(Argument::Int(1))))
                }
                _ => false,
            } && self.is_only_quantized(*node.outputs.first()?);
            let quantized = QuantizedOp { activation: Activation::Static(int8, affine), weights };
            return fits.then_some((quantized, weight_nodes, Vec::new()));
        }
        let fits = match is_linear {
            true => matches!(weights.per, Per::Channel { axis: 0, .. } | Per::Group(_)),
            false => self.takes_quantized_images(node, x, &weights),
        };
        let (rows, chain) = self.dynamic_source(x).filter(|_| fits)?;
        Some((QuantizedOp { activation: Activation::Dynamic(rows), weights }, weight_nodes, chain))
    }

    /// Whether XNNPACK supports a convolution with dynamically quantized input: a 2D convolution that is neither
    /// transposed nor depthwise, with per-channel 8-bit weights, whose input is quantized per tensor.
    fn takes_quantized_images(&self, node: &ExportedNode, x: VarId, weights: &Weights) -> bool {
        let per_tensor = "quantized_decomposed.dequantize_per_tensor.tensor";
        let is_per_tensor = self.producers.get(&x).is_some_and(|node| *node.target == *per_tensor);
        let sizes =
            node.arg("weight").and_then(Argument::var).and_then(|var| self.program.spec(var)?.known_sizes());
        let [_, inputs, _, _] = sizes.unwrap_or_default()[..] else { return false };
        let is_depthwise = inputs == 1 && !matches!(node.arg("groups"), None | Some(Argument::Int(1)));
        let per_channel = matches!(weights.per, Per::Channel { axis: 0, four_bits: false });
        is_per_tensor && per_channel && !is_transposed(node) && !is_depthwise
    }

    /// Whether the only use of a result is a quantization, possibly after a clamp.
    fn is_only_quantized(&self, var: VarId) -> bool {
        let Some(user) = self.sole_user(var) else { return false };
        let bounds = ["aten.relu.default", "aten.clamp.default", "aten.hardtanh.default"];
        match user.outputs.first() {
            Some(&bounded) if bounds.contains(&&*user.target) => self.quantizing_user(bounded).is_some(),
            _ => self.quantization_by(user).is_some(),
        }
    }

    /// The only user of a value. `None` if there are several, or if the value is used outside the graph.
    fn sole_user(&self, var: VarId) -> Option<&'p ExportedNode> {
        match self.users.get(&var)?.as_slice() {
            [one] if !self.escaping.contains(&var) => Some(one),
            _ => None,
        }
    }

    /// Matches dequantized constant weights that have no other users. Returns them with the results of the nodes that
    /// dequantize them.
    fn match_weights(&self, var: VarId) -> Option<(Weights, Vec<VarId>)> {
        let mut node = *self.producers.get(&var)?;
        let mut weight_nodes = vec![var];
        self.sole_user(var)?;
        if *node.target == *"aten.view.default" {
            let dequantized = node.arg("self")?.var()?;
            node = self.producers.get(&dequantized)?;
            self.sole_user(dequantized)?;
            weight_nodes.push(dequantized);
        }
        let call = Call { program: self.program, node };
        let int8 = node.arg("input")?.var().filter(|&v| is_constant(self.program, v))?;
        let of_bytes = self.program.spec(int8)?.dtype == ScalarType::Char;
        let bits = (call.int("quant_min", -128).ok()?, call.int("quant_max", 127).ok()?);
        let four_bits = bits == (-8, 7);
        if !of_bytes || !four_bits && !matches!(bits, (-128 | -127, 127)) {
            return None;
        }
        let is_viewed = weight_nodes.len() > 1;
        if let Some(affine) = affine_arguments(&call).filter(|_| !is_viewed && !four_bits) {
            let weights = Weights { elements: int8, scales: vec![affine.scale], per: Per::Tensor };
            return (affine.zero == 0).then_some((weights, weight_nodes));
        }
        if *node.target != *"quantized_decomposed.dequantize_per_channel.default" {
            return None;
        }
        let constant = |name: &str| node.arg(name)?.var().filter(|&v| is_constant(self.program, v));
        let scales = floats(self.program, constant("scales")?);
        let zeros = constant("zero_points").and_then(|var| self.program.constants.get(&var));
        let axis = usize::try_from(call.int("axis", 0).ok()?).ok()?;
        let finite = scales.iter().all(|scale| scale.is_normal() && *scale > 0.0);
        if !finite || zeros.is_some_and(|zeros| zeros.reopened().data().iter().any(|&byte| byte != 0)) {
            return None;
        }
        let per = if is_viewed {
            let sizes = self.program.spec(int8)?.known_sizes()?;
            let group = usize::try_from(*sizes.last()?).ok()?;
            let row = self.program.spec(var)?.known_sizes()?.last().copied()? as usize;
            // The reference's runtime requires group sizes that are multiples of 32.
            let fits =
                four_bits && axis == 0 && group > 0 && group.is_multiple_of(32) && row.is_multiple_of(group);
            fits.then_some(Per::Group(group))?
        } else {
            Per::Channel { axis, four_bits }
        };
        Some((Weights { elements: int8, scales, per }, weight_nodes))
    }

    /// Matches a value that is dynamically quantized and dequantized again. Returns the float value before, and the
    /// results of the nodes between.
    fn dynamic_source(&self, var: VarId) -> Option<(VarId, Vec<VarId>)> {
        let dequantize = *self.producers.get(&var)?;
        let by_row = dequantize.target.starts_with("quantized_decomposed.dequantize_per_token.");
        if !by_row && *dequantize.target != *"quantized_decomposed.dequantize_per_tensor.tensor" {
            return None;
        }
        let quantize = *self.producers.get(&dequantize.arg("input")?.var()?)?;
        if !quantize.target.starts_with("quantized_decomposed.quantize_per_t") {
            return None;
        }
        // XNNPACK quantizes with parameters that it chooses itself from the input. It computes the same only if the
        // scale and the zero point of both nodes come from one choose_qparams node that looked at the same float value.
        // Exporters put views between them, which give the parameters of a row the shape that the operator expects.
        let mut chain = vec![*dequantize.outputs.first()?, *quantize.outputs.first()?];
        let mut chosen = Vec::new();
        for node in [dequantize, quantize] {
            for (name, other) in [("scale", "scales"), ("zero_point", "zero_points")] {
                let mut parameter = node.arg(name).or(node.arg(other))?.var()?;
                let mut producer = *self.producers.get(&parameter)?;
                while *producer.target == *"aten.view.default" {
                    chain.push(parameter);
                    parameter = producer.arg("self")?.var()?;
                    producer = self.producers.get(&parameter)?;
                }
                chosen.push(producer);
            }
        }
        let choose = *chosen.first()?;
        let is_choice = choose.target.starts_with("quantized_decomposed.choose_qparams");
        let x = quantize.arg("input")?.var()?;
        let same = chosen.iter().all(|other| std::ptr::eq(*other, choose));
        if !is_choice || !same || choose.arg("input")?.var()? != x {
            return None;
        }
        chain.push(*choose.outputs.first()?);
        chain.sort_unstable();
        chain.dedup();
        Some((x, chain))
    }

    /// If a value is dequantized from int8 with static parameters: the quantized value and its parameters.
    pub(super) fn dequantized_source(&self, var: VarId) -> Option<(VarId, Affine)> {
        let node = *self.producers.get(&var)?;
        let is_one = *node.target == *"quantized_decomposed.dequantize_per_tensor.default";
        let int8 = node.arg("input").filter(|_| is_one)?.var()?;
        let affine =
            affine_arguments(&Call { program: self.program, node }).filter(|_| self.is_int8(node, int8))?;
        Some((int8, affine))
    }

    /// The only user of a value, if it quantizes the value to int8, and the parameters of the quantization.
    pub(super) fn quantizing_user(&self, var: VarId) -> Option<(&'p ExportedNode, Affine)> {
        let node = self.sole_user(var)?;
        Some((node, self.quantization_by(node)?))
    }

    /// The parameters by which a node quantizes its operand to int8.
    pub(super) fn quantization_by(&self, node: &ExportedNode) -> Option<Affine> {
        let is_one = *node.target == *"quantized_decomposed.quantize_per_tensor.default";
        let int8 = *node.outputs.first().filter(|_| is_one)?;
        affine_arguments(&Call { program: self.program, node }).filter(|_| self.is_int8(node, int8))
    }

    fn is_int8(&self, node: &ExportedNode, int8: VarId) -> bool {
        let call = Call { program: self.program, node };
        self.program.spec(int8).is_some_and(|spec| spec.dtype == ScalarType::Char)
            && (call.int("quant_min", 0), call.int("quant_max", 0)) == (Ok(-128), Ok(127))
    }

    /// The quantization parameters of an int8 value, matched from the nodes that produce or use it.
    pub(super) fn affine_of(&self, int8: VarId) -> Option<Affine> {
        let by_producer = self.producers.get(&int8).and_then(|node| self.quantization_by(node));
        by_producer.or_else(|| {
            let users = self.users.get(&int8)?;
            users
                .iter()
                .find_map(|node| self.dequantized_source(*node.outputs.first()?).map(|(_, affine)| affine))
        })
    }

    /// The node as a quantized linear layer or convolution, if it is one.
    pub(super) fn quantized_op(&self, node: &ExportedNode) -> Option<&QuantizedOp> {
        self.ops.get(node.outputs.first()?)
    }

    /// Whether a node is fused into a quantized operator: it dequantizes its weights or dynamically quantizes its
    /// input.
    pub(super) fn is_fused(&self, node: &ExportedNode) -> bool {
        let first = node.outputs.first();
        first.is_some_and(|var| self.op_of_weights.contains_key(var) || self.quantizing_nodes.contains(var))
    }

    /// Whether a node dequantizes the weights of a quantized operator.
    pub(super) fn dequantizes_weights(&self, node: &ExportedNode) -> bool {
        node.outputs.first().is_some_and(|var| self.op_of_weights.contains_key(var))
    }

    /// The results of nodes that dequantize weights, each with the result of the operator that reads them.
    pub(super) fn weights_of_ops(&self) -> impl Iterator<Item = (VarId, VarId)> + '_ {
        self.op_of_weights.iter().map(|(&weights, &op)| (weights, op))
    }
}

fn is_transposed(node: &ExportedNode) -> bool {
    matches!(node.arg("transposed"), Some(Argument::Bool(true)))
}

/// The per-tensor scale and zero point in a node's arguments.
fn affine_arguments(call: &Call<'_>) -> Option<Affine> {
    let scale = call.number("scale").ok()??;
    let zero = call.int("zero_point", 0).ok()?;
    let scale = scale as f32;
    let fits = scale.is_normal() && scale > 0.0;
    Some(Affine { scale, zero: i32::try_from(zero).ok()? }).filter(|_| fits)
}

/// Checks that a per-tensor quantize or dequantize node quantizes to int8.
pub(super) fn expect_int8(affine: Option<Affine>) -> Result<Affine, Reason> {
    affine.ok_or_else(|| "it is not of int8 with a scale above 0 and the range -128 to 127".to_owned())
}
