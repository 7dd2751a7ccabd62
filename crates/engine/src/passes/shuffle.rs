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
    let grouped = operation::<Reshape>([any("image")]).named("grouped");
    let permuted = call(|m| matches!(m, Meaning::View(ViewOf::Permute(_))), [grouped]).named("permuted");
    operation::<Reshape>([permuted])
});

/// Rewrites the channel shuffles of a graph.
pub(super) fn run(graph: &mut Graph) {
    for last in graph.order() {
        if let Some(matched) = SHUFFLE.find(graph, last)
            && let Some(shuffle) = to_channel_shuffle(graph, last, &matched)
        {
            graph.rewrite(last, OpKind::arc(shuffle), &[matched["image"]]);
            graph.absorb(last, matched.parts[1]);
        }
    }
}

/// The channel shuffle that the matched nodes compute; `None` unless they split the channels into two dimensions and
/// swap these.
fn to_channel_shuffle(graph: &Graph, last: NodeId, matched: &Match) -> Option<ChannelShuffle> {
    let (image, grouped, permuted) = (matched["image"], matched["grouped"], matched["permuted"]);
    let (result, permutation) = (graph.node(last).outputs()[0], single_use_producer(graph, permuted)?);
    let Meaning::View(ViewOf::Permute(dims)) = meaning(graph, permutation)? else { return None };
    let plain = [image, grouped, permuted, result].iter().all(|&v| graph.meta(v).dim_order().is_contiguous());
    let (image, groups) = (graph.meta(image), graph.meta(grouped).sizes());
    let swapped = dims.len() > 3 && dims[..3] == [0, 2, 1] && dims[3..].iter().copied().eq(3..dims.len());
    let (&[batch, channels, ref space @ ..], &[of_batch, count, each, ref around @ ..]) =
        (&image.sizes()[..], &groups[..])
    else {
        return None;
    };
    let split = (batch, channels, space) == (of_batch, count * each, around);
    let shuffle = ChannelShuffle { groups: count };
    let keeps_sizes = split && image.sizes() == graph.meta(result).sizes() && shuffle.accepts(image);
    (plain && swapped && keeps_sizes).then_some(shuffle)
}
