//! From a graph to its executable: steps of nodes, what is constant packed, places in the workspace.

use crate::attention::AttentionStep;
use crate::executable::{Executable, Slot, Source};
use crate::graph::{Graph, ValueId};
use crate::group_factors::GroupFactorsStep;
use crate::node::{Node, Op};
use crate::packs::Packs;
use crate::plan::{Lifetime, place};
use crate::pointwise::Pass;
use crate::product::{ConvStep, LinearStep};
use crate::quantized::QuantizedStep;
use crate::relayout::RelayoutStep;
use crate::step::{Action, Step};
use crate::window::{GlobalMeanStep, PoolStep};
use kernels::compute::Isa;
use operator::{Error, Result};
use std::collections::HashSet;
use tensor::{AlignedBuffer, Arenas, Extent};
use trace::Place;

/// Makes steps of nodes, packs what is constant, and plans the workspace.
///
/// Constants that only packing reads go as soon as they are packed, so that they do not all lie beside what is
/// made of them.
pub(crate) fn lower(mut graph: Graph, isa: Isa, packs: &mut Packs) -> Result<Executable> {
    // A reshape, or a change of layout that moves nothing, makes no step: its output is its input.
    let mut alias: Vec<usize> = (0..graph.values.len()).collect();
    let mut steps = Vec::new();
    let nodes = std::mem::take(&mut graph.nodes);
    let mut uses = vec![0; graph.values.len()];
    nodes.iter().flat_map(|node| &node.inputs).chain(&graph.outputs).for_each(|v| uses[v.0] += 1);
    let mut left = uses.clone();
    for node in &nodes {
        let free = match node.op {
            Op::Reshape => true,
            Op::Relayout => {
                let (from, to) = (graph.meta(node.inputs[0]), graph.meta(node.outputs[0]));
                from.dim_order().same_layout(to.dim_order(), from.sizes())
            }
            _ => false,
        };
        if free {
            alias[node.outputs[0].0] = alias[node.inputs[0].0];
            continue;
        }
        let (action, used) = action(&graph, node, isa, packs)?;
        for (i, v) in node.inputs.iter().enumerate() {
            // What is read at run time is never counted down to nothing.
            left[v.0] -= usize::from(used.binary_search(&i).is_err());
            if left[v.0] == 0 {
                graph.values[v.0].constant = None;
            }
        }
        let ids = |vs: &[ValueId]| vs.iter().map(|v| v.0).collect();
        let origin = |vs: &[ValueId]| vs.first().map(|v| graph.values[v.0].origin).unwrap_or_default();
        // A value in another form is still the result of the instruction whose step has reported it.
        let converts =
            matches!(node.op, Op::Relayout | Op::Cast) && origin(&node.inputs) == origin(&node.outputs);
        let reported = (0..node.outputs.len()).filter(|&i| !converts && uses[node.outputs[i].0] > 0);
        steps.push(Step {
            name: node.op.name().into(),
            origin: origin(&node.outputs),
            reported: reported.collect(),
            action,
            inputs: used.iter().map(|&i| node.inputs[i].0).collect(),
            outputs: ids(&node.outputs),
        });
    }
    let mut first = vec![usize::MAX; graph.values.len()];
    let mut last = vec![0; graph.values.len()];
    for (i, step) in steps.iter().enumerate() {
        step.outputs.iter().for_each(|&v| (first[v], last[v]) = (i, i.max(last[v])));
        step.inputs.iter().for_each(|&v| last[alias[v]] = i);
    }
    graph.outputs.iter().for_each(|v| last[alias[v.0]] = steps.len());
    let written: Vec<usize> = (0..first.len()).filter(|&v| first[v] != usize::MAX).collect();
    let lifetimes: Vec<Lifetime> = written
        .iter()
        .map(|&v| Lifetime { bytes: graph.values[v].meta.nbytes(), first: first[v], last: last[v] })
        .collect();
    let (offsets, workspace) = place(&lifetimes);
    let mut values: Vec<Slot> = Vec::with_capacity(graph.values.len());
    let mut places = vec![None; graph.values.len()];
    for (index, &v) in written.iter().enumerate() {
        places[v] = Some(Extent { arena: 0, offset: offsets[index], len: lifetimes[index].bytes });
    }
    let mut inputs = vec![None; graph.values.len()];
    graph.inputs.iter().enumerate().for_each(|(i, v)| inputs[v.0] = Some(i));
    let results = graph.outputs.iter().map(|v| alias[v.0]);
    let needed: HashSet<usize> =
        steps.iter().flat_map(|s| s.inputs.iter().map(|&v| alias[v])).chain(results).collect();
    for (v, value) in graph.values.iter().enumerate() {
        let root = alias[v];
        let source = if let Some(extent) = places[root] {
            Source::Workspace(extent)
        } else if let Some(i) = inputs[root] {
            Source::Input(i)
        } else {
            let constant = graph.values[root].constant.clone().filter(|_| needed.contains(&root));
            constant.map_or(Source::None, Source::Constant)
        };
        values.push(Slot { meta: value.meta.clone(), source });
    }
    let mut arena = Arenas::new();
    arena.push(AlignedBuffer::zeroed(workspace)?);
    Ok(Executable {
        steps: steps.into(),
        values: values.into(),
        inputs: graph.inputs.iter().map(|&v| graph.meta(v).clone()).collect(),
        outputs: graph.outputs.iter().map(|v| v.0).collect(),
        arena,
        workspace,
        failed: Place::default(),
    })
}

