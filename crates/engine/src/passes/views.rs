//! Lets elementwise nodes read views in place: slices, selections and permutations that programs copy for them.

use crate::graph::{Graph, NodeId, ValueId};
use crate::operation::{OpKind, as_op};
use crate::ops::pointwise::Pointwise;
use crate::ops::relayout::{Permute, Reshape};
use crate::ops::viewed::Viewed;
use crate::strided::{DataMovement, View};
use pteron_ir::User;
use pteron_tensor::MAX_RANK;

/// The minimum length of rows of adjacent elements that are read in place; a copy transposes shorter rows faster.
const SHORTEST_ROW: usize = 4;

/// The maximum ratio of a value's elements to its view's, if the value is kept in memory only for the view.
const KEPT: usize = 4;

/// The number of elements up to which a value may be kept in memory for a view of any size.
const SMALL: usize = 1 << 14;

/// The maximum number of uses of a value and its aliases that are searched for updates in place.
const MAX_USERS: usize = 64;

pub(super) fn run(graph: &mut Graph) {
    let unneeded = ElidableValues::of(graph);
    if !unneeded.any {
        return;
    }
    for node in graph.order() {
        let Some(Pointwise(expression)) = as_op::<Pointwise>(graph, node) else { continue };
        let expression = expression.clone();
        let inputs = graph.node(node).inputs().to_vec();
        let views: Vec<Option<View>> = inputs.iter().map(|&v| unneeded.view(graph, node, v)).collect();
        if views.iter().all(Option::is_none) {
            continue;
        }
        for &v in inputs.iter().zip(&views).filter_map(|(v, view)| view.is_some().then_some(v)) {
            unneeded.elided_producers(graph, v).into_iter().for_each(|producer| graph.absorb(node, producer));
        }
        let roots =
            inputs.iter().zip(&views).map(|(&v, view)| view.as_ref().and_then(|w| w.root).unwrap_or(v));
        let roots: Vec<ValueId> = roots.collect();
        graph.rewrite(node, OpKind::arc(Viewed { expression, views }), &roots);
    }
}

/// Which values need not exist if elementwise nodes read them as views: results of views that only such nodes use,
/// directly or through further views.
struct ElidableValues {
    values: Vec<bool>,
    any: bool,
}

impl ElidableValues {
    fn of(graph: &Graph) -> Self {
        let mut all = Self { values: vec![false; graph.num_values()], any: false };
        for node in graph.order().into_iter().rev() {
            let Some(moves) = View::data_movement(graph, node) else { continue };
            let out = graph.node(node).outputs()[0];
            let uses = graph.uses(out);
            let is_unneeded = |user: User| match user {
                User::Node(user) if as_op::<Pointwise>(graph, user).is_some() => {
                    writes_row_major(graph, user)
                }
                User::Node(user) => {
                    View::data_movement(graph, user).is_some()
                        && all.values[graph.node(user).outputs()[0].index()]
                }
                _ => false,
            };
            if !uses.is_empty() && !graph.is_live_out(out) && uses.iter().all(|u| is_unneeded(u.user)) {
                all.any |= moves == DataMovement::Elements;
                all.values[out.index()] = true;
            }
        }
        all
    }

    /// The chain of nodes that compute a value but need not run, the last node first.
    fn elided_producers(&self, graph: &Graph, value: ValueId) -> Vec<NodeId> {
        let (mut nodes, mut at) = (Vec::new(), value);
        while let Some(node) = graph.producer(at).filter(|_| self.values[at.index()]) {
            nodes.push(node);
            at = graph.node(node).inputs()[0];
        }
        nodes
    }

    /// The view that `node` can read in place of one of its inputs.
    fn view(&self, graph: &Graph, node: NodeId, input: ValueId) -> Option<View> {
        let producers = self.elided_producers(graph, input);
        let moves = |&producer: &NodeId| View::data_movement(graph, producer) == Some(DataMovement::Elements);
        if !producers.iter().any(moves) {
            return None;
        }
        let view = View::through_nodes(graph, input, |v| self.values[v.index()])?;
        let view = view.expand(graph.meta(graph.node(node).outputs()[0]).sizes())?;
        let parts = view.parts();
        let in_rows = match parts.last() {
            Some(&(n, stride)) => stride == 0 || stride == 1 && n >= SHORTEST_ROW,
            None => true,
        };
        let root = view.root?;
        // If the views do not compose, one of them is needed after all.
        let is_whole = !self.values[root.index()] && parts.len() <= MAX_RANK;
        let fits = in_rows && is_whole && view.factor == 1.0;
        (fits && can_read_root(graph, root, input, node)).then_some(view)
    }
}

/// Whether a node's result is not empty and row-major, the order in which the elements of a view are read.
fn writes_row_major(graph: &Graph, node: NodeId) -> bool {
    let out = graph.meta(graph.node(node).outputs()[0]);
    out.dim_order().is_contiguous() && out.numel() > 0
}

/// Whether `node` can read `root` instead of its view: nothing before `node` would have updated it in place, and it is
/// not much larger than the view unless it is in memory anyway.
fn can_read_root(graph: &Graph, root: ValueId, view: ValueId, node: NodeId) -> bool {
    let len = graph.meta(root).numel();
    let mut is_kept = len <= SMALL.max(KEPT.saturating_mul(graph.meta(view).numel()))
        || graph.producer(root).is_none()
        || graph.is_live_out(root);
    let (mut values, mut seen) = (vec![root], 0);
    while let Some(value) = values.pop() {
        for used in graph.uses(value) {
            seen += 1;
            let User::Node(user) = used.user else { continue };
            if seen > MAX_USERS {
                return false;
            }
            let is_before = graph.comes_before(user, node);
            is_kept |= !is_before;
            if as_op::<Reshape>(graph, user).is_some() || as_op::<Permute>(graph, user).is_some() {
                values.push(graph.node(user).outputs()[0]);
            } else if is_before && may_update(graph, user, used.slot) {
                return false;
            }
        }
    }
    is_kept
}

/// Whether a call may write its result over this input.
fn may_update(graph: &Graph, node: NodeId, slot: usize) -> bool {
    let call = graph.node(node).call();
    call.is_some_and(|call| call.kernel.in_place().iter().any(|&at| call.input_at(at) == Some(slot)))
}
