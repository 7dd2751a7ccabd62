//! Lowers nodes in parallel, so that weights are packed on all threads of the pool.

use super::super::lowering::Lowered;
use super::super::operations;
use super::super::packs::Packs;
use crate::graph::{Graph, NodeId};
use pteron_kernels::compute::Isa;
use pteron_pool::Pool;
use std::collections::VecDeque;

/// The minimum size in bytes of the constants of a batch for which parallel lowering pays off.
const MIN_PARALLEL: usize = 256 << 10;

/// The maximum bytes of constants in a batch of several nodes, all of which are in memory together with their packed
/// forms.
const MAX_BATCH: usize = 32 << 20;

/// Nodes that were lowered ahead of their turn.
pub(super) struct LoweredAhead<'p> {
    pool: &'p Pool,
    lowered: VecDeque<Option<Lowered>>,
}

impl<'p> LoweredAhead<'p> {
    /// Creates an empty list of nodes.
    pub(super) fn new(pool: &'p Pool) -> Self {
        Self { pool, lowered: VecDeque::new() }
    }

    /// Returns the first of the remaining `nodes` lowered, if it was lowered ahead. If none are, lowers a batch of the
    /// next nodes in parallel, limited by the bytes of their constants. Returns `None` if the caller is to lower the
    /// node itself: there is only one thread, there is little to pack or little budget left, or lowering it failed.
    ///
    /// The batches depend on the graph and the number of threads; the lowered nodes do not depend on the batches.
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
            let (count, bytes, pays) = next_batch(graph, nodes);
            self.lowered.resize_with(count, || None);
            // The constants of a batch and their packed forms are in memory together until the nodes' turn comes. With
            // a smaller budget, nodes would fail in parallel that succeed one after another.
            let budget = packs.budget();
            let room = budget.limit().saturating_sub(budget.held());
            if pays && (bytes as u64).saturating_mul(3) <= room {
                let lowered = self.lowered.make_contiguous();
                self.pool.parallel_chunks_mut(lowered, 1, 1, &|i, lowered| {
                    lowered[0] = operations::lower(graph, nodes[i], isa, packs).ok();
                });
            }
        }
        self.lowered.pop_front().flatten()
    }
}

/// The number of nodes in the next batch, the bytes of their constants, and whether parallel lowering pays off.
fn next_batch(graph: &Graph, nodes: &[NodeId]) -> (usize, usize, bool) {
    let (mut bytes, mut packing) = (0usize, 0);
    let mut count = 0;
    for &node in nodes {
        let constants = graph.node(node).inputs().iter().filter_map(|&v| graph.value(v).constant());
        let constant_bytes = constants.map(crate::Constant::nbytes).fold(0, usize::saturating_add);
        if count > 0 && bytes.saturating_add(constant_bytes) > MAX_BATCH {
            break;
        }
        bytes = bytes.saturating_add(constant_bytes);
        packing += usize::from(constant_bytes >= MIN_PARALLEL / 16);
        count += 1;
    }
    (count, bytes, packing > 1 && bytes >= MIN_PARALLEL)
}
