//! Decodes nodes, and checks nodes and values for consistency.

use super::node::{Binary, Conv, Node, Op, Pool, Unary};
use super::read::{Graph, In};
use super::value::{Datatype, Quantization, Role, Value};
use pteron_format::{ErrorKind, Result};

/// What was expected and what was found.
type Fault = (String, String);

/// Maximum kernel size, stride, padding, dilation and number of channels.
const MAX_STEP: u32 = 1 << 20;

fn fault<T>(expected: impl Into<String>, found: impl ToString) -> Option<T>
where
    T: From<Fault>,
{
    Some(T::from((expected.into(), found.to_string())))
}

/// The inconsistency between a value's type, role and quantization, if there is one.
pub(super) fn check_constant(value: &Value) -> Option<Fault> {
    use Datatype as D;
    let name = value.datatype.name();
    let constant = matches!(value.role, Role::Constant(_));
    match (&value.quantization, value.datatype) {
        (_, D::Qdint8 | D::Qpint8 | D::Pfp32) if constant => fault("a type of constants", name),
        (Quantization::None, d) if d.is_quantized() => {
            fault("quantization parameters", format!("none for {name}"))
        }
        (Quantization::None, _) => None,
        (Quantization::PerTensor { zero_point: 0, .. }, D::Qint32) => None,
        (Quantization::PerTensor { zero_point, .. }, D::Qint8 | D::Quint8) => {
            let low = if value.datatype == D::Qint8 { -128 } else { 0 };
            let fits = (low..=low + 255).contains(zero_point);
            if fits { None } else { fault(format!("a zero point of {low} to {}", low + 255), zero_point) }
        }
        (Quantization::PerChannel { channel_dim, .. }, D::Qcint8 | D::Qcint4 | D::Qcint32) => {
            let dims = value.dims.len();
            if *channel_dim < dims {
                None
            } else {
                fault(format!("a channel dimension below {dims}"), channel_dim)
            }
        }
        (Quantization::PerToken { num_nonbatch_dims: n }, D::Qdint8 | D::Qpint8) => {
            let dims = value.dims.len();
            if *n <= dims {
                None
            } else {
                fault(format!("at most {dims} dimensions that share parameters"), n)
            }
        }
        (Quantization::PerGroup { channel_dim: 0, group_size, .. }, D::Qbint4) => match value.dims[..] {
            [_, columns] if columns % group_size == 0 => None,
            _ => fault(format!("a matrix of rows of groups of {group_size}"), format!("{:?}", value.dims)),
        },
        (_, _) => fault("a type that its quantization parameters are for", name),
    }
}

