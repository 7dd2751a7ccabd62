//! Matches the nodes that the backend supports, and extracts what their payload nodes need.

use super::call::{Call, Reason, floats};
use super::matched::{ConvMatch, Match, Operand};
use super::quantized::expect_int8;
use super::uses::Uses;
use crate::payload::{Binary, Conv, Fixed, Pool, Unary};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, Size, VarId};

/// Matches a node.
///
/// # Errors
/// The reason why the backend does not support it.
pub(super) fn match_node(
    program: &ExportedProgram,
    node: &ExportedNode,
    uses: &Uses<'_>,
) -> Result<Match, Reason> {
    let call = Call { program, node };
    let quantization = &uses.quantization;
    if quantization.is_fused(node) {
        return Ok(Match::Fused);
    }
    match &*node.target {
        "quantized_decomposed.quantize_per_tensor.default" => {
            expect_int8(quantization.quantization_by(node))?;
            return call.tensor("input").map(Match::Quantize);
        }
        "quantized_decomposed.dequantize_per_tensor.default" => {
            expect_int8(quantization.dequantized_source(call.output()?).map(|(_, affine)| affine))?;
            return Ok(Match::Dequantize);
        }
        _ => {}
    }
    if super::layouts::copied_operand(program, node).is_some() {
        call.output()?;
        return call.tensor("self").map(Match::Relayout);
    }
    let constant = |name: &str| match quantization.quantized_op(node) {
        Some(_) => call.tensor(name),
        None => call.constant(name),
    };
    let name = node.target.strip_prefix("aten.").ok_or("it is no operator of ATen")?;
    let matched = match name {
        "pow.Tensor_Scalar" => match call.number("exponent")? {
            Some(2.0) => unary(&call, Unary::Square),
            _ => Err("the exponent is not 2".to_owned()),
        },
        "relu.default" => clamp(&call, Some(0.0), None),
        "clamp.default" => clamp(&call, call.number("min")?, call.number("max")?),
        "hardtanh.default" => {
            let low = call.number("min_val")?.unwrap_or(-1.0);
            clamp(&call, Some(low), Some(call.number("max_val")?.unwrap_or(1.0)))
        }
        "_softmax.default" => softmax(&call),
        "linear.default" => {
            let (x, weight) = (call.tensor("input")?, constant("weight")?);
            linear(&call, x, weight, call.optional_tensor("bias")?, false)
        }
        "mm.default" => linear(&call, call.tensor("self")?, call.constant("mat2")?, None, true),
        "addmm.default" => {
            call.expect_value("alpha", 1.0)?;
            call.expect_value("beta", 1.0)?;
            let (x, weight) = (call.tensor("mat1")?, call.constant("mat2")?);
            linear(&call, x, weight, Some(call.tensor("self")?), true)
        }
        "bmm.default" => Ok(Match::BatchMatMul(call.tensor("self")?, call.tensor("mat2")?)),
        "convolution.default" => convolution(&call, constant("weight")?),
        "_native_batch_norm_legit_no_training.default" => batch_norm(&call, uses),
        "max_pool2d_with_indices.default" => max_pool(&call, uses),
        "avg_pool2d.default" => avg_pool(&call),
        "max.dim" => {
            expect_only_first_used(&call, uses, "its indices are used")?;
            spatial_max(&call)
        }
        "mean.dim" => spatial_mean(&call),
        "upsample_bilinear2d.vec" => resize(&call),
        "permute.default" => permute(&call),
        "view.default" => reshape(&call),
        "cat.default" => concat(&call),
        "slice.Tensor" => slice(&call),
        "select.int" => select(&call),
        "constant_pad_nd.default" => pad(&call),
        _ => elementwise(&call),
    }?;
    call.output()?;
    super::shapes::check(program, node, &matched)?;
    Ok(matched)
}

fn clamp(call: &Call<'_>, low: Option<f64>, high: Option<f64>) -> Result<Match, Reason> {
    let low = low.map_or(f32::NEG_INFINITY, |v| v as f32);
    let high = high.map_or(f32::INFINITY, |v| v as f32);
    if low <= high {
        Ok(Match::Clamp { x: call.tensor("self")?, low, high })
    } else {
        Err("its bounds are empty".into())
    }
}

/// Matches an operator of the table of elementwise kinds.
fn elementwise(call: &Call<'_>) -> Result<Match, Reason> {
    match (Unary::of_target(&call.node.target), Binary::of_target(&call.node.target)) {
        (Some(f), _) => unary(call, f),
        (None, Some(f)) => binary(call, f),
        (None, None) => Err("XNNPACK has no such operator".to_owned()),
    }
}

