//! Which elements of its input a layer multiplies with its weights.

use super::floats;
use super::layers::weight_axis;
use pteron_exported::{Argument, ExportedNode, ExportedProgram};
use std::sync::Arc;

/// A layer whose weights [`Quantize::Static`](super::Quantize::Static) rounds.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerObservation {
    /// The node's name.
    pub name: String,
    /// The name of its input.
    pub input: String,
    /// The weights: for each output, those of the columns of a row.
    pub weights: Arc<[f32]>,
    /// The rows that they are multiplied with.
    pub shape: LayerShape,
}

/// The rows of a layer's input: each of its results is a product of a row with the weights of an output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LayerShape {
    /// Those of a linear layer.
    Rows {
        /// The number of elements of a row.
        columns: usize,
    },
    /// The patches of images that a convolution reads.
    Patches {
        /// The number of groups of channels.
        groups: usize,
        /// The number of input channels of a group.
        channels: usize,
        /// The size of a patch in each dimension of an image.
        kernel: Vec<usize>,
        /// The distance between patches.
        stride: Vec<usize>,
        /// The zeros on each side of an image.
        padding: Vec<usize>,
        /// The distance between the elements of a patch.
        dilation: Vec<usize>,
    },
}

impl LayerShape {
    /// The number of elements of a row.
    pub fn columns(&self) -> usize {
        match self {
            Self::Rows { columns } => *columns,
            Self::Patches { channels, kernel, .. } => channels * kernel.iter().product::<usize>(),
        }
    }

    /// The number of groups of outputs, which read different rows.
    pub fn groups(&self) -> usize {
        if let Self::Patches { groups, .. } = self { *groups } else { 1 }
    }

    /// The number of rows in an input of these sizes; `None` if it is no input of the layer.
    pub fn rows(&self, sizes: &[usize]) -> Option<usize> {
        match self {
            Self::Rows { columns } => {
                let (last, outer) = sizes.split_last()?;
                (last == columns).then(|| outer.iter().product())
            }
            Self::Patches { groups, channels, .. } => {
                let &[images, of_image] = sizes.first_chunk()?;
                let patches: usize = self.patches(sizes)?.iter().product();
                (of_image == groups * channels).then_some(images * patches)
            }
        }
    }

    /// The number of patches in each dimension of an image.
    fn patches(&self, sizes: &[usize]) -> Option<Vec<usize>> {
        let Self::Patches { kernel, stride, padding, dilation, .. } = self else { return None };
        let image = sizes.get(2..).filter(|image| image.len() == kernel.len())?;
        let along = |d: usize| {
            let reach = kernel[d].checked_sub(1)?.checked_mul(dilation[d])?.checked_add(1)?;
            let room = image[d].saturating_add(padding[d].saturating_mul(2)).checked_sub(reach)?;
            Some(room.checked_div(stride[d])? + 1)
        };
        (0..image.len()).map(along).collect()
    }

    /// Copies row `row` of a group from an input, row-major elements of these sizes.
    pub fn copy_row(&self, x: &[f32], sizes: &[usize], group: usize, row: usize, to: &mut [f32]) {
        let Self::Patches { groups, channels, kernel, stride, padding, dilation } = self else {
            to.copy_from_slice(&x[row * to.len()..][..to.len()]);
            return;
        };
        let Some(patches) = self.patches(sizes) else { return };
        let image = &sizes[2..];
        let pixels: usize = image.iter().product();
        let of_image: usize = patches.iter().product();
        // The first pixel of the patch in each dimension, before the padding is subtracted.
        let (mut first, mut rest) = (vec![0; image.len()], row % of_image);
        for d in (0..image.len()).rev() {
            first[d] = rest % patches[d] * stride[d];
            rest /= patches[d];
        }
        let taps: usize = kernel.iter().product();
        for tap in 0..taps {
            let (mut rest, mut pixel, mut step) = (tap, Some(0), 1);
            for d in (0..image.len()).rev() {
                let at = (first[d] + rest % kernel[d] * dilation[d]).checked_sub(padding[d]);
                let at = at.filter(|&at| at < image[d]);
                pixel = pixel.zip(at).map(|(pixel, at)| pixel + at * step);
                step *= image[d];
                rest /= kernel[d];
            }
            for channel in 0..*channels {
                let plane = (row / of_image * groups + group) * channels + channel;
                to[channel * taps + tap] = pixel.map_or(0.0, |pixel| x[plane * pixels + pixel]);
            }
        }
    }
}

