//! Layers whose inputs are quantized with ranges that are found at run time: for each row of a linear layer, for the whole input of a
//! convolution.

use super::layers::weight_axis;
use super::{add_derived_constant, floats, push_node, range_args, replace_argument, static_spec};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, Size, TensorSpec, VarId, VarType};
use pteron_tensor::ScalarType;
use std::collections::HashMap;

/// Quantized and dequantized values, by the value and whether each row has a range of its own.
pub(super) type Known = HashMap<(VarId, bool), VarId>;

/// The smallest scale that is chosen for the input of a convolution: the `eps` of PT2E's observers.
const LEAST_SCALE: f64 = 1.0 / (1u64 << 23) as f64;

/// Whether the ranges of a layer's input can be found at run time, on the reference's XNNPACK as well: a linear layer, or a convolution of
/// 2D images that is neither transposed nor depthwise, or of rows that become images.
pub(super) fn supports(program: &ExportedProgram, node: &ExportedNode) -> bool {
    let x = node.arg("input").and_then(Argument::var).and_then(|var| program.spec(var));
    let Some(x) = x.filter(|spec| spec.dtype == ScalarType::Float && spec.rank() > 0) else { return false };
    let Some((weight, 0)) = weight_axis(program, node) else { return false };
    if is_linear(node) {
        return x.dim_order.is_contiguous();
    }
    let sizes = program.spec(weight).map_or(&[][..], |spec| &spec.sizes);
    let one_group = matches!(node.arg("groups"), None | Some(Argument::Int(1)));
    let is_dense = one_group || sizes.get(1).and_then(Size::known).is_some_and(|inputs| inputs > 1);
    is_dense && (sizes.len() == 4 || sizes.len() == 3 && RowConvolution::of(program, node).is_some())
}

/// A convolution of rows, to be computed as one of images of height 1.
pub(super) struct RowConvolution {
    /// The sizes of the images that are read and computed.
    input: Vec<i64>,
    output: Vec<i64>,
    weight: Vec<i64>,
}

impl RowConvolution {
    /// `None` unless a node is a convolution of rows whose sizes are known.
    pub(super) fn of(program: &ExportedProgram, node: &ExportedNode) -> Option<Self> {
        let as_image = |var: VarId| -> Option<Vec<i64>> {
            let spec = program.spec(var)?;
            let [images, channels, length] = spec.known_sizes()?[..] else { return None };
            spec.dim_order.is_contiguous().then(|| vec![images, channels, 1, length])
        };
        let operand = |name: &str| as_image(node.arg(name)?.var()?);
        let output = as_image(*node.outputs.first()?)?;
        Some(Self { input: operand("input")?, output, weight: operand("weight")? })
    }

    /// Makes a node read images and constant weights of images.
    pub(super) fn widen_operands(
        &self,
        program: &mut ExportedProgram,
        nodes: &mut Vec<ExportedNode>,
        node: &mut ExportedNode,
    ) -> Option<()> {
        let (x, weight) = (node.arg("input")?.var()?, node.arg("weight")?.var()?);
        let elements = floats(program, weight)?;
        let sizes: Vec<usize> = self.weight.iter().map(|&n| n as usize).collect();
        let bytes = elements.iter().flat_map(|x| x.to_le_bytes()).collect();
        let weight =
            add_derived_constant(program, weight, "image", static_spec(ScalarType::Float, &sizes), bytes);
        let sizes: Vec<usize> = self.input.iter().map(|&n| n as usize).collect();
        let args = vec![("self", Argument::Var(x)), ("size", Argument::ints(&self.input))];
        let spec = static_spec(ScalarType::Float, &sizes);
        let x = push_node(program, nodes, &node.source, "aten.view.default", args, vec![spec])[0];
        replace_argument(node, "input", x);
        replace_argument(node, "weight", weight);
        for (name, one) in [("stride", 1), ("padding", 0), ("dilation", 1), ("output_padding", 0)] {
            let Some((_, arg)) = node.args.iter_mut().find(|(argument, _)| **argument == *name) else {
                continue;
            };
            if let Some([along]) = arg.known_ints().as_deref() {
                *arg = Argument::ints(&[one, *along]);
            }
        }
        Some(())
    }

    /// Makes a node compute images. Returns the node that views them as rows.
    pub(super) fn widen_result(
        &self,
        program: &mut ExportedProgram,
        node: &mut ExportedNode,
    ) -> Option<ExportedNode> {
        let rows = *node.outputs.first()?;
        let sizes: Vec<usize> = self.output.iter().map(|&n| n as usize).collect();
        let name = format!("{}_image", program.var(rows).name);
        let images = program.add_var(name, VarType::Tensor(static_spec(ScalarType::Float, &sizes)));
        node.outputs[0] = images;
        let size = [self.output[0], self.output[1], self.output[3]];
        Some(ExportedNode {
            target: "aten.view.default".into(),
            args: vec![("self".into(), Argument::Var(images)), ("size".into(), Argument::ints(&size))],
            outputs: vec![rows],
            source: node.source.clone(),
        })
    }
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

#[cfg(test)]
mod tests {
    use crate::quantize::{FirstOperands, Quantize, run};
    use pteron_exported::parse;
    use std::collections::{BTreeMap, BTreeSet};

    #[test]
    fn a_convolution_of_rows_becomes_one_of_images() {
        let text = "forward:
  parameter %w: float32[1, 2, 3] = [1.0, 0.5, -1.0, 0.25, 0.5, 2.0]
  input %x: float32[1, 2, 8]
  %y: float32[1, 1, 4] = aten.convolution.default(input=%x, weight=%w, bias=None, stride=[2], padding=[1], dilation=[1], transposed=False, output_padding=[0], groups=1)
  return %y
";
        let mut program = parse(text).unwrap();
        let outcome =
            run(&mut program, &Quantize::Static(BTreeMap::new()), &BTreeSet::new(), FirstOperands::ByRow)
                .unwrap();
        program.verify().unwrap();
        assert_eq!((outcome.layers[0].name.as_str(), outcome.layers[0].weights), ("y", 6));
        let targets: Vec<&str> = program.graph.nodes.iter().map(|node| &*node.target).collect();
        assert_eq!(
            targets,
            [
                "aten.view.default",
                "quantized_decomposed.choose_qparams.tensor",
                "quantized_decomposed.quantize_per_tensor.tensor",
                "quantized_decomposed.dequantize_per_tensor.tensor",
                "quantized_decomposed.dequantize_per_channel.default",
                "aten.convolution.default",
                "aten.view.default",
            ]
        );
        let stride = program.graph.nodes[5].arg("stride").unwrap().known_ints();
        assert_eq!(stride, Some(vec![1, 2]));
    }
}