/// Decodes a node with a tag of the schema's union.
pub(super) fn decode(graph: &mut Graph<'_>, kind: u8, t: In<'_, '_, '_>) -> Result<Node> {
    let unary = |f| Op::Unary(f);
    match kind {
        1 => binary(graph, t, Op::Binary(Binary::Add)),
        2 => products(graph, t),
        3 => single(graph, t, 0, Op::Softmax),
        4 => single(graph, t, 0, unary(Unary::Sigmoid)),
        5 => {
            let perm = sizes(t, 1, "perm", Some(0))?;
            single(graph, t, 2, Op::Transpose { perm })
        }
        6 => single(graph, t, 0, unary(Unary::Clamp)),
        7 => convolution(graph, t, Op::Conv),
        8 => binary(graph, t, Op::Binary(Binary::Divide)),
        9 => {
            let (height, width) = (size(t, 0, "new_height")?, size(t, 1, "new_width")?);
            let flags: u32 = t.get(4, "flags", 0)?;
            let op =
                Op::ResizeBilinear { height, width, align_corners: flags & 8 != 0, legacy: flags & 4 != 0 };
            single(graph, t, 2, op)
        }
        10 => {
            let (pre, post) = (sizes(t, 0, "pre_paddings", None)?, sizes(t, 1, "post_paddings", None)?);
            let op = Op::Pad { pre, post, value: t.get(2, "padding_value", 0.0)? };
            single(graph, t, 3, op)
        }
        11 => pooling(graph, t, Op::AvgPool),
        12 => binary(graph, t, Op::Binary(Binary::Minimum)),
        13 => convolution(graph, t, Op::DepthwiseConv),
        14 => pooling(graph, t, Op::MaxPool),
        15 => binary(graph, t, Op::Binary(Binary::Multiply)),
        16 => binary(graph, t, Op::Binary(Binary::Subtract)),
        17 => single(graph, t, 0, unary(Unary::Floor)),
        18 => single(graph, t, 0, Op::Convert),
        19 => {
            let flags: u32 = t.get(2, "flags", 0)?;
            single(graph, t, 0, Op::GlobalAvgPool { keep_dims: flags & 0x40 != 0 })
        }
        20 => {
            let sizes = sizes(t, 1, "new_shape", Some(0))?;
            single(graph, t, 2, Op::Reshape { sizes })
        }
        21 => arg_max_pooling(graph, t),
        22 => single(graph, t, 0, unary(Unary::SquareRoot)),
        23 => single(graph, t, 0, unary(Unary::Ceiling)),
        24 => single(graph, t, 0, unary(Unary::Hardswish)),
        25 => {
            let slope = t.get(0, "negative_slope", 0.0)?;
            single(graph, t, 1, unary(Unary::LeakyRelu { slope }))
        }
        26 => binary(graph, t, Op::Binary(Binary::Maximum)),
        27 => single(graph, t, 0, unary(Unary::Negate)),
        28 => single(graph, t, 0, unary(Unary::Square)),
        29 => {
            let alpha = t.get(0, "alpha", 0.0)?;
            single(graph, t, 1, unary(Unary::Elu { alpha }))
        }
        30 => single(graph, t, 0, unary(Unary::Abs)),
        31 => binary(graph, t, Op::PRelu),
        32 => concat(graph, t, 2),
        33 => concat(graph, t, 3),
        34 => concat(graph, t, 4),
        35 => {
            let op = Op::Slice {
                offsets: sizes(t, 1, "offsets", Some(0))?,
                sizes: sizes(t, 2, "sizes", Some(0))?,
            };
            single(graph, t, 3, op)
        }
        36 => attention(graph, t),
        37 => {
            let transposed = t.get(3, "flags", 0u32)? & 1 != 0;
            binary(graph, t, Op::BatchMatMul { transposed })
        }
        38 => concat(graph, t, 5),
        39 => convolution(graph, t, Op::ConvTranspose),
        40 => single(graph, t, 0, unary(Unary::ReciprocalSquareRoot)),
        41 => single(graph, t, 0, unary(Unary::Log)),
        42 => single(graph, t, 0, unary(Unary::Gelu)),
        43 => single(graph, t, 0, unary(Unary::Tanh)),
        44 => single(graph, t, 0, unary(Unary::Exp)),
        45 => single(graph, t, 0, unary(Unary::Sin)),
        46 => single(graph, t, 0, Op::Copy),
        47 => single(graph, t, 0, unary(Unary::Cos)),
        _ => Err(t.error_here(ErrorKind::Newer, "a kind of node up to 47", kind)),
    }
}

fn node(t: In<'_, '_, '_>, flags: usize, op: Op, inputs: Vec<usize>, outputs: Vec<usize>) -> Result<Node> {
    Ok(Node { flags: t.get(flags, "flags", 0)?, ..Node::new(op, inputs, outputs) })
}

/// Decodes a node with one input and one output: `first` is the input field, followed by output and flags.
fn single(graph: &mut Graph<'_>, t: In<'_, '_, '_>, first: usize, op: Op) -> Result<Node> {
    let input = graph.input(t, first, "input_id")?;
    let output = graph.output(t, first + 1, "output_id")?;
    node(t, first + 2, op, vec![input], vec![output])
}

fn binary(graph: &mut Graph<'_>, t: In<'_, '_, '_>, op: Op) -> Result<Node> {
    let inputs = vec![graph.input(t, 0, "input1_id")?, graph.input(t, 1, "input2_id")?];
    let output = graph.output(t, 2, "output_id")?;
    node(t, 3, op, inputs, vec![output])
}

/// Decodes input, filter and optional bias from three fields, starting at `first`, and the output from the next one.
fn weighted(graph: &mut Graph<'_>, t: In<'_, '_, '_>, first: usize) -> Result<(Vec<usize>, Vec<usize>)> {
    let mut inputs = vec![graph.input(t, first, "input1_id")?, graph.input(t, first + 1, "filter_id")?];
    inputs.extend(graph.optional(t, first + 2, "bias_id")?);
    Ok((inputs, vec![graph.output(t, first + 3, "output_id")?]))
}

fn products(graph: &mut Graph<'_>, t: In<'_, '_, '_>) -> Result<Node> {
    let transposed = t.get(4, "flags", 0u32)? & 1 != 0;
    let (inputs, outputs) = weighted(graph, t, 0)?;
    node(t, 4, Op::FullyConnected { transposed }, inputs, outputs)
}

