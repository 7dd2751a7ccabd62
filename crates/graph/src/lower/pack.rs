//! Nodes that are lowered side by side: weights are packed on all threads of the pool.

use super::of_node;
use crate::graph::{Graph, NodeId};
use crate::operation::Lowered;
use crate::packs::Packs;
use kernels::compute::Isa;
use pool::Pool;
use std::collections::VecDeque;

/// Bytes of constants from which on nodes are worth the threads' while.
const LEAST: usize = 256 << 10;

/// Bytes of constants, at most, that lie beside what is packed of them, but for those of a single node.
const MOST: usize = 32 << 20;

/// Nodes that were lowered before their turn.
pub(super) struct Ahead<'p> {
    pool: &'p Pool,
    lowered: VecDeque<Option<Lowered>>,
}

impl<'p> Ahead<'p> {
    /// No nodes yet.
    pub(super) fn new(pool: &'p Pool) -> Self {
        Self { pool, lowered: VecDeque::new() }
    }

    /// What the first of the nodes becomes that are left, if it was lowered before its turn, or together with those
    /// behind it, as many as the bytes of their constants allow. `None` if it is to be lowered by itself: there is one
    /// thread, there is little to pack or little room, or it failed beside the others.
    ///
    /// Which nodes are lowered together follows from the graph and the number of threads; what becomes of them does
    /// not depend on it.
    pub(super) fn take(
        &mut self,
        graph: &Graph,
        nodes: &[NodeId],
        isa: Isa,
        packs: &Packs,
    ) -> Option<Lowered> {
        if self.pool.threads() == 1 {
            return None;
        }
        if self.lowered.is_empty() {
            let (count, bytes, pays) = together(graph, nodes);
            self.lowered.resize_with(count, || None);
            // Constants and what is packed of them lie beside each other until their turn comes: with less room than that,
            // nodes would take from each other what one after another they have.
            let budget = packs.budget();
            let room = budget.limit().saturating_sub(budget.held());
            if pays && (bytes as u64).saturating_mul(3) <= room {
                let lowered = self.lowered.make_contiguous();
                self.pool.parallel_chunks_mut(lowered, 1, 1, &|i, lowered| {
                    lowered[0] = of_node(graph, nodes[i], isa, packs).ok();
                });
            }
        }
        self.lowered.pop_front().flatten()
    }
}

/// How many nodes, from the first on, are looked at together, the bytes of their constants, and whether they are worth more
/// than one thread.
fn together(graph: &Graph, nodes: &[NodeId]) -> (usize, usize, bool) {
    let (mut bytes, mut packing) = (0usize, 0);
    let mut count = 0;
    for &node in nodes {
        let constants = graph.node(node).inputs().iter().filter_map(|&v| graph.value(v).constant());
        let of_node = constants.map(crate::Constant::nbytes).fold(0, usize::saturating_add);
        if count > 0 && bytes.saturating_add(of_node) > MOST {
            break;
        }
        bytes = bytes.saturating_add(of_node);
        packing += usize::from(of_node >= LEAST / 16);
        count += 1;
    }
    (count, bytes, packing > 1 && bytes >= LEAST)
}