fn unary(call: &Call<'_>, f: Unary) -> Result<Match, Reason> {
    expect_required_values(call, f.aten().fixed)?;
    let f = match f.parameter() {
        Some(parameter) => match call.number(parameter.argument)? {
            Some(value) => f.with_parameter(value as f32),
            None => f,
        },
        None => f,
    };
    call.tensor("self").map(|x| Match::Unary(f, x))
}

/// Fails if an argument that payloads cannot hold has a value other than the one that XNNPACK computes with.
fn expect_required_values(call: &Call<'_>, fixed: &[(&str, Fixed)]) -> Result<(), Reason> {
    for &(name, value) in fixed {
        match (value, call.node.arg(name)) {
            (Fixed::Int(value), _) => call.expect_value(name, value as f64)?,
            (Fixed::Str(value), Some(Argument::Str(other))) if other != value => {
                return Err(format!("`{name}` is `{other}`"));
            }
            (Fixed::Str(_), _) => {}
        }
    }
    Ok(())
}

fn binary(call: &Call<'_>, f: Binary) -> Result<Match, Reason> {
    expect_required_values(call, f.aten().fixed)?;
    let operand = |name: &str| match call.number(name) {
        Ok(Some(number)) => Ok(Operand::Number(number as f32)),
        _ => call.tensor(name).map(Operand::Var),
    };
    let (a, b) = (operand("self")?, operand("other")?);
    let rank = call.float_spec(call.output()?)?.rank();
    if rank == 0 { Err("its result has no dimensions".to_owned()) } else { Ok(Match::Binary(f, a, b)) }
}

fn softmax(call: &Call<'_>) -> Result<Match, Reason> {
    let x = call.tensor("self")?;
    let rank = call.float_spec(x)?.rank();
    if call.flag("half_to_float", false)? || rank == 0 || call.dim(call.int("dim", -1)?, rank)? + 1 != rank {
        return Err("it is not over the last dimension".to_owned());
    }
    Ok(Match::Softmax(x))
}

fn linear(
    call: &Call<'_>,
    x: VarId,
    weight: VarId,
    bias: Option<VarId>,
    transposed: bool,
) -> Result<Match, Reason> {
    let weights = call.float_spec(weight)?.known_sizes().unwrap_or_default();
    let [rows, columns] = weights[..] else { return Err("the weights are no matrix".to_owned()) };
    if call.float_spec(x)?.rank() == 0 {
        return Err("the input has no dimensions".to_owned());
    }
    check_bias(call, bias, if transposed { columns } else { rows })?;
    Ok(Match::Linear { x, weight, bias, transposed })
}

/// Checks that a bias is a constant with one element for each output.
fn check_bias(call: &Call<'_>, bias: Option<VarId>, outputs: i64) -> Result<(), Reason> {
    let Some(bias) = bias else { return Ok(()) };
    let fits = call.float_spec(bias)?.known_sizes().is_some_and(|sizes| sizes == [outputs]);
    if fits && super::call::is_constant(call.program, bias) {
        return Ok(());
    }
    Err(format!("the bias is no constant of {outputs} numbers"))
}

fn convolution(call: &Call<'_>, weight: VarId) -> Result<Match, Reason> {
    let x = call.tensor("input")?;
    let sizes = call.float_spec(weight)?.known_sizes().unwrap_or_default();
    let (first, second, height, width, is_1d) = match sizes[..] {
        [first, second, height, width] => (first, second, height, width, false),
        [first, second, length] => (first, second, length, 1, true),
        _ => return Err(format!("it is over {} dimensions, not 1 or 2", sizes.len().saturating_sub(2))),
    };
    if call.float_spec(x)?.rank() != sizes.len() {
        return Err("its image has no batch".to_owned());
    }
    if is_1d {
        expect_at_most_one_dynamic_size(call, x)?;
        expect_at_most_one_dynamic_size(call, call.output()?)?;
    }
    let count = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
    let pair = |name: &str, unit: usize| match is_1d {
        true => call.counts(name, [unit as i64]).map(|[n]| [n, unit]),
        false => call.counts(name, [unit as i64; 2]),
    };
    let (stride, padding) = (pair("stride", 1)?, pair("padding", 0)?);
    let (dilation, adjustment) = (pair("dilation", 1)?, pair("output_padding", 0)?);
    let is_transposed = call.flag("transposed", false)?;
    let [groups] = call.counts("groups", [1])?;
    let of_groups = |n: i64| (groups > 0 && count(n) % groups == 0).then(|| count(n) / groups);
    // Weights are [out, in / groups, kh, kw], of transposed convolutions [in, out / groups, kh, kw].
    let (grouped, ungrouped) =
        (of_groups(first).ok_or("its channels are not those of groups")?, count(second));
    let (group_inputs, group_outputs) =
        if is_transposed { (grouped, ungrouped) } else { (ungrouped, grouped) };
    let attributes = Conv {
        padding: [padding[0], padding[1], padding[0], padding[1]],
        kernel: [count(height), count(width)],
        stride,
        dilation,
        group_inputs,
        group_outputs,
        groups,
        adjustment,
    };
    let bias = call.optional_tensor("bias")?;
    check_bias(call, bias, attributes.outputs() as i64)?;
    Ok(Match::Conv(ConvMatch { x, weight, bias, attributes, is_transposed, is_1d }))
}

