//! Post-training quantization, in the schemes of XNNPACK's quantizer and of torchao.
//!
//! | scheme | weights | inputs of linear layers and convolutions |
//! | --- | --- | --- |
//! | [`Quantize::Dynamic`] | int8, a scale for each output; linear layers only | int8, with parameters chosen per row at run time |
//! | [`Quantize::FourBits`] | 4 bits, a scale for each group of a row; linear layers only | the same |
//! | [`Quantize::Static`] | int8, a scale for each output | int8, by calibrated ranges |
//!
//! In each scheme, the tables of embeddings have int8 rows with a scale each. [`Quantize::Static`] quantizes the linear layers of
//! branches and loops as [`Quantize::Dynamic`] does, since their values are not seen by calibration.
//!
//! A program is quantized after its passes and before delegation, with `quantized_decomposed` operators that kernels
//! and backends understand. The compiler runs nothing: [`Quantize::Observe`] and
//! [`Quantize::ObserveErrors`] add values to a program's outputs; the caller runs that program and passes back what it has
//! found, in a [`StaticScheme`].

mod channels;
mod dynamic;
mod embeddings;
mod equalize;
mod errors;
mod half;
mod histogram;
mod layers;
mod plan;
mod rows;
mod shape;
mod values;

pub use channels::Channels;
pub(crate) use embeddings::quantized_embedding_args;
pub use histogram::Histogram;
pub use layers::RoundedWeights;
pub(crate) use layers::{Range, quantize_symmetric};
pub(crate) use plan::FirstOperands;
pub use shape::{LayerObservation, LayerShape};

use crate::passes::products;
use crate::{Error, Result};
use pteron_exported::{
    Argument, ConstantTensor, ExportedNode, ExportedProgram, Size, Source, TensorSpec, VarId, VarType,
};
use pteron_tensor::ScalarType;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fmt;
use std::sync::Arc;

/// How a program is quantized.
#[derive(Debug, Clone, PartialEq)]
pub enum Quantize {
    /// Linear layers with int8 weights, whose input rows are quantized at run time.
    Dynamic,
    /// Linear layers with 4-bit weights, a scale per group of elements of a row, and input rows quantized at run time.
    FourBits {
        /// Elements per group; a multiple of 32.
        group: usize,
    },
    /// No quantization: the values whose ranges [`Quantize::Static`] needs are appended to the program's outputs. If
    /// statistics of channels are given, the ranges of the channels are equalized first.
    Observe(BTreeMap<String, StaticScheme>),
    /// No quantization: for each layer that [`Quantize::Static`] quantizes, two values are appended to the program's
    /// outputs: its result, and the result with weights and input rounded, from the same input.
    ObserveErrors(BTreeMap<String, StaticScheme>),
    /// Int8 weights and activations.
    Static(BTreeMap<String, StaticScheme>),
}

/// What calibration has found out about a method.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StaticScheme {
    /// The range of each quantized value.
    pub ranges: ValueRanges,
    /// Statistics of the channels of values, by name, for equalization: where it is exact and reduces the error, the
    /// weights that compute and that read a value are scaled so that its channels get similar ranges. `ranges`
    /// are the ranges after that.
    pub channels: BTreeMap<String, ChannelStatistics>,
    /// The weights of layers in int8, by node name, after the channels were equalized; those of other layers are rounded to the nearest.
    pub weights: BTreeMap<String, Arc<RoundedWeights>>,
    /// What is added to the biases of layers, by node name: a number for each channel.
    pub corrections: BTreeMap<String, Vec<f32>>,
}

/// Statistics of the channels of a value.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ChannelStatistics {
    /// The smallest element of each channel, at most 0.
    pub low: Vec<f32>,
    /// The largest element of each channel, at least 0.
    pub high: Vec<f32>,
    /// The mean square of each channel.
    pub mean_squares: Vec<f64>,
}

/// A value, or the result of a layer, that was appended to a program's outputs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValueObservation {
    /// The name of the value or of the layer's node.
    pub name: String,
    /// The channels of the value or result; `None` if it has none.
    pub channels: Option<Channels>,
    /// The name of the layer's input; `None` for a value.
    pub input: Option<String>,
}

/// The smallest and the largest element of values, by name.
pub type ValueRanges = BTreeMap<String, (f32, f32)>;

/// A linear layer, convolution, embedding or product of two computed values that was quantized.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedLayer {
    /// The node's name.
    pub name: String,
    /// The node's operator.
    pub target: String,
    /// The root mean square of the weights' errors, relative to that of the weights; 0 without weights.
    pub weight_error: f64,
    /// The number of weights; 0 for a product of two computed values.
    pub weights: u64,
    /// The number of multiplications in a call: see [`FloatNode::multiplications`].
    pub multiplications: u64,
}

