//! Which elements of a value belong to which channel of the convolution or linear layer that computes it.

use pteron_exported::{Argument, ExportedNode, ExportedProgram, Size, TensorSpec, VarId};

/// The channels of a value: along dimension `axis`, index `i` belongs to channel `i / inner % count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Channels {
    /// The dimension.
    pub axis: usize,
    /// The number of adjacent indices that belong to one channel.
    pub inner: usize,
    /// The number of channels.
    pub count: usize,
}

impl Channels {
    /// One channel for each index of a dimension.
    pub(super) fn of_axis(axis: usize, count: usize) -> Self {
        Self { axis, inner: 1, count }
    }

    /// The channel of each element of a row-major tensor of these sizes, by position.
    pub fn channel_of_element(self, sizes: &[usize]) -> impl Fn(usize) -> usize {
        let stride: usize = sizes.iter().skip(self.axis + 1).product::<usize>().max(1);
        let size = sizes.get(self.axis).copied().unwrap_or(1).max(1);
        move |element| element / stride % size / self.inner % self.count
    }

    /// The channels of a node's first result, if each of its elements is computed from elements of one channel of the
    /// operand `x`, and scales with them: `f(s x) = s f(x)` for every `s > 0`.
    pub(super) fn propagate(self, program: &ExportedProgram, node: &ExportedNode, x: VarId) -> Option<Self> {
        let (from, to) = (program.spec(x)?, program.spec(*node.outputs.first()?)?);
        let from_end = |name: &str| -> Option<bool> {
            // The list has a pair of numbers for each dimension, from the last dimension on.
            let pairs = node.arg(name)?.known_ints()?.len() / 2;
            Some(self.axis + pairs < from.rank())
        };
        let is_kept = match &*node.target {
            "aten.relu.default" | "aten.prelu.default" | "aten.leaky_relu.default" | "aten.clone.default" => {
                true
            }
            "dim_order_ops._to_dim_order_copy.default" => from.dtype == to.dtype,
            "aten.max_pool2d_with_indices.default"
            | "aten.avg_pool2d.default"
            | "aten._adaptive_avg_pool2d.default" => self.axis + 2 < from.rank(),
            "aten.constant_pad_nd.default" => from_end("pad")? && is_zero(node.arg("value")),
            "aten.mean.dim" => {
                let keeps = matches!(node.arg("keepdim"), Some(Argument::Bool(true)));
                let dims = node.arg("dim").and_then(Argument::known_ints)?;
                let rank = from.rank() as i64;
                keeps && dims.iter().all(|dim| dim.rem_euclid(rank.max(1)) != self.axis as i64)
            }
            "aten.slice.Tensor" => {
                let dim = if let Some(Argument::Int(dim)) = node.arg("dim") { *dim } else { 0 };
                dim.rem_euclid(from.rank().max(1) as i64) != self.axis as i64
            }
            "aten.permute.default" => {
                let rank = from.rank() as i64;
                let dims = node.arg("dims").and_then(Argument::known_ints)?;
                let axis = dims.iter().position(|dim| dim.rem_euclid(rank.max(1)) == self.axis as i64)?;
                return Some(Self { axis, ..self });
            }
            "aten.view.default" | "aten.unsqueeze.default" | "aten.squeeze.dims" => {
                return self.reshaped(from, to);
            }
            _ => false,
        };
        is_kept.then_some(self)
    }

    /// The channels after a reshape of row-major elements.
    fn reshaped(self, from: &TensorSpec, to: &TensorSpec) -> Option<Self> {
        let product = |sizes: &[Size]| -> Option<usize> {
            sizes.iter().try_fold(1usize, |n, size| n.checked_mul(usize::try_from(size.known()?).ok()?))
        };
        // Elements of one channel are adjacent in blocks of `block`, and channels repeat after `period` elements.
        let block = product(from.sizes.get(self.axis + 1..)?)?.checked_mul(self.inner)?;
        let period = block.checked_mul(self.count)?;
        (0..to.rank()).find_map(|axis| {
            let stride = product(&to.sizes[axis + 1..]).filter(|&stride| stride > 0)?;
            let size = usize::try_from(to.sizes[axis].known()?).ok()?;
            let fits = block.is_multiple_of(stride) && size.checked_mul(stride)?.is_multiple_of(period);
            fits.then_some(Self { axis, inner: block / stride, count: self.count })
        })
    }
}

fn is_zero(value: Option<&Argument>) -> bool {
    match value {
        None | Some(Argument::None | Argument::Int(0)) => true,
        Some(Argument::Float(value)) => *value == 0.0,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quantize::static_spec;
    use pteron_tensor::ScalarType::Float;

    #[test]
    fn a_flattened_value_has_blocks_of_its_channels() {
        let channels = Channels::of_axis(1, 3);
        let flat =
            channels.reshaped(&static_spec(Float, &[2, 3, 4, 5]), &static_spec(Float, &[2, 60])).unwrap();
        assert_eq!(flat, Channels { axis: 1, inner: 20, count: 3 });
        let channel = flat.channel_of_element(&[2, 60]);
        assert_eq!([channel(0), channel(19), channel(20), channel(59), channel(60)], [0, 0, 1, 2, 0]);
        let back = flat.reshaped(&static_spec(Float, &[2, 60]), &static_spec(Float, &[2, 3, 4, 5])).unwrap();
        assert_eq!(back, channels);
    }

    #[test]
    fn a_channel_is_not_divided_among_dimensions() {
        let channels = Channels::of_axis(1, 6);
        assert_eq!(channels.reshaped(&static_spec(Float, &[2, 6]), &static_spec(Float, &[2, 2, 3])), None);
        assert_eq!(
            channels.reshaped(&static_spec(Float, &[2, 6]), &static_spec(Float, &[12])).map(|c| c.inner),
            Some(1)
        );
    }
}
