//! Symmetric quantization of weights.

use super::{
    QuantizedLayer, add_derived_constant, floats, is_float_constant, multiplications, push_node, range_args,
    static_spec,
};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, VarId};
use pteron_tensor::ScalarType;

/// The smallest range of a channel of 8-bit weights: 127 times the smallest scale. The number is the `eps` of PT2E's
/// observers.
const LEAST_SCALE: f32 = 1.0 / 4096.0;

/// Quantized weights, with a scale for each channel or group.
pub(crate) struct QuantizedWeights {
    pub(crate) values: Vec<i8>,
    pub(crate) scales: Vec<f32>,
    /// The root mean square of the quantization errors, relative to that of the weights.
    pub(crate) error: f64,
}

/// Weights of a layer as int8, with a scale for each output.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundedWeights {
    /// The values, for each output those of its row.
    pub values: Vec<i8>,
    /// The scales.
    pub scales: Vec<f32>,
}

impl RoundedWeights {
    /// The scale that maps the largest of the weights of an output to the end of the range of int8.
    pub fn scale(weights: &[f32]) -> f32 {
        let most = weights.iter().fold(0f32, |most, weight| most.max(weight.abs()));
        (most / Range::EIGHT_BITS.largest).max(LEAST_SCALE / 127.0)
    }

    /// The values and scales, if they are those of `weights`.
    fn of(&self, weights: &[f32], outputs: usize) -> Option<QuantizedWeights> {
        if self.values.len() != weights.len() || self.scales.len() != outputs {
            return None;
        }
        let columns = (weights.len() / outputs).max(1);
        let pairs = weights.iter().zip(&self.values).enumerate();
        let error = pairs.map(|(i, (weight, &value))| {
            f64::from(weight - f32::from(value) * self.scales[i / columns]).powi(2)
        });
        let (error, total): (f64, f64) = (error.sum(), weights.iter().map(|&w| f64::from(w).powi(2)).sum());
        let error = if total > 0.0 { (error / total).sqrt() } else { 0.0 };
        Some(QuantizedWeights { values: self.values.clone(), scales: self.scales.clone(), error })
    }
}

/// The range of quantized weights.
#[derive(Clone, Copy)]
pub(crate) struct Range {
    pub(crate) low: i8,
    pub(crate) high: i8,
    /// The quantized value that the largest weight gets, before rounding and clamping.
    pub(super) largest: f32,
}

impl Range {
    /// The range of 8-bit weights, as PT2E's observers quantize them.
    pub(crate) const EIGHT_BITS: Self = Self { low: -127, high: 127, largest: 127.0 };
    /// The range of 4-bit weights, as torchao quantizes them.
    pub(super) const FOUR_BITS: Self = Self { low: -8, high: 7, largest: 7.5 };
}

/// The weights of a node, and the dimension along which each index has its own scale.
pub(super) fn weight_axis(program: &ExportedProgram, node: &ExportedNode) -> Option<(VarId, usize)> {
    let weight = node.arg("weight")?.var()?;
    if !is_float_constant(program, weight) {
        return None;
    }
    let is_transposed = matches!(node.arg("transposed"), Some(Argument::Bool(true)));
    let one_group = matches!(node.arg("groups"), None | Some(Argument::Int(1)));
    (!is_transposed || one_group).then_some((weight, usize::from(is_transposed)))
}

/// Quantizes weights symmetrically; element `i` has the scale of channel `channel(i)`.
pub(crate) fn quantize_symmetric(
    weights: &[f32],
    channels: usize,
    channel: impl Fn(usize) -> usize,
    range: Range,
) -> QuantizedWeights {
    let mut largest = vec![0f32; channels];
    for (i, weight) in weights.iter().enumerate() {
        let most = &mut largest[channel(i)];
        *most = most.max(weight.abs());
    }
    let least = if range.largest > 100.0 { LEAST_SCALE / 127.0 } else { f32::EPSILON };
    let scales: Vec<f32> = largest.iter().map(|most| (most / range.largest).max(least)).collect();
    let (mut error, mut total) = (0f64, 0f64);
    let (low, high) = (f32::from(range.low), f32::from(range.high));
    let number = |(i, weight): (usize, &f32)| {
        let scale = scales[channel(i)];
        let number = (weight / scale).round_ties_even().clamp(low, high);
        error += f64::from(weight - number * scale).powi(2);
        total += f64::from(*weight).powi(2);
        number as i8
    };
    let values = weights.iter().enumerate().map(number).collect();
    QuantizedWeights { values, scales, error: if total > 0.0 { (error / total).sqrt() } else { 0.0 } }
}

