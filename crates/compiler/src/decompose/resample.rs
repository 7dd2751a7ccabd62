//! Resampling of images and volumes, one dimension at a time. Each output element is a weighted sum of a few input
//! elements; their positions and weights are computed from the sizes at compile time.

use super::Table;
use super::When::{Always, NoKernel};
use super::windows::windows;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.upsample_nearest2d", Always, to_vec_overload),
    ("aten.upsample_bilinear2d", Always, to_vec_overload),
    ("aten._upsample_bilinear2d_aa", NoKernel, interpolate_antialiased),
    ("aten._upsample_bicubic2d_aa", NoKernel, interpolate_antialiased),
    ("aten.upsample_nearest1d", NoKernel, nearest),
    ("aten.upsample_nearest3d", NoKernel, nearest),
    ("aten._upsample_nearest_exact1d", NoKernel, nearest),
    ("aten._upsample_nearest_exact2d", NoKernel, nearest),
    ("aten._upsample_nearest_exact3d", NoKernel, nearest),
    ("aten.upsample_linear1d", NoKernel, interpolate),
    ("aten.upsample_trilinear3d", NoKernel, interpolate),
    ("aten.upsample_bicubic2d", NoKernel, interpolate),
];

/// A dimension that is resampled.
struct Axis {
    dim: usize,
    input: usize,
    output: usize,
    /// Input elements per output element, if the caller gives a scale factor.
    step: Option<f64>,
}

/// For each output element along a dimension, the indices of the input elements that it sums, with their weights.
type Taps = Vec<Vec<(usize, f64)>>;

/// The floating-point type of sample positions: f64 for f64 elements, otherwise f32, as in PyTorch.
#[derive(Clone, Copy)]
struct Precision {
    double: bool,
}

impl Precision {
    fn for_dtype(dtype: ScalarType) -> Self {
        Self { double: dtype == ScalarType::Double }
    }

    fn round(self, v: f64) -> f64 {
        if self.double { v } else { f64::from(v as f32) }
    }
}

