//! Rewrites pooling of channels-last images; max pooling of quantized values runs on the 8-bit values directly.

use crate::graph::{Graph, NodeId, meaning, single_use_producer};
use crate::layouts::has_layout;
use crate::operation::{OpKind, as_op, producer_as};
use crate::ops::pool::Pool;
use crate::ops::quantize::{Dequantize, Quantize};
use pteron_kernels::compute::{Layout, Pooling, Windows};
use pteron_operator::Meaning;
use pteron_operator::facts::{Pool2d, PoolReduce};
use pteron_tensor::ScalarType;

/// Window sizes, strides, paddings and dilations must be less than this.
const MAX_EXTENT: usize = 1 << 20;

/// Rewrites all pooling calls of a graph.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        let unused = graph.node(node).outputs().iter().skip(1).all(|&v| !graph.is_used(v));
        if let Some(Meaning::Pool(of)) = meaning(graph, node).filter(|_| unused)
            && let Some(pool) = pool(graph, node, &of)
        {
            graph.set_kind(node, OpKind::arc(pool));
            graph.truncate_outputs(node, 1);
        }
    }
    for node in graph.order() {
        pool_quantized(graph, node);
    }
}

/// Runs max pooling on the quantized values, between a dequantization and a quantization with the same parameters and
/// the full range of the type. Quantization is monotonic, so that the results are equal.
fn pool_quantized(graph: &mut Graph, node: NodeId) -> Option<()> {
    let &Quantize(q) = as_op(graph, node)?;
    let pooling = single_use_producer(graph, graph.node(node).inputs()[0])?;
    let pool = *as_op::<Pool>(graph, pooling).filter(|pool| pool.pooling == Pooling::Max)?;
    let (dequantize, &Dequantize(affine)) = producer_as(graph, graph.node(pooling).inputs()[0])?;
    let x = graph.node(dequantize).inputs()[0];
    let (from, to) = (graph.meta(x), graph.meta(graph.node(node).outputs()[0]));
    let all = if to.dtype() == ScalarType::Char { (-128, 127) } else { (0, 255) };
    let same = affine == q.affine
        && affine.scale.is_normal()
        && from.dtype() == to.dtype()
        && (q.low, q.high) == all;
    if !same || !has_layout(from, Layout::ChannelsLast) || !has_layout(to, Layout::ChannelsLast) {
        return None;
    }
    graph.rewrite(node, OpKind::arc(pool), &[x]);
    graph.absorb(node, pooling);
    graph.remove(pooling);
    Some(())
}

fn pool(graph: &Graph, node: NodeId, of: &Pool2d) -> Option<Pool> {
    let (&[x], Some(&out)) = (graph.node(node).inputs(), graph.node(node).outputs().first()) else {
        return None;
    };
    let (x, out) = (graph.meta(x), graph.meta(out));
    let image = |m: &pteron_tensor::TensorMeta| {
        m.rank() == 4 && m.dtype() == ScalarType::Float && has_layout(m, Layout::ChannelsLast)
    };
    if !image(x) || !image(out) || x.numel() == 0 {
        return None;
    }
    let pooling = match of.reduce {
        PoolReduce::Max => Pooling::Max,
        PoolReduce::Avg { count_include_pad: false } => Pooling::Mean,
        PoolReduce::Avg { count_include_pad: true } => Pooling::MeanOfPadded,
        PoolReduce::SumDiv(divisor) => Pooling::Sum(1.0 / divisor as f32),
    };
    let all = [of.kernel, of.stride, of.padding, of.dilation];
    if all.iter().flatten().any(|&n| n >= MAX_EXTENT) {
        return None;
    }
    let space = |fill: usize, [h, w]: [usize; 2]| [fill, h, w];
    let windows = Windows {
        kernel: space(1, of.kernel),
        stride: space(1, of.stride),
        padding: space(0, of.padding),
        dilation: space(1, of.dilation),
    };
    let fits = (0..2).all(|d| {
        let (input, output) = (x.sizes()[2 + d], out.sizes()[2 + d]);
        output_size(&windows, 1 + d, input, of.ceil) == Some(output)
    });
    (fits && x.sizes()[..2] == out.sizes()[..2]).then_some(Pool { pooling, windows })
}

/// The number of windows along a dimension. With `ceil`, a partial last window counts if it begins within the image or
/// the padding before it.
fn output_size(w: &Windows, d: usize, input: usize, ceil: bool) -> Option<usize> {
    let positive = w.kernel[d] > 0 && w.stride[d] > 0 && w.dilation[d] > 0 && 2 * w.padding[d] <= w.kernel[d];
    let reach = w.dilation[d] * (w.kernel[d].checked_sub(1)?) + 1;
    let room = (input + 2 * w.padding[d]).checked_sub(reach).filter(|_| positive)?;
    let mut size = if ceil { room.div_ceil(w.stride[d]) } else { room / w.stride[d] } + 1;
    if ceil && (size - 1) * w.stride[d] >= input + w.padding[d] {
        size -= 1;
    }
    Some(size)
}
