//! Pooling and convolution of volumes in terms of kernels for images.

use super::Table;
use super::When::{Always, NoKernel};
use super::pool::adaptive_avg_pool_images;
use super::windows::{ints_per_dim, static_size};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::ScalarType;

pub(super) const RULES: Table = &[
    ("aten.max_pool3d", Always, max_pool),
    ("aten.max_pool3d_with_indices", NoKernel, max_pool),
    ("aten.avg_pool3d", NoKernel, avg_pool),
    ("aten.adaptive_avg_pool3d", Always, adaptive_avg_pool),
    ("aten._adaptive_avg_pool3d", Always, adaptive_avg_pool),
    ("aten.convolution", NoKernel, convolution),
];

/// The parameters of a 3-d pooling.
struct Pool {
    kernel: Vec<i64>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    ceil: bool,
}

impl Pool {
    fn from_node(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<Self> {
        let kernel = ints_per_dim(cx, node, "kernel_size", (3, 1))?;
        let stride = match cx.ints(node, "stride")?.unwrap_or_default().is_empty() {
            true => kernel.clone(),
            false => ints_per_dim(cx, node, "stride", (3, 1))?,
        };
        let (padding, dilation) =
            (ints_per_dim(cx, node, "padding", (3, 0))?, ints_per_dim(cx, node, "dilation", (3, 1))?);
        Ok(Self { kernel, stride, padding, dilation, ceil: cx.bool(node, "ceil_mode", false)? })
    }

    /// The arguments of a pooling within the planes, or of one along the depth, for which each plane is flattened to a
    /// row.
    fn max_pool2d_args(&self, x: VarId, is_depth: bool) -> Vec<(&'static str, Argument)> {
        let of = |list: &[i64], default: i64| match is_depth {
            true => Argument::ints(&[list[0], default]),
            false => Argument::ints(&list[1..]),
        };
        vec![
            ("self", Argument::Var(x)),
            ("kernel_size", of(&self.kernel, 1)),
            ("stride", of(&self.stride, 1)),
            ("padding", of(&self.padding, 0)),
            ("dilation", of(&self.dilation, 1)),
            ("ceil_mode", Argument::Bool(self.ceil)),
        ]
    }
}

/// Merges batch and channels into one dimension, before depth, height and width.
fn merge_batch_and_channels(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
) -> Result<(VarId, [Size; 4])> {
    let sizes = cx.spec(node, x)?.sizes;
    if !matches!(sizes.len(), 4 | 5) {
        return cx.fail(node, "it takes volumes");
    }
    let first = sizes.len() - 3;
    let batch = sizes[..first].iter().fold(Size::Int(1), |n, s| n.mul(s));
    let all = [batch, sizes[first].clone(), sizes[first + 1].clone(), sizes[first + 2].clone()];
    Ok((cx.view(node, x, all.to_vec())?, all))
}

/// Depth, height and width of the result.
fn pooled_sizes(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<[Size; 3]> {
    let sizes = cx.result_spec(node)?.sizes;
    match sizes.as_slice() {
        [.., d, h, w] => Ok([d.clone(), h.clone(), w.clone()]),
        _ => cx.fail(node, "it gives no volumes"),
    }
}

/// Pools within the planes, then along the depth; so the first of equal elements of a window wins, as in PyTorch.
fn max_pool(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (pool, want) = (Pool::from_node(cx, node)?, cx.result_spec(node)?);
    let (volume, [batch, depth, height, width]) = merge_batch_and_channels(cx, node, x)?;
    let [out_depth, out_height, out_width] = pooled_sizes(cx, node)?;
    let plane = out_height.mul(&out_width);
    let sizes = vec![batch.clone(), depth.clone(), out_height, out_width];
    let (in_planes, places) = max_pool2d(cx, pool.max_pool2d_args(volume, false), want.dtype, sizes);
    let rows = vec![batch.clone(), Size::Int(1), depth, plane.clone()];
    let by_plane = cx.view(node, in_planes, rows.clone())?;
    let flat = vec![batch.clone(), Size::Int(1), out_depth.clone(), plane.clone()];
    let (most, rows_of_most) = max_pool2d(cx, pool.max_pool2d_args(by_plane, true), want.dtype, flat);
    if let Some(&second) = node.outputs.get(1) {
        // The index within the plane, at the depth that was chosen; the row gives the depth.
        let linear = vec![batch.clone(), rows[2].mul(&plane)];
        let places = cx.view(node, places, linear)?;
        let chosen = cx.view(node, rows_of_most, vec![batch, out_depth.mul(&plane)])?;
        let in_plane = cx.gather(places, 1, chosen);
        let spec = cx.spec_of(chosen);
        let at = |v: &Size| v.known().map_or(Argument::None, Argument::Int);
        let (Argument::Int(plane), Argument::Int(pixels)) = (at(&plane), at(&height.mul(&width))) else {
            return cx.fail(node, "the sizes of its operand are not known");
        };
        let args = vec![
            ("self", Argument::Var(chosen)),
            ("other", Argument::Int(plane)),
            ("rounding_mode", Argument::Str("floor".into())),
        ];
        let row = cx.emit("aten.div.Scalar_mode", args, spec);
        let before = cx.binary("aten.mul.Tensor", row, pixels);
        let sum = cx.binary("aten.add.Tensor", before, in_plane);
        let new = cx.view(node, sum, want.sizes.clone())?;
        cx.replace(second, new);
    }
    let new = cx.view(node, most, want.sizes)?;
    cx.replace_node(node, new)
}

fn max_pool2d(
    cx: &mut Rewriter<'_>,
    args: Vec<(&'static str, Argument)>,
    dtype: ScalarType,
    sizes: Vec<Size>,
) -> (VarId, VarId) {
    let values = TensorSpec::contiguous(dtype, sizes);
    let places = TensorSpec { dtype: ScalarType::Long, ..values.clone() };
    let types = vec![VarType::Tensor(values), VarType::Tensor(places)];
    let outs = cx.emit_many("aten.max_pool2d_with_indices.default", args, types);
    (outs[0], outs[1])
}

/// The mean of a window is the mean of its planes' means, because all planes of a window have equally many elements.
fn avg_pool(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let (pool, want) = (Pool::from_node(cx, node)?, cx.result_spec(node)?);
    let (mut value, [batch, depth, ..]) = merge_batch_and_channels(cx, node, x)?;
    let [out_depth, out_height, out_width] = pooled_sizes(cx, node)?;
    let count_padding = cx.bool(node, "count_include_pad", true)?;
    let divisor = match node.arg("divisor_override") {
        None | Some(Argument::None) => None,
        _ => Some(cx.int(node, "divisor_override", 1)?),
    };
    let plane = out_height.mul(&out_width);
    let steps = [
        (false, vec![batch.clone(), depth.clone(), out_height, out_width], divisor.map(|_| 1)),
        (true, vec![batch.clone(), Size::Int(1), out_depth, plane.clone()], divisor),
    ];
    for (is_depth, sizes, divisor) in steps {
        if is_depth {
            value = cx.view(node, value, vec![batch.clone(), Size::Int(1), depth.clone(), plane.clone()])?;
        }
        let mut args = pool.max_pool2d_args(value, is_depth);
        args.retain(|(name, _)| *name != "dilation");
        args.push(("count_include_pad", Argument::Bool(count_padding)));
        args.push(("divisor_override", divisor.map_or(Argument::None, Argument::Int)));
        value = cx.emit("aten.avg_pool2d.default", args, TensorSpec::contiguous(want.dtype, sizes));
    }
    let new = cx.view(node, value, want.sizes)?;
    cx.replace_node(node, new)
}

fn adaptive_avg_pool(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let want = cx.result_spec(node)?;
    let (volume, [batch, depth, ..]) = merge_batch_and_channels(cx, node, x)?;
    let [out_depth, out_height, out_width] = pooled_sizes(cx, node)?;
    let plane = out_height.mul(&out_width);
    let of = |sizes: Vec<Size>| TensorSpec::contiguous(want.dtype, sizes);
    let planes = of(vec![batch.clone(), depth.clone(), out_height, out_width]);
    let planes = adaptive_avg_pool_images(cx, node, volume, planes)?;
    let rows = cx.view(node, planes, vec![batch.clone(), Size::Int(1), depth, plane.clone()])?;
    let pooled = adaptive_avg_pool_images(cx, node, rows, of(vec![batch, Size::Int(1), out_depth, plane]))?;
    let new = cx.view(node, pooled, want.sizes)?;
    cx.replace_node(node, new)
}

/// A convolution of integers, in float64, which represents integers up to 2^53 exactly.
fn convolution_of_integers(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let want = cx.result_spec(node)?;
    let mut wide = node.clone();
    for (name, arg) in &mut wide.args {
        if matches!(&**name, "input" | "weight" | "bias")
            && let Argument::Var(var) = *arg
        {
            *arg = Argument::Var(cx.cast(var, ScalarType::Double));
        }
    }
    let name = format!("{}_wide", cx.program.var(node.outputs[0]).name);
    let spec = TensorSpec { dtype: ScalarType::Double, ..want.clone() };
    let sum = cx.program.add_var(name, VarType::Tensor(spec));
    wide.outputs = vec![sum];
    cx.push_node(wide);
    let new = cx.cast(sum, want.dtype);
    cx.replace_node(node, new)
}

/// A 3-d convolution as a sum of 2-d convolutions, one for each plane of the weights.
fn convolution(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, weight) = (cx.tensor(node, "input")?, cx.tensor(node, "weight")?);
    let dtype = cx.spec(node, x)?.dtype;
    if !dtype.is_floating() && !dtype.is_complex() {
        return convolution_of_integers(cx, node);
    }
    if cx.spec(node, x)?.rank() != 5 || cx.spec(node, weight)?.rank() != 5 {
        return Ok(Outcome::Kept);
    }
    let conv = Convolution {
        stride: ints_per_dim(cx, node, "stride", (3, 1))?,
        padding: ints_per_dim(cx, node, "padding", (3, 0))?,
        dilation: ints_per_dim(cx, node, "dilation", (3, 1))?,
        output_padding: ints_per_dim(cx, node, "output_padding", (3, 0))?,
        groups: cx.int(node, "groups", 1)?,
        transposed: cx.bool(node, "transposed", false)?,
    };
    let want = cx.result_spec(node)?;
    if want.rank() != 5 {
        return cx.fail(node, "it gives no volumes");
    }
    let planes = cx.permute(x, &[0, 2, 1, 3, 4]);
    let depth = static_size(cx, node, cx.spec_of(weight).sizes.get(2))?;
    cx.check_unrolled_size(node, i64::try_from(depth).unwrap_or(i64::MAX), 10)?;
    let mut sum: Option<VarId> = None;
    for k in 0..depth {
        let tap = cx.select(weight, 2, k as i64);
        let part = match conv.transposed {
            true => conv.convolve_plane_transposed(cx, node, (planes, tap), k as i64, &want)?,
            false => conv.convolve_plane(cx, node, (planes, tap), k as i64, &want)?,
        };
        sum = Some(sum.map_or(part, |sum| cx.binary("aten.add.Tensor", sum, part)));
    }
    let Some(mut sum) = sum else { return cx.fail(node, "its weights have no planes") };
    if let Some(bias) = cx.optional_tensor(node, "bias") {
        let column = cx.spec(node, bias)?.sizes.into_iter().chain([Size::Int(1), Size::Int(1)]).collect();
        let bias = cx.view(node, bias, column)?;
        sum = cx.binary("aten.add.Tensor", sum, bias);
    }
    let new = cx.permute(sum, &[0, 2, 1, 3, 4]);
    cx.replace_node(node, new)
}

struct Convolution {
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    output_padding: Vec<i64>,
    groups: i64,
    transposed: bool,
}

impl Convolution {
    /// Convolves plane `k` of the weights with the input planes that it is applied to.
    fn convolve_plane(
        &self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        (planes, tap): (VarId, VarId),
        k: i64,
        want: &TensorSpec,
    ) -> Result<VarId> {
        let padded = cx.pad(planes, 1, (self.padding[0], self.padding[0]), 0);
        let out_depth = want.sizes[2].clone();
        let first = k * self.dilation[0];
        let end = out_depth.add(&Size::Int(-1)).mul(&Size::Int(self.stride[0])).add(&Size::Int(first + 1));
        let near = cx.slice(node, padded, 1, (&Size::Int(first), &end))?;
        let chosen = match self.stride[0] {
            1 => near,
            step => take_every(cx, near, step, out_depth),
        };
        self.convolve_images(cx, node, chosen, tap, want)
    }

    /// Convolves every plane of the input with plane `k` of the weights and moves the results to their depth in the
    /// output.
    fn convolve_plane_transposed(
        &self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        (planes, tap): (VarId, VarId),
        k: i64,
        want: &TensorSpec,
    ) -> Result<VarId> {
        let images = self.convolve_images(cx, node, planes, tap, want)?;
        let step = self.stride[0];
        let depth = static_size(cx, node, cx.spec_of(images).sizes.get(1))? as i64;
        let wide = cx.unsqueeze(node, images, 2)?;
        let spaced = cx.pad(wide, 2, (0, step - 1), 0);
        let mut sizes = cx.spec_of(images).sizes;
        sizes[1] = Size::Int(depth.saturating_mul(step));
        let spaced = cx.view(node, spaced, sizes)?;
        let before = k * self.dilation[0] - self.padding[0];
        let out_depth = static_size(cx, node, want.sizes.get(2))? as i64;
        let moved = cx.pad(
            spaced,
            1,
            (
                before.max(0),
                out_depth.saturating_sub(before).saturating_sub(depth.saturating_mul(step)).max(0),
            ),
            0,
        );
        let from = (-before).max(0);
        cx.slice(node, moved, 1, (&Size::Int(from), &Size::Int(from.saturating_add(out_depth))))
    }

    fn convolve_images(
        &self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        planes: VarId,
        tap: VarId,
        want: &TensorSpec,
    ) -> Result<VarId> {
        let sizes = cx.spec_of(planes).sizes;
        let batch = sizes[0].mul(&sizes[1]);
        let images =
            cx.view(node, planes, vec![batch.clone(), sizes[2].clone(), sizes[3].clone(), sizes[4].clone()])?;
        let args = vec![
            ("input", Argument::Var(images)),
            ("weight", Argument::Var(tap)),
            ("bias", Argument::None),
            ("stride", Argument::ints(&self.stride[1..])),
            ("padding", Argument::ints(&self.padding[1..])),
            ("dilation", Argument::ints(&self.dilation[1..])),
            ("transposed", Argument::Bool(self.transposed)),
            ("output_padding", Argument::ints(&self.output_padding[1..])),
            ("groups", Argument::Int(self.groups)),
        ];
        let (channels, height, width) = (want.sizes[1].clone(), want.sizes[3].clone(), want.sizes[4].clone());
        let result = vec![batch, channels.clone(), height.clone(), width.clone()];
        let out = cx.emit("aten.convolution.default", args, TensorSpec::contiguous(want.dtype, result));
        cx.view(node, out, vec![sizes[0].clone(), sizes[1].clone(), channels, height, width])
    }
}

/// Every `step`-th element of dimension 1.
fn take_every(cx: &mut Rewriter<'_>, x: VarId, step: i64, count: Size) -> VarId {
    let mut spec = cx.spec_of(x);
    spec.sizes[1] = count;
    let args = vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::Int(1)),
        ("start", Argument::None),
        ("end", Argument::None),
        ("step", Argument::Int(step)),
    ];
    cx.emit("aten.slice.Tensor", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
}