/// Fails if more than one size of a tensor is dynamic, since a reshape can infer only one.
fn expect_at_most_one_dynamic_size(call: &Call<'_>, var: VarId) -> Result<(), Reason> {
    match call.float_spec(var)?.sizes.iter().filter(|size| size.known().is_none()).count() {
        0 | 1 => Ok(()),
        _ => Err("more than one of its sizes change".to_owned()),
    }
}

/// Fails with the message `otherwise` if a result other than the first is used.
fn expect_only_first_used(call: &Call<'_>, uses: &Uses<'_>, otherwise: &str) -> Result<(), Reason> {
    match call.node.outputs.iter().skip(1).any(|&v| uses.is_used(v)) {
        true => Err(otherwise.to_owned()),
        false => Ok(()),
    }
}

fn batch_norm(call: &Call<'_>, uses: &Uses<'_>) -> Result<Match, Reason> {
    expect_only_first_used(call, uses, "more than its first result is used")?;
    let x = call.tensor("input")?;
    if !matches!(call.float_spec(x)?.rank(), 3 | 4) {
        return Err("its image is not of 3 or 4 dimensions".to_owned());
    }
    let elements =
        |name: &str| -> Result<Vec<f32>, Reason> { Ok(floats(call.program, call.constant(name)?)) };
    let (mean, variance) = (elements("running_mean")?, elements("running_var")?);
    let optional = |name: &str, otherwise: f32| match call.optional_tensor(name)? {
        Some(_) => elements(name),
        None => Ok(vec![otherwise; mean.len()]),
    };
    let (weight, bias) = (optional("weight", 1.0)?, optional("bias", 0.0)?);
    let eps = call.number("eps")?.ok_or("`eps` is not known")?;
    if [variance.len(), weight.len(), bias.len()] != [mean.len(); 3] {
        return Err("its parameters are of different sizes".to_owned());
    }
    let scale = |c: usize| f64::from(weight[c]) / (f64::from(variance[c]) + eps).sqrt();
    let channels = 0..mean.len();
    let shift =
        channels.clone().map(|c| (f64::from(bias[c]) - f64::from(mean[c]) * scale(c)) as f32).collect();
    Ok(Match::BatchNorm { x, scale: channels.map(|c| scale(c) as f32).collect(), shift })
}

fn pool(call: &Call<'_>) -> Result<(VarId, Pool), Reason> {
    let x = call.tensor("self")?;
    if call.float_spec(x)?.rank() != 4 {
        return Err("its image is not of 4 dimensions".to_owned());
    }
    let window = call.counts("kernel_size", [0; 2])?;
    let stride = call.counts("stride", window.map(|n| n as i64))?;
    let [rows, columns] = call.counts("padding", [0; 2])?;
    if rows >= window[0] || columns >= window[1] {
        return Err("its padding is not less than a window".to_owned());
    }
    if stride.contains(&0) {
        return Err("its stride is 0".to_owned());
    }
    let dilation = call.counts("dilation", [1; 2])?;
    Ok((x, Pool { padding: [rows, columns, rows, columns], window, stride, dilation }))
}

