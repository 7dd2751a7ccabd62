//! Whether a graph can be computed for a part of its batch at a time, and how many rows a part has.

use crate::graph::{Graph, NodeId, ValueId, meaning};
use crate::operands::Operands;
use crate::operation::operation;
use pteron_operator::Meaning;
use pteron_operator::facts::wrap;
use pteron_pool::count;
use pteron_tensor::TensorMeta;

/// The bytes that the operands and results of one node may take in a part: they fit the second cache of any machine, with
/// room for weights.
const PART_BYTES: usize = 256 << 10;
/// The rows of a part are a multiple of this, or of [`FEW_ROWS`] if there are fewer: whole tiles of every matrix product.
const MANY_ROWS: usize = 48;
/// The rows of a part of fewer than [`MANY_ROWS`] are a multiple of this: matrix products of fewer read their weights too often.
const FEW_ROWS: usize = 4;

/// The batch of a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Batch {
    /// Its rows.
    pub(super) rows: usize,
    /// The rows of each part but the last, which may have fewer.
    pub(super) part: usize,
}

impl Batch {
    /// How to divide the batch of a graph. `None` if its rows depend on each other, if its values fit the caches as they
    /// are, or if reading the weights for each part would take longer than reading the values from memory.
    pub(super) fn of(graph: &Graph) -> Option<Self> {
        let rows = *graph.meta(*graph.inputs().first()?).sizes().first()?;
        if rows < 2 * FEW_ROWS || graph.num_blocks() != 1 {
            return None;
        }
        let is_batch = |&v: &ValueId| has_rows(graph.meta(v), rows);
        if !graph.inputs().iter().chain(graph.outputs()).all(is_batch) {
            return None;
        }
        // Bytes of a row: of the operands and results of one node at most, and of all results.
        let (mut largest, mut written, mut weights, mut nodes) = (0, 0, 0, 0);
        for node in graph.order() {
            if !keeps_rows_apart(graph, node, rows) {
                return None;
            }
            let bytes = |v: &ValueId| graph.meta(*v).nbytes() / rows;
            let node = graph.node(node);
            let (constants, computed): (Vec<_>, Vec<_>) =
                node.inputs().iter().partition(|&&v| graph.is_constant(v));
            let read = computed.into_iter().map(bytes).sum::<usize>();
            weights += constants.into_iter().map(|&v| graph.meta(v).nbytes()).sum::<usize>();
            let results = node.outputs().iter().filter(|&&v| graph.is_used(v)).map(bytes).sum::<usize>();
            largest = largest.max(read + results);
            written += results;
            nodes += 1;
        }
        count(nodes);
        let most = PART_BYTES / largest.max(1);
        let unit = if most < MANY_ROWS { FEW_ROWS } else { MANY_ROWS };
        if nodes < 2 || most < unit || rows < 2 * most {
            return None;
        }
        let parts = rows.div_ceil(most / unit * unit);
        let part = rows.div_ceil(parts).next_multiple_of(unit);
        (weights <= part * written).then_some(Self { rows, part })
    }

    /// The graph for `rows` of the rows.
    pub(super) fn part_of(self, graph: &Graph, rows: usize) -> pteron_tensor::Result<Graph> {
        let mut part = graph.clone();
        let values: Vec<ValueId> = graph.values().filter(|&v| !graph.is_constant(v)).collect();
        for v in values {
            let mut meta = graph.meta(v).clone();
            if has_rows(&meta, self.rows) {
                let mut sizes = *meta.sizes();
                sizes[0] = rows;
                meta.reshape(&sizes)?;
                part.set_meta(v, meta);
            }
        }
        Ok(part)
    }
}

/// Whether dimension 0 has `rows` indices, and is the outermost in memory.
fn has_rows(meta: &TensorMeta, rows: usize) -> bool {
    meta.sizes().first() == Some(&rows) && meta.dim_order().first() == Some(&0)
}

/// Whether each row of a node's results depends only on the same row of the operands that are no constants.
fn keeps_rows_apart(graph: &Graph, id: NodeId, rows: usize) -> bool {
    let node = graph.node(id);
    let computed = node.inputs().iter().filter(|&&v| !graph.is_constant(v));
    if !computed.chain(node.outputs()).all(|&v| has_rows(graph.meta(v), rows)) {
        return false;
    }
    match operation(graph, id) {
        Some(operation) => operation.keeps_rows_apart(&Operands::new(graph, id)),
        None => match meaning(graph, id) {
            Some(Meaning::Softmax(dim)) => dim > 0,
            Some(Meaning::Concatenation(dim)) => {
                let rank = graph.meta(node.outputs()[0]).rank();
                wrap(dim, rank).is_some_and(|dim| dim > 0) && !Operands::new(graph, id).any_constant()
            }
            _ => false,
        },
    }
}
