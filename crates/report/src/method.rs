//! The graphs of methods: as written in the file, as prepared, and the payloads of delegates.

use super::Gathered;
use super::data::{GraphKind, Node, Operand, Text};
use super::family::family_of;
use super::sketch::{Sketch, shape_text};
use pteron_format::pte::{EValue, ExecutionPlan, Instruction};
use pteron_operator::{Generator, KernelContext, Scratch};
use pteron_runtime::{
    DelegateSource, LoadOptions, MethodGraph, PayloadContents, PayloadRole, PayloadValue, Program,
    RaisedFlow, RaisedInstruction, RaisedMethod, ReachingDef,
};
use pteron_tensor::ScalarType;
use pteron_toolbox::Result;
use pteron_toolbox::delegates::{self, DelegatePayload};
use pteron_toolbox::print::{Stage, argument_text, graph_at_stage, place_text, tensor_type};
use pteron_trace::Place;
use std::collections::{BTreeMap, HashMap, HashSet};

/// How an instruction is executed in the prepared method.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ExecutedAs {
    /// Fused, possibly with other instructions, into a step of this kind.
    Fused(String),
    /// Executed by the instruction's kernel, as a step of a prepared region.
    Step,
    /// Executed by the instruction's kernel, outside any prepared region.
    AsWritten,
    /// Not executed: constant-folded when the program was loaded, or dead.
    Folded,
}

impl ExecutedAs {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Fused(kind) => format!("fused into {kind}"),
            Self::Step => "a step of its own, by its kernel".to_owned(),
            Self::AsWritten => "as it is written, by its kernel".to_owned(),
            Self::Folded => "computed when the program is loaded, or not needed".to_owned(),
        }
    }
}

/// Adds the graphs of a method: its instructions as written, the payloads of its delegates, and the prepared regions.
pub(super) fn add_method(
    to: &mut Gathered,
    program: &Program,
    method: &str,
    options: &LoadOptions,
) -> Result<()> {
    let raised = program.raise(method, &options.kernels)?;
    let payloads = raised
        .plan()
        .delegates
        .iter()
        .enumerate()
        .map(|(i, d)| delegates::payload(program, raised.plan(), i, d, &options.backends))
        .collect::<Result<Vec<_>>>()?;
    let written = AsWritten { program, raised: &raised, options, payloads: &payloads }.add_graph(to);
    let sources = program.method_meta(method)?.delegate_sources();
    let sources = sources.ok().flatten().map(|sources| sources.delegates).unwrap_or_default();
    for (index, payload) in payloads.iter().enumerate() {
        match sources.get(index) {
            Some(source) if payload.contents.as_ref().is_none_or(|c| c.read.nodes.is_empty()) => {
                add_source_graph(to, written.graph, payload, source, &raised);
            }
            _ => add_payload(to, written.graph, payload, &raised),
        }
    }
    let loading = LoadOptions { keep_graphs: true, no_prepare: false, tracer: None, ..options.clone() };
    match program.load_method(method, loading) {
        Ok(loaded) => {
            let graphs = loaded.graphs();
            for (index, region) in graphs.iter().enumerate() {
                let name = match graphs.len() {
                    1 => format!("{method}, as it runs"),
                    _ => format!("{method}, as it runs, part {} of {}", index + 1, graphs.len()),
                };
                add_prepared_region(to, &written, name, region, options);
            }
            note_execution(to, method, &written, &raised);
        }
        Err(error) => {
            let why = pteron_runtime::one_line(&error);
            to.add_note(format!(
                "{method} is shown as it is written only, since it could not be loaded: {why}"
            ));
        }
    }
    Ok(())
}

/// Draws the instructions of a method as written.
struct AsWritten<'a> {
    program: &'a Program,
    raised: &'a RaisedMethod,
    options: &'a LoadOptions,
    payloads: &'a [DelegatePayload],
}