/// A product, convolution or embedding that was not quantized.
#[derive(Debug, Clone, PartialEq)]
pub struct FloatNode {
    /// The node's name.
    pub name: String,
    /// The node's operator.
    pub target: String,
    /// Why the node was not quantized.
    pub reason: String,
    /// The number of multiplications in a call; a dynamic size counts as 1.
    pub multiplications: u64,
}

impl fmt::Display for FloatNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` ({}): {}", self.name, self.target, self.reason)
    }
}

/// The outcome of quantizing a program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) layers: Vec<QuantizedLayer>,
    /// The names of the nodes that compute with quantized values.
    pub(crate) nodes: Vec<String>,
    /// The values appended to the program's outputs.
    pub(crate) observed: Vec<ValueObservation>,
    /// The layers that are quantized, while values are observed.
    pub(crate) observed_layers: Vec<LayerObservation>,
    /// The number of values that are quantized or observed.
    pub(crate) values: usize,
    /// The products, convolutions and embeddings that were not quantized, each with the reason.
    pub(crate) left: Vec<FloatNode>,
    /// The names of the nodes that stay float because the options say so.
    pub(crate) kept: BTreeSet<String>,
}

impl Outcome {
    fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.values == 0
    }
}

/// Fails if quantization changes none of the methods.
pub(crate) fn expect_quantized<'o>(
    how: &Quantize,
    outcomes: impl Iterator<Item = &'o Outcome> + Clone,
) -> Result<()> {
    if outcomes.clone().any(|outcome| !outcome.is_empty()) {
        return Ok(());
    }
    let wanted = match how {
        Quantize::Dynamic => "dynamic-int8 quantizes products of float32 with constant weights",
        Quantize::FourBits { .. } => {
            "8da4w quantizes products of float32 with constant weights whose rows are whole groups"
        }
        Quantize::Observe(_) | Quantize::ObserveErrors(_) | Quantize::Static(_) => {
            "int8 quantizes convolutions and products of float32, and sums, elementwise products and means of values"
        }
    };
    let left: Vec<String> = outcomes.flat_map(|outcome| &outcome.left).map(FloatNode::to_string).collect();
    let mut problem = format!("there is nothing to quantize: {wanted}");
    match left.split_at_checked(MAX_LISTED) {
        _ if left.is_empty() => problem.push_str(", and the program has none"),
        None => problem.extend(left.iter().map(|line| format!("\n  {}", pteron_operator::shown_line(line)))),
        Some((first, rest)) => {
            problem.extend(first.iter().map(|line| format!("\n  {}", pteron_operator::shown_line(line))));
            problem.push_str(&format!("\n  and {} more", rest.len()));
        }
    }
    Err(Error::Option(problem))
}

/// The maximum number of unquantized nodes that an error lists.
const MAX_LISTED: usize = 8;

/// Quantizes a program after all passes have run.
pub(crate) fn run(
    program: &mut ExportedProgram,
    how: &Quantize,
    keep_float: &BTreeSet<String>,
    first: FirstOperands,
) -> Result<Outcome> {
    products::to_linear(program, products::Weights::Constant)?;
    let (kept_vars, kept) = find_kept_nodes(program, keep_float);
    let keep = &kept_vars;
    match how {
        Quantize::Dynamic => half::widen(program, Some(rows::Weights::EightBits), keep),
        Quantize::FourBits { group } => {
            half::widen(program, Some(rows::Weights::FourBits { group: (*group).max(1) }), keep);
        }
        Quantize::Observe(_) | Quantize::ObserveErrors(_) | Quantize::Static(_) => {
            half::widen(program, None, keep)
        }
    }
    let mut outcome = match how {
        Quantize::Dynamic => rows::run(program, rows::Weights::EightBits, keep),
        Quantize::FourBits { group } => {
            if *group == 0 || !group.is_multiple_of(32) {
                let problem = format!("groups of {group} weights: they are of a multiple of 32 elements");
                return Err(Error::Option(problem));
            }
            rows::run(program, rows::Weights::FourBits { group: *group }, keep)
        }
        Quantize::Observe(schemes) | Quantize::ObserveErrors(schemes) | Quantize::Static(schemes) => {
            let none = StaticScheme::default();
            let scheme = schemes.get(&program.name).unwrap_or(&none);
            equalize::run(program, &scheme.channels);
            match how {
                Quantize::Static(_) => values::quantize(program, scheme, keep, first)?,
                Quantize::ObserveErrors(_) => errors::observe(program, scheme, keep)?,
                _ => values::observe(program, keep),
            }
        }
    };
    if matches!(how, Quantize::Static(_)) {
        rows::run_nested(program, keep, &mut outcome);
    }
    if !matches!(how, Quantize::Observe(_) | Quantize::ObserveErrors(_)) {
        embeddings::run(program, &mut outcome, keep);
    }
    outcome.kept = kept;
    if cfg!(debug_assertions) {
        program.verify()?;
    }
    Ok(outcome)
}

/// The nodes to keep in float, by their first results, and the names in `keep_float` that belong to them. In a program
/// of several methods, a node is named `method/node` if others have nodes of its name.
fn find_kept_nodes(
    program: &ExportedProgram,
    keep_float: &BTreeSet<String>,
) -> (HashSet<VarId>, BTreeSet<String>) {
    let (mut vars, mut names) = (HashSet::new(), BTreeSet::new());
    if keep_float.is_empty() {
        return (vars, names);
    }
    program.graph.for_each_node(&mut |node| {
        let Some(&var) = node.outputs.first() else { return };
        let name = program.node_name(node);
        let widened = format!("{name}{}", half::SUFFIX);
        let of_method = [&name, &widened].map(|name| format!("{}/{name}", program.name));
        for name in of_method.into_iter().chain([name, widened]) {
            if keep_float.contains(&name) {
                vars.insert(var);
                names.insert(name);
            }
        }
    });
    (vars, names)
}

/// Fails if a name in `keep_float` is not the name of a node.
pub(crate) fn check_kept_names<'o>(
    keep_float: &BTreeSet<String>,
    outcomes: impl Iterator<Item = &'o Outcome> + Clone,
) -> Result<()> {
    let Some(unknown) = keep_float.iter().find(|name| !outcomes.clone().any(|o| o.kept.contains(*name)))
    else {
        return Ok(());
    };
    let layers = outcomes.clone().flat_map(|o| o.layers.iter().map(|layer| layer.name.as_str()));
    let left = outcomes.clone().flat_map(|o| o.left.iter().map(|node| node.name.as_str()));
    let like = pteron_operator::did_you_mean(unknown, layers.chain(left));
    Err(Error::Option(format!("there is no node `{unknown}` to keep in float{like}")))
}

/// The number of multiplications in a product or convolution; 0 for other nodes. Dynamic sizes count as 1.
fn multiplications(program: &ExportedProgram, node: &ExportedNode) -> u64 {
    let sizes = |var: VarId| -> Vec<u64> {
        let size = |size: &Size| size.known().and_then(|n| u64::try_from(n).ok()).unwrap_or(1);
        program.spec(var).map(|spec| spec.sizes.iter().map(size).collect()).unwrap_or_default()
    };
    let operand = |name: &str| node.arg(name).and_then(Argument::var).map(sizes);
    let is_transposed = matches!(node.arg("transposed"), Some(Argument::Bool(true)));
    let product = |sizes: &[u64]| sizes.iter().fold(1u64, |n, &size| n.saturating_mul(size));
    let Some(results) = node.outputs.first().map(|&out| product(&sizes(out))) else { return 0 };
    let each = match &*node.target {
        "aten.convolution.default" if is_transposed => {
            let (Some(x), Some(weight)) = (operand("input"), operand("weight")) else { return 0 };
            return product(&x).saturating_mul(product(weight.get(1..).unwrap_or(&[])));
        }
        "aten.linear.default" | "aten.convolution.default" => {
            operand("weight").map(|weight| product(weight.get(1..).unwrap_or(&[])))
        }
        "aten.mm.default" | "aten.bmm.default" => operand("self").and_then(|x| x.last().copied()),
        "aten.addmm.default" => operand("mat1").and_then(|x| x.last().copied()),
        _ => None,
    };
    each.map_or(0, |each| results.saturating_mul(each))
}

/// Whether a value is a float32 constant that is never mutated.
fn is_float_constant(program: &ExportedProgram, var: VarId) -> bool {
    program.spec(var).is_some_and(|spec| spec.dtype == ScalarType::Float)
        && program.constants.contains_key(&var)
        && !program.is_mutated(var)
}

/// The elements, in row-major order, of a float32 constant that is never mutated.
pub(crate) fn floats(program: &ExportedProgram, var: VarId) -> Option<Vec<f32>> {
    let data = program.row_major_bytes(var).filter(|_| is_float_constant(program, var))?;
    Some(data.bytes().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

/// Adds a constant of these bytes, named after the value `like` with `suffix` appended.
pub(crate) fn add_derived_constant(
    program: &mut ExportedProgram,
    like: VarId,
    suffix: &str,
    spec: TensorSpec,
    bytes: Vec<u8>,
) -> VarId {
    let name = program.constants.get(&like).and_then(|data| data.name.clone());
    let name = name.map(|name| Arc::from(format!("{name}.{suffix}")));
    let var = format!("{}_{suffix}_{}", program.var(like).name, program.num_vars());
    let range = 0..bytes.len();
    program.add_constant(var, spec, ConstantTensor { name, bytes: Arc::new(bytes), range })
}

/// Appends a node with tensor results to `nodes`.
pub(crate) fn push_node(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    source: &Arc<Source>,
    target: &str,
    args: Vec<(&str, Argument)>,
    specs: Vec<TensorSpec>,
) -> Vec<VarId> {
    let mut outputs = Vec::with_capacity(specs.len());
    for spec in specs {
        let name = format!("quantized_{}", program.num_vars());
        outputs.push(program.add_var(name, VarType::Tensor(spec)));
    }
    nodes.push(ExportedNode {
        target: target.into(),
        args: args.into_iter().map(|(name, arg)| (name.into(), arg)).collect(),
        outputs: outputs.clone(),
        source: Arc::clone(source),
    });
    outputs
}

/// Gives a node another value as the argument `name`.
fn replace_argument(node: &mut ExportedNode, name: &str, var: VarId) {
    for (argument, value) in &mut node.args {
        if **argument == *name {
            *value = Argument::Var(var);
        }
    }
}

/// The trailing arguments of quantization: the range and the type of the quantized values.
pub(crate) fn range_args(low: i64, high: i64) -> [(&'static str, Argument); 3] {
    [
        ("quant_min", Argument::Int(low)),
        ("quant_max", Argument::Int(high)),
        ("dtype", Argument::Dtype(ScalarType::Char)),
    ]
}

/// The report on a product or convolution that is not quantized, with the reason; `None` for other nodes. `rows` is the
/// weight scheme of dynamic quantization, `None` for static.
fn unquantized_node(
    program: &ExportedProgram,
    node: &ExportedNode,
    rows: Option<rows::Weights>,
    keep: &HashSet<VarId>,
) -> Option<FloatNode> {
    let is_kept = node.outputs.first().is_some_and(|out| keep.contains(out));
    let operand = |name: &str| node.arg(name).and_then(Argument::var);
    let weight = match &*node.target {
        "aten.linear.default" => operand("weight"),
        "aten.convolution.default" if rows.is_some() => {
            return Some(float_node(program, node, "convolutions are quantized by `int8`"));
        }
        "aten.convolution.default" => operand("weight"),
        "aten.mm.default" | "aten.addmm.default" | "aten.bmm.default" => operand("mat2"),
        _ if is_kept => return Some(float_node(program, node, KEPT)),
        _ => return None,
    }?;
    if is_kept {
        return Some(float_node(program, node, KEPT));
    }
    if !program.constants.contains_key(&weight) {
        let reason = match rows {
            Some(_) => "what it multiplies with is computed, no constant",
            None => "it multiplies computed values of another type than float32, or one with a constant",
        };
        return Some(float_node(program, node, reason));
    }
    if !is_float_constant(program, weight) {
        return Some(float_node(
            program,
            node,
            "its weights are of another type than float32, or are written",
        ));
    }
    if *node.target == *"aten.addmm.default" {
        return Some(float_node(program, node, "it scales, or adds more than a number to each column"));
    }
    if let (Some(rows::Weights::FourBits { group }), Some(sizes)) =
        (rows, program.spec(weight)?.known_sizes())
    {
        let columns = sizes.last().copied().unwrap_or(0);
        if columns % group as i64 != 0 {
            return Some(float_node(
                program,
                node,
                &format!("rows of {columns} weights are no whole groups of {group}"),
            ));
        }
    }
    Some(float_node(program, node, "its values are not of float32 in row-major order"))
}

/// Why a node that the options name is not quantized.
const KEPT: &str = "it is kept in float";

fn float_node(program: &ExportedProgram, node: &ExportedNode, reason: &str) -> FloatNode {
    FloatNode {
        name: program.node_name(node),
        target: node.target.to_string(),
        reason: reason.to_owned(),
        multiplications: multiplications(program, node),
    }
}

/// The spec of a row-major tensor of static sizes.
pub(crate) fn static_spec(dtype: ScalarType, sizes: &[usize]) -> TensorSpec {
    TensorSpec::contiguous(dtype, sizes.iter().map(|&n| Size::Int(n as i64)).collect())
}
