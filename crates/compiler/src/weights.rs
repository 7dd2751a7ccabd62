//! Weights stored in fewer bits than float32: nodes that convert them to float32 precede the layers that read them.
//!
//! | [`WeightType`] | stored | before a layer |
//! | --- | --- | --- |
//! | `f16`, `bf16` | half precision | `dim_order_ops._to_dim_order_copy` |
//! | `int8` | int8, with a scale for each output | `quantized_decomposed.dequantize_per_channel` |
//!
//! Embeddings read the stored rows, of which only those that are looked up are converted. A program is converted after
//! its parts were delegated; payloads of backends keep float32.

use crate::quantize::{
    Range, add_derived_constant, floats, push_node, quantize_symmetric, quantized_embedding_args, range_args,
    static_spec,
};
use pteron_exported::{
    Argument, ConstantTensor, ExportedGraph, ExportedNode, ExportedProgram, TensorSpec, VarId, VarType,
};
use pteron_tensor::{ScalarType, bf16, f16};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The type in which weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightType {
    /// IEEE 754 half precision. Tensors with elements beyond its range stay float32.
    Float16,
    /// The upper half of float32.
    BFloat16,
    /// 8-bit integers, with a scale for each output of a layer or each row of a table.
    Int8,
}

impl fmt::Display for WeightType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float16 => "f16",
            Self::BFloat16 => "bf16",
            Self::Int8 => "int8",
        })
    }
}

impl FromStr for WeightType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Float16, Self::BFloat16, Self::Int8];
        let found = all.into_iter().find(|ty| ty.to_string() == text);
        found.ok_or_else(|| {
            format!("`{text}` is no type of weights: they are stored as `f16`, `bf16` or `int8`")
        })
    }
}

/// A weight that is stored in fewer bits than float32.
#[derive(Debug, Clone, PartialEq)]
pub struct NarrowWeight {
    /// The weight's name.
    pub name: String,
    /// The bytes of the weight in float32, and as it is stored, scales included.
    pub bytes: [u64; 2],
    /// The root mean square of the differences from the float32 weights, relative to that of the weights.
    pub error: f64,
}

/// A weight of a layer or an embedding that stays float32.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WideWeight {
    /// The weight's name.
    pub name: String,
    /// Why it stays float32.
    pub reason: String,
}

/// How the weights of a method are stored.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) narrow: Vec<NarrowWeight>,
    pub(crate) wide: Vec<WideWeight>,
}

/// Weights with fewer elements stay float32: the node that converts them takes as many bytes as they would save.
const MIN_ELEMENTS: usize = 256;

const CONVERT: &str = "dim_order_ops._to_dim_order_copy.default";
const EMBEDDING: &str = "aten.embedding.default";

/// A use of a value.
#[derive(Debug, Clone, PartialEq)]
enum Use {
    /// As the weights of a layer, whose outputs are the indices of a dimension; `None` if an output has weights of several.
    Layer(Option<usize>),
    /// As the table of an embedding.
    Table,
    /// As the operand of a transposition, with this result.
    Transposed(VarId),
    Other,
}

type Uses = HashMap<VarId, Vec<Use>>;

/// Stores the weights of layers and embeddings as `ty`.
pub(crate) fn run(program: &mut ExportedProgram, ty: WeightType) -> Outcome {
    let uses = uses_of(program);
    let mut outcome = Outcome::default();
    let mut found: HashMap<VarId, Stored> = HashMap::new();
    let weights: Vec<VarId> = program.constants.keys().copied().collect();
    for var in weights {
        let Some(axes) = weight_axes(program, &uses, var) else { continue };
        let name = weight_name(program, var);
        let stored = axes.and_then(|axes| store(program, var, ty, &axes));
        match stored {
            Ok(stored) => {
                let (before, after) = (4 * stored.elements, stored.bytes);
                let bytes = [before, after].map(|n| n as u64);
                outcome.narrow.push(NarrowWeight { name, bytes, error: stored.error });
                found.insert(var, stored);
            }
            Err(reason) => outcome.wide.push(WideWeight { name, reason }),
        }
    }
    let mut graph = std::mem::take(&mut program.graph);
    convert_graph(program, &mut graph, &found);
    program.graph = graph;
    for module in program.lowered.clone() {
        let (inner, backend) = (&module.original, &module.spec.backend_id);
        let uses = uses_of(inner);
        for &var in inner.constants.keys().filter(|&&var| weight_axes(inner, &uses, var).is_some()) {
            let reason = format!("it is in a payload of {backend}");
            outcome.wide.push(WideWeight { name: weight_name(inner, var), reason });
        }
    }
    outcome
}

