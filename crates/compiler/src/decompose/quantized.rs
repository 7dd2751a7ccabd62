//! torchao's block-wise affine quantization, as quantization per token or per channel.

use super::Table;
use super::When::NoKernel;
use crate::Result;
use crate::rewrite::{Arg, Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::ScalarType;

pub(super) const RULES: Table = &[
    ("torchao.choose_qparams_affine", NoKernel, choose_parameters),
    ("torchao.quantize_affine", NoKernel, quantize),
    ("torchao.dequantize_affine", NoKernel, dequantize),
];

/// Which elements share a scale and a zero point.
enum Block {
    /// All elements along the last dimension.
    Row,
    /// Groups of this many consecutive elements of the last dimension.
    Group(i64),
}

/// Reads `block_size`; only blocks within a row are supported.
fn read_block_size(cx: &Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<Block> {
    let sizes = cx.spec(node, x)?.sizes;
    let block = cx.ints(node, "block_size")?.unwrap_or_default();
    let (Some((&last, others)), Some(size)) = (block.split_last(), sizes.last()) else {
        return cx.fail(node, "its blocks have no dimensions");
    };
    if block.len() != sizes.len() || others.iter().any(|&n| n != 1) {
        return cx.fail(node, format!("blocks of {block:?} share a scale, not those of a row"));
    }
    match size.known() {
        Some(size) if size == last || last == -1 => Ok(Block::Row),
        Some(size) if last > 0 && size % last == 0 => Ok(Block::Group(last)),
        _ => cx.fail(node, format!("a row of {size} in blocks of {last}")),
    }
}

/// The range of quantized values; defaults to that of int8.
fn quantized_range(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<(i64, i64)> {
    Ok((cx.int(node, "quant_min", -128)?, cx.int(node, "quant_max", 127)?))
}

/// The scale and zero point of each row of a tensor.
fn choose_parameters(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "input")?;
    let of_rows =
        matches!(read_block_size(cx, node, x)?, Block::Row) && quantized_range(cx, node)? == (-128, 127);
    let is_asymmetric = matches!(node.arg("mapping_type"), Some(Argument::Str(how)) if how == "ASYMMETRIC");
    if !of_rows || !is_asymmetric {
        return cx.fail(node, "parameters of other than the rows of int8, asymmetric, are chosen");
    }
    let mut sizes = cx.spec(node, x)?.sizes;
    if let Some(last) = sizes.last_mut() {
        *last = Size::Int(1);
    }
    let spec = |dtype| VarType::Tensor(TensorSpec::contiguous(dtype, sizes.clone()));
    let args = vec![("input", Argument::Var(x)), ("dtype", Argument::Dtype(ScalarType::Char))];
    let target = "quantized_decomposed.choose_qparams_per_token_asymmetric.default";
    let chosen = cx.emit_many(target, args, vec![spec(ScalarType::Double), spec(ScalarType::Long)]);
    // f64 and i64, wider than torchao's; the quantize and dequantize operators below take these types.
    for (&old, new) in node.outputs.iter().zip(chosen) {
        let sizes = cx.spec_of(old).sizes;
        let new = cx.view(node, new, sizes)?;
        cx.replace(old, new);
    }
    Ok(Outcome::Replaced)
}

fn quantize(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    quantize_by_rows(cx, node, "quantized_decomposed.quantize_per_token.default")
}

fn dequantize(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "input")?;
    let is_constant = cx.program.constants.contains_key(&x) && !cx.program.is_mutated(x);
    if is_constant || matches!(read_block_size(cx, node, x)?, Block::Group(_)) {
        return dequantize_by_channels(cx, node, x);
    }
    quantize_by_rows(cx, node, "quantized_decomposed.dequantize_per_token.default")
}

/// The trailing arguments of quantization: the range and the type of the quantized values.
fn range_args(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<[Arg; 3]> {
    let (low, high) = quantized_range(cx, node)?;
    let dtype = node.arg("input_dtype").or(node.arg("output_dtype")).cloned().unwrap_or(Argument::None);
    Ok([("quant_min", Argument::Int(low)), ("quant_max", Argument::Int(high)), ("dtype", dtype)])
}

/// Quantizes or dequantizes rows whose parameters are computed at run time.
fn quantize_by_rows(cx: &mut Rewriter<'_>, node: &ExportedNode, target: &'static str) -> Result<Outcome> {
    let x = cx.tensor(node, "input")?;
    if !matches!(read_block_size(cx, node, x)?, Block::Row) {
        return cx.fail(node, "groups of a row are quantized when the program runs");
    }
    let mut sizes = cx.spec(node, x)?.sizes;
    if let Some(last) = sizes.last_mut() {
        *last = Size::Int(1);
    }
    let mut args = vec![("input", Argument::Var(x))];
    for (given, name, dtype) in
        [("scale", "scales", ScalarType::Double), ("zero_point", "zero_points", ScalarType::Long)]
    {
        let parameter = cx.tensor(node, given)?;
        let parameter = cx.cast(parameter, dtype);
        args.push((name, Argument::Var(cx.view(node, parameter, sizes.clone())?)));
    }
    args.extend(range_args(cx, node)?);
    let result = cx.result_spec(node)?;
    if target.contains("dequantize") {
        args.push(("output_dtype", Argument::Dtype(result.dtype)));
    }
    let new = cx.emit(target, args, result);
    cx.replace_node(node, new)
}

/// Dequantizes with constant parameters for each row, or group in a row: each becomes a channel of a matrix.
fn dequantize_by_channels(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<Outcome> {
    let (spec, result) = (cx.spec(node, x)?, cx.result_spec(node)?);
    let scale = cx.tensor(node, "scale")?;
    let channels = cx.spec(node, scale)?.numel();
    let last = spec.sizes.last().cloned().unwrap_or(Size::Int(1));
    let each = match read_block_size(cx, node, x)? {
        Block::Row => last,
        Block::Group(n) => Size::Int(n),
    };
    let rows = cx.view(node, x, vec![channels.clone(), each.clone()])?;
    let scales = cx.view(node, scale, vec![channels.clone()])?;
    let scales = cx.cast(scales, ScalarType::Float);
    let zeros = match cx.optional_tensor(node, "zero_point") {
        Some(zero) => {
            let zeros = cx.view(node, zero, vec![channels.clone()])?;
            Argument::Var(cx.cast(zeros, ScalarType::Long))
        }
        None => Argument::None,
    };
    let mut args = vec![
        ("input", Argument::Var(rows)),
        ("scales", Argument::Var(scales)),
        ("zero_points", zeros),
        ("axis", Argument::Int(0)),
    ];
    args.extend(range_args(cx, node)?);
    let target = "quantized_decomposed.dequantize_per_channel.default";
    let dequantized = cx.emit(target, args, TensorSpec::contiguous(result.dtype, vec![channels, each]));
    let new = cx.view(node, dequantized, result.sizes)?;
    cx.replace_node(node, new)
}
