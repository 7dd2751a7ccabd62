//! From a graph to its executable: steps of nodes, what is constant packed, places in the workspace.

mod pack;

use self::pack::Ahead;
use crate::executable::{Executable, Slot, Source, WORKSPACE};
use crate::graph::{Constant, Graph, NodeId, ValueId};
use crate::operation::{Lowered, Lowering, as_op, operation};
use crate::packs::Packs;
use crate::plan::{Lifetime, place};
use crate::steps::call::CallStep;
use crate::steps::cast::Cast;
use crate::steps::relayout::Relayout;
use crate::steps::{PlacedStep, Step};
use kernels::compute::Isa;
use operator::{Error, KernelContext, Result};
use std::sync::Arc;
use tensor::{AlignedBuffer, Arenas, Extent};
use trace::{Place, SpanKind};

/// Makes steps of nodes, packs what is constant, and plans the workspace.
///
/// Constants that only packing reads go as soon as they are packed, so that they do not all lie beside what is
/// made of them.
pub(crate) fn lower(mut graph: Graph, ctx: &KernelContext<'_>, packs: &Packs) -> Result<Executable> {
    if graph.num_blocks() != 1 {
        return Err(Error::invalid("a graph of several blocks is lowered block by block"));
    }
    forget_unused(&mut graph);
    // A step whose output has the bytes of its input runs nothing: the output is that input.
    let mut alias: Vec<usize> = (0..graph.num_values()).collect();
    let mut steps = Vec::new();
    // Reads of each value that lowering has yet to see. What is read at run time is never counted down to none.
    let mut left: Vec<usize> = uses_of_values(&graph);
    let nodes = graph.order();
    let mut ahead = Ahead::new(ctx.pool());
    for (i, &node) in nodes.iter().enumerate() {
        let lowered = match ahead.take(&graph, &nodes[i..], ctx.isa(), packs) {
            Some(lowered) => lowered,
            None => of_node(&graph, node, ctx.isa(), packs)?,
        };
        let (step, reads) = match lowered {
            Lowered::Step { step, reads } => (step, reads),
            Lowered::Alias => {
                let (from, to) = (graph.node(node).inputs()[0], graph.node(node).outputs()[0]);
                alias[to.index()] = alias[from.index()];
                continue;
            }
        };
        let unread = packed_away(&graph, node, &reads, &mut left);
        steps.push(placed(&graph, node, step, &reads));
        unread.into_iter().for_each(|v| graph.forget_constant(v));
    }
    let (values, workspace) = slots(&graph, &steps, &alias, packs);
    for step in &mut steps {
        step.meets_outputs = step.inputs.iter().chain(&step.outputs).any(|&v| values[v].output.is_some());
    }
    let (values, [inputs, outputs]) = numbered(&graph, values, &mut steps);
    values.iter().try_for_each(check_readable)?;
    let held = packs.budget().take(WORKSPACE, workspace)?;
    let mut arena = Arenas::new();
    arena.push(AlignedBuffer::long_lived(workspace)?);
    Ok(Executable {
        steps: steps.into(),
        values: values.into(),
        inputs,
        outputs,
        arena,
        workspace,
        kind: SpanKind::Kernel,
        held,
        failed: Place::default(),
    })
}

/// What a node becomes.
fn of_node(graph: &Graph, node: NodeId, isa: Isa, packs: &Packs) -> Result<Lowered> {
    match graph.node(node).call() {
        Some(call) => Ok(Lowered::step(CallStep(call.clone()), 0..graph.node(node).inputs().len())),
        None => match operation(graph, node) {
            Some(operation) => operation.lower(&mut Lowering { graph, node, isa, packs }),
            None => Err(no_step(graph, node)),
        },
    }
}

/// Lets go of constants that passes have put others in the places of.
fn forget_unused(graph: &mut Graph) {
    let unused: Vec<ValueId> =
        graph.values().filter(|&v| graph.value(v).constant().is_some() && !graph.is_used(v)).collect();
    unused.into_iter().for_each(|v| graph.forget_constant(v));
}