/// Whether a node converts a constant in half precision, large enough to be stored so, to float32.
pub(crate) fn is_widened(program: &ExportedProgram, node: &ExportedNode) -> bool {
    let half = node.arg("self").and_then(Argument::var).filter(|_| *node.target == *CONVERT);
    let Some((half, out)) = half.zip(node.outputs.first()) else { return false };
    let dtype = |var: VarId| program.spec(var).map(|spec| spec.dtype);
    let sizes = program.spec(half).and_then(TensorSpec::known_sizes);
    let is_large =
        sizes.is_some_and(|sizes| sizes.len() > 1 && sizes.iter().product::<i64>() >= MIN_ELEMENTS as i64);
    is_large
        && matches!(dtype(half), Some(ScalarType::Half | ScalarType::BFloat16))
        && dtype(*out) == Some(ScalarType::Float)
        && program.constants.contains_key(&half)
        && !program.is_mutated(half)
}

/// Replaces the nodes of the outermost graph that convert constants in half precision to float32 by float32 constants:
/// backends, the quantizer and [`run`] take layers whose weights are constants.
pub(crate) fn widen_constants(program: &mut ExportedProgram) {
    let old = std::mem::take(&mut program.graph.nodes);
    let mut nodes = Vec::with_capacity(old.len());
    for node in old {
        if !(is_widened(program, &node) && widen_constant(program, &node).is_some()) {
            nodes.push(node);
        }
    }
    program.graph.nodes = nodes;
}

/// Makes the result of a node that converts a constant a constant.
fn widen_constant(program: &mut ExportedProgram, node: &ExportedNode) -> Option<()> {
    let (half, out) = (node.arg("self")?.var()?, *node.outputs.first()?);
    let is_half = program.spec(half)?.dtype == ScalarType::Half;
    if !program.spec(out)?.dim_order.is_contiguous() {
        return None;
    }
    let data = program.row_major_bytes(half)?;
    let halves = data.bytes().as_chunks::<2>().0;
    program.budget.charge("weights in float32", 4 * halves.len()).ok()?;
    let float = |bytes: &[u8; 2]| match is_half {
        true => f16::from_le_bytes(*bytes).to_f32(),
        false => bf16::from_le_bytes(*bytes).to_f32(),
    };
    let bytes: Vec<u8> = halves.iter().flat_map(|bytes| float(bytes).to_le_bytes()).collect();
    let name = program.constants.get(&half)?.name.clone();
    let stored = name.as_deref().and_then(|name| name.rsplit_once('.'));
    let name = match stored {
        Some((before, "f16" | "bf16")) => Some(Arc::from(before)),
        _ => name,
    };
    let range = 0..bytes.len();
    program.constants.insert(out, ConstantTensor { name, bytes: Arc::new(bytes), range });
    Some(())
}

fn weight_name(program: &ExportedProgram, var: VarId) -> String {
    let name = program.constants.get(&var).and_then(|data| data.name.clone());
    name.unwrap_or_else(|| Arc::clone(&program.var(var).name)).to_string()
}

fn uses_of(program: &ExportedProgram) -> Uses {
    let mut uses = Uses::new();
    add_uses(&program.graph, &mut uses);
    program.mutations.iter().for_each(|m| uses.entry(m.value).or_default().push(Use::Other));
    uses
}

