//! Determines which nodes of a payload are supported.

use crate::Payload;
use crate::data::Data;
use crate::error::Result;
use crate::example::example_metas;
use crate::payload::{Constant, Role};
use crate::raise::refused_nodes;
use pteron_operator::{Budget, KernelRegistry};
use pteron_runtime::{FreeableBuffer, GraphRequest, Limits, NamedDataMap, PayloadSupport, RefusedNode};

/// Finds the nodes of a payload that are refused, and the constants that are absent. Nodes that use absent constants
/// are not checked.
pub(crate) fn check_support(
    payload: &Payload,
    kernels: &KernelRegistry,
    bytes: &FreeableBuffer,
    named: Option<&dyn NamedDataMap>,
) -> PayloadSupport {
    let mut absent: Vec<String> =
        payload.constants.iter().filter_map(named_key).filter(|key| !contains_key(named, key)).collect();
    absent.sort_unstable();
    absent.dedup();
    // Any number of constants may refer to the same bytes, so copies of misaligned ones are limited.
    let memory = Budget::new(Limits::default().memory);
    let (data, failed) = Data::load_present(payload, bytes, named, &memory);
    let unread: Vec<usize> = failed.iter().map(|(v, _)| *v).collect();
    let refuse = |(node, reason): (usize, String)| RefusedNode {
        node,
        kind: payload.nodes[node].name.to_owned(),
        reason,
    };
    let mut refused: Vec<RefusedNode> = match refused_at_export_sizes(payload, kernels, &data, &unread) {
        Ok(nodes) => nodes.into_iter().map(refuse).collect(),
        // The payload's inputs are invalid, so no node can run.
        Err(error) => payload.nodes.iter().enumerate().map(|(i, _)| refuse((i, error.to_string()))).collect(),
    };
    for (v, error) in failed {
        let Role::Constant(index) = payload.values[v].role else { continue };
        let is_absent = named_key(&payload.constants[index]).is_some_and(|key| !contains_key(named, &key));
        let reader = payload.nodes.iter().position(|node| node.inputs.contains(&v));
        if let (false, Some(node)) = (is_absent, reader) {
            refused.push(refuse((node, error.to_string())));
        }
    }
    refused.sort_by_key(|refused| refused.node);
    PayloadSupport { refused, absent }
}

fn refused_at_export_sizes(
    payload: &Payload,
    kernels: &KernelRegistry,
    data: &Data,
    unread: &[usize],
) -> Result<Vec<(usize, String)>> {
    let [inputs, outputs] = example_metas(payload)?;
    refused_nodes(payload, data, kernels, &GraphRequest::new(&inputs, &outputs, usize::MAX), unread)
}

fn named_key(constant: &Constant) -> Option<String> {
    match constant {
        Constant::Named { key, .. } => Some(key.clone()),
        Constant::Payload(_) => None,
    }
}

fn contains_key(named: Option<&dyn NamedDataMap>, key: &str) -> bool {
    named.is_some_and(|map| map.contains(key))
}