/// Extends the padding at the bottom and at the right such that the windows that `ceil_mode` adds are whole: XNNPACK
/// omits windows that are not.
fn with_ceil_mode_padding(call: &Call<'_>, x: VarId, mut pool: Pool) -> Result<Pool, Reason> {
    if !call.flag("ceil_mode", false)? {
        return Ok(pool);
    }
    let sizes = &call.float_spec(x)?.sizes;
    for d in 0..2 {
        let size = sizes[2 + d].known().and_then(|n| usize::try_from(n).ok());
        let size = size.ok_or("`ceil_mode` is set, and the sizes of its image are computed")?;
        let [first, last] = if d == 0 { [0, 2] } else { [3, 1] };
        let reach = (pool.window[d] - 1) * pool.dilation[d] + 1;
        let room =
            (size + 2 * pool.padding[first]).checked_sub(reach).ok_or("a window is larger than its image")?;
        let mut steps = room.div_ceil(pool.stride[d]);
        // The last window starts within the image or the padding before it.
        if steps * pool.stride[d] >= size + pool.padding[first] {
            steps = steps.saturating_sub(1);
        }
        pool.padding[last] += (steps * pool.stride[d]).saturating_sub(room);
    }
    Ok(pool)
}

/// A maximum over height or width: max pooling with a window as high or as wide as the image.
fn spatial_max(call: &Call<'_>) -> Result<Match, Reason> {
    let x = call.tensor("self")?;
    let spec = call.float_spec(x)?;
    if spec.rank() != 4 {
        return Err("its image is not of 4 dimensions".to_owned());
    }
    let dim = call.dim(call.int("dim", 0)?, 4)?;
    let place = dim.checked_sub(2).ok_or("it is not over height or width")?;
    let size = spec.sizes[dim].known().and_then(|n| usize::try_from(n).ok());
    let mut window = [1; 2];
    window[place] = size.ok_or("the size that it is over is computed")?;
    if window == [1; 2] {
        return Err("it is over one element".to_owned());
    }
    let pool = Pool { padding: [0; 4], window, stride: [1; 2], dilation: [1; 2] };
    if call.flag("keepdim", false)? {
        return Ok(Match::MaxPool(x, pool));
    }
    match spec.sizes.iter().filter(|size| size.known().is_none()).count() {
        0 | 1 => Ok(Match::SpatialMax(x, pool)),
        _ => Err("more than one of its sizes change".to_owned()),
    }
}

fn max_pool(call: &Call<'_>, uses: &Uses<'_>) -> Result<Match, Reason> {
    expect_only_first_used(call, uses, "its indices are used")?;
    let (x, pool) = pool(call)?;
    Ok(Match::MaxPool(x, with_ceil_mode_padding(call, x, pool)?))
}

fn avg_pool(call: &Call<'_>) -> Result<Match, Reason> {
    let (x, pool) = pool(call)?;
    // The divisor of a window that reaches beyond the padding depends on where it ends.
    if with_ceil_mode_padding(call, x, pool)? != pool {
        return Err("`ceil_mode` adds windows".to_owned());
    }
    if pool.padding != [0; 4] && call.flag("count_include_pad", true)? {
        return Err("it counts the padding".to_owned());
    }
    if call.number("divisor_override")?.is_some() {
        return Err("`divisor_override` is given".to_owned());
    }
    Ok(Match::AvgPool(x, pool))
}

fn spatial_mean(call: &Call<'_>) -> Result<Match, Reason> {
    let x = call.tensor("self")?;
    let rank = call.float_spec(x)?.rank();
    let dims = call.node.arg("dim").and_then(Argument::known_ints).unwrap_or_default();
    let mut dims = dims.iter().map(|&d| call.dim(d, rank)).collect::<Result<Vec<_>, _>>()?;
    dims.sort_unstable();
    if rank != 4 || dims != [2, 3] || !call.flag("keepdim", false)? {
        return Err("it is not over height and width, or does not keep them".to_owned());
    }
    Ok(Match::SpatialMean(x))
}

fn resize(call: &Call<'_>) -> Result<Match, Reason> {
    let x = call.tensor("input")?;
    let sizes = |var| call.float_spec(var).map(|spec| spec.known_sizes().unwrap_or_default());
    let (from, to) = (sizes(x)?, sizes(call.output()?)?);
    let ([_, _, h, w], [_, _, new_h, new_w]) = (&from[..], &to[..]) else {
        return Err("its sizes are not known".to_owned());
    };
    if let Some(Argument::Floats(scales)) = call.node.arg("scale_factors") {
        let exact = |from: i64, to: i64, scale: &f64| from as f64 * scale == to as f64;
        if !matches!(&scales[..], [a, b] if exact(*h, *new_h, a) && exact(*w, *new_w, b)) {
            return Err("its factors do not give whole sizes".to_owned());
        }
    }
    Ok(Match::Resize { x, align_corners: call.flag("align_corners", false)? })
}

