//! The ahead-of-time half: which nodes of a program XNNPACK takes, and their payloads.
//!
//! What is taken are operators of float32 tensors that a payload's nodes compute alike. Images are `[N, H, W, C]` in a
//! payload: a value is turned round where a node first wants it so, and stays until a node wants the order of its
//! dimensions. Batch normalization and bounds are drawn into the node before them. Constants are named data whose keys
//! are the SHA-256 of their bytes, as the reference's exporter has it.

mod build;
mod call;
mod nodes;
mod taken;

use crate::BACKEND_ID;
use build::Builder;
use ir::exported::delegate::{
    CompileSpec, DebugHandle, DelegationError, DelegationSpec, PartitionResult, Partitioner, Preprocess,
    PreprocessResult, tag_supported,
};
use ir::exported::{Argument, ExportedGraph, ExportedNode, ExportedProgram, VarId};
use nodes::Target;
use std::collections::BTreeMap;
use taken::{Taken, taken};

/// How far XNNPACK reads behind the end of a tensor.
const READS_PAST_END: u64 = 64;

/// Gives XNNPACK every node that it takes, in the largest parts that can run at once.
#[derive(Debug, Clone, Copy, Default)]
pub struct XnnpackPartitioner;

/// Makes payloads of parts.
#[derive(Debug, Clone, Copy, Default)]
pub struct XnnpackPreprocess;

impl Partitioner for XnnpackPartitioner {
    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
        let uses = Uses::of(program);
        let mut program = program.clone();
        let tags = tag_supported(&mut program, "xnnpack", &|program, node| {
            taken(program, node, &|var| uses.any(var)).is_ok()
        });
        let spec = DelegationSpec { backend_id: BACKEND_ID.to_owned(), compile_specs: Vec::new() };
        let mut graph = std::mem::take(&mut program.graph);
        infer_sizes(&program, &mut graph);
        program.graph = graph;
        let partition_tags = tags.into_iter().map(|tag| (tag, spec.clone())).collect();
        Ok(PartitionResult { tagged_exported_program: program, partition_tags })
    }

    fn reasons(&self, program: &ExportedProgram) -> BTreeMap<VarId, String> {
        let uses = Uses::of(program);
        let mut reasons = BTreeMap::new();
        program.graph.for_each_node(&mut |node| {
            if let (Some(&var), Err(reason)) = (node.outputs.first(), taken(program, node, &|v| uses.any(v)))
            {
                reasons.insert(var, reason);
            }
        });
        reasons
    }
}

impl Preprocess for XnnpackPreprocess {
    fn backend_id(&self) -> &str {
        BACKEND_ID
    }

    fn preprocess(
        &self,
        part: &ExportedProgram,
        _: &[CompileSpec],
    ) -> Result<PreprocessResult, DelegationError> {
        let fail = |problem: String| DelegationError::Payload { backend_id: BACKEND_ID.to_owned(), problem };
        let uses = Uses::of(part);
        let mut builder = Builder::new(part).map_err(fail)?;
        let mut debug_handle_map = BTreeMap::new();
        let mut drawn_in = vec![false; part.graph.nodes.len()];
        for (index, node) in part.graph.nodes.iter().enumerate() {
            if drawn_in[index] {
                continue;
            }
            let refused = |problem: String| DelegationError::Preprocess {
                backend_id: BACKEND_ID.to_owned(),
                node: part.node_name(node),
                target: node.target.to_string(),
                problem,
            };
            let taken = taken(part, node, &|var| uses.any(var)).map_err(refused)?;
            let (target, followers) = target(part, &uses, node, &taken);
            builder.handle = index as u32 + 1;
            let mut names = vec![part.node_name(node)];
            for follower in followers {
                drawn_in[follower] = true;
                names.push(part.node_name(&part.graph.nodes[follower]));
            }
            debug_handle_map.insert(DebugHandle::Int(builder.handle), names);
            builder.add(taken, target).map_err(refused)?;
        }
        let (payload, named_data) = builder.finish().map_err(fail)?;
        let processed_bytes = payload.to_bytes(&[]).map_err(|e| fail(e.to_string()))?;
        Ok(PreprocessResult { processed_bytes, debug_handle_map, named_data, reads_past_end: READS_PAST_END })
    }
}

/// Lets the views that are tagged infer the size that is computed, since payloads are given tensors alone.
fn infer_sizes(program: &ExportedProgram, graph: &mut ExportedGraph) {
    for node in &mut graph.nodes {
        if program.tag_of(node).is_some() && *node.target == *"aten.view.default" {
            let sizes =
                node.outputs.first().and_then(|&v| program.spec(v)).map_or(&[][..], |spec| &spec.sizes);
            let sizes: Vec<i64> = sizes.iter().map(|size| size.known().unwrap_or(-1)).collect();
            if let Some((_, size)) = node.args.iter_mut().find(|(name, _)| **name == *"size") {
                *size = Argument::ints(&sizes);
            }
        }
        node.graphs_mut().for_each(|inner| infer_sizes(program, inner));
    }
}

/// What the payload's node for a node writes, and the nodes behind it that are drawn into it: batch normalization into a
/// convolution, bounds into what can have them.
fn target(part: &ExportedProgram, uses: &Uses, node: &ExportedNode, taken: &Taken) -> (Target, Vec<usize>) {
    let mut target = Target { var: node.outputs[0], norm: None, bounds: None };
    let mut followers = Vec::new();
    let can_scale = matches!(taken, Taken::Conv(_));
    let can_bound =
        can_scale || matches!(taken, Taken::Product { .. } | Taken::Binary(crate::payload::Binary::Add, ..));
    while let Some(index) = uses.sole(target.var) {
        let next = &part.graph.nodes[index];
        match self::taken::taken(part, next, &|var| uses.any(var)) {
            Ok(Taken::Norm { scale, shift, .. })
                if can_scale && target.norm.is_none() && target.bounds.is_none() =>
            {
                target.norm = Some((scale, shift));
            }
            Ok(Taken::Bounded { low, high, .. }) if can_bound && target.bounds.is_none() => {
                target.bounds = Some((low, high));
            }
            _ => break,
        }
        target.var = next.outputs[0];
        followers.push(index);
    }
    (target, followers)
}

/// What uses the values of a program.
struct Uses {
    count: Vec<u32>,
    /// The last node of the outermost graph that uses each.
    node: Vec<Option<usize>>,
}

impl Uses {
    fn of(program: &ExportedProgram) -> Self {
        let mut node = vec![None; program.num_vars()];
        for (index, user) in program.graph.nodes.iter().enumerate() {
            user.operands().for_each(|var| node[var.index()] = Some(index));
        }
        Self { count: program.use_counts(), node }
    }

    fn any(&self, var: VarId) -> bool {
        self.count.get(var.index()).is_some_and(|count| *count > 0)
    }

    /// The node that alone uses a value, once.
    fn sole(&self, var: VarId) -> Option<usize> {
        self.node[var.index()].filter(|_| self.count[var.index()] == 1)
    }
}