/// A method's graph that has been added to the report.
struct AddedGraph {
    graph: u32,
    method: String,
    /// The index of the node of the method's first instruction.
    first: u32,
}

/// The nodes that define the values of a method: its inputs, its state and its instructions.
struct Sources {
    /// The indices of the nodes of inputs, by value id.
    inputs: HashMap<usize, u32>,
    /// The indices of the nodes of state, by value id.
    states: HashMap<usize, u32>,
    /// The index of the node of the method's first instruction.
    first: u32,
}

impl Sources {
    /// The node whose result a read of `value` observes, if known, and whether the read observes only that result.
    fn definition(&self, value: usize, reaching: ReachingDef) -> Option<(u32, bool)> {
        match reaching {
            ReachingDef::Whole { instruction: Some(i), .. } => Some((self.first + i as u32, true)),
            ReachingDef::Whole { instruction: None, value } => {
                self.inputs.get(&value).map(|&node| (node, true))
            }
            ReachingDef::Parts { latest: Some(i) } => Some((self.first + i as u32, false)),
            _ => match self.states.get(&value) {
                Some(&node) => Some((node, true)),
                None => self.inputs.get(&value).map(|&node| (node, false)),
            },
        }
    }
}

impl AsWritten<'_> {
    fn plan(&self) -> &ExecutionPlan {
        self.raised.plan()
    }

    fn add_graph(&self, to: &mut Gathered) -> AddedGraph {
        let plan = self.plan();
        let mut sketch = Sketch::new(&plan.name, GraphKind::Method);
        let instructions: Vec<RaisedInstruction> = self.raised.instructions().collect();
        let sources = self.add_sources(to, &mut sketch, &instructions);
        let graph = to.next_graph();
        for (index, step) in instructions.iter().enumerate() {
            self.add_instruction(to, &mut sketch, &sources, index, step);
            to.places
                .entry((plan.name.clone(), step.place))
                .or_default()
                .push((graph, sources.first + index as u32));
        }
        for (index, step) in instructions.iter().enumerate() {
            if let RaisedFlow::JumpFalse { target, .. } = step.flow
                && target < instructions.len()
            {
                let jump = to.intern("jump");
                sketch.add_edge(sources.first + index as u32, sources.first + target as u32, jump, true);
            }
        }
        for (number, &id) in plan.outputs.iter().enumerate() {
            let tensors = self.raised.tensors(id);
            let label = to.intern(format!("output {number}"));
            let detail = to.intern(value_shape(plan, id));
            let output = sketch.add_pill(label, detail);
            for value in tensors {
                let from = sources.definition(value, self.raised.result(value));
                let text = to.intern(self.type_of(value));
                if let Some((from, is_whole)) = from {
                    sketch.add_edge(from, output, text, !is_whole);
                }
            }
        }
        let added = AddedGraph { graph, method: plan.name.clone(), first: sources.first };
        to.add_graph(sketch);
        added
    }

    /// Adds a node for each input of the method, and for each state that instructions read.
    fn add_sources(&self, to: &mut Gathered, sketch: &mut Sketch, all: &[RaisedInstruction]) -> Sources {
        let plan = self.plan();
        let mut sources = Sources { inputs: HashMap::new(), states: HashMap::new(), first: 0 };
        for (number, &id) in plan.inputs.iter().enumerate() {
            let (label, detail) = (to.intern(format!("input {number}")), to.intern(value_shape(plan, id)));
            let node = sketch.add_pill(label, detail);
            sources.inputs.extend(self.raised.tensors(id).into_iter().map(|value| (value, node)));
        }
        for read in all.iter().flat_map(|step| &step.reads) {
            let before = matches!(read.def, ReachingDef::Parts { latest: None } | ReachingDef::Unknown);
            if before && self.raised.is_read_first(read.value) && !sources.states.contains_key(&read.value) {
                let tensor = plan.values.get(read.value).and_then(EValue::as_tensor);
                let name = tensor.and_then(|t| t.fully_qualified_name()).unwrap_or("state");
                let (label, detail) = (to.intern(name), to.intern(value_shape(plan, read.value as i32)));
                sources.states.insert(read.value, sketch.add_pill(label, detail));
            }
        }
        sources.first = sketch.nodes.len() as u32;
        sources
    }

    fn type_of(&self, value: usize) -> String {
        self.plan().values.get(value).and_then(EValue::as_tensor).map(tensor_type).unwrap_or_default()
    }

    fn add_instruction(
        &self,
        to: &mut Gathered,
        sketch: &mut Sketch,
        sources: &Sources,
        index: usize,
        step: &RaisedInstruction,
    ) {
        let plan = self.plan();
        let (chain, at) =
            (step.place.chain.unwrap_or(0) as usize, step.place.instruction.unwrap_or(0) as usize);
        let Some(called) = plan.chains.get(chain).and_then(|c| c.instructions.get(at)) else { return };
        let (name, label, args): (String, String, &[i32]) = match called {
            Instruction::KernelCall { op_index, args } => {
                let name = usize::try_from(*op_index).ok().and_then(|i| plan.operators.get(i));
                let name = name.map(|op| op.full_name()).unwrap_or_default();
                (name.clone(), short_operator(&name).to_owned(), args)
            }
            Instruction::DelegateCall { delegate_index, args } => {
                let id = usize::try_from(*delegate_index).ok().and_then(|i| plan.delegates.get(i));
                let id = id.map_or("unknown", |d| d.id.as_str());
                (format!("delegate {delegate_index} of {id}"), id.to_owned(), args)
            }
            other => (other.kind().to_owned(), other.kind().trim_end_matches("Call").to_owned(), &[]),
        };
        let detail = step.writes.first().map_or_else(String::new, |&v| value_shape(plan, v as i32));
        let mut node = Node {
            label: to.intern(label),
            detail: to.intern(detail),
            family: family_of(&name),
            ..Node::default()
        };
        let number = if plan.chains.len() > 1 { format!("{chain}:{at}") } else { at.to_string() };
        let mut about = |to: &mut Gathered, key: &str, value: String| {
            let pair = (to.intern(key), to.intern(value));
            node.about.push(pair);
        };
        about(to, "Instruction", number);
        about(to, "Calls", name.clone());
        for &value in &step.writes {
            if let Some(EValue::Tensor(tensor)) = plan.values.get(value) {
                about(to, "Result", format!("%{value} {}", tensor_type(tensor)));
                about(to, "Kept in", place_text(self.program.tables(), tensor));
            }
        }
        if let Instruction::JumpFalseCall { .. }
        | Instruction::MoveCall { .. }
        | Instruction::FreeCall { .. } = called
        {
            about(to, "Does", pteron_toolbox::print::instruction_text(plan, called));
        }
        if let Instruction::DelegateCall { delegate_index, .. } = called
            && let Some(payload) = self.payloads.get(*delegate_index as usize)
        {
            about(to, "Payload", pteron_toolbox::show::bytes(payload.bytes));
            payload.magic.iter().for_each(|magic| about(to, "Format", magic.clone()));
            payload.problem.iter().for_each(|problem| about(to, "Not opened", problem.clone()));
        }
        node.frames =
            plan.chains[chain].stacktrace.get(at).map_or_else(Vec::new, |list| to.add_frames(&list.items));
        let node = sketch.add_node(node);
        debug_assert_eq!(node, sources.first + index as u32);
        self.add_operands(to, sketch, sources, node, step, &name, args);
    }

    /// Adds the operands of a call. Items of list operands are shown as edges only.
    #[expect(clippy::too_many_arguments, reason = "one caller")]
    fn add_operands(
        &self,
        to: &mut Gathered,
        sketch: &mut Sketch,
        sources: &Sources,
        node: u32,
        step: &RaisedInstruction,
        name: &str,
        args: &[i32],
    ) {
        let plan = self.plan();
        let kernel = self.options.kernels.get(name);
        let schema = kernel.as_ref().map(|kernel| kernel.schema());
        let definitions: HashMap<usize, (u32, bool)> =
            step.reads.iter().filter_map(|r| Some((r.value, sources.definition(r.value, r.def)?))).collect();
        let declared = schema.map_or(args.len(), |s| s.args.len());
        for (i, &id) in args.iter().take(declared).enumerate() {
            let argument = schema.and_then(|s| s.args.get(i));
            let value = usize::try_from(id).unwrap_or(usize::MAX);
            if argument.is_some_and(|a| a.written) || (argument.is_none() && step.writes.contains(&value)) {
                continue;
            }
            let mut operand =
                Operand { name: to.intern(argument.map_or("", |a| &a.name)), ..Operand::default() };
            operand.text = match plan.values.get(value) {
                Some(EValue::Tensor(tensor)) => {
                    operand.from = definitions.get(&value).map(|&(from, _)| from);
                    operand.bytes = tensor.constant_idx().and_then(|_| tensor.nbytes());
                    let name = tensor.fully_qualified_name().filter(|_| operand.from.is_none());
                    let name = name.map(|name| format!(" {name}")).unwrap_or_default();
                    to.intern(tensor_type(tensor) + &name)
                }
                _ => to.intern(argument_text(plan, id)),
            };
            sketch.add_operand(node, operand);
        }
        for read in &step.reads {
            if let Some(&(from, is_whole)) = definitions.get(&read.value) {
                let text = to.intern(self.type_of(read.value));
                sketch.add_edge(from, node, text, !is_whole);
            }
        }
    }
}