fn add_uses(graph: &ExportedGraph, uses: &mut Uses) {
    for node in &graph.nodes {
        let operand = |name: &str| node.arg(name).and_then(Argument::var);
        let is_transposed = matches!(node.arg("transposed"), Some(Argument::Bool(true)));
        let one_group = matches!(node.arg("groups"), None | Some(Argument::Int(1)));
        let known = match &*node.target {
            "aten.linear.default" => Some((operand("weight"), Use::Layer(Some(0)))),
            "aten.mm.default" | "aten.addmm.default" => Some((operand("mat2"), Use::Layer(Some(1)))),
            "aten.convolution.default" if is_transposed => {
                Some((operand("weight"), Use::Layer(one_group.then_some(1))))
            }
            "aten.convolution.default" => Some((operand("weight"), Use::Layer(Some(0)))),
            EMBEDDING => Some((operand("weight"), Use::Table)),
            "aten.permute.default" => {
                let dims = node.arg("dims").and_then(Argument::known_ints);
                let is_transposition = dims.is_some_and(|dims| matches!(dims[..], [1 | -1, 0 | -2]));
                let result = node.outputs.first().filter(|_| is_transposition);
                result.map(|&result| (operand("self"), Use::Transposed(result)))
            }
            _ => None,
        };
        let weight = known.as_ref().and_then(|(var, _)| *var);
        if let (Some(var), Some((_, of))) = (weight, &known) {
            uses.entry(var).or_default().push(of.clone());
        }
        // A value that is the weights and another operand, too, has another use.
        let mut is_weight = weight;
        for var in node.operands() {
            if is_weight == Some(var) {
                is_weight = None;
            } else {
                uses.entry(var).or_default().push(Use::Other);
            }
        }
        node.graphs().for_each(|inner| add_uses(inner, uses));
    }
    graph.outputs.iter().flat_map(Argument::vars).for_each(|v| uses.entry(v).or_default().push(Use::Other));
}

/// The dimensions of float32 weights whose indices are outputs, for each use; `None` unless the value is a constant that
/// a layer or an embedding reads, and large enough. An error says why it stays float32.
fn weight_axes(
    program: &ExportedProgram,
    uses: &Uses,
    var: VarId,
) -> Option<Result<Vec<Option<usize>>, String>> {
    let spec = program.spec(var).filter(|spec| spec.dtype == ScalarType::Float)?;
    let sizes = spec.known_sizes()?;
    let elements = sizes.iter().try_fold(1usize, |n, &size| n.checked_mul(usize::try_from(size).ok()?))?;
    if !program.constants.contains_key(&var) || sizes.len() < 2 || elements < MIN_ELEMENTS {
        return None;
    }
    let uses_of = |var: VarId| uses.get(&var).map_or(&[][..], |uses| &uses[..]);
    let is_second = |of: &Use| *of == Use::Layer(Some(1));
    let axis = |of: &Use| match of {
        Use::Layer(axis) => Some(*axis),
        Use::Table => Some(Some(0)),
        Use::Transposed(to) => {
            (!uses_of(*to).is_empty() && uses_of(*to).iter().all(is_second)).then_some(Some(0))
        }
        Use::Other => None,
    };
    let axes: Vec<Option<Option<usize>>> = uses_of(var).iter().map(axis).collect();
    if axes.iter().all(Option::is_none) {
        return None;
    }
    if program.is_mutated(var) {
        return Some(Err("the program writes it".to_owned()));
    }
    let all: Option<Vec<_>> = axes.into_iter().collect();
    Some(all.ok_or_else(|| "it is read by other nodes than layers, too".to_owned()))
}

/// A weight as it is stored.
struct Stored {
    values: VarId,
    /// The scales and the dimension of the outputs, if the values are int8.
    scales: Option<(VarId, usize)>,
    elements: usize,
    /// The bytes of values and scales.
    bytes: usize,
    error: f64,
}