fn convolution(graph: &mut Graph<'_>, t: In<'_, '_, '_>, op: fn(Conv) -> Op) -> Result<Node> {
    let conv = Conv {
        padding: padding(t)?,
        kernel: [positive(t, 4, "kernel_height")?, positive(t, 5, "kernel_width")?],
        stride: [positive(t, 6, "subsampling_height")?, positive(t, 7, "subsampling_width")?],
        dilation: [positive(t, 8, "dilation_height")?, positive(t, 9, "dilation_width")?],
        group_inputs: positive(t, 10, "group_input_channels")?,
        group_outputs: positive(t, 11, "group_output_channels")?,
        groups: positive(t, 12, "groups")?,
        adjustment: [step(t, 13, "adjustment_height")?, step(t, 14, "adjustment_width")?],
    };
    let (inputs, outputs) = weighted(graph, t, 15)?;
    node(t, 19, op(conv), inputs, outputs)
}

fn pooling(graph: &mut Graph<'_>, t: In<'_, '_, '_>, op: fn(Pool) -> Op) -> Result<Node> {
    // Average pooling has no dilation; its fields are 0.
    let dilation = [step(t, 8, "dilation_height")?.max(1), step(t, 9, "dilation_width")?.max(1)];
    let pool = Pool {
        padding: padding(t)?,
        window: [positive(t, 4, "pooling_height")?, positive(t, 5, "pooling_width")?],
        stride: [positive(t, 6, "stride_height")?, positive(t, 7, "stride_width")?],
        dilation,
    };
    single(graph, t, 10, op(pool))
}

fn arg_max_pooling(graph: &mut Graph<'_>, t: In<'_, '_, '_>) -> Result<Node> {
    let window = [positive(t, 4, "pooling_height")?, positive(t, 5, "pooling_width")?];
    let pool = Pool { padding: padding(t)?, window, stride: window, dilation: [1; 2] };
    let input = graph.input(t, 6, "input_id")?;
    let outputs = vec![graph.output(t, 7, "output_value_id")?, graph.output(t, 8, "output_index_id")?];
    node(t, 9, Op::ArgMaxPool(pool), vec![input], outputs)
}

fn concat(graph: &mut Graph<'_>, t: In<'_, '_, '_>, count: usize) -> Result<Node> {
    const FIELDS: [(usize, &str); 5] =
        [(1, "input1_id"), (2, "input2_id"), (3, "input3_id"), (4, "input4_id"), (7, "input5_id")];
    let inputs =
        FIELDS[..count].iter().map(|(id, name)| graph.input(t, *id, name)).collect::<Result<Vec<_>>>()?;
    let output = graph.output(t, 5, "output_id")?;
    let rank = graph.values[inputs[0]].dims.len() as i64;
    let given = i64::from(t.get(0, "axis", 0i32)?);
    let axis = if given < 0 { given + rank } else { given };
    match usize::try_from(axis).ok().filter(|_| axis < rank) {
        Some(axis) => node(t, 6, Op::Concat { axis }, inputs, vec![output]),
        None => Err(t.error(ErrorKind::Invalid, 0, "axis", format!("a dimension of {rank}"), given)),
    }
}

fn attention(graph: &mut Graph<'_>, t: In<'_, '_, '_>) -> Result<Node> {
    let fields = [(0, "query_id"), (1, "key_id"), (2, "value_id"), (3, "scale_id"), (4, "mask_id")];
    let inputs = fields.iter().map(|(id, name)| graph.input(t, *id, name)).collect::<Result<Vec<_>>>()?;
    let output = graph.output(t, 5, "output_id")?;
    node(t, 6, Op::ScaledDotProductAttention, inputs, vec![output])
}

fn padding(t: In<'_, '_, '_>) -> Result<[usize; 4]> {
    let names = ["padding_top", "padding_right", "padding_bottom", "padding_left"];
    let mut padding = [0; 4];
    for (i, name) in names.into_iter().enumerate() {
        padding[i] = step(t, i, name)?;
    }
    Ok(padding)
}

/// Reads a size, which may be large.
fn size(t: In<'_, '_, '_>, id: usize, name: &'static str) -> Result<usize> {
    Ok(t.get::<u32>(id, name, 0)? as usize)
}

/// Reads a kernel size, stride, padding, dilation or number of channels.
fn step(t: In<'_, '_, '_>, id: usize, name: &'static str) -> Result<usize> {
    let found: u32 = t.get(id, name, 0)?;
    if found <= MAX_STEP {
        return Ok(found as usize);
    }
    Err(t.error(ErrorKind::Limit, id, name, format!("at most {MAX_STEP}"), found))
}

fn positive(t: In<'_, '_, '_>, id: usize, name: &'static str) -> Result<usize> {
    match step(t, id, name)? {
        0 => Err(t.error(ErrorKind::Invalid, id, name, "a number above 0", 0)),
        found => Ok(found),
    }
}

