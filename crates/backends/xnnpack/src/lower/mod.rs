//! The ahead-of-time half: partitioning of an exported program, and serialization of the parts as payloads.
//!
//! The backend takes float32 operators that a payload's nodes compute identically; operators between a dequantize and a
//! quantize of int8, which then compute on the quantized values; and linear layers and convolutions with dynamically
//! quantized inputs. Images are NHWC in a payload: a value is transposed to NHWC when a node first needs it, and stays
//! in that layout until a node needs the original dimension order. Batch normalization and clamps are fused into the
//! node before them. Constants are named data whose keys are the SHA-256 of their bytes, as in the reference's
//! exporter.

mod build;
mod call;
mod layouts;
mod match_node;
mod matched;
mod nodes;
mod quantized;
mod shapes;
mod uses;
mod weights;

use crate::BACKEND_ID;
use crate::payload::Binary;
use build::Builder;
use match_node::match_node;
use matched::Match;
use nodes::Target;
use pteron_exported::delegate::{
    CompileSpec, DebugHandle, DelegationError, DelegationSpec, PartitionResult, Partitioner, Preprocess,
    PreprocessResult, tag_supported,
};
use pteron_exported::{Argument, ExportedGraph, ExportedNode, ExportedProgram};
use std::collections::{BTreeMap, HashSet};
use uses::Uses;

/// Bytes that XNNPACK may read past the end of a tensor.
const READS_PAST_END: u64 = 64;

/// Delegates every supported node to XNNPACK, in partitions that are as large as possible.
#[derive(Debug, Clone, Copy, Default)]
pub struct XnnpackPartitioner;

/// Serializes partitions as payloads.
#[derive(Debug, Clone, Copy, Default)]
pub struct XnnpackPreprocess;

impl Partitioner for XnnpackPartitioner {
    /// XNNPACK multiplies rows with ranges of their own only with constant weights.
    fn needs_calibrated_products(&self) -> bool {
        true
    }

    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
        let logical = layouts::without_copies(program);
        let uses = uses_of(&logical);
        let mut tagged = program.clone();
        let (mut supported, mut reasons) = (HashSet::new(), BTreeMap::new());
        logical.graph.for_each_node(&mut |node| {
            let Some(&first) = node.outputs.first() else { return };
            match match_node(&logical, node, &uses) {
                Ok(_) if uses.quantization.dequantizes_weights(node) => {}
                Ok(Match::Relayout(_)) => {}
                Ok(_) => {
                    supported.insert(first);
                }
                Err(reason) => {
                    reasons.insert(first, reason);
                }
            }
        });
        let copies = layouts::adjacent_copies(program, &supported);
        supported.extend(copies.into_iter().filter(|&var| call::float_spec(program, var).is_ok()));
        let tags = tag_supported(&mut tagged, "xnnpack", &|_, node| supported.contains(&node.outputs[0]));
        // Nodes that dequantize weights go into the partition of the operator that uses them.
        for (weights, op) in uses.quantization.weights_of_ops() {
            if let Some(tag) = tagged.tags.get(&op).cloned() {
                tagged.tags.insert(weights, tag);
            }
        }
        let mut program = tagged;
        let spec = DelegationSpec { backend_id: BACKEND_ID.to_owned(), compile_specs: Vec::new() };
        let mut graph = std::mem::take(&mut program.graph);
        infer_sizes(&program, &mut graph);
        program.graph = graph;
        let partition_tags = tags.into_iter().map(|tag| (tag, spec.clone())).collect();
        Ok(PartitionResult { tagged_exported_program: program, partition_tags, reasons })
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
        let part = &*layouts::without_copies(part);
        let uses = uses_of(part);
        let mut builder = Builder::new(part, &uses.quantization).map_err(fail)?;
        let mut debug_handle_map = BTreeMap::new();
        let mut fused = vec![false; part.graph.nodes.len()];
        for (index, node) in part.graph.nodes.iter().enumerate() {
            if fused[index] {
                continue;
            }
            let refused = |problem: String| DelegationError::Preprocess {
                backend_id: BACKEND_ID.to_owned(),
                node: part.node_name(node),
                target: node.target.to_string(),
                problem,
            };
            let matched = match_node(part, node, &uses).map_err(refused)?;
            let (target, followers) = target(part, &uses, node, &matched);
            let matched = if target.on_quantized {
                matched.with_quantized_operands(&uses.quantization)
            } else {
                matched
            };
            builder.handle = index as u32 + 1;
            let mut names = vec![part.node_name(node)];
            for follower in followers {
                fused[follower] = true;
                names.push(part.node_name(&part.graph.nodes[follower]));
            }
            debug_handle_map.insert(DebugHandle::Int(builder.handle), names);
            builder.add_match(matched, target).map_err(refused)?;
        }
        let (payload, named_data) = builder.finish().map_err(fail)?;
        let processed_bytes = payload.to_bytes(&[]).map_err(|e| fail(e.to_string()))?;
        let reads_past_end = READS_PAST_END;
        Ok(PreprocessResult {
            processed_bytes,
            debug_handle_map,
            named_data,
            reads_past_end,
            ..Default::default()
        })
    }
}

