//! Layers in half precision: layers that are quantized compute in float32 from converted inputs, and their results are
//! rounded.

use super::{add_derived_constant, rows, static_spec};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, TensorSpec, VarId, VarType};
use pteron_tensor::{ScalarType, bf16, f16};
use std::collections::{HashMap, HashSet};

const CONVERT: &str = "dim_order_ops._to_dim_order_copy.default";

/// Appended to the name of a layer whose result in float32 is rounded to half precision.
pub(super) const SUFFIX: &str = "_float";

/// Makes the half-precision layers that are to be quantized compute in float32. `rows` is the weight scheme of dynamic
/// quantization, `None` for static.
pub(super) fn widen(program: &mut ExportedProgram, rows: Option<rows::Weights>, keep: &HashSet<VarId>) {
    let old = std::mem::take(&mut program.graph.nodes);
    let mut nodes = Vec::with_capacity(old.len());
    let mut known: HashMap<VarId, VarId> = HashMap::new();
    for mut node in old {
        let rounded = match node.outputs.first() {
            Some(out) if !keep.contains(out) && is_quantized(program, &node, rows) => {
                widen_layer(program, &mut nodes, &mut node, &mut known)
            }
            _ => None,
        };
        nodes.push(node);
        nodes.extend(rounded);
    }
    program.graph.nodes = nodes;
}

fn is_half(program: &ExportedProgram, var: VarId) -> bool {
    program.spec(var).is_some_and(|spec| matches!(spec.dtype, ScalarType::Half | ScalarType::BFloat16))
}

/// Whether a node is a layer of constant weights in half precision that the scheme quantizes.
fn is_quantized(program: &ExportedProgram, node: &ExportedNode, rows: Option<rows::Weights>) -> bool {
    let operand = |name: &str| node.arg(name).and_then(Argument::var);
    let is_constant = |var: VarId| program.constants.contains_key(&var) && !program.is_mutated(var);
    let (Some(x), Some(weight)) = (operand("input"), operand("weight")) else { return false };
    let is_layer = match (&*node.target, rows) {
        ("aten.linear.default", None) | ("aten.convolution.default", None) => true,
        ("aten.linear.default", Some(rows)) => {
            let columns = program.spec(weight).and_then(|spec| spec.sizes.get(1)?.known()).unwrap_or(0);
            let fits = match rows {
                rows::Weights::EightBits => true,
                rows::Weights::FourBits { group } => columns % group as i64 == 0,
            };
            fits && program.spec(x).is_some_and(|spec| spec.rank() > 0 && spec.dim_order.is_contiguous())
        }
        _ => false,
    };
    is_layer
        && [x, weight].into_iter().chain(operand("bias")).all(|var| is_half(program, var))
        && [weight].into_iter().chain(operand("bias")).all(is_constant)
}

/// Makes a layer compute in float32. Returns the node that rounds its result.
fn widen_layer(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &mut ExportedNode,
    known: &mut HashMap<VarId, VarId>,
) -> Option<ExportedNode> {
    let out = *node.outputs.first()?;
    let mut args = node.args.clone();
    for (name, arg) in &mut args {
        let Some(var) = arg.var() else { continue };
        let spec = program.spec(var)?.clone();
        let float = TensorSpec { dtype: ScalarType::Float, ..spec };
        let found = match known.get(&var) {
            Some(&found) => found,
            None if **name == *"input" => convert(program, nodes, node, var, float),
            None => widen_constant(program, var)?,
        };
        known.insert(var, found);
        *arg = Argument::Var(found);
    }
    node.args = args;
    let spec = program.spec(out)?.clone();
    let name = format!("{}{SUFFIX}", program.var(out).name);
    let float =
        program.add_var(name, VarType::Tensor(TensorSpec { dtype: ScalarType::Float, ..spec.clone() }));
    node.outputs[0] = float;
    Some(conversion_node(node, float, out, &spec))
}

/// A node that converts `from` to `to`, which has this type and layout.
fn conversion_node(like: &ExportedNode, from: VarId, to: VarId, spec: &TensorSpec) -> ExportedNode {
    let dims: Vec<i64> = spec.dim_order.iter().map(|&d| i64::from(d)).collect();
    ExportedNode {
        target: CONVERT.into(),
        args: vec![("self".into(), Argument::Var(from)), ("dim_order".into(), Argument::ints(&dims))],
        outputs: vec![to],
        source: like.source.clone(),
    }
}

fn convert(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    var: VarId,
    spec: TensorSpec,
) -> VarId {
    let name = format!("{}{SUFFIX}", program.var(var).name);
    let converted = program.add_var(name, VarType::Tensor(spec.clone()));
    nodes.push(conversion_node(node, var, converted, &spec));
    converted
}

/// Converts a constant in half precision to float32, in row-major order.
fn widen_constant(program: &mut ExportedProgram, var: VarId) -> Option<VarId> {
    let sizes = program.spec(var)?.known_sizes()?;
    let sizes: Vec<usize> = sizes.into_iter().map(usize::try_from).collect::<Result<_, _>>().ok()?;
    let is_half = program.spec(var)?.dtype == ScalarType::Half;
    let data = program.row_major_bytes(var)?;
    let halves = data.bytes().as_chunks::<2>().0;
    program.budget.charge("weights in float32", halves.len().checked_mul(4)?).ok()?;
    let float = |bytes: &[u8; 2]| match is_half {
        true => f16::from_le_bytes(*bytes).to_f32(),
        false => bf16::from_le_bytes(*bytes).to_f32(),
    };
    let bytes = halves.iter().flat_map(|bytes| float(bytes).to_le_bytes()).collect();
    Some(add_derived_constant(program, var, "float", static_spec(ScalarType::Float, &sizes), bytes))
}

#[cfg(test)]
mod tests {
    use crate::quantize::{FirstOperands, Quantize, run};
    use pteron_exported::parse;
    use std::collections::BTreeSet;

    const TEXT: &str = "forward:
  parameter %w: float16[2, 2] = [1.0, 0.5, -1.0, 0.25]
  input %x: float16[1, 2]
  %y: float16[1, 2] = aten.linear.default(input=%x, weight=%w, bias=None)
  return %y
";

    #[test]
    fn a_layer_in_half_precision_is_quantized() {
        let mut program = parse(TEXT).unwrap();
        let outcome = run(&mut program, &Quantize::Dynamic, &BTreeSet::new(), FirstOperands::ByRow).unwrap();
        program.verify().unwrap();
        assert_eq!((outcome.layers.len(), outcome.left.len()), (1, 0));
        assert_eq!(outcome.layers[0].name, "y_float");
    }

    #[test]
    fn one_that_is_kept_stays_in_half_precision() {
        for name in ["y", "y_float"] {
            let mut program = parse(TEXT).unwrap();
            let keep = BTreeSet::from([name.to_owned()]);
            let outcome = run(&mut program, &Quantize::Dynamic, &keep, FirstOperands::ByRow).unwrap();
            assert_eq!((program.graph.nodes.len(), outcome.kept), (1, keep));
        }
    }
}
