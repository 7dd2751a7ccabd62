//! Post-training quantization, in the schemes of XNNPACK's quantizer and of torchao.
//!
//! | scheme | weights | inputs of linear layers and convolutions |
//! | --- | --- | --- |
//! | [`Quantize::Dynamic`] | int8, a scale for each output; linear layers only | int8, with parameters chosen per row at run time |
//! | [`Quantize::FourBits`] | 4 bits, a scale for each group of a row; linear layers only | the same |
//! | [`Quantize::Static`] | int8, a scale for each output | int8, by calibrated ranges |
//!
//! In each scheme, the tables of embeddings have int8 rows with a scale each.
//!
//! A program is quantized after its passes and before delegation, with `quantized_decomposed` operators that kernels
//! and backends understand. The compiler runs nothing: [`Quantize::Observe`] adds the values to calibrate to a
//! program's outputs; the caller runs that program and passes their [`ValueRanges`] back.

mod embeddings;
mod histogram;
mod layers;
mod rows;
mod values;

pub use histogram::Histogram;

use crate::passes::products;
use crate::{Error, Result};
use pteron_exported::{
    Argument, ConstantTensor, ExportedNode, ExportedProgram, Size, Source, TensorSpec, VarId, VarType,
};
use pteron_tensor::ScalarType;
use std::collections::BTreeMap;
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
    /// No quantization: the values whose ranges [`Quantize::Static`] needs are appended to the program's outputs.
    Observe,
    /// Int8 weights and activations, given the ranges of the values of each method.
    Static(BTreeMap<String, ValueRanges>),
}

/// The smallest and the largest element of values, by name.
pub type ValueRanges = BTreeMap<String, (f32, f32)>;

/// A linear layer, convolution or embedding that was quantized.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedLayer {
    /// The node's name.
    pub name: String,
    /// The node's operator.
    pub target: String,
    /// The root mean square of the weights' errors, relative to that of the weights.
    pub weight_error: f64,
}

/// The outcome of quantizing a program.
#[derive(Debug, Clone, Default)]
pub(crate) struct Outcome {
    pub(crate) layers: Vec<QuantizedLayer>,
    /// The values appended to the program's outputs.
    pub(crate) observed: Vec<String>,
    /// The number of values that are quantized or observed.
    pub(crate) values: usize,
    /// The products and convolutions that were not quantized, each with the reason.
    pub(crate) left: Vec<String>,
}

impl Outcome {
    fn is_empty(&self) -> bool {
        self.layers.is_empty() && self.values == 0
    }
}

/// Fails if quantization changes none of the methods.
pub(crate) fn expect_some<'o>(
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
        Quantize::Observe | Quantize::Static(_) => {
            "int8 quantizes convolutions and products of float32 with constant weights, and sums, products and means of values"
        }
    };
    let left: Vec<&str> = outcomes.flat_map(|outcome| &outcome.left).map(String::as_str).collect();
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
pub(crate) fn run(program: &mut ExportedProgram, how: &Quantize) -> Result<Outcome> {
    products::to_linear(program, products::Weights::Constant)?;
    let mut outcome = match how {
        Quantize::Dynamic => rows::run(program, rows::Weights::EightBits),
        Quantize::FourBits { group } => {
            if *group == 0 || !group.is_multiple_of(32) {
                let problem = format!("groups of {group} weights: they are of a multiple of 32 elements");
                return Err(Error::Option(problem));
            }
            rows::run(program, rows::Weights::FourBits { group: *group })
        }
        Quantize::Observe => values::observe(program),
        Quantize::Static(ranges) => {
            let none = BTreeMap::new();
            values::quantize(program, ranges.get(&program.name).unwrap_or(&none))?
        }
    };
    if *how != Quantize::Observe {
        embeddings::run(program, &mut outcome);
    }
    if cfg!(debug_assertions) {
        program.verify()?;
    }
    Ok(outcome)
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
pub(crate) fn constant(
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
fn push(
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

/// The trailing arguments of quantization: the range and the type of the quantized values.
fn range_args(low: i64, high: i64) -> [(&'static str, Argument); 3] {
    [
        ("quant_min", Argument::Int(low)),
        ("quant_max", Argument::Int(high)),
        ("dtype", Argument::Dtype(ScalarType::Char)),
    ]
}

/// Why a product or convolution is not quantized; `rows` is the weight scheme of dynamic quantization, `None` for
/// static.
fn why_left(program: &ExportedProgram, node: &ExportedNode, rows: Option<rows::Weights>) -> Option<String> {
    let operand = |name: &str| node.arg(name).and_then(Argument::var);
    let weight = match &*node.target {
        "aten.linear.default" => operand("weight"),
        "aten.convolution.default" if rows.is_some() => {
            return Some(left(program, node, "convolutions are quantized by `int8`"));
        }
        "aten.convolution.default" => operand("weight"),
        "aten.mm.default" | "aten.addmm.default" | "aten.bmm.default" => operand("mat2"),
        _ => return None,
    }?;
    if !program.constants.contains_key(&weight) {
        return Some(left(program, node, "what it multiplies with is computed, no constant"));
    }
    if !is_float_constant(program, weight) {
        return Some(left(program, node, "its weights are of another type than float32, or are written"));
    }
    if *node.target == *"aten.addmm.default" {
        return Some(left(program, node, "it scales, or adds more than a number to each column"));
    }
    if let (Some(rows::Weights::FourBits { group }), Some(sizes)) =
        (rows, program.spec(weight)?.known_sizes())
    {
        let columns = sizes.last().copied().unwrap_or(0);
        if columns % group as i64 != 0 {
            return Some(left(
                program,
                node,
                &format!("rows of {columns} weights are no whole groups of {group}"),
            ));
        }
    }
    Some(left(program, node, "its values are not of float32 in row-major order"))
}

fn left(program: &ExportedProgram, node: &ExportedNode, reason: &str) -> String {
    format!("`{}` ({}): {reason}", program.node_name(node), node.target)
}

/// A row-major tensor of static sizes.
pub(crate) fn of_sizes(dtype: ScalarType, sizes: &[usize]) -> TensorSpec {
    TensorSpec::contiguous(dtype, sizes.iter().map(|&n| Size::Int(n as i64)).collect())
}
