//! Pooling of channels-last images becomes nodes of the graph's own.

use crate::graph::Graph;
use crate::layouts::has_layout;
use crate::node::{Call, Node, Op, Pool};
use kernels::compute::{Layout, Pooling, Windows};
use tensor::ScalarType;

/// Rewrites the poolings of a graph.
pub(super) fn run(graph: &mut Graph) {
    let counts = graph.use_counts();
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        let unused = node.outputs.iter().skip(1).all(|v| counts[v.0] == 0);
        let found = node.op.as_call().filter(|_| unused).and_then(|call| pool(graph, node, call));
        if let Some(pool) = found {
            let node = &mut graph.nodes[i];
            node.op = Op::Pool(pool);
            node.outputs.truncate(1);
        }
    }
}

fn pool(graph: &Graph, node: &Node, call: &Call) -> Option<Pool> {
    let max = match call.name() {
        "aten::max_pool2d_with_indices.out" => true,
        "aten::avg_pool2d.out" => false,
        _ => return None,
    };
    let (x, out) = (graph.meta(*node.inputs.first()?), graph.meta(*node.outputs.first()?));
    let image = |m: &tensor::TensorMeta| {
        m.rank() == 4 && m.dtype() == ScalarType::Float && has_layout(m, Layout::ChannelsLast)
    };
    if call.input_at(0) != Some(0) || !image(x) || !image(out) || x.numel() == 0 {
        return None;
    }
    let pair = |position: usize, absent: Option<[usize; 3]>, fill: usize| -> Option<[usize; 3]> {
        let one = |v: i64| usize::try_from(v).ok().filter(|&v| v < 1 << 20);
        match call.ints(position) {
            None if call.is_none(position) => absent,
            None => None,
            Some([]) => absent,
            Some(&[v]) => Some([fill, one(v)?, one(v)?]),
            Some(&[h, w]) => Some([fill, one(h)?, one(w)?]),
            Some(_) => None,
        }
    };
    let kernel = pair(1, None, 1)?;
    let stride = pair(2, Some(kernel), 1)?;
    let padding = pair(3, Some([0; 3]), 0)?;
    let dilation = if max { pair(4, Some([1; 3]), 1)? } else { [1; 3] };
    let ceil = call.bool(if max { 5 } else { 4 })?;
    let pooling = match max {
        true => Pooling::Max,
        false if !call.is_none(6) => {
            let divisor = call.int(6).filter(|&d| d != 0)?;
            Pooling::Sum(1.0 / divisor as f32)
        }
        false if call.bool(5)? => Pooling::MeanOfPadded,
        false => Pooling::Mean,
    };
    let windows = Windows { kernel, stride, padding, dilation };
    let fits = (0..2).all(|d| {
        let (input, output) = (x.sizes()[2 + d], out.sizes()[2 + d]);
        output_size(&windows, 1 + d, input, ceil) == Some(output)
    });
    (fits && x.sizes()[..2] == out.sizes()[..2]).then_some(Pool { pooling, windows })
}

/// The number of windows along a dimension: with `ceil`, also the last one that begins within the image
/// or the padding before it.
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
