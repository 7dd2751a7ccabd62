//! Assigns kernels to streams: kernels of one stream run one after another on one thread.
//!
//! Every operation gets a stream id. The executor runs a kernel that becomes ready inline if it belongs to the
//! current stream, and may start a task for it otherwise. This is the analysis of TFRT's
//! `lib/compiler/stream_analysis.cc` as of January 2023, on which the bytes of converted programs depend:
//!
//! 1. A forward pass chooses a parent for each operation: the definer of an operand with the highest cost from the root
//!    (the first of equals). The root is the parent of operations without operands, and defines the function's
//!    arguments.
//! 2. A backward pass merges the cheap child streams of each operation, as long as they stay below the threshold. The
//!    operation then joins the most expensive child stream (the first of equals), or opens a new stream if it has none.
//!
//! An operation without a cost gets the threshold as its cost, so by default nothing is merged.

use std::collections::{BTreeSet, HashSet};

use crate::ids::Register;
use crate::model::Body;

/// An operation of a function in program order, `tfrt.return` included.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operation {
    /// Its cost, at least 1; an operation without one costs [`Options::cost_threshold`]. `tfrt.return` and
    /// `tfrt.merge.chains` cost 1.
    pub cost: Option<i64>,
    /// The operation's operands.
    pub operands: Vec<Operand>,
}

/// An operand of an [`Operation`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operand {
    /// Position of the earlier operation that defines the operand; `None` for an argument of the function.
    pub definer: Option<usize>,
    /// Whether the operand is a chain, which orders operations but carries no data.
    pub chain: bool,
}

/// The attributes of a function, or of its module, that control the analysis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// `tfrt.cost_threshold`: streams cheaper than this are merged. Values below 1 count as 1.
    pub cost_threshold: i64,
    /// `tfrt.upper_cost_threshold`: operations do not join streams of this cost or more. Negative means no limit.
    pub upper_cost_threshold: i64,
    /// `tfrt.merge_inter_dependent_streams`: streams that exchange data are merged first.
    pub merge_inter_dependent_streams: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { cost_threshold: 1, upper_cost_threshold: -1, merge_inter_dependent_streams: false }
    }
}

/// The streams that the analysis assigns: small integers in no particular order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Streams {
    /// Stream in which the function starts.
    pub root: u64,
    /// Stream of each operation.
    pub operations: Vec<u64>,
}

/// Assigns streams to operations. An operand whose definer is not an earlier operation counts as an argument.
pub fn analyze(operations: &[Operation], options: &Options) -> Streams {
    let mut analysis = Analysis::new(operations, options);
    analysis.schedule();
    (0..operations.len()).rev().for_each(|op| analysis.build_stream(op));
    analysis.build_stream(operations.len());
    let mut stream = |op| analysis.stream_of(op).unwrap_or_default() as u64;
    Streams { root: stream(operations.len()), operations: (0..operations.len()).map(stream).collect() }
}

/// Runs the analysis on a function and stores the streams in it. `cost` gives the cost of a kernel by position, and
/// `is_chain` says whether a register holds a chain.
pub fn assign_streams(
    body: &mut Body<'_>,
    options: &Options,
    cost: impl Fn(usize) -> Option<i64>,
    is_chain: impl Fn(Register) -> bool,
) {
    let mut definers = vec![None; body.registers.len()];
    let mut operations = Vec::with_capacity(body.kernels.len() + 1);
    let operand = |definers: &[Option<usize>], register: Register| Operand {
        definer: definers.get(register.index()).copied().flatten(),
        chain: is_chain(register),
    };
    for (index, kernel) in body.kernels.iter().enumerate() {
        let operands = kernel.arguments.iter().map(|&register| operand(&definers, register)).collect();
        operations.push(Operation { cost: cost(index), operands });
        for register in &kernel.results {
            if let Some(definer) = definers.get_mut(register.index()) {
                *definer = Some(index);
            }
        }
    }
    let operands = body.results.iter().map(|&register| operand(&definers, register)).collect();
    operations.push(Operation { cost: Some(1), operands });
    let streams = analyze(&operations, options);
    body.root_stream = streams.root;
    for (kernel, stream) in body.kernels.iter_mut().zip(streams.operations) {
        kernel.stream = stream;
    }
}

#[derive(Clone, Debug, Default)]
struct Stream {
    cost: i64,
    merged_into: Option<usize>,
    /// Operations whose data the stream needs, except the parent of the stream.
    side_deps: BTreeSet<usize>,
}

