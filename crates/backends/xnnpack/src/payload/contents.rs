//! Describes a payload in the runtime's format for listings.

use super::{Constant, Node, Op, Payload, Quantization, Role, Scales, Value};
use pteron_runtime::{PayloadBytes, PayloadContents, PayloadNode, PayloadRole, PayloadValue};
use std::fmt::Write;

pub(super) fn contents(payload: &Payload) -> PayloadContents {
    let identifier = String::from_utf8_lossy(&payload.identifier);
    PayloadContents {
        format: format!("XNNPACK graph {identifier}, version {:?}", payload.version),
        values: payload.values.iter().map(|v| describe_value(payload, v)).collect(),
        nodes: payload.nodes.iter().map(describe_node).collect(),
    }
}

fn describe_value(payload: &Payload, value: &Value) -> PayloadValue {
    let (quantization, scales) = match &value.quantization {
        Quantization::None if value.quantized_by_row => ("quantized by row to int8".to_owned(), None),
        Quantization::None => (String::new(), None),
        Quantization::PerTensor { scale, zero_point } => {
            (format!("scale {scale}, zero point {zero_point}"), None)
        }
        Quantization::PerChannel { scales, channel_dim } => {
            (format!("{} along dimension {channel_dim}", scale_count_text(scales)), Some(scales))
        }
        Quantization::PerToken { num_nonbatch_dims } => {
            (format!("parameters for each {num_nonbatch_dims} last dimensions"), None)
        }
        Quantization::PerGroup { scales, group_size, .. } => {
            (format!("{} for groups of {group_size}", scale_count_text(scales)), Some(scales))
        }
    };
    let scales = match scales {
        Some(Scales::Constant { index, .. }) => location_of_constant(payload, *index),
        _ => None,
    };
    let role = match value.role {
        Role::Input(id) => PayloadRole::Input(id as usize),
        Role::Output(id) => PayloadRole::Output(id as usize),
        Role::Constant(index) => {
            location_of_constant(payload, index).map_or(PayloadRole::Internal, PayloadRole::Constant)
        }
        Role::Internal => PayloadRole::Internal,
    };
    PayloadValue {
        name: format!("%{}", value.id),
        dtype: value.datatype.name().to_owned(),
        bits: value.datatype.bits() as u32,
        scalar_type: (value.datatype.bits() >= 8).then(|| value.datatype.scalar_type()),
        sizes: value.dims.clone(),
        quantization,
        scales,
        role,
    }
}

fn scale_count_text(scales: &Scales) -> String {
    match scales {
        Scales::Inline(scales) => format!("{} scales", scales.len()),
        Scales::Constant { count, .. } => format!("{count} scales"),
    }
}

fn location_of_constant(payload: &Payload, index: usize) -> Option<PayloadBytes> {
    Some(match payload.constants.get(index)? {
        Constant::Payload(range) => PayloadBytes::Payload(range.clone()),
        Constant::Named { key, size } => PayloadBytes::Named(key.clone(), *size),
    })
}

fn describe_node(node: &Node) -> PayloadNode {
    let parts = [parameters_text(&node.op), bounds_text(node.bounds)];
    let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
    PayloadNode {
        kind: node.name.to_owned(),
        inputs: node.inputs.clone(),
        outputs: node.outputs.clone(),
        attributes: parts.join(", "),
        debug_handle: (node.debug_handle != 0).then_some(node.debug_handle),
    }
}

fn bounds_text((low, high): (f32, f32)) -> String {
    match (low.is_finite(), high.is_finite()) {
        (false, false) => String::new(),
        (true, false) => format!("at least {low}"),
        (false, true) => format!("at most {high}"),
        (true, true) => format!("within {low} to {high}"),
    }
}

fn parameters_text(op: &Op) -> String {
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
        Op::Unary(f) => f.parameter().map_or_else(String::new, |p| format!("{} {}", p.name, p.value)),
        _ => String::new(),
    }
}