/// What [`Quantize::Observe`](super::Quantize::Observe) tells about a layer; `None` for a transposed convolution.
pub(super) fn observe(program: &ExportedProgram, node: &ExportedNode) -> Option<LayerObservation> {
    let (weight, 0) = weight_axis(program, node)? else { return None };
    let input = node.arg("input")?.var()?;
    let sizes = program.spec(weight)?.known_sizes()?;
    let sizes: Vec<usize> = sizes.into_iter().map(usize::try_from).collect::<Result<_, _>>().ok()?;
    let &[_, inputs, ref kernel @ ..] = &sizes[..] else { return None };
    let shape = match &*node.target {
        "aten.linear.default" => LayerShape::Rows { columns: inputs },
        _ => {
            let of = |name: &str, default: usize| -> Option<Vec<usize>> {
                let Some(numbers) = node.arg(name).and_then(Argument::known_ints) else {
                    return Some(vec![default; kernel.len()]);
                };
                let numbers = numbers.iter().map(|&n| usize::try_from(n).ok());
                let numbers = numbers.collect::<Option<Vec<usize>>>()?;
                match numbers[..] {
                    [all] => Some(vec![all; kernel.len()]),
                    _ => (numbers.len() == kernel.len()).then_some(numbers),
                }
            };
            let groups = match node.arg("groups") {
                Some(Argument::Int(groups)) => usize::try_from(*groups).ok().filter(|&groups| groups > 0)?,
                _ => 1,
            };
            LayerShape::Patches {
                groups,
                channels: inputs,
                kernel: kernel.to_vec(),
                stride: of("stride", 1)?,
                padding: of("padding", 0)?,
                dilation: of("dilation", 1)?,
            }
        }
    };
    Some(LayerObservation {
        name: program.node_name(node),
        input: program.var(input).name.to_string(),
        weights: floats(program, weight)?.into(),
        shape,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_a_convolution_is_a_patch_of_the_channels_of_a_group() {
        let shape = LayerShape::Patches {
            groups: 2,
            channels: 1,
            kernel: vec![1, 2],
            stride: vec![1, 2],
            padding: vec![0, 1],
            dilation: vec![1, 1],
        };
        let (sizes, x) = ([2, 2, 1, 3], (1..=12).map(|i| i as f32).collect::<Vec<_>>());
        assert_eq!((shape.columns(), shape.rows(&sizes)), (2, Some(4)));
        let row = |group: usize, row: usize| {
            let mut to = [0.0; 2];
            shape.copy_row(&x, &sizes, group, row, &mut to);
            to
        };
        assert_eq!([row(0, 0), row(0, 1), row(1, 0)], [[0.0, 1.0], [2.0, 3.0], [0.0, 4.0]]);
        assert_eq!(row(1, 3), [11.0, 12.0]);
    }

    #[test]
    fn inputs_of_other_sizes_have_no_rows() {
        let shape = LayerShape::Rows { columns: 3 };
        assert_eq!([shape.rows(&[4, 3]), shape.rows(&[3, 4]), shape.rows(&[])], [Some(4), None, None]);
        let kernel = vec![5];
        let one = || vec![1];
        let shape = LayerShape::Patches {
            groups: 1,
            channels: 1,
            kernel,
            stride: one(),
            padding: one(),
            dilation: one(),
        };
        assert_eq!(
            [shape.rows(&[1, 1, 3]), shape.rows(&[1, 1, 2]), shape.rows(&[1, 1])],
            [Some(1), None, None]
        );
    }
}
