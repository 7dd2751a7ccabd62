//! Fuses channel shuffles, which are a permutation between two reshapes, into one node.

use super::rule::{Match, Pattern, any, call, operation};
use crate::graph::{Graph, NodeId, meaning, single_use_producer};
use crate::operation::OpKind;
use crate::ops::channel_shuffle::ChannelShuffle;
use crate::ops::relayout::Reshape;
use pteron_operator::Meaning;
use pteron_operator::facts::ViewOf;
use std::sync::LazyLock;

/// A permutation between two reshapes.
static SHUFFLE: LazyLock<Pattern> = LazyLock::new(|| {
    let apart = operation::<Reshape>([any("image")]).named("apart");
    let turned = call(|m| matches!(m, Meaning::View(ViewOf::Permute(_))), [apart]).named("turned");
    operation::<Reshape>([turned])
});

/// Rewrites the channel shuffles of a graph.
pub(super) fn run(graph: &mut Graph) {
    for last in graph.order() {
        if let Some(found) = SHUFFLE.find(graph, last)
            && let Some(shuffle) = shuffle(graph, last, &found)
        {
            graph.rewrite(last, OpKind::arc(shuffle), &[found["image"]]);
            graph.absorb(last, found.parts[1]);
        }
    }
}

/// The shuffle that such nodes are, if they swap the two dimensions into which the channels are divided.
fn shuffle(graph: &Graph, last: NodeId, found: &Match) -> Option<ChannelShuffle> {
    let (image, apart, turned) = (found["image"], found["apart"], found["turned"]);
    let (result, permutation) = (graph.node(last).outputs()[0], single_use_producer(graph, turned)?);
    let Meaning::View(ViewOf::Permute(dims)) = meaning(graph, permutation)? else { return None };
    let plain = [image, apart, turned, result].iter().all(|&v| graph.meta(v).dim_order().is_contiguous());
    let (image, groups) = (graph.meta(image), graph.meta(apart).sizes());
    let swapped = dims.len() > 3 && dims[..3] == [0, 2, 1] && dims[3..].iter().copied().eq(3..dims.len());
    let (&[batch, channels, ref space @ ..], &[of_batch, count, each, ref around @ ..]) =
        (&image.sizes()[..], &groups[..])
    else {
        return None;
    };
    let split = (batch, channels, space) == (of_batch, count * each, around);
    let shuffle = ChannelShuffle { groups: count };
    let whole = split && image.sizes() == graph.meta(result).sizes() && shuffle.takes(image);
    (plain && swapped && whole).then_some(shuffle)
}
