//! Replaces tagged parts of a program by calls of lowered payloads.

use super::tags::{Group, groups_in_order};
use super::{
    CALL_DELEGATE, CompileSpec, DelegationError, DelegationSpec, LoweredModule, MAX_ALIGNMENT,
    PartitionResult, Partitioner, Preprocess, PreprocessResult, partition,
};
use crate::{Argument, ExportedGraph, ExportedNode, ExportedProgram, InputKind, SourceFrame, VarId, VarType};
use pteron_ir::{SharedBytes, reopen_or_share};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Tags a program with a partitioner and compiles each tagged part with its backend. In the result a
/// [`CALL_DELEGATE`] node replaces each part; other nodes stay, reordered as needed so that all can run.
///
/// To delegate to several backends in order of preference, call this once for each.
///
/// # Errors
/// A tag is used in several graphs, is not among the partition tags, or tags a part that depends on itself through
/// other nodes; a backend is not among `backends`, or cannot compile a part.
pub fn to_backend(
    program: &ExportedProgram,
    partitioner: &dyn Partitioner,
    backends: &[&dyn Preprocess],
) -> Result<ExportedProgram, DelegationError> {
    lower_partition(partition(program, partitioner)?, backends)
}

/// Lets the backend of each part that a partitioner has tagged compile the part: the second half of [`to_backend`],
/// after [`partition`].
///
/// # Errors
/// As for [`to_backend`].
pub fn lower_partition(
    result: PartitionResult,
    backends: &[&dyn Preprocess],
) -> Result<ExportedProgram, DelegationError> {
    let mut program = result.tagged_exported_program;
    program.check_tagged_values()?;
    program.check_tags()?;
    lower(&mut program, &result.partition_tags, backends)?;
    program.tags.clear();
    program.verify()?;
    Ok(program)
}

/// Compiles a whole program with a backend: all nodes of its outermost graph become one call.
///
/// # Errors
/// The backend cannot compile it.
pub fn to_backend_whole(
    program: &ExportedProgram,
    backend: &dyn Preprocess,
    spec: &DelegationSpec,
) -> Result<ExportedProgram, DelegationError> {
    struct Whole<'s>(&'s DelegationSpec);
    impl Partitioner for Whole<'_> {
        fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
            let mut program = program.clone();
            let tag: Arc<str> = "whole".into();
            let firsts: Vec<VarId> =
                program.graph.nodes.iter().filter_map(|n| n.outputs.first().copied()).collect();
            program.tags.extend(firsts.into_iter().map(|var| (var, Arc::clone(&tag))));
            let partition_tags = BTreeMap::from([(tag, self.0.clone())]);
            Ok(PartitionResult { tagged_exported_program: program, partition_tags, reasons: BTreeMap::new() })
        }
    }
    to_backend(program, &Whole(spec), &[backend])
}

fn lower(
    program: &mut ExportedProgram,
    specs: &BTreeMap<Arc<str>, DelegationSpec>,
    backends: &[&dyn Preprocess],
) -> Result<(), DelegationError> {
    let used = program.use_counts();
    let mut graph = std::mem::take(&mut program.graph);
    let known = program.lowered.iter().flat_map(|module| &module.result.named_data);
    let keys = known.map(|data| (data.key.clone(), Arc::clone(&data.bytes))).collect();
    let lowered = Lowering { program, used, specs, backends, keys }.lower_graph(&mut graph);
    program.graph = graph;
    lowered
}

struct Lowering<'a> {
    program: &'a mut ExportedProgram,
    used: Vec<u32>,
    specs: &'a BTreeMap<Arc<str>, DelegationSpec>,
    backends: &'a [&'a dyn Preprocess],
    /// The named data of all payloads, by key.
    keys: HashMap<String, SharedBytes>,
}