fn permute(call: &Call<'_>) -> Result<Match, Reason> {
    let x = call.tensor("self")?;
    let rank = call.float_spec(x)?.rank();
    let dims = call.node.arg("dims").and_then(Argument::known_ints).ok_or("`dims` is not known")?;
    let perm = dims.iter().map(|&d| call.dim(d, rank)).collect::<Result<Vec<_>, _>>()?;
    if rank == 0 { Err("it has no dimensions".to_owned()) } else { Ok(Match::Transpose { x, perm }) }
}

fn reshape(call: &Call<'_>) -> Result<Match, Reason> {
    let x = call.tensor("self")?;
    let to = call.float_spec(call.output()?)?;
    let computed = to.sizes.iter().filter(|size| size.known().is_none()).count();
    if computed > 1 {
        return Err("more than one of its sizes is computed".to_owned());
    }
    if to.rank() == 0 || call.float_spec(x)?.rank() == 0 {
        return Err("a tensor without dimensions".to_owned());
    }
    Ok(Match::Reshape(x))
}

fn concat(call: &Call<'_>) -> Result<Match, Reason> {
    let Some(Argument::Vars(tensors)) = call.node.arg("tensors") else {
        return Err("`tensors` is no list of tensors".to_owned());
    };
    let rank = call.float_spec(call.output()?)?.rank();
    for &tensor in tensors {
        if call.float_spec(tensor)?.rank() != rank {
            return Err("its tensors are of different ranks".to_owned());
        }
    }
    if tensors.len() < 2 {
        return Err("it is of one tensor".to_owned());
    }
    Ok(Match::Concat { tensors: tensors.clone(), axis: call.dim(call.int("dim", 0)?, rank)? })
}

fn slice(call: &Call<'_>) -> Result<Match, Reason> {
    call.expect_value("step", 1.0)?;
    let x = call.tensor("self")?;
    let spec = call.float_spec(x)?;
    let axis = call.dim(call.int("dim", 0)?, spec.rank())?;
    let size = spec.sizes[axis].known().ok_or("the size that is cut is computed")?;
    let result = call.float_spec(call.output()?)?.sizes.get(axis).and_then(Size::known);
    let result = result.ok_or("its size is computed")?;
    let start = call.int("start", 0)?;
    let start = if start < 0 { start + size } else { start }.clamp(0, size);
    if start + result > size {
        return Err("it reaches behind the end".to_owned());
    }
    Ok(Match::Slice { x, axis, start: start as usize })
}

fn select(call: &Call<'_>) -> Result<Match, Reason> {
    let x = call.tensor("self")?;
    let spec = call.float_spec(x)?;
    let axis = call.dim(call.int("dim", 0)?, spec.rank())?;
    let size = spec.sizes[axis].known().ok_or("the size that is cut is computed")?;
    let index = match call.node.arg("index") {
        Some(Argument::Int(index)) => *index,
        _ => return Err("`index` is computed".to_owned()),
    };
    let at = if index < 0 { index + size } else { index };
    let computed = spec.sizes.iter().filter(|size| size.known().is_none()).count();
    if !(0..size).contains(&at) || spec.rank() < 2 || computed > 1 {
        return Err("it leaves nothing, or more than one of its sizes is computed".to_owned());
    }
    Ok(Match::Slice { x, axis, start: at as usize })
}

fn pad(call: &Call<'_>) -> Result<Match, Reason> {
    let x = call.tensor("self")?;
    let rank = call.float_spec(x)?.rank();
    // Pairs of padding before and after, starting with the last dimension.
    let pads = call.node.arg("pad").and_then(Argument::known_ints).ok_or("`pad` is not known")?;
    let (mut pre, mut post) = (vec![0; rank], vec![0; rank]);
    for (n, pair) in pads.chunks(2).enumerate() {
        let [before, behind] = pair else { return Err("`pad` has no pairs".to_owned()) };
        let axis = rank.checked_sub(n + 1).ok_or("`pad` has too many pairs")?;
        let fits = |n: &i64| usize::try_from(*n).ok().filter(|n| *n <= 1 << 20);
        pre[axis] = fits(before).ok_or("it cuts")?;
        post[axis] = fits(behind).ok_or("it cuts")?;
    }
    let value = call.number("value")?.unwrap_or(0.0) as f32;
    Ok(Match::Pad { x, pre, post, value })
}