/// An operator's name without namespace and overload.
pub(super) fn short_operator(name: &str) -> &str {
    let name = name.rsplit_once("::").map_or(name, |(_, name)| name);
    name.split_once('.').map_or(name, |(name, _)| name)
}

/// The sizes or value of an operand, as shown on a node.
fn value_shape(plan: &ExecutionPlan, id: i32) -> String {
    match usize::try_from(id).ok().and_then(|id| plan.values.get(id)) {
        Some(EValue::Tensor(t)) => {
            let dtype = ScalarType::from_i8(t.scalar_type).map_or("?", |t| t.name());
            shape_text(dtype, &t.sizes)
        }
        Some(_) => {
            argument_text(plan, id).split_once('=').map_or_else(String::new, |(_, value)| value.to_owned())
        }
        None => String::new(),
    }
}

/// Adds the graph of a payload, if the payload has nodes that its backend can list.
fn add_payload(to: &mut Gathered, parent: u32, payload: &DelegatePayload, raised: &RaisedMethod) {
    let Some(contents) = payload.contents.as_ref().map(|c| &c.read).filter(|c| !c.nodes.is_empty()) else {
        return;
    };
    let name = format!("{}, delegate {}", payload.method, payload.index);
    let graph = to.next_graph();
    let mut sketch = payload_sketch(to, name, contents);
    let first = sketch.nodes.len() as u32 - contents.nodes.len() as u32 - num_outputs(contents);
    for place in calls_of_delegate(payload, raised) {
        for node in 0..contents.nodes.len() as u32 {
            let key = (payload.method.clone(), Place { node: Some(node), ..place });
            to.places.entry(key).or_default().push((graph, first + node));
        }
        link_to_graph(to, payload, place, graph);
    }
    sketch.parent = Some(parent);
    to.add_graph(sketch);
}