impl Lowering<'_> {
    fn lower_graph(&mut self, graph: &mut ExportedGraph) -> Result<(), DelegationError> {
        let groups = groups_in_order(self.program, graph)?;
        let nodes = std::mem::take(&mut graph.nodes);
        let mut nodes: Vec<Option<ExportedNode>> = nodes.into_iter().map(Some).collect();
        for Group { tag, nodes: members } in groups {
            let mut members: Vec<ExportedNode> =
                members.into_iter().filter_map(|n| nodes[n].take()).collect();
            match tag {
                Some(tag) => graph.nodes.push(self.lower_part(&tag, members)?),
                None => {
                    members
                        .iter_mut()
                        .flat_map(|n| n.graphs_mut())
                        .try_for_each(|inner| self.lower_graph(inner))?;
                    graph.nodes.append(&mut members);
                }
            }
        }
        Ok(())
    }

    /// Compiles the nodes of a tag and returns the call that replaces them.
    fn lower_part(
        &mut self,
        tag: &Arc<str>,
        members: Vec<ExportedNode>,
    ) -> Result<ExportedNode, DelegationError> {
        let spec = self.specs.get(tag).ok_or_else(|| DelegationError::UnknownTag {
            tag: tag.to_string(),
            node: members.first().map_or_else(String::new, |node| self.program.node_name(node)),
            known: self.specs.keys().map(|tag| format!("`{tag}`")).collect::<Vec<_>>().join(", "),
        })?;
        let backend = self.backends.iter().find(|b| b.backend_id() == spec.backend_id).ok_or_else(|| {
            DelegationError::NoBackend { tag: tag.to_string(), backend_id: spec.backend_id.clone() }
        })?;
        let part = Part::extract(self.program, members, &self.used);
        let result = preprocess(*backend, &part.program, &spec.compile_specs)?;
        check_alignments(&spec.backend_id, &result)?;
        for data in &result.named_data {
            let known = self.keys.entry(data.key.clone()).or_insert_with(|| Arc::clone(&data.bytes));
            if !Arc::ptr_eq(known, &data.bytes)
                && reopen_or_share(known).bytes() != reopen_or_share(&data.bytes).bytes()
            {
                return Err(DelegationError::SameKey { key: data.key.clone() });
            }
        }
        let mut args = vec![("lowered_module".into(), Argument::Int(self.program.lowered.len() as i64))];
        args.extend(part.inputs.into_iter().map(|v| ("".into(), Argument::Var(v))));
        let module = LoweredModule { spec: spec.clone(), result, original: part.program };
        self.program.lowered.push(Arc::new(module));
        Ok(ExportedNode { target: CALL_DELEGATE.into(), args, outputs: part.outputs, source: part.source })
    }
}

fn check_alignments(backend_id: &str, result: &PreprocessResult) -> Result<(), DelegationError> {
    let of_data = result.named_data.iter().map(|data| (Some(&data.key), data.alignment));
    let of_payload = (result.payload_alignment != 0).then_some((None, result.payload_alignment));
    let mut wrong = of_data.chain(of_payload).filter(|(_, n)| !n.is_power_of_two() || *n > MAX_ALIGNMENT);
    wrong.next().map_or(Ok(()), |(key, alignment)| {
        let what = key.map_or_else(|| "the payload".to_owned(), |key| format!("the data `{key}`"));
        Err(DelegationError::Alignment { backend_id: backend_id.to_owned(), what, alignment })
    })
}

/// Compiles a part. An error gets the source line of the node that it names, or of the part's first node with a line.
fn preprocess(
    backend: &dyn Preprocess,
    part: &ExportedProgram,
    specs: &[CompileSpec],
) -> Result<PreprocessResult, DelegationError> {
    let result = catch_unwind(AssertUnwindSafe(|| backend.preprocess(part, specs)));
    let result = result.unwrap_or_else(|payload| {
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Err(DelegationError::Panicked {
            backend_id: backend.backend_id().to_owned(),
            method: part.name.clone(),
            message: text.unwrap_or("without a message").to_owned(),
        })
    });
    result.map_err(|source| {
        let named = match &source {
            DelegationError::Preprocess { node, .. } => Some(node.as_str()),
            DelegationError::AtLine { .. } => return source,
            _ => None,
        };
        match line_of(part, named) {
            Some(line) => DelegationError::AtLine { source: Box::new(source), line },
            None => source,
        }
    })
}

/// The source line of the node with this name, or of the first node that has a line.
fn line_of(part: &ExportedProgram, named: Option<&str>) -> Option<SourceFrame> {
    let (mut first, mut by_name) = (None, None);
    part.graph.for_each_node(&mut |node| {
        let line = || node.line().cloned();
        if first.is_none() {
            first = line();
        }
        if by_name.is_none() && named.is_some_and(|name| part.node_name(node) == name) {
            by_name = line();
        }
    });
    by_name.or(first)
}

