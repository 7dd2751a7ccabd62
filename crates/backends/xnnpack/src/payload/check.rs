//! Checks nodes and values for consistency.

use super::node::{Conv, Node, Op};
use super::value::{Datatype, Quantization, Role, Value};

/// A fault in a payload: what was expected, and what was found.
type Fault = (String, String);

fn fault<T>(expected: impl Into<String>, actual: impl ToString) -> Option<T>
where
    T: From<Fault>,
{
    Some(T::from((expected.into(), actual.to_string())))
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
        Op::Conv(conv) | Op::ConvTranspose(conv) => check_filters(
            values,
            node,
            conv,
            &[conv.outputs(), conv.kernel[0], conv.kernel[1], conv.group_inputs],
        ),
        Op::DepthwiseConv(conv) if conv.group_inputs != 1 => {
            fault("1 input channel of each group", conv.group_inputs)
        }
        Op::DepthwiseConv(conv) => {
            check_filters(values, node, conv, &[1, conv.kernel[0], conv.kernel[1], conv.outputs()])
        }
        Op::FullyConnected { transposed } => {
            let (&[rows, columns], true) = (dims(1), rank > 0) else {
                return fault(
                    "an input with dimensions and a matrix",
                    format!("{:?} and {:?}", dims(0), dims(1)),
                );
            };
            let outputs = if *transposed { columns } else { rows };
            check_bias(values, node, outputs)
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

fn check_filters(values: &[Value], node: &Node, conv: &Conv, expected: &[usize]) -> Option<Fault> {
    let dims = &values[node.inputs[1]].dims;
    if conv
        .groups
        .checked_mul(conv.group_inputs.max(conv.group_outputs))
        .is_none_or(|n| n > u32::MAX as usize)
    {
        return fault("fewer channels", format!("{} groups", conv.groups));
    }
    if dims != expected {
        return fault(format!("a filter of {expected:?}"), format!("one of {dims:?}"));
    }
    check_bias(values, node, conv.outputs())
}

fn check_bias(values: &[Value], node: &Node, outputs: usize) -> Option<Fault> {
    let dims = &values[*node.inputs.get(2)?].dims;
    if dims[..] == [outputs] {
        return None;
    }
    fault(format!("a bias of [{outputs}]"), format!("one of {dims:?}"))
}
