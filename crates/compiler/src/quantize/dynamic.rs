//! Layers whose inputs are quantized with ranges that are found at run time: for each row of a linear layer, for the whole input of a
//! convolution.

use super::layers::weight_axis;
use super::{push_node, range_args};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, Size, TensorSpec, VarId};
use pteron_tensor::ScalarType;
use std::collections::HashMap;

/// Quantized and dequantized values, by the value and whether each row has a range of its own.
pub(super) type Known = HashMap<(VarId, bool), VarId>;

/// The smallest scale that is chosen for the input of a convolution: the `eps` of PT2E's observers.
const LEAST_SCALE: f64 = 1.0 / (1u64 << 23) as f64;

/// Whether the ranges of a layer's input can be found at run time, on the reference's XNNPACK as well: a linear layer, or a convolution of
/// 2D images that is neither transposed nor depthwise.
pub(super) fn supports(program: &ExportedProgram, node: &ExportedNode) -> bool {
    let x = node.arg("input").and_then(Argument::var).and_then(|var| program.spec(var));
    let Some(x) = x.filter(|spec| spec.dtype == ScalarType::Float && spec.rank() > 0) else { return false };
    let Some((weight, 0)) = weight_axis(program, node) else { return false };
    if is_linear(node) {
        return x.dim_order.is_contiguous();
    }
    let sizes = program.spec(weight).map_or(&[][..], |spec| &spec.sizes);
    let one_group = matches!(node.arg("groups"), None | Some(Argument::Int(1)));
    sizes.len() == 4 && (one_group || sizes[1].known().is_some_and(|inputs| inputs > 1))
}

fn is_linear(node: &ExportedNode) -> bool {
    *node.target == *"aten.linear.default"
}

/// Quantizes the input `x` of a layer, and dequantizes it again.
pub(super) fn quantize_input(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    x: VarId,
    known: &mut Known,
) -> Option<VarId> {
    let by_row = is_linear(node);
    if let Some(&found) = known.get(&(x, by_row)) {
        return Some(found);
    }
    let spec = program.spec(x)?.clone();
    let found = match by_row {
        true => quantize_by_row(program, nodes, node, x, &spec),
        false => quantize_by_tensor(program, nodes, node, x, &spec),
    };
    known.insert((x, by_row), found);
    Some(found)
}

/// Quantizes a value row by row, and dequantizes it again.
pub(super) fn quantize_by_row(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    x: VarId,
    spec: &TensorSpec,
) -> VarId {
    let mut sizes = spec.sizes.clone();
    if let Some(last) = sizes.last_mut() {
        *last = Size::Int(1);
    }
    let chosen = [ScalarType::Double, ScalarType::Long].map(|ty| TensorSpec::contiguous(ty, sizes.clone()));
    let args = vec![("input", Argument::Var(x)), ("dtype", Argument::Dtype(ScalarType::Char))];
    let target = "quantized_decomposed.choose_qparams_per_token_asymmetric.default";
    let chosen = push_node(program, nodes, &node.source, target, args, chosen.to_vec());
    let with = |var: VarId| {
        let vars = [("input", var), ("scales", chosen[0]), ("zero_points", chosen[1])];
        let vars = vars.map(|(name, var)| (name, Argument::Var(var)));
        vars.into_iter().chain(range_args(-128, 127)).collect::<Vec<_>>()
    };
    let bytes = TensorSpec { dtype: ScalarType::Char, ..spec.clone() };
    let target = "quantized_decomposed.quantize_per_token.default";
    let quantized = push_node(program, nodes, &node.source, target, with(x), vec![bytes])[0];
    let mut args = with(quantized);
    args.push(("output_dtype", Argument::Dtype(ScalarType::Float)));
    let target = "quantized_decomposed.dequantize_per_token.default";
    push_node(program, nodes, &node.source, target, args, vec![spec.clone()])[0]
}

/// Quantizes a value with one range for all of its elements, and dequantizes it again.
fn quantize_by_tensor(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    x: VarId,
    spec: &TensorSpec,
) -> VarId {
    let one = |ty| TensorSpec::contiguous(ty, [Size::Int(1)].into_iter().collect());
    let [low, high, dtype] = range_args(-128, 127);
    let args = vec![("input", Argument::Var(x)), low, high, ("eps", Argument::Float(LEAST_SCALE)), dtype];
    let chosen = vec![one(ScalarType::Double), one(ScalarType::Long)];
    let target = "quantized_decomposed.choose_qparams.tensor";
    let chosen = push_node(program, nodes, &node.source, target, args, chosen);
    let with = |var: VarId| {
        let vars = [("input", var), ("scale", chosen[0]), ("zero_point", chosen[1])];
        let vars = vars.map(|(name, var)| (name, Argument::Var(var)));
        vars.into_iter().chain(range_args(-128, 127)).collect::<Vec<_>>()
    };
    let bytes = TensorSpec { dtype: ScalarType::Char, ..spec.clone() };
    let target = "quantized_decomposed.quantize_per_tensor.tensor";
    let quantized = push_node(program, nodes, &node.source, target, with(x), vec![bytes])[0];
    let target = "quantized_decomposed.dequantize_per_tensor.tensor";
    push_node(program, nodes, &node.source, target, with(quantized), vec![spec.clone()])[0]
}