/// A part extracted as a program of its own.
struct Part {
    program: ExportedProgram,
    /// The values of the whole program that the call passes.
    inputs: Vec<VarId>,
    /// The values of the whole program that the call defines.
    outputs: Vec<VarId>,
    source: Arc<crate::Source>,
}

impl Part {
    fn extract(program: &ExportedProgram, mut nodes: Vec<ExportedNode>, used: &[u32]) -> Self {
        let mut copier = Copier {
            program,
            part: ExportedProgram {
                ranges: program.ranges.clone(),
                budget: program.budget.clone(),
                ..ExportedProgram::new(program.name.clone())
            },
            of: HashMap::new(),
            inputs: Vec::new(),
        };
        let source = nodes.first().map(|node| Arc::clone(&node.source)).unwrap_or_default();
        let mut inside: HashMap<VarId, u32> = HashMap::new();
        let mut order = Vec::new();
        for node in &mut nodes {
            copier.map_node(node, &mut inside);
            order.extend_from_slice(&node.outputs);
        }
        // The nodes use the part's values now. Outputs are determined on the whole program's values.
        let back: HashMap<VarId, VarId> =
            copier.of.iter().map(|(&original, &part)| (part, original)).collect();
        let escapes = |v: &VarId| {
            let opaque = matches!(program.var(*v).ty, VarType::Opaque);
            !opaque && used[v.index()] > inside.get(v).copied().unwrap_or(0)
        };
        let outputs: Vec<VarId> = order.iter().filter_map(|v| back.get(v).copied()).filter(escapes).collect();
        let Copier { mut part, of, inputs, .. } = copier;
        part.graph.nodes = nodes;
        part.graph.outputs = outputs.iter().map(|v| Argument::Var(of[v])).collect();
        Self { program: part, inputs, outputs, source }
    }
}

/// Copies values of the whole program to the part's program when its nodes first refer to them.
struct Copier<'w> {
    program: &'w ExportedProgram,
    part: ExportedProgram,
    of: HashMap<VarId, VarId>,
    inputs: Vec<VarId>,
}

impl Copier<'_> {
    /// Replaces a node's values by the part's. Counts, in `inside`, the node's uses of each value of the whole program.
    fn map_node(&mut self, node: &mut ExportedNode, inside: &mut HashMap<VarId, u32>) {
        let mut own = HashSet::new();
        self.map_nested_node(node, inside, &mut own);
    }

    fn map_nested_node(
        &mut self,
        node: &mut ExportedNode,
        inside: &mut HashMap<VarId, u32>,
        own: &mut HashSet<VarId>,
    ) {
        node.operands().for_each(|v| *inside.entry(v).or_default() += 1);
        for (_, arg) in &mut node.args {
            arg.map_vars(&mut |v| self.map_operand(v, own));
        }
        for inner in node.graphs_mut() {
            for input in &mut inner.inputs {
                own.insert(*input);
                *input = self.copy_var(*input);
            }
            for node in &mut inner.nodes {
                self.map_nested_node(node, inside, own);
            }
            for output in &mut inner.outputs {
                output.vars().into_iter().for_each(|v| *inside.entry(v).or_default() += 1);
                output.map_vars(&mut |v| self.map_operand(v, own));
            }
        }
        for output in &mut node.outputs {
            own.insert(*output);
            *output = self.copy_var(*output);
        }
    }

    /// The part's value for a value that a node uses. One defined outside becomes a constant or an input of the part.
    fn map_operand(&mut self, var: VarId, own: &HashSet<VarId>) -> VarId {
        if let Some(&known) = self.of.get(&var) {
            return known;
        }
        let copy = self.copy_var(var);
        match self.program.constants.get(&var).filter(|_| !self.program.is_mutated(var)) {
            Some(data) => {
                self.part.constants.insert(copy, data.clone());
            }
            None if !own.contains(&var) => {
                self.part.graph.inputs.push(copy);
                self.part.inputs.push(InputKind::User);
                self.inputs.push(var);
            }
            None => {}
        }
        copy
    }

    fn copy_var(&mut self, var: VarId) -> VarId {
        if let Some(&known) = self.of.get(&var) {
            return known;
        }
        let known = self.program.var(var).clone();
        let copy = self.part.add_var(known.name, known.ty);
        self.of.insert(var, copy);
        copy
    }
}
