//! Images along convolutions become channels-last, where a pixel's channels lie together: what the
//! convolutions are fastest on. Conversions stand where such an image meets something that needs
//! another layout; two that meet cancel out.

use super::twins::Twins;
use crate::graph::{Graph, ValueId};
use crate::layouts::order_of;
use crate::node::{Node, Op};
use kernels::compute::Layout;
use tensor::TensorMeta;

/// Operators whose kernels take images in any layout, and write the same one: the position of the
/// output that is an image like the input goes with its name.
const ANY_LAYOUT: &[&str] = &[
    "aten::max_pool2d_with_indices.out",
    "aten::avg_pool2d.out",
    "aten::_adaptive_avg_pool2d.out",
    "aten::upsample_nearest2d.vec_out",
    "aten::upsample_bilinear2d.vec_out",
    "aten::constant_pad_nd.out",
    "aten::cat.out",
];

/// Converts convolutions and what lies between them.
pub(super) fn run(graph: &mut Graph) {
    let worth = graph.nodes.iter().any(|n| match &n.op {
        Op::Conv(conv) => conv.layout == Layout::ChannelsFirst,
        Op::QuantizedConv(_) => true,
        _ => false,
    });
    if !worth {
        return;
    }
    let mut pass = Pass(Twins::new(graph, Op::Relayout));
    for node in std::mem::take(&mut graph.nodes) {
        pass.node(graph, node);
    }
    pass.0.finish(graph);
}

/// Twins are channels-last.
struct Pass(Twins);

impl Pass {
    fn node(&mut self, graph: &mut Graph, mut node: Node) {
        let any = node.inputs.iter().any(|v| self.0.get(*v).is_some());
        match &mut node.op {
            Op::Conv(conv) if conv.layout == Layout::ChannelsFirst => {
                conv.layout = Layout::ChannelsLast;
                node.inputs[0] = self.twin(graph, node.inputs[0]);
                if conv.residual
                    && let Some(v) = node.inputs.pop()
                {
                    let twin = self.twin(graph, v);
                    node.inputs.push(twin);
                }
                self.write_twins(graph, node);
            }
            Op::QuantizedConv(q) if q.conv.layout == Layout::ChannelsFirst => {
                q.conv.layout = Layout::ChannelsLast;
                node.inputs[0] = self.twin(graph, node.inputs[0]);
                self.write_twins(graph, node);
            }
            Op::Quantize(_) | Op::Dequantize(_) if any && is_image(graph.meta(node.outputs[0])) => {
                node.inputs[0] = self.twin(graph, node.inputs[0]);
                self.write_twins(graph, node);
            }
            Op::Pointwise(_) if any && is_image(graph.meta(node.outputs[0])) => {
                let sizes = *graph.meta(node.outputs[0]).sizes();
                for i in 0..node.inputs.len() {
                    let v = node.inputs[i];
                    if *graph.meta(v).sizes() == sizes {
                        node.inputs[i] = self.twin(graph, v);
                    } else {
                        self.0.need_own(v);
                    }
                }
                self.write_twins(graph, node);
            }
            Op::Call(call) if any && ANY_LAYOUT.contains(&call.name()) => {
                let images = node.inputs.iter().chain(&node.outputs).all(|&v| is_image(graph.meta(v)));
                if images {
                    for i in 0..node.inputs.len() {
                        node.inputs[i] = self.twin(graph, node.inputs[i]);
                    }
                    self.write_twins(graph, node);
                } else {
                    self.0.keep(node);
                }
            }
            Op::Reshape if any && same_image(graph.meta(node.inputs[0]), graph.meta(node.outputs[0])) => {
                node.inputs[0] = self.twin(graph, node.inputs[0]);
                self.write_twins(graph, node);
            }
            Op::GlobalMean | Op::GroupFactors(_) if any => {
                node.inputs[0] = self.twin(graph, node.inputs[0]);
                self.0.written(&node.outputs);
                self.0.push(node);
            }
            _ => self.0.keep(node),
        }
    }

    /// Lets a node write twins of its outputs.
    fn write_twins(&mut self, graph: &mut Graph, mut node: Node) {
        for v in &mut node.outputs {
            let meta = channels_last(graph.meta(*v));
            self.0.write(graph, v, meta);
        }
        self.0.push(node);
    }

    /// The channels-last twin of a value, converted to if there is none.
    fn twin(&mut self, graph: &mut Graph, v: ValueId) -> ValueId {
        if let Some(twin) = self.0.get(v) {
            return twin;
        }
        let meta = channels_last(graph.meta(v));
        if meta == *graph.meta(v) { v } else { self.0.convert(graph, v, meta) }
    }
}

fn is_image(meta: &TensorMeta) -> bool {
    (3..=5).contains(&meta.rank())
}

/// Whether two images differ by dimensions of space of size one alone.
fn same_image(a: &TensorMeta, b: &TensorMeta) -> bool {
    let space =
        |m: &TensorMeta| -> Vec<usize> { m.sizes()[2..].iter().copied().filter(|&s| s != 1).collect() };
    is_image(a) && is_image(b) && a.sizes()[..2] == b.sizes()[..2] && space(a) == space(b)
}

fn channels_last(meta: &TensorMeta) -> TensorMeta {
    let order = order_of(Layout::ChannelsLast, meta.rank());
    TensorMeta::new(meta.dtype(), meta.sizes(), order).unwrap_or_else(|_| meta.clone())
}
