//! Weights as numbers with scales.

use super::{QuantizedLayer, constant, floats, numbers, of_sizes, push};
use ir::exported::{Argument, ExportedNode, ExportedProgram, VarId};
use tensor::ScalarType;

/// The least scale: that of PT2E's observers.
const LEAST_SCALE: f32 = 1.0 / 4096.0;

/// Numbers from `-high` or one less to `high`, with a scale for each run of elements.
pub(super) struct Numbers {
    pub(super) numbers: Vec<i8>,
    pub(super) scales: Vec<f32>,
    /// The root mean square of the errors, as a part of that of the elements.
    pub(super) error: f64,
}

/// How weights become numbers.
#[derive(Clone, Copy)]
pub(super) struct Range {
    pub(super) low: i8,
    pub(super) high: i8,
    /// What the largest element becomes, before it is rounded and bounded.
    pub(super) largest: f32,
}

impl Range {
    /// As PT2E's observers have weights.
    pub(super) const EIGHT_BITS: Self = Self { low: -127, high: 127, largest: 127.0 };
    /// As torchao has weights.
    pub(super) const FOUR_BITS: Self = Self { low: -8, high: 7, largest: 7.5 };
}

/// Symmetric numbers: element `i` has the scale of index `channel(i)`.
pub(super) fn symmetric(
    weights: &[f32],
    channels: usize,
    channel: impl Fn(usize) -> usize,
    range: Range,
) -> Numbers {
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
    let numbers = weights.iter().enumerate().map(number).collect();
    Numbers { numbers, scales, error: if total > 0.0 { (error / total).sqrt() } else { 0.0 } }
}

/// The reals of weights of int8 with a scale for each index of a dimension, and what their node came to.
pub(super) fn by_channel(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    weight: VarId,
    axis: usize,
) -> Option<(VarId, QuantizedLayer)> {
    let weights = floats(program, weight)?;
    let spec = program.spec(weight)?.clone();
    let sizes: Vec<usize> = spec.known_sizes()?.iter().map(|&n| n as usize).collect();
    let channels = *sizes.get(axis).filter(|&&n| n > 0)?;
    let inner: usize = sizes[axis + 1..].iter().product();
    let found = symmetric(&weights, channels, |i| i / inner.max(1) % channels, Range::EIGHT_BITS);
    let error = found.error;
    let reals = dequantized(program, nodes, node, weight, found, &sizes, axis, Range::EIGHT_BITS);
    Some((reals, layer(program, node, error)))
}

/// The node that makes reals of numbers.
pub(super) fn dequantized(
    program: &mut ExportedProgram,
    nodes: &mut Vec<ExportedNode>,
    node: &ExportedNode,
    weight: VarId,
    found: Numbers,
    sizes: &[usize],
    axis: usize,
    range: Range,
) -> VarId {
    let Numbers { numbers: bytes, scales, .. } = found;
    let bytes = bytes.into_iter().map(|n| n as u8).collect();
    let of_scales = of_sizes(ScalarType::Float, &[scales.len()]);
    let zeros = vec![0; 8 * scales.len()];
    let of_zeros = of_sizes(ScalarType::Long, &[scales.len()]);
    let scales = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
    let numbers_var = constant(program, weight, "int", of_sizes(ScalarType::Char, sizes), bytes);
    let scales = constant(program, weight, "scales", of_scales, scales);
    let zeros = constant(program, weight, "zeros", of_zeros, zeros);
    let mut args = vec![
        ("input", Argument::Var(numbers_var)),
        ("scales", Argument::Var(scales)),
        ("zero_points", Argument::Var(zeros)),
        ("axis", Argument::Int(axis as i64)),
    ];
    args.extend(numbers(i64::from(range.low), i64::from(range.high)));
    let target = "quantized_decomposed.dequantize_per_channel.default";
    push(program, nodes, &node.source, target, args, vec![of_sizes(ScalarType::Float, sizes)])[0]
}

pub(super) fn layer(program: &ExportedProgram, node: &ExportedNode, weight_error: f64) -> QuantizedLayer {
    QuantizedLayer { name: program.node_name(node), target: node.target.to_string(), weight_error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_weight_of_a_channel_is_the_largest_number() {
        let found = symmetric(&[0.6, -1.0, 0.25, 4.0, 0.0, 2.1], 2, |i| i / 3, Range::EIGHT_BITS);
        assert_eq!(found.numbers, [76, -127, 32, 127, 0, 67]);
        assert_eq!(found.scales, [1.0 / 127.0, 4.0 / 127.0]);
        assert!(found.error < 5e-3);
        let found = symmetric(&[1.0, -0.5], 1, |_| 0, Range::FOUR_BITS);
        assert_eq!(found.numbers, [7, -4]);
    }

    #[test]
    fn weights_of_zeros_have_a_scale() {
        let found = symmetric(&[0.0; 4], 1, |_| 0, Range::EIGHT_BITS);
        assert!(found.scales[0] > 0.0 && found.error == 0.0);
    }
}
