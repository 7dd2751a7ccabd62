//! The report on a compilation, as a table and as JSON.

use pteron::compile::delegate::DebugHandle;
use pteron::compile::{Compiled, DelegateSummary, MethodSummary, QuantizationReport};
use pteron_toolbox::comparison::Closeness;
use pteron_toolbox::profile::time_text;
use pteron_toolbox::show::{bytes, count, line, name, table};
use serde_json::{Value, json};
use std::collections::HashSet;

pub(super) fn json(compiled: &Compiled, measured: Option<&QuantizationReport>) -> Value {
    json!({
        "file_bytes": compiled.program.header().file_len,
        "methods": compiled.methods.iter().map(|m| json!({
            "name": m.name, "operators": m.operators, "arena_bytes": m.arena_bytes,
            "constant_bytes": m.constant_bytes, "not_on_reference": m.not_on_reference,
            "delegates": m.delegates.iter().map(delegate_json).collect::<Vec<_>>(),
            "quantized": m.layers.iter().map(|layer| json!({
                "name": layer.name, "operator": layer.target, "weight_error": layer.weight_error,
                "multiplications": layer.multiplications,
            })).collect::<Vec<_>>(),
            "float": m.float.iter().map(|node| json!({
                "name": node.name, "operator": node.target, "reason": node.reason,
                "multiplications": node.multiplications,
            })).collect::<Vec<_>>(),
            "narrow_weights": m.narrow_weights.iter().map(|weight| json!({
                "name": weight.name, "error": weight.error,
                "bytes": { "float32": weight.bytes[0], "stored": weight.bytes[1] },
            })).collect::<Vec<_>>(),
            "wide_weights": m.wide_weights.iter().map(|weight| json!({
                "name": weight.name, "reason": weight.reason,
            })).collect::<Vec<_>>(),
            "left": m.left.iter().map(|left| json!({
                "operator": left.target, "nodes": left.count, "reason": left.reason, "backend": left.backend_id,
                "places": left.nodes.iter().map(|node| json!({
                    "name": node.name, "line": node.line,
                })).collect::<Vec<_>>(),
            })).collect::<Vec<_>>(),
        })).collect::<Vec<_>>(),
        "measured": measured.map(|report| json!({
            "method": report.method, "samples": report.samples, "outputs": report.outputs, "kept": report.kept,
            "spent": report.spent.iter().map(|on| json!({ "name": on.name, "multiplications": on.multiplications, "noise": on.noise })).collect::<Vec<_>>(),
            "alone": report.alone.iter().map(|(name, outputs)| json!({ "name": name, "outputs": outputs })).collect::<Vec<_>>(),
            "multiplications": { "quantized": report.multiplications[0], "all": report.multiplications[1] },
            "bytes": { "float": report.bytes[0], "quantized": report.bytes[1] },
            "seconds": { "float": report.seconds[0], "quantized": report.seconds[1] },
        })),
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
pub(super) fn text(compiled: &Compiled, delegated: bool, measured: Option<&QuantizationReport>) -> String {
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
    compiled.methods.iter().for_each(|method| text += &missing_on_reference_text(method));
    compiled.methods.iter().for_each(|method| text += &weights_text(method));
    let (quantized, measured) =
        (quantized_text(compiled), measured.map_or_else(String::new, self::measured_text));
    let file = bytes(compiled.program.header().file_len);
    format!("{text}{quantized}{measured}\nthe program has {file}")
}

/// A line on the operators of a method that the reference runtime has no kernels for; empty if there are none.
fn missing_on_reference_text(method: &MethodSummary) -> String {
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

/// How many weights of a method are stored in fewer bits, and a table of those that stay float32, with the reasons; empty
/// without `--weights`.
fn weights_text(method: &MethodSummary) -> String {
    let (narrow, wide) = (&method.narrow_weights, &method.wide_weights);
    let mut text = String::new();
    if !narrow.is_empty() {
        let [before, after] =
            [0, 1].map(|i| bytes(narrow.iter().map(|weight| weight.bytes[i]).fold(0, u64::saturating_add)));
        let largest = narrow.iter().map(|weight| weight.error).fold(0.0, f64::max);
        text += &format!(
            "\n{}: {} stored in {after} instead of {before}, with an error of at most {:.3} %",
            name(&method.name),
            count(narrow.len(), "weight"),
            largest * 100.0
        );
    }
    if !wide.is_empty() {
        let head = ["stays float32", "because"].map(str::to_owned).to_vec();
        let rows = wide.iter().map(|weight| vec![weight.name.clone(), weight.reason.clone()]);
        text += &format!("\n{}", table(std::iter::once(head).chain(rows).collect(), "<<", 0));
    }
    text
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
    let prefix = |method: &MethodSummary| {
        if compiled.methods.len() > 1 { format!("{}/", method.name) } else { String::new() }
    };
    let head = ["quantized", "operator", "error of weights"].map(str::to_owned).to_vec();
    let rows = layers.iter().map(|(method, layer)| {
        let of_weights = format!("{:.2} %", layer.weight_error * 100.0);
        let error = if layer.weights > 0 { of_weights } else { "no weights".to_owned() };
        vec![format!("{}{}", prefix(method), layer.name), layer.target.clone(), error]
    });
    let mut text = format!("\n{}", table(std::iter::once(head).chain(rows).collect(), "<<>", 0));
    let float = compiled.methods.iter().flat_map(|m| m.float.iter().map(move |node| (m, node)));
    let rows: Vec<Vec<String>> = float
        .map(|(method, node)| {
            vec![format!("{}{}", prefix(method), node.name), node.target.clone(), node.reason.clone()]
        })
        .collect();
    if !rows.is_empty() {
        let head = ["stays float", "operator", "because"].map(str::to_owned).to_vec();
        text += &format!("\n{}", table(std::iter::once(head).chain(rows).collect(), "<<<", 0));
    }
    text
}

/// The closeness of the outputs, the memory and time saved, and the nodes kept in float to reach the goal.
fn measured_text(report: &QuantizationReport) -> String {
    let head = ["output", "SQNR", "cosine", "same top"].map(str::to_owned).to_vec();
    let rows = report.outputs.iter().enumerate().map(|(index, output)| {
        let of =
            |show: &dyn Fn(&Closeness) -> String| output.closeness.as_ref().map_or_else(String::new, show);
        vec![
            output.name.clone().unwrap_or_else(|| index.to_string()),
            of(&|closeness| format!("{:.1} dB", closeness.sqnr)),
            of(&|closeness| format!("{:.5}", closeness.cosine)),
            output.same_top.map_or_else(String::new, |same| format!("{:.1} %", same * 100.0)),
        ]
    });
    let mut text = format!("\n{}", table(std::iter::once(head).chain(rows).collect(), "<>>>", 0));
    if !report.spent.is_empty() {
        let head =
            ["float for less noise", "multiplications", "SQNR if int8 alone"].map(str::to_owned).to_vec();
        let rows = report.spent.iter().map(|on| {
            let decibels = -10.0 * on.noise.max(f64::MIN_POSITIVE).log10();
            vec![on.name.clone(), format!("{:.1} %", on.multiplications * 100.0), format!("{decibels:.1} dB")]
        });
        text += &format!("\n{}", table(std::iter::once(head).chain(rows).collect(), "<>>", 0));
    }
    if !report.kept.is_empty() {
        text += &format!("\nkept in float: --keep-float {}", line(&report.kept.join(",")));
    }
    let [quantized, all] = report.multiplications;
    // Without quantization, as if only weights are stored in fewer bits, no multiplications are counted.
    let share = match all {
        0 => String::new(),
        _ => format!("{:.1} % of the multiplications are quantized, ", 100.0 * quantized as f64 / all as f64),
    };
    let [before, after] = report.bytes.map(bytes);
    let [slow, fast] = report.seconds.map(|seconds| time_text(seconds * 1e6));
    text += &format!(
        "\nwith {}: {share}{after} instead of {before}, {fast} a run instead of {slow}",
        count(report.samples, "sample")
    );
    text
}