/// Quantizes weights to int8, with a scale for each index of a dimension, or takes those that are given. Returns the dequantized weights and a
/// summary.
pub(super) fn quantize_by_channel(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    weight: VarId,
    axis: usize,
    given: Option<&RoundedWeights>,
) -> Option<(VarId, QuantizedLayer)> {
    let weights = floats(program, weight)?;
    let spec = program.spec(weight)?.clone();
    let sizes: Vec<usize> = spec.known_sizes()?.iter().map(|&n| n as usize).collect();
    let channels = *sizes.get(axis).filter(|&&n| n > 0)?;
    let inner: usize = sizes[axis + 1..].iter().product();
    let given = given.filter(|_| axis == 0).and_then(|given| given.of(&weights, channels));
    let found = given.unwrap_or_else(|| {
        quantize_symmetric(&weights, channels, |i| i / inner.max(1) % channels, Range::EIGHT_BITS)
    });
    let error = found.error;
    let dequantized_var =
        push_dequantize(program, nodes, node, weight, found, &sizes, axis, Range::EIGHT_BITS);
    Some((dequantized_var, layer_summary(program, node, error)))
}

/// Adds the node that dequantizes the weights.
pub(super) fn push_dequantize(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    weight: VarId,
    found: QuantizedWeights,
    sizes: &[usize],
    axis: usize,
    range: Range,
) -> VarId {
    let QuantizedWeights { values: bytes, scales, .. } = found;
    let bytes = bytes.into_iter().map(|n| n as u8).collect();
    let of_scales = static_spec(ScalarType::Float, &[scales.len()]);
    let zeros = vec![0; 8 * scales.len()];
    let of_zeros = static_spec(ScalarType::Long, &[scales.len()]);
    let scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let values_var =
        add_derived_constant(program, weight, "int", static_spec(ScalarType::Char, sizes), bytes);
    let scales = add_derived_constant(program, weight, "scales", of_scales, scales);
    let zeros = add_derived_constant(program, weight, "zeros", of_zeros, zeros);
    let mut args = vec![
        ("input", Argument::Var(values_var)),
        ("scales", Argument::Var(scales)),
        ("zero_points", Argument::Var(zeros)),
        ("axis", Argument::Int(axis as i64)),
    ];
    args.extend(range_args(i64::from(range.low), i64::from(range.high)));
    let target = "quantized_decomposed.dequantize_per_channel.default";
    push_node(program, nodes, &node.source, target, args, vec![static_spec(ScalarType::Float, sizes)])[0]
}

pub(super) fn layer_summary(
    program: &ExportedProgram,
    node: &ExportedNode,
    weight_error: f64,
) -> QuantizedLayer {
    let sizes = node.arg("weight").and_then(Argument::var).and_then(|var| program.spec(var)?.known_sizes());
    let weights = sizes
        .map(|sizes| sizes.iter().fold(1u64, |n, &size| n.saturating_mul(u64::try_from(size).unwrap_or(0))));
    QuantizedLayer {
        name: program.node_name(node),
        target: node.target.to_string(),
        weight_error,
        weights: weights.unwrap_or(0),
        multiplications: multiplications(program, node),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_weight_of_a_channel_maps_to_the_end_of_the_range() {
        let found = quantize_symmetric(&[0.6, -1.0, 0.25, 4.0, 0.0, 2.1], 2, |i| i / 3, Range::EIGHT_BITS);
        assert_eq!(found.values, [76, -127, 32, 127, 0, 67]);
        assert_eq!(found.scales, [1.0 / 127.0, 4.0 / 127.0]);
        assert!(found.error < 5e-3);
        let found = quantize_symmetric(&[1.0, -0.5], 1, |_| 0, Range::FOUR_BITS);
        assert_eq!(found.values, [7, -4]);
    }

    #[test]
    fn zero_weights_have_a_positive_scale() {
        let found = quantize_symmetric(&[0.0; 4], 1, |_| 0, Range::EIGHT_BITS);
        assert!(found.scales[0] > 0.0 && found.error == 0.0);
    }
}