/// Adds the constants that store a weight. The error says why it stays float32.
fn store(
    program: &mut ExportedProgram,
    var: VarId,
    ty: WeightType,
    axes: &[Option<usize>],
) -> Result<Stored, String> {
    let (weights, sizes) = (floats(program, var), program.spec(var).and_then(TensorSpec::known_sizes));
    let (Some(weights), Some(sizes)) = (weights, sizes) else {
        return Err("its elements cannot be read".to_owned());
    };
    let sizes: Vec<usize> = sizes.iter().map(|&n| n as usize).collect();
    if weights.iter().any(|weight| !weight.is_finite()) {
        return Err("a weight is not finite".to_owned());
    }
    let elements = weights.len();
    let charge =
        |bytes: usize| program.budget.charge("weights in fewer bits", bytes).map_err(|e| e.to_string());
    if ty == WeightType::Int8 {
        let axis = axes.first().copied().flatten().filter(|_| axes.iter().all(|axis| axis == &axes[0]));
        let axis = axis.ok_or("its dimension of outputs is not the same in all layers")?;
        let channels = *sizes.get(axis).filter(|&&n| n > 0).ok_or("it has no outputs")?;
        let inner: usize = sizes[axis + 1..].iter().product();
        let bytes = elements + 4 * channels;
        charge(bytes)?;
        let found =
            quantize_symmetric(&weights, channels, |i| i / inner.max(1) % channels, Range::EIGHT_BITS);
        let values = found.values.iter().map(|&n| n as u8).collect();
        let scales = found.scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
        let values =
            add_derived_constant(program, var, "int8", static_spec(ScalarType::Char, &sizes), values);
        let spec = static_spec(ScalarType::Float, &[channels]);
        let scales = add_derived_constant(program, var, "scales", spec, scales);
        return Ok(Stored { values, scales: Some((scales, axis)), elements, bytes, error: found.error });
    }
    let (dtype, round): (_, fn(f32) -> ([u8; 2], f32)) = match ty {
        WeightType::Float16 => (ScalarType::Half, |x| {
            let half = f16::from_f32(x);
            (half.to_le_bytes(), half.to_f32())
        }),
        _ => (ScalarType::BFloat16, |x| {
            let half = bf16::from_f32(x);
            (half.to_le_bytes(), half.to_f32())
        }),
    };
    let bytes = 2 * elements;
    charge(bytes)?;
    let mut values = Vec::with_capacity(bytes);
    let (mut error, mut total) = (0f64, 0f64);
    for &weight in &weights {
        let (half, rounded) = round(weight);
        if !rounded.is_finite() {
            return Err(format!("its weight {weight:e} is beyond the range of {ty}"));
        }
        values.extend(half);
        error += f64::from(weight - rounded).powi(2);
        total += f64::from(weight).powi(2);
    }
    let error = if total > 0.0 { (error / total).sqrt() } else { 0.0 };
    let values = add_derived_constant(program, var, &ty.to_string(), static_spec(dtype, &sizes), values);
    Ok(Stored { values, scales: None, elements, bytes, error })
}

/// Lets the nodes of a graph read stored weights.
fn convert_graph(program: &mut ExportedProgram, graph: &mut ExportedGraph, found: &HashMap<VarId, Stored>) {
    let old = std::mem::take(&mut graph.nodes);
    let mut nodes = Vec::with_capacity(old.len());
    // The float32 form of each weight in this graph.
    let mut known: BTreeMap<VarId, VarId> = BTreeMap::new();
    for mut node in old {
        for inner in node.graphs_mut() {
            convert_graph(program, inner, found);
        }
        if *node.target == *EMBEDDING {
            let table = node.arg("weight").and_then(Argument::var).and_then(|var| found.get(&var));
            let converted = table.and_then(|table| convert_embedding(program, &mut node, table));
            nodes.push(node);
            nodes.extend(converted);
            continue;
        }
        for at in 0..node.args.len() {
            let Some(var) = node.args[at].1.var() else { continue };
            let Some(stored) = found.get(&var) else { continue };
            let wide = match known.get(&var) {
                Some(&wide) => wide,
                None => widen(program, &mut nodes, &node, var, stored),
            };
            known.insert(var, wide);
            node.args[at].1 = Argument::Var(wide);
        }
        nodes.push(node);
    }
    graph.nodes = nodes;
}

