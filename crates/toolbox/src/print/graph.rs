//! Prints the graphs that regions of a method's instructions are lowered through, after any pass.

use super::program::frame_text;
use crate::show::{count, name};
use crate::{Error, Result};
use pteron_engine::passes::{PASSES, run_until};
use pteron_engine::{Executable, Graph};
use pteron_format::pte::{ExecutionPlan, Instruction};
use pteron_operator::{Generator, KernelContext, Scratch};
use pteron_runtime::{LoadOptions, MethodGraph, Program};
use pteron_trace::Place;
use std::fmt::Write;

/// A stage of compilation: the number of passes that have run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stage(usize);

/// The stages in order, as name and description: `calls` before any pass, then each pass.
pub fn stages() -> impl Iterator<Item = (&'static str, &'static str)> {
    let first = ("calls", "the calls of the program, before any pass");
    std::iter::once(first).chain(PASSES.iter().map(|pass| (pass.name, pass.about)))
}

impl Stage {
    /// The stage after the last pass, whose graph is lowered to steps.
    pub fn last() -> Self {
        Self(PASSES.len())
    }

    /// The stage with this name, if there is one.
    pub fn by_name(name: &str) -> Option<Self> {
        stages().position(|(stage, _)| stage == name).map(Self)
    }
}

/// The graphs of a program's methods, or of one method, as text: one for each region of instructions that becomes a
/// graph, with the instructions and source lines of each node. Methods are loaded but not executed.
pub fn graphs(
    program: &Program,
    method: Option<&str>,
    stage: Stage,
    options: &LoadOptions,
) -> Result<String> {
    let options = LoadOptions { keep_graphs: true, no_prepare: false, ..options.clone() };
    let names: Vec<String> = match method {
        Some(name) => vec![name.to_owned()],
        None => program.method_names().map(str::to_owned).collect(),
    };
    let mut out = String::new();
    for method in names {
        let loaded = program.load_method(&method, options.clone())?;
        let plan = program.method_meta(&method)?.plan();
        let instructions = count(plan.chains.iter().map(|c| c.instructions.len()).sum(), "instruction");
        let graphs = loaded.graphs();
        let _ = writeln!(out, "method {}: {instructions}, {}", name(&method), count(graphs.len(), "graph"));
        for region in &graphs {
            write_graph(&mut out, plan, region, stage, &options)?;
        }
    }
    Ok(out)
}

/// The graph of a prepared region at a stage of compilation.
pub fn graph_at_stage(region: &MethodGraph<'_>, stage: Stage, ctx: &KernelContext<'_>) -> Graph {
    let mut graph: Graph = region.graph.clone();
    if stage != Stage(0) {
        graph.specialize_to_bounds();
    }
    run_until(&mut graph, ctx, stage.0);
    graph
}

fn write_graph(
    out: &mut String,
    plan: &ExecutionPlan,
    region: &MethodGraph<'_>,
    stage: Stage,
    options: &LoadOptions,
) -> Result<()> {
    let (scratch, generator) = (Scratch::new(options.limits.scratch_bytes), Generator::new(options.seed));
    let ctx = KernelContext::new(&options.pool, &scratch, &generator).with_isa(options.isa);
    let calls = region.graph.num_nodes();
    let graph = graph_at_stage(region, stage, &ctx);
    let (first, end) = (region.instructions.start, region.instructions.end);
    let _ = write!(out, "\ninstructions {first}..{end}");
    if plan.chains.len() > 1 {
        let _ = write!(out, " of chain {}", region.chain);
    }
    let became = if stage == Stage::last() && !graph.has_dynamic_scalars() {
        let steps = Executable::new(graph.clone(), &ctx)
            .map_err(|e| Error::Context { context: "lowering a graph".into(), source: Box::new(e) })?;
        count(steps.num_steps(), "step")
    } else {
        count(graph.num_nodes(), "node")
    };
    let _ = write!(out, ": {} became {became}", count(calls, "node"));
    let bounds = if region.is_dynamic { ", for the upper bounds of sizes" } else { "" };
    let numbers = if graph.has_dynamic_scalars() { "; numbers are known when it runs" } else { "" };
    let _ = writeln!(out, "{bounds}{numbers}");
    let source = |place: Place| source_comment(plan, place);
    let _ = write!(out, "{}", graph.listing(&source));
    Ok(())
}

/// The operator or delegate that an instruction calls, and the line of the innermost source frame, as text.
fn source_comment(plan: &ExecutionPlan, place: Place) -> Option<String> {
    let chain = plan.chains.get(usize::try_from(place.chain?).ok()?)?;
    let at = usize::try_from(place.instruction?).ok()?;
    let mut text = match chain.instructions.get(at)? {
        Instruction::KernelCall { op_index, .. } => {
            name(&plan.operators.get(usize::try_from(*op_index).ok()?)?.full_name()).to_string()
        }
        Instruction::DelegateCall { delegate_index, .. } => {
            let id = plan.delegates.get(usize::try_from(*delegate_index).ok()?)?.id.as_str();
            let node = place.node.map(|node| format!(", node {node}")).unwrap_or_default();
            format!("delegate {delegate_index} of {}{node}", name(id))
        }
        _ => return None,
    };
    if let Some(last) = chain.stacktrace.get(at).and_then(|frames| frames.items.last()) {
        let _ = write!(text, " at {}", frame_text(last));
    }
    Some(text)
}