/// The instructions that call a delegate.
fn calls_of_delegate(payload: &DelegatePayload, raised: &RaisedMethod) -> Vec<Place> {
    let is_call = |step: &Instruction| matches!(step, Instruction::DelegateCall { delegate_index, .. } if *delegate_index as usize == payload.index);
    let chains = raised.plan().chains.iter().enumerate();
    let calls = chains.flat_map(|(c, chain)| {
        let steps = chain.instructions.iter().enumerate().filter(|(_, step)| is_call(step));
        steps.map(move |(i, _)| Place::instruction(c as u32, i as u32))
    });
    calls.collect()
}

/// Links the node of a delegate call to the graph of its payload.
fn link_to_graph(to: &mut Gathered, payload: &DelegatePayload, place: Place, graph: u32) {
    let call_node = to.places.get(&(payload.method.clone(), place)).and_then(|all| all.first());
    if let Some(&(at, node)) = call_node {
        to.data.graphs[at as usize].nodes[node as usize].opens = Some(graph);
    }
}

/// Adds a graph of the nodes from which a delegate was compiled, for a payload that no backend can read.
fn add_source_graph(
    to: &mut Gathered,
    parent: u32,
    payload: &DelegatePayload,
    source: &DelegateSource,
    raised: &RaisedMethod,
) {
    let name = format!("{}, delegate {}, as it was compiled from", payload.method, payload.index);
    let graph = to.next_graph();
    let mut sketch = Sketch::new(name, GraphKind::Payload);
    let mut nodes_by_name: HashMap<&str, u32> = HashMap::new();
    let defined: HashSet<&str> = source.nodes.iter().flat_map(|n| &n.results).map(String::as_str).collect();
    for input in source.nodes.iter().flat_map(|n| &n.inputs).filter(|name| !defined.contains(name.as_str())) {
        if !nodes_by_name.contains_key(input.as_str()) {
            let (label, detail) = (to.intern(input), to.intern(String::new()));
            nodes_by_name.insert(input, sketch.add_pill(label, detail));
        }
    }
    for each in &source.nodes {
        let mut node = Node {
            label: to.intern(short_target(&each.target)),
            family: family_of(short_target(&each.target)),
            ..Node::default()
        };
        node.about.push((to.intern("Node"), to.intern(each.name())));
        node.about.push((to.intern("Operator"), to.intern(&each.target)));
        for (what, text) in [("Line", &each.line), ("Module", &each.module)] {
            if !text.is_empty() {
                node.about.push((to.intern(what), to.intern(text)));
            }
        }
        let node = sketch.add_node(node);
        for input in &each.inputs {
            let (name, text) = (to.intern(input), to.intern(String::new()));
            sketch.add_operand(
                node,
                Operand { name, text, bytes: None, from: nodes_by_name.get(input.as_str()).copied() },
            );
        }
        nodes_by_name.extend(each.results.iter().map(|name| (name.as_str(), node)));
    }
    for place in calls_of_delegate(payload, raised) {
        link_to_graph(to, payload, place, graph);
    }
    sketch.parent = Some(parent);
    to.add_graph(sketch);
}