/// Reads a vector of sizes; `count` is the field with its length.
fn sizes(t: In<'_, '_, '_>, id: usize, name: &'static str, count: Option<usize>) -> Result<Vec<usize>> {
    let sizes = t.scalars::<u32>(id, name)?;
    if let Some(count) = count {
        let number: u32 = t.get(count, "num_dims", 0)?;
        if number as usize != sizes.len() {
            let expected = format!("the {} of `{name}`", sizes.len());
            return Err(t.error(ErrorKind::Invalid, count, "num_dims", expected, number));
        }
    }
    Ok(sizes.into_iter().map(|size| size as usize).collect())
}

/// The inconsistency between a node and its values, if there is one.
pub(super) fn check_node(values: &[Value], node: &Node) -> Option<Fault> {
    let dims = |input: usize| &values[node.inputs[input]].dims[..];
    let rank = dims(0).len();
    let of_rank = |n: usize, what: &str| {
        if n == rank { None } else { fault(format!("{what} for the {rank} dimensions of the input"), n) }
    };
    match &node.op {
        Op::Transpose { perm } => {
            let mut sorted = perm.clone();
            sorted.sort_unstable();
            if sorted.iter().copied().eq(0..rank) {
                return None;
            }
            fault(format!("a permutation of {rank} dimensions"), format!("{perm:?}"))
        }
        Op::Slice { offsets, sizes } => {
            of_rank(offsets.len(), "offsets").or_else(|| of_rank(sizes.len(), "sizes"))
        }
        Op::Pad { pre, post, .. } => {
            of_rank(pre.len(), "paddings before").or_else(|| of_rank(post.len(), "paddings behind"))
        }
        Op::Reshape { sizes } if sizes.len() > super::MAX_RANK => {
            fault(format!("at most {} dimensions", super::MAX_RANK), sizes.len())
        }
        Op::Reshape { sizes } if sizes.iter().filter(|n| **n == 0).count() > 1 => {
            fault("at most one size of 0", format!("{sizes:?}"))
        }
        Op::ResizeBilinear { height: 0, .. } | Op::ResizeBilinear { width: 0, .. } => {
            fault("a size above 0", 0)
        }
        Op::Softmax | Op::PRelu if rank == 0 => fault("an input with dimensions", "a number"),
        Op::Conv(_)
        | Op::DepthwiseConv(_)
        | Op::ConvTranspose(_)
        | Op::AvgPool(_)
        | Op::MaxPool(_)
        | Op::ArgMaxPool(_)
        | Op::GlobalAvgPool { .. }
        | Op::ResizeBilinear { .. }
            if rank != 4 =>
        {
            fault("an image of 4 dimensions", rank)
        }
        Op::Conv(conv) | Op::ConvTranspose(conv) => {
            filters(values, node, conv, &[conv.outputs(), conv.kernel[0], conv.kernel[1], conv.group_inputs])
        }
        Op::DepthwiseConv(conv) if conv.group_inputs != 1 => {
            fault("1 input channel of each group", conv.group_inputs)
        }
        Op::DepthwiseConv(conv) => {
            filters(values, node, conv, &[1, conv.kernel[0], conv.kernel[1], conv.outputs()])
        }
        Op::FullyConnected { transposed } => {
            let (&[rows, columns], true) = (dims(1), rank > 0) else {
                return fault(
                    "an input with dimensions and a matrix",
                    format!("{:?} and {:?}", dims(0), dims(1)),
                );
            };
            let outputs = if *transposed { columns } else { rows };
            bias(values, node, outputs)
        }
        Op::AvgPool(pool) | Op::MaxPool(pool) | Op::ArgMaxPool(pool) => {
            let [top, right, bottom, left] = pool.padding;
            let reach = |d: usize| (pool.window[d] - 1) * pool.dilation[d];
            let inside = top.max(bottom) <= reach(0) && left.max(right) <= reach(1);
            if inside {
                None
            } else {
                fault("padding that is less than a window", format!("{:?}", pool.padding))
            }
        }
        _ => None,
    }
}

fn filters(values: &[Value], node: &Node, conv: &Conv, expected: &[usize]) -> Option<Fault> {
    let found = &values[node.inputs[1]].dims;
    if conv
        .groups
        .checked_mul(conv.group_inputs.max(conv.group_outputs))
        .is_none_or(|n| n > u32::MAX as usize)
    {
        return fault("fewer channels", format!("{} groups", conv.groups));
    }
    if found != expected {
        return fault(format!("a filter of {expected:?}"), format!("one of {found:?}"));
    }
    bias(values, node, conv.outputs())
}

fn bias(values: &[Value], node: &Node, outputs: usize) -> Option<Fault> {
    let found = &values[*node.inputs.get(2)?].dims;
    if found[..] == [outputs] {
        return None;
    }
    fault(format!("a bias of [{outputs}]"), format!("one of {found:?}"))
}