fn input_operand(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<VarId> {
    match cx.optional_tensor(node, "input") {
        Some(x) => Ok(x),
        None => cx.tensor(node, "self"),
    }
}

/// The scale factors of the node, one for each dimension; `None` if it gives sizes instead.
fn scale_factors(cx: &Rewriter<'_>, node: &ExportedNode, count: usize) -> Result<Option<Vec<f64>>> {
    if let Some(Argument::Floats(list)) = node.arg("scale_factors") {
        return Ok(Some(list.clone()).filter(|l| l.len() == count));
    }
    let names: &[&str] =
        if count == 1 { &["scales"] } else { &["scales_d", "scales_h", "scales_w"][3 - count..] };
    let mut list = Vec::new();
    for name in names {
        if matches!(node.arg(name), None | Some(Argument::None)) {
            return Ok(None);
        }
        list.push(cx.float(node, name, 1.0)?);
    }
    Ok(Some(list))
}

fn resampled_axes(cx: &Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<Vec<Axis>> {
    let (have, want) = (cx.spec(node, x)?, cx.result_spec(node)?);
    if have.rank() < 3 || have.rank() != want.rank() {
        return cx.fail(node, "it takes images of another rank");
    }
    let factors = scale_factors(cx, node, have.rank() - 2)?;
    (2..have.rank())
        .map(|dim| {
            let size = |s: &Size| s.known().and_then(|v| usize::try_from(v).ok()).filter(|&v| v > 0);
            let step = factors.as_ref().map(|f| f[dim - 2]).filter(|&f| f > 0.0).map(|f| 1.0 / f);
            match (size(&have.sizes[dim]), size(&want.sizes[dim])) {
                (Some(input), Some(output)) => Ok(Axis { dim, input, output, step }),
                _ => cx.fail(node, "the sizes of its images are not known"),
            }
        })
        .collect()
}

/// Rewrites to the `.vec` overload, which the kernels implement and which takes sizes or scale factors.
fn to_vec_overload(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if node.target.ends_with(".vec") {
        return Ok(Outcome::Kept);
    }
    let x = input_operand(cx, node)?;
    let want = cx.result_spec(node)?;
    let factors = scale_factors(cx, node, 2)?;
    let size = match factors {
        Some(_) => Argument::None,
        None => cx.sizes_argument(node, want.sizes.get(2..).unwrap_or_default())?,
    };
    let mut args = vec![("input", Argument::Var(x)), ("output_size", size)];
    let target = match node.target.contains("bilinear") {
        true => {
            args.push(("align_corners", Argument::Bool(cx.bool(node, "align_corners", false)?)));
            "aten.upsample_bilinear2d.vec"
        }
        false => "aten.upsample_nearest2d.vec",
    };
    args.push(("scale_factors", factors.map_or(Argument::None, Argument::Floats)));
    Ok(cx.retarget(node, target, args))
}

fn nearest(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let mut x = input_operand(cx, node)?;
    let offset = if node.target.contains("exact") { 0.5 } else { 0.0 };
    for axis in resampled_axes(cx, node, x)? {
        let step = axis.step.unwrap_or(axis.input as f64 / axis.output as f64) as f32;
        let place = |i: usize| (((i as f32 + offset) * step).floor() as usize).min(axis.input - 1);
        cx.check_table_size(node, &[axis.output])?;
        let index = cx.index_constant((0..axis.output).map(place), &[axis.output])?;
        x = cx.index_select(x, axis.dim, index);
    }
    cx.replace_node(node, x)
}

fn interpolate(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let corners = cx.bool(node, "align_corners", false)?;
    let is_cubic = node.target.contains("cubic");
    resample(cx, node, |axis, precision| interpolation_taps(axis, precision, corners, is_cubic))
}

fn interpolate_antialiased(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let corners = cx.bool(node, "align_corners", false)?;
    let is_cubic = node.target.contains("cubic");
    resample(cx, node, |axis, precision| antialias_taps(axis, precision, corners, is_cubic))
}

/// Interpolates uint8 as PyTorch does, whatever kernels there are: along each dimension it sums products with weights
/// of 16 bits and rounds the sums to uint8. Images whose sizes are not known are left to kernels.
pub(super) fn interpolate_uint8(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
    let (is_wide, is_cubic) = match base {
        "aten.upsample_bilinear2d" => (false, false),
        "aten.upsample_bicubic2d" => (false, true),
        "aten._upsample_bilinear2d_aa" => (true, false),
        "aten._upsample_bicubic2d_aa" => (true, true),
        _ => return Ok(Outcome::Kept),
    };
    let x = input_operand(cx, node)?;
    let is_known = |v: &Size| v.known().is_some_and(|size| size > 0);
    if cx.spec_of(x).dtype != ScalarType::Byte
        || ![cx.spec(node, x)?, cx.result_spec(node)?].iter().all(|s| s.sizes.iter().skip(2).all(is_known))
    {
        return Ok(Outcome::Kept);
    }
    let (corners, precision) = (cx.bool(node, "align_corners", false)?, Precision { double: true });
    let mut value = cx.cast(x, ScalarType::Long);
    for axis in resampled_axes(cx, node, x)?.iter().rev() {
        check_weights_size(cx, node, axis)?;
        let taps = match is_wide {
            true => antialias_taps(axis, precision, corners, is_cubic),
            false => interpolation_taps(axis, precision, corners, is_cubic),
        };
        let (taps, bits) = quantize_taps(taps);
        let sums = weighted_sums(cx, node, value, axis.dim, &taps)?;
        let rounded = cx.add(sums, 1i64 << bits >> 1);
        let shifted = cx.floor_div(rounded, 1i64 << bits);
        let spec = cx.spec_of(shifted);
        let args =
            vec![("self", Argument::Var(shifted)), ("min", Argument::Int(0)), ("max", Argument::Int(255))];
        value = cx.emit("aten.clamp.default", args, spec);
    }
    let new = cx.cast(value, ScalarType::Byte);
    cx.replace_node(node, new)
}

/// Weights as multiples of the smallest power of two with which all fit 16 bits, and its exponent. The weights of an
/// element that is named twice are added first.
fn quantize_taps(mut taps: Taps) -> (Taps, u32) {
    for tap in &mut taps {
        let mut sums: Vec<(usize, f64)> = Vec::with_capacity(tap.len());
        for &(place, weight) in tap.iter() {
            match sums.iter_mut().find(|(known, _)| *known == place) {
                Some((_, sum)) => *sum += weight,
                None => sums.push((place, weight)),
            }
        }
        *tap = sums;
    }
    let weights = || taps.iter().flatten().map(|&(_, weight)| weight);
    let most = weights().fold(0.0, f64::max);
    let fits = |bits: &u32| (0.5 + most * f64::from(1u32 << (bits + 1))) < f64::from(1 << 15);
    let bits = (0..22).find(|bits| !fits(bits)).unwrap_or(22);
    let scaled = |weight: f64| (weight * f64::from(1u32 << bits)).round();
    for weight in taps.iter_mut().flatten().map(|(_, weight)| weight) {
        *weight = scaled(*weight);
    }
    (taps, bits)
}

/// Checks that the table of weights for a dimension is within the limits.
fn check_weights_size(cx: &Rewriter<'_>, node: &ExportedNode, axis: &Axis) -> Result<()> {
    // The widest filter covers four steps of elements.
    let step = axis.step.unwrap_or(axis.input as f64 / axis.output as f64).max(1.0);
    cx.check_table_size(node, &[axis.output, (4.0 * step + 4.0).min(axis.input as f64 + 4.0) as usize])
}

fn resample(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    taps: impl Fn(&Axis, Precision) -> Taps,
) -> Result<Outcome> {
    let x = input_operand(cx, node)?;
    let dtype = cx.spec(node, x)?.dtype;
    if !dtype.is_floating() {
        return cx.fail(node, format!("it interpolates {dtype}, whose rounding no kernel implements"));
    }
    let wide = if dtype == ScalarType::Double { dtype } else { ScalarType::Float };
    let mut value = cx.cast(x, wide);
    // As in PyTorch, the last dimension first.
    for axis in resampled_axes(cx, node, x)?.iter().rev() {
        check_weights_size(cx, node, axis)?;
        let taps = taps(axis, Precision::for_dtype(dtype));
        value = weighted_sums(cx, node, value, axis.dim, &taps)?;
    }
    let new = cx.cast(value, dtype);
    cx.replace_node(node, new)
}

/// For each output element along dimension `dim`, the weighted sum of the input elements that `taps` lists.
fn weighted_sums(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    dim: usize,
    taps: &Taps,
) -> Result<VarId> {
    let count = taps.iter().map(Vec::len).max().unwrap_or(0).max(1);
    let places = taps.iter().map(|t| t.iter().map(|&(i, _)| i).collect()).collect::<Vec<Vec<usize>>>();
    let parts = windows(cx, node, x, dim, &places)?;
    let spec = cx.spec_of(parts);
    let weights: Vec<Scalar> = taps
        .iter()
        .flat_map(|t| (0..count).map(|k| Scalar::Double(t.get(k).map_or(0.0, |&(_, w)| w))))
        .collect();
    let mut sizes = vec![taps.len(), count];
    sizes.resize(spec.rank() - dim, 1);
    let weights = match spec.dtype.is_floating() {
        true => weights,
        false => weights.into_iter().map(|w| Scalar::Int(w.to_f64() as i64)).collect(),
    };
    let weights = cx.constant(&weights, spec.dtype, &sizes)?;
    let scaled = cx.binary("aten.mul.Tensor", parts, weights);
    Ok(cx.reduce("aten.sum.dim_IntList", scaled, &[dim + 1], false))
}

/// The distance, in input elements, between the sample positions of neighbouring output elements; 0 for a single output
/// element if `corners`.
fn input_step(axis: &Axis, precision: Precision, corners: bool) -> f64 {
    let step = match corners {
        true if axis.output > 1 => (axis.input - 1) as f64 / (axis.output - 1) as f64,
        true => 0.0,
        false => axis.step.unwrap_or(axis.input as f64 / axis.output as f64),
    };
    precision.round(step)
}

/// The two (linear) or four (cubic) neighbours of each sample position.
fn interpolation_taps(axis: &Axis, precision: Precision, corners: bool, is_cubic: bool) -> Taps {
    let step = input_step(axis, precision, corners);
    let r = |v| precision.round(v);
    let last = axis.input - 1;
    (0..axis.output)
        .map(|i| {
            let at = match corners {
                true => r(step * i as f64),
                false => r(r(step * (i as f64 + 0.5)) - 0.5),
            };
            if is_cubic {
                let t = r(at - at.floor());
                let base = at.floor() as i64;
                let place = |k: i64| usize::try_from(base + k).unwrap_or(0).min(last);
                return cubic_weights(t).iter().zip(-1..).map(|(&w, k)| (place(k), r(w))).collect();
            }
            let at = at.max(0.0);
            let low = (at as usize).min(last);
            let t = r(at - low as f64).clamp(0.0, 1.0);
            vec![(low, r(1.0 - t)), ((low + 1).min(last), t)]
        })
        .collect()
}

fn cubic_weights(t: f64) -> [f64; 4] {
    const A: f64 = -0.75;
    let near = |x: f64| ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A;
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
}

/// The weights of all elements under an antialiasing filter, whose width grows as the image shrinks.
fn antialias_taps(axis: &Axis, precision: Precision, corners: bool, is_cubic: bool) -> Taps {
    let step = input_step(axis, precision, corners);
    let radius = if is_cubic { 2.0 } else { 1.0 } * step.max(1.0);
    let shrink = 1.0 / step.max(1.0);
    (0..axis.output)
        .map(|i| {
            let center = step * (i as f64 + 0.5);
            let first = (center - radius + 0.5).max(0.0) as usize;
            let end = ((center + radius + 0.5) as usize).clamp(first + 1, axis.input.max(first + 1));
            let weight = |k: usize| antialias_weight((k as f64 - center + 0.5) * shrink, is_cubic);
            let total: f64 = (first..end).map(weight).sum();
            let total = if total == 0.0 { 1.0 } else { total };
            (first..end).map(|k| (k.min(axis.input - 1), precision.round(weight(k) / total))).collect()
        })
        .collect()
}

fn antialias_weight(x: f64, is_cubic: bool) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    match (is_cubic, x) {
        (false, x) => (1.0 - x).max(0.0),
        (true, x) if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
        (true, x) if x < 2.0 => ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A,
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_of_every_filter_add_up_to_one() {
        let precision = Precision { double: true };
        for (input, output) in [(5, 12), (12, 5), (7, 7), (1, 3), (9, 1)] {
            for corners in [false, true] {
                for is_cubic in [false, true] {
                    let axis = Axis { dim: 2, input, output, step: None };
                    let narrow = interpolation_taps(&axis, precision, corners, is_cubic);
                    for taps in [narrow, antialias_taps(&axis, precision, corners, is_cubic)] {
                        assert_eq!(taps.len(), output);
                        for tap in taps {
                            assert!(tap.iter().all(|&(k, _)| k < input));
                            assert!((tap.iter().map(|t| t.1).sum::<f64>() - 1.0).abs() < 1e-12);
                        }
                    }
                }
            }
        }
    }
}
