//! Fuses channel shuffles, which are a permutation between two reshapes, into one node.

use crate::graph::{Graph, NodeId, ValueId, meaning};
use crate::operation::{OpKind, as_op, producer_as};
use crate::ops::channel_shuffle::ChannelShuffle;
use crate::ops::relayout::Reshape;
use pteron_ir::User;
use pteron_operator::Meaning;
use pteron_operator::facts::ViewOf;

/// Rewrites the channel shuffles of a graph.
pub(super) fn run(graph: &mut Graph) {
    for node in graph.order() {
        if let Some(Meaning::View(ViewOf::Permute(dims))) = meaning(graph, node)
            && let Some((image, last, shuffle)) = shuffle(graph, node, &dims)
        {
            graph.rewrite(last, OpKind::arc(shuffle), &[image]);
            graph.absorb(last, node);
        }
    }
}

/// The image whose channels a permutation shuffles, the reshape that returns the result, and the shuffle.
fn shuffle(graph: &Graph, node: NodeId, dims: &[usize]) -> Option<(ValueId, NodeId, ChannelShuffle)> {
    let (&[apart], &[turned]) = (graph.node(node).inputs(), graph.node(node).outputs()) else { return None };
    let (before, _) = producer_as::<Reshape>(graph, apart)?;
    let &[pteron_ir::Use { user: User::Node(last), .. }] = graph.uses(turned) else { return None };
    as_op::<Reshape>(graph, last)?;
    let (&image, &result) = (graph.node(before).inputs().first()?, graph.node(last).outputs().first()?);
    let plain = [image, apart, turned, result].iter().all(|&v| graph.meta(v).dim_order().is_contiguous());
    let (image_meta, groups) = (graph.meta(image), graph.meta(apart).sizes());
    let swapped = dims.len() > 3 && dims[..3] == [0, 2, 1] && dims[3..].iter().copied().eq(3..dims.len());
    let (&[batch, channels, ref space @ ..], &[of_batch, count, each, ref around @ ..]) =
        (&image_meta.sizes()[..], &groups[..])
    else {
        return None;
    };
    let split = (batch, channels, space) == (of_batch, count * each, around);
    let shuffle = ChannelShuffle { groups: count };
    let whole = split && image_meta.sizes() == graph.meta(result).sizes() && shuffle.takes(image_meta);
    (plain && swapped && whole).then_some((image, last, shuffle))
}
