//! How tensors lie in memory: what the kinds of node ask for, checked of every node before a graph is lowered, and
//! the two layouts of images.

use crate::graph::{Graph, NodeId};
use crate::operation::operation;
use kernels::compute::Layout;
use operator::{Error, Result};
use tensor::{DimOrder, TensorMeta};

/// How a tensor must lie for a node to read or write it. Dimensions of size one lie anywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lies {
    /// In any dim order.
    Anyhow,
    /// Row-major.
    Plain,
    /// As an image of this layout.
    Image(Layout),
    /// As an image of either layout.
    AnyImage,
    /// As the node's first input, whose sizes it has.
    AsFirst,
    /// The elements in the order in which the node's first input has them.
    Reshaped,
}

/// Checks every node of a graph.
pub(crate) fn check(graph: &Graph) -> Result<()> {
    graph.order().into_iter().try_for_each(|node| check_layout(graph, node))
}

/// Whether a node may stand in a graph.
pub(crate) fn fit(graph: &Graph, node: NodeId) -> bool {
    check_layout(graph, node).is_ok()
}

/// Checks that the operands of a node lie as its kind asks ([`Operation::lies`](crate::Operation::lies)).
///
/// # Errors
/// Which does not.
pub fn check_layout(graph: &Graph, id: NodeId) -> Result<()> {
    // A kernel is told how its tensors lie.
    let Some(operation) = operation(graph, id) else { return Ok(()) };
    let node = graph.node(id);
    let first = node.inputs().first().map(|&v| graph.meta(v));
    for (i, &v) in node.inputs().iter().chain(node.outputs()).enumerate() {
        let meta = graph.meta(v);
        if !lies(meta, operation.lies(i, node.inputs().len()), first) {
            let place = if i < node.inputs().len() { "reads" } else { "writes" };
            let name = node.name();
            return Err(Error::invalid(format!("{name} {place} {meta}, which does not lie as it needs it")));
        }
    }
    Ok(())
}

fn lies(meta: &TensorMeta, asked: Lies, first: Option<&TensorMeta>) -> bool {
    match asked {
        Lies::Anyhow => true,
        Lies::Plain => is_plain(meta),
        Lies::Image(layout) => has_layout(meta, layout),
        Lies::AnyImage => image_layout(meta).is_some(),
        Lies::AsFirst => first.is_some_and(|from| {
            from.sizes() == meta.sizes() && from.dim_order().same_layout(meta.dim_order(), meta.sizes())
        }),
        Lies::Reshaped => first.is_some_and(|from| reshapes(from, meta)),
    }
}
/// Whether a tensor is row-major.
fn is_plain(meta: &TensorMeta) -> bool {
    meta.dim_order().same_layout(&DimOrder::contiguous(meta.rank()), meta.sizes())
}

/// Whether elements that are taken one after another in the order of the indices are the same in both: both are
/// row-major, or their dimensions other than those of size one are the same.
fn reshapes(from: &TensorMeta, to: &TensorMeta) -> bool {
    let steps = |m: &TensorMeta| -> Vec<(usize, usize)> {
        m.sizes().iter().copied().zip(m.strides().iter().copied()).filter(|(n, _)| *n != 1).collect()
    };
    let same = from.dtype() == to.dtype() && from.numel() == to.numel();
    same && (from.numel() == 0 || is_plain(from) && is_plain(to) || steps(from) == steps(to))
}

/// Whether an image lies in a layout.
pub(crate) fn has_layout(meta: &TensorMeta, layout: Layout) -> bool {
    meta.rank() >= 3 && meta.dim_order().same_layout(&order_of(layout, meta.rank()), meta.sizes())
}

/// The dim order of images `[N, C, space..]` of a layout.
pub(crate) fn order_of(layout: Layout, rank: usize) -> DimOrder {
    let mut order: Vec<u8> = (0..rank as u8).collect();
    if layout == Layout::ChannelsLast && rank >= 3 {
        order[1..].rotate_left(1);
    }
    DimOrder::new(&order).unwrap_or_default()
}

/// The layout in which an image `[N, C, space..]` of this meta lies, if it is one of the two: the one that its dim
/// order says, where sizes of one make both true.
pub(crate) fn image_layout(meta: &TensorMeta) -> Option<Layout> {
    let layouts = [Layout::ChannelsFirst, Layout::ChannelsLast];
    let named =
        layouts.into_iter().find(|&l| meta.rank() >= 3 && *meta.dim_order() == order_of(l, meta.rank()));
    named.or_else(|| layouts.into_iter().find(|&l| has_layout(meta, l)))
}