/// An operator without its namespace and overload: `linear` for `aten.linear.default`.
fn short_target(target: &str) -> &str {
    target.split('.').nth(1).unwrap_or(target)
}

fn num_outputs(contents: &PayloadContents) -> u32 {
    contents.values.iter().filter(|v| matches!(v.role, PayloadRole::Output(_))).count() as u32
}

/// A sketch of a payload: its inputs, then its nodes, then its outputs.
fn payload_sketch(to: &mut Gathered, name: String, contents: &PayloadContents) -> Sketch {
    let mut sketch = Sketch::new(name, GraphKind::Payload);
    let mut nodes_by_value: HashMap<usize, u32> = HashMap::new();
    let detail =
        |v: &PayloadValue| shape_text(if v.dtype == "fp32" { "float32" } else { &v.dtype }, &v.sizes);
    for (index, value) in contents.values.iter().enumerate() {
        if let PayloadRole::Input(argument) = value.role {
            let (label, detail) = (to.intern(format!("argument {argument}")), to.intern(detail(value)));
            nodes_by_value.insert(index, sketch.add_pill(label, detail));
        }
    }
    for (number, each) in contents.nodes.iter().enumerate() {
        let written = each.outputs.first().and_then(|&v| contents.values.get(v));
        let mut node = Node {
            label: to.intern(&each.kind),
            detail: to.intern(written.map(detail).unwrap_or_default()),
            family: family_of(&each.kind),
            ..Node::default()
        };
        node.about.push((to.intern("Node"), to.intern(number.to_string())));
        for value in each.outputs.iter().filter_map(|&v| contents.values.get(v)) {
            node.about
                .push((to.intern("Result"), to.intern(format!("{} {}", value.name, value.type_text()))));
        }
        if !each.attributes.is_empty() {
            node.about.push((to.intern("Attributes"), to.intern(&each.attributes)));
        }
        if let Some(handle) = each.debug_handle {
            node.about.push((to.intern("Debug handle"), to.intern(handle.to_string())));
        }
        let node = sketch.add_node(node);
        for &v in &each.inputs {
            let Some(value) = contents.values.get(v) else { continue };
            let text = to.intern(value.type_text());
            let bytes = match &value.role {
                PayloadRole::Constant(bytes) => Some(bytes.len()),
                _ => None,
            };
            let from = nodes_by_value.get(&v).copied();
            sketch.add_operand(node, Operand { name: to.intern(&value.name), text, bytes, from });
        }
        nodes_by_value.extend(each.outputs.iter().map(|&v| (v, node)));
    }
    for (index, value) in contents.values.iter().enumerate() {
        if let PayloadRole::Output(argument) = value.role {
            let (label, shown) = (to.intern(format!("argument {argument}")), to.intern(detail(value)));
            let output = sketch.add_pill(label, shown);
            let text = to.intern(value.type_text());
            if let Some(&from) = nodes_by_value.get(&index) {
                sketch.add_edge(from, output, text, false);
            }
        }
    }
    sketch
}

