//! Lowers a graph: creates steps, packs constants, assigns workspace offsets.

mod pack;
mod uses;

use self::pack::LoweredAhead;
use self::uses::{Uses, overwrite_dead_inputs};
use super::lowering::Lowered;
use super::operations;
use super::packs::Packs;
use super::placed::{PlacedStep, Slot, Source};
use super::plan::{Lifetime, plan_offsets};
use super::step::Step;
use super::steps::{Steps, WORKSPACE};
use crate::graph::{Constant, Graph, NodeId, ValueId};
use crate::operation::as_op;
use crate::ops::cast::Cast;
use crate::ops::relayout::Relayout;
use pteron_operator::{Error, KernelContext, Result};
use pteron_tensor::{AlignedBuffer, Arenas, Extent};
use pteron_trace::{Place, SpanKind};
use std::sync::Arc;

/// Lowers nodes to steps, packs constants, and plans the workspace.
///
/// A constant that only packing reads is released as soon as it is packed, so that not all constants are in memory
/// together with their packed forms.
pub(crate) fn lower(mut graph: Graph, ctx: &KernelContext<'_>, packs: &Packs) -> Result<Steps> {
    if graph.num_blocks() != 1 {
        return Err(Error::invalid(
            "a graph of several blocks cannot be lowered at once; lower it block by block",
        ));
    }
    drop_unused_constants(&mut graph);
    // A node that lowers to an alias runs nothing: its output is its input.
    let mut alias: Vec<usize> = (0..graph.num_values()).collect();
    let mut steps = Vec::new();
    // The reads of each value by nodes that are not lowered yet. Reads at run time are not subtracted.
    let mut remaining: Vec<usize> = count_uses(&graph);
    let nodes = graph.order();
    let mut ahead = LoweredAhead::new(ctx.pool());
    for (i, &node) in nodes.iter().enumerate() {
        let lowered = match ahead.take(&graph, &nodes[i..], ctx.isa(), packs) {
            Some(lowered) => lowered,
            None => operations::lower(&graph, node, ctx.isa(), packs)?,
        };
        let (step, reads) = match lowered {
            Lowered::Step { step, reads } => (step, reads),
            Lowered::Alias => {
                let (from, to) = (graph.node(node).inputs()[0], graph.node(node).outputs()[0]);
                alias[to.index()] = alias[from.index()];
                continue;
            }
        };
        let unread = inputs_no_longer_read(&graph, node, &reads, &mut remaining);
        steps.push(build_placed_step(&graph, node, step, &reads));
        unread.into_iter().for_each(|v| graph.forget_constant(v));
    }
    let uses = Uses::of(&graph, &steps, &alias);
    let shared = overwrite_dead_inputs(&graph, &mut steps, &alias, &uses);
    let (values, workspace) = assign_slots(&graph, &uses, &shared, &alias, packs);
    for step in &mut steps {
        step.touches_outputs = step.inputs.iter().chain(&step.outputs).any(|&v| values[v].output.is_some());
    }
    let (values, [inputs, outputs]) = compact_slots(&graph, values, &mut steps);
    values.iter().try_for_each(check_readable)?;
    let reservation = packs.budget().take(WORKSPACE, workspace)?;
    let mut arena = Arenas::new();
    arena.push(AlignedBuffer::zeroed_long_lived(workspace)?);
    Ok(Steps {
        steps: steps.into(),
        values: values.into(),
        inputs,
        outputs,
        arena,
        workspace,
        kind: SpanKind::Kernel,
        reservation,
        failed: Place::default(),
    })
}

/// Drops constants that are unused because passes have replaced them.
fn drop_unused_constants(graph: &mut Graph) {
    let unused: Vec<ValueId> =
        graph.values().filter(|&v| graph.value(v).constant().is_some() && !graph.is_used(v)).collect();
    unused.into_iter().for_each(|v| graph.forget_constant(v));
}

/// Loads the bytes of a constant now rather than when its step runs, and fails if they cannot be loaded.
fn check_readable(slot: &Slot) -> Result<()> {
    match &slot.source {
        Source::Constant(constant @ Constant::Shared(_)) if constant.bytes().len() < slot.meta.nbytes() => {
            Err(Error::invalid("the bytes of a constant cannot be loaded"))
        }
        _ => Ok(()),
    }
}

fn count_uses(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.num_values()];
    for node in graph.order() {
        graph.node(node).inputs().iter().for_each(|v| uses[v.index()] += 1);
    }
    graph.outputs().iter().for_each(|v| uses[v.index()] += 1);
    uses
}

/// The inputs of a node that are no longer read once the node is lowered.
fn inputs_no_longer_read(
    graph: &Graph,
    node: NodeId,
    reads: &[usize],
    remaining: &mut [usize],
) -> Vec<ValueId> {
    let mut unread = Vec::new();
    for (i, v) in graph.node(node).inputs().iter().enumerate() {
        remaining[v.index()] -= usize::from(reads.binary_search(&i).is_err());
        if remaining[v.index()] == 0 {
            unread.push(*v);
        }
    }
    unread
}

