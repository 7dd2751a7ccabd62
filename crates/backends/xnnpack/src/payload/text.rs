use super::{Constant, Node, Op, Payload, Quantization, Role, Scales, Value};
use std::fmt::Write;

pub(super) fn listing(payload: &Payload) -> String {
    let mut out = String::new();
    let parts = [("value", payload.values.len()), ("node", payload.nodes.len())];
    let [values, nodes] = parts.map(|(what, n)| format!("{n} {what}{}", if n == 1 { "" } else { "s" }));
    let identifier = String::from_utf8_lossy(&payload.identifier).into_owned();
    let _ = writeln!(out, "XNNPACK graph {identifier}, version {:?}: {values}, {nodes}", payload.version);
    out.push_str("values\n");
    let rows: Vec<[String; 3]> = payload.values.iter().map(|value| row(payload, value)).collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let (first, second) = (width(0), width(1));
    for [id, kind, place] in &rows {
        let line = format!("  {id:<first$}  {kind:<second$}  {place}");
        let _ = writeln!(out, "{}", line.trim_end());
    }
    out.push_str("nodes\n");
    let width = payload.nodes.len().saturating_sub(1).to_string().len();
    for (index, node) in payload.nodes.iter().enumerate() {
        let _ = writeln!(out, "  {index:>width$}  {}", text(payload, node));
    }
    out
}

fn row(payload: &Payload, value: &Value) -> [String; 3] {
    let dims: Vec<String> = value.dims.iter().map(usize::to_string).collect();
    let mut kind = format!("{}[{}]", value.datatype.name(), dims.join(", "));
    let quantization = match &value.quantization {
        Quantization::None if value.quantized_by_row => "quantized by row to int8".to_owned(),
        Quantization::None => String::new(),
        Quantization::PerTensor { scale, zero_point } => format!("scale {scale}, zero point {zero_point}"),
        Quantization::PerChannel { scales: s, channel_dim } => {
            format!("{} along dimension {channel_dim}", scales(payload, s))
        }
        Quantization::PerToken { num_nonbatch_dims } => {
            format!("parameters for each {num_nonbatch_dims} last dimensions")
        }
        Quantization::PerGroup { scales: s, group_size, .. } => {
            format!("{} for groups of {group_size}", scales(payload, s))
        }
    };
    if !quantization.is_empty() {
        let _ = write!(kind, " ({quantization})");
    }
    let place = match value.role {
        Role::Input(id) => format!("input {id}"),
        Role::Output(id) => format!("output {id}"),
        Role::Constant(index) => format!("constant {index}: {}", source(payload, index)),
        Role::Internal => String::new(),
    };
    [format!("%{}", value.id), kind, place]
}

fn scales(payload: &Payload, scales: &Scales) -> String {
    match scales {
        Scales::Inline(scales) => format!("{} scales", scales.len()),
        Scales::Constant { index, count } => {
            format!("{count} scales, constant {index}: {}", source(payload, *index))
        }
    }
}

fn source(payload: &Payload, index: usize) -> String {
    match payload.constants.get(index) {
        Some(Constant::Payload(range)) => format!("bytes {}..{} of the payload", range.start, range.end),
        Some(Constant::Named { key, .. }) => format!("named data {key}"),
        None => "absent".to_owned(),
    }
}

/// `FullyConnected(%0, %2, %3) -> %1 fp32[2, 4], from 0`.
fn text(payload: &Payload, node: &Node) -> String {
    let ids = |values: &[usize]| -> Vec<String> {
        values.iter().map(|&index| format!("%{}", payload.values[index].id)).collect()
    };
    let mut out = format!("{}({})", node.name, ids(&node.inputs).join(", "));
    let outputs = node.outputs.iter().map(|&index| {
        let value = &payload.values[index];
        format!("%{} {}{:?}", value.id, value.datatype.name(), value.dims)
    });
    let _ = write!(out, " -> {}", outputs.collect::<Vec<_>>().join(", "));
    for part in [parameters(&node.op), bounds(node.bounds)] {
        if !part.is_empty() {
            let _ = write!(out, ", {part}");
        }
    }
    if node.debug_handle != 0 {
        let _ = write!(out, "  ; debug handle {}", node.debug_handle);
    }
    out
}

fn bounds((low, high): (f32, f32)) -> String {
    match (low.is_finite(), high.is_finite()) {
        (false, false) => String::new(),
        (true, false) => format!("at least {low}"),
        (false, true) => format!("at most {high}"),
        (true, true) => format!("within {low} to {high}"),
    }
}

fn parameters(op: &Op) -> String {
    match op {
        Op::Conv(c) | Op::DepthwiseConv(c) | Op::ConvTranspose(c) => {
            let mut text = format!("kernel {:?}, stride {:?}", c.kernel, c.stride);
            let mut more = |what: &str, there: bool, value: &dyn std::fmt::Debug| {
                if there {
                    let _ = write!(text, ", {what} {value:?}");
                }
            };
            more("padding", c.padding != [0; 4], &c.padding);
            more("dilation", c.dilation != [1; 2], &c.dilation);
            more("groups", c.groups != 1, &c.groups);
            more("adjustment", c.adjustment != [0; 2], &c.adjustment);
            text
        }
        Op::AvgPool(p) | Op::MaxPool(p) | Op::ArgMaxPool(p) => {
            format!(
                "window {:?}, stride {:?}, padding {:?}, dilation {:?}",
                p.window, p.stride, p.padding, p.dilation
            )
        }
        Op::Transpose { perm } => format!("dimensions {perm:?}"),
        Op::Reshape { sizes } => format!("sizes {sizes:?}"),
        Op::Slice { offsets, sizes } => format!("offsets {offsets:?}, sizes {sizes:?}"),
        Op::Pad { pre, post, value } => format!("{pre:?} before, {post:?} behind, of {value}"),
        Op::Concat { axis } => format!("along dimension {axis}"),
        Op::ResizeBilinear { align_corners, .. } if *align_corners => "corners aligned".to_owned(),
        Op::FullyConnected { transposed: true } | Op::BatchMatMul { transposed: true } => {
            "transposed".to_owned()
        }
        Op::Unary(super::Unary::LeakyRelu { slope }) => format!("slope {slope}"),
        Op::Unary(super::Unary::Elu { alpha }) => format!("alpha {alpha}"),
        _ => String::new(),
    }
}