/// Adds the graph of a prepared region.
fn add_prepared_region(
    to: &mut Gathered,
    written: &AddedGraph,
    name: String,
    region: &MethodGraph<'_>,
    options: &LoadOptions,
) {
    let (scratch, generator) = (Scratch::new(options.limits.scratch_bytes), Generator::new(options.seed));
    let ctx = KernelContext::new(&options.pool, &scratch, &generator).with_isa(options.isa);
    let graph = graph_at_stage(region, Stage::last(), &ctx);
    let number = to.next_graph();
    let mut sketch = Sketch::new(name, GraphKind::Run);
    sketch.parent = Some(written.graph);
    let mut nodes_by_value = HashMap::new();
    let meta = |v| graph.meta(v);
    let detail = |v| shape_text(meta(v).dtype().name(), meta(v).sizes());
    for (i, &input) in graph.inputs().iter().enumerate() {
        if !graph.is_used(input) && !graph.is_live_out(input) {
            continue;
        }
        let label = match graph.state_of_input(i) {
            Some(state) => format!("state {state}"),
            None => format!("input {i}"),
        };
        let (label, detail) = (to.intern(label), to.intern(detail(input)));
        nodes_by_value.insert(input, sketch.add_pill(label, detail));
    }
    for id in graph.order() {
        let each = graph.node(id);
        let attributes = Attributes(&**each.kind()).to_string();
        let output = each.outputs().first().copied();
        let mut node = Node {
            label: to.intern(short_operator(each.name())),
            detail: to.intern(output.map(detail).unwrap_or_default()),
            family: family_of(each.name()),
            ..Node::default()
        };
        node.about.push((to.intern("Step"), to.intern(each.name())));
        for &v in each.outputs() {
            node.about.push((to.intern("Result"), to.intern(format!("%{} {}", v.index(), meta(v)))));
        }
        if !attributes.is_empty() {
            node.about.push((to.intern("Attributes"), to.intern(attributes)));
        }
        let index = sketch.nodes.len() as u32;
        let how = if each.call().is_some() {
            ExecutedAs::Step
        } else {
            ExecutedAs::Fused(short_operator(each.name()).to_owned())
        };
        let result = output.map(|v| graph.value(v).origin()).unwrap_or_default();
        for &origin in each.origins() {
            let key = (written.method.clone(), origin);
            let computes = to.intern(if origin == result { "Computes" } else { "Stands for" });
            // Link only to the instruction as written, not to nodes of prepared regions for the same instruction.
            let is_written =
                |at: &(u32, u32)| to.data.graphs.get(at.0 as usize).is_some_and(|g| g.kind != GraphKind::Run);
            let source = to.places.get(&key).and_then(|all| all.first()).copied().filter(is_written);
            if let Some((g, n)) = source {
                node.links.push((computes, g, n));
                let runs = to.intern("Runs as");
                let frames = to.data.graphs[g as usize].nodes[n as usize].frames.clone();
                to.data.graphs[g as usize].nodes[n as usize].links.push((runs, number, index));
                if origin == result {
                    node.frames = frames;
                }
            }
            to.how.insert(key.clone(), how.clone());
            if origin == result {
                to.places.entry(key).or_default().push((number, index));
            }
        }
        let node = sketch.add_node(node);
        for &v in each.inputs() {
            let text = to.intern(format!("%{} {}", v.index(), meta(v)));
            let bytes = graph.is_constant(v).then(|| meta(v).nbytes() as u64);
            sketch.add_operand(
                node,
                Operand { name: Text::default(), text, bytes, from: nodes_by_value.get(&v).copied() },
            );
        }
        nodes_by_value.extend(each.outputs().iter().map(|&v| (v, node)));
    }
    for (number, &v) in graph.outputs().iter().enumerate() {
        let (label, shown, text) =
            (to.intern(format!("output {number}")), to.intern(detail(v)), to.intern(meta(v).to_string()));
        let output = sketch.add_pill(label, shown);
        if let Some(&from) = nodes_by_value.get(&v) {
            sketch.add_edge(from, output, text, false);
        }
    }
    let chain = region.chain as u32;
    to.prepared.extend(
        region.instructions.clone().map(|i| (written.method.clone(), Place::instruction(chain, i as u32))),
    );
    to.add_graph(sketch);
}