struct Analysis<'o> {
    operations: &'o [Operation],
    options: Options,
    /// Cost of each operation, the root last. `scheduled_users`, `side_defs` and `assigned` have this order, too.
    costs: Vec<i64>,
    /// Children of each operation, in program order.
    scheduled_users: Vec<Vec<usize>>,
    /// For each operation, the definers of its data operands except its parent; empty unless streams that exchange data
    /// merge.
    side_defs: Vec<BTreeSet<usize>>,
    assigned: Vec<Option<usize>>,
    streams: Vec<Stream>,
}

impl<'o> Analysis<'o> {
    fn new(operations: &'o [Operation], options: &Options) -> Self {
        let threshold = options.cost_threshold.max(1);
        let nodes = operations.len() + 1;
        let costs = operations.iter().map(|operation| operation.cost.unwrap_or(threshold)).chain([1]);
        Analysis {
            operations,
            options: Options { cost_threshold: threshold, ..*options },
            costs: costs.collect(),
            scheduled_users: vec![Vec::new(); nodes],
            side_defs: vec![BTreeSet::new(); nodes],
            assigned: vec![None; nodes],
            streams: Vec::new(),
        }
    }

    fn is_cheap(&self, stream: usize) -> bool {
        self.streams[stream].cost < self.options.cost_threshold
    }

    /// The forward pass: chooses each operation's parent.
    fn schedule(&mut self) {
        let root = self.operations.len();
        let mut cost_from_root = vec![0i64; root + 1];
        cost_from_root[root] = self.costs[root];
        for (op, operation) in self.operations.iter().enumerate() {
            let definer = |operand: &Operand| operand.definer.filter(|&definer| definer < op).unwrap_or(root);
            let mut parent = root;
            let mut parent_cost = 0;
            for definer in operation.operands.iter().map(definer) {
                if cost_from_root[definer] > parent_cost {
                    (parent, parent_cost) = (definer, cost_from_root[definer]);
                }
            }
            if self.options.merge_inter_dependent_streams {
                let data = operation.operands.iter().filter(|operand| !operand.chain);
                self.side_defs[op] = data.map(definer).filter(|&definer| definer != parent).collect();
            }
            self.scheduled_users[parent].push(op);
            cost_from_root[op] = self.costs[op].wrapping_add(parent_cost);
        }
    }

    /// The current stream of an operation, after all merges; `None` if it has none yet.
    fn stream_of(&mut self, op: usize) -> Option<usize> {
        let mut stream = self.assigned[op]?;
        while let Some(next) = self.streams[stream].merged_into {
            stream = next;
        }
        self.assigned[op] = Some(stream);
        Some(stream)
    }

    fn open_stream(&mut self) -> usize {
        self.streams.push(Stream::default());
        self.streams.len() - 1
    }

    fn add_to_stream(&mut self, op: usize, stream: usize) {
        self.assigned[op] = Some(stream);
        let joined = &mut self.streams[stream];
        joined.cost = joined.cost.wrapping_add(self.costs[op]);
        joined.side_deps.remove(&op);
        joined.side_deps.append(&mut self.side_defs[op]);
    }

    fn merge(&mut self, from: usize, into: usize) {
        let mut side_deps = std::mem::take(&mut self.streams[into].side_deps);
        side_deps.retain(|&op| self.stream_of(op) != Some(from));
        let added = std::mem::take(&mut self.streams[from].side_deps);
        side_deps.extend(added.into_iter().filter(|&op| self.stream_of(op) != Some(into)));
        self.streams[into].side_deps = side_deps;
        self.streams[into].cost = self.streams[into].cost.wrapping_add(self.streams[from].cost);
        self.streams[from].merged_into = Some(into);
    }

    /// Merges cheap child streams into the child streams that need their data.
    fn merge_inter_dependent(&mut self, children: &mut Vec<usize>) {
        let candidates: HashSet<usize> = children.iter().copied().collect();
        for &child in children.iter() {
            if self.streams[child].merged_into.is_some() {
                continue;
            }
            let needed: Vec<usize> = self.streams[child].side_deps.iter().copied().collect();
            let mut mergeable: Vec<usize> = needed.into_iter().filter_map(|op| self.stream_of(op)).collect();
            mergeable.retain(|&stream| candidates.contains(&stream) && self.is_cheap(stream));
            mergeable.sort_unstable();
            mergeable.dedup();
            sort_in_hash_order(&mut mergeable);
            for stream in mergeable {
                self.merge(stream, child);
                if !self.is_cheap(child) {
                    break;
                }
            }
        }
        children.retain(|&child| self.streams[child].merged_into.is_none());
    }