/// Fails if a step would find no bytes where a constant is: they are read now, not when the step runs.
fn check_readable(slot: &Slot) -> Result<()> {
    match &slot.source {
        Source::Constant(constant @ Constant::Shared(_)) if constant.bytes().len() < slot.meta.nbytes() => {
            Err(Error::invalid("a constant that cannot be read"))
        }
        _ => Ok(()),
    }
}

fn no_step(graph: &Graph, node: NodeId) -> Error {
    Error::invalid(format!("{} is no kind of node that can run here", graph.node(node).name()))
}

fn uses_of_values(graph: &Graph) -> Vec<usize> {
    let mut uses = vec![0; graph.num_values()];
    for node in graph.order() {
        graph.node(node).inputs().iter().for_each(|v| uses[v.index()] += 1);
    }
    graph.outputs().iter().for_each(|v| uses[v.index()] += 1);
    uses
}

/// The inputs of a node that nothing reads any more once the node is lowered.
fn packed_away(graph: &Graph, node: NodeId, reads: &[usize], left: &mut [usize]) -> Vec<ValueId> {
    let mut unread = Vec::new();
    for (i, v) in graph.node(node).inputs().iter().enumerate() {
        left[v.index()] -= usize::from(reads.binary_search(&i).is_err());
        if left[v.index()] == 0 {
            unread.push(*v);
        }
    }
    unread
}

fn placed(graph: &Graph, id: NodeId, step: Box<dyn Step>, reads: &[usize]) -> PlacedStep {
    let node = graph.node(id);
    let origin = |v: Option<&ValueId>| v.map(|&v| graph.value(v).origin()).unwrap_or_default();
    // A value in another form is still the result of the instruction whose step has reported it.
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
        meets_outputs: false,
    }
}

/// Where each value is at run time, and the size of the workspace.
fn slots(graph: &Graph, steps: &[PlacedStep], alias: &[usize], packs: &Packs) -> (Vec<Slot>, usize) {
    let count = graph.num_values();
    let (mut first, mut last, mut is_read) = (vec![usize::MAX; count], vec![0; count], vec![false; count]);
    for (i, step) in steps.iter().enumerate() {
        step.outputs.iter().for_each(|&v| (first[v], last[v]) = (i, i.max(last[v])));
        step.inputs.iter().for_each(|&v| (last[alias[v]], is_read[alias[v]]) = (i, true));
    }
    for v in graph.outputs() {
        (last[alias[v.index()]], is_read[alias[v.index()]]) = (steps.len(), true);
    }
    let written: Vec<usize> = (0..count).filter(|&v| first[v] != usize::MAX).collect();
    let ids: Vec<ValueId> = graph.values().collect();
    let value = |v: usize| graph.value(ids[v]);
    let lifetimes: Vec<Lifetime> = written
        .iter()
        .map(|&v| Lifetime { bytes: value(v).meta().nbytes(), first: first[v], last: last[v] })
        .collect();
    let (offsets, workspace) = place(&lifetimes);
    let (mut places, mut inputs) = (vec![None; count], vec![None; count]);
    for ((&v, lifetime), &offset) in written.iter().zip(&lifetimes).zip(&offsets) {
        places[v] = Some(Extent { arena: 0, offset, len: lifetime.bytes });
    }
    graph.inputs().iter().enumerate().for_each(|(i, v)| inputs[v.index()] = Some(i));
    // Outputs with the same bytes are copies of what lies in the workspace.
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

/// The values that are looked at when the steps run, numbered anew: the inputs, what steps read and write, and the
/// outputs. There may be hundreds of thousands of executables, and what passes have joined needs no slot. With the
/// numbers of inputs and outputs.
fn numbered(graph: &Graph, slots: Vec<Slot>, steps: &mut [PlacedStep]) -> (Vec<Slot>, [Arc<[usize]>; 2]) {
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
    let kept = slots.into_iter().zip(is_seen).filter_map(|(slot, seen)| seen.then_some(slot));
    let of = |values: &[ValueId]| values.iter().map(|v| numbers[v.index()]).collect();
    (kept.collect(), [of(graph.inputs()), of(graph.outputs())])
}