struct Attributes<'a>(&'a dyn pteron_engine::Kind);

impl std::fmt::Display for Attributes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.attributes(f)
    }
}

/// Adds a note to each instruction's node about how it is executed, and collects the calls by operator.
fn note_execution(to: &mut Gathered, method: &str, written: &AddedGraph, raised: &RaisedMethod) {
    let places: Vec<Place> = raised.instructions().map(|step| step.place).collect();
    for (index, place) in places.into_iter().enumerate() {
        let key = (method.to_owned(), place);
        let is_call = raised.plan().chains[place.chain.unwrap_or(0) as usize]
            .instructions
            .get(place.instruction.unwrap_or(0) as usize);
        let how = match (to.how.get(&key), to.prepared.contains(&key)) {
            _ if !matches!(is_call, Some(Instruction::KernelCall { .. })) => continue,
            (Some(how), _) => how.clone(),
            (None, true) => ExecutedAs::Folded,
            (None, false) => ExecutedAs::AsWritten,
        };
        let (runs, text) = (to.intern("Runs"), to.intern(how.text()));
        let node = written.first + index as u32;
        to.data.graphs[written.graph as usize].nodes[node as usize].about.push((runs, text));
        let operator = raised.name(index).unwrap_or_default().to_owned();
        let calls = to.calls.entry((method.to_owned(), operator)).or_default();
        calls.entry(how).or_default().push((written.graph, node));
    }
}

/// The nodes (graph, node) of the calls of each (method, operator), grouped by how the calls are executed.
pub(super) type Calls = BTreeMap<(String, String), BTreeMap<ExecutedAs, Vec<(u32, u32)>>>;