fn build_placed_step(graph: &Graph, id: NodeId, step: Box<dyn Step>, reads: &[usize]) -> PlacedStep {
    let node = graph.node(id);
    let origin = |v: Option<&ValueId>| v.map(|&v| graph.value(v).origin()).unwrap_or_default();
    // A converted value is still the result of the same instruction, whose step has already reported it.
    let converts = (as_op::<Relayout>(graph, id).is_some() || as_op::<Cast>(graph, id).is_some())
        && origin(node.inputs().first()) == origin(node.outputs().first());
    let is_result = |v: ValueId| graph.is_used(v) && graph.value(v).origin() != Place::default();
    let is_reported = |&i: &usize| !converts && is_result(node.outputs()[i]);
    let result = origin(node.outputs().first());
    let mut origins: Vec<Place> = node.origins().iter().copied().filter(|&o| o != result).collect();
    origins.extend((result != Place::default()).then_some(result));
    PlacedStep {
        name: node.name().into(),
        origins: origins.into(),
        reported: (0..node.outputs().len()).filter(is_reported).collect(),
        step,
        inputs: reads.iter().map(|&i| node.inputs()[i].index()).collect(),
        outputs: node.outputs().iter().map(|v| v.index()).collect(),
        touches_outputs: false,
    }
}

/// The storage of each value at run time, and the size of the workspace.
fn assign_slots(
    graph: &Graph,
    Uses { first, last, is_read }: &Uses,
    shared: &[usize],
    alias: &[usize],
    packs: &Packs,
) -> (Vec<Slot>, usize) {
    let count = graph.num_values();
    let written: Vec<usize> = (0..count).filter(|&v| first[v] != usize::MAX).collect();
    let ids: Vec<ValueId> = graph.values().collect();
    let value = |v: usize| graph.value(ids[v]);
    // A block of memory for each value, or for a chain of updates of one.
    let (mut block_of, mut lifetimes) = (vec![usize::MAX; count], Vec::new());
    for &v in written.iter().filter(|&&v| shared[v] == v) {
        block_of[v] = lifetimes.len();
        lifetimes.push(Lifetime { bytes: value(v).meta().nbytes(), first: first[v], last: last[v] });
    }
    for &v in &written {
        let life = &mut lifetimes[block_of[shared[v]]];
        life.last = life.last.max(last[v]);
    }
    let (offsets, workspace) = plan_offsets(&lifetimes);
    let (mut places, mut inputs) = (vec![None; count], vec![None; count]);
    for &v in &written {
        let block = block_of[shared[v]];
        places[v] = Some(Extent { arena: 0, offset: offsets[block], len: lifetimes[block].bytes });
    }
    graph.inputs().iter().enumerate().for_each(|(i, v)| inputs[v.index()] = Some(i));
    // A value that is several outputs stays in the workspace and is copied to each.
    let (mut outputs, mut shares) = (vec![None; count], vec![0; count]);
    for (i, v) in graph.outputs().iter().enumerate() {
        outputs[alias[v.index()]] = Some(i);
        shares[alias[v.index()]] += 1;
    }
    let mut descriptions = packs.descriptions();
    let slots = (0..count).map(|v| {
        let root = alias[v];
        let source = match (places[root], inputs[root], value(root).constant()) {
            (Some(extent), ..) => Source::Workspace(extent),
            (None, Some(input), _) => Source::Input(input),
            (None, None, Some(constant)) if is_read[root] => Source::Constant(constant.clone()),
            _ => Source::None,
        };
        let output = outputs[root].filter(|_| shares[root] == 1 && matches!(source, Source::Workspace(_)));
        Slot { meta: descriptions.share(value(v).meta()), source, output }
    });
    (slots.collect(), workspace)
}

/// Compacts the slots to the values that are accessed at run time: inputs, outputs and operands of steps. There may be
/// hundreds of thousands of executables, and values that fusion has removed need no slot. Returns the slots and the
/// indices of the inputs and outputs.
fn compact_slots(
    graph: &Graph,
    slots: Vec<Slot>,
    steps: &mut [PlacedStep],
) -> (Vec<Slot>, [Arc<[usize]>; 2]) {
    let mut is_seen = vec![false; slots.len()];
    let ends = graph.inputs().iter().chain(graph.outputs()).map(|v| v.index());
    let operands = steps.iter().flat_map(|step| step.inputs.iter().chain(&step.outputs).copied());
    ends.chain(operands).for_each(|v| is_seen[v] = true);
    let count = is_seen.iter().scan(0, |next, &seen| {
        *next += usize::from(seen);
        Some(*next - usize::from(seen))
    });
    let numbers: Vec<usize> = count.collect();
    for step in steps {
        step.inputs.iter_mut().chain(&mut step.outputs).for_each(|v| *v = numbers[*v]);
    }
    let used_slots = slots.into_iter().zip(is_seen).filter_map(|(slot, seen)| seen.then_some(slot));
    let of = |values: &[ValueId]| values.iter().map(|v| numbers[v.index()]).collect();
    (used_slots.collect(), [of(graph.inputs()), of(graph.outputs())])
}
