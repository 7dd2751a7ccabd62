//! Makes images around convolutions channels-last (NHWC), the layout in which convolutions are fastest. Conversions are
//! inserted where a user needs the original layout; opposite conversions cancel out.

use super::converted::ConvertedValues;
use crate::graph::{Graph, NodeId, ValueId, facts, meaning};
use crate::layouts::dim_order_of;
use crate::operation::{ImageLayouts, OpKind, as_op, operation};
use crate::ops::relayout::{Relayout, Reshape};
use pteron_kernels::compute::Layout;
use pteron_operator::Meaning;
use pteron_operator::facts::ViewOf;
use pteron_tensor::TensorMeta;

/// Converts convolutions and the nodes between them to channels-last.
pub(super) fn run(graph: &mut Graph) {
    let prefers = |node| matches!(image_layouts(graph, node), ImageLayouts::Prefers { .. });
    let order = graph.order();
    if !order.iter().any(|&node| prefers(node)) {
        return;
    }
    let mut pass = Pass(ConvertedValues::new(OpKind::arc(Relayout)));
    order.into_iter().for_each(|node| pass.convert_node(graph, node));
    pass.0.finish(graph);
}

/// How a node uses images.
fn image_layouts(graph: &Graph, node: NodeId) -> ImageLayouts {
    operation(graph, node).map_or(ImageLayouts::None, |operation| operation.image_layouts())
}

/// The state of the pass: the values in channels-last form, which is the preferred one.
struct Pass(ConvertedValues);

impl Pass {
    fn convert_node(&mut self, graph: &mut Graph, node: NodeId) {
        let inputs = graph.node(node).inputs().to_vec();
        let any = inputs.iter().any(|&v| self.0.is_preferred(v));
        let out = graph.node(node).outputs().first().copied();
        let is_image = |graph: &Graph, v: ValueId| is_image(self.0.original_meta(graph, v));
        match image_layouts(graph, node) {
            ImageLayouts::Prefers { kind, residual } => {
                graph.set_kind(node, kind);
                self.read_channels_last(graph, node, 0);
                if residual {
                    self.read_channels_last(graph, node, inputs.len() - 1);
                }
                self.write_channels_last(graph, node);
            }
            ImageLayouts::Follows if any && out.is_some_and(|v| is_image(graph, v)) => {
                let sizes = out.map(|v| *graph.meta(v).sizes());
                for (slot, &v) in inputs.iter().enumerate() {
                    if Some(*graph.meta(v).sizes()) == sizes {
                        self.read_channels_last(graph, node, slot);
                    } else {
                        self.0.use_original(graph, node, slot);
                    }
                }
                self.write_channels_last(graph, node);
            }
            ImageLayouts::Reads if any => {
                self.read_channels_last(graph, node, 0);
                (1..inputs.len()).for_each(|slot| self.0.use_original(graph, node, slot));
            }
            _ if any && self.accepts_any_layout(graph, node) => {
                (0..inputs.len()).for_each(|slot| self.read_channels_last(graph, node, slot));
                self.write_channels_last(graph, node);
            }
            _ => self.0.keep_original(graph, node),
        }
    }

    /// Whether a node accepts images in any layout and writes the same layout: a call of such a kernel, a slice, or a
    /// reshape that only adds or removes spatial dimensions of size 1.
    fn accepts_any_layout(&self, graph: &Graph, id: NodeId) -> bool {
        let node = graph.node(id);
        let meta = |v: ValueId| self.0.original_meta(graph, v);
        if as_op::<Reshape>(graph, id).is_some() {
            return is_same_image(meta(node.inputs()[0]), meta(node.outputs()[0]));
        }
        let slices = || matches!(meaning(graph, id), Some(Meaning::View(ViewOf::Slice { .. })));
        let moves = facts(graph, id).any_layout || slices();
        moves && node.inputs().iter().chain(node.outputs()).all(|&v| is_image(meta(v)))
    }

    /// Makes the outputs of a node channels-last.
    fn write_channels_last(&mut self, graph: &mut Graph, node: NodeId) {
        for v in graph.node(node).outputs().to_vec() {
            let meta = channels_last(graph.meta(v));
            self.0.change_to_preferred(graph, v, meta);
        }
    }

    /// Makes an input of a node channels-last, with a conversion if necessary.
    fn read_channels_last(&mut self, graph: &mut Graph, node: NodeId, slot: usize) {
        let v = graph.node(node).inputs()[slot];
        let meta = channels_last(graph.meta(v));
        if self.0.existing_preferred(v).is_some() || meta != *graph.meta(v) {
            let image = self.0.preferred_form(graph, node, v, meta);
            graph.set_input(node, slot, image);
        }
    }
}

fn is_image(meta: &TensorMeta) -> bool {
    (3..=5).contains(&meta.rank())
}

/// Whether two images differ only in spatial dimensions of size 1.
fn is_same_image(a: &TensorMeta, b: &TensorMeta) -> bool {
    let space =
        |m: &TensorMeta| -> Vec<usize> { m.sizes()[2..].iter().copied().filter(|&s| s != 1).collect() };
    is_image(a) && is_image(b) && a.sizes()[..2] == b.sizes()[..2] && space(a) == space(b)
}

fn channels_last(meta: &TensorMeta) -> TensorMeta {
    let order = dim_order_of(Layout::ChannelsLast, meta.rank());
    TensorMeta::new(meta.dtype(), meta.sizes(), order).unwrap_or_else(|_| meta.clone())
}