/// Rewrites the sizes of tagged views so that a computed size is inferred (-1), since payload inputs are tensors only.
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

/// The target of a node's payload node, and the following nodes that are fused into it: batch normalization into a
/// convolution, a clamp into a node that can have bounds, and a quantize into a node that can run on quantized values.
fn target<'u>(
    part: &ExportedProgram,
    uses: &'u Uses<'_>,
    node: &ExportedNode,
    matched: &Match,
) -> (Target<'u>, Vec<usize>) {
    let quantized = uses.quantization.quantized_op(node);
    let mut target =
        Target { var: node.outputs[0], norm: None, bounds: None, quantized, on_quantized: false };
    let mut followers = Vec::new();
    let has_float_weights = matches!(matched, Match::Conv(_) | Match::Linear { .. }) && quantized.is_none();
    let can_scale = matches!(matched, Match::Conv(_)) && quantized.is_none();
    let can_bound = matches!(matched, Match::Conv(_))
        || matches!(matched, Match::Linear { .. } | Match::Binary(Binary::Add, ..));
    while let Some(index) = uses.sole_user(target.var) {
        let next = &part.graph.nodes[index];
        match match_node(part, next, uses) {
            Ok(Match::BatchNorm { scale, shift, .. })
                if can_scale && target.norm.is_none() && target.bounds.is_none() =>
            {
                target.norm = Some((scale, shift));
            }
            Ok(Match::Clamp { low, high, .. }) if can_bound && target.bounds.is_none() => {
                target.bounds = Some((low, high));
            }
            _ => break,
        }
        target.var = next.outputs[0];
        followers.push(index);
    }
    if let (false, Some(required), Some((quantize, to))) = (
        has_float_weights,
        matched.quantized_result(&uses.quantization),
        uses.quantization.quantizing_user(target.var),
    ) && required.is_none_or(|from| from == to)
        && let Some(index) = uses.sole_user(target.var)
    {
        target.var = quantize.outputs[0];
        target.on_quantized = true;
        followers.push(index);
    }
    (target, followers)
}

/// The uses of a program's values. A quantized operator that the backend does not support counts as a float one.
fn uses_of(program: &ExportedProgram) -> Uses<'_> {
    let mut uses = Uses::of(program);
    let quantized_ops =
        program.graph.nodes.iter().filter(|node| uses.quantization.quantized_op(node).is_some());
    let lost = quantized_ops.filter(|node| match_node(program, node, &uses).is_err());
    let lost = lost.filter_map(|node| node.outputs.first().copied()).collect();
    uses.quantization.discard(lost);
    uses
}
