//! The report on a compilation, as a table and as JSON.

use pteron::compile::delegate::DebugHandle;
use pteron::compile::{Compiled, DelegateSummary, MethodSummary};
use pteron_toolbox::show::{bytes, count, line, name, table};
use serde_json::{Value, json};
use std::collections::HashSet;

pub(super) fn json(compiled: &Compiled) -> Value {
    json!({
        "file_bytes": compiled.program.header().file_len,
        "methods": compiled.methods.iter().map(|m| json!({
            "name": m.name, "operators": m.operators, "arena_bytes": m.arena_bytes,
            "constant_bytes": m.constant_bytes, "not_on_reference": m.not_on_reference,
            "delegates": m.delegates.iter().map(delegate_json).collect::<Vec<_>>(),
            "quantized": m.layers.iter().map(|layer| json!({
                "name": layer.name, "operator": layer.target, "weight_error": layer.weight_error,
            })).collect::<Vec<_>>(),
            "left": m.left.iter().map(|left| json!({
                "operator": left.target, "nodes": left.count, "reason": left.reason, "backend": left.backend_id,
                "places": left.nodes.iter().map(|node| json!({
                    "name": node.name, "line": node.line,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
    })
}

fn delegate_json(delegate: &DelegateSummary) -> Value {
    let handles = delegate.debug_handle_map.iter().map(|(handle, nodes)| {
        let handle = match handle {
            DebugHandle::Int(handle) => handle.to_string(),
            DebugHandle::Str(handle) => handle.clone(),
        };
        (handle, json!(nodes))
    });
    json!({
        "backend": delegate.backend_id, "operators": delegate.operators, "payload_bytes": delegate.payload_bytes,
        "named_bytes": delegate.named_bytes, "debug_handle_map": handles.collect::<serde_json::Map<_, _>>(),
    })
}

/// The report as text: a line per method; delegates, if `delegated` (a backend was selected); quantized layers.
pub(super) fn text(compiled: &Compiled, delegated: bool) -> String {
    let head = ["method", "operators", "calls", "planned memory", "weights"].map(str::to_owned).to_vec();
    let rows = compiled.methods.iter().map(|m| {
        let calls: usize = m.operators.values().sum();
        vec![
            name(&m.name).to_string(),
            m.operators.len().to_string(),
            calls.to_string(),
            bytes(m.arena_bytes),
            bytes(m.constant_bytes),
        ]
    });
    let mut text = table(std::iter::once(head).chain(rows).collect(), "<>>>>", 0);
    if delegated {
        compiled.methods.iter().for_each(|method| text += &delegates_text(method));
    }
    compiled.methods.iter().for_each(|method| text += &missing_on_reference(method));
    format!(
        "{text}{}\nthe program has {}",
        quantized_text(compiled),
        bytes(compiled.program.header().file_len)
    )
}

/// A line on the operators of a method that the reference runtime has no kernels for; empty if there are none.
fn missing_on_reference(method: &MethodSummary) -> String {
    match method.not_on_reference.as_slice() {
        [] => String::new(),
        names => {
            let text = format!(
                "the reference runtime cannot run it, since it has no kernels for {}",
                names.join(", ")
            );
            format!("\n{}: {}", name(&method.name), line(&text))
        }
    }
}

/// How many nodes of a method were delegated, and a table of those that were not, with the reasons.
fn delegates_text(method: &MethodSummary) -> String {
    let delegated: usize = method.delegates.iter().map(|d| d.operators.values().sum::<usize>()).sum();
    // With several backends, a node has a reason of each.
    let left: HashSet<&str> =
        method.left.iter().flat_map(|left| &left.nodes).map(|node| node.name.as_str()).collect();
    let left = left.len();
    let parts = count(method.delegates.len(), "delegate");
    let mut text =
        format!("\n{}: {delegated} of {} in {parts}", name(&method.name), count(delegated + left, "node"));
    if !method.delegates.is_empty() {
        let payloads = method.delegates.iter().map(|d| d.payload_bytes).sum();
        let data = method.delegates.iter().map(|d| d.named_bytes).sum();
        text += &format!(", payloads of {}, data of {}", bytes(payloads), bytes(data));
    }
    if left > 0 {
        let head = ["left to kernels", "nodes", "because"].map(str::to_owned).to_vec();
        let first = &method.left[0].backend_id;
        let several = method.left.iter().any(|left| left.backend_id != *first);
        let rows = method.left.iter().map(|left| {
            let backend = if several { format!("{}: ", left.backend_id) } else { String::new() };
            vec![left.target.clone(), left.count.to_string(), format!("{backend}{}", left.reason)]
        });
        text += &format!("\n{}", table(std::iter::once(head).chain(rows).collect(), "<><", 2));
    }
    text
}

/// A table of the quantized matrix products and convolutions, with the relative error of each one's weights.
fn quantized_text(compiled: &Compiled) -> String {
    let layers: Vec<_> = compiled.methods.iter().flat_map(|m| m.layers.iter().map(move |l| (m, l))).collect();
    if layers.is_empty() {
        return String::new();
    }
    let head = ["quantized", "operator", "error of weights"].map(str::to_owned).to_vec();
    let rows = layers.iter().map(|(method, layer)| {
        let name = if compiled.methods.len() > 1 { format!("{}/", method.name) } else { String::new() };
        let error = format!("{:.2} %", layer.weight_error * 100.0);
        vec![format!("{name}{}", layer.name), layer.target.clone(), error]
    });
    format!("\n{}", table(std::iter::once(head).chain(rows).collect(), "<<>", 0))
}
