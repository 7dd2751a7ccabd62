//! Rewrites convolutions with constant weights.

use crate::graph::{Graph, NodeId, ValueId, argument};
use crate::layouts::{has_layout, image_layout};
use crate::operation::OpKind;
use crate::ops::conv::Convolution;
use pteron_kernels::compute::{Activation, ConvParams};
use pteron_operator::facts;
use pteron_tensor::{ScalarType, TensorMeta};

/// Kernel sizes, strides, paddings and dilations must be less than this.
const MAX_EXTENT: usize = 1 << 20;

/// Rewrites a convolution with constant row-major weights whose image is channels-first or channels-last. Returns
/// whether it did.
pub(super) fn rewrite(graph: &mut Graph, node: NodeId, of: &facts::Convolution) -> bool {
    let Some((conv, inputs)) = convolution(graph, node, of) else { return false };
    graph.rewrite(node, OpKind::arc(conv), &inputs);
    true
}

fn convolution(graph: &Graph, node: NodeId, of: &facts::Convolution) -> Option<(Convolution, Vec<ValueId>)> {
    let &[out] = graph.node(node).outputs() else { return None };
    let bias = match of.bias {
        Some(at) => Some(argument(graph, node, at)?),
        None => None,
    };
    let inputs: Vec<ValueId> =
        [argument(graph, node, 0)?, argument(graph, node, 1)?].into_iter().chain(bias).collect();
    let floats = |&v: &ValueId| graph.meta(v).dtype() == ScalarType::Float;
    let known = inputs[1..].iter().all(|&v| graph.is_constant(v));
    let (x, w, out) = (graph.meta(inputs[0]), graph.meta(inputs[1]), graph.meta(out));
    let space = w.rank().checked_sub(2).filter(|space| (1..=3).contains(space))?;
    let all_float = inputs.iter().all(floats) && out.dtype() == ScalarType::Float;
    if !known || !all_float || x.rank() != w.rank() || out.rank() != w.rank() {
        return None;
    }
    let spread = |dims: &facts::Dims, fill: usize| -> Option<[usize; 3]> {
        let mut all = [fill; 3];
        for (i, slot) in all[3 - space..].iter_mut().enumerate() {
            *slot = *dims.get(i).or(dims.last())?;
        }
        Some(all)
    };
    let mut kernel = [1; 3];
    kernel[3 - space..].copy_from_slice(&w.sizes()[2..]);
    let params = ConvParams {
        in_channels: x.sizes()[1],
        out_channels: out.sizes()[1],
        groups: of.groups,
        kernel,
        stride: spread(&of.stride, 1)?,
        padding: spread(&of.padding, 0)?,
        dilation: spread(&of.dilation, 1)?,
        transposed: of.transposed,
    };
    let layout = image_layout(x)?;
    let bias_fits = bias.is_none_or(|b| graph.meta(b).numel() == params.out_channels);
    let sane = bias_fits
        && params.groups > 0
        && params.in_channels.is_multiple_of(params.groups)
        && params.out_channels.is_multiple_of(params.groups)
        && params.stride.iter().chain(&params.dilation).all(|&n| n > 0 && n < MAX_EXTENT)
        && params.kernel.iter().chain(&params.padding).all(|&n| n < MAX_EXTENT)
        && params.weight_count() == w.numel()
        && output_sizes_fit(&params, x, space, out, spread(&of.output_padding, 0)?)
        && has_layout(out, layout);
    let conv = Convolution {
        params,
        space,
        layout,
        bias: bias.is_some(),
        residual: false,
        activation: Activation::Identity,
    };
    sane.then_some((conv, inputs))
}

fn output_sizes_fit(
    params: &ConvParams,
    x: &TensorMeta,
    space: usize,
    out: &TensorMeta,
    extra: [usize; 3],
) -> bool {
    let pixels = |m: &TensorMeta| {
        let mut all = [1; 3];
        all[3 - space..].copy_from_slice(&m.sizes()[2..]);
        all
    };
    let extra = if params.transposed { extra } else { [0; 3] };
    x.numel() > 0 && params.output_size(pixels(x), extra) == Some(pixels(out))
}