/// What a node does at run time, and which of its inputs it still reads then, in order.
fn action(graph: &Graph, node: &Node, isa: Isa, packs: &mut Packs) -> Result<(Action, Vec<usize>)> {
    let all = || (0..node.inputs.len()).collect();
    let out = graph.meta(node.outputs[0]);
    let residual_last = |residual: bool| if residual { vec![0, node.inputs.len() - 1] } else { vec![0] };
    Ok(match &node.op {
        Op::Call(call) => (Action::Call(Box::new(call.clone())), all()),
        Op::Reshape | Op::Relayout => {
            let step = RelayoutStep::new(graph.meta(node.inputs[0]), out, isa);
            (Action::Relayout(step), all())
        }
        Op::Cast => (Action::Cast, all()),
        Op::Pool(spec) => {
            let step = PoolStep::new(*spec, graph.meta(node.inputs[0]), out, isa);
            (Action::Pool(Box::new(step)), vec![0])
        }
        Op::Pointwise(program) => {
            let metas: Vec<_> = node.inputs.iter().map(|&v| graph.meta(v)).collect();
            (Action::Pointwise(Box::new(Pass::new(program, &metas, out, isa))), all())
        }
        Op::GlobalMean => (Action::GlobalMean(GlobalMeanStep::new(graph.meta(node.inputs[0]), isa)?), all()),
        Op::Attention(spec) => {
            let step = AttentionStep::new(spec, isa)
                .ok_or_else(|| Error::invalid("attention of views that do not fit"))?;
            (Action::Attention(Box::new(step)), all())
        }
        Op::GroupFactors(spec) => {
            (Action::GroupFactors(GroupFactorsStep::new(*spec, graph.meta(node.inputs[0]), isa)?), all())
        }
        Op::Quantize(_) | Op::Dequantize(_) | Op::QuantizedLinear(_) | Op::QuantizedConv(_) => {
            (Action::Quantized(Box::new(QuantizedStep::new(graph, node, isa)?)), vec![0])
        }
        Op::Conv(spec) => {
            let step = ConvStep::new(graph, node, spec, isa, packs)?;
            (Action::Conv(Box::new(step)), residual_last(spec.residual))
        }
        Op::Linear(spec) => {
            let step = LinearStep::new(graph, node, spec, isa, packs)?;
            (Action::Linear(Box::new(step)), residual_last(spec.residual))
        }
    })
}