    /// The backward pass for `op`: merges its child streams and assigns it to one of them, or to a new one.
    fn build_stream(&mut self, op: usize) {
        let users = std::mem::take(&mut self.scheduled_users[op]);
        let mut children: Vec<usize> = users.into_iter().filter_map(|user| self.stream_of(user)).collect();
        if self.options.merge_inter_dependent_streams {
            self.merge_inter_dependent(&mut children);
        }
        // Cheap children are merged in order into groups, each until it reaches the threshold; only the last can stay
        // cheap.
        let mut group: Option<usize> = None;
        let mut dearest: Option<usize> = None;
        let mut highest_cost = 0;
        for child in children {
            let stream = if !self.is_cheap(child) {
                child
            } else {
                match group {
                    Some(group) if self.is_cheap(group) => {
                        self.merge(child, group);
                        group
                    }
                    _ => *group.insert(child),
                }
            };
            let (cost, limit) = (self.streams[stream].cost, self.options.upper_cost_threshold);
            if (limit < 0 || cost < limit) && cost > highest_cost {
                (dearest, highest_cost) = (Some(stream), cost);
            }
        }
        let Some(dearest) = dearest else {
            let stream = self.open_stream();
            return self.add_to_stream(op, stream);
        };
        self.add_to_stream(op, dearest);
        if let Some(group) = group
            && group != dearest
            && self.is_cheap(group)
        {
            self.merge(group, dearest);
        }
    }
}

/// Reorders ascending stream ids into the reference's iteration order: the bucket order of LLVM's hash set of `int`s,
/// which starts with 64 buckets and doubles when three quarters are occupied. The order affects the result, because
/// merging stops at the threshold.
fn sort_in_hash_order(ids: &mut [usize]) {
    let mut buckets = 64;
    while ids.len() * 4 >= buckets * 3 {
        buckets *= 2;
    }
    ids.sort_by_key(|&id| (id as u32).wrapping_mul(37) as usize & (buckets - 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn op(cost: i64, definers: &[Option<usize>]) -> Operation {
        let operands = definers.iter().map(|&definer| Operand { definer, chain: false }).collect();
        Operation { cost: Some(cost), operands }
    }

    fn streams(operations: &[Operation], options: Options) -> (u64, Vec<u64>) {
        let streams = analyze(operations, &options);
        (streams.root, streams.operations)
    }

    #[test]
    fn without_options_a_chain_is_one_stream_and_branches_are_not_merged() {
        let chain = [op(1, &[]), op(1, &[Some(0)]), op(1, &[Some(1)])];
        assert_eq!(streams(&chain, Options::default()), (0, vec![0, 0, 0]));
        // Two branches; the parent of the last operation is the first of its equally expensive operands.
        let diamond = [op(1, &[None]), op(1, &[Some(0)]), op(1, &[Some(0)]), op(1, &[Some(1), Some(2)])];
        assert_eq!(streams(&diamond, Options::default()), (0, vec![0, 0, 1, 0]));
    }

    #[test]
    fn streams_below_the_threshold_are_merged() {
        let options = Options { cost_threshold: 6, ..Options::default() };
        let operations = [
            op(2, &[None]),
            op(2, &[None]),
            op(2, &[None]),
            op(9, &[Some(0), Some(1), Some(2)]),
            op(1, &[Some(3)]),
        ];
        let (root, ids) = streams(&operations, options);
        assert_eq!((root, ids), (0, vec![0, 0, 0, 0, 0]));
    }

    #[test]
    fn operations_do_not_join_streams_above_the_upper_threshold() {
        let options = Options { cost_threshold: 100, upper_cost_threshold: 150, ..Options::default() };
        let operations = [
            op(120, &[None]),
            op(130, &[None]),
            op(40, &[Some(0)]),
            op(5, &[Some(1), Some(2)]),
            op(1, &[Some(3)]),
        ];
        // The most expensive path costs 166, too much to join: the root joins the other branch, which costs 130.
        assert_eq!(streams(&operations, options), (1, vec![0, 1, 0, 0, 0]));
        let unlimited = Options { upper_cost_threshold: -1, ..options };
        assert_eq!(streams(&operations, unlimited), (0, vec![0, 1, 0, 0, 0]));
        // With every branch above the limit, the root opens a stream of its own.
        let limited = Options { upper_cost_threshold: 50, ..options };
        assert_eq!(streams(&operations, limited), (2, vec![0, 1, 0, 0, 0]));
    }

    #[test]
    fn operands_without_an_earlier_definer_count_as_arguments() {
        assert_eq!(streams(&[op(1, &[Some(7)])], Options::default()), (0, vec![0]));
    }

    #[test]
    fn hash_order_is_bucket_order() {
        let mut ids = [0, 1, 2, 5];
        sort_in_hash_order(&mut ids);
        // 37 * (0, 1, 2, 5) modulo 64 is 0, 37, 10, 57.
        assert_eq!(ids, [0, 2, 1, 5]);
    }
}