/// Appends the node that converts a stored weight to float32.
fn widen(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    var: VarId,
    stored: &Stored,
) -> VarId {
    let spec = program.spec(var).cloned().unwrap_or_else(|| static_spec(ScalarType::Float, &[]));
    match stored.scales {
        Some((scales, axis)) => {
            let mut args = vec![
                ("input", Argument::Var(stored.values)),
                ("scales", Argument::Var(scales)),
                ("zero_points", Argument::None),
                ("axis", Argument::Int(axis as i64)),
            ];
            args.extend(range_args(Range::EIGHT_BITS.low.into(), Range::EIGHT_BITS.high.into()));
            let target = "quantized_decomposed.dequantize_per_channel.default";
            push_node(program, nodes, &node.source, target, args, vec![spec])[0]
        }
        None => {
            let args = vec![("self", Argument::Var(stored.values)), ("dim_order", dim_order(&spec))];
            push_node(program, nodes, &node.source, CONVERT, args, vec![spec])[0]
        }
    }
}

fn dim_order(spec: &TensorSpec) -> Argument {
    let dims: Vec<i64> = spec.dim_order.iter().map(|&d| i64::from(d)).collect();
    Argument::ints(&dims)
}

/// Lets an embedding read a stored table. Returns the node that converts the result to float32, unless the embedding
/// does.
fn convert_embedding(
    program: &mut ExportedProgram,
    node: &mut ExportedNode,
    table: &Stored,
) -> Option<ExportedNode> {
    let (indices, out) = (node.arg("indices")?.clone(), *node.outputs.first()?);
    if let Some((scales, _)) = table.scales {
        node.target = "quantized_decomposed.embedding_byte.default".into();
        node.args = quantized_embedding_args(table.values, scales, indices);
        return None;
    }
    let dtype = program.spec(table.values)?.dtype;
    let spec = program.spec(out)?.clone();
    let name = format!("{}_stored", program.var(out).name);
    let rows = program.add_var(name, VarType::Tensor(TensorSpec { dtype, ..spec.clone() }));
    for (name, arg) in &mut node.args {
        if **name == *"weight" {
            *arg = Argument::Var(table.values);
        }
    }
    node.outputs[0] = rows;
    let args = vec![("self".into(), Argument::Var(rows)), ("dim_order".into(), dim_order(&spec))];
    Some(ExportedNode { target: CONVERT.into(), args, outputs: vec![out], source: node.source.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_exported::parse;

    fn numbers(count: usize, of: impl Fn(usize) -> f32) -> String {
        let all: Vec<String> = (0..count).map(|i| format!("{:?}", of(i))).collect();
        format!("[{}]", all.join(", "))
    }

    fn ramp(i: usize) -> f32 {
        (i % 37) as f32 / 16.0 - 1.0
    }

    /// A table that is also the weights of a layer, a convolution, and a layer with a large weight.
    fn text() -> String {
        format!(
            "forward:
  parameter %table: float32[32, 16] = {}
  parameter %kernel: float32[8, 4, 3, 3] = {}
  parameter %large: float32[16, 16] = {}
  parameter %small: float32[2, 2] = [1.0, 2.0, 3.0, 4.0]
  parameter %bias: float32[16] = {}
  input %ids: int64[4]
  input %image: float32[1, 4, 5, 5]
  input %pair: float32[1, 2]
  %rows: float32[4, 16] = aten.embedding.default(weight=%table, indices=%ids)
  %mixed: float32[4, 16] = aten.linear.default(input=%rows, weight=%large, bias=%bias)
  %logits: float32[4, 32] = aten.linear.default(input=%mixed, weight=%table, bias=None)
  %out: float32[1, 8, 3, 3] = aten.convolution.default(input=%image, weight=%kernel, bias=None, stride=[1, 1], padding=[0, 0], dilation=[1, 1], transposed=False, output_padding=[0, 0], groups=1)
  %two: float32[1, 2] = aten.linear.default(input=%pair, weight=%small, bias=None)
  return %logits, %out, %two
",
            numbers(512, ramp),
            numbers(288, ramp),
            numbers(256, |i| if i == 5 { 70_000.0 } else { ramp(i) }),
            numbers(16, ramp),
        )
    }

    fn converted(ty: WeightType) -> (ExportedProgram, Outcome) {
        let mut program = parse(&text()).unwrap();
        let outcome = run(&mut program, ty);
        program.verify().unwrap();
        (program, outcome)
    }

    fn targets(program: &ExportedProgram) -> Vec<&str> {
        program.graph.nodes.iter().map(|node| &*node.target).collect()
    }

    #[test]
    fn weights_are_halves_that_nodes_convert() {
        let (program, outcome) = converted(WeightType::Float16);
        let names: Vec<&str> = outcome.narrow.iter().map(|weight| &*weight.name).collect();
        assert_eq!(names, ["table", "kernel"]);
        assert_eq!(outcome.narrow[0].bytes, [2048, 1024]);
        assert!(outcome.narrow.iter().all(|weight| weight.error == 0.0));
        let [WideWeight { name, reason }] = &outcome.wide[..] else { panic!("{:?}", outcome.wide) };
        assert_eq!((&name[..], &reason[..]), ("large", "its weight 7e4 is beyond the range of f16"));
        let linear = "aten.linear.default";
        let expected =
            [EMBEDDING, CONVERT, linear, CONVERT, linear, CONVERT, "aten.convolution.default", linear];
        assert_eq!(targets(&program), expected);
        assert!(program.graph.nodes[0].arg("weight") == program.graph.nodes[3].arg("self"));
    }

    #[test]
    fn bfloat16_has_the_range_of_float32() {
        let (_, outcome) = converted(WeightType::BFloat16);
        assert_eq!((outcome.narrow.len(), outcome.wide.len()), (3, 0));
        assert!(outcome.narrow[2].error > 0.0);
    }

    #[test]
    fn int8_weights_have_a_scale_for_each_output() {
        let (program, outcome) = converted(WeightType::Int8);
        assert_eq!(outcome.narrow.iter().map(|weight| weight.bytes[1]).collect::<Vec<_>>(), [640, 320, 320]);
        assert!(outcome.narrow.iter().all(|weight| weight.error < 0.02));
        let dequantize = "quantized_decomposed.dequantize_per_channel.default";
        assert_eq!(targets(&program).iter().filter(|target| **target == dequantize).count(), 3);
        assert_eq!(targets(&program)[0], "quantized_decomposed.embedding_byte.default");
    }

    #[test]
    fn weights_with_other_uses_stay() {
        let text = format!(
            "forward:
  parameter %w: float32[16, 16] = {}
  input %x: float32[1, 16]
  %y: float32[1, 16] = aten.linear.default(input=%x, weight=%w, bias=None)
  %z: float32[16, 16] = aten.add.Tensor(self=%w, other=%y)
  return %z
",
            numbers(256, ramp)
        );
        let mut program = parse(&text).unwrap();
        let outcome = run(&mut program, WeightType::Float16);
        assert!(outcome.narrow.is_empty() && program.graph.nodes.len() == 2);
        assert_eq!(outcome.wide[0].reason, "it is read by other nodes than layers, too");
    }

    #[test]
    fn types_have_names() {
        for ty in [WeightType::Float16, WeightType::BFloat16, WeightType::Int8] {
            assert_eq!(ty.to_string().parse(), Ok(ty));
        }
        let error = "f8".parse::<WeightType>().unwrap_err();
        assert_eq!(error, "`f8` is no type of weights: they are stored as `f16`, `bf16` or `int8`");
    }
}
